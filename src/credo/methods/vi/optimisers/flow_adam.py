"""The optimiser of flows: Adam for the weights of their layers (Kingma & Ba 2015, algorithm 1), with ρ g the direction.

    m ← β₁ m + (1 − β₁) g,  v ← β₂ v + (1 − β₂) g²,  step = ρ · learning_rate · m̂ / (v̂^½ + ε)

Nobody knows the weights' information; their steps are in proportion to the step size of the ascent. Splines act near
the Gaussian that they bend, which moves by natural gradients with momentum, as it does without them. Affine layers do
themselves what the Gaussian does: its information is no longer q's, natural gradients overshoot where q is much
narrower than the Gaussian, and it moves by Adam too.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from credo.methods.vi.optimisers.momentum import Momentum
from credo.methods.vi.optimisers.optimiser import Optimiser
from credo.status import CredoError


class FlowTangent(NamedTuple):
    """``step_size``: not a coordinate; how the optimiser learns of the ascent's."""

    affine: Any
    layers: Any
    step_size: Float[Array, ""]


@dataclass(frozen=True)
class FlowAdam(Optimiser):
    """``learning_rate``: of a weight in one step at ρ = 1. ``affine_rate``: that of the Gaussian's tangent; None for
    momentum along natural gradients. ``decay``, ``decay_of_squares``: β₁ and β₂ in [0, 1). Raises CredoError, at the
    fit, for families that are no flows.
    """

    learning_rate: float = 0.3
    affine_rate: float | None = None
    decay: float = field(default=0.9, metadata={"at_least": 0.0, "below": 1.0})
    decay_of_squares: float = field(default=0.99, metadata={"at_least": 0.0, "below": 1.0})

    def start(self, rest: FlowTangent):
        if not isinstance(rest, FlowTangent):
            raise CredoError(
                "FlowAdam() moves the layers of a flow, and this family is none: leave optimiser out, or use "
                "vi.Momentum()."
            )
        natural, adapted = self._shared(rest)
        return Momentum(self.decay).start(natural), adapted, adapted, jnp.zeros_like(rest.step_size)

    def update(self, direction: FlowTangent, state):
        speed, m, v, count = state
        natural, adapted = self._shared(direction)
        natural, speed = Momentum(self.decay).update(natural, speed)
        b1, b2, count = self.decay, self.decay_of_squares, count + 1
        g = jax.tree.map(lambda g: g / direction.step_size, adapted)
        m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, m, g)
        v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.square(g), v, g)
        bare = jax.tree.map(lambda m, v: m / (1 - b1**count) / (jnp.sqrt(v / (1 - b2**count)) + 1e-8), m, v)
        affine, layers = (
            jax.tree.map(lambda leaf, rate=rate: direction.step_size * rate * leaf, tree)
            for tree, rate in zip(bare, (self.affine_rate or 0.0, self.learning_rate), strict=True)
        )
        affine = natural if self.affine_rate is None else affine
        return FlowTangent(affine, layers, jnp.zeros_like(direction.step_size)), (speed, m, v, count)

    def _shared(self, tangent: FlowTangent):
        """What moves by natural gradients, and what by Adam: the Gaussian, or (), and the layers."""
        if self.affine_rate is None:
            return tangent.affine, ((), tangent.layers)
        return (), (tangent.affine, tangent.layers)
