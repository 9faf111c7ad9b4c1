"""Operators of ATen for whole recurrences (torch.nn.RNN, GRU, LSTM), each direction of each layer one scan.

Their decompositions write every step out: a gated recurrence over 32 steps is a program of hundreds of equations, whose
derivatives take a minute to compile.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from credo.status import CredoError


def gru_cell(given, from_state, state):
    """Cho et al. (2014), the reset gate after the product, as in torch. ``given``, ``from_state``: (…, 3 size)."""
    (reset, update, new), (own_reset, own_update, own_new) = jnp.split(given, 3, -1), jnp.split(from_state, 3, -1)
    update = jax.nn.sigmoid(update + own_update)
    new = jnp.tanh(new + jax.nn.sigmoid(reset + own_reset) * own_new)
    return (new + update * (state[0] - new),)


def lstm_cell(given, from_state, state):
    """Hochreiter & Schmidhuber (1997), with the gate that forgets. ``given``, ``from_state``: (…, 4 size)."""
    enter, forget, new, leave = jnp.split(given + from_state, 4, -1)
    memory = jax.nn.sigmoid(forget) * state[1] + jax.nn.sigmoid(enter) * jnp.tanh(new)
    return jax.nn.sigmoid(leave) * jnp.tanh(memory), memory


def plain_cell(activation: Callable) -> Callable:
    """Elman (1990)."""
    return lambda given, from_state, state: (activation(given + from_state),)


def recurrence(cell: Callable) -> Callable:
    """The operator: outputs, and each state at the end (layers · directions, rows, size).

    ``cell``: (of the inputs, of the first state, states) -> states, of which the first is the output. ``params``: of
    each direction of each layer the weights of inputs and of the state, their biases where there are some, and a
    projection of the output where there is one.
    """

    def operator(x, states, params, has_biases, num_layers, dropout, train, bidirectional, batch_first):
        if train and dropout:
            raise CredoError(f"A recurrence draws dropout ({dropout:g}) in evaluation too: set its dropout to 0.")
        states = states if isinstance(states, list) else [states]
        directions = (False, True) if bidirectional else (False,)
        size = len(params) // (num_layers * len(directions))
        weights = [params[i : i + size] for i in range(0, len(params), size)]
        x = jnp.swapaxes(x, 0, 1) if batch_first else x
        ends = []
        for _ in range(num_layers):
            outputs = []
            for is_backwards in directions:
                own, state = weights[len(ends)], tuple(each[len(ends)] for each in states)
                end, output = _direction(cell, x, state, own, has_biases, is_backwards)
                ends.append(end)
                outputs.append(output)
            x = jnp.concatenate(outputs, axis=-1)
        return jnp.swapaxes(x, 0, 1) if batch_first else x, *map(jnp.stack, zip(*ends, strict=True))

    return operator


def _direction(cell: Callable, x, state, weights: list, has_biases: bool, is_backwards: bool):
    """(the states at the end, the outputs (time, rows, size)) of one scan."""
    of_input, of_state, *others = weights
    bias, own_bias = others[:2] if has_biases else (0.0, 0.0)
    projection = others[2 * has_biases :]

    def step(state, given):
        output, *memory = cell(given, state[0] @ of_state.T + own_bias, state)
        output = output @ projection[0].T if projection else output
        return (output, *memory), output

    given = x @ of_input.T + bias
    return lax.scan(step, tuple(each.astype(given.dtype) for each in state), given, reverse=is_backwards)


RECURRENT = {
    "gru.input": recurrence(gru_cell),
    "lstm.input": recurrence(lstm_cell),
    "rnn_tanh.input": recurrence(plain_cell(jnp.tanh)),
    "rnn_relu.input": recurrence(plain_cell(jax.nn.relu)),
}
