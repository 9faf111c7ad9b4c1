"""Hamiltonian Monte Carlo (Duane et al. 1987; Neal 2011, section 5.3) with trajectories of random length.

H(u, r) = −log p(u) + ½ rᵀr                energy; r ~ N(0, I) in the metric's white coordinates (integrators.py)
L ~ Uniform{1, …, 2 num_steps − 1}         steps: a fixed number can return to where it began (Mackenzie 1989)
accept the end of L steps with probability α = min(1, exp(H_0 − H_L))
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from credo.linalg.diagonal import Diagonal
from credo.linalg.operator import ScaleOperator
from credo.methods.mcmc.integrators import LEAPFROG, Integrator, Point
from credo.methods.mcmc.noise import start_of_transition
from credo.methods.mcmc.nuts import MAX_ENERGY_ERROR, State
from credo.native import value_and_gradient
from credo.run import Algorithm
from credo.tree import where


class Info(NamedTuple):
    """``acceptance``: α. ``num_steps``: gradients evaluated. ``energy``: H_0."""

    acceptance: Float[Array, ""]
    num_steps: Int[Array, ""]
    is_divergent: Bool[Array, ""]
    energy: Float[Array, ""]
    step_size: Float[Array, ""]


def hmc(
    target,
    *,
    step_size: float | Float[Array, ""],
    num_steps: int,
    metric: ScaleOperator | None = None,
    integrator: Integrator = LEAPFROG,
) -> Algorithm:
    """HMC on ``target`` (positions in R^dim) with ``num_steps`` steps on average.

    ``metric``: S, whose S Sᵀ resembles the covariance; identity if None.
    """
    target = target.flat()
    evaluate = value_and_gradient(target.log_density)

    def init(key, position) -> State:
        return State(position, *evaluate(position))

    def step(key, state: State) -> tuple[State, Info]:
        dim, dtype = state.position.size, state.position.dtype
        scale = Diagonal(jnp.ones(dim, dtype)) if metric is None else metric
        momentum, (length, u) = start_of_transition(key, dim, (2,), dtype)
        last = 1 + jnp.floor(length * (2 * num_steps - 1)).astype(jnp.int32)
        energy = 0.5 * jnp.sum(momentum * momentum) - state.log_density

        def energy_error(point: Point):
            return energy + point.log_density - 0.5 * jnp.sum(point.momentum * point.momentum)

        def is_under_way(carry):
            i, point, _ = carry
            return (i < last) & (energy_error(point) > -MAX_ENERGY_ERROR)  # NaN stops too

        def advance(carry):
            i, point, _ = carry
            return i + 1, *integrator.step(evaluate, scale, point, jnp.asarray(step_size, dtype))

        start = Point(state.position, momentum, scale.transpose_matvec(state.gradient), state.log_density)
        num_taken, end, gradient = lax.while_loop(is_under_way, advance, (jnp.int32(0), start, state.gradient))
        error = energy_error(end)
        is_divergent = ~(error > -MAX_ENERGY_ERROR)
        acceptance = jnp.where(is_divergent, 0, jnp.exp(jnp.minimum(error, 0)))
        new = where(u < acceptance, State(end.position, end.log_density, gradient), state)
        num_gradients = num_taken * integrator.num_gradients
        return new, Info(acceptance, num_gradients, is_divergent, energy, jnp.asarray(step_size, dtype))

    return Algorithm(init, step)
