"""A point: no spread at all, for parameters that only support those of interest (the features below a last layer).

    q = δ(m);  tangent a: m ← m + a;  a = ρ r g / rms(g), the gradient brought to a length in units of the position

A point has no density, so that the objective of a family with points in it bounds no evidence: with m held fixed it is
the evidence lower bound of the other parameters, and m is found by maximising it (type-II maximum likelihood).
"""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from credo.methods.vi.families.family import Draw, Family
from credo.posterior.kinds import Point as PointKind

RATE = 0.02  # of the position in a step at ρ = 1, root mean square: from a mode, points have little way to go


@dataclass(frozen=True)
class Point(Family):
    """``Blocks({"weights.last": FullRank()}, others=Point())``: the last layer has a posterior, the features a value.

    For networks and minibatches, within ``Blocks``: alone it would be ``MAP()``.
    """

    has_correlations: ClassVar[bool] = False

    @property
    def has_density(self) -> bool:
        return False

    def start(self, mean, sd) -> PointKind:
        return PointKind(mean)

    def around(self, mean, precision) -> PointKind:
        return PointKind(mean)

    def center(self, q: PointKind):
        return q.position

    def variances(self, q: PointKind):
        return jnp.zeros_like(q.position)

    def rest(self, q: PointKind):
        return jnp.zeros_like(q.position)

    def draw(self, q: PointKind, tangent, z) -> Draw:
        u = q.position + tangent
        return Draw(u, jnp.zeros((), u.dtype))

    def entropy(self, q: PointKind, tangent):
        return jnp.zeros((), tangent.dtype)

    def natural(self, gradient, step_size):
        length = jnp.sqrt(jnp.mean(jnp.square(gradient)))
        return step_size * RATE * gradient / jnp.maximum(length, jnp.finfo(gradient.dtype).tiny)

    def contract(self, q: PointKind) -> PointKind:
        return q

    def move(self, q: PointKind, tangent) -> PointKind:
        return PointKind(q.position + tangent)
