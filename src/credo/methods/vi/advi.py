"""Automatic differentiation variational inference (Kucukelbir, Tran, Ranganath, Gelman & Blei 2017).

    maximise  ELBO(q) = E_q[log p(u, D) − log q(u)] ≤ log p(D)   over a family of q in the unconstrained space

by natural-gradient ascent from the mode (start.py, ascent.py) until the averaged iterates are stationary and lack less
than ``tolerance`` (review.py). The ELBO and the Pareto k̂ of q are then measured on fresh draws (measure.py).
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np
import optax

from credo.algorithm import Options, Phase, stream
from credo.diagnose.verdict import judge
from credo.methods.optimise.objective import is_differentiable
from credo.methods.optimise.training import batch_asked
from credo.methods.particles.importance import evaluations_at_once, has_evidence
from credo.methods.vi.ascent import Ascent, Info, State, Tuning
from credo.methods.vi.by_draws import measure_without_gradients, start_without_gradients
from credo.methods.vi.families.categorical import with_discrete
from credo.methods.vi.families.family import Family
from credo.methods.vi.families.low_rank import LowRank
from credo.methods.vi.families.mean_field import MeanField
from credo.methods.vi.faults import edge_sentence, verdict_of
from credo.methods.vi.gradients.estimator import Estimator
from credo.methods.vi.gradients.sticking_the_landing import StickingTheLanding
from credo.methods.vi.measure import Measured, measure
from credo.methods.vi.needs import check_memory, with_family
from credo.methods.vi.objectives.elbo import ELBO
from credo.methods.vi.objectives.objective import Objective
from credo.methods.vi.optimisers.by_optax import as_optimiser
from credo.methods.vi.optimisers.optimiser import Optimiser
from credo.methods.vi.start import Begun, Start, find_start
from credo.methods.vi.stochastic import fit as stochastic
from credo.methods.vi.stochastic.ascent import StochasticAscent
from credo.model.target import Target
from credo.posterior.posterior import Posterior
from credo.run import run
from credo.status import CredoError, Verdict

FIRST_PART = 2.5  # times the memory of the optimiser: four make the first stretch
MEMORY = 3.0  # a part is at least so many times 1/ρ, the steps that q remembers
ESCAPE = 1e6  # growth of a standard deviation since the start
LARGE = 1_000  # dimensions from which minibatches are never left for a pass over all data
MAX_PATH = 1_000  # points of the ELBO's path that info keeps


@dataclass(frozen=True)
class ADVI:
    """Stochastic variational inference by a family, a gradient estimator, an objective and an optimiser.

    ``family``: ``MeanField()``, ``FullRank()`` or another of ``credo.vi``; the posterior is of its kind, over
    unconstrained positions. ``batch_size``: rows a step; None for all, which is more precise at the same time up to
    about 10⁵ rows. ``gradient``, ``objective``, ``optimiser``: any of each go together; the optimiser is the family's
    own where left out, or one of optax, whose learning rate is in units of q's widths and is multiplied by ρ, and
    which begins anew as ρ falls. Discrete parameters with finitely many values, which get a probability for each, and
    densities without a derivative ask for ``gradient=ScoreFunction()``.
    ``num_samples``: draws a step; None for what the family needs in this dimension, 16 in small ones.
    ``step_size``: ρ at first, in units of the natural gradient, in (0, 1]; the family may ask for less in high
    dimensions, and it falls by itself. ``tolerance``: nats that the averaged iterates may lack to the family's best;
    None for 0.01, rising from 100 dimensions on to 0.08. ``max_steps``: where the fit ends without being stationary,
    with a verdict that is no pass. ``num_draws``: of the final ELBO and k̂; the ELBO gets up to 32 times as many.

    On networks, and on minibatches in more than 1,000 dimensions, no step looks at all data (unless ``batch_size`` is
    None). Adam leads to a mode (a fifth of the steps, 1,000 at least; a posterior as ``start`` replaces it), where q
    begins with sds of 0.01. Then come ``max_steps`` steps of one draw (``num_samples``), clipped, with ρ from 0.1 (or
    ``step_size`` where that is less) falling to a tenth; q is averaged over the last two fifths. Above 1,000 dimensions
    all of it is in float32. ``tolerance`` and ``num_draws`` play no part: the ELBO is the mean of the last fifth of the
    steps' estimates and no weights are taken, so that the verdict is never a pass.
    ``gradient=LocalReparameterised()`` or ``Flipout()`` gives each row its own draw. A loss that is not finite ends the
    ascent at the last finite q, and the verdict names the rows.

    ``info``: ``elbo_path`` (steps and estimates of the objective along the way), ``num_steps``, ``num_gradients``. The
    evidence is a lower bound with its Monte Carlo error, and None under an improper prior; ``info["evidence_upper"]``
    bounds it from above (χ²) where the weights allow it, else None. Raises CredoError for settings that are not
    positive, choices that do not go together, and minibatches that the target cannot give.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"rate": dist.Gamma(2.0, 1.0)}, lambda params, x: dist.Poisson(params["rate"]))
    >>> target = model.given(y=np.array([3, 5, 1, 4]))
    >>> posterior = credo.fit(target, credo.ADVI(family=credo.FullRank()))
    >>> round(float(posterior.mean()["rate"]), 1), posterior.log_evidence.kind
    (3.0, 'lower bound')
    """

    family: Family = field(default_factory=MeanField)
    batch_size: int | None = None
    num_samples: int | None = None
    gradient: Estimator = field(default_factory=StickingTheLanding)
    objective: Objective = field(default_factory=ELBO)
    optimiser: Optimiser | optax.GradientTransformation | None = None
    step_size: float = 0.3
    tolerance: float | None = None
    max_steps: int = 12_700
    num_draws: int = 2_000

    @property
    def takes_source(self) -> bool:
        """Whether data outside of memory are read batch by batch."""
        return self.batch_size is not None

    @property
    def takes_discrete(self) -> bool:
        """Whether discrete parameters may stand among the others."""
        return not self.gradient.has_paths

    def fit(self, target: Target, *, key, start, options: Options) -> Posterior:
        target = target.flat()
        batch_size = batch_asked(target, self.batch_size)
        if batch_size != self.batch_size:
            return replace(self, batch_size=batch_size).fit(target, key=key, start=start, options=options)
        deadline = options.deadline()
        self._check()
        family = with_discrete(self.family.bound(target.structure), target)
        if self._is_stochastic(target):
            return self._on_minibatches(target, family, key, start, options)
        if not family.has_density:
            raise CredoError(
                "Point() is for networks and for minibatches in many dimensions, under the ELBO: give other parameters "
                "a family with a density here, or fit MAP()."
            )
        at_once = evaluations_at_once(target, options.max_memory)
        ascent = self._ascent(target, family, at_once)
        self.gradient.check(self.objective, family, target, ascent.num_samples)
        step_size = min(self.step_size, family.largest_step(ascent.num_samples, target.dim))
        part_length = max(math.ceil(FIRST_PART * ascent.optimiser.memory), math.ceil(MEMORY / step_size))
        known = self.gradient.prepare(target, self.batch_size is None)
        blank = ascent.blank(target)
        check_memory(
            lambda family: with_family(ascent, family).blank(target),
            family,
            (LowRank(), MeanField()),
            target,
            self.num_draws,
            options.max_memory,
        )
        has_gradients = self.gradient.has_paths or is_differentiable(target)

        def begin(target: Target) -> tuple[Tuning, list[State]]:
            if has_gradients:
                first = find_start(target, family, key, start, options.of_start(deadline))
            else:
                first = start_without_gradients(target, family, key, start)
            middle, variances = family.location(first.q)
            largest_sd = ESCAPE * max(1.0, math.sqrt(np.max(variances)), float(np.max(np.abs(middle))))
            state = ascent.begin(target, first.q, step_size, part_length)
            largest_sd = np.asarray(largest_sd, state.step_size.dtype)
            return Tuning(known, largest_sd, Begun.of(first, target.dim)), [state]

        done = run(
            ascent,
            target,
            begin=begin,
            like=(Tuning(known, blank.step_size, Begun.of(Start(blank.q, 0), target.dim)), blank),
            phases=[Phase("ascent", self.max_steps)],
            key=stream(key, 0),
            num_chains=1,
            options=options.until(deadline),
        )
        state: State = done.states[0]
        is_complete = done.is_complete or bool(state.reviewed.is_done)
        q = state.reviewed.q if np.isfinite(state.reviewed.objective) else state.q
        fresh = q, family, target, stream(key, 1), self.num_draws, at_once, deadline
        measured = measure(*fresh, options.max_memory) if has_gradients else measure_without_gradients(*fresh)
        path, is_taken = _path(done.info["ascent"])
        num_gradients = len(path) * ascent.num_samples * self.gradient.gradients_a_draw(target.dim)
        begun: Begun = done.tuning.begun
        is_escaping = bool(state.reviewed.is_escaping)
        verdict, is_improper = verdict_of(
            lambda fault: _verdict(measured, state, is_taken, ascent.tolerance, fault, is_complete),
            target,
            state.q if is_escaping else q,
            family,
            begun.direction,
            is_escaping,
        )
        bounds_evidence = has_evidence(target) and not is_improper
        return Posterior(
            q,
            target,
            verdict=verdict,
            info={
                "num_gradients": int(begun.num_gradients) + num_gradients,
                "is_complete": is_complete,
                "num_steps": len(path),
                "num_rejected": int(np.count_nonzero(~is_taken)),
                "elbo_path": _thinned(path),
                "seconds": done.seconds,
                "evidence_upper": measured.upper if bounds_evidence else None,
            },
            log_evidence=measured.elbo if bounds_evidence else None,
        )

    def _is_stochastic(self, target: Target) -> bool:
        """Whether passes over all data, second derivatives and weights of draws are out of the question."""
        is_large = self.batch_size is not None and target.dim > LARGE
        return (
            (is_large or target.model.weights_name is not None) and self.gradient.has_paths and self.objective.is_linear
        )

    def _on_minibatches(self, target: Target, family: Family, key, start, options: Options) -> Posterior:
        num_samples = self.num_samples or 1
        self.gradient.check(self.objective, family, target, num_samples)
        ascent = StochasticAscent(
            family=family,
            objective=self.objective,
            gradient=self.gradient,
            optimiser=as_optimiser(self.optimiser or family.optimiser()),
            num_samples=num_samples,
            batch_size=self.batch_size,
            draws_at_once=num_samples,
        )
        step_size = min(self.step_size, stochastic.LARGEST_STEP, family.largest_step(num_samples, target.dim))
        return stochastic.fit(
            ascent, target, key=key, start=start, options=options, step_size=step_size, num_steps=self.max_steps
        )

    def _check(self) -> None:
        for name in ("num_samples", "max_steps", "num_draws", "step_size", "tolerance"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise CredoError(f"{name} is {value}: give a positive number.")
        if self.step_size > 1:
            raise CredoError(f"step_size is {self.step_size:g}, and a whole natural step is 1: give 1 or less.")
        if self.batch_size is not None and not self.objective.is_linear:
            raise CredoError(
                f"{type(self.objective).__name__}() is no average over rows of data, so that minibatches would bias "
                "its gradient: leave batch_size out, or take objective=ELBO()."
            )

    def _ascent(self, target: Target, family: Family, at_once: int) -> Ascent:
        num_samples = self.objective.num_samples(self.num_samples or family.num_samples(target.dim, target.size))
        tolerance = self.tolerance or min(0.08, 0.01 * max(1.0, target.dim / 100))
        return Ascent(
            family=family,
            objective=self.objective,
            gradient=self.gradient,
            optimiser=as_optimiser(self.optimiser or family.optimiser()),
            num_samples=num_samples,
            batch_size=self.batch_size,
            tolerance=tolerance,
            draws_at_once=min(num_samples, max(at_once // 4, 1)),  # a gradient keeps what its value passed through
        )


def _verdict(
    measured: Measured,
    state: State,
    is_taken: np.ndarray,
    tolerance: float,
    fault: str | None,
    is_complete: bool,
) -> Verdict:
    """``fault``: for which q has no end, or None. ``is_complete``: not cut off by time."""
    num_steps, edge = len(is_taken), edge_sentence(is_taken)
    is_reviewed = bool(np.isfinite(state.reviewed.objective))
    figures = {
        "elbo_drift": float(state.reviewed.gap) if is_reviewed else np.nan,
        "elbo_error": measured.elbo.error,
        **measured.figures,
        "elbo": measured.elbo.value,
        "num_iterations": num_steps,
        "step_size": float(state.step_size),
    }
    if fault is not None:
        return judge(figures, (fault,), at_best="failed")
    if edge is not None:
        return judge(figures, (edge,), at_best="doubtful")
    if not is_complete:
        sentence = (
            f"The time limit came after {num_steps:,} steps, before the averaged objective was stationary to "
            f"{tolerance:g} nats. Raise time_limit."
        )
        return judge(figures, (sentence,), at_best="doubtful")
    if not bool(state.reviewed.is_done):
        sentence = (
            f"The {num_steps:,} steps allowed ended before the averaged objective was stationary to {tolerance:g} "
            "nats. Raise max_steps or num_samples."
        )
        return judge(figures, (sentence,), at_best="doubtful")
    return judge(figures)


def _path(info: Info) -> tuple[np.ndarray, np.ndarray]:
    """The estimates of the objective, one a step until the ascent was done, and whether each step was taken."""
    objective, is_taken = np.asarray(info.objective[0]), np.asarray(info.is_taken[0])
    num_steps = int(np.max(np.flatnonzero(~np.isnan(objective) | is_taken), initial=-1)) + 1
    return objective[:num_steps], is_taken[:num_steps]


def _thinned(path: np.ndarray) -> np.ndarray:
    """(2, points): steps, and the objective's estimates there."""
    steps = np.unique(np.linspace(0, len(path) - 1, min(len(path), MAX_PATH)).astype(int))
    return np.stack([steps, path[steps]])
