"""Dropout as a posterior (Gal & Ghahramani 2016): weights that are there or not, in groups."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from credo.linalg.operator import Stored
from credo.posterior.kinds import Kind
from credo.status import CredoError


class Masked(Kind):
    """u = position, but each row of each of ``groups`` (unit, k) times z / (1 − p), z ~ Bernoulli(1 − p).

    A row holds the coordinates that one input of a layer multiplies. ``rates``: p of each layer.
    """

    position: Float[Stored, " dim"]
    groups: tuple[Int[Stored, "unit k"], ...]
    rates: Float[Stored, " layer"]

    def sample_u(self, key):
        u = jnp.asarray(self.position)
        for i, group in enumerate(self.groups):
            keep = 1 - jnp.asarray(self.rates[i])
            mask = jax.random.bernoulli(jax.random.fold_in(key, i), keep, group.shape[:1]) / keep
            u = u.at[group].multiply(mask[:, None].astype(u.dtype))
        return u

    def log_prob_u(self, u):
        raise CredoError("A posterior of dropout masks has no density: fit Laplace() or ADVI() for one.")

    def sd(self) -> Float[np.ndarray, " dim"]:
        """Of each coordinate: |u| √(p / (1 − p)) where it is masked, else 0."""
        sd = np.zeros(np.shape(self.position))
        for group, rate in zip(self.groups, np.asarray(self.rates, np.float64), strict=True):
            sd[group] = np.abs(np.asarray(self.position, np.float64)[group]) * np.sqrt(rate / (1 - rate))
        return sd
