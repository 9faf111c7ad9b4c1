"""Stochastic gradient ascent of constant steps, read as a sampler (Mandt, Hoffman & Blei 2017, section 4).

    v ← v + ε g                 v = u / s, g = s ∘ (an unbiased estimate of ∇ log p(u, D) of variance V)

Near a mode of curvature A the stationary covariance Σ solves A Σ + Σ A = ε V, to first order in ε: Σ = A⁻¹ asks
ε V = 2 I. With s = V^−½ (``NoiseScale``) that is ε = 2 in every coordinate, exact where V is diagonal; ε = 2 T for
Σ = T A⁻¹.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from credo.algorithm import Algorithm
from credo.methods.sgmcmc.dynamics import Dynamics, Info, repeated
from credo.methods.sgmcmc.sgld import State


def constant_sgd(dynamics: Dynamics) -> Algorithm:
    """A step of the algorithm is ``dynamics.num_steps`` updates."""

    def init(key, position) -> State:
        return State(position, jnp.zeros((), jnp.int32))

    def update(key, state: State) -> tuple[State, Float[Array, "2"]]:
        ε, _ = dynamics.at(state.count)
        g = dynamics.force(key, state.position, ε)
        return State(state.position + ε * dynamics.scale * g, state.count + 1), dynamics.seen(state.position, g, ε)

    def step(key, state: State) -> tuple[State, Info]:
        return repeated(update, dynamics, key, state)

    return Algorithm(init, step)
