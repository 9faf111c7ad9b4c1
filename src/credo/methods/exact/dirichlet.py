"""Dirichlet–categorical and Dirichlet–multinomial.

    π ~ Dirichlet(α),  y_i | π ~ Categorical(π)  or  c_i | π ~ Multinomial(n_i, π)
    π | y ~ Dirichlet(α + c),  c = Σ c_i                                     (Murphy, 2012, eq. 3.41 and 5.24)
    log p(y) = log B(α + c) − log B(α) + Σ log (n_i! / Π_k c_ik!)

Labels in a sequence have no multinomial coefficients: their order is part of the data.
"""

from dataclasses import dataclass, field

import numpy as np
import numpyro.distributions as dist
from numpy.typing import ArrayLike
from scipy.special import gammaln

from credo.methods.exact import checks
from credo.methods.exact.family import NO_DATA, Family, Predictive, distribution, extend, settle
from credo.status import CredoError, Estimate


@dataclass(frozen=True, eq=False)
class DirichletCategorical(Family):
    """Class probabilities with a Dirichlet(concentration) prior, seen through labels or counts.

    ``concentration`` is (K,), positive, K ≥ 2. Parameter name: ``probabilities``.

    >>> DirichletCategorical([1.0, 1.0, 1.0]).update([0, 2, 2]).update(counts=[4, 0, 1]).concentration
    array([6., 1., 4.])
    """

    concentration: np.ndarray
    log_evidence: Estimate = field(default=NO_DATA, kw_only=True)

    def __post_init__(self):
        alpha = checks.vector("concentration", self.concentration)
        if len(alpha) < 2:
            raise CredoError("concentration has one entry: give one for each of at least two classes.")
        settle(self, concentration=checks.inside("concentration", alpha, alpha > 0, "positive"))

    def update(self, y: ArrayLike | None = None, *, counts: ArrayLike | None = None) -> "DirichletCategorical":
        """The posterior after labels ``y`` (N,) in 0…K−1, or after multinomial ``counts`` (K,) or (N, K)."""
        if (y is None) == (counts is None):
            raise CredoError("DirichletCategorical.update takes labels y, or counts: give one of the two.")
        num_classes = len(self.concentration)
        if counts is None:
            labels = checks.vector("y", y)  # type: ignore[arg-type]
            checks.counts("y", labels)
            checks.inside("y", labels, labels < num_classes, f"a label below {num_classes}")
            return self._absorb(np.bincount(labels.astype(np.int64), minlength=num_classes), 0.0)
        table = checks.matrix("counts", np.atleast_2d(counts), num_classes)
        checks.counts("counts", table)
        log_coefficients = np.sum(gammaln(table.sum(axis=1) + 1)) - np.sum(gammaln(table + 1))
        return self._absorb(table.sum(axis=0), log_coefficients)

    def _absorb(self, c: np.ndarray, log_coefficients: float) -> "DirichletCategorical":
        prior, posterior = self.concentration, self.concentration + c
        increment = (
            np.sum(gammaln(posterior) - gammaln(prior))
            - (gammaln(posterior.sum()) - gammaln(prior.sum()))
            + log_coefficients
        )
        return DirichletCategorical(posterior, log_evidence=extend(self.log_evidence, increment))

    @property
    def distributions(self) -> dict[str, dist.Distribution]:  # type: ignore[override]
        return {"probabilities": distribution(dist.Dirichlet, self.concentration)}

    def predictive(self, trials: int | None = None) -> Predictive:
        """The next label (categorical; no mean), or the counts (K,) in ``trials`` trials (Dirichlet–multinomial)."""
        if trials is None:
            return Predictive(distribution(dist.CategoricalProbs, self.concentration / self.concentration.sum()))
        n = checks.counts("trials", checks.vector("trials", trials)).astype(np.int64)
        return Predictive(distribution(dist.DirichletMultinomial, self.concentration, n if np.ndim(trials) else n[0]))
