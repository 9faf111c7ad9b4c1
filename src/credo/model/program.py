"""A traced program, run equation by equation with some of its equations changed."""

from collections.abc import Callable

import numpy as np
from jax import lax
from jax.extend import core as jex

from credo.equations import bind, evaluate

CALLS = {"pjit": "jaxpr", "jit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat": "jaxpr"}
CALLS |= {"remat2": "jaxpr", "checkpoint": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}

Path = tuple[int, ...]  # of an equation, through the calls and scans that hold it
Hook = Callable[..., list]  # (equation, its operands, the step of each scan that holds it) -> its outputs


def run(program, arguments: list, hooks: dict[Path, Hook]) -> list:
    """The outputs of a closed jaxpr, with ``hooks`` in the place of their equations."""
    prefixes = {path[:n] for path in hooks for n in range(len(path))}

    def within(program, arguments: list, path: Path, steps: tuple) -> list:
        def outputs(number: int, eqn, given: list) -> list:
            here, inner = (*path, number), called(eqn)
            if here in hooks:
                return hooks[here](eqn, given, *steps)
            if here not in prefixes:
                return bind(eqn, given)
            if inner is not None:
                return within(inner, given[-len(inner.jaxpr.invars) :], here, steps)
            return _scanned(eqn, given, lambda step, given: within(eqn.params["jaxpr"], given, here, (*steps, step)))

        return evaluate(program, arguments, outputs)

    return within(program, arguments, (), ())


def _scanned(eqn, given: list, body: Callable) -> list:
    """The outputs of a scan with another body, (its number from the first row, what it is given) -> outputs."""
    consts, carry, rows = parts_of_scan(eqn, given)
    length, num = eqn.params["length"], len(carry)

    def step(carry, row):
        found = body(row[0], [*consts, *carry, *row[1:]])
        return found[:num], found[num:]

    carry, out = lax.scan(step, carry, [np.arange(length), *rows], length, reverse=eqn.params["reverse"])
    return [*carry, *out]


def parts_of_scan(eqn, given: list) -> tuple[list, list, list]:
    """Of the operands of a scan: what stays, what is carried along, and what has a row for each step.

    Told by shapes, since versions of JAX keep the numbers in parameters of other names: its body is given and gives
    rows without their first axis, all else as it is.
    """
    body = eqn.params["jaxpr"].jaxpr
    last = len(given) - _num_rows(eqn.invars, body.invars)
    first = last - (len(body.outvars) - _num_rows(eqn.outvars, body.outvars))
    return given[:first], given[first:last], given[last:]


def _num_rows(outside, inside) -> int:
    return sum(atom.aval.ndim > each.aval.ndim for atom, each in zip(outside, inside, strict=True))


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
