"""Positions drawn from the prior."""

import jax
import numpy as np
from jaxtyping import Float

from credo.compiling import brief
from credo.model.target import Target
from credo.status import CredoError


def from_prior(target: Target, key, number: int) -> Float[np.ndarray, "draw dim"]:
    """Those of ``number`` draws that are finite; none where the prior is improper, or has a density alone."""
    try:
        drawn = np.asarray(_from_prior(target, jax.random.split(key, number)), float)
    except (CredoError, NotImplementedError):
        return np.empty((0, target.dim))
    return drawn[np.isfinite(drawn).all(axis=1)]


@brief
def _from_prior(target: Target, keys):
    return jax.vmap(target.sample_prior)(keys)
