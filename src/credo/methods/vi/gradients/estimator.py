"""The interface of gradient estimators.

An estimator gives a *surrogate*: its value is the objective's estimate on K draws of q, and its derivative in the
tangent ξ of q at zero has the mean of the objective's gradient. Any objective meets any estimator, but where a
sentence says that they do not go together.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from credo.methods.vi.families.family import Family, Noise, Tangent
from credo.methods.vi.families.family import antithetic_normal as antithetic_normal  # re-exported
from credo.methods.vi.minibatch import Anchor, anchored
from credo.methods.vi.objectives.objective import Objective, WeightObjective
from credo.model.data import Rows
from credo.model.target import Target
from credo.posterior.kinds import Kind
from credo.status import CredoError

LogDensity = Callable[[Float[Array, " dim"]], Float[Array, ""]]


@dataclass(frozen=True)
class Estimator(ABC):
    """A gradient estimator. A subclass is a frozen dataclass of settings: compiled code is keyed on it.

    ``has_paths``: it differentiates the log density along draws that move with q; else it asks for its values alone.
    """

    has_paths: ClassVar[bool] = True

    def check(self, objective: Objective, family: Family, target: Target, num_samples: int) -> None:
        """CredoError, a sentence, where they do not go together."""
        if target.structure.discrete_names:
            raise CredoError(
                f"Parameter {target.structure.discrete_names[0]!r} is discrete, and {type(self).__name__}() follows "
                "draws along the gradient: take ADVI(gradient=ScoreFunction()), or fit Gibbs()."
            )

    def gradients_a_draw(self, dim: int) -> int:
        """What a draw costs; a product with a Hessian counts as one."""
        return 1

    def prepare(self, target: Target, has_rows: bool = True) -> Any:
        """What the estimator must know of the target beforehand: a pytree of arrays, made once a fit.

        ``has_rows``: the likelihood will be that of all rows, and not of minibatches.
        """
        return ()

    def density(self, target: Target, anchor: Anchor | None, batch_size: int | None, key) -> Callable:
        """u -> log p(u, D), or its estimate on one random batch."""
        return anchored(target, anchor, batch_size, key)

    def on_rows(self, target: Target, batch: Rows | None) -> Callable:
        """What ``density`` gives, on the rows of ``batch`` (all of them where it is None)."""
        return lambda u: target.log_density(u, batch)

    def noise(self, objective: Objective, family: Family, key, num_samples: int, dim: int) -> Noise:
        """What ``num_samples`` draws are made from."""
        return grouped_noise(objective, family, key, num_samples, dim)

    @abstractmethod
    def surrogate(
        self,
        objective: Objective,
        family: Family,
        q: Kind,
        tangent: Tangent,
        log_density: LogDensity,
        z: Noise,
        known: Any,
        draws_at_once: int,
    ) -> Float[Array, ""]:
        """The objective's estimate on the draws that ``z`` makes; its derivative in ``tangent`` at zero is unbiased.

        ``log_density``: the target's, on full data or on a minibatch. ``known``: what ``prepare`` gave.
        ``draws_at_once``: how many draws fit into memory together.
        """


def grouped_noise(objective: Objective, family: Family, key, num_samples: int, dim: int) -> Noise:
    """Noise of draws that are independent within each group of the objective; groups come in mirrored pairs.

    Mirrored draws within a group would break the rule by which path derivatives stand for scores: it holds for one
    draw while the others stay where they are.
    """
    size = objective.group_size
    if size == 1:
        return family.noise(key, num_samples, dim)
    keys = jax.random.split(key, num_samples // (2 * size))
    z = jax.vmap(lambda key: family.noise(key, 2 * size, dim))(keys)
    return jax.tree.map(lambda leaf: jnp.reshape(leaf, (num_samples, *leaf.shape[2:])), z)


def by_scores(objective: WeightObjective, value, weights, log_prob):
    """A surrogate of this value with the derivative mean_groups Σ_k weights_k ∂ log q(u_k); all are (K,)."""
    num_groups = log_prob.size // objective.group_size
    moved = log_prob - jax.lax.stop_gradient(log_prob)
    return jax.lax.stop_gradient(value) + jnp.dot(jax.lax.stop_gradient(weights), moved) / num_groups


def linearised(f: LogDensity) -> LogDensity:
    """f, with its gradient worked out along with its value: all that reverse mode then has to keep of it."""

    def evaluate(u):
        here = jax.lax.stop_gradient(u)
        value, gradient = jax.value_and_grad(f)(here)
        return value + jnp.dot(gradient, u - here)

    return evaluate
