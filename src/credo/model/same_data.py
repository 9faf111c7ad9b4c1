"""Whether two targets are of the same data: evidences of other data, or of data counted otherwise, cannot be compared.

How often an entry of y counts is the product of the weight of its row and of the masks and scales that the likelihood
itself puts around its distributions, as NumPyro's handlers do.
"""

from typing import Any

import jax
import numpy as np

from credo.model.distributions import is_distribution, layers
from credo.model.structure import somewhere
from credo.model.target import Target
from credo.precision import double


def outcomes_differ(one: Target, other: Target) -> str:
    """What sets their outcomes apart, in words: "" where all are the same up to single precision, or both hold none.

    Of bare log densities, whose outcomes nobody knows, the data.
    """
    if one.model.log_factor is not None and other.model.log_factor is not None:
        return "" if _are_alike(one.x, other.x) else "data"
    if one.y is None or other.y is None:
        return "" if one.y is None and other.y is None else "y"
    if one.size != other.size or not _are_alike(one.y, other.y):  # of data outside of memory y is the first rows
        return "y"
    if not np.array_equal(_left_out(one), _left_out(other)):
        return "missing rows of y"
    return "" if all(map(np.allclose, _counts(one), _counts(other))) else "weights, masks or scales of y"


def inputs_differ(one: Target, other: Target) -> bool:
    """Whether x differs, up to single precision; different forms are not held against each other."""
    return jax.tree.structure(one.x) == jax.tree.structure(other.x) and not _are_alike(one.x, other.x)


def _are_alike(one, other) -> bool:
    ones, others = jax.tree.leaves(one), jax.tree.leaves(other)
    return len(ones) == len(others) and all(map(_are_equal, ones, others))


def _are_equal(one, other) -> bool:
    one, other = np.asarray(one), np.asarray(other)
    if _is_single(one) or _is_single(other):
        one, other = one.astype(np.float32), other.astype(np.float32)
    return np.array_equal(one, other, equal_nan=True)


def _is_single(array: np.ndarray) -> bool:
    """Whether numbers were given or kept in single precision, whatever they stand in now."""
    return array.dtype.kind == "f" and np.array_equal(array, array.astype(np.float32), equal_nan=True)


def _left_out(target: Target) -> np.ndarray:
    return np.zeros(0, int) if target.missing is None else target.missing.rows


def _counts(target: Target) -> list[np.ndarray]:
    """How often each entry counts, in the shape of each array of y."""
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(target.y)]
    weights = np.ones(()) if target.weights is None else np.asarray(target.weights)
    counts = [np.broadcast_to(weights.reshape(weights.shape + (1,) * (len(s) - weights.ndim)), s) for s in shapes]
    own = _by_likelihood(target) or [1.0] * len(counts)
    return [given * part for given, part in zip(counts, own, strict=True)]


def _by_likelihood(target: Target) -> list[np.ndarray] | None:
    """The part of the likelihood's own masks and scales, one array an outcome; None where it has neither."""
    position = somewhere(target.dim)  # masks that depend on parameters are those of some position

    def found(u) -> list[Any]:
        params, _, outcome = target.model.prior.joint(target.structure.unravel(u))
        likelihood: Any = target.model.likelihood
        outcome = likelihood(params, target.x) if outcome is None else outcome
        outcome = {name: outcome[name] for name in target.y} if isinstance(target.y, dict) else outcome
        return [layers(d) for d in jax.tree.leaves(outcome, is_leaf=is_distribution)]

    if target.model.likelihood is None:
        return None
    with double():
        if not jax.tree.leaves(jax.eval_shape(found, position)):
            return None
        return [np.asarray(np.prod(np.broadcast_arrays(1.0, *each), axis=0)) for each in found(position)]
