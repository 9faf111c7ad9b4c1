"""Draws of a path's Gaussian some of which have larger sds (defensive: Hesterberg 1995)."""

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from credo.methods.particles.wide_mixture import WIDE


def wide_scales(num_draws: int, every: int) -> Float[np.ndarray, " S"]:
    """What white noise is multiplied by: 1, and for one draw of so many those of ``WIDE`` in turn."""
    number = np.arange(num_draws)
    return np.where(number % every == every - 1, WIDE[number // every % len(WIDE)], 1.0)


def log_widening(
    squares: Float[np.ndarray, " S"], dim: int, scales: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " S"]:
    """log of the mean over ``scales`` s of N(z; 0, s² I), less log N(z; 0, I), where |z|² = ``squares``.

    The scales are those that draws were made with, so that their mean weight is unbiased however many there are.
    """
    values, counts = np.unique(scales, return_counts=True)
    each = 0.5 * np.asarray(squares, float)[:, None] * (1 - 1 / values**2) - dim * np.log(values)
    return np.asarray(logsumexp(each, axis=1, b=counts / len(scales)))
