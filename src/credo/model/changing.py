"""Which entries of a traced program's output may change with some of its first input: read off, nothing is run."""

from typing import Any

import numpy as np
from jax.extend import core as jex

from credo.model.program import called
from credo.model.uses import moved_entries, side_by_side


def changing(jaxpr: jex.Jaxpr, is_free: np.ndarray) -> np.ndarray:
    """Of the one output, True at the entries that may change with the entries ``is_free`` of the first input.

    Conservative: an equation that does more than to move entries and to put arrays side by side mixes all of them.
    """
    others = [np.zeros(_shape(variable), bool) for variable in jaxpr.invars[1:]]
    return _outputs(jaxpr, [is_free, *others])[0]


def _outputs(jaxpr: jex.Jaxpr, inputs: list[np.ndarray]) -> list[np.ndarray]:
    known: dict[Any, np.ndarray] = dict(zip(jaxpr.invars, inputs, strict=True))

    def of(atom) -> np.ndarray:
        found = None if isinstance(atom, jex.Literal) else known.get(atom)
        return np.broadcast_to(False, _shape(atom)) if found is None else found

    for eqn in jaxpr.eqns:
        given, inner = [of(atom) for atom in eqn.invars], called(eqn)
        if inner is not None:
            found = _outputs(inner.jaxpr, given[-len(inner.jaxpr.invars) :])
        elif eqn.primitive.name in ("concatenate", "stack"):
            found = [side_by_side(eqn, given)]
        else:
            is_any = any(each.any() for each in given)
            moved = moved_entries(eqn, given) if given else None
            found = moved or [np.broadcast_to(is_any, _shape(each)) for each in eqn.outvars]
        known.update(zip(eqn.outvars, found, strict=True))
    return [of(atom) for atom in jaxpr.outvars]


def _shape(atom) -> tuple[int, ...]:
    return getattr(atom.aval, "shape", ())
