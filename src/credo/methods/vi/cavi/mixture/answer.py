"""What is believed of a mixture of Gaussians after the data, and what can be asked of it."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from credo.arguments import as_key
from credo.diagnose.pareto import proposal_figures
from credo.diagnose.verdict import all_pass, judge
from credo.methods.vi.cavi.mixture.components import Components, NormalWishartComponents, PointComponents
from credo.methods.vi.cavi.mixture.factors import NormalWishartFactor, PointFactor
from credo.methods.vi.cavi.mixture.priors import Units
from credo.methods.vi.cavi.mixture.responsibilities import ROWS_AT_ONCE, Rows, respond
from credo.methods.vi.cavi.mixture.rows import as_rows
from credo.methods.vi.cavi.mixture.weigh import weigh
from credo.status import CredoError, Estimate, Verdict

IN_USE = 0.5  # rows that a component expects to own
MOST_DRAWS, LEAST_DRAWS = 16_000, 1_000  # for the verdict
AS_MODEL = (
    "NUTS(), Importance() and other families take a credo.Model: write this mixture as one, its components ordered, or "
    "take fewer components here."
)
RESPONSIBILITIES = 5 * 10**7  # of all draws: about a second


class Fit(NamedTuple):
    """What a fit knows for the verdict: its figures and sentences, and the rows in standard units."""

    x: Float[np.ndarray, "row dim"]
    figures: Mapping[str, float]
    sentences: tuple[str, ...]
    is_converged: bool


class MixturePosterior:
    """A fitted mixture of Gaussians: weights, means and covariances of K components, with all that q says of them.

    ``verdict``, ``log_evidence`` (a lower bound; None for a point) and ``info`` are those of every posterior: ``info``
    has ``elbo_path`` (2, sweeps) (their numbers, and the nats after each; for a point EM's bound of the log likelihood,
    which it meets at the end where there is no ridge, and lies below by the ridge's penalty else), ``restarts`` (where
    each start led, by rows as many as all), ``num_sweeps``, ``is_complete`` and ``seconds``. Components come in the
    order of their weights, largest first.

    The factors assume that labels and parameters are independent, and cover one of K! orders of the components: where
    components overlap, sds are too small, as the verdict says. Arrays are NumPy's, in the units of the data. The rows
    are kept for the verdict; a file holds the verdict and not the rows.
    """

    def __init__(
        self,
        factor: NormalWishartFactor | PointFactor,
        statistics: Float[np.ndarray, "K P"],
        units: Units,
        *,
        info: Mapping[str, Any],
        log_evidence: Estimate | None = None,
        fit: Fit | None = None,
    ):
        self.factor, self.units = factor, units
        self.statistics = statistics[np.argsort(-statistics[:, 0], kind="stable")]
        self.info, self.log_evidence, self._fit = dict(info), log_evidence, fit
        self._q: Components = (
            PointComponents(factor, self.statistics, units)
            if isinstance(factor, PointFactor)
            else NormalWishartComponents(factor, self.statistics, units)
        )

    @cached_property
    def verdict(self) -> Verdict:
        """Whether the sweeps converged, starts agree, and importance weights find q right; worked out when asked for.

        Where rows are so many that weights would take more than about a second, they are left out, and the verdict is
        doubtful: ``examine`` takes the time.
        """
        return self.examine()

    def examine(self, num_draws: int | None = None, *, key=0) -> Verdict:
        """The verdict with ``num_draws`` draws of q weighed against the model, each a pass through the rows.

        Default: as many as take about a second, or none. CredoError for a posterior from a file, without its rows.
        """
        if self._fit is None:
            raise CredoError("This mixture came from a file, without its rows: fit again to examine it anew.")
        fit = self._fit
        if num_draws is None:
            affordable = RESPONSIBILITIES // max(1, len(fit.x) * self.num_components)
            num_draws = min(MOST_DRAWS, affordable) if affordable >= LEAST_DRAWS else 0
        if isinstance(self.factor, PointFactor):
            sentences = (*fit.sentences, "A point says nothing of its own uncertainty.")
            return judge(fit.figures, sentences, at_best="doubtful")
        if num_draws == 0:
            unseen = (
                f"With {len(fit.x):,} rows q was not held against the model: examine(1_000) does, in as many passes. "
                "Where components overlap, sds are too small."
            )
            return judge(fit.figures, (*fit.sentences, unseen), at_best="doubtful")
        rng, rows = generator_of(key), Rows(fit.x, self.factor.features)
        u, log_weights = weigh(self.factor, self.statistics, rows, rng, num_draws, self.counts >= IN_USE)
        weighed = proposal_figures((u - u.mean(axis=0)) / u.std(axis=0), log_weights)
        at_best = "pass" if fit.is_converged else "doubtful"
        sentences = fit.sentences if all_pass(weighed) else (*fit.sentences, AS_MODEL)
        return judge({**fit.figures, **weighed}, sentences, at_best=at_best)

    @property
    def num_components(self) -> int:
        """K, those not in use included."""
        return len(self.statistics)

    @property
    def counts(self) -> Float[np.ndarray, " K"]:
        """The rows that each component is expected to own; they sum to N."""
        return self.statistics[:, 0].copy()

    @property
    def num_components_used(self) -> int:
        """Components that expect to own half a row or more; the others have emptied themselves."""
        return int(np.sum(self.counts >= IN_USE))

    def mean(self) -> dict[str, np.ndarray]:
        """Means of q: ``weights`` (K,), ``means`` (K, D), ``covariances`` (K, D, D) or, diagonal, ``variances`` (K, D).

        inf or NaN where an integral does not exist: a covariance has a mean above D + 1 degrees of freedom.
        """
        return self._q.mean()

    def sd(self) -> dict[str, np.ndarray]:
        """Standard deviations of q, as ``mean``; zeros for a point."""
        return self._q.sd()

    def sample(self, key, n: int) -> dict[str, np.ndarray]:
        """``n`` independent draws of the parameters, as ``mean`` with a leading axis. ``key``: int or JAX key."""
        return self._q.sample(generator_of(key), n)

    def responsibilities(self, x) -> Float[np.ndarray, "row K"]:
        """The probability of each component for each row of ``x`` (rows, D) under q(z)."""
        z = self.units.standard(as_rows(x, self._dim))
        coefficients, _ = self.factor.coefficients(self.statistics)
        parts = (self.factor.features.of(z[i : i + ROWS_AT_ONCE]) for i in range(0, len(z), ROWS_AT_ONCE))
        return np.concatenate([respond(coefficients, lines)[0].T for lines in parts])

    def labels(self, x) -> Int[np.ndarray, " row"]:
        """The most probable component of each row."""
        return np.argmax(self.responsibilities(x), axis=1)

    def log_density(self, x) -> Float[np.ndarray, " row"]:
        """log p(x* | D), the posterior predictive density, at the rows of ``x``: a mixture of Student t under q.

        For a point it is the density of the mixture at it.
        """
        z = self.units.standard(as_rows(x, self._dim))
        parts = [self._q.log_density(z[i : i + ROWS_AT_ONCE]) for i in range(0, len(z), ROWS_AT_ONCE)]
        return np.concatenate(parts) - self.units.log_jacobian

    @property
    def _dim(self) -> int:
        return self.factor.features.dim

    def save(self, path) -> None:
        """Write this posterior to a file of arrays and text; ``MixturePosterior.load`` reads it."""
        from credo.methods.vi.cavi.mixture.files import save

        save(self, path)

    @staticmethod
    def load(path) -> "MixturePosterior":
        """The posterior in the file ``path``; CredoError where it is missing, damaged or no mixture's."""
        from credo.methods.vi.cavi.mixture.files import load

        return load(path)

    def __repr__(self) -> str:
        evidence = f", log evidence {self.log_evidence}" if self.log_evidence else ""
        used = f"{self.num_components_used} of {self.num_components} components in use"
        return f"<MixturePosterior: {used}{evidence}, {self.verdict.status}>"


def generator_of(key) -> np.random.Generator:
    """NumPy's generator, from an int or a JAX key."""
    return np.random.default_rng(np.asarray(jax.random.key_data(as_key(key))))
