"""A traced program, run equation by equation with some of its equations changed."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import lax
from jax.extend import core as jex

from credo.equations import bind, evaluate

CALLS = {"pjit": "jaxpr", "jit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat": "jaxpr"}
CALLS |= {"remat2": "jaxpr", "checkpoint": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}

Path = tuple[int, ...]  # of an equation, through the calls and scans that hold it
Hook = Callable[..., list]  # (equation, its operands, the step of each scan that holds it) -> its outputs
PartedHook = Callable[..., tuple[list, Any]]  # (equation, operands, steps, its part) -> (its outputs, what it says)


def run(program, arguments: list, hooks: dict[Path, Hook]) -> list:
    """The outputs of a closed jaxpr, with ``hooks`` in the place of their equations."""

    def without_parts(hook: Hook) -> PartedHook:
        return lambda eqn, given, steps, _: (hook(eqn, given, *steps), None)

    return run_parted(program, arguments, {path: without_parts(hook) for path, hook in hooks.items()}, {})[0]


def run_parted(program, arguments: list, hooks: dict[Path, PartedHook], parts: dict[Path, Any]) -> tuple[list, dict]:
    """The outputs, and by path what the hooks say beside them.

    What goes in and what comes out has an axis in front for each scan that holds the equation, with a part for each
    step: a hook is given its step's part of ``parts``, and says that of its step.
    """
    prefixes = {path[:n] for path in hooks for n in range(len(path))}

    def within(program, arguments: list, path: Path, steps: tuple, parts: dict[Path, Any]) -> tuple[list, dict]:
        said: dict[Path, Any] = {}

        def outputs(number: int, eqn, given: list) -> list:
            here, inner = (*path, number), called(eqn)
            if here in hooks:
                found, said[here] = hooks[here](eqn, given, steps, parts.get(here))
                return found
            if here not in prefixes:
                return bind(eqn, given)
            if inner is not None:
                found, more = within(inner, given[-len(inner.jaxpr.invars) :], here, steps, parts)
            else:
                own = {path: part for path, part in parts.items() if path[: len(here)] == here}
                found, more = _scanned(
                    eqn,
                    given,
                    own,
                    lambda step, own, given: within(eqn.params["jaxpr"], given, here, (*steps, step), own),
                )
            said.update(more)
            return found

        return evaluate(program, arguments, outputs), said

    return within(program, arguments, (), (), parts)


def _scanned(eqn, given: list, parts: dict[Path, Any], body: Callable) -> tuple[list, dict]:
    """The outputs of a scan with another body, and all that it says.

    ``body``: (its number from the first row, its step of ``parts``, what it is given) -> (outputs, what it says).
    """
    consts, carry, rows = parts_of_scan(eqn, given)
    length, num = eqn.params["length"], len(carry)

    def step(carry, row):
        number, own, rows = row
        found, said = body(number, own, [*consts, *carry, *rows])
        return found[:num], (found[num:], said)

    by_step = np.arange(length), parts, rows
    carry, (out, said) = lax.scan(step, carry, by_step, length, reverse=eqn.params["reverse"])
    return [*carry, *out], said


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
