"""Stochastic-gradient Langevin dynamics (Welling & Teh 2011).

    v ← v + ½ ε g + √(ε T) z,   z ~ N(0, I)      v = u / s, g = s ∘ (an unbiased estimate of ∇ log p(u, D))

Where the density is Gaussian with precision λ in v and the gradient has variance V, the stationary variance is
(1 + ε V / 4) / (1 − ε λ / 4) times the right one: the bias vanishes with ε.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from credo.algorithm import Algorithm
from credo.methods.sgmcmc.dynamics import Dynamics, Info, repeated
from credo.normals import normal_apart, split


class State(NamedTuple):
    """``count``: steps taken."""

    position: Float[Array, " dim"]
    count: Int[Array, ""]


def sgld(dynamics: Dynamics) -> Algorithm:
    """A step of the algorithm is ``dynamics.num_steps`` updates."""

    def init(key, position) -> State:
        return State(position, jnp.zeros((), jnp.int32))

    def update(key, state: State) -> tuple[State, Float[Array, "2"]]:
        k_batch, k_noise = split(key)
        ε, T = dynamics.at(state.count)
        g = dynamics.force(k_batch, state.position, ε)
        z = normal_apart(k_noise, state.position.shape, state.position.dtype, state.count)
        position = state.position + dynamics.scale * (0.5 * ε * g + jnp.sqrt(ε * T) * z)
        return State(position, state.count + 1), dynamics.seen(state.position, g, ε)

    def step(key, state: State) -> tuple[State, Info]:
        return repeated(update, dynamics, key, state)

    return Algorithm(init, step)
