"""Whether particles at the end of a parameter's range forget, by their moves, how far out they were.

The neck of a funnel holds few particles, which hardly move: half of all, by which moves are judged (tempering.py), are
elsewhere. Of the particles in the lowest (or highest) share of a coordinate before the moves, the ranks before and
after are correlated where these move slowly. Where a mode lies apart they stay in it, and forget within it all the
same: the correlation vanishes in every share that is no more than the mode, so that the least of several counts.

A tail of a hot temperature in which the posterior has nothing is no matter: the neck of a prior's funnel is remembered
however well the data know the scale.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

SHARES = 0.05, 0.1, 0.2
NUM = 4_096  # particles in whose standard errors the correlation is told: what more of them remember is no more
REACHED = 0.002  # of the posterior: less of it, in an end of another temperature, moves no mean and no sd
INWARDS = np.array([[1.0], [-1.0]])  # from the lower and from the upper end
PER_OFFSPRING = 2  # particles: resampling makes copies. In a neck there are more, which counts against it all the more


class Tails(NamedTuple):
    """What is remembered at the lower and at the upper end of each coordinate, and where these ends begin.

    ``memory``: the rank correlation left, in standard errors of 4,096 particles; not below 0.
    """

    memory: Float[np.ndarray, "2 k"]
    bound: Float[np.ndarray, "2 k"]

    @classmethod
    def forgotten(cls, num: int) -> "Tails":
        return cls(np.zeros((2, num)), np.array([-np.inf, np.inf])[:, None] * np.ones(num))

    def innermost(self, other: "Tails", most: float) -> "Tails":
        """Of both, end by end: of two that remember more than ``most`` the end that holds more, else the larger."""
        is_inside = (other.bound - self.bound) * INWARDS > 0
        is_other = np.where(self.memory > most, (other.memory > most) & is_inside, other.memory > self.memory)
        return Tails(*(np.where(is_other, new, old) for new, old in zip(other, self, strict=True)))

    def reached(self, columns: Iterable[Float[np.ndarray, " N"]]) -> float:
        """The most that is remembered in an end in which ``columns`` lie too."""
        shares = [[np.mean(c <= low), np.mean(c >= high)] for c, (low, high) in zip(columns, self.bound.T, strict=True)]
        return float(np.max(np.where(np.transpose(shares) > REACHED, self.memory, 0.0)))


def tails(before: Iterable[Float[np.ndarray, " N"]], after: Iterable[Float[np.ndarray, " N"]]) -> Tails:
    """Of coordinates before and after the moves."""
    found = [_ends(*both) for both in zip(before, after, strict=True)]
    return Tails(*np.transpose(found, (2, 1, 0)))


def _ends(before: Float[np.ndarray, " N"], after: Float[np.ndarray, " N"]) -> list[tuple[float, float]]:
    """(memory, bound) at the lower and at the upper end."""
    num, found = len(before), []
    counts = [(max(2, round(share * num)), max(2.0, share * min(num, NUM))) for share in SHARES]
    order = np.argsort(before, kind="stable")
    for tail in (order, order[::-1]):
        left = (_correlation(before[tail[:n]], after[tail[:n]]) * np.sqrt(m / PER_OFFSPRING) for n, m in counts)
        found.append((max(0.0, min(left)), before[tail[counts[0][0] - 1]]))
    return found


def _correlation(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> float:
    """Of ranks; 0 where one of them is constant."""
    if not (np.ptp(x) > 0 and np.ptp(y) > 0):
        return 0.0
    x, y = (np.unique(each, return_inverse=True)[1] for each in (x, y))  # copies have one rank
    return float(np.corrcoef(x, y)[0, 1])
