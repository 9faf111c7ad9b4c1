"""The finitely many values that discrete parameters may take, read off the supports of their priors."""

import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Float
from numpyro.distributions import constraints

from credo.model.target import Target
from credo.status import CredoError

MAX_VALUES = 1_000
NUM_EXAMPLES = 6


def finite_supports(target: Target) -> dict[str, tuple[int, int]]:
    """Name -> (lowest value, how many) of each discrete parameter; CredoError where they are not listed."""
    supports = {}

    def see(name, distribution, value):
        with jax.ensure_compile_time_eval():  # bounds computed from constants are constants
            supports[name] = distribution.support

    target.prior.survey(see)
    return {name: _finite(name, supports[name]) for name in target.structure.discrete_names}


def _finite(name: str, support) -> tuple[int, int]:
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    low, high = getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)
    if isinstance(support, type(constraints.boolean)):
        low, high = 0, 1
    if low is None or high is None or support.event_dim or any(isinstance(end, Tracer) for end in (low, high)):
        raise CredoError(
            f"The values of {name!r} are not finitely many (its support is {support}), so that no family of "
            "probabilities represents them: truncate it to a Categorical or DiscreteUniform, or fit Gibbs()."
        )
    low, high = int(np.min(low)), int(np.max(high))
    if high - low >= MAX_VALUES:
        raise CredoError(
            f"{name!r} may take {high - low + 1:,} values, and a family with a probability for each takes "
            f"{MAX_VALUES:,} at most: fit Gibbs()."
        )
    return low, high - low + 1


def examples(target: Target) -> Float[np.ndarray, "n dim"]:
    """Positions near the origin, whose discrete coordinates lie inside their supports."""
    generator = np.random.default_rng(0)
    supports = finite_supports(target) if target.structure.discrete_names else {}
    columns = [
        generator.integers(supports[leaf.name][0], sum(supports[leaf.name]), size=(NUM_EXAMPLES, leaf.size))
        if leaf.is_discrete
        else generator.normal(size=(NUM_EXAMPLES, leaf.size))
        for leaf in target.structure.leaves
    ]
    return np.concatenate([np.asarray(column, float) for column in columns], axis=1)
