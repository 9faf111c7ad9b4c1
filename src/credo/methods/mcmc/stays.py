"""Places where chains stayed during warm-up and to which no draw went: modes lost on the way.

While the step size is tuned a step may be long enough to leap from one mode to another, and chains that all end up in
one of them agree. A stay is the median position of a chain over a window of warm-up: half of the window was spent on
either side of each of its coordinates. It is lost where its energy is that of the draws and a coordinate is far from
all of them:
    z = (u − mean) / sd,  t = arsinh z         of the draws; t(stay) beyond (1 + GAP) max t, or below (1 + GAP) min t
which is 7 sds for draws of a Gaussian (max z = 3.6), and more than most draws of a Cauchy leave unseen. A chain on its
way from its start, which the first window of all may be, has a higher energy, by 7 at least where tails fall as an
exponential's. Where energies vary by that much it may seem to be there, but not for two windows on end; and in many
dimensions it comes with an energy far below that of the draws, before it has filled their volume. Where that is the
energy of a mode it is narrower by a factor of e^30 at least.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from credo.storage import column_blocks, release

NUM_WINDOWS = 8  # a number of its own, so that the length of warm-up changes no compiled program
MOST = 2_000_000  # numbers that are kept; of larger posteriors none are
GAP = 0.3
HIGHER = 2.0  # sds of the energy, above its median: in one dimension a mode of an eighth of the mass
LOWER = 30.0  # below the median, and by HIGHER sds
ON_ITS_WAY = 4.0  # of the energy: with less to spare, which four dimensions have, one window is enough


class Stays(NamedTuple):
    """Of the last windows, the latest at the end; NaN where there were not as many."""

    position: Float[np.ndarray, "window chain dim"]
    energy: Float[np.ndarray, "window chain"]

    @classmethod
    def empty(cls, num_chains: int, dim: int, dtype) -> "Stays | None":
        """None where they would be too many."""
        shape = (NUM_WINDOWS, num_chains)
        if NUM_WINDOWS * num_chains * dim > MOST:
            return None
        return cls(np.full((*shape, dim), np.nan, dtype), np.full(shape, np.nan, dtype))

    def after(self, positions: Float[np.ndarray, "chain step dim"], energy: Float[np.ndarray, "chain step"]) -> "Stays":
        """With those of one window more."""
        new = Stays(np.median(positions, axis=1), np.median(energy, axis=1))
        return Stays(*(np.concatenate([old[1:], last[None]]) for old, last in zip(self, new, strict=True)))


def lost(stays: Stays, positions: Float[np.ndarray, "chain draw dim"], energy) -> Bool[np.ndarray, " chain"]:
    """Which chains stayed at a lost place after the first window. ``energy``: of the draws."""
    with np.errstate(invalid="ignore"):
        low, middle, high = np.quantile(np.asarray(energy, float), [0.16, 0.5, 0.84])
        spare = HIGHER * (high - low) / 2
        is_likely = (stays.energy[1:] <= middle + spare) & (stays.energy[1:] >= middle - max(spare, LOWER))
        is_likely &= ~np.isnan(stays.energy[:-1])
    is_lost = np.zeros(stays.energy.shape[1], bool)
    if not is_likely.any():
        return is_lost
    for columns in column_blocks(positions.shape[0] * positions.shape[1], positions.shape[2]):
        own = np.asarray(positions[:, :, columns], float)
        mean, sd = own.mean(axis=(0, 1)), own.std(axis=(0, 1))
        sd = np.where(sd > 0, sd, np.inf)
        lowest, highest = (np.arcsinh((edge(axis=(0, 1)) - mean) / sd) * (1 + GAP) for edge in (own.min, own.max))
        place = np.arcsinh((stays.position[1:, :, columns] - mean) / sd)
        for is_far in (place < lowest, place > highest):
            is_stay = is_far & is_likely[..., None]
            is_stay = is_stay if spare < ON_ITS_WAY else is_stay[:-1] & is_stay[1:]
            is_lost |= is_stay.any(axis=(0, 2))
        release(positions)
    return is_lost
