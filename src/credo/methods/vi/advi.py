"""Automatic differentiation variational inference (Kucukelbir, Tran, Ranganath, Gelman & Blei 2017).

    maximise  ELBO(q) = E_q[log p(u, D) − log q(u)] ≤ log p(D)   over a family of q in the unconstrained space

by natural-gradient ascent from the mode (start.py, ascent.py) until the averaged iterates are stationary and lack less
than ``tolerance`` (review.py). The ELBO and the Pareto k̂ of q against the target are then measured on fresh draws.
"""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from credo.diagnose.pareto import proposal_figures
from credo.diagnose.verdict import judge
from credo.methods.particles.importance import draw_and_weigh, evaluations_at_once, has_evidence
from credo.methods.vi.ascent import Ascent, State, Tuning
from credo.methods.vi.families.family import Family
from credo.methods.vi.families.mean_field import MeanField
from credo.methods.vi.gradients.estimator import Estimator
from credo.methods.vi.gradients.sticking_the_landing import StickingTheLanding
from credo.methods.vi.objectives.elbo import ELBO
from credo.methods.vi.optimisers.momentum import Momentum
from credo.methods.vi.start import Start, find_start
from credo.model.target import Target
from credo.posterior.kinds import Gaussian, Kind
from credo.posterior.posterior import Posterior
from credo.run import Options, Phase, run, stream
from credo.status import CredoError, Estimate, Verdict

FIRST_PART = 25  # steps: four make the first stretch, ten times the memory of the momentum
ESCAPE = 1e6  # growth of a standard deviation since the start
MAX_PATH = 1_000  # points of the ELBO's path that info keeps
ELBO_ERROR = 0.05  # nats: half of what the verdict asks
MAX_ROUNDS = 5  # of doubling the draws until the ELBO is known that well


@dataclass(frozen=True)
class ADVI:
    """Gaussian variational inference: the posterior is a ``Gaussian`` over unconstrained positions.

    ``family``: ``MeanField()`` or ``FullRank()``. ``batch_size``: rows a step; None for all, which is more precise at
    the same time up to about 10⁵ rows. ``num_samples``: draws a step; 16 keep both cores of a small machine busy.
    ``gradient``, ``objective``, ``optimiser``: any of each go together. ``step_size``: ρ at first, in units of the
    natural gradient; it falls by itself. ``tolerance``: nats that the averaged iterates may lack to the family's best.
    ``max_steps``: where the fit ends without being stationary, with a verdict that is not a pass. ``num_draws``: of
    the final ELBO and k̂, doubled up to five times until the ELBO is known to 0.05 nats.

    ``info``: ``elbo_path`` (steps, estimates along the way), ``num_steps``, ``num_gradients``. The evidence is a
    lower bound with its Monte Carlo error, and None under an improper prior.
    """

    family: Family = field(default_factory=MeanField)
    batch_size: int | None = None
    num_samples: int = 16
    gradient: Estimator = field(default_factory=StickingTheLanding)
    objective: ELBO = field(default_factory=ELBO)
    optimiser: Momentum = field(default_factory=Momentum)
    step_size: float = 0.3
    tolerance: float = 0.01
    max_steps: int = 12_700
    num_draws: int = 2_000

    def fit(self, target: Target, *, key, start, options: Options) -> Posterior:
        target = target.flat()
        batch_size = self._checked_batch_size(target)
        k_run, k_final = stream(key, 0), stream(key, 1)
        at_once = evaluations_at_once(target, options.max_memory)
        draws_at_once = min(self.num_samples, max(at_once // 4, 1))  # a gradient keeps what its value passed through
        ascent = Ascent(
            self.family,
            self.objective,
            self.gradient,
            self.optimiser,
            self.num_samples,
            batch_size,
            self.tolerance,
            draws_at_once,
        )
        known = self.gradient.prepare(target)
        blank = ascent.blank(target)
        begun: list[Start] = []

        def begin(target: Target) -> tuple[Tuning, list[State]]:
            begun.append(find_start(target, self.family, key, start, options))
            q = begun[0].q
            largest_sd = ESCAPE * max(1.0, float(np.sqrt(np.max(self.family.variances(q)))))
            state = ascent.begin(target, q, self.step_size, FIRST_PART)
            return Tuning(known, np.asarray(largest_sd, state.step_size.dtype)), [state]

        done = run(
            ascent,
            target,
            begin=begin,
            like=(Tuning(known, blank.step_size), blank),
            phases=[Phase("ascent", self.max_steps)],
            key=k_run,
            num_chains=1,
            options=options,
        )
        state = done.states[0]
        q = state.reviewed.q if np.isfinite(state.reviewed.objective) else state.q
        u, log_weights = self._weigh(q, target, k_final, at_once)
        steps = done.info["ascent"]
        is_run = ~np.isnan(steps.objective[0]) | steps.is_taken[0]
        num_steps = int(is_run.sum())
        num_gradients = sum(s.num_gradients for s in begun) + num_steps * self.num_samples
        info = {
            "num_gradients": num_gradients,
            "num_gradients_useful": num_gradients,
            "num_steps": num_steps,
            "num_rejected": int(num_steps - steps.is_taken[0].sum()),
            "elbo_path": _thinned(steps.objective[0][:num_steps]),
        }
        return Posterior(
            q,
            target,
            verdict=self._verdict(state, self._proposal(q, u, log_weights), log_weights, num_steps, target, begun),
            info=info,
            log_evidence=_estimate(log_weights) if has_evidence(target) else None,
        )

    def _checked_batch_size(self, target: Target) -> int | None:
        if self.num_samples < 1 or self.max_steps < 1:
            raise CredoError(f"num_samples={self.num_samples}, max_steps={self.max_steps}: both must be positive.")
        if self.batch_size is None:
            return None
        target.check_minibatch(self.batch_size)
        return None if self.batch_size == target.size else self.batch_size

    def _weigh(self, q: Kind, target: Target, key, at_once: int):
        """Fresh draws (S, dim) and their log weights (S,), as many as it takes to know the mean of the weights."""
        u, log_weights = np.empty((0, target.dim)), np.empty(0)
        for round in range(MAX_ROUNDS + 1):
            num_new = max(len(log_weights), self.num_draws)
            new = draw_and_weigh(q, target, stream(key, round), num_new, at_once)
            u, log_weights = np.concatenate([u, new[0]]), np.concatenate([log_weights, new[1]])
            if not _estimate(log_weights).error > ELBO_ERROR:
                break
        return u, log_weights

    def _proposal(self, q: Gaussian, u, log_weights) -> dict[str, float]:
        """What the weights of q's draws say about q."""
        sd = np.sqrt(np.asarray(self.family.variances(q)))
        return proposal_figures((u - np.asarray(q.mean)) / sd, log_weights)

    def _verdict(
        self, state: State, proposal: dict[str, float], log_weights, num_steps: int, target: Target, begun: list[Start]
    ) -> Verdict:
        estimate = _estimate(log_weights)
        figures = {
            "elbo_drift": float(state.reviewed.gap),
            "elbo_error": estimate.error,
            **proposal,
            "elbo": estimate.value,
            "num_iterations": num_steps,
            "step_size": float(state.step_size),
        }
        free = next((s.free for s in begun if s.free is not None), None)
        if free is not None or bool(state.reviewed.is_escaping):
            size = np.abs(free) if free is not None else self.family.variances(state.q)
            name = _leaf_at(target, int(np.argmax(size)))
            sentence = f"The density does not fall along {name!r}: the posterior is improper. Give it a proper prior."
            return judge(figures, (sentence,), at_best="failed")
        if not bool(state.reviewed.is_done):
            sentence = (
                f"The {num_steps:,} steps allowed ended before the averaged ELBO was stationary to "
                f"{self.tolerance:g} nats. Raise max_steps or num_samples."
            )
            return judge(figures, (sentence,), at_best="doubtful")
        return judge(figures)


def _estimate(log_weights: Float[np.ndarray, " S"]) -> Estimate:
    """The ELBO is the mean of the log weights."""
    error = np.std(log_weights, ddof=1) / np.sqrt(len(log_weights)) if len(log_weights) > 1 else np.nan
    return Estimate(float(np.mean(log_weights)), float(error), "lower bound")


def _leaf_at(target: Target, coordinate: int) -> str:
    """The name of the parameter that a coordinate of the position belongs to."""
    ends = np.cumsum([leaf.size for leaf in target.structure.leaves])
    return target.structure.leaves[int(np.searchsorted(ends, coordinate, side="right"))].name


def _thinned(path: np.ndarray) -> np.ndarray:
    """(2, points): steps, and the objective's estimates there."""
    steps = np.unique(np.linspace(0, len(path) - 1, min(len(path), MAX_PATH)).astype(int))
    return np.stack([steps, path[steps]])
