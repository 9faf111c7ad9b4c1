"""Data sets of known parameters about a posterior: new data beside those that it has seen.

Säilynoja, Schmitt, Bürkner & Vehtari (2025, arXiv 2502.03279): of θ* ~ p(θ | y), y* ~ p(y* | θ*) and draws of
p(θ | y, y*), the rank of θ* is uniform, as under the prior, which p(θ | y) has replaced.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credo.algorithm import stream
from credo.diagnose.simulation.ranks import independent_draws
from credo.diagnose.simulation.simulate import DATA, TRUTH, Truths, draw_data, keys_of
from credo.model.check import check_likelihood
from credo.model.distributions import Scaled, is_distribution
from credo.model.draws import check_replicable
from credo.model.target import Target
from credo.model.visit import AbstractPrior, Params, See, Value, Visited
from credo.posterior.posterior import Posterior
from credo.status import CredoError

SEEN, NEW = "observed", "replicated"


def from_posterior(posterior: Posterior, num_simulations: int, key) -> Truths:
    """Parameters from ``posterior``, new data at the inputs that it has seen; targets hold the data of both."""
    if not isinstance(posterior, Posterior):
        raise CredoError(
            f"Calibration about a posterior takes a posterior, as credo.fit returns; got {type(posterior).__name__}."
        )
    target = posterior.target
    if target.y is None or target.model.likelihood is None:
        raise CredoError("Calibration about a posterior needs a likelihood and observed y: this has none.")
    check_replicable(target.model, target.x)
    if target.missing is not None:
        raise CredoError("The posterior has missing outcomes: fit it to the rows that have one, without missing=.")
    positions, num_effective = independent_draws(posterior, num_simulations, stream(key, TRUTH))
    if not num_effective >= num_simulations:
        raise CredoError(
            f"The posterior is worth {num_effective:.0f} independent draws, and {num_simulations} simulations need "
            "one each: draw longer, or ask for fewer."
        )
    model = eqx.tree_at(
        lambda m: (m.prior, m.likelihood),
        target.model,
        (Alone(target.model.prior), Twice(target.model.likelihood, target.weights)),
    )

    def make(y) -> Target:
        num_terms, _ = check_likelihood(model, target.x, y)
        return Target(model, target.x, y, None, target.structure, target.size, num_terms, None, target.levels)

    def draw(index):
        u = positions[index % num_simulations]
        new = draw_data(target.model, target.x, u, keys_of(key, DATA, index), target.y)
        seen = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (len(index), *np.shape(leaf))), target.y)
        return u, together(seen, new)

    return Truths(num_simulations, draw, make)


def together(seen, new) -> dict[str, Any]:
    """Outcomes, or distributions of them, by name, and those of the new data beside them."""
    if isinstance(seen, dict):
        return {**seen, **{f"{name}_{NEW}": new[name] for name in seen}}
    return {SEEN: seen, NEW: new}


class Twice(eqx.Module):
    """The likelihood of the data that were seen, with their weights, and of new ones, each of which counts once."""

    likelihood: Any
    weights: Float[Array, " N"] | Float[np.ndarray, " N"] | None

    def __call__(self, params, x):
        once = self.likelihood(params, x)
        if self.weights is None:
            return together(once, once)
        seen = jax.tree.map(lambda d: _weighted(d, self.weights), once, is_leaf=is_distribution)
        return together(seen, once)


def _weighted(distribution, weights) -> Scaled:
    ndim = max(1, len(distribution.batch_shape))
    return Scaled(distribution, jnp.reshape(weights, (-1,) + (1,) * (ndim - 1)))


class Alone(AbstractPrior):
    """A prior whose program no longer says what the distribution of the data is: the likelihood does."""

    inner: AbstractPrior

    def __init__(self, inner: AbstractPrior):
        self.inner = inner

    @property
    def names(self) -> tuple[str, ...] | None:
        return self.inner.names

    @property
    def factors(self) -> tuple[str, ...]:
        return self.inner.factors

    def visit(self, value: Value, see: See, key=None) -> Visited:
        return self.inner.visit(value, see, key)._replace(outcome=None)

    def recorded(self, params: Params) -> dict[str, Any]:
        return self.inner.recorded(params)
