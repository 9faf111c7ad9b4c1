"""The stochastic-gradient Nosé-Hoover thermostat (Ding et al. 2014): a friction ξ that adapts to the gradients' noise.

    dv = r dt,  dr = g dt − ξ r dt + √(2 A) dW,  dξ = (rᵀr / d − T) dt        v = u / s, unit masses

Gradient noise of any constant size raises ξ until the kinetic temperature is T in the mean over coordinates: that of
a direction with noise V is T (A + h V / 2T) / (A + h V̄ / 2T), and steps are short where the noise is uneven
(methods.py). The parts are solved exactly, in a symmetric order with one gradient a step (Leimkuhler & Shang 2016):
A B D O D B A with

    A  v ← v + ½ h r        B  r ← r + ½ h g        D  ξ ← ξ + ½ h (rᵀr / d − T)
    O  r ← e^{−ξh} r + √(2 A (1 − e^{−2ξh}) / (2 ξ)) z

A cyclical schedule explores at T = 0, where ξ could only rise: it waits, and the friction is A.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from credo.algorithm import Algorithm
from credo.methods.sgmcmc.dynamics import Dynamics, Info, repeated
from credo.normals import normal, normal_apart, split


class State(NamedTuple):
    """``friction``: ξ. ``count``: steps taken."""

    position: Float[Array, " dim"]
    momentum: Float[Array, " dim"]
    friction: Float[Array, ""]
    count: Int[Array, ""]


def nose_hoover(dynamics: Dynamics, diffusion) -> Algorithm:
    """``diffusion``: A. A step of the algorithm is ``dynamics.num_steps`` updates."""

    def init(key, position) -> State:
        r = normal(key, position.shape, position.dtype)
        return State(position, r, jnp.asarray(diffusion, position.dtype), jnp.zeros((), jnp.int32))

    def update(key, state: State) -> tuple[State, Float[Array, "2"]]:
        k_batch, k_noise = split(key)
        h, T = dynamics.at(state.count)
        middle = state.position + 0.5 * h * dynamics.scale * state.momentum
        g = dynamics.force(k_batch, middle, h)
        r = state.momentum + 0.5 * h * g
        ξ = jnp.where(T > 0, state.friction + 0.5 * h * (jnp.mean(r * r) - T), diffusion)
        x = 2 * ξ * h
        decay = jnp.where(jnp.abs(x) < 1e-6, 1 - 0.5 * x, -jnp.expm1(-x) / jnp.where(x == 0, 1, x))  # (1 − e^−x) / x
        z = normal_apart(k_noise, r.shape, r.dtype, state.count)
        r = jnp.exp(-ξ * h) * r + jnp.sqrt(2 * diffusion * T * h * decay) * z
        ξ = jnp.where(T > 0, ξ + 0.5 * h * (jnp.mean(r * r) - T), state.friction)
        r = r + 0.5 * h * g
        position = middle + 0.5 * h * dynamics.scale * r
        return State(position, r, ξ, state.count + 1), dynamics.seen(middle, g, h)

    def step(key, state: State) -> tuple[State, Info]:
        return repeated(update, dynamics, key, state)

    return Algorithm(init, step)
