"""What parallel tempering learns while it warms up, and the evidence that it gives.

With r_k the rejection of swaps between k and k + 1, Λ(β_k) = Σ_{j<k} r_j is the *communication barrier* up to β_k,
whatever the temperatures in between; the best ones make all r_k equal, and are where Λ(β) is a multiple of Λ(1)/K (Syed
et al. 2022, section 5.1). Each window of warm-up ends with
    1. the temperatures   from Λ, linear in between
    2. the step sizes     one a temperature, by dual averaging within the window, carried over to where Λ is the same
    3. the metrics        one a temperature, from its draws and gradients
Without a prior to begin at and a likelihood to add, the first windows have all replicas at the posterior, scattered as
the starts of chains are; then the reference is the Gaussian of the means and WIDTH times the sds of where these are.

Evidence: log Z_1/Z_0 = Σ_k log E_k[e^{δℓ/2}] − log E_{k+1}[e^{−δℓ/2}], δ = β_{k+1} − β_k (a geometric bridge, Bennett
1976).
"""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from scipy.special import logsumexp

from credo.algorithm import Algorithm, Phase
from credo.diagnose.convergence import mcse_mean
from credo.linalg.diagonal import Diagonal
from credo.linalg.operator import ScaleOperator
from credo.methods.mcmc.metric import MetricEstimator
from credo.methods.mcmc.parallel_tempering import Replicas, parallel_tempering
from credo.methods.mcmc.warmup import DualAveraging, restart, update, windows
from credo.posterior.kinds import Gaussian, Kind
from credo.status import Estimate
from credo.tree import where

NUM_GATHERING = 3  # windows, of 57 steps in all
WIDTH = 2.0  # of the reference, in sds of what was found: modes nobody started near are then still within reach
FIRST_POWER = 4  # β_k = (k/K)⁴: what a likelihood says over the prior takes many orders of magnitude
LEAST_REJECTION = 1e-3  # so that temperatures between which nothing is rejected stay apart


class Tuning(NamedTuple):
    """What all chains share. ``metric``: arrays with an axis of replicas in front."""

    betas: Float[Array, " replica"]
    metric: ScaleOperator
    reference: Kind | None
    target_acceptance: Float[Array, ""]
    is_adapting: Bool[Array, ""]


class State(NamedTuple):
    """``step``: arrays with an entry a replica."""

    kernel: Replicas
    step: DualAveraging

    @property
    def position(self):
        return self.kernel.position


@dataclass(frozen=True)
class Ladder:
    """Parallel tempering for the one loop."""

    num_steps: int

    def algorithm(self, target, tuning: Tuning) -> Algorithm:
        def kernel(step: DualAveraging) -> Algorithm:
            return parallel_tempering(
                target,
                betas=tuning.betas,
                step_size=jnp.exp(step.log_step),
                num_steps=self.num_steps,
                reference=tuning.reference,
                metric=tuning.metric,
            )

        def init(key, position) -> State:
            step = restart(np.ones(len(position), position.dtype))
            return State(kernel(step).init(key, position), step)

        def step(key, state: State):
            new, info = kernel(state.step).step(key, state.kernel)
            adapted = update(state.step, info.acceptance, tuning.target_acceptance)
            return State(new, where(tuning.is_adapting, adapted, state.step)), info

        return Algorithm(init, step)

    def record(self, state: State) -> dict[str, Any]:
        """``position``: of the replica at the posterior."""
        names = ("gain", "base_gradient", "gain_gradient")
        kept = {name: getattr(state.kernel, name) for name in names}
        return kept | {"position": state.kernel.position[-1], "replicas": state.kernel.position}


def first_betas(num_temperatures: int, dtype) -> Float[np.ndarray, " replica"]:
    return (np.linspace(0, 1, num_temperatures) ** FIRST_POWER).astype(dtype)


# warm-up --------------------------------------------------------------------------------------------------------------


def phases(num_warmup: int, metric: MetricEstimator, *, is_gathering: bool) -> list[Phase]:
    """Windows as of the other samplers."""
    if num_warmup == 0:
        return []
    *growing, last = windows(num_warmup)
    kept = ("replicas", "gain", "base_gradient", "gain_gradient")

    def window(index: int, num_steps: int) -> Phase:
        if is_gathering and index < NUM_GATHERING:
            barrier = end_gathering if index == NUM_GATHERING - 1 else end_window
            return Phase("warmup", num_steps, kept, functools.partial(barrier, metric, True))
        return Phase("warmup", num_steps, kept, functools.partial(end_window, metric, False))

    return [*(window(i, n) for i, n in enumerate(growing)), Phase("warmup", last, (), end_warmup)]


def end_window(metric: MetricEstimator, is_gathering: bool, records, tuning: Tuning, states: list[State]):
    """New metrics and, where there is a ladder yet, temperatures."""
    kept, info = records
    found = metrics(metric, kept, tuning, is_gathering)
    log_step = np.mean([state.step.log_average for state in states], axis=0, dtype=np.float64)
    betas = tuning.betas.astype(np.float64)
    if not is_gathering:
        barrier = cumulative_barrier(info.rejection)
        even = np.linspace(0, barrier[-1], len(barrier))
        nearest = np.argmin(np.abs(barrier[1:, None] - even[1:]), axis=0) + 1
        found = jax.tree.map(lambda a: a[np.concatenate([[0], nearest])], found)
        log_step = np.interp(even, barrier, log_step)
        betas = equally_rejecting(betas, barrier)
    tuning = tuning._replace(metric=found, betas=betas.astype(tuning.betas.dtype))
    return tuning, _restart(states, log_step)


def end_gathering(metric: MetricEstimator, is_gathering: bool, records, tuning: Tuning, states: list[State]):
    """The reference, from where the replicas were in the second half of the window."""
    tuning, states = end_window(metric, is_gathering, records, tuning, states)
    replicas = records[0]["replicas"]
    found = replicas[:, replicas.shape[1] // 2 :].reshape(-1, replicas.shape[-1]).astype(np.float64)
    dtype = replicas.dtype
    sd = np.std(found, axis=0)
    sd = np.where((sd > 0) & np.isfinite(sd), sd, 1.0)
    reference = Gaussian(np.mean(found, axis=0).astype(dtype), Diagonal((WIDTH * sd).astype(dtype)))
    betas = first_betas(len(tuning.betas), dtype)
    states = [state._replace(kernel=_beside(reference, state.kernel)) for state in states]
    return tuning._replace(reference=reference, betas=betas), states


def end_warmup(records, tuning: Tuning, states: list[State]):
    log_step = np.mean([state.step.log_average for state in states], axis=0, dtype=np.float64)
    return tuning._replace(is_adapting=np.bool_(False)), _restart(states, log_step)


def metrics(metric: MetricEstimator, kept: dict[str, np.ndarray], tuning: Tuning, is_shared: bool) -> ScaleOperator:
    """One a replica, or one for all of them where they have one target."""
    with np.errstate(invalid="ignore"):  # 0 times a gain that overflowed
        gradients = kept["base_gradient"] + tuning.betas[:, None] * kept["gain_gradient"]

    def estimate(k: int, positions, gradients):
        previous = jax.tree.map(lambda a: a[k], tuning.metric)
        return _in_precision(metric.estimate(positions, gradients, previous), previous)

    if is_shared:
        pooled = [np.moveaxis(a, 2, 1).reshape(-1, *a.shape[1::2]) for a in (kept["replicas"], gradients)]
        found = [estimate(0, *pooled)] * len(tuning.betas)
    else:
        found = [estimate(k, kept["replicas"][:, :, k], gradients[:, :, k]) for k in range(1, len(tuning.betas))]
        found = [found[0], *found]  # the first is drawn anew, whatever its metric
    return stack(found)


def cumulative_barrier(rejection: Float[np.ndarray, "chain step pair"]) -> Float[np.ndarray, " replica"]:
    """Λ(β_k)."""
    mean = np.nan_to_num(np.mean(rejection, axis=(0, 1), dtype=np.float64), nan=1.0)
    return np.concatenate([[0.0], np.cumsum(np.maximum(mean, LEAST_REJECTION))])


def equally_rejecting(betas, barrier) -> Float[np.ndarray, " replica"]:
    """Temperatures between which swaps are rejected equally often, from Λ at ``betas``."""
    found = np.interp(np.linspace(0, barrier[-1], len(barrier)), barrier, betas)
    found[0], found[-1] = 0, 1
    return found


def stack(metrics: list[ScaleOperator]) -> ScaleOperator:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *metrics)


def _in_precision(metric: ScaleOperator, old: ScaleOperator) -> ScaleOperator:
    return jax.tree.map(lambda new, before: np.asarray(new, before.dtype), metric, old)


def _restart(states: list[State], log_step) -> list[State]:
    dtype = states[0].step.log_step.dtype
    return [state._replace(step=restart(np.exp(log_step).astype(dtype))) for state in states]


def _beside(reference: Gaussian, replicas: Replicas) -> Replicas:
    """The same positions with a new π_0; on the host, since all that is asked of the target is known."""
    dtype, scale = replicas.position.dtype, reference.scale.diagonal() ** 0.5
    z = (replicas.position - reference.mean) / scale
    log_base = -0.5 * np.sum(z**2, axis=1) - np.sum(np.log(scale)) - 0.5 * z.shape[1] * np.log(2 * np.pi)
    log_density, gradient = replicas.log_base + replicas.gain, replicas.base_gradient + replicas.gain_gradient
    return replicas._replace(
        log_base=log_base.astype(dtype),
        gain=(log_density - log_base).astype(dtype),
        base_gradient=(-z / scale).astype(dtype),
        gain_gradient=(gradient + z / scale).astype(dtype),
    )


# evidence -------------------------------------------------------------------------------------------------------------


def log_evidence(gain: Float[np.ndarray, "chain draw replica"], betas: Float[np.ndarray, " replica"]) -> Estimate:
    """log Z_1/Z_0; its error is that of the mean over draws of the sum of all terms, linearised (delta method)."""
    gain, betas = gain.astype(np.float64), betas.astype(np.float64)
    half = 0.5 * np.diff(betas)
    value, influence = 0.0, np.zeros(gain.shape[:2])
    for log_w, sign in ((half * gain[:, :, :-1], 1), (-half * gain[:, :, 1:], -1)):
        log_mean = logsumexp(log_w, axis=(0, 1)) - np.log(gain.shape[0] * gain.shape[1])
        value += sign * np.sum(log_mean)
        influence += sign * np.sum(np.exp(log_w - log_mean), axis=-1)
    return Estimate(float(value), float(mcse_mean(influence[:, :, None])[0]), "monte carlo")
