"""Positions drawn from the prior."""

import functools

import jax
import numpy as np
from jaxtyping import Float

from credo.algorithm import as_key, streams
from credo.compiling import TINY, brief
from credo.model.target import Target

SAME = np.zeros(2, np.uint32)  # key data: what is asked of a model is then a property of it


def from_prior(target: Target, number: int, key=SAME) -> Float[np.ndarray, "draw dim"]:
    """Those of ``number`` draws that are finite; none where the prior is improper, or does not know how to draw."""
    try:
        drawn = np.asarray(_from_prior(target, streams(key, number)), float)
    except Exception:  # a law with a density alone may raise anything, and fits of it need no draws
        return np.empty((0, target.dim))
    return drawn[np.isfinite(drawn).all(axis=1)]


@functools.partial(brief, options=TINY)
def _from_prior(target: Target, keys):
    return jax.lax.map(lambda data: target.sample_prior(as_key(data)), keys)
