"""The Metropolis-adjusted Langevin algorithm (Besag 1994; Roberts & Tweedie 1996), preconditioned by a metric.

u' = u + ε S (b(u) + z),  z ~ N(0, I)         ε: step_size; S: metric; b: the drift
u = u' + ε S (b(u') + z')                     z' = −z − b(u) − b(u'): the noise that would lead back
accept u' with probability α = min(1, p(u') N(z' | 0, I) / (p(u) N(z | 0, I)))

b(u) = ½ ε Sᵀ∇log p(u): HMC with one leapfrog step, where z is the momentum and ½ zᵀz − ½ z'ᵀz' the change of kinetic
energy. The best ε of many dimensions accepts 0.574 of the proposals (Roberts & Rosenthal 1998).

b is cut to the length √dim + 1, that of a long draw of z (the truncated algorithm of Roberts & Tweedie, section 1.4.1).
Where log p falls faster than a parabola, as −eᵘ of a log rate does, drifts grow without bound: no noise leads back from
where they lead, and a chain would all but never enter there, and look well mixed. Cut drifts lead back.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from credo.algorithm import Algorithm
from credo.gradients import value_and_gradient
from credo.linalg.diagonal import Diagonal
from credo.linalg.operator import ScaleOperator
from credo.methods.mcmc.noise import start_of_transition
from credo.methods.mcmc.nuts import State
from credo.methods.mcmc.random_walk import is_undefined, metropolis
from credo.tree import where


class Info(NamedTuple):
    """``acceptance``: mean α. ``num_steps``: gradients evaluated; ``num_undefined``: densities of NaN or +inf."""

    acceptance: Float[Array, ""]
    num_steps: Int[Array, ""]
    num_undefined: Int[Array, ""]
    step_size: Float[Array, ""]


def mala(
    target,
    *,
    step_size: float | Float[Array, ""],
    num_steps: int = 1,
    metric: ScaleOperator | None = None,
) -> Algorithm:
    """``num_steps`` proposals on ``target`` (positions in R^dim).

    ``metric``: S, whose S Sᵀ resembles the covariance; identity if None.
    """
    target = target.flat()
    evaluate = value_and_gradient(target.log_density)

    def init(key, position) -> State:
        return State(position, *evaluate(position))

    def drift(state: State, scale: ScaleOperator, epsilon: Float[Array, ""]) -> Float[Array, " dim"]:
        """b(u)."""
        whole = 0.5 * epsilon * scale.transpose_matvec(state.gradient)
        longest, length = math.sqrt(whole.size) + 1.0, jnp.linalg.norm(whole)
        return jnp.where(length > longest, longest / length, 1.0) * whole

    def step(key, state: State) -> tuple[State, Info]:
        dim, dtype = state.position.size, state.position.dtype
        scale = Diagonal(jnp.ones(dim, dtype)) if metric is None else metric
        epsilon = jnp.asarray(step_size, dtype)

        def propose(i, carry):
            state, b, sum_acceptance, num_undefined = carry
            z, u = start_of_transition(jax.random.fold_in(key, i), dim, (), dtype)
            position = state.position + epsilon * scale.matvec(b + z)
            proposal = State(position, *evaluate(position))
            new_b = drift(proposal, scale, epsilon)
            back = z + b + new_b  # −z'
            kinetic = 0.5 * jnp.sum(z * z) - 0.5 * jnp.sum(back * back)
            acceptance = metropolis(proposal.log_density - state.log_density + kinetic)
            state, b = where(u < acceptance, (proposal, new_b), (state, b))
            num_undefined = num_undefined + is_undefined(proposal.log_density).astype(jnp.int32)
            return state, b, sum_acceptance + acceptance, num_undefined

        start = state, drift(state, scale, epsilon), jnp.zeros((), dtype), jnp.int32(0)
        new, _, sum_acceptance, num_undefined = lax.fori_loop(0, num_steps, propose, start)
        return new, Info(sum_acceptance / num_steps, jnp.int32(num_steps), num_undefined, epsilon)

    return Algorithm(init, step)
