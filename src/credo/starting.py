"""Where a fit begins, as a user may state it: checked, and as a flat unconstrained position."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from credo.methods.optimise.diagnosis import coordinate_names
from credo.model.prior import Prior
from credo.model.target import Target
from credo.posterior.posterior import Posterior
from credo.status import CredoError


def start_position(target: Target, start):
    """A posterior stays as it is; parameters and positions become flat positions."""
    if start is None:
        start = target.model.start
        if start is None:
            return None
    if isinstance(start, Posterior):
        target.structure.check_same(start.target.structure, "starting posterior")
        return start
    if isinstance(start, Mapping):
        return _with_whole_numbers(target, _position_of(target, start))
    try:
        if np.iscomplexobj(start):
            raise TypeError("complex numbers")
        position = np.asarray(start, np.float64)
    except (TypeError, ValueError) as error:
        raise CredoError(
            f"start is a posterior, parameters (a dict) or a position (an array of numbers); got {start!r}."
        ) from error
    if position.ndim not in (1, 2) or position.shape[-1] != target.dim:
        raise CredoError(
            f"start has shape {position.shape}; a position has shape ({target.dim},), or (chains, {target.dim})."
        )
    if not np.all(np.isfinite(position)):
        place = np.argwhere(~np.isfinite(position))[0][-1]
        raise CredoError(f"start is not finite at {coordinate_names(target)[place]}: give finite starting values.")
    return _with_whole_numbers(target, position)


def _position_of(target: Target, params: Mapping[str, Any]):
    """Parameters in the user's space -> a flat position, with a sentence where they are none of this model's."""
    leaves, prior = target.structure.leaves, target.prior
    values = prior.leaves(params)
    if any(leaf.name not in values for leaf in leaves):  # lists stand for arrays unless the prior has lists itself
        values = prior.leaves(jax.tree.map(np.asarray, params, is_leaf=lambda node: isinstance(node, list | tuple)))
    known = ", ".join(each.name for each in leaves)
    names = prior.names if isinstance(prior, Prior) else None
    unknown = [name for name in params if names and name not in names and name not in target.derived_names]
    if unknown:
        raise CredoError(f"start has {unknown[0]!r}, which is no parameter; the model has {known}.")
    for leaf in leaves:
        if leaf.name not in values:
            raise CredoError(f"start lacks {leaf.name!r}; the model has {known}.")
        if np.shape(values[leaf.name]) != leaf.shape:
            raise CredoError(
                f"start gives {leaf.name!r} the shape {np.shape(values[leaf.name])}; in the model it has {leaf.shape}."
            )
        try:
            values[leaf.name] = np.asarray(values[leaf.name], np.float64)
        except (TypeError, ValueError) as error:
            raise CredoError(f"start gives {leaf.name!r} the value {values[leaf.name]!r}: give numbers.") from error
    values = {leaf.name: values[leaf.name] for leaf in leaves}
    try:
        u = prior.unconstrain(target.structure.assemble(jax.device_put(values)))
    except ValueError as error:  # the law of one parameter is none where another is, such as a scale of −1
        given = ", ".join(f"{name} {np.ravel(value)[:4]}" for name, value in values.items())
        raise CredoError(
            f"start gives values between which the prior is not defined ({str(error).splitlines()[0].rstrip('.')}; it "
            f"has {given}): give each parameter a value inside its support."
        ) from error
    for leaf in leaves:
        if not np.all(np.isfinite(u[leaf.name])):
            raise CredoError(
                f"start gives {leaf.name!r} a value that is not finite or not inside its support "
                f"({values[leaf.name].ravel()[:4]}): give one that is."
            )
    return np.concatenate([np.ravel(u[leaf.name]) for leaf in leaves])


def _with_whole_numbers(target: Target, position: np.ndarray) -> np.ndarray:
    """``position``, or CredoError where a discrete parameter would start between its values."""
    is_discrete = np.concatenate([np.full(leaf.size, leaf.is_discrete) for leaf in target.structure.leaves])
    between = is_discrete & (position != np.round(position))
    if between.any():
        place = tuple(np.argwhere(between)[0])
        raise CredoError(
            f"start gives {coordinate_names(target)[place[-1]]} the value {position[place]:g}, and that parameter is "
            "discrete: give a whole number."
        )
    return position
