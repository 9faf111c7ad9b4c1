"""Gamma–Poisson.

λ ~ Gamma(a, b) (shape, rate),  y_i | λ ~ Poisson(λ e_i),  exposures e_i
λ | y ~ Gamma(a + Σ y_i, b + Σ e_i)                                    (Gelman et al., 2013, section 2.6)
log p(y) = a log b − a' log b' + log Γ(a') − log Γ(a) + Σ (y_i log e_i − log y_i!)
"""

from dataclasses import dataclass, field

import numpy as np
import numpyro.distributions as dist
from numpy.typing import ArrayLike
from scipy.special import gammaln, xlogy

from credo.methods.exact import checks
from credo.methods.exact.family import NO_DATA, Family, Predictive, distribution, extend, settle
from credo.model.data import check_order
from credo.status import Estimate


@dataclass(frozen=True)
class GammaPoisson(Family):
    """An event rate with a Gamma(a, b) prior (shape ``a``, rate ``b``), seen through counts.

    Parameter name: ``rate``. Raises CredoError where a or b is not positive.

    >>> posterior = GammaPoisson(2.0, 1.0).update([3, 5], exposure=[1.0, 2.0])
    >>> posterior.a, posterior.b
    (10.0, 4.0)
    """

    a: float
    b: float
    log_evidence: Estimate = field(default=NO_DATA, kw_only=True)

    def __post_init__(self):
        settle(self, a=checks.positive("a", self.a), b=checks.positive("b", self.b))

    def update(self, y: ArrayLike, *, exposure: ArrayLike = 1.0) -> "GammaPoisson":
        """The posterior after counts ``y`` (N,), each observed over an ``exposure`` (N,) or ()."""
        check_order(y=y, exposure=exposure)
        y = checks.counts("y", checks.vector("y", y))
        e = _exposure(exposure)
        e = np.broadcast_to(e, y.shape) if len(e) == 1 else e
        checks.same_length("y", y, "exposure", e)
        a, b = self.a + y.sum(), self.b + e.sum()
        # log(b/b') first: a log b − a' log b' would cancel where b is large
        increment = (
            self.a * np.log(self.b / b)
            + (gammaln(a) - gammaln(self.a) - y.sum() * np.log(b))
            + np.sum(xlogy(y, e) - gammaln(y + 1))
        )
        return GammaPoisson(a, b, log_evidence=extend(self.log_evidence, increment))

    @property
    def distributions(self) -> dict[str, dist.Distribution]:  # type: ignore[override]
        return {"rate": distribution(dist.Gamma, self.a, self.b)}

    def predictive(self, *, exposure: ArrayLike = 1.0) -> Predictive:
        """The count over a further ``exposure``: negative binomial."""
        e = _exposure(exposure)
        e = e if np.ndim(exposure) else e[0]

        def density(y):
            log_mass = gammaln(self.a + y) - gammaln(self.a) - gammaln(y + 1)
            return log_mass - self.a * np.log1p(e / self.b) - y * np.log1p(self.b / e)

        return Predictive(distribution(dist.GammaPoisson, self.a, self.b / e), density)


def _exposure(exposure: ArrayLike) -> np.ndarray:
    e = checks.vector("exposure", exposure)
    return checks.inside("exposure", e, e > 0, "positive")
