"""Which inputs of a traced function reach which outputs: read off the jaxpr, nothing is run."""

from collections.abc import Callable

import jax
from jax.extend.core import Literal


def dependencies(function: Callable, *arguments) -> list[frozenset[int]]:
    """For each output leaf of ``function(*arguments)``, the positions of the argument leaves that can influence it.

    Conservative: every output of an inner jaxpr (a loop, a jitted call) depends on each of its inputs.
    ``arguments`` may be abstract.
    """
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    reached = {variable: frozenset([i]) for i, variable in enumerate(jaxpr.invars)}

    def sources(variables):
        return frozenset().union(*(reached.get(v, ()) for v in variables if not isinstance(v, Literal)))

    for equation in jaxpr.eqns:
        found = sources(equation.invars)
        reached.update(dict.fromkeys(equation.outvars, found))
    return [sources([variable]) for variable in jaxpr.outvars]
