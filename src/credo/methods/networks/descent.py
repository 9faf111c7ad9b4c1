"""Minibatch descent of a loss over any parameters: what the methods of this folder share.

A loss is an estimate, on a window of rows (model/windows.py), of what the method minimises for all N of them:

    loss(parameters, target, rows, key),   E over windows and keys = the whole loss

What is descended is that over N, so that step sizes mean the same for any N. An update whose loss or gradient is not
finite is not taken, and ends the training there: the parameters stay as they were before it.
"""

import functools
from collections.abc import Hashable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from credo.algorithm import Options, as_key, stream
from credo.compiling import sound
from credo.convolutions import canonical
from credo.course import Course
from credo.diagnose.startup import check_finite_start, explain
from credo.memory import Need, bytes_of
from credo.methods.optimise.training import Training, adam, which_batch
from credo.model.blocks import DERIVATIVES, row_bytes
from credo.model.data import Rows
from credo.model.target import Target
from credo.model.windows import place_of, rows_at, shuffled, window
from credo.status import CredoError

CALLS = 20  # parts of the path, whose mean losses are told
STREAM = 1 << 20
COPIES = 12  # of parameters: gradients, the optimiser's moments, each before a step and after it, and their arithmetic


class Loss(Hashable, Protocol):
    """Frozen settings: a compiled program is keyed on them."""

    def __call__(self, parameters: Any, target: Target, rows: Rows, key: Any, /) -> Any: ...


class State(NamedTuple):
    """``value``: the losses summed. ``losses`` (CALLS,): their means over the parts of the path that are behind."""

    training: Training
    value: Float[Array, ""]
    losses: Float[Array, " part"]


class Descended(NamedTuple):
    """``sentences``: what went wrong. ``losses``: the mean loss over the updates of each part of the path."""

    parameters: Any
    num_updates: int
    failed_at: int
    is_complete: bool
    losses: np.ndarray
    sentences: tuple[str, ...]


def descend(
    loss: Loss,
    target: Target,
    parameters: Any,
    *,
    position: Float[np.ndarray, " dim"],
    optimiser: optax.GradientTransformation | None,
    batch_size: int | None,
    num_steps: int,
    key,
    options: Options,
    name: str = "training",
) -> Descended:
    """``num_steps`` updates, fewer at the time limit or where a loss is not finite.

    ``position``: where the parameters begin, for the explanation of a loss that is not finite there: a CredoError.
    ``name``: of the course in the checkpoint.
    """
    if batch_size is None:
        target.rows()  # a sentence where they lie outside of memory
    optimiser = optimiser or adam(num_steps)
    deadline = options.deadline()
    random = np.random.default_rng(stream(key, STREAM))
    data = jax.device_put(shuffled(target, batch_size, random))
    order = stream(key, STREAM, 1)
    quota = -(-num_steps // CALLS)
    stops = [*range(quota, num_steps, quota), num_steps]

    def advance(state: State, first: int, last: int) -> State:
        return _advance(data, state, order, first, last, loss, optimiser, batch_size)

    def at_stop(state: State, done: int) -> State:
        part = (done - 1) // quota
        failed_at = int(state.training.failed_at)
        taken = (failed_at if failed_at >= 0 else done) - part * quota
        losses = np.array(state.losses)
        losses[part] = float(state.value) / max(taken, 1)
        return state._replace(value=np.zeros_like(state.value), losses=losses)

    course = Course(name, _begin(optimiser, parameters), options)
    course.run(advance, stops, deadline, at_stop=at_stop, is_over=lambda state: bool(state.training.failed_at >= 0))
    state: State = course.state
    done, failed_at = course.done, int(state.training.failed_at)
    losses = np.array(state.losses, np.float64)
    losses = losses[: -(-done // quota)]
    if done % quota and done < num_steps and failed_at < 0:  # the part that time cut off
        losses[-1] = float(state.value) / (done % quota)
    if failed_at == 0:
        raise CredoError(explain(target, position))
    if failed_at > 0:  # where rows are at fault, no step size mends them
        check_finite_start(target, position)
    sentences = () if failed_at < 0 else (_failure(target, batch_size, key, failed_at),)
    done = done if failed_at < 0 else failed_at
    is_complete = done == num_steps or failed_at >= 0
    if not is_complete:
        sentences = (f"The time limit came after {done:,} of {num_steps:,} updates: raise time_limit.",)
    parameters = jax.tree.map(np.asarray, state.training.position)
    return Descended(parameters, done, failed_at, is_complete, losses, sentences)


def need(name: str, target: Target, parameters: Any, batch_size: int | None) -> Need:
    """What training ``parameters``, known by their shapes, holds at its peak."""
    rows = batch_size or target.rows_at_once or target.size
    return Need(name, COPIES * bytes_of(parameters) + DERIVATIVES * rows * row_bytes(target))


def _failure(target: Target, batch_size: int | None, key, i: int) -> str:
    """Which update, and which rows it saw."""
    where = ""
    if batch_size is not None:
        random = np.random.default_rng(stream(key, STREAM))
        rows = rows_at(target, batch_size, random, as_key(stream(key, STREAM, 1)), i)
        where = f" ({which_batch(target, rows, max(target.size // batch_size, 1), i)})"
    return (
        f"The loss or its gradient was not finite at update {i + 1:,}{where}: training stopped there, and the last "
        "finite state is kept. Look at those rows, lower the optimiser's step size, or add optax.clip_by_global_norm."
    )


@functools.partial(sound, static_argnames="optimiser")
def _begin(optimiser, parameters) -> State:
    value = jnp.zeros((), jax.tree.leaves(parameters)[0].dtype)
    return State(Training.begin(optimiser, parameters), value, jnp.full(CALLS, jnp.nan, value.dtype))


@functools.partial(sound, static_argnames=("loss", "optimiser", "batch_size"))
def _advance(target: Target, state: State, order, first, last, loss: Loss, optimiser, batch_size: int | None) -> State:
    def update(i, state: State) -> State:
        if batch_size is None:
            rows = target.rows()
        else:
            rows = window(target, batch_size, place_of(target, batch_size, as_key(order), i))
        key = jax.random.fold_in(jax.random.fold_in(as_key(order), i), 1)

        def one(parameters):
            return loss(parameters, target, rows, key) / max(target.size, 1)

        value, gradient = jax.value_and_grad(one)(state.training.position)
        training, is_taken = state.training.update(optimiser, i, value, gradient)
        is_told = is_taken & jnp.isfinite(value)  # an optimiser may go on from a loss that is none
        return State(training, state.value + jnp.where(is_told, value * target.size, 0.0), state.losses)

    return jax.lax.fori_loop(first, last, canonical(update), state)
