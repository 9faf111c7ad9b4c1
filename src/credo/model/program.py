"""A traced program, run equation by equation with some of its equations changed."""

from collections.abc import Callable
from typing import Any

from jax.extend import core as jex

from credo.equations import bind, evaluate

CALLS = {"pjit": "jaxpr", "jit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat": "jaxpr"}
CALLS |= {"remat2": "jaxpr", "checkpoint": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}

Path = tuple[int, ...]  # of an equation, through the calls that hold it
Hook = Callable[[Any, list], list]  # (equation, its operands) -> its outputs


def run(program, arguments: list, hooks: dict[Path, Hook]) -> list:
    """The outputs of a closed jaxpr, with ``hooks`` in the place of their equations."""
    prefixes = {path[:n] for path in hooks for n in range(len(path))}

    def within(program, arguments: list, path: Path) -> list:
        def outputs(number: int, eqn, given: list) -> list:
            here, inner = (*path, number), called(eqn)
            if here in hooks:
                return hooks[here](eqn, given)
            if inner is not None and here in prefixes:
                return within(inner, given[-len(inner.jaxpr.invars) :], here)
            return bind(eqn, given)

        return evaluate(program, arguments, outputs)

    return within(program, arguments, ())


def called(eqn):
    """The closed program that an equation calls, or None."""
    name = CALLS.get(eqn.primitive.name)
    inner = None if name is None else eqn.params.get(name, eqn.params.get("fun_jaxpr"))
    return jex.ClosedJaxpr(inner, ()) if inner is not None and not hasattr(inner, "jaxpr") else inner


def equation_at(jaxpr, path: Path):
    """The equation at a path."""
    eqn = jaxpr.eqns[path[0]]
    inner = called(eqn)
    return eqn if len(path) == 1 or inner is None else equation_at(inner.jaxpr, path[1:])
