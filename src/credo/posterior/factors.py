"""Distributions of constrained parameters, as densities over positions: gammas, and Dirichlets with betas among them.

A position is that of the support: log x of a positive x, logit x on an interval, and for a simplex the logits of the
pieces broken off a stick, u_k = logit z_k + log(K − 1 − k), z_k = x_k / Σ_{j≥k} x_j, k = 0 … K − 2. In these, Jacobian
included,

    log q(u) = α log β − log Γ(α) + α u − β e^u                                  x ~ Gamma(α, β)
    log q(u) = log Γ(Σα) − Σ log Γ(α_k) + Σ_k α_k log x_k(u)                     x ~ Dirichlet(α)

and the z_k of a Dirichlet are independent, Beta(α_k, Σ_{j>k} α_j). Parameters are kept as logarithms: any number will
do, and averages of members are members.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma, gammaln, polygamma
from jaxtyping import Array, Float

from credo.linalg.operator import Stored
from credo.posterior.kinds import Kind


class LogGamma(Kind):
    """Independent log x_i, x_i ~ Gamma of mean exp(``log_mean``) and shape α = exp(``log_shape``): β = α / mean."""

    log_mean: Float[Stored, " dim"]
    log_shape: Float[Stored, " dim"]

    def sample_u(self, key):
        return jax.random.loggamma(key, jnp.exp(self.log_shape)) - self.log_shape + self.log_mean

    def log_prob_u(self, u):
        return jnp.sum(self.log_probs(u))

    def log_probs(self, u: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Those of each coordinate."""
        shape, away = jnp.exp(self.log_shape), u - self.log_mean
        return shape * (self.log_shape + away - jnp.exp(away)) - gammaln(shape)

    def entropy(self) -> Float[Array, ""]:
        """α + log Γ(α) − α ψ(α)."""
        shape = jnp.exp(self.log_shape)
        return jnp.sum(shape + gammaln(shape) - shape * digamma(shape))

    def mean(self) -> Float[Array, " dim"]:
        """Of the position."""
        return digamma(jnp.exp(self.log_shape)) + (self.log_mean - self.log_shape)

    def variances(self) -> Float[Array, " dim"]:
        """Of the position."""
        return polygamma(1, jnp.exp(self.log_shape))


class Sticks(Kind):
    """Independent Dirichlets of one size K, α = exp(``log_alpha``); K = 2: betas, of which the first part is meant."""

    log_alpha: Float[Stored, "group size"]

    def sample_u(self, key):
        log_x = jax.random.loggamma(key, jnp.exp(self.log_alpha))  # up to a constant a group
        rest = jax.lax.cumlogsumexp(log_x, axis=1, reverse=True)[:, 1:]
        return jnp.ravel(log_x[:, :-1] - rest + self._offset()[None])

    def log_prob_u(self, u):
        return jnp.sum(self.log_probs(u))

    def log_probs(self, u: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Those of each coordinate: of the logit of a beta variable."""
        a, b = self._betas()
        v = jnp.reshape(u, a.shape) - self._offset()[None]
        log_beta = gammaln(a) + gammaln(b) - gammaln(a + b)
        return jnp.ravel(a * jax.nn.log_sigmoid(v) + b * jax.nn.log_sigmoid(-v) - log_beta)

    def entropy(self) -> Float[Array, ""]:
        """Σ_k log B(a, b) − a ψ(a) − b ψ(b) + (a + b) ψ(a + b) over the pieces."""
        a, b = self._betas()
        log_beta = gammaln(a) + gammaln(b) - gammaln(a + b)
        return jnp.sum(log_beta - a * digamma(a) - b * digamma(b) + (a + b) * digamma(a + b))

    def mean(self) -> Float[Array, " dim"]:
        """Of the position."""
        a, b = self._betas()
        return jnp.ravel(digamma(a) - digamma(b) + self._offset()[None])

    def variances(self) -> Float[Array, " dim"]:
        """Of the position."""
        a, b = self._betas()
        return jnp.ravel(polygamma(1, a) + polygamma(1, b))

    def _betas(self) -> tuple[Float[Array, "group pieces"], Float[Array, "group pieces"]]:
        alpha = jnp.exp(jnp.asarray(self.log_alpha))
        return alpha[:, :-1], jnp.cumsum(alpha[:, ::-1], axis=1)[:, -2::-1]

    def _offset(self) -> Float[Stored, " pieces"]:
        return offset(self.log_alpha.shape[1], self.log_alpha.dtype)


def offset(size: int, dtype) -> Float[np.ndarray, " pieces"]:
    """What NumPyro adds to the logits of the pieces: zero is then the middle of the simplex."""
    return np.log(np.arange(size - 1, 0, -1)).astype(dtype)
