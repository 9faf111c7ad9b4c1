"""What is believed of a mixture of Gaussians after the data, and what can be asked of it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int
from scipy.special import gammaln, logsumexp

from credo.diagnose.pareto import proposal_figures
from credo.diagnose.verdict import judge
from credo.methods.vi.cavi.mixture.factors import LOG_2PI, NormalWishartFactor, PointFactor, log_det_of_root
from credo.methods.vi.cavi.mixture.priors import Units
from credo.methods.vi.cavi.mixture.responsibilities import ROWS_AT_ONCE, Rows, respond
from credo.methods.vi.cavi.mixture.rows import as_rows
from credo.methods.vi.cavi.mixture.weigh import weigh
from credo.posterior.posterior import as_key
from credo.status import CredoError, Estimate, Verdict

IN_USE = 0.5  # rows that a component expects to own
MOST_DRAWS, LEAST_DRAWS = 16_000, 1_000  # for the verdict
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
    which it meets at the end), ``restarts`` (where each start led, by rows as many as all), ``num_sweeps``,
    ``is_complete`` and ``seconds``. Components come in the order of their weights, largest first.

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
        self._q: _Components = (
            _Point(factor, self.statistics, units)
            if isinstance(factor, PointFactor)
            else _NormalWishart(factor, self.statistics, units)
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
        return judge({**fit.figures, **weighed}, fit.sentences, at_best=at_best)

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


class _Components(ABC):
    """q(π, μ, Λ) at its statistics; log densities in standard units, everything else in those of the data."""

    @abstractmethod
    def mean(self) -> dict[str, np.ndarray]: ...

    @abstractmethod
    def sd(self) -> dict[str, np.ndarray]: ...

    @abstractmethod
    def sample(self, rng: np.random.Generator, n: int) -> dict[str, np.ndarray]: ...

    @abstractmethod
    def log_density(self, z: Float[np.ndarray, "row dim"]) -> Float[np.ndarray, " row"]: ...


class _NormalWishart(_Components):
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


class _Point(_Components):
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
