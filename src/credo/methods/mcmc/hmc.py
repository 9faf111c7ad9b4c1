"""Hamiltonian Monte Carlo (Duane et al. 1987; Neal 2011, section 5.3) with trajectories of random length.

H(u, r) = −log p(u) + ½ rᵀr                energy; r ~ N(0, I) in the metric's white coordinates (integrators.py)
L ~ Uniform{1, …, 2 num_steps − 1}         steps: a fixed number can return to where it began (Mackenzie 1989)
accept the end of L steps with probability α = min(1, exp(H_0 − H_L))
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from credo.algorithm import Algorithm, Stages
from credo.gradients import value_and_gradient
from credo.linalg.diagonal import Diagonal
from credo.linalg.operator import ScaleOperator
from credo.methods.mcmc.integrators import LEAPFROG, Integrator, Point, Reference, starting_point
from credo.methods.mcmc.noise import start_of_transition
from credo.methods.mcmc.nuts import MAX_ENERGY_ERROR, State
from credo.tree import where


class Info(NamedTuple):
    """``acceptance``: α. ``num_steps``: gradients evaluated. ``energy``: H_0."""

    acceptance: Float[Array, ""]
    num_steps: Int[Array, ""]
    is_divergent: Bool[Array, ""]
    energy: Float[Array, ""]
    step_size: Float[Array, ""]


class Trajectory(NamedTuple):
    num_taken: Int[Array, ""]
    point: Point  # its end
    gradient: Float[Array, " dim"]
    start: State
    last: Int[Array, ""]  # L
    uniform: Float[Array, ""]
    kinetic: Float[Array, ""]  # at the start


def hmc(
    target,
    *,
    step_size: float | Float[Array, ""],
    num_steps: int,
    metric: ScaleOperator | None = None,
    integrator: Integrator = LEAPFROG,
    reference: Reference | None = None,
) -> Algorithm:
    """HMC on ``target`` (positions in R^dim) with ``num_steps`` steps on average.

    ``metric``: S, whose S Sᵀ resembles the covariance; identity if None.
    ``reference``: the Gaussian whose paths are solved exactly, if any.
    """
    target = target.flat()
    evaluate = value_and_gradient(target.log_density)

    def init(key, position) -> State:
        return State(position, *evaluate(position))

    def begin(key, state: State, previous) -> Trajectory:
        dim, dtype = state.position.size, state.position.dtype
        momentum, (length, u) = start_of_transition(key, dim, (2,), dtype)
        last = 1 + jnp.floor(length * (2 * num_steps - 1)).astype(jnp.int32)
        kinetic = 0.5 * jnp.sum(momentum * momentum)
        point = starting_point(state, momentum, scale_of(state), reference)
        return Trajectory(jnp.int32(0), point, state.gradient, state, last, u, kinetic)

    def scale_of(state: State) -> ScaleOperator:
        return Diagonal(jnp.ones_like(state.position)) if metric is None else metric

    def advance(t: Trajectory) -> Trajectory:
        size = jnp.asarray(step_size, t.kinetic.dtype)
        point, gradient = integrator.step(evaluate, scale_of(t.start), t.point, size, reference)
        return t._replace(num_taken=t.num_taken + 1, point=point, gradient=gradient)

    def is_divergent(t: Trajectory):
        return ~(_log_weight(t) > -MAX_ENERGY_ERROR)  # NaN is one too

    def end(t: Trajectory) -> tuple[State, Info]:
        acceptance = jnp.where(is_divergent(t), 0, jnp.exp(jnp.minimum(_log_weight(t), 0)))
        end = State(t.point.position, t.point.log_density, t.gradient)
        info = Info(
            acceptance,
            t.num_taken * integrator.num_gradients,
            is_divergent(t),
            t.kinetic - t.start.log_density,
            jnp.asarray(step_size, t.kinetic.dtype),
        )
        return where(t.uniform < acceptance, end, t.start), info

    stages = Stages(begin, advance, lambda t: (t.num_taken >= t.last) | is_divergent(t), end)
    return Algorithm(init, stages.step, stages)


def _log_weight(t: Trajectory) -> Float[Array, ""]:
    """H_0 − H of the end: large log densities first, whose difference is small."""
    kinetic = 0.5 * jnp.sum(t.point.momentum * t.point.momentum)
    return (t.point.log_density - t.start.log_density) + (t.kinetic - kinetic)
