"""A head that a user writes: its natural outputs z are what the network gives, beside the head's own parameters.

No distribution tells them, and no formula their Fisher information F = E[g gᵀ], g = ∂ log p(y | z). It is a sum over
all outcomes where these can be listed, or over the nodes of Gauss and Hermite of a normal outcome with a covariance,
whose g is of second order in y; else an average over draws of y, g by autodiff: unbiased, never negative.
"""

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, UInt32

from credo.model.distributions import is_distribution
from credo.model.draws import draw
from credo.model.heads import Head
from credo.model.target import log_prob_rows

DRAWS = 2**16  # of all rows: an information that they share is known to about a percent
FEWEST, MOST = 32, 1024  # a row
NUMBERS = 2**24  # of the gradients of all rows


@dataclass(frozen=True)
class UserHead(ABC):
    """What ``Head`` is for distributions that are known. Outcomes may be a dict. Hashable, as programs are keyed on it.

    ``join`` takes the outputs of one row, or of rows that share the head's own parameters.
    """

    name: ClassVar[str] = "the user's"
    column: ClassVar[str | None] = None

    @property
    @abstractmethod
    def parameters(self) -> tuple[str, ...]:
        """The names of the head's own."""

    @abstractmethod
    def natural(self, distribution, params, x) -> Float[Array, "M K"]:
        """z at ``params`` and ``x``."""

    @abstractmethod
    def join(self, z: Float[Array, "M K"], distribution) -> Any:
        """p(y | z), one factor a row; ``distribution`` has nothing that z has not."""

    def log_prob(self, z: Float[Array, "M K"], y) -> Float[Array, " M"]:
        """log p(yᵢ | zᵢ), each row by itself: its z is its own, that of the head's parameters too."""
        return jax.vmap(self._of_row)(z, y)

    def scores(
        self, z: Float[Array, "M K"], seeds: UInt32[Array, " M"], size: int
    ) -> tuple[Float[Array, "M S K"], Float[Array, "M S"]]:
        """(g, w) with F = Σ w g gᵀ in each row, which draws by its own seed. ``size``: rows in all."""
        number = int(np.clip(min(DRAWS, NUMBERS // z.shape[1]) // max(size, 1), FEWEST, MOST))
        key = jax.random.key(0)

        def of_row(z, seed):
            distribution = self.join(z[None], None)
            listed, nodes = _listed(distribution), _nodes(distribution, number)
            if listed is not None:
                y = listed
            elif nodes is not None:
                y = nodes[0]
            else:
                y = self._draws(z, jax.random.fold_in(key, seed), number)
            logs, g = jax.vmap(jax.value_and_grad(self._of_row), (None, 0))(z, y)
            # a draw that underflows to the edge of the support says nothing
            is_known = jnp.isfinite(logs) & jnp.all(jnp.isfinite(g), axis=-1)
            if listed is not None:
                w = jnp.exp(logs)
            else:
                w = jnp.full_like(logs, 1.0 / number) if nodes is None else jnp.asarray(nodes[1], logs.dtype)
            return jnp.where(is_known[:, None], g, 0.0), jnp.where(is_known, w, 0.0)

        return jax.vmap(of_row)(z, seeds)

    def _of_row(self, z, y) -> Float[Array, ""]:
        return log_prob_rows(self.join(z[None], None), jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], y))[0]

    def _draws(self, z, key, number: int):
        parts, structure = jax.tree.flatten(self.join(z[None], None), is_leaf=is_distribution)
        keys = jax.random.split(key, len(parts))
        drawn = [draw(d, k, (number,))[:, 0] for d, k in zip(parts, keys, strict=True)]
        return jax.tree.unflatten(structure, drawn)


AnyHead = Head | UserHead


def _nodes(distribution, most: int) -> tuple[Array, np.ndarray] | None:
    """(outcomes (V, K) of one row, weights (V,)) over which polynomials of degree five in them have their mean.

    None where the outcome is not normal with a covariance (without one it is no user's head), or has so many columns
    that these would be more than ``most``.
    """
    if type(distribution) is not dist.MultivariateNormal:  # one derived from it has a density of its own
        return None
    size = distribution.event_shape[0]
    if 3**size > most:
        return None
    points = np.sqrt(3.0) * np.array(list(itertools.product((-1.0, 0.0, 1.0), repeat=size)))
    weights = np.prod(np.where(points == 0, 2 / 3, 1 / 6), axis=1)
    loc, root = jnp.asarray(distribution.loc), jnp.asarray(distribution.scale_tril)
    return loc.reshape(size) + points @ root.reshape(size, size).T, weights


def _listed(distribution) -> Array | None:
    """All outcomes (V,) of one row, None where they are many or cannot be listed."""
    if not getattr(distribution, "has_enumerate_support", False) or distribution.event_shape:
        return None
    try:
        values = distribution.enumerate_support(expand=False)
    except (NotImplementedError, jax.errors.JAXTypeError):  # as many as a traced number says
        return None
    return values.reshape(-1) if values.size <= MOST else None
