"""Stochastic-gradient Hamiltonian Monte Carlo (Chen, Fox & Guestrin 2014), each part of the dynamics solved exactly.

    O  r ← e^{−γh/2} r + √(T (1 − e^{−γh})) z        half a step of the Ornstein-Uhlenbeck process of friction γ
    A  v ← v + ½ h r
    B  r ← r + h g(v)                                the one gradient of the step
    A, O again                                       v = u / s, unit masses

With exact gradients the error of averages is of order h² (Leimkuhler & Matthews 2013); gradients of variance V heat the
chain by a share h V / (2 γ).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from credo.algorithm import Algorithm
from credo.methods.sgmcmc.dynamics import Dynamics, Info, repeated
from credo.normals import normal, normal_apart, split


class State(NamedTuple):
    """``momentum``: r, in units of the scaled position. ``count``: steps taken."""

    position: Float[Array, " dim"]
    momentum: Float[Array, " dim"]
    count: Int[Array, ""]


def sghmc(dynamics: Dynamics, friction) -> Algorithm:
    """A step of the algorithm is ``dynamics.num_steps`` updates."""

    def init(key, position) -> State:
        return State(position, normal(key, position.shape, position.dtype), jnp.zeros((), jnp.int32))

    def update(key, state: State) -> tuple[State, Float[Array, "2"]]:
        k_batch, k_noise = split(key)
        h, T = dynamics.at(state.count)
        keep = jnp.exp(-0.5 * friction * h)
        z = normal_apart(k_noise, (2, *state.position.shape), h.dtype, state.count)
        before, after = jnp.sqrt(T * (1 - keep**2)) * z
        r = keep * state.momentum + before
        middle = state.position + 0.5 * h * dynamics.scale * r
        g = dynamics.force(k_batch, middle, h)
        r = r + h * g
        position = middle + 0.5 * h * dynamics.scale * r
        return State(position, keep * r + after, state.count + 1), dynamics.seen(middle, g, h)

    def step(key, state: State) -> tuple[State, Info]:
        return repeated(update, dynamics, key, state)

    return Algorithm(init, step)
