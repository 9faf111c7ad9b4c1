"""Symplectic integrators of Hamilton's equations, as palindromes of kicks and drifts (Leimkuhler & Reich 2004, ch. 4).

With potential −log p(u) and metric S (the inverse mass matrix is S Sᵀ, a scale operator), momenta are kept *white*:
r = Sᵀp ~ N(0, I), so that the kinetic energy is ½ rᵀr whatever the metric, and U-turns are inner products of r.
    kick  r ← r + b_i ε Sᵀ∇log p(u)        drift  u ← u + a_i ε S r
    b_0, a_1, b_1, …, a_k, b_k              k = num_gradients a step: the gradient at the end is kept for the next.
One place in the program evaluates the gradient, however many stages there are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from credo.linalg.operator import ScaleOperator


class Point(NamedTuple):
    """A point of phase space: u, r, the force Sᵀ∇log p(u) and log p(u)."""

    position: Float[Array, " dim"]
    momentum: Float[Array, " dim"]
    force: Float[Array, " dim"]
    log_density: Float[Array, ""]


@dataclass(frozen=True)
class Integrator:
    """``kicks`` b_0 … b_k and ``drifts`` a_1 … a_k, each summing to one; palindromes, so that it is reversible."""

    kicks: tuple[float, ...]
    drifts: tuple[float, ...]

    @property
    def num_gradients(self) -> int:
        return len(self.drifts)

    def step(
        self, value_and_gradient: Callable, metric: ScaleOperator, point: Point, step_size
    ) -> tuple[Point, Float[Array, " dim"]]:
        """One step of ``step_size``, negative for backwards in time -> (point, ∇log p there)."""

        def stage(point: Point, a, b):
            position = point.position + a * step_size * metric.matvec(point.momentum)
            log_density, gradient = value_and_gradient(position)
            force = metric.transpose_matvec(gradient)
            return Point(position, point.momentum + b * step_size * force, force, log_density), gradient

        point = point._replace(momentum=point.momentum + self.kicks[0] * step_size * point.force)
        if self.num_gradients == 1:
            return stage(point, self.drifts[0], self.kicks[1])
        dtype = point.position.dtype
        drifts, kicks = jnp.asarray(self.drifts, dtype), jnp.asarray(self.kicks[1:], dtype)
        start = point, jnp.zeros_like(point.force)
        return lax.fori_loop(0, self.num_gradients, lambda i, now: stage(now[0], drifts[i], kicks[i]), start)


LEAPFROG = Integrator((0.5, 0.5), (1.0,))  # second order
# Second order with the smallest error of its kind of two gradients a step: McLachlan (1995), λ = 0.1932.
MINIMUM_ERROR = Integrator((0.1931833275037836, 0.6136333449924328, 0.1931833275037836), (0.5, 0.5))
