"""Continuous and discrete coordinates side by side, independent of each other: discrete parameters by variation."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from credo.linalg.operator import Stored
from credo.posterior.kinds import Gaussian, Kind


class Factored(Kind):
    """q(u) = N(u_c; mean, S Sᵀ) Π_i p_i(z_i), p_i = softmax(logits_i) over the values lowest_i, lowest_i + 1, …

    ``discrete``: places of the discrete coordinates in the position, in rising order; ``continuous`` holds the others.
    ``logits``: very negative beyond the values that a coordinate has. The density is a probability in z.
    """

    continuous: Gaussian
    logits: Float[Stored, "n value"]
    discrete: tuple[int, ...] = eqx.field(static=True)
    lowest: tuple[int, ...] = eqx.field(static=True)

    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """(continuous, discrete) coordinates of the position."""
        return others(len(self.discrete) + self.continuous.mean.size, self.discrete), np.asarray(self.discrete)

    def sample_u(self, key):
        k_continuous, k_discrete = jax.random.split(key)
        u = self.continuous.sample_u(k_continuous)
        z = jax.random.categorical(k_discrete, self.logits, axis=-1) + np.asarray(self.lowest)
        return merged(u, z, self.discrete)

    def log_prob_u(self, u):
        places, _ = self.places()
        return self.continuous.log_prob_u(u[places]) + jnp.sum(self.log_probabilities(u))

    def log_probabilities(self, u):
        """log p_i(z_i), (n,); −∞ for values that a coordinate has not."""
        z = jnp.round(u[np.asarray(self.discrete)]).astype(int) - np.asarray(self.lowest)
        log_p = jax.nn.log_softmax(jnp.asarray(self.logits), axis=-1)
        found = jnp.take_along_axis(log_p, jnp.clip(z, 0, log_p.shape[1] - 1)[:, None], axis=1)[:, 0]
        return jnp.where((z >= 0) & (z < log_p.shape[1]), found, -jnp.inf)


def others(dim: int, discrete: tuple[int, ...]) -> np.ndarray:
    """The coordinates that are not discrete."""
    return np.setdiff1d(np.arange(dim), np.asarray(discrete, int))


def merged(continuous, values, discrete: tuple[int, ...]):
    """One vector of both parts."""
    dim = len(discrete) + continuous.shape[0]
    u = jnp.zeros(dim, continuous.dtype).at[others(dim, discrete)].set(continuous)
    return u.at[np.asarray(discrete)].set(jnp.asarray(values).astype(continuous.dtype))
