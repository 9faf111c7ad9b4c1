"""Stochastic-gradient Hamiltonian Monte Carlo (Chen, Fox & Guestrin 2014), each part of the dynamics solved exactly.

    B  r ← r + h g(v)                                the one gradient of the step
    A  v ← v + ½ h r                                 v = u / s, unit masses
    O  r ← e^{−γh} r + √(T (1 − e^{−2γh})) z         two half steps of the Ornstein-Uhlenbeck process of friction γ
    A again

With exact gradients the error of averages is of order h² (Leimkuhler & Matthews 2013), and none where the density is
normal: for g = −v the covariance diag(T, T) of (v, r) before B is that after A, whatever h < 2. The draw is where the
force is taken, so that the thermometer (dynamics.py) sees the same point; half a drift further the variance would be
T (1 − h²/4), which no force tells of. Gradients of variance V heat the chain by a share h V / (2 γ).
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
        keep = jnp.exp(-friction * h)
        z = normal_apart(k_noise, state.position.shape, h.dtype, state.count)
        g = dynamics.force(k_batch, state.position, h)
        r = state.momentum + h * g
        middle = state.position + 0.5 * h * dynamics.scale * r
        r = keep * r + jnp.sqrt(T * (1 - keep**2)) * z
        position = middle + 0.5 * h * dynamics.scale * r
        return State(position, r, state.count + 1), dynamics.seen(state.position, g, h)

    def step(key, state: State) -> tuple[State, Info]:
        return repeated(update, dynamics, key, state)

    return Algorithm(init, step)
