"""Elliptical slice sampling (Murray, Adams & MacKay 2010, figure 2): for Gaussian priors, with nothing to tune.

p(u | D) ∝ N(u | m, S Sᵀ) L(u)                    m, S: prior; L: the likelihood
log y = log L(u) − e,  e ~ Exponential(1)         drop: −e, held against differences of log L (see slice.py)
ν ~ N(0, S Sᵀ)                                    with u − m it spans an ellipse, along which the prior is constant
θ ~ Uniform(0, 2π),  [θ_min, θ_max] = [θ − 2π, θ]
u' = m + (u − m) cos θ + ν sin θ
    log L(u') > log y: accept u'; else θ_min or θ_max, whichever has the sign of θ, becomes θ, and θ ~ U(θ_min, θ_max)

A search that finds nothing leaves u where it is, which is fair as in slice.py. The prior's density is never evaluated.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex
from jaxtyping import Array, Bool, Float, Int

from credo.algorithm import Algorithm
from credo.equations import needed
from credo.methods.mcmc.noise import start_of_transition
from credo.methods.mcmc.random_walk import is_undefined
from credo.methods.mcmc.slice import MAX_SHRINKS, Info
from credo.posterior.kinds import Gaussian
from credo.tree import where


class State(NamedTuple):
    position: Float[Array, " dim"]
    log_likelihood: Float[Array, ""]

    @classmethod
    def like(cls, position) -> "State":
        """Right in shapes and types alone."""
        return cls(position, position.sum())


class Search(NamedTuple):
    angle: Float[Array, ""]  # θ
    lowest: Float[Array, ""]
    highest: Float[Array, ""]
    state: State
    num_densities: Int[Array, ""]
    num_undefined: Int[Array, ""]
    is_found: Bool[Array, ""]


def elliptical_slice(target, *, prior: Gaussian, num_steps: int = 1) -> Algorithm:
    """``num_steps`` transitions on ``target``, whose positions have the ``prior`` (see gaussian_prior.py)."""
    target = target.flat()

    def log_likelihood(u):
        if target.y is None or target.model.likelihood is None:
            return jnp.zeros((), u.dtype)
        # a target computes its prior on the way, by a triangular solve perhaps, which no native program may hold
        program = needed(jax.make_jaxpr(lambda u: jnp.sum(target.log_likelihood(u)))(u))
        return jex.jaxpr_as_fun(program)(u)[0]

    def init(key, position) -> State:
        return State(position, log_likelihood(position))

    def step(key, state: State) -> tuple[State, Info]:
        dim, dtype = state.position.size, state.position.dtype
        full = np.asarray(2 * np.pi, dtype)

        def transition(i, carry):
            state, count, num_undefined = carry
            key_i = jax.random.fold_in(key, i)
            z, (u_level, u_angle) = start_of_transition(jax.random.fold_in(key_i, 0), dim, (2,), dtype)
            drop = jnp.log1p(-u_level)
            deviation, nu = state.position - prior.mean, prior.scale.matvec(z)

            def is_under_way(search: Search):
                return ~search.is_found & (search.num_densities < MAX_SHRINKS)

            def look(search: Search) -> Search:
                angle, count = search.angle, search.num_densities + 1
                position = prior.mean + deviation * jnp.cos(angle) + nu * jnp.sin(angle)
                new = State(position, log_likelihood(position))
                rise = new.log_likelihood - state.log_likelihood
                is_unknown = is_undefined(new.log_likelihood)
                is_found = (rise > drop) & ~is_unknown
                lowest = jnp.where(angle < 0, angle, search.lowest)
                highest = jnp.where(angle < 0, search.highest, angle)
                uniform = jax.random.uniform(jax.random.fold_in(key_i, count), (), dtype)
                angle = lowest + uniform * (highest - lowest)
                num_undefined = search.num_undefined + is_unknown.astype(jnp.int32)
                return Search(angle, lowest, highest, new, count, num_undefined, is_found)

            angle = full * u_angle
            start = Search(angle, angle - full, angle, state, jnp.int32(0), num_undefined, jnp.bool_(False))
            end = lax.while_loop(is_under_way, look, start)
            return where(end.is_found, end.state, state), count + end.num_densities, end.num_undefined

        new, count, num_undefined = lax.fori_loop(0, num_steps, transition, (state, jnp.int32(0), jnp.int32(0)))
        return new, Info(count, num_undefined)

    return Algorithm(init, step)
