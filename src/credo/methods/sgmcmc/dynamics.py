"""What the stochastic-gradient samplers share: scaled forces, schedules, and a thermometer.

The thermometer: at the target with density p(u)^{1/T} any coordinate has E[−(u_i − c_i) ∂_i log p(u)] = T, whatever the
constant c (integrate by parts). Gradients that are unbiased serve as well as exact ones, and the batch of a step is
independent of where it is taken: the mean of −(v − c)ᵀg / d shows by how much step size and noise heat the chain, and
that of −aᵀ(v − c) aᵀg along a direction a how much there, where the noise may be many times the mean.

No step of fixed length holds everywhere: where a density's curvature grows without bound, chains of explicit steps run
away to infinity in the end (Hutzenthaler, Jentzen & Kloeden 2011). Forces are therefore bounded, coordinate by
coordinate, where a kick would be many times the usual (Brosse, Durmus, Moulines & Sabanis 2019 tame them so).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from credo.methods.sgmcmc.gradient import Gradient
from credo.methods.sgmcmc.schedule import Schedule
from credo.normals import fold_in


class Info(NamedTuple):
    """``temperature``: of the configuration, a mean over the updates; ``directed``: along each of the directions.

    ``num_steps``: gradients evaluated. ``bounded``: the share of updates in which a force was bounded.
    """

    temperature: Float[Array, ""]
    directed: Float[Array, " directions"]
    bounded: Float[Array, ""]
    num_steps: Int[Array, ""]
    step_size: Float[Array, ""]


@dataclass(frozen=True)
class Dynamics:
    """``first``, ``total``: steps of warm-up and of sampling, which the schedule counts. ``center``: c above;
    ``directions``: each an a.

    ``power``: the step size is ε^(power / 2), and the schedule is one of ε. ``most``: √ε |g_i| is bounded by it.
    """

    gradient: Gradient
    scale: Float[Array, " dim"]
    step_size: Float[Array, ""]
    center: Float[Array, " dim"]
    most: Float[Array, ""]
    directions: Float[Array, "directions dim"]
    schedule: Schedule
    temperature: float
    num_steps: int
    first: int
    total: int
    power: int

    def at(self, count) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """(step size, temperature) of step ``count``."""
        t = jnp.maximum(count - self.first, 0)
        size = self.step_size * self.schedule.factor(t, self.total) ** (self.power / 2)
        T = jnp.where(self.schedule.is_hot(t, self.total), self.temperature, 0.0)
        return size.astype(self.scale.dtype), T.astype(self.scale.dtype)

    def force(self, key, u, size) -> Float[Array, " dim"]:
        """s ∘ g, bounded for a step of this ``size``."""
        most = self._most(size)
        return jnp.clip(self.scale * self.gradient(key, u), -most, most)

    def _most(self, size) -> Float[Array, ""]:
        return self.most / size ** (1 / self.power)

    def seen(self, u, force, size) -> Float[Array, " seen"]:
        """(temperature of the configuration, whether a force was bounded, temperatures along the directions)."""
        is_bounded = jnp.any(jnp.abs(force) >= self._most(size))
        away = (u - self.center) / self.scale
        directed = -(self.directions @ away) * (self.directions @ force)
        return jnp.concatenate([jnp.stack([-jnp.mean(away * force), is_bounded.astype(force.dtype)]), directed])


def repeated(update: Callable, dynamics: Dynamics, key, state: Any) -> tuple[Any, Info]:
    """``dynamics.num_steps`` updates."""

    def body(i, carry):
        state, total = carry
        state, seen = update(fold_in(key, i), state)
        return state, total + seen

    zeros = jnp.zeros(2 + len(dynamics.directions), dynamics.scale.dtype)
    state, total = lax.fori_loop(0, dynamics.num_steps, body, (state, zeros))
    total = total / dynamics.num_steps
    size, _ = dynamics.at(state.count - 1)
    return state, Info(total[0], total[2:], total[1], jnp.int32(dynamics.num_steps), size)
