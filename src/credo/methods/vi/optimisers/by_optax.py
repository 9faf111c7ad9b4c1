"""Optax's optimisers as those of an ascent: their steps, times the step size that the ascent has come to.

    step = ρ · optax(F⁻¹g)

so that what adapts to the size of gradients (Adam and its kin) still comes to rest as reviews lower ρ. A natural
gradient is one in coordinates whose information is known: of the unit normal to which q is moved for the time of a
step. Learning rates are in units of q's own widths.
"""

from dataclasses import dataclass

import jax
import optax

from credo.methods.vi.optimisers.optimiser import Optimiser
from credo.status import CredoError


@dataclass(frozen=True)
class ByOptax(Optimiser):
    """``transformation`` minimises, as all of optax do: it is given what leads down. Raises CredoError, at the fit, for
    one that asks for parameters, such as those with weight decay, or for values of the objective.
    """

    transformation: optax.GradientTransformation

    def start(self, rest):
        return self.transformation.init(rest)

    def update(self, direction, state, step_size):
        step, state = scaled(self.transformation, jax.tree.map(lambda g: -g, direction), state, step_size)
        return step, state


def scaled(transformation: optax.GradientTransformation, direction, state, step_size):
    """(step, new state) of the direction ρ g: ``transformation`` of g, times ρ."""
    try:
        bare, state = transformation.update(jax.tree.map(lambda g: g / step_size, direction), state)
    except (TypeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise CredoError(
            f"This optimiser of optax asks for more than gradients ({reason}): for parameters to decay, or for values "
            "to search a line by, and the steps of an ascent have neither. Use one such as optax.adam(0.1)."
        ) from error
    return jax.tree.map(lambda leaf: step_size * leaf, bare), state


def as_optimiser(optimiser: "Optimiser | optax.GradientTransformation") -> Optimiser:
    return optimiser if isinstance(optimiser, Optimiser) else ByOptax(optimiser)
