"""The optimiser of flows: Adam for the weights of their layers (Kingma & Ba 2015, algorithm 1).

Nobody knows the weights' information; their steps are in proportion to the step size of the ascent (by_optax.py).
Splines act near the Gaussian that they bend, which moves by natural gradients with momentum, as it does without them.
Affine layers do themselves what the Gaussian does: its information is no longer q's, natural gradients overshoot where
q is much narrower than the Gaussian, and it moves by Adam too.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import optax

from credo.methods.vi.optimisers.by_optax import scaled
from credo.methods.vi.optimisers.momentum import Momentum
from credo.methods.vi.optimisers.optimiser import Optimiser
from credo.status import CredoError


class FlowTangent(NamedTuple):
    """``affine``: that of the Gaussian. ``layers``: what is added to the weights."""

    affine: Any
    layers: Any


@dataclass(frozen=True)
class FlowAdam(Optimiser):
    """``learning_rate``: of a weight in one step at ρ = 1. ``affine_rate``: that of the Gaussian's tangent; None for
    momentum along natural gradients. ``decay``, ``decay_of_squares``: β₁ and β₂ in [0, 1). Raises CredoError, at the
    fit, for families that are no flows: those take ``optax.adam(0.1)`` itself.
    """

    learning_rate: float = 0.3
    affine_rate: float | None = None
    decay: float = field(default=0.9, metadata={"at_least": 0.0, "below": 1.0})
    decay_of_squares: float = field(default=0.99, metadata={"at_least": 0.0, "below": 1.0})

    def start(self, rest: FlowTangent):
        if not isinstance(rest, FlowTangent):
            raise CredoError(
                "FlowAdam() moves the layers of a flow, and this family is none: leave optimiser out, or use "
                "vi.Momentum() or optax.adam(0.1)."
            )
        natural, adapted = self._shared(rest)
        return Momentum(self.decay).start(natural), self._adam.init(adapted)

    def update(self, direction: FlowTangent, state, step_size):
        speed, moments = state
        natural, adapted = self._shared(direction)
        natural, speed = Momentum(self.decay).update(natural, speed, step_size)
        (affine, layers), moments = scaled(self._adam, adapted, moments, step_size)
        affine = natural if self.affine_rate is None else jax.tree.map(lambda leaf: self.affine_rate * leaf, affine)
        return FlowTangent(affine, jax.tree.map(lambda leaf: self.learning_rate * leaf, layers)), (speed, moments)

    @property
    def _adam(self) -> optax.GradientTransformation:
        return optax.scale_by_adam(self.decay, self.decay_of_squares)

    def _shared(self, tangent: FlowTangent):
        """What moves by natural gradients, and what by Adam: the Gaussian, or (), and the layers."""
        if self.affine_rate is None:
            return tangent.affine, ((), tangent.layers)
        return (), tangent
