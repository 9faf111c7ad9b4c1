"""Deterministic automatic differentiation variational inference (Giordano, Ingram & Broderick 2024, JMLR 25).

    maximise  F(ξ) = (1/K) Σ_k log p(T_ξ(z_k), D) + H(q_ξ)   with z_1 … z_K drawn once and kept

F is a smooth function like any other: Newton's method in a trust region finds its maximum to the last digits, in a few
steps from the mode, and derivatives at the maximum give what no stochastic ascent can: covariances by linear response,
which repair mean-field's, and the error that the draws have left, by which their number is judged and raised.
"""

import math
import time
from dataclasses import dataclass, field

import numpy as np

from credo.algorithm import Options, stream
from credo.diagnose.endless import improper_sentence
from credo.diagnose.verdict import judge
from credo.memory import Need, require, require_count
from credo.methods.optimise.newton import Status
from credo.methods.particles.elsewhere import Climber
from credo.methods.particles.importance import evaluations_at_once, has_evidence
from credo.methods.particles.reach import of_round, reach
from credo.methods.vi.deterministic.composed import bytes_of_vectors, fit_composed
from credo.methods.vi.deterministic.derivatives import AtPositions
from credo.methods.vi.deterministic.draws import fixed_draws
from credo.methods.vi.deterministic.fitted import Fitted
from credo.methods.vi.deterministic.small import (
    bytes_of_hessians,
    fit_small,
    has_curvature,
    is_small,
    most_draws,
    weigh,
    weigh_white,
)
from credo.methods.vi.families.family import Family
from credo.methods.vi.families.full_rank import FullRank
from credo.methods.vi.families.mean_field import MeanField
from credo.methods.vi.faults import endless_sentence
from credo.methods.vi.measure import assess, measure
from credo.methods.vi.needs import of_draws, rounds_at_once
from credo.methods.vi.start import Start, density_of
from credo.model.target import Target
from credo.posterior.kinds import Gaussian, Kind
from credo.posterior.posterior import Posterior
from credo.status import CredoError, Verdict

NUM_DRAWS = 30  # Giordano, Ingram & Broderick's
MOST_MORE = 32  # times the first draws
WHITENING = 8  # times as many draws are taken where they then average every quadratic exactly
LOSS = 0.05  # nats: half of what the verdict allows (elbo_drift)
ESCAPE = 1e6  # growth of a standard deviation since the start


@dataclass(frozen=True)
class DADVI:
    """Variational inference with fixed draws and Newton's method: a ``Gaussian`` over unconstrained positions.

    ``family``: ``MeanField()``, ``FullRank()`` or another. ``linear_response``: whether the posterior has the
    covariances by linear response, which are dense and exact on Gaussian targets, in place of the family's own; None
    for yes with ``MeanField()`` where Hessians in full are cheap (about K dim² N < 3 · 10¹⁰) and fit into memory, else
    no. ``num_draws``:
    fixed draws K at first, in pairs ±z; None for 30, or four a dimension for a family with correlations, if that is
    more. ``is_whitened``: draws that average every quadratic exactly, if there are two or more a dimension; fewer get
    unit mean squares. ``tolerance``: the standard error, in posterior sds, that fixed draws may leave to a mean (or to
    the log of one of the family's sds, where these are reported); more draws are taken, 32 times as many at most, until
    it is met and they cost less than 0.05 nats; ``math.inf``: never. ``max_steps``: of Newton's method.
    ``num_final_draws``: fresh draws by which ELBO and k̂ of the answer are known.

    ``info``, over coordinates of the unconstrained position: ``family_sd`` and ``linear_response_sd`` (dim,), None
    where not computed, and ``error_of_mean``, ``error_of_log_sd`` (dim,), standard errors of the family's optimum by
    the draws being fixed, in sds and in logs; ``draws_loss``, nats of the ELBO that this costs the family's optimum,
    expected; ``num_fixed_draws``, ``fixed_elbo`` (the maximum of F), ``elbo_path``,
    ``num_steps``, ``num_gradients`` (a product with a Hessian counts as one). The evidence is the lower bound that the
    reported Gaussian gives. Raises CredoError for settings that cannot be.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"rate": dist.Gamma(2.0, 1.0)}, lambda params, x: dist.Poisson(params["rate"]))
    >>> posterior = credo.fit(model.given(y=np.array([3, 5, 1, 4])), credo.DADVI())
    >>> round(float(posterior.mean()["rate"]), 1), posterior.log_evidence.kind
    (3.0, 'lower bound')
    """

    family: Family = field(default_factory=MeanField)
    linear_response: bool | None = None
    num_draws: int | None = field(default=None, metadata={"at_least": 4})
    is_whitened: bool = True
    tolerance: float = 0.05
    max_steps: int = field(default=100, metadata={"at_least": 1})
    num_final_draws: int = field(default=2_000, metadata={"at_least": 1})

    def fit(self, target: Target, *, key, start, options: Options) -> Posterior:
        target = target.flat()
        deadline = options.deadline()
        family = self.family.bound(target.structure)

        def need(num_draws: int) -> Need:
            return Need(f"DADVI(num_final_draws={num_draws})", of_draws(num_draws, target.dim))

        require_count(need, self.num_final_draws, f"{target.dim:,} parameters", options.max_memory)
        fitted = self._fitted(target, family, key, start, options, deadline)
        q, reported = (fitted.q, family) if fitted.responding is None else (fitted.responding, FullRank())
        measured = self._measured(q, reported, target, fitted.program, stream(key, 1), options, deadline)
        figures = {
            "elbo_drift": fitted.lacks + fitted.loss,
            "draws_error": float(np.max(fitted.judged_errors)),
            "elbo_error": measured.elbo.error,
            **measured.figures,
            "elbo": measured.elbo.value,
            "num_iterations": len(fitted.path),
        }
        is_complete, improper = fitted.status is not Status.TIME, _improper(target, fitted, family)
        return Posterior(
            q,
            target,
            verdict=self._verdict(figures, fitted, family, improper, is_complete),
            info={
                "num_gradients": fitted.num_gradients,
                "is_complete": is_complete,
                "num_steps": len(fitted.path),
                "num_fixed_draws": fitted.num_draws,
                "fixed_elbo": fitted.value,
                "elbo_path": np.stack([np.arange(len(fitted.path)), np.fmax.accumulate(fitted.path)]),
                "family_sd": np.sqrt(np.asarray(family.variances(fitted.q))),
                "linear_response_sd": None if fitted.response_variances is None else np.sqrt(fitted.response_variances),
                "error_of_mean": fitted.error_of_mean,
                "error_of_log_sd": fitted.error_of_log_sd,
                "draws_loss": fitted.loss,
            },
            log_evidence=measured.elbo if has_evidence(target) and improper is None else None,
        )

    def _fitted(self, target: Target, family: Family, key, start, options: Options, deadline: float) -> Fitted:
        num_first = num_pairs = self._num_pairs(family, target.dim)
        wants_response = self.linear_response is True
        if wants_response and not has_curvature(family, target.dim):
            raise CredoError(
                f"Linear response forms the curvature of {type(family).__name__}() in {target.dim} dimensions: it "
                "serves MeanField() up to 750 and FullRank() up to 53. Leave linear_response out."
            )
        if wants_response:
            self._check_response(target.dim, family, 2 * num_pairs, options.max_memory)

        def draw(num_pairs: int, dim: int) -> np.ndarray:
            return fixed_draws(stream(key, 0), num_pairs, dim, is_whitened=self.is_whitened)

        def more_pairs(fitted: Fitted) -> int | None:
            most = num_first * MOST_MORE
            if wants_response or fitted.program is not None:
                most = min(most, most_draws(target.dim, options.max_memory) // 2)
            return self._more_pairs(fitted, most, deadline)

        options = options.until(deadline)
        begun = None
        if not is_small(family, target, 2 * num_pairs, options.max_memory):
            fitted = fit_composed(
                target,
                family,
                draw,
                num_pairs,
                key=key,
                start=start,
                options=options,
                more_pairs=more_pairs,
                max_steps=self.max_steps,
            )
            if not wants_response:
                return fitted
            begun = Start(fitted.q, fitted.num_gradients, fitted.free)
            num_pairs = fitted.num_draws // 2
        return fit_small(
            target,
            family,
            draw,
            num_pairs,
            key=key,
            start=start,
            options=options,
            more_pairs=more_pairs,
            linear_response=self.linear_response,
            max_steps=self.max_steps,
            begun=begun,
        )

    def _check_response(self, dim: int, family: Family, num_draws: int, max_memory: int | None) -> None:
        wanted = Need(f"Linear response with {num_draws:,} draws", bytes_of_hessians(num_draws, dim))
        less = Need("linear_response=False", bytes_of_vectors(family, dim, num_draws * dim))
        require(wanted, f"{dim:,} parameters", max_memory, [less])

    def _measured(self, q: Kind, family: Family, target: Target, program: AtPositions | None, key, options, deadline):
        """By the program that is compiled already, if it holds the density."""
        if program is None or not isinstance(q, Gaussian):
            at_once = evaluations_at_once(target, options.max_memory)
            return measure(
                q, family, target, key, self.num_final_draws, at_once, deadline, max_memory=options.max_memory
            )
        objective = density_of(target)

        def gradient(u: np.ndarray) -> np.ndarray:
            return program.derivatives(objective.function, target, u, with_hessians=False).gradients

        return assess(
            lambda i: weigh(program, target, q, stream(key, i), self.num_final_draws, deadline),
            gradient,
            q,
            target,
            deadline,
            lambda i: reach(
                lambda z: weigh_white(program, target, q, z),
                i,
                num_draws=of_round(self.num_final_draws, target.dim),
                dim=target.dim,
                key=key,
            ),
            Climber(objective.function, objective.args, program),
            rounds_at_once(self.num_final_draws, target.dim, options.max_memory),
        )

    def _num_pairs(self, family: Family, dim: int) -> int:
        if not self.tolerance > 0:
            raise CredoError(f"tolerance is {self.tolerance:g}: give a positive number of posterior sds.")
        if self.num_draws is None:
            return max(NUM_DRAWS // 2, 2 * dim if family.has_correlations else 0)
        num_pairs = -(-self.num_draws // 2)
        if isinstance(family, FullRank) and num_pairs < dim:
            raise CredoError(
                f"{self.num_draws} fixed draws leave directions of {dim} dimensions unseen, in which a full covariance "
                f"would grow without end: give num_draws={2 * dim} or more, or leave it out."
            )
        return num_pairs

    def _more_pairs(self, fitted: Fitted, most: int, deadline: float) -> int | None:
        """How many pairs of draws bring errors and loss down to their bounds; None where they are, or no more will be
        taken. Squares of errors and the loss fall as 1/P, and by far more where draws become whitened."""
        num_pairs, dim = fitted.num_draws // 2, len(fitted.error_of_mean)
        if self.tolerance == math.inf:
            return None
        excess = max((float(np.max(fitted.judged_errors)) / self.tolerance) ** 2, fitted.loss / LOSS)
        if not fitted.status.is_converged or not excess > 1 or num_pairs >= most or time.monotonic() > deadline:
            return None
        wanted = math.ceil(num_pairs * max(2.0, 1.2 * min(excess, MOST_MORE)))
        if self.is_whitened and wanted < dim <= WHITENING * num_pairs:
            wanted = dim
        return min(wanted, most)

    def _verdict(self, figures, fitted: Fitted, family: Family, improper: str | None, is_complete: bool) -> Verdict:
        if improper is not None:
            return judge(figures, (improper,), at_best="failed")
        sentences = []
        if not is_complete:
            sentences.append(
                "The time limit came before the maximum and the error of the draws were found. Raise time_limit."
            )
        elif not fitted.status.is_converged:
            sentences.append(f"Newton's method ended without a maximum, max_steps={self.max_steps}. Raise max_steps.")
        wants_response = self.linear_response or (self.linear_response is None and type(family) is MeanField)
        if wants_response and fitted.program is not None and fitted.responding is None:
            sentences.append("At the point reached there is no linear response: covariances are the family's own.")
        return judge(figures, sentences, at_best="doubtful" if sentences else "pass")


def _improper(target: Target, fitted: Fitted, family: Family) -> str | None:
    """What to say where the density does not fall, along the way on which q went or grew without end; else None.

    Far from where it began q may be for the units of the parameters alone.
    """
    if fitted.free is not None:
        return improper_sentence(target, fitted.free)
    growth = np.sqrt(np.asarray(family.variances(fitted.q)) / np.asarray(family.variances(fitted.start)))
    middle, before = (float(np.max(np.abs(family.center(q)))) for q in (fitted.q, fitted.start))
    is_escaping = np.max(growth) > ESCAPE or middle > ESCAPE * (1 + before)
    return endless_sentence(target, fitted.q, family) if is_escaping else None
