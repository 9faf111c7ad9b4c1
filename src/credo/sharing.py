"""What several loops read is computed once.

XLA's compiler for a CPU writes what a loop reads into the loop, and so anew for each loop that reads it. Of a sum of n
named terms, b₁ x₁ + … + bₙ xₙ, the gradient has n loops, each with the whole sum in it: n² operations, and as many to
compile: for 80 terms of 200 rows 5 and 4 times as long (benchmarks/terms.py). A barrier of JAX's is gone before loops
are made; a call that may not be inlined stays, and what it returns lies in memory.
"""

import functools
from collections import Counter

import jax
from jax import lax
from jax.extend import core as jex

from credo.equations import CALLS, bind, evaluate, programs, renewed

KEEPING = "_as_it_is"  # what a call to keep something is called in a program
WORTH_IT = 16  # numbers from which what is dear is kept
DEAR, LONG = 16, 64  # operations a number, from which it is dear: in a gradient of samplers, and in other programs
FUNCTIONS = {"exp", "exp2", "expm1", "log", "log1p", "pow", "sqrt", "rsqrt", "cbrt", "logistic", "lgamma", "digamma"}
FUNCTIONS |= {"sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"}
FUNCTIONS |= {"erf", "erfc", "erf_inv", "bessel_i0e", "bessel_i1e"}
OPERATIONS = {"add", "add_any", "sub", "mul", "div", "neg", "abs", "sign", "max", "min", "integer_pow", "square", "rem"}
OPERATIONS |= {"eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "xor", "select_n", "clamp", "is_finite"}
OPERATIONS |= {"floor", "ceil", "round"}
MOVES = {"broadcast_in_dim", "reshape", "squeeze", "expand_dims", "convert_element_type", "slice", "dynamic_slice"}
MOVES |= {"gather", "transpose", "rev", "concatenate", "pad", "copy", "reduce_precision", "stop_gradient"}
MOVES |= {"stack", "tile"}
# of what the compiler writes into the loops that read it
COSTS = dict.fromkeys(FUNCTIONS, DEAR) | dict.fromkeys(OPERATIONS, 1) | dict.fromkeys(MOVES, 0)


def keep(x):
    """``x``, in memory."""
    from jax.experimental.xla_metadata import set_xla_metadata

    return set_xla_metadata(_as_it_is(x), inlineable="false")


@jax.jit
def _as_it_is(x):
    return lax.optimization_barrier(x)  # which no compiler sees through that looks for calls of nothing


def to_keep(jaxpr: jex.Jaxpr, least: int = DEAR) -> set:
    """The variables of ``jaxpr`` that are dearer to compute for each use than to keep: functions, or long sums.

    What a variable costs anew is the work back to arrays that are in memory anyway, for each of its numbers.
    """
    read = [atom for each in jaxpr.eqns for atom in each.invars] + list(jaxpr.outvars)
    uses = Counter(atom for atom in read if not isinstance(atom, jex.Literal))
    costs: dict = {}
    kept = set()
    for equation in jaxpr.eqns:
        own, (result, *_) = COSTS.get(equation.primitive.name), (*equation.outvars, None)
        if own is None or getattr(result.aval, "size", 0) < WORTH_IT:
            continue
        before = {atom for atom in equation.invars if not isinstance(atom, jex.Literal)}
        costs[result] = own + sum(costs.get(atom, 0) for atom in before)
        if (uses[result] - 1) * costs[result] >= least:
            kept.add(result)
            costs[result] = 0
    return kept


def shared(program: jex.ClosedJaxpr) -> jex.ClosedJaxpr:
    """``program`` with what is worth it kept, in its loops and branches too; itself where nothing is."""
    if jax.default_backend() != "cpu" or not any(to_keep(each, LONG) for each in programs(program.jaxpr)):
        return program
    return jax.make_jaxpr(functools.partial(_evaluate, program))(*program.in_avals)


def _evaluate(program: jex.ClosedJaxpr, *args) -> list:
    kept = to_keep(program.jaxpr, LONG)

    def outputs(_: int, equation, operands: list) -> list:
        name = equation.primitive.name
        if equation.params.get("name") == KEEPING:  # kept already: within another call it would be nothing
            return [_as_it_is(*operands)]
        if name in CALLS:
            return _evaluate(equation.params[CALLS[name]], *operands)
        found = bind(equation, operands, **renewed(equation, shared))
        return [
            keep(each) if variable in kept else each for variable, each in zip(equation.outvars, found, strict=True)
        ]

    return evaluate(program, list(args), outputs)
