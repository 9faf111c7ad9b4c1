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


def needed(program: jex.ClosedJaxpr) -> jex.ClosedJaxpr:
    """``program`` without the equations that its outputs do not depend on; what an equation holds stays whole."""
    wanted, kept = set(map(id, program.jaxpr.outvars)), []
    for equation in reversed(program.jaxpr.eqns):
        if equation.effects or any(id(variable) in wanted for variable in equation.outvars):
            kept.append(equation)
            wanted.update(map(id, equation.invars))
    return jex.ClosedJaxpr(program.jaxpr.replace(eqns=kept[::-1]), program.consts)


def _is_program(value) -> bool:
    return isinstance(value, jex.ClosedJaxpr | jex.Jaxpr)
