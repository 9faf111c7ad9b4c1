"""What the outputs of a network end in: a softmax before a head that takes logits would be applied twice.

Nothing else tells: outputs between 0 and 1 are logits like any others, of forecasts that can never be sure.
"""

from typing import Any, NamedTuple

from jax.extend import core as jex

from credo.model.program import called

MOVES = "broadcast_in_dim", "convert_element_type", "copy", "reshape", "slice", "squeeze", "stop_gradient", "transpose"
PLAIN = {"logistic": "sigmoid", "exp": "exp"}  # primitives that are such an ending by themselves


class Scope(NamedTuple):
    """Where a variable is looked up: the equations that make variables, and where the program's inputs come from."""

    makers: dict[Any, jex.JaxprEqn]
    given: dict[Any, Any]
    outer: "Scope | None"


def endings(program: jex.ClosedJaxpr) -> list[str]:
    """Of each output ``softmax``, ``sigmoid``, ``softplus``, ``exp`` or nothing. Of arrays joined, the last one's."""
    scope = _scope(program.jaxpr)
    return [_ending(atom, scope) for atom in program.jaxpr.outvars]


def _ending(atom, scope: Scope) -> str:
    equation, scope = _maker(atom, scope)
    if equation is None:
        return ""
    name, operands = equation.primitive.name, equation.invars
    if _is_softplus(equation):
        return "softplus"
    if name in ("concatenate", "stack"):
        return _ending(operands[-1], scope)
    if name == "div":
        above, below = (_maker(operand, scope) for operand in operands)
        if _primitive(above) == "exp" and _primitive(below) == "reduce_sum":
            return "softmax"
        is_sigmoid = _is_number(operands[0], 1) and _primitive(below) == "add" and _adds_one_to_exp(*below)
        return "sigmoid" if is_sigmoid else ""
    return PLAIN.get(name, "")


def _adds_one_to_exp(equation, scope: Scope) -> bool:
    parts = equation.invars
    return any(_is_number(each, 1) for each in parts) and any(
        _primitive(_maker(each, scope)) == "exp" for each in parts
    )


def _maker(atom, scope: Scope | None) -> tuple[jex.JaxprEqn | None, Scope]:
    """The equation that computes the values of ``atom``, through moves and calls, and where its operands are."""
    while scope is not None and not isinstance(atom, jex.Literal):
        if atom in scope.given:
            atom, scope = scope.given[atom], scope.outer
            continue
        equation = scope.makers.get(atom)
        if equation is None:
            break
        inner = called(equation)
        if inner is not None and not _is_softplus(equation):
            place = equation.outvars.index(atom)
            atom, scope = inner.jaxpr.outvars[place], _scope(inner.jaxpr, equation, scope)
        elif equation.primitive.name in MOVES:
            atom = equation.invars[0]
        else:
            return equation, scope
    return None, Scope({}, {}, None)


def _scope(jaxpr: jex.Jaxpr, call: jex.JaxprEqn | None = None, outer: Scope | None = None) -> Scope:
    makers = {made: equation for equation in jaxpr.eqns for made in equation.outvars}
    number = len(jaxpr.invars)
    given = {} if call is None else dict(zip(jaxpr.invars, call.invars[-number:] if number else [], strict=True))
    return Scope(makers, given, outer)


def _is_softplus(equation: jex.JaxprEqn) -> bool:
    return equation.params.get("name") == "softplus"


def _primitive(made: tuple[jex.JaxprEqn | None, Scope]) -> str:
    return "" if made[0] is None else made[0].primitive.name


def _is_number(atom, number: float) -> bool:
    return isinstance(atom, jex.Literal) and atom.val == number
