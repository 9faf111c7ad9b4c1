"""What lies beyond the box of a grid: where a tail falls as a power, little mass there is most of the variance.

The box ends where next to no mass is left. Of a tail |f|^(−1−α) the variance ends much later, at α ≤ 2 never, so the
density is looked at beyond each face, as far as the box is wide, on a coarse grid: such a tail is smooth there.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from credo.methods.exact.box import Box, Density
from credo.model.target import Target
from credo.posterior.marginals import report_positions

SIDE = {1: 1_537, 2: 130, 3: 43}  # nodes a side; of the three parts of it, the one in the middle is the box


def variance_beyond(
    density: Density, target: Target, box: Box, reported: Mapping[str, Any], p: np.ndarray, log_evidence: float
) -> float:
    """The variance that the part beyond adds, relative to that on the grid, of the worst scalar in the user's space.

    ``reported``: all scalars at the nodes of the grid, whose weights are ``p``. Constants have no such share.
    """
    dim, side, width = len(box.low), SIDE[len(box.low)], box.high - box.low
    wide = box._replace(low=box.low - width, high=box.high + width)
    place = np.indices((side,) * dim).reshape(dim, -1) / ((side - 1) // 3)
    u = wide.nodes(side)[((place < 1) | (place > 2)).any(axis=0)]
    log_p = density(u) + wide.log_cell(side) - log_evidence
    beyond = report_positions(target, u)
    is_there = log_p > -np.inf
    shares = [np.zeros(1)]
    for name, values in reported.items():
        f, g = (np.asarray(each, np.float64).reshape(len(each), -1) for each in (values, beyond[name]))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # in logs: f² may overflow where p does not
            mean = p @ f
            added = np.exp(log_p[is_there, None] + 2 * np.log(np.abs(g[is_there] - mean))).sum(axis=0)
            shares.append(added / (p @ (f - mean) ** 2))
    return float(np.fmax.reduce(np.concatenate(shares)))  # NaN: a constant, or no number
