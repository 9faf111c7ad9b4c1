"""The Gaussian round which a split integrator moves (integrators.py), from draws u and gradients of warm-up.

In the white coordinates q = S⁻¹(u − m) of the metric a Gaussian target has the force f = Sᵀ∇log p(u) = −q. What is left
of it, f + q, is all that a split step errs by. Coordinate j rotates where that is small over the draws,
    Σ (f_j + q_j)² < 0.5 Σ q_j²        as it is not in a funnel, whose neck is narrow,
    Σ q_j² (f_j + q_j)² < 0.3 Σ q_j⁴   nor in a tail lighter or heavier than a Gaussian's:
there a rotation would lead astray, and the straight drift is the better one.
The mean of f + q says how far m is from the mean: for a Gaussian without any noise of the draws.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.linalg.lowrank import LowRank
from credo.methods.mcmc.integrators import Reference
from credo.methods.mcmc.metric import Chains
from credo.methods.mcmc.switched import Switched

FEW_DRAWS = 50
MOST_LEFT = 0.5  # of Σ q²
MOST_LEFT_FAR = 0.3  # of Σ q⁴; a t with 30 degrees of freedom has 0.01, with six 0.25, with four 0.5
WHOLE = 0.01  # of either, in every coordinate, where a target is nearly Gaussian: a scale off by 10 %
# Split steps are worth their while where what is left, that of coordinates that do not rotate counted in full, is this
# part of the force: eight schools, at 0.15, diverges more often for longer steps, and gains nothing.
WORTHWHILE = 0.13
# Steps: a quarter of a circle gives a Gaussian an independent draw by one gradient; elsewhere NUTS turns after half of
# one, which three steps are.
LONGEST, LONGEST_OF_TURNS = 1.8, np.pi / 3

Rows = Float[np.ndarray, "*draw dim"]


def straight(dim: int) -> Reference:
    """Nothing rotates."""
    return Reference(np.zeros(dim), np.zeros(dim), np.asarray(np.inf), np.bool_(False))


def reference_of(positions: Chains, gradients: Chains, metric) -> Reference:
    """Of draws (chain, draw, dim) and their gradients, in the coordinates of ``metric``."""
    dim = positions.shape[-1]
    u, g = (np.asarray(x, np.float64).reshape(-1, dim) for x in (positions, gradients))
    products = _products(metric)
    if products is None or len(u) < FEW_DRAWS:
        return straight(dim)
    mean = u.mean(axis=0)
    with np.errstate(all="ignore"):  # what is not finite does not rotate
        q, f = products.solve(u - mean), products.transpose_matvec(g)
        shift = np.mean(f + q, axis=0)
        q = q - shift
        left = np.sum((f + q) ** 2, axis=0) / np.sum(q**2, axis=0)
        left_far = np.sum(q**2 * (f + q) ** 2, axis=0) / np.sum(q**4, axis=0)
        rotates = (left < MOST_LEFT) & (left_far < MOST_LEFT_FAR)
        is_worthwhile = np.mean(np.where(rotates, left, 1)) < WORTHWHILE
    if not is_worthwhile:
        return straight(dim)
    centre = mean + products.matvec(np.where(rotates, shift, 0))
    is_whole = np.bool_(max(np.max(left), np.max(left_far)) < WHOLE)
    return Reference(centre, rotates.astype(float), np.asarray(LONGEST if is_whole else LONGEST_OF_TURNS), is_whole)


class _Products(NamedTuple):
    """A metric's products with rows of an array, on the host: JAX would compile for them."""

    matvec: Callable[[Rows], Rows]
    transpose_matvec: Callable[[Rows], Rows]
    solve: Callable[[Rows], Rows]


def _products(metric) -> _Products | None:
    """None of a metric that no warm-up of Credo's own finds."""
    if isinstance(metric, Switched):
        return _products(metric.rich if metric.is_rich else metric.plain)
    if isinstance(metric, Diagonal):
        s = np.asarray(metric.scale)
        return _Products(lambda z: s * z, lambda v: s * v, lambda x: x / s)
    if isinstance(metric, Dense) and metric.inverse is not None:
        L, inverse = np.asarray(metric.lower), np.asarray(metric.inverse)
        return _Products(lambda z: z @ L.T, lambda v: v @ L, lambda x: x @ inverse.T)
    if isinstance(metric, LowRank):
        s, B, K, C = (np.asarray(a) for a in (metric.scale, metric.factor, metric.root, metric.inverse_root))
        return _Products(
            lambda z: s * (z + z @ B @ K.T @ B.T),
            lambda v: s * v + (s * v) @ B @ K @ B.T,
            lambda x: x / s - (x / s) @ B @ C.T @ B.T,
        )
    return None
