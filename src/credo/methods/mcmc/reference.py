"""The Gaussian round which a split integrator moves (integrators.py), from draws u and gradients of warm-up.

In the white coordinates q = S⁻¹(u − m) of the metric a Gaussian target has the force f = Sᵀ∇log p(u) = −q. What is left
of it, f + q, is all that a split step errs by. It rotates where that is small in each coordinate j over the draws,
    Σ (f_j + q_j)² < 0.7 Σ q_j²        as it is not in a narrow neck,
    Σ q_j² (f_j + q_j)² < 0.4 Σ q_j⁴   nor in a tail lighter or heavier than a Gaussian's,
    −Σ q_j³ f_j / Σ q_j⁴ < −1.12 Σ q_j f_j / Σ q_j²   above all in no lighter one, whose forces outgrow their steps.
A coordinate that has one wants small steps for its own sake: those of the leapfrog, which all the others keep small,
leave it a margin, and split ones do not (the scale of groups in non-centred form then diverges).
The mean of f + q says how far m is from the mean: for a Gaussian without any noise of the draws.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.linalg.lowrank import LowRank
from credo.methods.mcmc.integrators import Integrator, Reference
from credo.methods.mcmc.metric import Chains
from credo.methods.mcmc.switched import Switched

FEW_DRAWS, ENOUGH_DRAWS = 50, 2_000
# Scales of groups in non-centred form, of eight schools too, have 0.7 to 1.4 of Σ q² and 0.6 to 0.9 of Σ q⁴; radon-like
# intercepts 0.4 to 0.6 and 0.25; a t with 30 degrees of freedom 0.01 of both, with six 0.2, with four 0.4.
MOST_LEFT, MOST_LEFT_FAR = 0.7, 0.4
MOST_LIGHTER = 0.12  # −cosh x has 0.09 to 0.2 by windows of warm-up: of 2,000 steps of eight such 4 diverged
WHOLE = 0.01  # of either, where a target is nearly Gaussian: a scale off by 10 %
# Steps: a little more than a quarter of a circle gives a Gaussian, by one gradient, a draw of its own whose mean is
# somewhat better than that of an independent one; elsewhere NUTS turns after half a circle, which three steps are.
LONGEST, LONGEST_OF_TURNS = 1.8, np.pi / 3

Rows = Float[np.ndarray, "*draw dim"]


def given_to(integrator: Integrator, dim: int) -> dict[str, Reference]:
    """What a kernel with this integrator begins warm-up with."""
    return {"reference": straight(dim)} if integrator.is_split else {}


def straight(dim: int) -> Reference:
    """Nothing rotates."""
    return Reference(np.zeros(dim), np.bool_(False), np.asarray(np.inf), np.bool_(False))


def reference_of(positions: Chains, gradients: Chains, metric) -> Reference:
    """Of draws (chain, draw, dim) and their gradients, in the coordinates of ``metric``."""
    dim, every = positions.shape[-1], 1 + positions[..., 0].size // ENOUGH_DRAWS
    u, g = (np.asarray(x[:, ::every], np.float64).reshape(-1, dim) for x in (positions, gradients))
    products = _products(metric)
    if products is None or len(u) < FEW_DRAWS:
        return straight(dim)
    mean = u.mean(axis=0)
    with np.errstate(all="ignore"):  # what is not finite does not rotate
        q, f = products.solve(u - mean), products.transpose_matvec(g)
        shift = np.mean(f + q, axis=0)
        q = q - shift
        left, left_far = _left(q, f)
        lighter = _lighter(q, f)
    if not (left < MOST_LEFT and left_far < MOST_LEFT_FAR and lighter < MOST_LIGHTER):
        return straight(dim)
    whole = np.bool_(max(left, left_far) < WHOLE)
    longest = np.asarray(LONGEST if whole else LONGEST_OF_TURNS)
    return Reference(mean + products.matvec(shift), np.bool_(True), longest, whole)


def is_whole(reference: Reference, positions: Chains, gradients: Chains, metric) -> np.bool:
    """Whether the target is nearly N(m, S Sᵀ) on draws that ``reference`` and ``metric`` do not come from."""
    products = _products(metric)
    if products is None or not reference.is_whole:
        return np.bool_(False)
    u, g = (np.asarray(x, np.float64).reshape(-1, reference.centre.size) for x in (positions, gradients))
    with np.errstate(all="ignore"):
        left = max(_left(products.solve(u - reference.centre), products.transpose_matvec(g)))
    return np.bool_(left < WHOLE)


def _left(q: Rows, f: Rows) -> tuple[float, float]:
    """What is left of the forces f beside −q, of the coordinate that has most of it; the same far out."""
    rest, square = np.square(f + q), np.square(q)
    far = _sum(square, rest) / _sum(square, square)
    return np.max(np.sum(rest, axis=0) / np.sum(square, axis=0)), np.max(far)


def _lighter(q: Rows, f: Rows) -> float:
    """By what share forces far out are larger than those in the midst say, of the coordinate where they are most so."""
    square, slope = np.square(q), q * f
    return np.max(_sum(square, slope) * np.sum(square, axis=0) / (_sum(square, square) * np.sum(slope, axis=0)) - 1)


def _sum(x: Rows, y: Rows) -> Float[np.ndarray, " dim"]:
    """Σ x_j y_j."""
    return np.einsum("ij,ij->j", x, y)


def metric_and_reference(found, positions: Chains, gradients: Chains) -> tuple[Any, Reference]:
    """The metric ``found``, or its rich side where only that makes the target whole, and the reference in it.

    One gradient a draw in place of three to seven pays for the rich side's products, correlated or not.
    """
    seen = reference_of(positions, gradients, found)
    if isinstance(found, Switched) and not (found.is_rich or seen.is_whole):
        rich = Switched(found.plain, found.rich, np.bool_(True))
        seen_in_rich = reference_of(positions, gradients, rich)
        if seen_in_rich.is_whole:
            return rich, seen_in_rich
    return found, seen


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
