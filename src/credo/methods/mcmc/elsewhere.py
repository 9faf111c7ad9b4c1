"""Positions beside those where chains start, since elements of a block may meet through what is zero there."""

import numpy as np

from credo.methods.from_prior import from_prior
from credo.model.target import Target
from credo.precision import double

NUM_ELSEWHERE, NUM_DRAWN = 8, 256  # positions, and draws that know the values of discrete parameters


def elsewhere(target: Target, positions: np.ndarray) -> np.ndarray:
    """``NUM_ELSEWHERE`` positions (n, dim): draws of the prior, of discrete parameters any value among many of them
    alike. Where the prior cannot be drawn from, what is continuous is moved from the first of ``positions``."""
    random = np.random.default_rng(0)
    is_discrete = np.concatenate([np.full(leaf.size, leaf.is_discrete) for leaf in target.structure.leaves])
    with double():
        drawn = from_prior(target, NUM_DRAWN)
    if len(drawn) < NUM_ELSEWHERE:
        moved = positions[:1] + random.normal(size=(NUM_ELSEWHERE, positions.shape[1]))
        return np.where(is_discrete, positions[:1], moved)
    found = drawn[:NUM_ELSEWHERE].copy()
    for i in np.flatnonzero(is_discrete):
        found[:, i] = random.choice(np.unique(drawn[:, i]), NUM_ELSEWHERE)
    return found
