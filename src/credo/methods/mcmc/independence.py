"""The independence sampler (Hastings 1970; Tierney 1994, section 2.3.3): proposals from one fixed distribution.

u' ~ q,  w(u) = p(u, D) / q(u)                    q: proposal; log w: log_weight
accept u' with probability α = min(1, w(u') / w(u))

Where w ≤ M p(D), no more than (1 − 1/M)ⁿ of the start is left after n proposals (Mengersen & Tweedie 1996). Where w has
no bound, because q has lighter tails than the posterior, chains stay in those tails for as long as they please: the
weights of the proposals, which are independent, tell the two apart.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from credo.algorithm import Algorithm
from credo.methods.mcmc.random_walk import is_undefined, metropolis
from credo.posterior.kinds import Kind
from credo.tree import where


class State(NamedTuple):
    position: Float[Array, " dim"]
    log_density: Float[Array, ""]
    log_weight: Float[Array, ""]

    @classmethod
    def like(cls, position) -> "State":
        """Right in shapes and types alone."""
        return cls(position, position.sum(), position.sum())


class Info(NamedTuple):
    """``acceptance``: mean α. ``num_densities``: evaluated; ``num_undefined``: of these, NaN or +inf.

    ``log_weight``: those of the proposals, taken or not.
    """

    acceptance: Float[Array, ""]
    num_densities: Int[Array, ""]
    num_undefined: Int[Array, ""]
    log_weight: Float[Array, " num_steps"]


def independence(target, *, proposal: Kind, num_steps: int = 1) -> Algorithm:
    """``num_steps`` proposals from ``proposal``, a distribution over positions of ``target`` that has a density."""
    target = target.flat()

    def at(position) -> State:
        log_density = target.log_density(position)
        log_weight = log_density - proposal.log_prob_u(position).astype(position.dtype)
        return State(position, log_density, jnp.where(jnp.isnan(log_weight), -jnp.inf, log_weight))

    def init(key, position) -> State:
        return at(position)

    def step(key, state: State) -> tuple[State, Info]:
        dtype = state.position.dtype

        def propose(i, carry):
            state, log_weights, sum_acceptance, num_undefined = carry
            k_proposal, k_choice = jax.random.split(jax.random.fold_in(key, i))
            new = at(proposal.sample_u(k_proposal).astype(dtype))
            acceptance = metropolis(new.log_weight - state.log_weight)
            is_taken = jax.random.uniform(k_choice, (), dtype) < acceptance
            num_undefined = num_undefined + is_undefined(new.log_density).astype(jnp.int32)
            log_weights = log_weights.at[i].set(new.log_weight)
            return where(is_taken, new, state), log_weights, sum_acceptance + acceptance, num_undefined

        start = state, jnp.zeros(num_steps, dtype), jnp.zeros((), dtype), jnp.int32(0)
        new, log_weights, sum_acceptance, num_undefined = lax.fori_loop(0, num_steps, propose, start)
        return new, Info(sum_acceptance / num_steps, jnp.int32(num_steps), num_undefined, log_weights)

    return Algorithm(init, step)
