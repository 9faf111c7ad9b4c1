"""How well draws know the sds of parameters, in the user's space: their tails decide.

The error of a log sd is ((κ − 1) / (4 ESS))^½ with the kurtosis κ of the parameter, 3 of a normal one. A scale whose
posterior has a heavy tail, θ = exp(u), may be well explored in u and have a κ of hundreds, or no variance at all: κ
then grows with the number of draws, and the error does not fall.

Draws that have not met the end of such a tail show too small a κ with too small an sd. How the tail falls, they show
before: as |θ|^(−1/k), with k the shape of a generalised Pareto distribution fitted to it (pareto.py), which has a
variance where k < ½.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float
from scipy.special import expit

from credo.diagnose.pareto import smooth
from credo.model.structure import Structure, scalar_names
from credo.storage import release

LOGS = ("positive", "nonnegative", "greater_than", "greater_than_eq", "less_than", "less_than_eq")  # by exp, moved
LOGITS = ("unit_interval", "interval", "open_interval")  # by the logistic function, scaled: a wide one has long tails
AT_ONCE = 1_000_000  # numbers of draws in memory
FIGURES = "sd_error", "tail_shape"
HEAVY = 9.0  # κ of an exponential variable: draws of what has no variance have more, and lighter tails need no look


def sd_error(
    positions: Float[np.ndarray, "chain draw dim"],
    ess: Float[np.ndarray, " dim"],
    structure: Structure,
    weights: Float[np.ndarray, "chain draw"] | None = None,
) -> float | None:
    """The largest error of a log sd, of parameters on the line or a part of it; None where there is none.

    ``ess``: of each coordinate, in its tails. ``weights``: of the draws, of sum one; equal if None.
    """
    share = None if weights is None else np.ravel(weights)
    return _largest(
        [_errors(kurtoses_of(u, support, share), ess[own]) for u, own, support in _blocks(positions, structure)]
    )


def sd_figures(
    positions: Float[np.ndarray, "chain draw dim"],
    ess: Float[np.ndarray, " dim"],
    structure: Structure,
    weights: Float[np.ndarray, "chain draw"] | None = None,
) -> dict[str, float]:
    """``sd_error`` and ``tail_shape``, the largest k of the parameters whose κ is that of a heavy tail.

    Either is left out where no parameter has one. ``weights`` as in ``sd_error``; they are no part of k, since those of
    particles differ from island to island alone.
    """
    share = None if weights is None else np.ravel(weights)
    errors, shapes = [], []
    for u, own, support in _blocks(positions, structure):
        kurtoses = kurtoses_of(u, support, share)
        errors.append(_errors(kurtoses, ess[own]))
        shapes.append([tail_shape(u[:, :, i], ess[own][i], support) for i in np.flatnonzero(kurtoses > HEAVY)])
    found = dict(zip(FIGURES, map(_largest, (errors, shapes)), strict=True))
    return {name: value for name, value in found.items() if value is not None}


def heaviest_tail(
    positions: Float[np.ndarray, "chain draw dim"],
    structure: Structure,
    weights: Float[np.ndarray, " S"] | None = None,
) -> tuple[str, float]:
    """The parameter with the largest κ, and that."""
    heaviest, place = 0.0, 0
    for u, own, support in _blocks(positions, structure):
        kurtoses = kurtoses_of(u, support, weights)
        i = int(np.argmax(kurtoses))
        if kurtoses[i] > heaviest:
            heaviest, place = float(kurtoses[i]), own.start + i
    names: list[str] = []  # of coordinates: one each where a parameter's transform is elementwise
    for leaf in structure.leaves:
        names += scalar_names(leaf.name, leaf.shape) if leaf.is_elementwise else [leaf.name] * leaf.size
    return names[place], heaviest


def _blocks(positions, structure: Structure) -> Iterator[tuple[np.ndarray, slice, str]]:
    """(draws of a few coordinates, which ones, the support of their parameter)."""
    first = 0
    size = max(1, AT_ONCE // (positions.shape[0] * positions.shape[1]))
    for leaf in structure.leaves:
        last = first + leaf.size
        if leaf.is_elementwise and not leaf.is_discrete and leaf.support in (*LOGS, *LOGITS, "real"):
            for i in range(first, last, size):
                own = slice(i, min(i + size, last))
                yield positions[:, :, own], own, leaf.support
                release(positions)
        first = last


def kurtoses_of(u: Float[np.ndarray, "chain draw k"], support: str = "real", share=None) -> Float[np.ndarray, " k"]:
    """κ of a few coordinates; 0 where one does not move. ``share``: of each draw, None where all are equal."""

    def mean(x):
        return x.mean(axis=0) if share is None else share @ x

    with np.errstate(all="ignore"):
        theta = _in_users_space(u.reshape(-1, u.shape[-1]), support)
        is_moving = np.ptp(theta, axis=0) > 0
        theta = theta - mean(theta)
        theta /= np.max(np.abs(theta), axis=0)  # fourth powers of 1e80 and of 1e-80 are no numbers
        theta *= theta
        variance = mean(theta)
        theta *= theta
        return np.where(is_moving, mean(theta) / np.square(variance), 0.0)


def _in_users_space(u, support: str) -> np.ndarray:
    """Up to place, scale and sign, which κ does not know; k is that of the upper tail of what grows with u."""
    theta = np.asarray(u, float)
    if support in LOGITS:
        return expit(theta)
    return np.exp(theta - theta.max(axis=0)) if support in LOGS else theta


def _errors(kurtoses, ess) -> Float[np.ndarray, " moving"]:
    """Of log sds, of those coordinates that move."""
    is_moving = kurtoses != 0
    with np.errstate(all="ignore"):
        return np.sqrt(np.maximum(kurtoses - 1, 0) / (4 * np.asarray(ess)))[is_moving]


def tail_shape(u: Float[np.ndarray, "chain draw"], ess: float, support: str = "real") -> float:
    """k of the heavier tail of one coordinate; the exponential of one has no other than the upper."""
    theta = _in_users_space(u.ravel(), support)
    deviation = theta - theta.mean()
    sides = [deviation] if support in LOGS else [deviation, -deviation]
    with np.errstate(divide="ignore"):
        logs = [np.log(np.maximum(side, 0)) for side in sides]
    return float(np.max([smooth(each, relative_efficiency=ess / u.size).k_hat for each in logs]))


def _largest(found: list) -> float | None:
    values = np.concatenate(found) if found else np.zeros(0)
    return float(np.max(values)) if values.size else None
