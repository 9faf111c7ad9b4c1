"""Symplectic integrators of Hamilton's equations, as palindromes of kicks and drifts (Leimkuhler & Reich 2004, ch. 4).

With potential −log p(u) and metric S (the inverse mass matrix is S Sᵀ, a scale operator), momenta are kept *white*:
r = Sᵀp ~ N(0, I), so that the kinetic energy is ½ rᵀr whatever the metric, and U-turns are inner products of r.
    kick  r ← r + b_i ε Sᵀ∇log p(u)        drift  u ← u + a_i ε S r
    b_0, a_1, b_1, …, a_k, b_k              k = num_gradients a step: the gradient at the end is kept for the next.
One place in the program evaluates the gradient, however many stages there are.

*Split* integrators take the Gaussian part of the potential out of the kicks and into the drifts, where it is solved
exactly (Shahbaba, Lan, Johnson & Neal 2014, section 2). In white coordinates q = S⁻¹(u − m) about a ``Reference`` of
centre m, −log p(u) = ½ qᵀq + rest:
    kick  r ← r + b_i ε (Sᵀ∇log p(u) + q)        drift  (q, r) ← rotated by the angle a_i ε
What a step errs by is then of the rest alone: nothing for a Gaussian, whatever its dimension.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from credo.linalg.operator import ScaleOperator, Stored
from credo.status import CredoError


class Point(NamedTuple):
    """A point of phase space: u, r, the force Sᵀ∇log p(u), log p(u), and q, None where nothing rotates."""

    position: Float[Array, " dim"]
    momentum: Float[Array, " dim"]
    force: Float[Array, " dim"]
    log_density: Float[Array, ""]
    white: Any = None  # (dim,)


class Reference(NamedTuple):
    """The Gaussian N(m, S Sᵀ) round which split integrators rotate, if it ``rotates``.

    ``longest``: a step size of which rotations have no more use; infinite where nothing rotates. ``is_whole``: the
    target is nearly this Gaussian.
    """

    centre: Float[Stored, " dim"]
    rotates: Bool[Stored | np.bool, ""]
    longest: Float[Stored, ""]
    is_whole: Bool[Stored | np.bool, ""]

    def white(self, metric: ScaleOperator, position) -> Float[Array, " dim"]:
        return metric.solve(position - self.centre)

    def drift(self, q, r, angle):
        """(q, r) after ``angle``: a rotation, or a straight line."""
        cosine, sine = jnp.where(self.rotates, jnp.cos(angle), 1), jnp.where(self.rotates, jnp.sin(angle), 0)
        return cosine * q + jnp.where(self.rotates, sine, angle) * r, cosine * r - sine * q

    def max_depth(self, step_size) -> Int[Array, ""]:
        """Doublings of a trajectory that moves by a quarter of a circle on average, ½ 2^depth steps; many elsewhere.

        A quarter makes the next draw of a Gaussian independent of the last one. A U-turn is half a circle.
        """
        quarter = jnp.round(jnp.log2(jnp.pi / step_size)).astype(jnp.int32)
        return jnp.where(self.is_whole, jnp.maximum(quarter, 1), jnp.iinfo(jnp.int32).max)


def starting_point(state, momentum, metric: ScaleOperator, reference: Reference | None) -> Point:
    """Where a trajectory begins: ``state`` has a position, its log density and its gradient."""
    white = None if reference is None else reference.white(metric, state.position)
    return Point(state.position, momentum, metric.transpose_matvec(state.gradient), state.log_density, white)


@dataclass(frozen=True)
class Integrator:
    """``kicks`` b_0 … b_k and ``drifts`` a_1 … a_k, each summing to one; palindromes, so that it is reversible.

    ``is_split``: warm-up finds a ``Reference`` for it.
    """

    kicks: tuple[float, ...]
    drifts: tuple[float, ...]
    is_split: bool = False

    def __post_init__(self):
        sizes = len(self.drifts), len(self.kicks)
        if sizes[0] < 1 or sizes[1] != sizes[0] + 1:
            raise CredoError(f"An integrator has one kick more than drifts; got {sizes[1]} and {sizes[0]}.")
        for name, values in (("kicks", self.kicks), ("drifts", self.drifts)):
            if not (np.allclose(values, values[::-1]) and np.isclose(sum(values), 1)):
                raise CredoError(
                    f"The {name} {values} are no palindrome of sum one: without it trajectories cannot be run "
                    "backwards, and draws are of another distribution."
                )

    @property
    def num_gradients(self) -> int:
        return len(self.drifts)

    def step(
        self,
        value_and_gradient: Callable,
        metric: ScaleOperator,
        point: Point,
        step_size,
        reference: Reference | None = None,
    ) -> tuple[Point, Float[Array, " dim"]]:
        """One step of ``step_size``, negative for backwards in time -> (point, ∇log p there).

        ``reference``: for which ``point`` has its q; None where nothing rotates.
        """

        def kick(point: Point, b) -> Point:
            force = point.force
            if reference is not None:
                force = jnp.where(reference.rotates, force + point.white, force)
            return point._replace(momentum=point.momentum + b * step_size * force)

        def stage(point: Point, a, b):
            white, momentum, move = None, point.momentum, a * step_size * point.momentum
            if reference is not None:
                white, momentum = reference.drift(point.white, point.momentum, a * step_size)
                move = white - point.white
            position = point.position + metric.matvec(move)
            log_density, gradient = value_and_gradient(position)
            force = metric.transpose_matvec(gradient)
            return kick(Point(position, momentum, force, log_density, white), b), gradient

        point = kick(point, self.kicks[0])
        if self.num_gradients == 1:
            return stage(point, self.drifts[0], self.kicks[1])
        dtype = point.position.dtype
        drifts, kicks = jnp.asarray(self.drifts, dtype), jnp.asarray(self.kicks[1:], dtype)
        start = point, jnp.zeros_like(point.force)
        return lax.fori_loop(0, self.num_gradients, lambda i, now: stage(now[0], drifts[i], kicks[i]), start)


LEAPFROG = Integrator((0.5, 0.5), (1.0,))  # second order
SPLIT = Integrator((0.5, 0.5), (1.0,), is_split=True)  # the same, round a Gaussian reference
# Second order with the smallest error of its kind of two gradients a step: McLachlan (1995), λ = 0.1932.
MINIMUM_ERROR = Integrator((0.1931833275037836, 0.6136333449924328, 0.1931833275037836), (0.5, 0.5))
