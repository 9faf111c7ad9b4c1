"""Metrics of Hamiltonian samplers, estimated from draws u and gradients g = ∇log p(u) on the host in float64.

A metric is a scale operator S; the sampler moves in the coordinates S⁻¹u, in which the target should look like
N(0, I). The best S for a Gaussian target minimises the Fisher divergence E‖S⁻¹u + Sᵀg‖² (Seyboldt et al. 2025):
    diagonal    s² = (Var u / Var g)^½
    dense       S Sᵀ = A # B⁻¹, the geometric mean of A = Cov u and the inverse of B = Cov g
On a Gaussian target both are exact as soon as the draws span the space, for g = −Σ⁻¹u makes the noise of A and B one.
Gradients say about tight directions what draws say about wide ones, so a few dozen of each are enough to begin with.
For a kernel without gradients it is S Sᵀ = Cov u.
Variances are taken within chains: while chains are apart, the distance between them is not the width of the target.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.linalg.operator import ScaleOperator, Stored
from credo.status import CredoError

Chains = Float[np.ndarray, "chain draw dim"]
SMALLEST, LARGEST = 1e-20, 1e20  # of s²: beyond, a coordinate says nothing


@runtime_checkable
class MetricEstimator(Protocol):
    """How a metric is found; hashable settings."""

    def initial(self, gradients: Float[np.ndarray, "chain dim"]) -> ScaleOperator: ...

    def estimate(self, positions: Chains, gradients: Chains | None, previous: ScaleOperator) -> ScaleOperator: ...


@dataclass(frozen=True)
class DiagonalMetric:
    """A scale a coordinate. ``prior_draws``: how many draws the previous metric counts for."""

    prior_draws: float = 10.0

    def initial(self, gradients) -> Diagonal:
        """From the gradients at the starts, for draws of variance one: s² = 1/|g|."""
        mean_square = np.mean(np.square(np.asarray(gradients, np.float64)), axis=0)
        return Diagonal(np.clip(mean_square, SMALLEST, LARGEST) ** -0.25)

    def estimate(self, positions, gradients, previous) -> Diagonal:
        """Where draws or gradients do not vary or are not finite, the previous scale stays."""
        num_draws = positions.shape[0] * (positions.shape[1] - 1)
        before = np.log(_diagonal(previous))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            if gradients is None:
                found = np.log(_sum_of_squares(positions) / num_draws)
            else:
                found = 0.5 * np.log(_sum_of_squares(positions) / _sum_of_squares(gradients))
        is_known = np.isfinite(found) & (found > np.log(SMALLEST)) & (found < np.log(LARGEST))
        share = np.where(is_known, num_draws / (num_draws + self.prior_draws), 0)
        return Diagonal(np.exp(0.5 * (share * np.where(is_known, found, 0) + (1 - share) * before)))


@dataclass(frozen=True)
class DenseMetric:
    """A full matrix: for correlated targets of up to a few hundred dimensions. ``prior_draws``: as above."""

    prior_draws: float = 10.0

    def initial(self, gradients) -> Dense:
        return Dense(np.diag(DiagonalMetric().initial(gradients).scale))

    def estimate(self, positions, gradients, previous) -> ScaleOperator:
        """The covariances are shrunk to the diagonal estimate by ``prior_draws``, plus one a dimension."""
        scale = np.asarray(DiagonalMetric(self.prior_draws).estimate(positions, gradients, previous).scale)
        dim, num_draws = scale.size, positions.shape[0] * (positions.shape[1] - 1)
        weight = num_draws / (num_draws + self.prior_draws + dim)

        def covariance(x):
            deviations = (x - x.mean(axis=1, keepdims=True)).reshape(-1, dim)
            return weight * (deviations.T @ deviations) / max(num_draws, 1) + (1 - weight) * np.eye(dim)

        a = covariance(positions / scale)
        b = None if gradients is None else covariance(gradients * scale)
        if not (np.all(np.isfinite(a)) and (b is None or np.all(np.isfinite(b)))):
            return previous
        try:
            white = a if b is None else geometric_mean_with_inverse(a, b)
            return Dense.from_covariance(scale[:, None] * white * scale)
        except CredoError:  # chains trapped where gradients are astronomical: not positive definite, for rounding
            return previous


class DiagonalOrDense(ScaleOperator):
    """S = ``lower`` where ``is_dense``, else diag(``scale``): one compiled program for both, at the cost of either."""

    scale: Float[Stored, " dim"]
    lower: Float[Stored, "dim dim"]
    is_dense: Bool[Stored | np.bool, ""]

    @property
    def dim(self) -> int:
        return self.scale.shape[0]

    def matvec(self, z) -> Float[Array, " dim"]:
        return self._either(lambda s: s.matvec(z))

    def transpose_matvec(self, v) -> Float[Array, " dim"]:
        return self._either(lambda s: s.transpose_matvec(v))

    def solve(self, v) -> Float[Array, " dim"]:
        return self._either(lambda s: s.solve(v))

    def log_det(self) -> Float[Array, ""]:
        return self._either(lambda s: s.log_det())

    def diagonal(self) -> Float[Array, " dim"]:
        return self._either(lambda s: s.diagonal())

    def dense(self) -> Float[Array, "dim dim"]:
        return self._either(lambda s: s.dense())

    def _either(self, use):
        return lax.cond(jnp.asarray(self.is_dense), lambda: use(Dense(self.lower)), lambda: use(Diagonal(self.scale)))


@dataclass(frozen=True)
class AutomaticMetric:
    """Diagonal, until the draws show correlations for which a dense metric pays; above ``max_dense`` always diagonal.

    In the coordinates of the diagonal metric, a Gaussian of condition number κ takes √κ times the gradients that it
    takes in those of the dense one, whose products cost about dim/64 cheap gradients. It is used if √κ > 1 + dim/64.
    """

    prior_draws: float = 10.0
    max_dense: int = 200

    def initial(self, gradients) -> ScaleOperator:
        diagonal = DiagonalMetric(self.prior_draws).initial(gradients)
        if diagonal.dim > self.max_dense:
            return diagonal
        return DiagonalOrDense(diagonal.scale, np.diag(diagonal.scale), np.bool_(False))

    def estimate(self, positions, gradients, previous) -> ScaleOperator:
        diagonal = DiagonalMetric(self.prior_draws).estimate(positions, gradients, previous)
        if not isinstance(previous, DiagonalOrDense):
            return diagonal
        scale = np.asarray(diagonal.scale)
        dense = DenseMetric(self.prior_draws).estimate(positions, gradients, previous)
        lower = np.asarray(dense.lower) if isinstance(dense, Dense) else np.diag(scale)
        singular = np.linalg.svd(lower / scale[:, None], compute_uv=False)
        is_dense = singular[0] > (1 + scale.size / 64) * singular[-1]
        return DiagonalOrDense(scale, lower, np.bool_(is_dense))


def geometric_mean_with_inverse(a, b) -> Float[np.ndarray, "dim dim"]:
    """A # B⁻¹ = A^½ (A^½ B A^½)^-½ A^½: the positive definite X with X B X = A."""
    root = _power(a, 0.5)
    return root @ _power(root @ b @ root, -0.5) @ root


def _diagonal(metric: ScaleOperator) -> Float[np.ndarray, " dim"]:
    """diag S Sᵀ, on the host: JAX would compile for it."""
    if isinstance(metric, Dense) or (isinstance(metric, DiagonalOrDense) and metric.is_dense):
        return np.sum(np.square(metric.lower, dtype=np.float64), axis=1)
    if isinstance(metric, Diagonal | DiagonalOrDense):
        return np.square(metric.scale, dtype=np.float64)
    raise TypeError(f"no metric that warm-up adapts: {type(metric).__name__}")


def _power(matrix, exponent: float):
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    return (vectors * np.clip(values, SMALLEST, None) ** exponent) @ vectors.T


def _sum_of_squares(x: Chains) -> Float[np.ndarray, " dim"]:
    """Of deviations from the chain's mean, pooled."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.sum(np.square(x - x.mean(axis=1, keepdims=True), dtype=np.float64), axis=(0, 1))
