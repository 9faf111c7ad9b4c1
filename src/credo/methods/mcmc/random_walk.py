"""Random-walk Metropolis (Metropolis et al. 1953) with Gaussian steps in the shape of a metric (Haario et al. 2001).

u' = u + ε S z,  z ~ N(0, I)                      ε: step_size; S: metric
accept u' with probability α = min(1, p(u') / p(u))

The best ε of many dimensions accepts 0.234 of the proposals (Roberts, Gelman & Gilks 1997), that of one dimension 0.44,
and then an independent draw takes 3 d proposals in d dimensions or more, however well S fits: a draw is num_steps of
them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from credo.algorithm import Algorithm
from credo.linalg.diagonal import Diagonal
from credo.linalg.operator import ScaleOperator
from credo.methods.mcmc.noise import start_of_transition
from credo.tree import where


class State(NamedTuple):
    position: Float[Array, " dim"]
    log_density: Float[Array, ""]

    @classmethod
    def like(cls, position) -> "State":
        """Right in shapes and types alone."""
        return cls(position, position.sum())


class Info(NamedTuple):
    """``acceptance``: mean α. ``num_densities``: evaluated; ``num_undefined``: of these, NaN or +inf."""

    acceptance: Float[Array, ""]
    num_densities: Int[Array, ""]
    num_undefined: Int[Array, ""]
    step_size: Float[Array, ""]


def random_walk(
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

    def init(key, position) -> State:
        return State(position, target.log_density(position))

    def step(key, state: State) -> tuple[State, Info]:
        dim, dtype = state.position.size, state.position.dtype
        scale = Diagonal(jnp.ones(dim, dtype)) if metric is None else metric

        def propose(i, carry):
            state, sum_acceptance, num_undefined = carry
            z, u = start_of_transition(jax.random.fold_in(key, i), dim, (), dtype)
            position = state.position + jnp.asarray(step_size, dtype) * scale.matvec(z)
            proposal = State(position, target.log_density(position))
            acceptance = metropolis(proposal.log_density - state.log_density)
            num_undefined = num_undefined + is_undefined(proposal.log_density).astype(jnp.int32)
            return where(u < acceptance, proposal, state), sum_acceptance + acceptance, num_undefined

        start = state, jnp.zeros((), dtype), jnp.int32(0)
        new, sum_acceptance, num_undefined = lax.fori_loop(0, num_steps, propose, start)
        acceptance, step = sum_acceptance / num_steps, jnp.asarray(step_size, dtype)
        return new, Info(acceptance, jnp.int32(num_steps), num_undefined, step)

    return Algorithm(init, step)


def is_undefined(log_density: Float[Array, ""]) -> Bool[Array, ""]:
    """Whether it is NaN or +inf, and not −inf, which is a density of 0."""
    return ~(log_density < jnp.inf)


def metropolis(log_ratio: Float[Array, ""]) -> Float[Array, ""]:
    """min(1, exp(log_ratio)); 0 where a density is not finite, so that no such proposal is accepted."""
    return jnp.where(jnp.isfinite(log_ratio), jnp.exp(jnp.minimum(log_ratio, 0)), 0)
