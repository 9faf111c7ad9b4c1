"""Metrics of Hamiltonian samplers, estimated from draws u and gradients g = ∇log p(u) on the host in float64.

A metric is a scale operator S; the sampler moves in the coordinates S⁻¹u, in which the target should look like
N(0, I). The best S for a Gaussian target minimises the Fisher divergence E‖S⁻¹u + Sᵀg‖² (Seyboldt et al. 2025):
    diagonal    s² = (Var u / Var g)^½
    dense       S Sᵀ = A # B⁻¹, the geometric mean of A = Cov u and the inverse of B = Cov g
Gradients say about tight directions what draws say about wide ones, so a few dozen of each are enough to begin with.
Variances are taken within chains: while chains are apart, the distance between them is not the width of the target.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jaxtyping import Float

from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.linalg.operator import ScaleOperator

Chains = Float[np.ndarray, "chain draw dim"]
SMALLEST, LARGEST = 1e-20, 1e20  # of s²: beyond, a coordinate says nothing


class MetricEstimator(Protocol):
    """How a metric is found; hashable settings."""

    def initial(self, gradients: Float[np.ndarray, "chain dim"]) -> ScaleOperator: ...

    def estimate(self, positions: Chains, gradients: Chains, previous: ScaleOperator) -> ScaleOperator: ...


@dataclass(frozen=True)
class DiagonalMetric:
    """A scale a coordinate. ``prior_draws``: how many draws the previous metric counts for."""

    prior_draws: float = 10.0

    def initial(self, gradients) -> Diagonal:
        """From the gradients at the starts, for draws of variance one: s² = 1/|g|."""
        mean_square = np.mean(np.square(np.asarray(gradients, np.float64)), axis=0)
        return Diagonal(np.clip(mean_square, SMALLEST, LARGEST) ** -0.25)

    def estimate(self, positions, gradients, previous: Diagonal) -> Diagonal:
        """Where draws or gradients do not vary or are not finite, the previous scale stays."""
        _, ratio, num_draws = _variances(positions, gradients)
        before = 2 * np.log(previous.scale)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = 0.5 * np.log(ratio)
        is_known = np.isfinite(found) & (found > np.log(SMALLEST)) & (found < np.log(LARGEST))
        mixed = (num_draws * np.where(is_known, found, before) + self.prior_draws * before) / (num_draws + self.prior_draws)
        return Diagonal(np.exp(0.5 * mixed))


@dataclass(frozen=True)
class DenseMetric:
    """A full matrix: for correlated targets of up to a few hundred dimensions. ``prior_draws``: as above."""

    prior_draws: float = 10.0

    def initial(self, gradients) -> Dense:
        return Dense(np.diag(DiagonalMetric().initial(gradients).scale))

    def estimate(self, positions, gradients, previous: Dense) -> Dense:
        """Both covariances are shrunk to the diagonal estimate by ``prior_draws``, plus one a dimension."""
        diagonal = Diagonal(np.sqrt(previous.diagonal()))
        scale = DiagonalMetric(self.prior_draws).estimate(positions, gradients, diagonal).scale
        dim, num_draws = scale.size, positions.shape[0] * (positions.shape[1] - 1)
        weight = num_draws / (num_draws + self.prior_draws + dim)

        def covariance(x):
            deviations = (x - x.mean(axis=1, keepdims=True)).reshape(-1, dim)
            return weight * (deviations.T @ deviations) / max(num_draws, 1) + (1 - weight) * np.eye(dim)

        a, b = covariance(positions / scale), covariance(gradients * scale)
        if not (np.all(np.isfinite(a)) and np.all(np.isfinite(b))):
            return previous
        return Dense.from_covariance(scale[:, None] * geometric_mean_with_inverse(a, b) * scale)


def geometric_mean_with_inverse(a, b) -> Float[np.ndarray, "dim dim"]:
    """A # B⁻¹ = A^½ (A^½ B A^½)^-½ A^½: the positive definite X with X B X = A."""
    root = _power(a, 0.5)
    return root @ _power(root @ b @ root, -0.5) @ root


def _power(matrix, exponent: float):
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    return (vectors * np.clip(values, SMALLEST, None) ** exponent) @ vectors.T


def _variances(positions, gradients):
    """(Var u, Var u / Var g, degrees of freedom), within chains and pooled."""
    num_draws = positions.shape[0] * (positions.shape[1] - 1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        var_u, var_g = (
            np.sum(np.square(x - x.mean(axis=1, keepdims=True)), axis=(0, 1)) for x in (positions, gradients)
        )
        return var_u, var_u / var_g, num_draws
