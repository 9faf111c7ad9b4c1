"""What is believed of a mixture's parameters: a Normal-Wishart factor (variational Bayes), or a point (EM).

    x_n | z_n = k ~ N(μ_k, Λ_k⁻¹),  z_n ~ Categorical(π)

A factor turns expected statistics T into the two things that an iteration needs of q(π, μ, Λ): the coefficients of
E_q[log π_k N(x; μ_k, Λ_k⁻¹)] in the features of x, and KL(q ‖ prior). Nothing else parts variational Bayes from EM.

Normal-Wishart (Bishop 2006, section 10.2; S is the inverse of his W), in each block of b coordinates:
    π ~ Dirichlet(α₀),  Λ_k ~ Wishart(ν₀, S₀⁻¹),  μ_k | Λ_k ~ N(m₀, (β₀ Λ_k)⁻¹)
    α = α₀ + N,  β = β₀ + N,  ν = ν₀ + N,  m = (β₀ m₀ + Σ r x)/β,  S = S₀ + Σ r x xᵀ + β₀ m₀ m₀ᵀ − β m mᵀ
    E[Λ] = ν S⁻¹,  E[log |Λ|] = Σ_{i<b} ψ((ν − i)/2) + b log 2 − log |S|
    E[(x − μ)ᵀ Λ (x − μ)] = b/β + ν (x − m)ᵀ S⁻¹ (x − m)
A full covariance is one block; a diagonal one is b = 1, where the Wishart is Gamma(ν/2, S/2): Normal-Gamma.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import digamma, gammaln

from credo.methods.vi.cavi.mixture.statistics import Features
from credo.status import CredoError

LOG_2PI = float(np.log(2 * np.pi))


class Factor(ABC):
    """q(π, μ, Λ) as a function of expected statistics."""

    @abstractmethod
    def coefficients(self, statistics: Float[np.ndarray, "K P"]) -> tuple[Float[np.ndarray, "K P"], float]:
        """c_k with c_k · φ(x) = E_q[log π_k N(x; μ_k, Λ_k⁻¹)], and KL(q ‖ prior)."""


class NormalWishartParameters(NamedTuple):
    """Of q, in blocks: ``m`` (K, B, b), ``scale`` S (K, B, b, b) and its Cholesky factor ``root``; the others (K,)."""

    alpha: np.ndarray
    beta: np.ndarray
    nu: np.ndarray
    m: np.ndarray
    scale: np.ndarray
    root: np.ndarray


@dataclass(frozen=True, eq=False)
class NormalWishartFactor(Factor):
    """With the prior's numbers: ``alpha`` α₀, ``beta`` β₀, ``nu`` ν₀, ``m`` m₀ (B, b), ``scale`` S₀ (B, b, b)."""

    features: Features
    alpha: float
    beta: float
    nu: float
    m: Float[np.ndarray, "B b"]
    scale: Float[np.ndarray, "B b b"]

    def parameters(self, statistics) -> NormalWishartParameters:
        """q after these statistics."""
        counts, first, second = self.features.moments(statistics)
        beta = self.beta + counts
        m = (self.beta * self.m + first) / beta[:, None, None]
        scale = self.scale + second + self.beta * _outer(self.m) - beta[:, None, None, None] * _outer(m)
        try:
            root = np.linalg.cholesky(scale)
        except np.linalg.LinAlgError:
            raise CredoError(
                "The covariance of a component is lost in rounding: columns of x repeat one another to within 10⁻⁸ or "
                "less, or rows lie 10⁸ sds from the others. Drop such columns and rows, or widen the prior's scale."
            ) from None
        return NormalWishartParameters(self.alpha + counts, beta, self.nu + counts, m, scale, root)

    def coefficients(self, statistics):
        q = self.parameters(statistics)
        log_det = log_det_of_root(q.root)  # (K, B)
        precision = q.nu[:, None, None, None] * _inverse(q.root)
        log_weights = digamma(q.alpha) - digamma(np.sum(q.alpha))
        expected = self._expected_log_det(q.nu)[:, None] - log_det  # E log |Λ|, a block
        linear = np.einsum("kbij,kbj->kbi", precision, q.m)
        constant = (
            log_weights
            + 0.5 * np.sum(expected, axis=1)
            - 0.5 * self.features.dim * (LOG_2PI + 1 / q.beta)
            - 0.5 * np.sum(linear * q.m, axis=(1, 2))
        )
        divergence = self._dirichlet_divergence(q.alpha, log_weights) + self._divergence(q, precision, log_det)
        return self.features.coefficients(constant, linear, -0.5 * precision), divergence

    def values(self, statistics) -> Float[np.ndarray, " K"]:
        """v(T_k): max over q of E_q[log p(x, z, θ)] − E_q[log q(θ)] is Σ_k v(T_k), up to a constant (see merge.py).

        It is the logarithm of the normaliser of component k's factor, log Γ(α) − (D/2) log β − (ν/2) log |S| + Σ log
        Γ_b(ν/2) + (ν D/2) log 2, with the (N/2) D log 2π of its rows.
        """
        q, D, B = self.parameters(statistics), self.features.dim, self.features.num_blocks
        return (
            gammaln(q.alpha)
            - 0.5 * D * np.log(q.beta)
            - 0.5 * q.nu * np.sum(log_det_of_root(q.root), axis=1)
            + B * self.log_gamma(q.nu)
            + 0.5 * D * np.log(2) * q.nu
            - 0.5 * D * LOG_2PI * statistics[:, 0]
        )

    def draw(self, q: NormalWishartParameters, rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
        """``n`` draws of π (n, K), μ (n, K, B, b), and of C (n, K, B, b, b) with Λ⁻¹ = C Cᵀ.

        Λ = L⁻ᵀ A Aᵀ L⁻¹ for S = L Lᵀ, A lower triangular: χ(ν − i) on its diagonal, N(0, 1) below (Bartlett 1933).
        """
        (K, B, b), i = q.m.shape, np.arange(self.features.block_size)
        A = np.tril(rng.normal(size=(n, K, B, b, b)), -1)
        A[..., i, i] = np.sqrt(rng.chisquare((q.nu[:, None] - i)[:, None, :], size=(n, K, B, b)))
        half = q.root @ np.swapaxes(np.linalg.inv(A), -1, -2)
        means = q.m + (half @ rng.normal(size=(n, K, B, b, 1)))[..., 0] / np.sqrt(q.beta)[:, None, None]
        return rng.dirichlet(q.alpha, n), means, half

    def log_gamma(self, nu) -> np.ndarray:
        """log Γ_b(ν/2) of a block."""
        b = self.features.block_size
        return b * (b - 1) / 4 * np.log(np.pi) + sum(gammaln(0.5 * (nu - i)) for i in range(b))

    def _expected_log_det(self, nu) -> Float[np.ndarray, " K"]:
        """Without the part of S."""
        b = self.features.block_size
        return np.sum(digamma(0.5 * (nu[:, None] - np.arange(b))), axis=1) + b * np.log(2)

    def _dirichlet_divergence(self, alpha, log_weights) -> float:
        prior = self.alpha * len(alpha)
        return float(
            gammaln(np.sum(alpha))
            - gammaln(prior)
            - np.sum(gammaln(alpha) - gammaln(self.alpha))
            + np.sum((alpha - self.alpha) * log_weights)
        )

    def _divergence(self, q: NormalWishartParameters, precision, log_det) -> float:
        """Σ_k KL of a Wishart from the prior's, and, in expectation under it, of a normal from the prior's."""
        b, B, d = self.features.block_size, self.features.num_blocks, self.features.dim
        nu, prior = q.nu[:, None], np.linalg.slogdet(self.scale)[1]
        offset = q.m - self.m
        wishart = (
            0.5 * (nu - self.nu) * (self._expected_log_det(q.nu)[:, None] - log_det)
            + 0.5 * (nu * log_det - self.nu * prior)
            - 0.5 * (nu - self.nu) * b * np.log(2)
            + self.log_gamma(self.nu)
            - self.log_gamma(nu)
            + 0.5 * (np.einsum("kbij,bji->kb", precision, self.scale) - nu * b)
        )
        ratio = self.beta / q.beta
        normal = 0.5 * B * b * (ratio - 1 - np.log(ratio)) + 0.5 * self.beta * np.einsum(
            "kbi,kbij,kbj->k", offset, precision, offset
        )
        assert B * b == d
        return float(np.sum(wishart) + np.sum(normal))


@dataclass(frozen=True, eq=False)
class PointFactor(Factor):
    """All mass at one value of the parameters, the maximiser: an iteration is one of EM (Dempster et al. 1977).

    ``ridge`` ε is added to every variance. It is the noise e of variance ε with which x_n is taken to be seen:
    E log N(x + e; μ, Λ⁻¹) = log N(x; μ, Λ⁻¹) − ½ Σ_i ε_i Λ_ii, so that the objective still never decreases.
    """

    features: Features
    ridge: Float[np.ndarray, "B b"]

    def parameters(self, statistics):
        """Weights (K,), means (K, B, b), covariances (K, B, b, b) and their Cholesky factors."""
        counts, first, second = self.features.moments(statistics)
        b = self.features.block_size
        with np.errstate(invalid="ignore", divide="ignore"):
            means = first / counts[:, None, None]
            covariances = second / counts[:, None, None, None] - _outer(means) + self.ridge[:, :, None] * np.eye(b)
            # below this a variance is what rounding left of a difference of larger numbers
            floor = 1e-12 * (1 + np.sum(means**2, axis=(1, 2)))
            spread = np.min(np.diagonal(covariances, axis1=2, axis2=3), axis=(1, 2))
        is_bad = ~(spread > floor) | ~(counts > 0)
        if np.any(is_bad):
            raise _collapsed(int(np.argmax(is_bad)), counts)
        try:
            root = np.linalg.cholesky(covariances)
        except np.linalg.LinAlgError:
            raise _collapsed(int(np.argmin(np.linalg.eigvalsh(covariances)[..., 0].min(axis=1))), counts) from None
        return counts / np.sum(counts), means, covariances, root

    def coefficients(self, statistics):
        weights, means, _, root = self.parameters(statistics)
        precision = _inverse(root)
        log_weights = np.log(weights) - 0.5 * np.einsum("bi,kbii->k", self.ridge, precision)
        return plain_coefficients(self.features, log_weights, means, precision, -log_det_of_root(root)), 0.0


def plain_coefficients(features: Features, log_weights, means, precision, log_det) -> Float[np.ndarray, "K P"]:
    """c with c·φ(x) = log π + log N(x; μ, Λ⁻¹), from blocks (K, B, b), Λ (K, B, b, b) and log |Λ| (K, B)."""
    linear = np.einsum("kbij,kbj->kbi", precision, means)
    constant = log_weights + 0.5 * np.sum(log_det, axis=1) - 0.5 * features.dim * LOG_2PI
    return features.coefficients(constant - 0.5 * np.sum(linear * means, axis=(1, 2)), linear, -0.5 * precision)


def log_det_of_root(root) -> np.ndarray:
    """log |L Lᵀ|, a block."""
    return 2 * np.sum(np.log(np.diagonal(root, axis1=-2, axis2=-1)), axis=-1)


def _collapsed(k: int, counts) -> CredoError:
    return CredoError(
        f"Component {k} of the mixture has collapsed onto {counts[k]:.3g} rows, where its covariance is singular and "
        "the likelihood has no maximum. Ask for fewer components, give PointMass a ridge, or use the default "
        "NormalWishart(), under which such a component empties itself."
    )


def _outer(m) -> np.ndarray:
    return m[..., :, None] * m[..., None, :]


def _inverse(root) -> np.ndarray:
    """(L Lᵀ)⁻¹, symmetric to the last bit."""
    half = np.linalg.solve(root, np.broadcast_to(np.eye(root.shape[-1]), root.shape))
    return np.swapaxes(half, -1, -2) @ half
