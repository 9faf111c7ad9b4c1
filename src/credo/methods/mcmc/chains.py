"""Any kernel as a method of ``credo.fit``: starts, warm-up, sampling, and a verdict on the draws."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credo.algorithm import Algorithm, Options, Phase
from credo.diagnose import geometry
from credo.diagnose.convergence import convergence, e_bfmi, stuck_chains
from credo.diagnose.edges import edge_sentence
from credo.diagnose.endless import endless_draws_sentence
from credo.diagnose.function_space import observed
from credo.diagnose.jumps import jump_sentence
from credo.diagnose.pareto import judged_shape, smooth
from credo.diagnose.sd_error import sd_figures
from credo.diagnose.verdict import RULES, judge
from credo.methods.mcmc.enough import limits, sampling_phase
from credo.methods.mcmc.metric import MetricEstimator
from credo.methods.mcmc.start import (
    begins_as_told,
    begins_with_widths,
    draws_of,
    gradients_away,
    knows_widths,
    start_chains,
)
from credo.methods.mcmc.stays import Stays, lost
from credo.methods.mcmc.warmup import (
    FIRST_STEP,
    GAMMA,
    Adaptive,
    State,
    Tuning,
    like_old,
    long_windows,
    patient,
    restart,
    warmup_phases,
    watched,
)
from credo.methods.particles.copies import symmetry_sentence
from credo.methods.particles.modes import missed
from credo.model.structure import Structure
from credo.posterior.kinds import Draws
from credo.posterior.marginals import AT_ONCE, report_positions
from credo.posterior.posterior import Posterior
from credo.run import Run, run
from credo.status import CredoError, is_number

APART = 1.1  # R-hat: chains in modes of their own, or on their way without an end; why, is worth a program
EQUAL = 1e-3  # log weights this close differ by rounding, in single precision too, or by nothing that matters
STRUGGLE = "max_r_hat", "min_ess_bulk", "persistent_divergences", "e_bfmi"  # that ask for the shape of the posterior


@dataclass(frozen=True)
class Recipe:
    """How a kernel becomes a method: ``kernel(target, **settings, **given) -> Algorithm``.

    ``like(position)``: a state at ``position``, right in shapes and types alone. ``target_acceptance``: what warm-up
    tunes the kernel's ``step_size`` to; None where it has none. ``metric``: how its ``metric`` is found; None where it
    has none. ``settings`` are hashable and ``given`` are arguments of the compiled program: pytrees of arrays.
    ``num_uniform``: uniform numbers that a step of a kernel takes which can do with ``Noise`` in place of a key.
    ``warmup``: the phases before sampling. ``gamma``: of dual averaging, once the metric is known.
    """

    kernel: Callable[..., Algorithm]
    like: Callable[[Any], Any]
    target_acceptance: float | None = None
    metric: MetricEstimator | None = None
    settings: tuple[tuple[str, Any], ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)
    num_uniform: int | None = None
    warmup: Callable[..., list[Phase]] = warmup_phases
    gamma: float = GAMMA

    def adaptive(self) -> Adaptive:
        """The kernel, with what warm-up tunes."""
        has_step_size = self.target_acceptance is not None
        return Adaptive(self.kernel, self.settings, has_step_size, self.num_uniform, self.gamma)


def check(method) -> None:
    """CredoError where the settings that all these methods share are out of range."""
    for name, least in (("chains", 1), ("num_draws", 1), ("num_warmup", 0)):
        value = getattr(method, name)
        if isinstance(value, int | float) and value < least:  # ``fit`` says it of what is no number
            raise CredoError(f"{name} is at least {least}; got {value}.")
    target = getattr(method, "target_acceptance", None)
    if target is not None and not (is_number(target) and 0 < target < 1):
        raise CredoError(f"target_acceptance lies between 0 and 1; got {target!r}.")


def sample(method, recipe: Recipe, target, *, key, start: Any, options: Options) -> Posterior:
    """``method.chains`` × ``method.num_draws`` draws after ``method.num_warmup`` steps of warm-up each."""
    target = target.flat()
    dtype = jnp.result_type(float)
    program = recipe.adaptive()
    given = _cast(dict(recipe.given), dtype)

    tuning, (state,) = first_tuning(recipe, method.num_warmup, [recipe.like(np.ones(target.dim, dtype))])
    has_widths = begins_with_widths(start, options)
    warmup = long_windows if has_widths and recipe.warmup is warmup_phases else recipe.warmup
    windows = warmup(method.num_warmup, recipe.metric, program.record(state))
    stays = Stays.empty(method.chains, target.dim, dtype)

    def begin(target):
        kernels = start_chains(target, start, key, method.chains, program, given)
        tuning, states = first_tuning(recipe, method.num_warmup, kernels, _earlier_step(start))
        known, is_given = draws_of(start, key), start is not None and not knows_widths(start)
        if recipe.metric is not None and known is not None:
            tuning = tuning._replace(metric=like_old(recipe.metric.estimate(known, None, tuning.metric), tuning.metric))
        elif recipe.metric is not None and is_given and hasattr(kernels[0], "gradient"):
            found = recipe.metric.initial(gradients_away(target, kernels, key, program, given))
            tuning = tuning._replace(metric=like_old(found, tuning.metric))
        return tuning._replace(stays=stays), states

    num_numbers = method.chains * method.num_draws * target.dim

    def prepare_report():
        """Compile what gives the draws by name: hardly anybody asks a sampler for less."""
        shape = (method.chains * method.num_draws, target.dim)
        report_positions.prepare(target, jax.ShapeDtypeStruct(shape, dtype))

    done = run(
        program,
        target,
        begin=begin,
        like=(tuning._replace(stays=stays), state),
        phases=[
            *patient([watched(phase) for phase in windows]),
            sampling_phase(method, target),
        ],
        key=key,
        num_chains=method.chains,
        options=options,
        identity={"dtype": str(dtype)},
        meanwhile=prepare_report if dtype == jnp.float64 and num_numbers <= AT_ONCE else None,
    )
    return as_posterior(done, target, method, begin_together=begins_as_told(start, options))


def _earlier_step(start) -> float:
    """That of an earlier run by Hamiltonian dynamics, which know energies: in the white coordinates of a metric."""
    info = getattr(start, "info", {})
    is_hamiltonian = "energy" in info.get("sample_stats", {})
    return info.get("step_size", FIRST_STEP) if is_hamiltonian else FIRST_STEP


def first_tuning(
    recipe: Recipe, num_warmup: int, kernels: list, step_size: float = FIRST_STEP
) -> tuple[Tuning, list[State]]:
    """The tuning with which warm-up begins, and the states of chains whose kernels have the states ``kernels``."""
    dtype = kernels[0].position.dtype
    metric = None if recipe.metric is None else _cast(recipe.metric.initial(_gradients(kernels)), dtype)
    acceptance: Any = np.asarray(0.5 if recipe.target_acceptance is None else recipe.target_acceptance, dtype)
    step = None if recipe.target_acceptance is None else restart(np.asarray(step_size, dtype))
    is_adapting: Any = np.bool_(num_warmup > 0)
    given = _cast(dict(recipe.given), dtype)
    return Tuning(metric, acceptance, is_adapting, given), [State(state, step) for state in kernels]


def _gradients(kernels: list) -> np.ndarray:
    """At the starts (chain, dim); ones where a kernel knows none."""
    return np.stack([getattr(state, "gradient", np.ones_like(state.position)) for state in kernels])


def _cast(tree, dtype):
    """Floating-point leaves in ``dtype``."""
    return jax.tree.map(lambda a: a.astype(dtype) if np.issubdtype(a.dtype, np.floating) else a, tree)


def as_posterior(
    done: Run, target, method, found: Mapping[str, float] | None = None, *, begin_together: bool = False
) -> Posterior:
    """The draws with their verdict, on the figures ``found`` where these are not ``figures``.

    ``begin_together``: the chains may all have begun at one place.
    """
    begun = time.perf_counter()
    sampling, warmup = done.info["sampling"], done.info.get("warmup")
    positions: Any = done.records["position"]
    info = {
        **_counts(sampling, warmup, done.useful_share),
        "layout": done.layout,
        "is_complete": done.is_complete,
        "seconds": {"warmup": 0.0} | done.seconds,
        "sample_stats": sampling._asdict(),
    }
    if hasattr(sampling, "step_size"):
        info["step_size"] = float(np.mean(sampling.step_size[:, -1]))
    sentences, is_met = limits(method, target, positions, done.is_complete)
    if found is None:
        seen, said = observed(target, positions)
        found = figures(positions, sampling, method, seen, target.structure)
        stays = getattr(done.tuning, "stays", None)
        if stays is not None and hasattr(sampling, "energy"):
            found["num_lost_chains"] = int(np.sum(lost(stays, positions, sampling.energy)))
        sentences = [*sentences, said] if said else sentences
        if done.is_complete:
            has_gradient = hasattr(sampling, "is_divergent")
            found |= missed(target, positions, found, has_gradient=has_gradient, begin_together=begin_together)
    is_divergent = getattr(sampling, "is_divergent", None)
    if is_divergent is not None and "num_divergences" in found:
        count = geometry.persistent_divergences(positions, is_divergent, target.structure)
        found = {**found, "persistent_divergences": count}
    at_best = "pass" if is_met else "doubtful"
    verdict = judge(found, sentences, at_best=at_best)
    if any(RULES[name].status(found[name]) != "pass" for name in STRUGGLE if name in found):
        first, causes = _causes(positions, is_divergent, target, found.get("max_r_hat", 1.0))
        verdict = judge(found, [*causes, *sentences], at_best=at_best)
        if first:
            verdict = replace(verdict, sentences=(first, *verdict.sentences))
    info["seconds"]["verdict"] = time.perf_counter() - begun
    return Posterior(Draws(positions), target, verdict=verdict, info=info)


def _causes(positions, is_divergent, target, r_hat: float) -> tuple[str | None, list[str]]:
    """Why draws do not pass: that the density has an edge, a jump or no integral, before all else; or what its shape
    is."""
    has_gradient = is_divergent is not None
    edge = edge_sentence(target, positions, is_divergent) if has_gradient else None
    if edge:
        return edge, []
    if not r_hat > APART:
        return None, geometry.sentences(positions, is_divergent, target)
    unseen = endless_draws_sentence(target, positions) or (jump_sentence(target, positions) if has_gradient else None)
    if unseen:
        return unseen, []
    # of a network chains are compared by its outputs, which copies of its weights leave as they are
    copied = symmetry_sentence(target, positions[:, -1]) if target.model.weights_name is None else None
    return None, [*geometry.sentences(positions, is_divergent, target), *([copied] if copied else [])]


def _counts(sampling, warmup, useful_share: float) -> dict[str, float]:
    """Evaluations: gradients (``num_steps`` of an info), or densities alone (``num_densities``).

    Chains that share a loop evaluate some more, while others finish: ``num_gradients_executed``.
    """

    def total(info, name: str) -> int:
        return int(getattr(info, name).sum()) if hasattr(info, name) else 0

    useful = total(sampling, "num_steps")
    counts: dict[str, float] = {"num_gradients": useful + total(warmup, "num_steps"), "num_gradients_useful": useful}
    is_known = math.isfinite(useful_share)  # not of a run that was continued, whose earlier turns nobody counted
    counts["num_gradients_executed"] = round(counts["num_gradients"] / useful_share) if is_known else math.nan
    densities = total(sampling, "num_densities") + total(warmup, "num_densities")
    return counts | ({"num_densities": densities} if densities else {})


def figures(positions, info, method, seen=None, structure: Structure | None = None) -> dict[str, float]:
    """What the verdict reads, of positions (chain, draw, dim); ``seen``: what chains are compared by in their place.

    ``structure``: of the parameters, whose sds are judged where chains are compared by them.

    Ranks are those of the parameters wherever a transform is elementwise, and no coordinate is constant by
    construction as an entry of a correlation matrix is.
    """
    found = convergence(positions if seen is None else seen)
    figures = {
        "max_r_hat": float(np.max(found.r_hat)),
        "min_ess_bulk": float(np.min(found.ess_bulk)),
        "min_ess_tail": float(np.min(found.ess_tail)),
    }
    if structure is not None and (seen is None or seen is positions):
        figures |= sd_figures(positions, found.ess_tail, structure)
    if hasattr(info, "is_divergent"):
        figures["num_divergences"] = int(info.is_divergent.sum())
        figures["divergence_share"] = float(np.mean(info.is_divergent))
    if hasattr(info, "num_undefined"):
        figures["undefined_proposals"] = float(np.mean(info.num_undefined > 0))
    elif hasattr(info, "energy") and np.any(info.energy == -np.inf):  # a divergence elsewhere
        figures["undefined_proposals"] = float(np.mean(info.energy == -np.inf))
    if hasattr(info, "energy"):
        figures["e_bfmi"] = float(np.min(e_bfmi(info.energy)))
    if hasattr(info, "depth"):
        figures["max_depth_share"] = float(np.mean(info.depth >= method.max_depth))
    figures["num_stuck_chains"] = int(np.sum(stuck_chains(positions)))
    if hasattr(info, "acceptance"):
        figures["acceptance_rate"] = float(np.mean(info.acceptance))
    if hasattr(info, "step_size"):
        figures["step_size"] = float(np.mean(info.step_size))
    if hasattr(info, "log_weight"):  # of independent draws of a proposal: how thin its tails are
        log_weights = np.ravel(info.log_weight).astype(float)
        if np.all(np.isfinite(log_weights)) and np.ptp(log_weights) < EQUAL:
            log_weights[:] = 0
        figures["pareto_k"] = judged_shape(log_weights, smooth(log_weights).k_hat)
    return {**figures, "num_chains": positions.shape[0], "num_draws": positions.shape[0] * positions.shape[1]}
