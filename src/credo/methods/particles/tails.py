"""Whether particles at the end of a parameter's range forget, by their moves, how far out they were.

The neck of a funnel holds few particles, which hardly move: half of all, by which moves are judged (tempering.py), are
elsewhere. Of the particles in the lowest (or highest) share of a coordinate before the moves, the ranks before and
after are correlated where these move slowly. Where a mode lies apart they stay in it, and forget within it all the
same: the correlation vanishes in every share that is no more than the mode, so that the least of several counts.
"""

import numpy as np
from jaxtyping import Float

SHARES = 0.05, 0.1, 0.2
NUM = 4_096  # particles in whose standard errors the correlation is told: what more of them remember is no more
PER_OFFSPRING = 2  # particles: resampling makes copies. In a neck there are more, which counts against it all the more


def tail_memory(before: Float[np.ndarray, " N"], after: Float[np.ndarray, " N"]) -> float:
    """The rank correlation left in the tails of a coordinate, at its worse end, in standard errors of 4,096 particles;
    not below 0."""
    num, worst = len(before), 0.0
    counts = [(max(2, round(share * num)), max(2.0, share * min(num, NUM))) for share in SHARES]
    order = np.argsort(before, kind="stable")
    for tail in (order, order[::-1]):
        found = (_correlation(before[tail[:n]], after[tail[:n]]) * np.sqrt(m / PER_OFFSPRING) for n, m in counts)
        worst = max(worst, min(found))
    return float(worst)


def _correlation(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> float:
    """Of ranks; 0 where one of them is constant."""
    if not (np.ptp(x) > 0 and np.ptp(y) > 0):
        return 0.0
    x, y = (np.unique(each, return_inverse=True)[1] for each in (x, y))  # copies have one rank
    return float(np.corrcoef(x, y)[0, 1])
