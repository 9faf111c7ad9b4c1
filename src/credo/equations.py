"""The equations of a traced program."""

from collections.abc import Iterator

import jax
from jax.extend import core as jex


def equations(jaxpr: jex.Jaxpr) -> Iterator[jex.JaxprEqn]:
    """All equations, those of branches and loop bodies included."""
    for equation in jaxpr.eqns:
        yield equation
        for parameter in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program):
            if _is_program(parameter):
                yield from equations(getattr(parameter, "jaxpr", parameter))


def _is_program(value) -> bool:
    return isinstance(value, jex.ClosedJaxpr | jex.Jaxpr)
