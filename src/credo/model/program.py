"""A traced program, run equation by equation with some of its equations changed."""

from collections.abc import Callable
from typing import Any

from jax.extend import core as jex

CALLS = {"pjit": "jaxpr", "jit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat": "jaxpr"}
CALLS |= {"remat2": "jaxpr", "checkpoint": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}

Path = tuple[int, ...]  # of an equation, through the calls that hold it
Hook = Callable[[Any, list], list]  # (equation, its operands) -> its outputs


def run(program, arguments: list, hooks: dict[Path, Hook]) -> list:
    """The outputs of a closed jaxpr, with ``hooks`` in the place of their equations."""
    prefixes = {path[:n] for path in hooks for n in range(len(path))}

    def evaluate(jaxpr, consts, arguments, path: Path) -> list:
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        values.update(zip(jaxpr.invars, arguments, strict=True))

        def read(atom):
            return atom.val if isinstance(atom, jex.Literal) else values[atom]

        for i, eqn in enumerate(jaxpr.eqns):
            here, given = (*path, i), [read(atom) for atom in eqn.invars]
            inner = called(eqn)
            if here in hooks:
                found = hooks[here](eqn, given)
            elif inner is not None and here in prefixes:
                found = evaluate(inner.jaxpr, inner.consts, given[-len(inner.jaxpr.invars) :], here)
            else:
                found = bind(eqn, given)
            values.update(zip(eqn.outvars, found, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    return evaluate(program.jaxpr, program.consts, arguments, ())


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


def bind(eqn, given: list) -> list:
    """The outputs of one equation."""
    found = eqn.primitive.bind(*given, **eqn.primitive.get_bind_params(eqn.params))
    return list(found) if eqn.primitive.multiple_results else [found]
