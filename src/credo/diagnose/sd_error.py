"""How well draws know the sds of parameters, in the user's space: their tails decide.

The error of a log sd is ((κ − 1) / (4 ESS))^½ with the kurtosis κ of the parameter, 3 of a normal one. A scale whose
posterior has a heavy tail, θ = exp(u), may be well explored in u and have a κ of hundreds, or no variance at all: κ
then grows with the number of draws, and the error does not fall.
"""

import numpy as np
from jaxtyping import Float

from credo.model.structure import Structure

LOGS = ("positive", "nonnegative", "greater_than", "greater_than_eq", "less_than", "less_than_eq")  # by exp, moved
AT_ONCE = 1_000_000  # numbers of draws in memory


def sd_error(
    positions: Float[np.ndarray, "chain draw dim"],
    ess: Float[np.ndarray, " dim"],
    structure: Structure,
    weights: Float[np.ndarray, "chain draw"] | None = None,
) -> float | None:
    """The largest error of a log sd, of positive and of real parameters; None where there is none.

    ``ess``: of each coordinate, in its tails. ``weights``: of the draws, of sum one; equal if None.
    """
    share = None if weights is None else np.ravel(weights)
    found, first = [], 0
    size = max(1, AT_ONCE // (positions.shape[0] * positions.shape[1]))
    for leaf in structure.leaves:
        last = first + leaf.size
        if leaf.is_elementwise and not leaf.is_discrete and leaf.support in (*LOGS, "real"):
            blocks = [slice(i, min(i + size, last)) for i in range(first, last, size)]
            found += [_worst(positions[:, :, own], np.asarray(ess)[own], leaf.support in LOGS, share) for own in blocks]
        first = last
    known = [each for each in found if each is not None]
    return float(np.max(known)) if known else None


def _worst(u: Float[np.ndarray, "chain draw k"], ess: Float[np.ndarray, " k"], is_log: bool, share) -> float | None:
    """Of a few coordinates; None where none of them moves. ``share``: of each draw, None where all are equal."""

    def mean(x):
        return x.mean(axis=0) if share is None else share @ x

    with np.errstate(all="ignore"):
        theta = np.asarray(u, float).reshape(-1, len(ess))
        is_moving = np.ptp(theta, axis=0) > 0
        if is_log:
            theta = np.exp(theta - theta.max(axis=0))  # κ knows no scale
        theta = theta - mean(theta)
        theta *= theta
        variance = mean(theta)
        theta *= theta
        errors = np.sqrt(np.maximum(mean(theta) / np.square(variance) - 1, 0) / (4 * ess))
    return float(np.max(errors[is_moving])) if is_moving.any() else None
