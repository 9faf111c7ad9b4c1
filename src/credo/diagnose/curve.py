"""Ridges that bend: parameters one of which follows another along a curve, which no metric straightens.

Of draws sorted by v, in ``NUM_PARTS`` parts of one size, a line in each part leaves a share of the variance of u; one
line through all leaves 1 − r². Of a normal posterior these agree. Where the first is a small part of the second, u
follows v along a curve.
"""

import numpy as np
from jaxtyping import Float

from credo.model.structure import Structure

MAX_DIM = 50  # every coordinate beside every other
NUM_PARTS = 20
LEFT = 0.2  # of what one line leaves
GAP = 0.1  # of the range of the middle 98 %: parts that lie apart are modes, whatever joins them


def curve(draws: Float[np.ndarray, "draw dim"], structure: Structure) -> tuple[str, str] | None:
    """(follower, leader) of the parameters that lie nearest to a curve that is no line, or None where none do."""
    dim, size = draws.shape[-1], len(draws) // NUM_PARTS
    if not 2 <= dim <= MAX_DIM or size < 5 or not np.all(np.isfinite(draws)) or np.any(np.ptp(draws, axis=0) == 0):
        return None
    z = (draws - draws.mean(axis=0)) / draws.std(axis=0)
    by_one_line = 1 - np.corrcoef(z.T) ** 2
    best, found = LEFT, None
    for leader in range(dim):
        ordered = z[np.argsort(z[:, leader], kind="stable")]
        if _has_gap(ordered[:, leader]):
            continue
        parts = ordered[: size * NUM_PARTS].reshape(NUM_PARTS, size, dim)
        parts = parts - parts.mean(axis=1, keepdims=True)
        variance = np.mean(parts**2, axis=1)
        with_leader = np.mean(parts * parts[..., leader, None], axis=1)
        explained = with_leader**2 / np.maximum(variance[:, leader, None], np.finfo(float).tiny)
        left = np.mean(variance - explained, axis=0) / np.maximum(by_one_line[leader], np.finfo(float).tiny)
        left[leader] = np.inf
        follower = int(np.argmin(left))
        if left[follower] < best:
            best, found = left[follower], (follower, leader)
    if found is None:
        return None
    return structure.coordinate_name(found[0]), structure.coordinate_name(found[1])


def curve_sentence(follower: str, leader: str) -> str:
    if follower == leader:  # a parameter whose coordinates are no scalars of its own
        seen, place = f"Elements of {leader} follow each other", "their place"
    else:
        seen, place = f"{follower} follows {leader}", f"place of {follower} and {leader}"
    return (
        f"{seen} along a curve, which no metric straightens. In {place} take as parameters what the data know, a "
        "product or the values of a fitted curve at two inputs, with priors of their own; else raise "
        "target_acceptance to 0.99."
    )


def _has_gap(ordered: Float[np.ndarray, " draw"]) -> bool:
    middle = ordered[len(ordered) // 100 : len(ordered) - len(ordered) // 100]
    return bool(np.max(np.diff(middle)) > GAP * (middle[-1] - middle[0]))
