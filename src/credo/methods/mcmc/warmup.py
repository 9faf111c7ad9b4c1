"""Warm-up: each chain adapts its step size within a window; at its end the chains pool metric and step size.

Step size by dual averaging (Nesterov 2009; Hoffman & Gelman 2014, section 3.2), α_t the acceptance of step t:
    H̄_t = (1 − η_t) H̄_{t−1} + η_t (δ − α_t),  η_t = 1/(t + t_0)       error
    log ε_t = μ − √t/γ · H̄_t                                           log_step, of the next step
    log ε̄_t = t^−κ log ε_t + (1 − t^−κ) log ε̄_{t−1}                    log_average, of what follows the window
with δ = target_acceptance, μ = centre. Steps move by 1/(γ√t) of an error: far enough to find the scale in a window, and
so far that δ is met on the way and not by their average. Where acceptances are of single proposals, half of them all or
nothing, γ is larger once the metric is known. The metric of a window comes from draws and gradients of the one before
it, and windows grow: early ones forget the way to the typical set quickly, late ones estimate well. A target that is
the Gaussian of one window on the draws of the next needs no further one.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from credo.algorithm import Algorithm, Phase, Stages
from credo.linalg.blas import ONE_THREAD
from credo.methods.mcmc.metric import MetricEstimator
from credo.methods.mcmc.reference import is_whole, metric_and_reference, straight
from credo.methods.mcmc.stays import Stays
from credo.tree import where

GAMMA, T_0, KAPPA = 0.05, 10.0, 0.75  # as in Hoffman & Gelman
STEADY = 0.3  # γ of single proposals: MALA asked for 0.3, 0.574 and 0.8 in 3 dimensions accepted 0.10, 0.72 and 0.85
FIRST_WINDOW, GROWTH, STEP_SHARE = 12, 1.5, 0.15
# At a barrier all chains wait for the slowest, and many chains have draws enough in a window, so that theirs are fewer:
# with 32 in one loop 92 % of the gradients of eight schools are used in place of 88 %, and none more is needed.
MANY_CHAINS, GROWTH_OF_MANY = 16, 2.0
# Of NUTS's trees in the first windows: in the first one chains arrive, for which trees of eight leaves are enough. With
# short ones in the next windows too warm-up took a tenth to a half less, but where scales of groups are far off chains
# had not arrived after three windows.
FIRST_DEPTHS = 3, 6, 8
FAR_SDS, WAIT_SDS = 10.0, 5.0  # of the energy: a chain so far above another one is on its way
MOST_REPEATS = 16  # of a window that has a third of warm-up, where it is long
FIRST_STEP = 1.0  # in white coordinates; too large a step costs one gradient, too small a one a thousand


class DualAveraging(NamedTuple):
    log_step: Float[Array, ""]
    log_average: Float[Array, ""]
    error: Float[Array, ""]
    count: Float[Array, ""]
    centre: Float[Array, ""]


class Tuning(NamedTuple):
    """What all chains share."""

    metric: Any  # a ScaleOperator, or None for a kernel that has none
    target_acceptance: Float[Array, ""]
    is_adapting: Bool[Array, ""]
    given: dict[str, Any] = {}  # further arguments of the kernel
    stays: Stays | None = None  # where chains were
    is_settled: Any = np.bool_(False)  # further windows would find the same metric
    is_last: Any = np.bool_(False)  # the metric is

    @property
    def longest_step(self):
        return self.given["reference"].longest if "reference" in self.given else np.inf


class State(NamedTuple):
    kernel: Any
    step: Any  # DualAveraging, or None for a kernel without a step size

    @property
    def position(self):
        return self.kernel.position


@dataclass(frozen=True)
class Adaptive:
    """A kernel that adapts its step size, if it has one, for the one loop; warm-up and sampling share its program.

    ``kernel``: such as ``nuts``; ``settings``: its keyword arguments that are neither adapted nor arrays.
    ``num_uniform``: numbers of a step beside a normal one a dimension, if it takes ``Noise``. ``gamma``: of the window
    that follows the last metric.
    """

    kernel: Callable[..., Algorithm]
    settings: tuple[tuple[str, Any], ...]
    has_step_size: bool
    num_uniform: int | None = None
    gamma: float = GAMMA

    def noise_sizes(self, state: State) -> tuple[int, int] | None:
        return None if self.num_uniform is None else (state.position.size, self.num_uniform)

    def initial(self, target, given: dict[str, Any], key, position):
        """The state of a kernel at ``position``, before anything is tuned."""
        step = {"step_size": FIRST_STEP} if self.has_step_size else {}
        return self.kernel(target, **dict(self.settings), **given, **step).init(key, position)

    def algorithm(self, target, tuning: Tuning) -> Algorithm:
        settings = dict(self.settings) | tuning.given | ({} if tuning.metric is None else {"metric": tuning.metric})

        def init(key, position):
            step = restart(position.dtype.type(FIRST_STEP)) if self.has_step_size else None
            return State(self.initial(target, tuning.given, key, position), step)

        def kernel(step) -> Algorithm:
            return self.kernel(target, **settings, **({} if step is None else {"step_size": jnp.exp(step.log_step)}))

        def adapt(before, new, info):
            if before is None:
                return State(new, None), info
            gamma = jnp.where(tuning.is_last, self.gamma, GAMMA)
            adapted = update(before, info.acceptance, tuning.target_acceptance, tuning.longest_step, gamma)
            return State(new, where(tuning.is_adapting, adapted, before)), info

        def step(key, state: State):
            return adapt(state.step, *kernel(state.step).step(key, state.kernel))

        def stages_of(step) -> Stages:
            stages = kernel(step).stages
            assert stages is not None
            return stages

        def begin(key, state: State, previous):
            inner = None if previous is None else previous[0]
            return stages_of(state.step).begin(key, state.kernel, inner), state.step

        stages = Stages(
            begin,
            advance=lambda now: (stages_of(now[1]).advance(now[0]), now[1]),
            is_done=lambda now: stages_of(now[1]).is_done(now[0]),
            end=lambda now: adapt(now[1], *stages_of(now[1]).end(now[0])),
        )
        like = None if not self.has_step_size else restart(np.float64(FIRST_STEP))
        return Algorithm(init, step, None if kernel(like).stages is None else stages)

    def record(self, state: State):
        return {name: getattr(state.kernel, name) for name in ("position", "gradient") if hasattr(state.kernel, name)}


def restart(step_size) -> DualAveraging:
    """A new window that begins with ``step_size``."""
    log_step, zero = np.log(np.maximum(step_size, np.finfo(np.asarray(step_size).dtype).tiny)), np.zeros_like(step_size)
    return DualAveraging(log_step, zero, zero, zero, log_step)


def update(da: DualAveraging, acceptance, target_acceptance, longest_step=np.inf, gamma: Any = GAMMA) -> DualAveraging:
    """After a step of this ``acceptance``; no step is longer than ``longest_step``."""
    t = da.count + 1
    eta = 1 / (t + T_0)
    error = (1 - eta) * da.error + eta * (target_acceptance - acceptance)
    log_step = jnp.minimum(da.centre - jnp.sqrt(t) / gamma * error, jnp.log(longest_step))
    weight = jnp.exp(-KAPPA * jnp.log(t))
    return DualAveraging(log_step, weight * log_step + (1 - weight) * da.log_average, error, t, da.centre)


# windows --------------------------------------------------------------------------------------------------------------


def windows(num_warmup: int, first: int = FIRST_WINDOW, num_chains: int = 1) -> list[int]:
    """Lengths that sum to ``num_warmup``: growing ones, after which the metric changes, and one for the step size."""
    last = min(num_warmup, max(FIRST_WINDOW, round(STEP_SHARE * num_warmup)))
    growth = GROWTH_OF_MANY if num_chains >= MANY_CHAINS else GROWTH
    lengths, rest, length = [], num_warmup - last, float(first)
    while rest > 0:
        # the remainder joins the window it is too short to follow
        take = rest if rest < length * (1 + growth) else round(length)
        lengths.append(take)
        rest, length = rest - take, length * growth
    return [*lengths, last]


def warmup_phases(
    num_warmup: int,
    metric: MetricEstimator | None,
    record: Iterable[str],
    first_window: int = FIRST_WINDOW,
    num_chains: int = 1,
) -> list[Phase]:
    """The phases of warm-up, with their barriers; without a ``metric``, one window for the step size alone.

    ``record``: what there is of each step, "position" and, where the kernel knows it, "gradient".
    """
    if num_warmup == 0:
        return []
    *growing, last = windows(num_warmup, first_window, num_chains) if metric else [num_warmup]

    def end_window(records, tuning: Tuning, states: list[State], *, is_last: bool):
        assert metric is not None
        (kept, info), given = records, tuning.given
        dim, is_late = kept["position"].shape[-1], False
        if hasattr(info, "energy"):
            is_late = is_behind(info.energy, dim, WAIT_SDS).any()
            is_left_out = is_behind(info.energy, dim)
            if is_left_out.any():  # else a copy of all
                kept = {name: values[~is_left_out] for name, values in kept.items()}
        with ONE_THREAD:
            found = metric.estimate(kept["position"], kept.get("gradient"), tuning.metric)
            if "reference" in given:  # round which a chain that is not there yet would turn, and stay away
                if is_late:
                    seen = straight(dim)
                else:
                    is_settled = is_whole(given["reference"], kept["position"], kept["gradient"], tuning.metric)
                    tuning = tuning._replace(is_settled=is_settled)
                    found, seen = metric_and_reference(found, kept["position"], kept["gradient"])
                given = given | {"reference": like_old(seen, given["reference"])}
        tuning = tuning._replace(metric=like_old(found, tuning.metric), given=given, is_last=np.bool_(is_last))
        return tuning, _restart_all(states, tuning.longest_step)

    def is_due(tuning: Tuning) -> bool:
        return not tuning.is_settled

    def end_warmup(records, tuning: Tuning, states: list[State]):
        return tuning._replace(is_adapting=np.bool_(False)), _restart_all(states, tuning.longest_step)

    windows_of_metric = [
        Phase("warmup", n, tuple(record), functools.partial(end_window, is_last=after == len(growing)), is_due=is_due)
        for after, n in enumerate(growing, 1)
    ]
    return [*windows_of_metric, Phase("warmup", last, (), end_warmup)]


def long_windows(num_warmup: int, metric: MetricEstimator | None, record: Iterable[str]) -> list[Phase]:
    """Where a metric is known before, few draws would only spoil it: below 100 steps the step size alone adapts."""
    return warmup_phases(num_warmup, metric if num_warmup >= 100 else None, record, 4 * FIRST_WINDOW)


def short_trees_first(
    num_warmup: int, metric: MetricEstimator | None, record: Iterable[str], *, num_chains: int, max_depth: int
) -> list[Phase]:
    """``warmup_phases`` whose first windows keep trajectories short: there is no metric yet that deserves long ones."""
    phases = warmup_phases(num_warmup, metric, record, num_chains=num_chains)

    def limited(phase: Phase, after: int) -> Phase:
        def at_end(records, tuning: Tuning, states: list[State]):
            assert phase.at_end is not None
            tuning, states = phase.at_end(records, tuning, states)
            return tuning._replace(given=tuning.given | depth_limit(after, len(phases), max_depth)), states

        return phase._replace(at_end=at_end)

    return [limited(phase, index + 1) for index, phase in enumerate(phases)]


def watched(phase: Phase) -> Phase:
    """``phase``, at whose end is noted where chains stayed, in ``Tuning.stays``, if their energies are known."""

    def at_end(records, tuning: Tuning, states: list[State]):
        kept, info = records
        if tuning.stays is not None and "position" in kept and hasattr(info, "energy"):
            tuning = tuning._replace(stays=tuning.stays.after(kept["position"], info.energy))
        return (tuning, states) if phase.at_end is None else phase.at_end(records, tuning, states)

    return phase._replace(at_end=at_end)


def patient(phases: list[Phase]) -> list[Phase]:
    """``phases`` whose last window for the metric is repeated while a chain is still on its way, MOST_REPEATS at most.

    Who arrives late would carry its way there into the draws. Where chains stay apart the draws begin in the end.
    """
    if len(phases) < 2:
        return phases
    *growing, last = phases

    def is_due(tuning: Tuning) -> bool:
        stays = tuning.stays
        return stays is not None and bool(_is_above(stays.energy[-1], stays.position.shape[-1], WAIT_SDS).any())

    again = growing[-1]._replace(is_due=is_due, is_extra=True)
    return [*growing, *[again] * MOST_REPEATS, last]


def depth_limit(window: int, num_windows: int, max_depth: int) -> dict[str, Any]:
    """Of NUTS in the window of this number, or in what follows the last."""
    is_early = window < min(len(FIRST_DEPTHS), num_windows)
    return {"depth_limit": np.int32(min(FIRST_DEPTHS[window], max_depth) if is_early else max_depth)}


def is_behind(energy: Float[np.ndarray, "chain step"], dim: int, num_sds=FAR_SDS) -> Bool[np.ndarray, " chain"]:
    """Which chains are still on their way while another is there: their scales are not those of the target."""
    return _is_above(np.median(np.where(np.isfinite(energy), energy, np.inf), axis=1), dim, num_sds)


def _is_above(energy: Float[np.ndarray, " chain"], dim: int, num_sds: float) -> Bool[np.ndarray, " chain"]:
    """Whose median energy lies so far above the lowest; at the target an energy has the sd √dim, if that is Gaussian.

    None does where energies are unknown.
    """
    return energy > np.min(energy) + num_sds * (1 + np.sqrt(dim))


def _restart_all(states: list[State], longest_step) -> list[State]:
    """The chains go on with the geometric mean of their step sizes, where they have one."""
    if states[0].step is None:
        return states
    average = np.mean([state.step.log_average for state in states], dtype=np.float64)
    dtype = states[0].step.log_average.dtype
    step_size = np.minimum(np.exp(average), longest_step).astype(dtype)
    return [state._replace(step=restart(step_size)) for state in states]


def like_old(new, old):
    """A metric or a reference, estimated in float64, in the precision of the run."""
    return jax.tree.map(lambda new, before: np.asarray(new, before.dtype), new, old)
