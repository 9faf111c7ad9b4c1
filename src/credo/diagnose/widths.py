"""How well draws know the sds of parameters, in the user's space: their tails decide.

The error of a log sd is ((κ − 1) / (4 ESS))^½ with the kurtosis κ of the parameter, 3 of a normal one. A scale whose
posterior has a heavy tail, θ = exp(u), may be well explored in u and have a κ of hundreds, or no variance at all: κ
then grows with the number of draws, and the error does not fall.
"""

import numpy as np
from jaxtyping import Float

from credo.model.structure import Structure

LOGS = ("positive", "nonnegative")  # whose coordinate is a log
MOST = 2**24  # numbers looked at: of more draws every so many


def sd_error(
    positions: Float[np.ndarray, "chain draw dim"], ess: Float[np.ndarray, " dim"], structure: Structure
) -> float | None:
    """The largest error of a log sd, of positive and of real parameters; None where there is none.

    ``ess``: of each coordinate, in its tails.
    """
    found, first = [], 0
    step = max(1, positions.size // MOST)
    for leaf in structure.leaves:
        own = slice(first, first + leaf.size)
        first = own.stop
        if leaf.is_discrete or not leaf.is_elementwise or leaf.support not in (*LOGS, "real"):
            continue
        with np.errstate(all="ignore"):
            u = np.asarray(positions[:, ::step, own], float).reshape(-1, leaf.size)
            theta = np.exp(u) if leaf.support in LOGS else u
            square = np.square(theta - theta.mean(axis=0))
            kurtosis = np.mean(np.square(square), axis=0) / np.square(np.mean(square, axis=0))
            errors = np.sqrt(np.maximum(kurtosis - 1, 0) / (4 * np.asarray(ess)[own]))
        if not np.all(np.isnan(errors)):
            found.append(float(np.nanmax(errors)))
    return max(found, default=None)
