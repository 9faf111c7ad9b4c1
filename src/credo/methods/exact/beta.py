"""Beta–Bernoulli and beta–binomial.

    p ~ Beta(a, b),  y_i | p ~ Bernoulli(p)  or  s_i | p ~ Binomial(n_i, p)
    p | y ~ Beta(a + s, b + n − s),  s = Σ s_i,  n = Σ n_i
    log p(y) = log B(a + s, b + n − s) − log B(a, b) + Σ log C(n_i, s_i)     (Murphy, 2012, eq. 3.22 and 5.71)

A Bernoulli sequence has no binomial coefficients: its order is part of the data.
"""

from dataclasses import dataclass, field

import numpy as np
import numpyro.distributions as dist
from numpy.typing import ArrayLike
from scipy.special import betaln

from credo.methods.exact import checks
from credo.methods.exact.family import NO_DATA, Family, Predictive, distribution, extend, settle
from credo.model.data import check_order
from credo.status import CredoError, Estimate


@dataclass(frozen=True)
class BetaBernoulli(Family):
    """A probability with a Beta(a, b) prior, seen through binary outcomes or binomial counts.

    Parameter name: ``probability``. Raises CredoError where a or b is not positive.

    >>> posterior = BetaBernoulli(1, 1).update([1, 0, 1]).update(successes=7, trials=10)
    >>> posterior.a, posterior.b
    (10.0, 5.0)
    """

    a: float = 1.0  # Beta(1, 1) is the uniform distribution
    b: float = 1.0
    log_evidence: Estimate = field(default=NO_DATA, kw_only=True)

    def __post_init__(self):
        settle(self, a=checks.positive("a", self.a), b=checks.positive("b", self.b))

    def update(
        self, y: ArrayLike | None = None, *, successes: ArrayLike | None = None, trials: ArrayLike | None = None
    ) -> "BetaBernoulli":
        """The posterior after binary outcomes ``y`` (N,), or after ``successes`` (N,) out of ``trials`` (N,) or ()."""
        if (y is None) == (successes is None) or (successes is None) != (trials is None):
            raise CredoError("BetaBernoulli.update takes binary y, or successes with trials: give one of the two.")
        if y is not None:
            outcomes = checks.vector("y", y)
            checks.inside("y", outcomes, (outcomes == 0) | (outcomes == 1), "0 or 1")
            return self._absorb(outcomes.sum(), len(outcomes), 0.0)
        check_order(successes=successes, trials=trials)
        s = checks.counts("successes", checks.vector("successes", successes))  # type: ignore[arg-type]
        n = _trials(trials)
        n = np.broadcast_to(n, s.shape) if len(n) == 1 else n
        checks.same_length("successes", s, "trials", n)
        checks.inside("successes", s, s <= n, "at most the number of trials")
        return self._absorb(s.sum(), n.sum(), log_choose(n, s).sum())

    def _absorb(self, s: float, n: float, log_coefficients: float) -> "BetaBernoulli":
        a, b = self.a + s, self.b + (n - s)
        increment = betaln(a, b) - betaln(self.a, self.b) + log_coefficients
        return BetaBernoulli(a, b, log_evidence=extend(self.log_evidence, increment))

    @property
    def distributions(self) -> dict[str, dist.Distribution]:  # type: ignore[override]
        return {"probability": distribution(dist.Beta, self.a, self.b)}

    def predictive(self, trials: ArrayLike | None = None) -> Predictive:
        """The next outcome (Bernoulli), or the successes in ``trials`` further trials (beta–binomial)."""
        if trials is None:
            return Predictive(distribution(dist.BernoulliProbs, self.a / (self.a + self.b)))
        n = _trials(trials).astype(np.int64)
        n = n if np.ndim(trials) else n[0]

        def density(s):
            return betaln(self.a + s, self.b + n - s) - betaln(self.a, self.b) + log_choose(n, s)

        return Predictive(distribution(dist.BetaBinomial, self.a, self.b, n), density)


def log_choose(n: ArrayLike, s: ArrayLike) -> np.ndarray:
    """log C(n, s)."""
    return -betaln(s + 1, n - s + 1) - np.log1p(n)  # type: ignore[operator]


def _trials(trials: ArrayLike | None) -> np.ndarray:
    return checks.counts("trials", checks.vector("trials", trials))  # type: ignore[arg-type]
