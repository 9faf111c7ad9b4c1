"""Draws of N(0, I) for one step, spread as evenly as they are numerous.

From 2d draws on they come in blocks: an orthonormal basis in a random position, each direction with its mirror image,
all of one length; from block to block the squared lengths are the quantiles of χ²_d at (j + ½)/k. So a batch of whole
blocks averages ε exactly to 0 and εεᵀ to I, and what is left of its noise is that of the scores. A single block lies on
the sphere of radius √d, near which a Gaussian of many dimensions has its mass. Beside independent draws blocks see less
of the far tails: of the scores of a scale, which grow exponentially there, q learns what holds in its own midst.

Fewer draws are independent: what they do not span is left to chance.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import gammaincinv

from credo.normals import normal

LEAST, MOST = 20, 200  # draws a step, where they come in blocks


def fits_blocks(dim: int) -> bool:
    """Whether a block is a step's worth of draws."""
    return 2 * dim <= MOST


def in_blocks(dim: int) -> int:
    """How many draws whole blocks hold."""
    return 2 * dim * math.ceil(LEAST / (2 * dim))


def draws(key, number: int, dim: int) -> Float[Array, "number dim"]:
    """``number`` draws; of a number that is no multiple of 2 ``dim`` the last block is cut short."""
    if number < 2 * dim:
        return normal(key, (number, dim))
    num_blocks = math.ceil(number / (2 * dim))
    basis = jnp.swapaxes(jnp.linalg.qr(normal(key, (num_blocks, dim, dim)))[0], 1, 2)
    directions = jnp.asarray(lengths(num_blocks, dim), basis.dtype)[:, None, None] * basis
    return jnp.stack([directions, -directions], axis=2).reshape(-1, dim)[:number]


def lengths(num_blocks: int, dim: int) -> Float[np.ndarray, " num_blocks"]:
    """Of the draws of each block: the mean of their squares is ``dim``."""
    squares = 2 * gammaincinv(dim / 2, (np.arange(num_blocks) + 0.5) / num_blocks)
    return np.sqrt(squares * dim / squares.mean())
