"""A log density with its gradient, as a CPU computes it best.

Four things that XLA's compiler leaves as they stand are written otherwise before it sees them:
    a scatter-add of rows, the gradient of indexing (``effect[group]``)    a loop, which is what it is on a CPU
    a loop of few operations on few numbers                                several turns at once
    log(c eˣ), the normaliser of a scale that is an exponential            log c + x: no logarithm, and never of 0
    functions and long sums that are read more than once                   computed once, not once for each use
XLA takes logarithms in double precision one number at a time, and computes functions anew in every loop that reads
them: of a volatility of 500 days both are two fifths of a gradient.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core as jex

from credo.equations import CALLS, bind, equations, evaluate
from credo.sharing import keep, to_keep

# A turn of a loop costs some nanoseconds, as much as a short body: several of them at once are quicker by a third.
TURNS, SHORT_BODY, SMALL_BODY = 4, 32, 64  # at once; equations and elements of a body that is short


def value_and_gradient(function: Callable) -> Callable:
    """``jax.value_and_grad(function)`` of a function of one array."""

    def evaluate_both(u):
        if jax.default_backend() != "cpu":
            return jax.value_and_grad(function)(u)
        forwards = jax.make_jaxpr(lambda u: function(u))(u)  # JAX compares functions, targets by their arrays
        both = jax.make_jaxpr(jax.value_and_grad(lambda u: _without_logs(forwards, u)[0]))(u)
        value, gradient = _for_cpu(both, u)
        return value, gradient

    return evaluate_both


def _without_logs(program: jex.ClosedJaxpr, *args) -> list:
    """The values of ``program`` at ``args``, with log(c eˣ) as log c + x; what is within branches or loops stays."""
    exponentials = {}  # c and x of each variable that is c eˣ, c a single number

    def outputs(_: int, equation, operands: list) -> list:
        name = equation.primitive.name
        if name in CALLS:
            return _without_logs(equation.params[CALLS[name]], *operands)
        known = [None if isinstance(atom, jex.Literal) else exponentials.get(atom) for atom in equation.invars]
        if name == "log" and known[0]:
            c, x = known[0]
            return [jnp.log(c) + x]
        found = exponential(name, known, operands)
        if found is not None:
            exponentials[equation.outvars[0]] = found
        return bind(equation, operands)

    def exponential(name: str, known: list, operands: list):
        if name == "exp" and jnp.issubdtype(jnp.result_type(*operands), jnp.floating):  # a complex phase comes round
            return 1.0, operands[0]
        if name not in ("mul", "div") or sum(each is not None for each in known) != 1:
            return None
        is_second = known[0] is None
        (c, x), number = known[is_second], operands[not is_second]
        if jnp.shape(number):
            return None
        if name == "mul":
            return c * number, x
        return (number / c, -x) if is_second else (c / number, x)

    return evaluate(program, list(args), outputs)


def _for_cpu(program: jex.ClosedJaxpr, *args) -> list:
    """The values of ``program`` at ``args`` by the other rules; what is within branches or loops stays."""
    kept = to_keep(program.jaxpr)

    def outputs(_: int, equation, operands: list) -> list:
        name = equation.primitive.name
        if name in CALLS:
            return _for_cpu(equation.params[CALLS[name]], *operands)
        if _as_rows(equation):
            operand, indices, updates = operands
            return [_add_rows(operand, indices, updates, equation.params["mode"])]
        if _is_short(equation):
            return bind(equation, operands, unroll=TURNS)
        found = bind(equation, operands)
        return [keep(each) if out in kept else each for out, each in zip(equation.outvars, found, strict=True)]

    return evaluate(program, list(args), outputs)


def _as_rows(equation) -> bool:
    """A scatter-add of whole rows: updates[k] is added to row indices[k] of the operand."""
    if equation.primitive.name not in ("scatter-add", "scatter_add"):
        return False
    numbers = equation.params["dimension_numbers"]
    operand, indices, updates = (variable.aval for variable in equation.invars)
    num_index_axes = indices.ndim - 1
    return (
        numbers.scatter_dims_to_operand_dims == (0,)
        and numbers.inserted_window_dims == (0,)
        and not numbers.operand_batching_dims
        and numbers.update_window_dims == tuple(range(num_index_axes, updates.ndim))
        and updates.shape[num_index_axes:] == operand.shape[1:]
    )


def _is_short(equation) -> bool:
    """A ``scan`` of many turns, each of few operations on few numbers."""
    if equation.primitive.name != "scan" or equation.params["length"] < 2 * TURNS or equation.params["unroll"] != 1:
        return False
    body = list(equations(equation.params["jaxpr"].jaxpr))
    if len(body) > SHORT_BODY or any(each.primitive.name in ("scan", "while") for each in body):
        return False
    return sum(getattr(variable.aval, "size", 0) for each in body for variable in each.outvars) <= SMALL_BODY


def _add_rows(operand, indices, updates, mode):
    """operand[indices[k]] += updates[k] for each k in turn; what lies outside is moved to the edge, or dropped."""
    indices, last = indices.reshape(-1), operand.shape[0] - 1
    updates = updates.reshape(indices.size, *operand.shape[1:])

    def add(k, rows):
        i = lax.dynamic_index_in_dim(indices, k, keepdims=False)
        update = lax.dynamic_index_in_dim(updates, k, keepdims=False)
        if mode == lax.GatherScatterMode.FILL_OR_DROP:
            update = jnp.where((i >= 0) & (i <= last), update, jnp.zeros_like(update))
        i = jnp.clip(i, 0, last)
        return lax.dynamic_update_index_in_dim(rows, lax.dynamic_index_in_dim(rows, i, keepdims=False) + update, i, 0)

    return lax.fori_loop(0, indices.size, add, operand)
