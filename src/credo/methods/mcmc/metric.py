"""Metrics of Hamiltonian samplers, estimated from draws u and gradients g = ∇log p(u) on the host in float64.

A metric is a scale operator S; the sampler moves in the coordinates S⁻¹u, in which the target should look like
N(0, I). The best S for a Gaussian target minimises the Fisher divergence E‖S⁻¹u + Sᵀg‖² (Seyboldt et al. 2025):
    diagonal    s² = (Var u / Var g)^½
    dense       S Sᵀ = A # B⁻¹, the geometric mean of A = Cov u and the inverse of B = Cov g
    low rank    diag(s) (I + V diag(λ − 1) Vᵀ) diag(s): that mean in the directions in which draws or gradients,
                both over s, vary most
On a Gaussian target the dense one is exact as soon as the draws span the space, for g = −Σ⁻¹u makes the noise of A and
B one. Gradients say about tight directions what draws say about wide ones, so a few dozen of each are enough to begin
with. For a kernel without gradients it is S Sᵀ = Cov u.
Variances are taken within chains: while chains are apart, the distance between them is not the width of the target.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import scipy.linalg
from jaxtyping import Float

from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.linalg.lowrank import LowRank
from credo.linalg.operator import ScaleOperator
from credo.methods.mcmc.switched import Switched
from credo.storage import column_blocks

Chains = Float[np.ndarray, "chain draw dim"]
SMALLEST, LARGEST = 1e-20, 1e20  # of s²: beyond, a coordinate says nothing
CUTOFF = 2.0  # variances within this factor of one are left to the scales
NEARLY_GAUSSIAN = 0.05  # share of the gradients that a Gaussian does not explain


@runtime_checkable
class MetricEstimator(Protocol):
    """How a metric is found; hashable settings."""

    def initial(self, gradients: Float[np.ndarray, "chain dim"]) -> ScaleOperator: ...

    def estimate(self, positions: Chains, gradients: Chains | None, previous: ScaleOperator) -> ScaleOperator: ...


@dataclass(frozen=True)
class DiagonalMetric:
    """A scale a coordinate: s² = (Var u / Var g)^½ of few draws, Var u of many.

    ``prior_draws``: how many draws the previous metric counts for. ``enough``: of how many draws Var u has half the
    say. Gradients have heavier tails than draws; those of a log scale may have no variance at all.
    """

    prior_draws: float = field(default=10.0, metadata={"at_least": 0})
    enough: float = field(default=50.0, metadata={"at_least": 0})

    def initial(self, gradients) -> Diagonal:
        """From the gradients at the starts, for draws of variance one: s² = 1/|g|."""
        with np.errstate(over="ignore"):
            mean_square = np.mean(np.square(np.asarray(gradients, np.float64)), axis=0)
        return Diagonal(np.clip(mean_square, SMALLEST, LARGEST) ** -0.25)

    def estimate(self, positions, gradients, previous) -> Diagonal:
        """Where draws or gradients do not vary or are not finite, the previous scale stays."""
        return Diagonal(_scales(positions, gradients, previous, self.prior_draws, self.enough))


@dataclass(frozen=True)
class DenseMetric:
    """A full matrix: for correlated targets of up to a few hundred dimensions. ``prior_draws``: as above."""

    prior_draws: float = field(default=10.0, metadata={"at_least": 0})

    def initial(self, gradients) -> Dense:
        return Dense(np.diag(np.asarray(DiagonalMetric().initial(gradients).scale))).with_inverse()

    def estimate(self, positions, gradients, previous) -> ScaleOperator:
        """The covariances are shrunk to the diagonal estimate while draws are few."""
        # a scale that balances draws and gradients, so that shrinking either to it means the same
        scale = _scales(positions, gradients, previous, self.prior_draws)
        sides = [positions / scale] if gradients is None else [positions / scale, gradients * scale]
        sides = [(x - x.mean(axis=1, keepdims=True)).reshape(-1, scale.size) for x in sides]
        if not all(np.all(np.isfinite(x)) for x in sides):
            return previous
        num_draws = positions.shape[0] * (positions.shape[1] - 1)
        weight = _weight(num_draws, self.prior_draws + scale.size)
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                covariances = [_gram(x) / max(num_draws, 1) for x in sides]
                white = _whitening(weight, *covariances)
                if len(sides) == 2 and num_draws > scale.size:
                    exact = _whitening(1 - (1 - weight) ** 2, *covariances)
                    white = exact if _is_gaussian(exact, *sides) else white
                lower = scale[:, None] * white
        except np.linalg.LinAlgError:  # gradients are astronomical: not positive definite
            return previous
        return Dense(lower).with_inverse() if np.all(np.isfinite(lower)) else previous


@dataclass(frozen=True)
class LowRankMetric:
    """Scales and at most ``max_rank`` directions, at the cost of dim × max_rank: for large correlated targets.

    Directions whose variance is within a factor of ``cutoff`` of what the scales say are left out.
    ``prior_draws``: as above.
    """

    prior_draws: float = field(default=10.0, metadata={"at_least": 0})
    max_rank: int = field(default=20, metadata={"at_least": 1})
    cutoff: float = field(default=CUTOFF, metadata={"at_least": 1})

    def initial(self, gradients) -> LowRank:
        scale = DiagonalMetric().initial(gradients).scale
        return self._from_eigen(np.asarray(scale), np.zeros((len(scale), 0)), np.zeros(0))

    def estimate(self, positions, gradients, previous) -> ScaleOperator:
        # a scale that balances draws and gradients, so that shrinking either to it means the same
        scale = _scales(positions, gradients, previous, self.prior_draws)
        dim, num_draws = scale.size, positions.shape[0] * (positions.shape[1] - 1)
        sides = [_Side(positions, 1 / scale)] + ([] if gradients is None else [_Side(gradients, scale)])
        if num_draws == 0 or not all(side.is_finite() for side in sides):
            return previous
        # no more directions than draws can tell from noise
        rank = min(self.max_rank, dim, max(1, num_draws // 4))
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                basis = _orthonormal(np.concatenate([side.leading(rank).T for side in sides]).T)
                weight = _weight(num_draws, self.prior_draws + basis.shape[1])
                a, *b = (
                    weight * _gram(side.along(basis)) / num_draws + (1 - weight) * np.eye(basis.shape[1])
                    for side in sides
                )
                values, vectors = np.linalg.eigh(geometric_mean_with_inverse(a, *b) if b else a)
        except np.linalg.LinAlgError:  # gradients are astronomical
            return previous
        values = np.clip(values, SMALLEST, LARGEST)
        chosen = np.argsort(-np.abs(np.log(values)))[: self.max_rank]
        chosen = chosen[np.abs(np.log(values[chosen])) > np.log(self.cutoff)]
        return self._from_eigen(scale, basis @ vectors[:, chosen], values[chosen])

    def _from_eigen(self, scale, vectors, values) -> LowRank:
        """Always of ``max_rank``: one compiled program for any number of directions."""
        dim, rank = vectors.shape
        padded = np.zeros((dim, self.max_rank))
        padded[:, :rank] = vectors
        root = np.ones(self.max_rank)
        root[:rank] = np.sqrt(values)
        # the fields of LowRank.from_eigen, on the host: JAX would compile for it
        return LowRank(scale, padded, np.diag(root - 1), np.diag(1 - 1 / root), np.asarray(np.sum(np.log(root))))


@dataclass(frozen=True)
class AutomaticMetric:
    """Diagonal, until the draws show correlations for which more pays: dense, or low rank above ``max_dense``.

    In the coordinates of the diagonal metric, a Gaussian of condition number κ takes √κ times the gradients that it
    takes in those of the rich one, whose products cost as much as some cheap gradients: about dim/64 for the dense
    metric, about three for the other. It is used if √κ exceeds one more than that; the other leaves a spread of
    ``cutoff``, by which κ is divided.
    """

    prior_draws: float = 10.0
    max_dense: int = 200

    def initial(self, gradients) -> Switched:
        plain = DiagonalMetric(self.prior_draws).initial(gradients)
        return Switched(plain, self._rich(plain.dim).initial(gradients), np.bool_(False))

    def estimate(self, positions, gradients, previous) -> Switched:
        plain = DiagonalMetric(self.prior_draws).estimate(positions, gradients, previous)
        rich = self._rich(plain.dim).estimate(positions, gradients, previous)
        if isinstance(rich, Switched):  # nothing could be told
            return Switched(plain, rich.rich, np.bool_(False))
        condition, cost = _condition(rich, np.asarray(plain.scale))
        return Switched(plain, rich, np.bool_(np.sqrt(condition) > 1 + cost))

    def _rich(self, dim: int) -> MetricEstimator:
        return DenseMetric(self.prior_draws) if dim <= self.max_dense else LowRankMetric(self.prior_draws)


def _condition(rich: ScaleOperator, scale) -> tuple[float, float]:
    """(condition number that the target has in the coordinates of ``scale`` and not in those of ``rich``, cost of
    ``rich`` in cheap gradients)."""
    if isinstance(rich, Dense):
        singular = np.linalg.svd(np.asarray(rich.lower) / scale[:, None], compute_uv=False)
        return float(np.square(singular[0] / singular[-1])), scale.size / 64
    assert isinstance(rich, LowRank)
    values = np.square(np.diagonal(rich.root) + 1)
    return float(max(values.max(), 1) / min(values.min(), 1) / CUTOFF), 3.0


def geometric_mean_with_inverse(a, b) -> Float[np.ndarray, "dim dim"]:
    """A # B⁻¹ = L (Lᵀ B L)^-½ Lᵀ with A = L Lᵀ: the positive definite X with X B X = A."""
    lower = np.linalg.cholesky(a)
    values, vectors = np.linalg.eigh(lower.T @ b @ lower)  # of its lower triangle
    root = lower @ (vectors * np.clip(values, SMALLEST, None) ** -0.25)
    return root @ root.T


def _scales(positions, gradients, previous, prior_draws: float, enough: float = np.inf) -> Float[np.ndarray, " dim"]:
    """The diagonal metric s, of Var u alone after many more draws than ``enough``; else of both, which it balances."""
    num_draws = max(positions.shape[0] * (positions.shape[1] - 1), 1)  # single draws do not vary
    before = np.log(_diagonal(previous))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        of_positions = _sum_of_squares(positions)
        found = log_variance = np.log(of_positions / num_draws)
        if gradients is not None:
            share = num_draws / (num_draws + enough)
            fisher = 0.5 * np.log(of_positions / _sum_of_squares(gradients))
            found = share * log_variance + (1 - share) * fisher
    is_known = np.isfinite(found) & (found > np.log(SMALLEST)) & (found < np.log(LARGEST))
    share = np.where(is_known, num_draws / (num_draws + prior_draws), 0)
    return np.exp(0.5 * (share * np.where(is_known, found, 0) + (1 - share) * before))


def _diagonal(metric: ScaleOperator) -> Float[np.ndarray, " dim"]:
    """diag S Sᵀ, on the host: JAX would compile for it."""
    if isinstance(metric, Switched):
        return _diagonal(metric.rich if metric.is_rich else metric.plain)
    if isinstance(metric, Dense):
        return np.sum(np.square(metric.lower, dtype=np.float64), axis=1)
    if isinstance(metric, Diagonal):
        return np.square(metric.scale, dtype=np.float64)
    if isinstance(metric, LowRank):
        values = np.square(np.diagonal(metric.root) + 1.0)
        return np.square(metric.scale, dtype=np.float64) * (1 + np.square(metric.factor) @ (values - 1))
    raise TypeError(f"no metric that warm-up adapts: {type(metric).__name__}")


def _whitening(weight: float, a, b=None) -> Float[np.ndarray, "dim dim"]:
    """The lower factor of A # B⁻¹, or of A, which count with ``weight`` beside the identity."""
    a, *b = (weight * x + (1 - weight) * np.eye(len(x)) for x in (a, b) if x is not None)
    return np.linalg.cholesky(geometric_mean_with_inverse(a, *b) if b else a)


def _is_gaussian(lower: Float[np.ndarray, "dim dim"], u, g) -> bool:
    """Whether the gradients, f in white coordinates q, are nearly those of the Gaussian: f = −q."""
    q, f = u @ np.linalg.inv(lower).T, g @ lower
    return bool(np.sum((q + f) ** 2) < NEARLY_GAUSSIAN * np.sum(f**2))


def _weight(num_draws: int, prior_draws: float) -> float:
    """Of a covariance beside the identity: nearly one as soon as draws span the space, where the estimate is exact for
    a Gaussian, and what is added to its smallest eigenvalues would be the largest error left."""
    return 1 - (prior_draws / (num_draws + prior_draws)) ** 3


class _Side(NamedTuple):
    """Deviations X (draw, dim) from the chains' means, in a scale; a few columns at a time, since all of them would be
    as large as what the window recorded."""

    values: Chains
    scale: Float[np.ndarray, " dim"]

    def blocks(self) -> Iterator[tuple[slice, Float[np.ndarray, "draw few"]]]:
        for columns in column_blocks(self.values.shape[0] * self.values.shape[1], self.scale.size):
            x = self.values[..., columns] * self.scale[columns]
            x -= x.mean(axis=1, keepdims=True)
            yield columns, x.reshape(-1, x.shape[-1])

    def is_finite(self) -> bool:
        return all(np.all(np.isfinite(x)) for _, x in self.blocks())

    def leading(self, rank: int) -> Float[np.ndarray, "dim rank"]:
        """The directions in which X varies most: right singular vectors, by the smaller of its Gram matrices."""
        if self.values.shape[0] * self.values.shape[1] >= self.scale.size:
            return np.linalg.eigh(_gram(np.concatenate([x for _, x in self.blocks()], axis=1)))[1][:, -rank:]
        vectors = np.linalg.eigh(np.sum([x @ x.T for _, x in self.blocks()], axis=0))[1][:, -rank:]
        return np.concatenate([x.T @ vectors for _, x in self.blocks()])

    def along(self, basis: Float[np.ndarray, "dim few"]) -> Float[np.ndarray, "draw few"]:
        return np.sum([x @ basis[columns] for columns, x in self.blocks()], axis=0)


def _orthonormal(x: Float[np.ndarray, "dim few"]) -> Float[np.ndarray, "dim few"]:
    """A basis of what the columns of ``x`` span, in its place where these are contiguous: copies would be large."""
    found: Any = scipy.linalg.qr(x, mode="economic", overwrite_a=True, check_finite=False)
    return found[0]


def _gram(x):
    return x.T @ x


def _sum_of_squares(x: Chains) -> Float[np.ndarray, " dim"]:
    """Of deviations from the chain's mean, pooled."""
    with np.errstate(invalid="ignore", over="ignore"):
        parts = []
        for columns in column_blocks(x.shape[0] * x.shape[1], x.shape[2]):
            part = x[..., columns]
            parts.append(np.sum(np.square(part - part.mean(axis=1, keepdims=True), dtype=np.float64), axis=(0, 1)))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
