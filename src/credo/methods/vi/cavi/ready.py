"""What every ready model of coordinate ascent answers, in the manner of the exact families.

``update`` gathers the data; the sweeps run when an answer is first asked for, over all data so far, so that any split
of the data gives the same answer. (To take a factorised posterior as the next prior would not.)
"""

import abc
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from jaxtyping import Float
from scipy.linalg import qr

from credo.algorithm import Options
from credo.diagnose.moments import Weighed, figures_of, shifts
from credo.diagnose.pareto import judged_shape, smooth
from credo.diagnose.rules import RULES
from credo.diagnose.verdict import judge
from credo.methods.exact import checks
from credo.methods.exact.family import NO_DATA, Family, settle
from credo.methods.vi.cavi.answer import answer
from credo.methods.vi.cavi.sweeps import Ascent, unfinished
from credo.model.data import Rows
from credo.model.target import Target
from credo.posterior.posterior import Posterior
from credo.status import CredoError, Estimate, Verdict

MOST_DRAWS = 32_000  # of the factors, for the verdict: they see an sd that is off by 10 % under heavy tails
LEAST_DRAWS = 1_000
NUM_DRAWS = 2_000  # a round, of those by which a fit is held against its target
MULTIPLICATIONS = 1e9  # that they may take: about a second


@dataclass(frozen=True, eq=False)
class ReadyModel(Family):
    """The interface of the ready models, which are methods of ``credo.fit`` as well.

    ``tolerance``: nats that further sweeps may gain; ``max_sweeps``: their limit. ``statistics``: what is known of the
    data, None before any.
    """

    tolerance: float = field(default=1e-8, kw_only=True)
    max_sweeps: int = field(default=10_000, kw_only=True)
    statistics: Any = field(default=None, kw_only=True, repr=False)

    own_start: ClassVar[str] = "finds its own start"

    def __post_init__(self):
        settle(self, tolerance=checks.number("tolerance", self.tolerance))
        is_whole = isinstance(self.max_sweeps, int | np.integer)
        if self.tolerance < 0 or not (is_whole and self.max_sweeps >= 1):
            raise CredoError(
                f"tolerance={self.tolerance:g} and max_sweeps={self.max_sweeps}: give nats from 0, and whole sweeps "
                "from 1."
            )

    def fit(self, target: Target, *, key, start, options: Options) -> Posterior:
        """What ``credo.fit(target, model)`` asks for: the factors as a ``Posterior`` of the user's own ``Model``.

        Its parameters are named as here, and its priors and likelihood are these: the verdict says where the ELBO is
        not that of the target. The data are the target's. CredoError where the model has data already, for weights
        of rows, and for parameters of other names, shapes or supports.
        """
        target, name, deadline = target.flat(), type(self).__name__, options.deadline()
        if self.statistics is not None:
            raise CredoError(f"{name}() has data already, and a fit takes those of its target: give it without any.")
        rows = target.cast(np.float64).rows()
        if rows.weights is not None:
            raise CredoError(f"{name}() counts every row once, and the target has weights: use ADVI().")
        model = self._on(rows)
        vars(model)["ascent"] = ascent = model.climb(deadline)  # where the property keeps what it has no limit for
        options = options.until(deadline)
        return answer(ascent, model.distributions, target, key=key, num_draws=NUM_DRAWS, options=options)

    def _on(self, rows: Rows) -> Self:
        """This with the data of a target."""
        return self.update(rows.x, rows.y)  # type: ignore[attr-defined]  # every ready model has one

    @abc.abstractmethod
    def climb(self, deadline: float = np.inf) -> Ascent:
        """Coordinate ascent on ``statistics``. ``deadline``: by ``time.monotonic()``."""

    @property
    @abc.abstractmethod
    def work(self) -> int:
        """Multiplications that one draw takes."""

    @abc.abstractmethod
    def weigh(
        self, generator: np.random.Generator, n: int
    ) -> tuple[Float[np.ndarray, "n dim"], Float[np.ndarray, " n"]]:
        """``n`` draws of the factors, and log p(y, θ) − log q(θ) there.

        Latent variables are not among them: p(y, θ) has them integrated out.
        """

    @abc.abstractmethod
    def linear_response(self) -> dict[str, Float[np.ndarray, "..."]]:
        """Covariances by name that see what the factors leave out (Giordano, Broderick & Jordan 2018, eq. 14).

        How the means of the factors move when the log joint is tilted by a parameter, all factors moving along: for an
        exact posterior that is its covariance. They are (D, D) for D entries, and a number for a number.
        """

    def _gathered(self, statistics: Any) -> Self:
        return replace(self, statistics=statistics)

    @cached_property
    def ascent(self) -> Ascent:
        """The sweeps: factors, ELBO after each, and what is left to gain. CredoError before any data."""
        if self.statistics is None:
            raise CredoError("There is nothing to fit before any data: call update(…) first.")
        return self.climb()

    @property
    def elbo_path(self) -> Float[np.ndarray, " sweeps"]:
        """The ELBO after each sweep, nats."""
        return self.ascent.elbo_path

    @property
    def log_evidence(self) -> Estimate:  # type: ignore[override]
        """The ELBO, an exact lower bound of log p(y); 0 before any data."""
        return NO_DATA if self.statistics is None else Estimate(self.ascent.elbo, 0.0, "lower bound")

    @cached_property
    def verdict(self) -> Verdict:
        """Whether the sweeps converged, and whether importance weights find the factors right."""
        num_draws = int(np.clip(MULTIPLICATIONS / self.work, LEAST_DRAWS, MOST_DRAWS))
        values, log_weights = self.weigh(np.random.default_rng(0), num_draws)
        smoothed = smooth(log_weights)
        k_hat = float(judged_shape(log_weights, smoothed.k_hat))
        weighed = {"pareto_k": k_hat}
        if k_hat <= RULES["pareto_k"].doubtful:  # beyond it the weights move nothing that could be believed
            z = (values - values.mean(axis=0)) / values.std(axis=0)
            weighed |= figures_of(shifts(Weighed(z, smoothed.log_weights, z, np.eye(z.shape[1]))))
        figures = {
            "elbo_drift": self.ascent.remaining,
            **weighed,
            "elbo": self.ascent.elbo,
            "num_iterations": self.ascent.num_sweeps,
        }
        is_done = self.ascent.is_converged
        return judge(figures, unfinished(self.ascent), at_best="pass" if is_done else "doubtful")

    def __repr__(self) -> str:
        shown = [f.name for f in fields(self) if f.repr and not f.kw_only]
        settings = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{type(self).__name__}({settings})" + ("" if self.statistics is None else " with data")


def lower_root(half: Float[np.ndarray, "dim dim"]) -> Float[np.ndarray, "dim dim"]:
    """Lower triangular L with L Lᵀ = half halfᵀ and a positive diagonal."""
    upper = np.asarray(qr(half.T, mode="r")[0])
    return (upper * np.where(np.diagonal(upper) < 0, -1.0, 1.0)[:, None]).T
