"""Scales that differ by orders of magnitude: a sentence, since standardising is one line and what it saves is large.

Steps that suit the widest coordinate overshoot the narrowest, and a dense matrix between them loses digits. A table of
named columns is judged by the parameters alone: a column may be an exposure or an offset, which has no coefficient.
"""

import jax
import numpy as np

from credo.model.structure import Structure
from credo.posterior.kinds import Draws, Gaussian, Kind
from credo.precision import double
from credo.storage import gather

LIMIT = 1e4  # between the largest and the smallest scale
MAX_ROWS, MAX_DRAWS = 100_000, 400  # that are looked at


def column_sentence(x) -> str | None:
    """Of design matrices, arrays (N, D) among the inputs, whose columns range over very different widths."""
    for leaf in jax.tree.leaves(x):
        if np.ndim(leaf) != 2 or leaf.shape[1] < 2:
            continue
        rows = np.asarray(leaf)[:: max(1, len(leaf) // MAX_ROWS)].astype(np.float64)
        widths = np.ptp(rows, axis=0)  # a rare category has a small sd and the width of any other
        pair = _extremes(widths)
        if pair is not None:
            low, high = pair
            return (
                f"The columns of x differ in scale by {widths[high] / widths[low]:.0e} (column {high} ranges over "
                f"{widths[high]:.3g}, column {low} over {widths[low]:.3g}): standardise them, (x - mean) / sd."
            )
    return None


def outcome_sentence(y) -> str | None:
    """Of real outcomes that are all the same."""
    for leaf in jax.tree.leaves(y):
        is_real = np.ndim(leaf) == 1 and np.issubdtype(np.asarray(leaf).dtype, np.floating)
        if is_real and len(leaf) > 1 and np.all(leaf == leaf[0]):
            return (
                f"All {len(leaf):,} outcomes are {leaf[0]:g}: the smaller a noise that is unknown, the likelier they "
                "are, without end. Fix the noise, or give it a prior that keeps away from zero."
            )
    return None


def parameter_sentence(kind: Kind, structure: Structure) -> str | None:
    """Of unconstrained coordinates whose posterior standard deviations differ as much."""
    sd = _sd(kind)
    pair = None if sd is None else _extremes(sd)
    if sd is None or pair is None:
        return None
    low, high = pair
    names = [leaf.name for leaf in structure.leaves for _ in range(leaf.size)]
    return (
        f"The parameters differ in scale by {sd[high] / sd[low]:.0e} (posterior sd {sd[high]:.2g} in {names[high]!r}, "
        f"{sd[low]:.2g} in {names[low]!r}, unconstrained): standardise the columns of x, or rescale the parameters so "
        "that each is of order 1."
    )


def _sd(kind: Kind) -> np.ndarray | None:
    if isinstance(kind, Gaussian):
        with double():
            return np.sqrt(np.asarray(kind.scale.diagonal(), np.float64))
    if isinstance(kind, Draws) and kind.log_weights is None:
        chains, draws, dim = kind.positions.shape
        every = slice(None, None, max(1, chains * draws // MAX_DRAWS))  # the order of magnitude is asked
        few = gather(np.asarray(kind.positions), (slice(None), every))
        return np.std(np.asarray(few, np.float64).reshape(-1, dim), axis=0)
    return None


def _extremes(scales: np.ndarray) -> tuple[int, int] | None:
    """(the smallest, the largest) where they are too far apart; what is constant or not finite does not count."""
    index = np.flatnonzero(np.isfinite(scales) & (scales > 0))
    if not index.size:
        return None
    low, high = index[np.argmin(scales[index])], index[np.argmax(scales[index])]
    return (int(low), int(high)) if scales[high] > LIMIT * scales[low] else None
