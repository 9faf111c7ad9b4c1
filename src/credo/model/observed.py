"""Which outcomes are data: those that no mask of the likelihood hides. What stands under a mask is not looked at."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credo.compiling import TINY, brief
from credo.model.distributions import is_distribution, layers, masks
from credo.model.structure import somewhere
from credo.model.target import Target
from credo.precision import double
from credo.status import CredoError
from credo.traced import by_shapes


def observed(target: Target, y) -> Any:
    """Which entries of ``y`` are data, at the inputs of ``target``: booleans in the shape of y, or a dict of them.

    Raises CredoError for a mask that changes with the parameters.
    """
    flat, position = target.flat(), somewhere(target.dim)
    with double():
        if not _is_masked(flat, position):
            return jax.tree.map(lambda leaf: np.ones(np.shape(leaf), bool), y)
        found, elsewhere = (jax.tree.map(np.asarray, _seen(flat, u)) for u in (position, np.zeros(target.dim)))
    if not all(map(np.array_equal, jax.tree.leaves(found), jax.tree.leaves(elsewhere))):
        raise CredoError(
            "The likelihood's mask changes with the parameters, so that nobody can say which outcomes are data: mask "
            "by a constant, or by a column of x."
        )
    seen = {name: found[name] for name in y} if isinstance(y, dict) else found
    return jax.tree.map(lambda mask, leaf: np.broadcast_to(mask, np.shape(leaf)), seen, y)


def rows_of(counts, number: int) -> np.ndarray:
    """Which of ``number`` rows have an entry that counts; outcomes that are joint are one row."""
    return np.any([leaf.reshape(number, -1).any(axis=1) for leaf in jax.tree.leaves(counts)], axis=0)


@by_shapes
def _is_masked(target: Target, u) -> bool:
    found: list[bool] = []

    def look(target, u):
        for d in jax.tree.leaves(_likelihood(target, u), is_leaf=is_distribution):
            found.extend(mask is not True for mask in masks(d))

    jax.eval_shape(look, target, u)
    return any(found)


@functools.partial(brief, options=TINY)
def _seen(target: Target, u):
    def entries(d):
        return jnp.all(jnp.stack(jnp.broadcast_arrays(jnp.ones(d.shape()), *layers(d))) > 0, axis=0)

    return jax.tree.map(entries, _likelihood(target, u), is_leaf=is_distribution)


def _likelihood(target: Target, u) -> Any:
    return target.likelihood_distribution(target.constrain(u), target.x)
