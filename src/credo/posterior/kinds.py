"""The few kinds of posterior, as pure traceable distributions over flat unconstrained positions.

Each has ``sample_u(key) -> (dim,)`` and ``log_prob_u(u) -> scalar``, so that any of them can serve as proposal,
start or metric elsewhere. ``Posterior`` wraps one of them with a target, a verdict and the public methods.
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from credo.linalg.blocks import Spans, join, take
from credo.linalg.operator import ScaleOperator, Stored
from credo.normals import normal
from credo.posterior.flow.layer import Layer
from credo.status import CredoError


class Kind(eqx.Module):
    """A distribution over positions u in R^dim."""

    @abstractmethod
    def sample_u(self, key) -> Float[Array, " dim"]:
        """One draw."""

    @abstractmethod
    def log_prob_u(self, u: Float[Array, " dim"]) -> Float[Array, ""]:
        """The log density at ``u``; CredoError where the kind has none."""


class Point(Kind):
    """All mass at one position (MAP, MLE): it says nothing about uncertainty."""

    position: Float[Stored, " dim"]

    def sample_u(self, key):
        return self.position

    def log_prob_u(self, u):
        raise CredoError("A point posterior (MAP, MLE) has no density: fit Laplace() for a Gaussian around it.")


class Gaussian(Kind):
    """N(mean, S Sᵀ), S a scale operator: Laplace, Gaussian VI, Pathfinder and SWAG differ in how both were found."""

    mean: Float[Stored, " dim"]
    scale: ScaleOperator

    def sample_u(self, key):
        return self.mean + self.scale.matvec(normal(key, self.mean.shape, self.mean.dtype))

    def log_prob_u(self, u):
        z = self.scale.solve(u - self.mean)
        return -0.5 * jnp.dot(z, z) - self.scale.log_det() - 0.5 * self.scale.rank * jnp.log(2.0 * jnp.pi)


class Draws(Kind):
    """Draws (chain, draw, dim), of equal weight or with normalised ``log_weights`` (chain, draw)."""

    positions: Float[Stored, "chain draw dim"]
    log_weights: Float[Stored, "chain draw"] | None = None

    def sample_u(self, key):
        flat = self.positions.reshape(-1, self.positions.shape[-1])
        if self.log_weights is None:
            return flat[jax.random.randint(key, (), 0, flat.shape[0])]
        # one sum for all draws; a Gumbel number of each weight for each of them would take hundreds of times as long
        sums = jnp.cumsum(jnp.exp(self.log_weights.reshape(-1)))
        place = jax.random.uniform(key, (), sums.dtype) * sums[-1]
        return flat[jnp.searchsorted(sums, place, side="right")]

    def log_prob_u(self, u):
        raise CredoError("A posterior of draws has no density: use Laplace() or ADVI() where log_prob is needed.")


class Flow(Kind):
    """The image of N(0, I) under ``layers``, one after the other, and last under u = mean + S · of ``affine``.

    Layers and Gaussian are arrays and whole numbers: a file holds them, and no code.
    """

    layers: tuple[Layer, ...]
    affine: Gaussian

    def forward(self, z: Float[Array, " dim"]) -> tuple[Float[Array, " dim"], Float[Array, ""]]:
        """(u, log|du/dz|)."""
        log_det = jnp.asarray(self.affine.scale.log_det())
        for layer in self.layers:
            z, more = layer.forward(z)
            log_det = log_det + more
        return jnp.asarray(self.affine.mean) + self.affine.scale.matvec(z), log_det

    def push(self, z: Float[Array, " dim"]) -> tuple[Float[Array, " dim"], Float[Array, ""]]:
        """(u, log q(u)) of u = T(z): log N(z; 0, I) − log|du/dz|, which needs no inverse."""
        u, log_det = self.forward(z)
        return u, -0.5 * jnp.dot(z, z) - 0.5 * z.size * jnp.log(2.0 * jnp.pi) - log_det

    def inverse(self, u: Float[Array, " dim"]) -> tuple[Float[Array, " dim"], Float[Array, ""]]:
        """(z, log|dz/du|)."""
        z, log_det = self.affine.scale.solve(u - self.affine.mean), -jnp.asarray(self.affine.scale.log_det())
        for layer in reversed(self.layers):
            z, more = layer.inverse(z)
            log_det = log_det + more
        return z, log_det

    def sample_u(self, key):
        return self.forward(normal(key, self.affine.mean.shape, self.affine.mean.dtype))[0]

    def log_prob_u(self, u):
        z, log_det = self.inverse(u)
        return -0.5 * jnp.dot(z, z) - 0.5 * z.size * jnp.log(2.0 * jnp.pi) + log_det


class Independent(Kind):
    """Π_i part_i: groups of coordinates, independent of each other, each of its own kind.

    ``spans``: those of the coordinates that belong to each part (linalg/blocks.py).
    """

    parts: tuple[Kind, ...]
    spans: tuple[Spans, ...] = eqx.field(static=True)

    def sample_u(self, key):
        keys = jax.random.split(key, len(self.parts))
        return join([part.sample_u(key) for key, part in zip(keys, self.parts, strict=True)], self.spans)

    def log_prob_u(self, u):
        terms = [part.log_prob_u(take(u, spans)) for part, spans in zip(self.parts, self.spans, strict=True)]
        return sum(terms[1:], start=terms[0])


class Mixture(Kind):
    """Σ_k exp(log_weights_k) component_k; the components may be of different kinds."""

    log_weights: Float[Stored, " component"]
    components: tuple[Kind, ...]

    def sample_u(self, key):
        k_choice, k_draw = jax.random.split(key)
        choice = jax.random.categorical(k_choice, self.log_weights)
        draws = [lambda key, component=component: component.sample_u(key) for component in self.components]
        return jax.lax.switch(choice, draws, k_draw)

    def log_prob_u(self, u):
        terms = jnp.stack([component.log_prob_u(u) for component in self.components])
        return jax.nn.logsumexp(jax.nn.log_softmax(self.log_weights) + terms)
