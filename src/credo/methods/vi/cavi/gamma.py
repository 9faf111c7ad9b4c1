"""Gamma factors of precisions, in NumPy: expectations, KL divergence, and quadrature over them.

Gamma(t; a, b) = b^a t^(a−1) e^(−bt)/Γ(a):  E t = a/b,  E log t = ψ(a) − log b
KL(Gamma(a, b) ‖ Gamma(a₀, b₀)) = (a − a₀) ψ(a) − log Γ(a) + log Γ(a₀) + a₀ log(b/b₀) + a (b₀ − b)/b
"""

from typing import NamedTuple

import numpy as np
import numpyro.distributions as dist
from numpy.typing import ArrayLike
from scipy.special import digamma, gammainccinv, gammaincinv, gammaln

from credo.methods.exact import checks
from credo.methods.exact.family import Predictive, distribution
from credo.status import CredoError

NUM_NODES = 96  # twice as many where the shape is below one, since log t then spreads over a hundred units
TAIL = 1e-12  # mass left out on each side


class Gamma(NamedTuple):
    """``shape`` a and ``rate`` b, numbers or arrays of one shape."""

    shape: ArrayLike
    rate: ArrayLike

    @property
    def mean(self):
        return np.divide(self.shape, self.rate)

    @property
    def mean_log(self):
        """E log t."""
        return digamma(self.shape) - np.log(self.rate)

    def divergence(self, other: "Gamma") -> float:
        """KL(self ‖ other), summed over entries."""
        a, b = np.asarray(self.shape), np.asarray(self.rate)
        a0, b0 = np.asarray(other.shape), np.asarray(other.rate)
        terms = (a - a0) * digamma(a) - gammaln(a) + gammaln(a0) + a0 * np.log(b / b0) + a * (b0 - b) / b
        return float(np.sum(terms))

    def log_prob(self, t: np.ndarray) -> np.ndarray:
        """The log density at ``t``."""
        a, b = np.asarray(self.shape), np.asarray(self.rate)
        return a * np.log(b) - gammaln(a) + (a - 1) * np.log(t) - b * t

    def sample(self, generator: np.random.Generator, n: int) -> np.ndarray:
        """``n`` draws (n, …)."""
        shape, rate = np.broadcast_arrays(self.shape, self.rate)
        return generator.gamma(shape, 1 / rate, (n, *shape.shape))

    @property
    def distribution(self) -> dist.Distribution:
        """The numpyro distribution; an event where there are several entries."""
        return distribution(dist.Gamma, self.shape, self.rate).to_event(np.ndim(self.shape))


def gamma_prior(name: str, given: tuple[float, float]) -> Gamma:
    """``given`` as a prior, or a sentence."""
    try:
        shape, rate = given
    except (TypeError, ValueError):
        raise CredoError(f"{name} is {given!r}: give (shape, rate) of a Gamma distribution.") from None
    return Gamma(checks.positive(f"the shape in {name}", shape), checks.positive(f"the rate in {name}", rate))


def nodes_of(factor: Gamma) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights (K,) of ∫ f(t) Gamma(t; a, b) dt: the trapezoidal rule in log t.

    The integrand is analytic and dies at both ends, where that rule converges exponentially (Trefethen 2014).
    """
    a, b = float(np.asarray(factor.shape)), float(np.asarray(factor.rate))
    low = max(np.log(max(gammaincinv(a, TAIL), np.finfo(float).tiny)), np.log(a) - 700)
    log_t = np.linspace(low, np.log(gammainccinv(a, TAIL)), NUM_NODES if a >= 1 else 2 * NUM_NODES)
    weights = np.exp(a * (log_t - np.log(a)) - (np.exp(log_t) - a))  # density of log t over its largest value
    return np.exp(log_t) / b, weights / weights.sum()


def normal_predictive(mean: np.ndarray, variance: np.ndarray, precision: Gamma) -> Predictive:
    """∫ N(y; mean, variance + 1/t) q(t) dt for each entry of ``mean``: a scale mixture, whose tails are heavier."""
    t, weights = nodes_of(precision)
    scale = np.sqrt(np.asarray(variance)[..., None] + 1 / t)
    location = np.broadcast_to(np.asarray(mean)[..., None], scale.shape)
    components = distribution(dist.Normal, location, scale)
    which = distribution(dist.CategoricalProbs, weights)
    return Predictive(distribution(dist.MixtureSameFamily, which, components))
