"""Scales that differ by orders of magnitude: a sentence, since standardising is one line and what it saves is large.

Steps that suit the widest coordinate overshoot the narrowest, and a dense matrix between them loses digits. A table of
named columns is judged by the parameters alone: a column may be an exposure or an offset, which has no coefficient.
Draws beyond any scale are those of an improper posterior.
"""

from collections.abc import Mapping

import jax
import numpy as np

from credo.diagnose.rules import RULES
from credo.diagnose.sd_error import FIGURES, heaviest_tail
from credo.model.data import column_name
from credo.model.structure import Structure
from credo.posterior.kinds import Draws, Gaussian, Kind
from credo.posterior.marginals import draw_weights
from credo.precision import double
from credo.storage import gather

LIMIT = 1e4  # between the largest and the smallest scale
FAR_FROM_ONE = 1e7  # the median of data, or one over it
MAX_ROWS, MAX_DRAWS, MAX_NUMBERS = 100_000, 400, 10_000  # that are looked at
LOG_ENDLESS, ENDLESS = 300.0, 1e130  # of the logarithm of a positive parameter, and of a real one
SHARE_AWAY = 0.1  # of the draws
NEXT_TO_ONE, SHARE_THERE = 10, 0.01  # roundings, and the share of the draws from which it is said


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


def size_sentence(x, y) -> str | None:
    """Of numbers far from one, such as time stamps or moles: priors, starts and first steps are of order 1."""
    for root, data in (("x", x), ("y", y)):
        for path, leaf in jax.tree_util.tree_leaves_with_path(data):
            if np.ndim(leaf) == 0 or np.asarray(leaf).dtype.kind not in "iuf":
                continue
            sizes = np.abs(np.ravel(leaf)[:: max(1, np.size(leaf) // MAX_NUMBERS)].astype(np.float64))
            size = float(np.median(sizes[sizes > 0])) if np.any(sizes > 0) else 1.0
            if not 1 / FAR_FROM_ONE < size < FAR_FROM_ONE:
                side = "above" if size > 1 else "below"
                return (
                    f"Half of {column_name(path, root)} is {side} {size:.1g} in size: give it in units in which it is "
                    "of order 1, or the parameters priors of that size."
                )
    return None


def outcome_sentence(y) -> str | None:
    """Of real outcomes that are all the same."""
    for leaf in jax.tree.leaves(y):
        is_real = np.ndim(leaf) == 1 and np.issubdtype(np.asarray(leaf).dtype, np.floating)
        if is_real and len(leaf) > 1 and np.all(leaf == leaf[0]):
            return (
                f"All {len(leaf):,} outcomes are {leaf[0]:g}: the smaller a noise that is unknown, the likelier they "
                "are, without end. If this model has one, fix it, or give it a prior that keeps away from zero."
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
        f"{sd[low]:.2g} in {names[low]!r}, unconstrained): standardise the columns of x, give y in units in which it "
        "is of order 1, or rescale the parameters so that each is."
    )


def escape_sentence(kind: Kind, structure: Structure, *, is_trained: bool = False) -> str | None:
    """Of draws that have left for where numbers end: there is nothing for them to be stationary about.

    ``is_trained``: they are ends of training, which may leave a proper posterior too.
    """
    few = _few(kind)
    if few is None:
        return None
    far = np.mean(np.abs(few) > ENDLESS, axis=0)
    positive = np.concatenate([np.full(leaf.size, leaf.support == "positive") for leaf in structure.leaves])
    far = np.maximum(far, np.where(positive, np.mean(few > LOG_ENDLESS, axis=0), 0.0))
    if not np.any(far > SHARE_AWAY):
        return None
    names = [leaf.name for leaf in structure.leaves for _ in range(leaf.size)]
    if is_trained:
        return (
            f"Training took {names[int(np.argmax(far))]!r} to where numbers end, beyond 1e130: its steps are too long. "
            "Lower its step size."
        )
    return (
        f"Draws of {names[int(np.argmax(far))]!r} went on to where numbers end, beyond 1e130: the posterior is "
        "improper. Give it a proper prior."
    )


def tail_sentence(kind: Kind, figures: Mapping[str, float], structure: Structure) -> str | None:
    """Which parameter has the heaviest tail, where the figures of tails do not pass."""
    if not isinstance(kind, Draws) or all(RULES[n].status(figures[n]) == "pass" for n in FIGURES if n in figures):
        return None
    name, kurtosis = heaviest_tail(np.asarray(kind.positions), structure, draw_weights(kind))
    return f"The heaviest tail is that of {name} (kurtosis {kurtosis:.3g}; a normal one has 3)."


def rounded_sentence(kind: Kind, structure: Structure) -> str | None:
    """Of probabilities next to one, where numbers end 10⁻¹⁶ before it, and what lies nearer is cut off.

    Of a beta distribution with b = 0.01 that is most of the mass. Next to zero numbers go on to 10⁻³⁰⁸.
    """
    few = _few(kind)
    is_share = np.concatenate([np.full(leaf.size, leaf.support == "unit_interval") for leaf in structure.leaves])
    if few is None or not is_share.any():
        return None
    eps = np.finfo(np.asarray(kind.positions).dtype).eps  # type: ignore[union-attr]  # there are few of draws alone
    near = np.where(is_share, np.mean(few > -np.log(NEXT_TO_ONE * eps), axis=0), 0.0)
    if not near.max() > SHARE_THERE:
        return None
    names = [leaf.name for leaf in structure.leaves for _ in range(leaf.size)]
    return (
        f"Of the draws of {names[int(np.argmax(near))]!r} {near.max():.0%} are one but for rounding (1 % passes), and "
        "the mass that lies nearer is cut off. Let the parameter be what is left to one, since numbers go on next to "
        "zero, give it a prior with less mass at its ends, or use Exact() where there is a closed form."
    )


def _sd(kind: Kind) -> np.ndarray | None:
    if isinstance(kind, Gaussian):
        with double():
            return np.sqrt(np.asarray(kind.scale.diagonal(), np.float64))
    few = _few(kind)
    return None if few is None else np.std(few, axis=0)


def _few(kind: Kind) -> np.ndarray | None:
    """Some of the draws (n, dim): the order of magnitude is asked."""
    if not isinstance(kind, Draws) or kind.log_weights is not None:
        return None
    chains, draws, dim = kind.positions.shape
    every = slice(None, None, max(1, chains * draws // MAX_DRAWS))
    return np.asarray(gather(np.asarray(kind.positions), (slice(None), every)), np.float64).reshape(-1, dim)


def _extremes(scales: np.ndarray) -> tuple[int, int] | None:
    """(the smallest, the largest) where they are too far apart; what is constant or not finite does not count."""
    index = np.flatnonzero(np.isfinite(scales) & (scales > 0))
    if not index.size:
        return None
    low, high = index[np.argmin(scales[index])], index[np.argmax(scales[index])]
    return (int(low), int(high)) if scales[high] > LIMIT * scales[low] else None
