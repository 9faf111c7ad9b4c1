"""A normal mean with the variance known, and with the variance unknown.

Known σ² (Murphy, 2007, eq. 19–24 and 55):
    μ ~ N(m, v),  y_i | μ ~ N(μ, σ²);   v' = 1/(1/v + N/σ²),  m' = m + v' N (ȳ − m)/σ²
    log p(y) = −(N/2) log 2πσ² − ½ log(v/v') − ½ [Σ (y_i − ȳ)²/σ² + N (ȳ − m)²/(σ² + N v)]

Unknown σ² (Murphy, 2007, section 6; κ counts the prior's observations of the mean):
    σ² ~ InverseGamma(a, b),  μ | σ² ~ N(m, σ²/κ),  y_i | μ, σ² ~ N(μ, σ²)
    κ' = κ + N,  m' = m + N (ȳ − m)/κ',  a' = a + N/2,  b' = b + ½ [Σ (y_i − ȳ)² + κ N (ȳ − m)²/κ']
    log p(y) = log Γ(a') − log Γ(a) + a log b − a' log b' + ½ log(κ/κ') − (N/2) log 2π

Sums of squares are taken about the batch mean, so that a large offset of y costs no digits.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpyro.distributions as dist
from numpy.typing import ArrayLike
from scipy.special import gammaln

from credo.methods.exact import checks
from credo.methods.exact.family import NO_DATA, Family, Predictive, distribution, extend, settle
from credo.status import Estimate

LOG_2PI = float(np.log(2 * np.pi))


@dataclass(frozen=True)
class NormalKnownVariance(Family):
    """A mean with a N(location, variance) prior, seen through observations with known ``noise_variance``.

    Parameter name: ``mean``. Raises CredoError where a variance is not positive.

    >>> posterior = NormalKnownVariance(location=0.0, variance=4.0, noise_variance=1.0).update([2.0, 3.0])
    >>> round(posterior.location, 4), round(posterior.variance, 4)
    (2.2222, 0.4444)
    """

    location: float
    variance: float
    noise_variance: float
    log_evidence: Estimate = field(default=NO_DATA, kw_only=True)

    def __post_init__(self):
        settle(
            self,
            location=checks.number("location", self.location),
            variance=checks.positive("variance", self.variance),
            noise_variance=checks.positive("noise_variance", self.noise_variance),
        )

    def update(self, y: ArrayLike) -> "NormalKnownVariance":
        """The posterior after observations ``y`` (N,)."""
        n, mean, scatter = _summary(y)
        v, noise = self.variance, self.noise_variance
        total = noise + n * v  # N times the variance of ȳ
        offset = mean - self.location
        increment = -0.5 * (
            n * (LOG_2PI + np.log(noise)) + np.log(total / noise) + scatter / noise + n * offset**2 / total
        )
        return NormalKnownVariance(
            location=self.location + n * v * offset / total,
            variance=v * noise / total,
            noise_variance=noise,
            log_evidence=extend(self.log_evidence, increment),
        )

    @property
    def distributions(self) -> dict[str, dist.Distribution]:  # type: ignore[override]
        return {"mean": distribution(dist.Normal, self.location, np.sqrt(self.variance))}

    def predictive(self) -> Predictive:
        """The next observation: N(m, v + σ²)."""
        return Predictive(distribution(dist.Normal, self.location, np.sqrt(self.variance + self.noise_variance)))


@dataclass(frozen=True)
class NormalInverseGamma(Family):
    """A mean and a variance, σ² ~ InverseGamma(a, b) and μ | σ² ~ N(location, σ²/kappa).

    Parameter names: ``variance``, ``mean``; they are dependent, so ``distributions["mean"]`` is a callable of
    ``variance``, and ``marginals["mean"]`` is a Student t. Raises CredoError where kappa, a or b is not positive.

    >>> NormalInverseGamma(location=0.0, kappa=1.0, a=2.0, b=2.0).update([1.0, 3.0]).predictive().mean.round(4)
    np.float64(1.3333)
    """

    location: float
    kappa: float
    a: float
    b: float
    log_evidence: Estimate = field(default=NO_DATA, kw_only=True)

    def __post_init__(self):
        settle(
            self,
            location=checks.number("location", self.location),
            kappa=checks.positive("kappa", self.kappa),
            a=checks.positive("a", self.a),
            b=checks.positive("b", self.b),
        )

    def update(self, y: ArrayLike) -> "NormalInverseGamma":
        """The posterior after observations ``y`` (N,)."""
        n, mean, scatter = _summary(y)
        offset = mean - self.location
        kappa, a = self.kappa + n, self.a + n / 2
        b = self.b + 0.5 * (scatter + self.kappa * n * offset**2 / kappa)
        return NormalInverseGamma(
            location=self.location + n * offset / kappa,
            kappa=kappa,
            a=a,
            b=b,
            log_evidence=extend(
                self.log_evidence,
                inverse_gamma_evidence(self.a, self.b, a, b) + 0.5 * (np.log(self.kappa / kappa) - n * LOG_2PI),
            ),
        )

    @property
    def distributions(self) -> dict[str, dist.Distribution | Callable[..., dist.Distribution]]:
        location, kappa = self.location, self.kappa
        return {
            "variance": distribution(dist.InverseGamma, self.a, self.b),
            "mean": lambda variance: dist.Normal(location, (variance / kappa) ** 0.5),
        }

    @property
    def marginals(self) -> dict[str, dist.Distribution]:
        scale = np.sqrt(self.b / (self.a * self.kappa))
        return {
            "variance": distribution(dist.InverseGamma, self.a, self.b),
            "mean": distribution(dist.StudentT, 2 * self.a, self.location, scale),
        }

    def predictive(self) -> Predictive:
        """The next observation: Student t with 2a degrees of freedom, scale² = b (κ + 1)/(a κ)."""
        scale = np.sqrt(self.b * (1 + 1 / self.kappa) / self.a)
        return Predictive(distribution(dist.StudentT, 2 * self.a, self.location, scale))


def inverse_gamma_evidence(a: float, b: float, new_a: float, new_b: float) -> float:
    """log Γ(a') − log Γ(a) + a log b − a' log b', with log(b/b') first so that little cancels."""
    return float(gammaln(new_a) - gammaln(a) + a * np.log(b / new_b) - (new_a - a) * np.log(new_b))


def _summary(y: ArrayLike) -> tuple[int, float, float]:
    """Number, mean and sum of squares about the mean."""
    y = checks.vector("y", y)
    mean = float(y.mean())
    return len(y), mean, float(np.sum((y - mean) ** 2))
