"""A Bayesian mixture of Gaussians by coordinate ascent (Attias 2000; Bishop 2006, section 10.2), EM as a special case.

    q(z, π, μ, Λ) = Π_n q(z_n) · q(π) Π_k q(μ_k, Λ_k)

One sweep updates the responsibilities, then the parameters (sweep.py); what is believed of the parameters (factors.py)
decides whether it is variational Bayes or EM. Where a mixture ends depends on where it begins: search.py.
"""

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from credo.methods.settings import check_settings
from credo.methods.vi.cavi.mixture.answer import Fit, MixturePosterior, generator_of
from credo.methods.vi.cavi.mixture.factors import PointFactor
from credo.methods.vi.cavi.mixture.priors import Belief, NormalWishart, Units
from credo.methods.vi.cavi.mixture.responsibilities import Rows
from credo.methods.vi.cavi.mixture.rows import as_rows
from credo.methods.vi.cavi.mixture.search import starts
from credo.methods.vi.cavi.mixture.start import one_hot
from credo.methods.vi.cavi.mixture.statistics import Diagonal, Full
from credo.methods.vi.cavi.mixture.stochastic import Learned, Stochastic
from credo.methods.vi.cavi.mixture.sweep import climb
from credo.methods.vi.cavi.sweeps import Ascent, best_of
from credo.status import CredoError, Estimate

UNEVEN = 1e-3  # of responsibilities given: those in single precision, or printed, do not sum to 1 exactly
SAME = 1e-5  # of |ELBO|: bounds this near are of the same optimum


@dataclass(frozen=True)
class GaussianMixture:
    """x_n ~ Σ_k π_k N(μ_k, Λ_k⁻¹) with ``num_components`` K, of which those not needed empty themselves.

    ``prior``: ``NormalWishart(…)`` for variational Bayes, or ``PointMass()`` for maximum likelihood by EM.
    ``covariance``: ``Full()`` or ``Diagonal()``. ``num_starts`` starts by k-means are climbed, on ``num_start_rows``
    random rows where there are more, or 250 a component if that is more, and the best of them continues on all. Each
    begins with 2 K components, which are merged where that raises the bound, and under ``PointMass`` until K are left.
    ``tolerance``: nats that further sweeps may gain, or, if that is more, ``relative_tolerance`` times |ELBO|.
    ``updates``: ``Stochastic(…)`` learns from minibatches instead.

    Sources: Attias (2000); Bishop (2006), section 10.2; Hoffman, Blei, Wang & Paisley (2013).

    >>> import numpy as np, credo
    >>> rng = np.random.default_rng(0)
    >>> x = np.concatenate([rng.normal(-5, 1, (100, 2)), rng.normal(5, 1, (200, 2))])
    >>> mixture = credo.vi.cavi.GaussianMixture(6).fit(x)
    >>> mixture.num_components_used, mixture.mean()["weights"][:2].round(2)
    (2, array([0.67, 0.33]))
    """

    num_components: int
    prior: Belief = field(default_factory=NormalWishart)
    covariance: Full | Diagonal = field(default_factory=Full, kw_only=True)
    updates: Stochastic | None = field(default=None, kw_only=True)
    num_starts: int = field(default=4, kw_only=True)
    num_start_rows: int = field(default=5_000, kw_only=True)
    tolerance: float = field(default=1e-4, kw_only=True, metadata={"at_least": 0.0})
    relative_tolerance: float = field(default=1e-9, kw_only=True, metadata={"at_least": 0.0})
    max_sweeps: int = field(default=1_000, kw_only=True)

    def __post_init__(self):
        for name in ("num_components", "num_starts", "num_start_rows", "max_sweeps"):
            value = getattr(self, name)
            if not (isinstance(value, int | np.integer) and value >= 1):
                raise CredoError(f"{name} is {value!r}: give a whole number from 1.")
        for name, kind in (("prior", Belief), ("covariance", Full | Diagonal), ("updates", Stochastic | None)):
            if not isinstance(getattr(self, name), kind):
                raise CredoError(
                    f"{name} is {getattr(self, name)!r}: give a prior such as NormalWishart() or PointMass(), "
                    "covariance=Full() or Diagonal(), and updates=Stochastic(…) or None."
                )
        check_settings(self)

    def fit(self, x, *, key=0, start=None, time_limit: float | None = None) -> MixturePosterior:
        """The posterior given rows ``x`` (N, D), finite.

        ``start``: labels (N,), responsibilities (N, K), or a ``MixturePosterior``, which is continued, prior included;
        else ``num_starts`` starts drawn by ``key`` (int or JAX key). ``time_limit``: seconds. CredoError where x is no
        table of finite numbers, a start does not fit it, or, under ``PointMass``, a component closes in on few rows.
        """
        begun, x = time.monotonic(), as_rows(x)
        deadline = np.inf if time_limit is None else begun + time_limit
        rng = generator_of(key)
        features = self.covariance.features(x.shape[1])
        is_continued = isinstance(start, MixturePosterior)
        if is_continued:
            self._check_continued(start, features, x)
            units, factor = start.units, start.factor
        else:
            units = Units.of(x)
            factor = self.prior.factor(features, self.num_components, units.standard(x), units)
        with Rows(units.standard(x), features) as rows:
            if is_continued:
                statistics, restarts = start.statistics, np.zeros(0)
            elif start is not None:
                statistics, restarts = rows.collect(self._as_responsibilities(start, len(x))), np.zeros(0)
            else:
                best = best_of(
                    starts(
                        factor,
                        rows,
                        self.num_components,
                        self.num_starts,
                        self.num_start_rows,
                        rng,
                        max_sweeps=self.max_sweeps,
                        deadline=deadline,
                    )
                )
                statistics, restarts = best.factors["responsibilities"].statistics, best.restarts
            learned = None
            if self.updates is not None:
                step = start.info.get("num_steps", 0) if is_continued else 0
                running = start.info.get("running", statistics) if is_continued else statistics
                learned = self.updates.run(factor, rows, running, step, key, deadline)
                statistics = learned.statistics
            ascent = climb(
                factor,
                rows,
                statistics,
                tolerance=self.tolerance,
                relative_tolerance=self.relative_tolerance,
                max_sweeps=self.max_sweeps if self.updates is None else self.updates.num_last_sweeps,
                deadline=deadline,
            )
        return self._answer(factor, units, ascent, restarts, rows.x, time.monotonic() - begun, learned)

    def _as_responsibilities(self, start, num_rows: int) -> np.ndarray:
        K, array = self.num_components, np.asarray(start)
        if array.shape == (num_rows,) and np.issubdtype(array.dtype, np.integer):
            if array.min() < 0 or array.max() >= K:
                raise CredoError(f"start holds labels from {array.min()} to {array.max()}: they go from 0 to {K - 1}.")
            return one_hot(array, K)
        if array.shape != (num_rows, K) or not np.all(np.isfinite(array)) or np.any(array < 0):
            raise CredoError(
                f"start has shape {array.shape}: give whole labels ({num_rows},), responsibilities ({num_rows}, {K}) "
                "that are finite and not negative, or a MixturePosterior."
            )
        total = array.sum(axis=1)
        if not np.allclose(total, 1, atol=UNEVEN):
            row = int(np.argmax(np.abs(total - 1)))
            raise CredoError(f"The responsibilities of row {row} in start sum to {total[row]:.3g}: make every row's 1.")
        return array.astype(float)

    def _check_continued(self, start: MixturePosterior, features, x) -> None:
        if start.num_components != self.num_components or start.factor.features != features:
            raise CredoError(
                f"start is a mixture of {start.num_components} components over {start.factor.features.dim} columns; "
                f"this one has {self.num_components} over {x.shape[1]}, covariance {type(self.covariance).__name__}(). "
                "Continue with the same."
            )

    def _answer(self, factor, units, ascent: Ascent, restarts, x, seconds, learned) -> MixturePosterior:
        per_row = len(x) * units.log_jacobian
        path = ascent.elbo_path - per_row
        is_point = isinstance(factor, PointFactor)
        figures = {
            "elbo": float(path[-1]),
            "elbo_drift": ascent.remaining if np.isfinite(ascent.remaining) else np.nan,
            "num_iterations": ascent.num_sweeps,
        }
        if len(restarts) > 1:  # in standard units, as they were climbed
            near = int(np.sum(restarts >= restarts.max() - SAME * abs(restarts.max())))
            figures |= {"num_best_starts": near, "elbo_spread": float(np.ptp(restarts))}
        sentences = []
        if ascent.is_cut_off or (not ascent.is_converged and self.updates is None):
            why = "The time limit came" if ascent.is_cut_off else "max_sweeps ended the fit"
            sentences.append(f"{why} after {ascent.num_sweeps:,} sweeps, before the bound had converged.")
        return MixturePosterior(
            factor,
            ascent.factors["responsibilities"].statistics,
            units,
            info={
                "elbo_path": np.stack([np.arange(len(path)), path]),
                "restarts": restarts - per_row,
                "num_sweeps": ascent.num_sweeps,
                "is_complete": not ascent.is_cut_off,
                "seconds": seconds,
                **_of_batches(learned, per_row),
            },
            log_evidence=None if is_point else Estimate(float(path[-1]), 0.0, "lower bound"),
            fit=Fit(x, figures, tuple(sentences), not sentences),
        )


def _of_batches(learned: Learned | None, per_row: float) -> dict[str, Any]:
    if learned is None:
        return {}
    return {"num_steps": learned.step, "running": learned.running, "batch_bounds": learned.bounds - per_row}
