"""The scalars in the user's space that a verdict is about, at draws: of the parameters, and of what is derived of them.

Each comes with the direction in which it changes, for the controls of diagnose/moments.py: any is right, and the better
it is the less noise is left.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Float

from credo.compiling import brief
from credo.diagnose.moments import slopes
from credo.methods.optimise.diagnosis import transformed
from credo.model.target import Target
from credo.posterior.marginals import report_positions
from credo.precision import abstract

AT_ONCE = 2_000  # draws, as many as a round has by default
SAME = 1e-12  # of its size: rounding
MOST_DERIVED = 256  # numbers: those of every row of the data, as a program may record, are not compared one by one
A_FEW, DISTINCT = 400, 20  # draws, and different values among them, that no number of classes has
FEW = 200  # dimensions: directions among more by covariances, since a regression takes as long as many densities


def scalars(
    target: Target, u: Float[np.ndarray, "S dim"], z: Float[np.ndarray, "S dim"], also_derived: bool
) -> tuple[np.ndarray, Any]:
    """The parameters in the user's space, then what is derived, (S, K), and the directions, (dim, K), sparse.

    A parameter changes with coordinates of its own: in many dimensions nothing but these blocks could be held.
    """
    values, directions = _parameters(target, u, z)
    derived = derived_values(target, u) if also_derived else u[:, :0]
    if not derived.shape[1]:
        return values, directions
    along = slopes(derived, z) if u.shape[1] <= FEW else z.T @ (derived - derived.mean(axis=0)) / len(z)
    both = scipy.sparse.hstack([directions, scipy.sparse.csc_array(along)], format="csc")
    return np.concatenate([values, derived], axis=1), both


def _parameters(target: Target, u: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, Any]:
    if not transformed(target).any():
        return u, scipy.sparse.eye_array(target.dim, format="csc")
    values, directions, start = [], [], 0
    for leaf, value in zip(target.structure.leaves, _constrained(target, u), strict=True):
        own = slice(start, start + leaf.size)
        start = own.stop
        flat = np.asarray(value).reshape(len(u), -1)
        values.append(flat)
        directions.append(
            scipy.sparse.eye_array(leaf.size)
            if leaf.is_elementwise
            else scipy.sparse.csc_array(slopes(flat, z[:, own]))
        )
    return np.concatenate(values, axis=1), scipy.sparse.block_diag(directions, format="csc")


def judged_values(target: Target, u: Float[np.ndarray, "S dim"]) -> Float[np.ndarray, "S K"]:
    """Every scalar in the user's space that is not always the same, derived ones at the end."""
    values = np.concatenate([all_values(target, u), derived_values(target, u)], axis=1)
    varying = varying_among(values)
    return values[:, varying] if 0 < varying.size < values.shape[1] else values


def all_values(target: Target, u: Float[np.ndarray, "S dim"]) -> Float[np.ndarray, "S K"]:
    """Every scalar of the parameters in the user's space, in the order of ``scalar_names``."""
    if not transformed(target).any():
        return u
    return np.concatenate([np.asarray(leaf).reshape(len(u), -1) for leaf in _constrained(target, u)], axis=1)


def derived_values(target: Target, u: Float[np.ndarray, "S dim"]) -> Float[np.ndarray, "S K"]:
    """Scalars of derived quantities, the smaller of these first as long as there are few.

    Those that are no finite number at a draw have neither mean nor sd, which is said elsewhere (diagnose/derived.py).
    Nor are those judged that take few values, as the sign of an effect: where one of these is rare, no draws know how
    rare, and hardly anything hangs on it.
    """
    names = _derived_names(target)
    if not names:
        return u[:, :0]
    found = _in_parts(_derived_at, target, u, names=names)
    values = np.concatenate([leaf.reshape(len(u), -1) for leaf in found], axis=1).astype(float)
    with np.errstate(all="ignore"):
        values = values[:, np.isfinite(np.var(values, axis=0))]
    return values[:, [len(np.unique(column[:A_FEW])) >= DISTINCT for column in values.T]]


def _derived_names(target: Target) -> tuple[str, ...]:
    names = [name for name, _ in target.model.derived_functions]
    if not names:
        return ()
    shapes = report_positions.eval_shape(target, abstract((1, target.dim)))
    names.sort(key=lambda name: shapes[name].size)  # stable
    total = np.cumsum([shapes[name].size for name in names])
    return tuple(name for name, size in zip(names, total, strict=True) if size <= MOST_DERIVED)


def varying_among(values: Float[np.ndarray, "S K"]) -> np.ndarray:
    """Which columns are not always the same: zeros of a Cholesky factor are, and the diagonal of correlations."""
    with np.errstate(all="ignore"):
        low, high = np.min(values, axis=0), np.max(values, axis=0)  # NaN where an entry is
        is_same = high - low <= SAME * np.maximum(high, -low)
    return np.flatnonzero(~(is_same & np.isfinite(low) & np.isfinite(high)))


def _constrained(target: Target, u: np.ndarray) -> list[np.ndarray]:
    """The parameters at positions (S, dim), in the order of the structure's leaves."""
    return _in_parts(_constrained_at, target, u)


def _in_parts(program, target: Target, u: np.ndarray, **static) -> list[np.ndarray]:
    """``program`` of all positions, one size at a time, so that it serves any number of rounds."""
    length = min(len(u), AT_ONCE)
    firsts = range(0, len(u), length)
    parts = [program(target, np.resize(u[i : i + length], (length, u.shape[1])), **static) for i in firsts]
    return [np.concatenate([np.asarray(x) for x in leaf])[: len(u)] for leaf in zip(*parts, strict=True)]


@brief
def _constrained_at(target: Target, u):

    def one(u):
        leaves = target.model.prior.leaves(target.constrain(u))
        return [jnp.asarray(leaves[leaf.name]) for leaf in target.structure.leaves]

    return jax.vmap(one)(u)


@functools.partial(brief, static_argnames=("names",))
def _derived_at(target: Target, u, names: tuple[str, ...]):

    def one(u):
        report = target.model.report(target.constrain(u))
        return [jnp.asarray(report[name]) for name in names]

    return jax.vmap(one)(u)
