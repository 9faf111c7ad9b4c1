"""What q says of weights, means and covariances: moments, draws and the predictive density."""

from abc import ABC, abstractmethod

import numpy as np
from jaxtyping import Float
from scipy.special import gammaln, logsumexp

from credo.methods.vi.cavi.mixture.factors import LOG_2PI, NormalWishartFactor, PointFactor, log_det_of_root
from credo.methods.vi.cavi.mixture.priors import Units


class Components(ABC):
    """q(π, μ, Λ) at its statistics; log densities in standard units, everything else in those of the data."""

    @abstractmethod
    def mean(self) -> dict[str, np.ndarray]: ...

    @abstractmethod
    def sd(self) -> dict[str, np.ndarray]: ...

    @abstractmethod
    def sample(self, rng: np.random.Generator, n: int) -> dict[str, np.ndarray]: ...

    @abstractmethod
    def log_density(self, z: Float[np.ndarray, "row dim"]) -> Float[np.ndarray, " row"]: ...


class NormalWishartComponents(Components):
    """Under the factor of variational Bayes."""

    def __init__(self, factor: NormalWishartFactor, statistics, units: Units):
        self.factor, self.features, self.units = factor, factor.features, units
        self.q = factor.parameters(statistics)

    def mean(self):
        q, b = self.q, self.features.block_size
        spare = (q.nu - b - 1)[:, None, None, None]
        with np.errstate(divide="ignore"):
            covariances = np.where(spare > 0, q.scale / spare, np.inf)
        return named(self.features, self.units, q.alpha / np.sum(q.alpha), q.m, covariances)

    def sd(self):
        """Of π_k a Beta's, of μ_k a Student t's, of Λ_k⁻¹ an inverse Wishart's (Mardia, Kent & Bibby 1979, 3.8.2)."""
        q, b = self.q, self.features.block_size
        share = q.alpha / np.sum(q.alpha)
        weights = np.sqrt(share * (1 - share) / (np.sum(q.alpha) + 1))
        nu, S = q.nu[:, None, None, None], q.scale
        diagonal = np.diagonal(S, axis1=2, axis2=3)
        with np.errstate(divide="ignore", invalid="ignore"):
            means = np.sqrt(diagonal / ((nu[..., 0] - b - 1) * q.beta[:, None, None]))
            products = diagonal[..., :, None] * diagonal[..., None, :]
            variance = ((nu - b + 1) * S**2 + (nu - b - 1) * products) / ((nu - b) * (nu - b - 1) ** 2 * (nu - b - 3))
            means = np.where(nu[..., 0] > b + 1, means, np.inf)
            covariances = np.where(nu > b + 3, np.sqrt(variance), np.inf)
        return named(
            self.features, self.units._replace(shift=np.zeros_like(self.units.shift)), weights, means, covariances
        )

    def sample(self, rng, n):
        weights, means, half = self.factor.draw(self.q, rng, n)
        return named(self.features, self.units, weights, means, half @ np.swapaxes(half, -1, -2))

    def log_density(self, z):
        """Σ_k E[π_k] Π_blocks St(x; m, S (β + 1)/(β (ν − b + 1)), ν − b + 1)   (Bishop 2006, eq. 10.81)."""
        q, b = self.q, self.features.block_size
        degrees = q.nu - b + 1
        offset = z.reshape(len(z), 1, *q.m.shape[1:]) - q.m  # (row, K, B, b)
        inverse = np.linalg.inv(q.root)
        square = np.sum(np.einsum("kbij,nkbj->nkbi", inverse, offset) ** 2, axis=-1)
        ratio = (q.beta / (q.beta + 1))[:, None]
        constant = (gammaln(0.5 * (degrees + b)) - gammaln(0.5 * degrees) - 0.5 * b * np.log(np.pi))[:, None]
        each = (
            constant
            + 0.5 * b * np.log(ratio)
            - 0.5 * log_det_of_root(q.root)
            - 0.5 * (degrees + b)[:, None] * np.log1p(ratio * square)
        )
        return logsumexp(np.log(q.alpha / np.sum(q.alpha)) + np.sum(each, axis=-1), axis=1)


class PointComponents(Components):
    """At EM's maximum."""

    def __init__(self, factor: PointFactor, statistics, units: Units):
        self.features, self.units = factor.features, units
        self.weights, self.means, self.covariances, self.root = factor.parameters(statistics)

    def mean(self):
        return named(self.features, self.units, self.weights, self.means, self.covariances)

    def sd(self):
        return {name: np.zeros_like(value) for name, value in self.mean().items()}

    def sample(self, rng, n):
        return {name: np.broadcast_to(value, (n, *value.shape)).copy() for name, value in self.mean().items()}

    def log_density(self, z):
        offset = z.reshape(len(z), 1, *self.means.shape[1:]) - self.means
        square = np.sum(np.einsum("kbij,nkbj->nkbi", np.linalg.inv(self.root), offset) ** 2, axis=(2, 3))
        log_det = np.sum(log_det_of_root(self.root), axis=1)
        return logsumexp(np.log(self.weights) - 0.5 * (square + log_det + self.features.dim * LOG_2PI), axis=1)


def named(features, units: Units, weights, means, covariances) -> dict[str, np.ndarray]:
    """Blocks (…, K, B, b) and (…, K, B, b, b) in standard units -> arrays by name in the units of the data."""
    batch = means.shape[:-2]
    means = units.shift + units.unit * means.reshape(*batch, features.dim)
    if features.block_size == 1 and not features.is_full:
        return {"weights": weights, "means": means, "variances": covariances[..., 0, 0] * units.unit**2}
    return {
        "weights": weights,
        "means": means,
        "covariances": covariances[..., 0, :, :] * np.outer(units.unit, units.unit),
    }
