"""Ridges that bend: parameters one of which follows another along a curve, which no metric straightens.

Of draws sorted by v, in ``NUM_PARTS`` parts of one size, a line in each part leaves a share of the variance of u; one
line through all leaves 1 − r². Of a normal posterior these agree. Where the first is a small part of the second, u
follows v along a curve.
"""

import numpy as np
from jaxtyping import Float

from credo.model.structure import Structure
from credo.storage import gather

MAX_DIM = 50  # every coordinate beside every other
NUM_PARTS = 20
MAX_DRAWS = 4_000
LEFT, LEFT_OF_ONE = 0.2, 0.5  # of what one line leaves: by all draws, and by those of a chain
MOST_CHAINS = 0.5  # along a curve by themselves
LEAST = 1e-8  # of the variance: rounding
GAP = 0.1  # of the range of the middle 98 %: parts that lie apart are modes, whatever joins them


def curve(positions: Float[np.ndarray, "chain draw dim"], structure: Structure) -> tuple[str, str] | None:
    """(follower, leader) of the parameters that lie nearest to a curve that is no line, or None where none do.

    Chains in modes of their own lie along one together, but not each by itself.
    """
    dim = positions.shape[-1]
    if not 2 <= dim <= MAX_DIM:
        return None
    left = _left(thinned(positions).astype(np.float64))
    if left is None or not np.min(left) < LEFT:
        return None
    follower, leader = np.unravel_index(np.argmin(left), left.shape)
    own = [_left(thinned(chain[None]).astype(np.float64)) for chain in positions]
    along = [each is not None and each[follower, leader] < LEFT_OF_ONE for each in own]
    if np.mean(along) < MOST_CHAINS:
        return None
    return structure.coordinate_name(int(follower)), structure.coordinate_name(int(leader))


def thinned(positions: Float[np.ndarray, "chain draw dim"]) -> Float[np.ndarray, "draw dim"]:
    """At most about ``MAX_DRAWS`` of all chains, evenly: ranks of more would say the same."""
    flat = positions.reshape(-1, positions.shape[-1])
    return gather(flat, every(len(flat)))


def every(num_draws: int) -> np.ndarray:
    """Which draws are looked at."""
    return np.arange(0, num_draws, max(1, num_draws // MAX_DRAWS))


def _left(draws: Float[np.ndarray, "draw dim"]) -> Float[np.ndarray, "follower leader"] | None:
    """What lines in the parts leave of what one line leaves; infinite for a leader with a gap. None of draws that do
    not tell."""
    dim, size = draws.shape[1], len(draws) // NUM_PARTS
    if size < 5 or not np.all(np.isfinite(draws)) or np.any(np.ptp(draws, axis=0) == 0):
        return None
    z = (draws - draws.mean(axis=0)) / draws.std(axis=0)
    by_one_line = np.maximum(1 - np.corrcoef(z.T) ** 2, 0.0)
    found = np.full((dim, dim), np.inf)
    for leader in range(dim):
        ordered = z[np.argsort(z[:, leader], kind="stable")]
        if _has_gap(ordered[:, leader]):
            continue
        parts = ordered[: size * NUM_PARTS].reshape(NUM_PARTS, size, dim)
        parts = parts - parts.mean(axis=1, keepdims=True)
        variance = np.mean(parts**2, axis=1)
        with_leader = np.mean(parts * parts[..., leader, None], axis=1)
        explained = with_leader**2 / np.maximum(variance[:, leader, None], np.finfo(float).tiny)
        found[:, leader] = (np.mean(variance - explained, axis=0) + LEAST) / (by_one_line[leader] + LEAST)
        found[leader, leader] = np.inf
    return found


def curve_sentence(follower: str, leader: str, *, has_steps: bool) -> str:
    """``has_steps``: the sampler is one that shorter steps help."""
    if follower == leader:  # a parameter whose coordinates are no scalars of its own
        seen, place = f"Elements of {leader} follow each other", "their place"
    else:
        seen, place = f"{follower} follows {leader}", f"place of {follower} and {leader}"
    return (
        f"{seen} along a curve, which no metric straightens. In {place} take as parameters what the data know, a "
        "product or the values of a fitted curve at two inputs, with priors of their own"
        + ("; else raise target_acceptance to 0.99." if has_steps else ".")
    )


def _has_gap(ordered: Float[np.ndarray, " draw"]) -> bool:
    middle = ordered[len(ordered) // 100 : len(ordered) - len(ordered) // 100]
    return bool(np.max(np.diff(middle)) > GAP * (middle[-1] - middle[0]))
