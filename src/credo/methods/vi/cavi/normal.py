"""A normal with unknown mean and precision, and factors q(μ) q(τ) (Bishop 2006, section 10.1.3).

    y_i ~ N(μ, 1/τ), i = 1 … N;  τ ~ Gamma(a, b);
    μ ~ N(m, v), independent of τ (``variance``),  or  μ | τ ~ N(m, 1/(κτ)) (``kappa``, the conjugate prior)

With p₀ = 1/v, k = 0 under the first and p₀ = 0, k = κ under the second, and D(μ) = Σ(y_i − μ)² + k (μ − m)²,

    q(μ) = N(m', s²):       1/s² = p₀ + (k + N) E τ,   m' = s² [(p₀ + k E τ) m + N E τ ȳ]
    q(τ) = Gamma(a', b'):   a' = a + (N + [k > 0])/2,  b' = b + ½ E D(μ),
                            E D(μ) = Σ(y_i − ȳ)² + N [(ȳ − m')² + s²] + k [(m' − m)² + s²]
    ELBO = ½ (N + [k > 0]) E log τ − ½ E τ E D(μ) − (N/2) log 2π + ½ log k' − ½ p₀ [(m' − m)² + s²] + ½ log s² + ½
           − KL(q(τ) ‖ p(τ)),  k' = κ or 1/v

Under the second prior the posterior is known in closed form (``credo.exact.NormalInverseGamma``, its a and b); under
the first it is not, and only there coordinate ascent is needed.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpyro.distributions as dist
from numpy.typing import ArrayLike

from credo.methods.exact import checks
from credo.methods.exact.family import Predictive, distribution, settle
from credo.methods.vi.cavi.gamma import Gamma, normal_predictive
from credo.methods.vi.cavi.ready import ReadyModel
from credo.methods.vi.cavi.sweeps import Ascent, ascend
from credo.status import CredoError

LOG_2PI = float(np.log(2 * np.pi))


class Sample(NamedTuple):
    """Number, mean and sum of squares about the mean."""

    size: int
    mean: float
    scatter: float


class Mean(NamedTuple):
    """q(μ) = N(``location``, ``variance``)."""

    location: float
    variance: float


@dataclass(frozen=True, eq=False, repr=False)
class NormalMeanPrecision(ReadyModel):
    """Observations of unknown mean and precision τ ~ Gamma(a, b), by factors q(mean) q(precision).

    Give one of ``variance``, under which mean ~ N(location, variance) whatever the precision, and ``kappa``, under
    which mean | precision ~ N(location, 1/(kappa precision)). Parameter names: ``mean``, ``precision``.
    ``credo.fit(target, NormalMeanPrecision(…))`` gives a ``Posterior`` where a ``Model`` has these names, priors and
    this likelihood, and checks that it has.
    Raises CredoError where a number is not positive, or both or none of the two are given.

    >>> model = NormalMeanPrecision(0.0, 2.0, 2.0, variance=4.0).update([1.0, 3.0, 2.0])
    >>> {name: round(float(value), 3) for name, value in model.mean().items()}
    {'mean': 1.846, 'precision': 1.001}
    >>> print(model.log_evidence)
    -5.7982 (lower bound)
    """

    location: float
    a: float
    b: float
    variance: float | None = None
    kappa: float | None = None

    def __post_init__(self):
        super().__post_init__()
        if (self.variance is None) == (self.kappa is None):
            raise CredoError(
                f"variance={self.variance} and kappa={self.kappa}: give one of them, variance for a prior of the mean "
                "that is independent of the precision, kappa for one in units of the noise."
            )
        settle(
            self,
            location=checks.number("location", self.location),
            a=checks.positive("a", self.a),
            b=checks.positive("b", self.b),
            **{
                name: checks.positive(name, value)
                for name in ("variance", "kappa")
                if (value := getattr(self, name)) is not None
            },
        )

    def update(self, y: ArrayLike) -> "NormalMeanPrecision":
        """All data so far and observations ``y`` (N,)."""
        y = checks.vector("y", y)
        n, mean = len(y), float(y.mean())
        scatter = float(np.sum((y - mean) ** 2))
        if self.statistics is None:
            return self._gathered(Sample(n, mean, scatter))
        before = self.statistics
        total, step = before.size + n, mean - before.mean
        spread = before.scatter + scatter + step**2 * before.size * n / total
        return self._gathered(Sample(total, before.mean + step * n / total, spread))

    def _on(self, rows) -> "NormalMeanPrecision":
        return self.update(rows.y)

    def climb(self, deadline: float = np.inf) -> Ascent:
        prior = Gamma(self.a, self.b)
        start = {"precision": Gamma(self._shape, self.b + 0.5 * self.statistics.scatter)}
        return ascend(
            {"mean": self._mean, "precision": self._precision},
            lambda q, sample: self._bound(q, sample, prior),
            start,
            self.statistics,
            tolerance=self.tolerance,
            relative_tolerance=0.0,
            max_sweeps=self.max_sweeps,
            deadline=deadline,
        )

    @property
    def _shape(self) -> float:
        return self.a + 0.5 * (self.statistics.size + (self.kappa is not None))

    @property
    def _weights(self) -> tuple[float, float]:
        """p₀ and k."""
        return (0.0 if self.variance is None else 1 / self.variance), self.kappa or 0.0

    def _mean(self, q, sample: Sample) -> Mean:
        (fixed, k), precision = self._weights, q["precision"].mean
        total = fixed + (k + sample.size) * precision
        pull = sample.size * precision * (sample.mean - self.location)
        return Mean(self.location + pull / total, 1 / total)

    def _distance(self, q: Mean, sample: Sample) -> float:
        """E D(μ)."""
        off, drift = sample.mean - q.location, q.location - self.location
        spread = sample.scatter + sample.size * (off**2 + q.variance)
        return spread + self._weights[1] * (drift**2 + q.variance)

    def _precision(self, q, sample: Sample) -> Gamma:
        return Gamma(self._shape, self.b + 0.5 * self._distance(q["mean"], sample))

    def _bound(self, q, sample: Sample, prior: Gamma) -> float:
        mean, precision = q["mean"], q["precision"]
        fixed, k = self._weights
        drift = (mean.location - self.location) ** 2 + mean.variance
        terms = 2 * (self._shape - self.a) * precision.mean_log - precision.mean * self._distance(mean, sample)
        rest = np.log(fixed + k) - fixed * drift + np.log(mean.variance) + 1 - sample.size * LOG_2PI
        return 0.5 * (terms + rest) - precision.divergence(prior)

    @property
    def work(self) -> int:
        return 1

    def weigh(self, generator, n):
        mean, precision, sample = *self._factors, self.statistics
        mu = generator.normal(mean.location, np.sqrt(mean.variance), n)
        tau = precision.sample(generator, n)
        fixed, k = self._weights
        squares = sample.scatter + sample.size * (sample.mean - mu) ** 2
        log_joint = 0.5 * (sample.size * (np.log(tau) - LOG_2PI) - tau * squares) + Gamma(self.a, self.b).log_prob(tau)
        log_joint += _log_normal(mu - self.location, 1 / (fixed + k * tau))
        log_q = _log_normal(mu - mean.location, mean.variance) + precision.log_prob(tau)
        return np.column_stack([mu, tau]), log_joint - log_q

    def linear_response(self) -> dict[str, np.ndarray]:
        """Variances of both, each factor answering the other (the response of linear_regression.py with D = 1).

        With g = N (ȳ − m') − k (m' − m):  M = 2b'/E τ − 2 g² s² − (N + k)² s⁴,  Var μ = s² + 2 (s² g)²/M,  Var τ = 2/M.
        """
        (mean, precision), sample, (_, k) = self._factors, self.statistics, self._weights
        g = sample.size * (sample.mean - mean.location) - k * (mean.location - self.location)
        s2, both = mean.variance, sample.size + k
        m = 2 * np.divide(precision.rate, precision.mean) - 2 * g**2 * s2 - both**2 * s2**2
        return {"mean": np.asarray(s2 + 2 * (s2 * g) ** 2 / m), "precision": np.asarray(2 / m)}

    @property
    def _factors(self) -> tuple[Mean, Gamma]:
        return self.ascent.factors["mean"], self.ascent.factors["precision"]

    @property
    def distributions(self) -> dict[str, dist.Distribution]:  # type: ignore[override]
        mean, precision = self._factors
        return {
            "mean": distribution(dist.Normal, mean.location, np.sqrt(mean.variance)),
            "precision": precision.distribution,
        }

    def predictive(self) -> Predictive:
        """The next observation: ∫ N(m', s² + 1/τ) q(τ) dτ, by quadrature."""
        mean, precision = self._factors
        return normal_predictive(np.asarray(mean.location), np.asarray(mean.variance), precision)


def _log_normal(offset, variance):
    return -0.5 * (LOG_2PI + np.log(variance) + offset**2 / variance)
