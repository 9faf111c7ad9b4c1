"""ChEES-HMC (Hoffman, Radul & Sountsov 2021): many chains whose trajectories have one length, learnt from all of them.

H(u, r) = −log p(u) + ½ rᵀr              energy; r ~ N(0, I) in the metric's white coordinates x = S⁻¹u (integrators.py)
t_n = h_n T,  L_n = ⌈t_n / ε⌉            step n of every chain: h_n is van der Corput's sequence, so that none waits
accept the end u', r' of L_n steps with probability α = min(1, exp(H_0 − H_L))

The best length T changes the squared distance |u − c|² to the centre c most, as it maximises
    ¼ E[(|u' − c|² − |u − c|²)²],  |v|² = vᵀD⁻¹v,  D = diag S Sᵀ
    g = t_n (|u' − c|² − |u − c|²) (u' − c)ᵀD⁻¹S r'    length_gradient: the derivative by log T that one chain sees
The mean of g over chains, weighted by α, is what warm-up climbs (cross_chain.py).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from credo.algorithm import Algorithm, Stages
from credo.gradients import value_and_gradient
from credo.linalg.diagonal import Diagonal
from credo.linalg.operator import ScaleOperator
from credo.methods.mcmc.integrators import LEAPFROG, Integrator, Point, Reference, starting_point
from credo.methods.mcmc.noise import start_of_transition
from credo.methods.mcmc.nuts import MAX_ENERGY_ERROR
from credo.tree import where


class State(NamedTuple):
    """``index``: n, the steps made so far."""

    position: Float[Array, " dim"]
    log_density: Float[Array, ""]
    gradient: Float[Array, " dim"]
    index: Int[Array, ""]

    @classmethod
    def like(cls, position) -> "State":
        """Right in shapes and types alone."""
        return cls(position, position.sum(), position, position.sum().astype("int32"))


class Info(NamedTuple):
    """``acceptance``: α. ``num_steps``: gradients evaluated. ``energy``: H_0. ``length``: T."""

    acceptance: Float[Array, ""]
    num_steps: Int[Array, ""]
    is_divergent: Bool[Array, ""]
    energy: Float[Array, ""]
    step_size: Float[Array, ""]
    length: Float[Array, ""]
    length_gain: Float[Array, ""]
    length_gradient: Float[Array, ""]


class Trajectory(NamedTuple):
    num_taken: Int[Array, ""]
    point: Point  # its end
    gradient: Float[Array, " dim"]
    start: State
    last: Int[Array, ""]  # L_n
    uniform: Float[Array, ""]
    kinetic: Float[Array, ""]  # at the start


def chees(
    target,
    *,
    step_size: float | Float[Array, ""],
    length: float | Float[Array, ""],
    centre: Float[Array, " dim"] | None = None,
    metric: ScaleOperator | None = None,
    max_num_steps: int = 1_000,
    integrator: Integrator = LEAPFROG,
    reference: Reference | None = None,
) -> Algorithm:
    """HMC on ``target`` (positions in R^dim) with trajectories up to ``length`` in white coordinates.

    ``centre``: c, for ``length_gradient`` alone; zero if None. ``metric``: S, whose S Sᵀ resembles the covariance;
    identity if None. ``reference``: the Gaussian whose paths are solved exactly, if any.
    """
    target = target.flat()
    evaluate = value_and_gradient(target.log_density)

    def init(key, position) -> State:
        log_density, gradient = evaluate(position)
        return State(position, log_density, gradient, jnp.int32(0))

    def scale_of(state: State) -> ScaleOperator:
        return Diagonal(jnp.ones_like(state.position)) if metric is None else metric

    def begin(key, state: State, previous) -> Trajectory:
        dim, dtype = state.position.size, state.position.dtype
        momentum, u = start_of_transition(key, dim, (), dtype)
        last = jnp.ceil(time_of(state) / jnp.asarray(step_size, dtype))
        kinetic = 0.5 * jnp.sum(momentum * momentum)
        point = starting_point(state, momentum, scale_of(state), reference)
        last = jnp.clip(last, 1, max_num_steps).astype(jnp.int32)
        return Trajectory(jnp.int32(0), point, state.gradient, state, last, u, kinetic)

    def time_of(state: State) -> Float[Array, ""]:
        """t_n."""
        dtype = state.position.dtype
        return van_der_corput(state.index + 1, dtype) * jnp.asarray(length, dtype)

    def advance(t: Trajectory) -> Trajectory:
        size = jnp.asarray(step_size, t.kinetic.dtype)
        point, gradient = integrator.step(evaluate, scale_of(t.start), t.point, size, reference)
        return t._replace(num_taken=t.num_taken + 1, point=point, gradient=gradient)

    def is_divergent(t: Trajectory):
        return ~(_log_weight(t) > -MAX_ENERGY_ERROR)  # NaN is one too

    def judge_length(t: Trajectory):
        """(length_gain, length_gradient)."""
        scale, c = scale_of(t.start), jnp.zeros_like(t.gradient) if centre is None else centre
        variance, before, after = scale.diagonal(), t.start.position - c, t.point.position - c
        change = jnp.sum((after * after - before * before) / variance)
        slope = jnp.sum(after / variance * scale.matvec(t.point.momentum))
        time = t.num_taken.astype(change.dtype) * jnp.asarray(step_size, change.dtype)
        return 0.25 * change * change, time * change * slope

    def end(t: Trajectory) -> tuple[State, Info]:
        dtype = t.kinetic.dtype
        acceptance = jnp.where(is_divergent(t), 0, jnp.exp(jnp.minimum(_log_weight(t), 0)))
        index = t.start.index + 1
        info = Info(
            acceptance,
            t.num_taken * integrator.num_gradients,
            is_divergent(t),
            t.kinetic - t.start.log_density,
            jnp.asarray(step_size, dtype),
            jnp.asarray(length, dtype),
            *judge_length(t),
        )
        new = State(t.point.position, t.point.log_density, t.gradient, index)
        return where(t.uniform < acceptance, new, t.start._replace(index=index)), info

    stages = Stages(begin, advance, lambda t: (t.num_taken >= t.last) | is_divergent(t), end)
    return Algorithm(init, stages.step, stages)


def van_der_corput(n: Int[Array, ""], dtype) -> Float[Array, ""]:
    """The n-th number of van der Corput's sequence ½, ¼, ¾, ⅛, …: the binary digits of n behind the point, reversed."""
    n = lax.bitcast_convert_type(n, jnp.uint32)
    for width, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF), (16, 0x0000FFFF)):
        shift, mask = jnp.uint32(width), jnp.uint32(mask)
        n = ((n >> shift) & mask) | ((n & mask) << shift)
    return n.astype(dtype) * jnp.asarray(2.0**-32, dtype)


def _log_weight(t: Trajectory) -> Float[Array, ""]:
    """H_0 − H of the end: large log densities first, whose difference is small."""
    kinetic = 0.5 * jnp.sum(t.point.momentum * t.point.momentum)
    return (t.point.log_density - t.start.log_density) + (t.kinetic - kinetic)
