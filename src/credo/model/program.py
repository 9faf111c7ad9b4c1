"""A traced program, run equation by equation with some of its equations changed."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core as jex

from credo.equations import bind, equations, evaluate

CALLS = {"pjit": "jaxpr", "jit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat": "jaxpr"}
CALLS |= {"remat2": "jaxpr", "checkpoint": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}

LONGEST, MOST_EQUATIONS = 64, 4_000  # steps of a loop that is written out, and equations that these become

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


def written_out(program: jex.ClosedJaxpr) -> jex.ClosedJaxpr:
    """``program`` with its short scans, over a sequence or over layers, as equations one after the other."""
    if not any(_is_short(eqn) for eqn in equations(program.jaxpr)):
        return program

    def outputs(_: int, eqn, given: list) -> list:
        inner = called(eqn)
        if inner is not None:
            return evaluate(inner, given[-len(inner.jaxpr.invars) :], outputs)
        return _steps(eqn, given, outputs) if _is_short(eqn) else bind(eqn, given)

    return jax.make_jaxpr(lambda *arguments: evaluate(program, list(arguments), outputs))(*program.in_avals)


def _is_short(eqn) -> bool:
    if eqn.primitive.name != "scan":
        return False
    length = eqn.params["length"]
    return length <= LONGEST and length * len(list(equations(eqn.params["jaxpr"].jaxpr))) <= MOST_EQUATIONS


def _steps(eqn, given: list, outputs: Callable) -> list:
    """A scan: what does not change, what each step hands to the next, and rows of what there is one of a step."""
    p = eqn.params
    first, last = p["num_consts"], p["num_consts"] + p["num_carry"]
    constants, carried, rows = given[:first], given[first:last], given[last:]
    found: list[list] = []
    for i in reversed(range(p["length"])) if p["reverse"] else range(p["length"]):
        here = [lax.index_in_dim(array, i, keepdims=False) for array in rows]
        answer = evaluate(p["jaxpr"], [*constants, *carried, *here], outputs)
        carried, found = answer[: p["num_carry"]], [*found, answer[p["num_carry"] :]]
    found = found[::-1] if p["reverse"] else found
    return [*carried, *(jnp.stack(each) for each in zip(*found, strict=True))]


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
