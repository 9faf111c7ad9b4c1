"""Where chains struggle, and in which shape of posterior: the place of divergences, funnels, ridges that bend.

*Place*: the ranks of the draws whose transitions diverged, among all draws, coordinate by coordinate; under no
preference their mean is ½ with variance 1/(12 n).

*Funnel* (Neal 2003; Betancourt & Girolami 2015): the spread of one parameter grows with another, so that no metric and
no step size fit both ends. The rank correlation of a scalar coordinate with that spread shows it. Where the prior of
the one is given by the other, this is the centred form, tried without much data; elsewhere the non-centred one, tried
although the data speak. For a scale the correlation is positive in the first and negative in the second, for a
precision the other way round. The spread of a vector within one draw is the sd of its scalars; that of fewer than
three is their distance to the median, on either side of it, and near it too: else one follows the other along a curve.
For n scalars N(0, e^{2v}), v ~ N(0, s²), the correlation of v and the log of their sd is s / (s² + 1/2(n−1))^½, nearly.
"""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float

from credo.diagnose.curve import curve, curve_sentence, every, thinned
from credo.model.dependence import dependencies
from credo.model.distributions import is_improper
from credo.model.structure import Structure
from credo.model.target import Target
from credo.model.visit import at_index
from credo.precision import double
from credo.storage import gather

MAX_DIM = 2_000
CERTAIN = 4.0  # standard errors, of a mean rank over dozens of coordinates
STRAY = 0.001  # of the transitions
HALF = 0.5  # of the draws: nine in ten of more are no place, however sure the preference of hundreds is
NUM_PARTS, THICK = 20, 0.3  # sd over mean of a distance to the median: 0.76 of one normal scalar, 0.53 of two
STRONG = 0.7  # rank correlation: that of s = 0.26 for eight scalars, a scale known to a quarter


class Place(NamedTuple):
    """Divergences gather where the coordinate ``name`` is low (or high): nine in ten lie in this ``share`` of draws."""

    name: str
    is_low: bool
    share: float


def sentences(positions, is_divergent, target: Target) -> list[str]:
    """What a person can do about draws that do not pass: one sentence a finding, none where there is none."""
    found, structure = [], target.structure
    place = None if is_divergent is None else place_of_divergences(positions, is_divergent, structure)
    if place:
        end = "lowest" if place.is_low else "highest"
        found.append(
            f"Nine in ten of the divergences lie in the {place.share:.0%} of the draws with the {end} {place.name}."
        )
    shape = funnel(positions, structure)
    if shape:
        has_steps = is_divergent is not None and bool(np.any(is_divergent))
        found.append(funnel_sentence(shape, is_given_by(target, *shape[:2]), has_steps=has_steps))
    elif bent := curve(positions, structure):
        found.append(curve_sentence(*bent, has_steps=is_divergent is not None))
    return found


def persistent_divergences(positions, is_divergent, structure: Structure) -> int:
    """How many there are; 0 where they are stray: at most one in a thousand, anywhere, of a shape that is no funnel."""
    count = int(np.sum(is_divergent))
    if not count:
        return 0
    is_few = count <= STRAY * np.size(is_divergent)
    if is_few and not place_of_divergences(positions, is_divergent, structure) and not funnel(positions, structure):
        return 0
    return count


def place_of_divergences(
    positions: Float[np.ndarray, "chain draw dim"], is_divergent: Bool[np.ndarray, "chain draw"], structure: Structure
) -> Place | None:
    """Where they gather, or None where they are too few or anywhere."""
    divergent = np.ravel(is_divergent)
    count, dim = int(divergent.sum()), positions.shape[-1]
    if count < 3 or count == divergent.size or dim > MAX_DIM:
        return None
    flat = positions.reshape(-1, dim)
    keep = np.unique(np.concatenate([every(len(flat)), np.flatnonzero(divergent)]))
    there = _shares_below(gather(flat, keep), divergent[keep])
    z = (there.mean(axis=0) - 0.5) * np.sqrt(12 * count)
    worst = int(np.argmax(np.abs(z)))
    if abs(z[worst]) < CERTAIN:
        return None
    is_low = bool(z[worst] < 0)
    # nine in ten of them lie beyond this quantile
    share = float(np.quantile(there[:, worst], 0.9) if is_low else 1 - np.quantile(there[:, worst], 0.1))
    return Place(structure.coordinate_name(worst), is_low, share) if share <= HALF else None


def funnel(positions: Float[np.ndarray, "chain draw dim"], structure: Structure) -> tuple[str, str, float] | None:
    """(scale, parameter, rank correlation) of the strongest funnel, or None where none is strong."""
    dim = positions.shape[-1]
    if not 2 <= dim <= MAX_DIM:
        return None
    flat = thinned(positions)
    if not np.all(np.isfinite(flat)):
        return None
    found, start, columns, spreads, few = None, 0, {}, {}, {}
    for leaf in structure.leaves:
        block = flat[:, start : start + leaf.size]
        start += leaf.size
        if leaf.size == 1:
            columns[leaf.name] = _standardised(block[:, 0])
        if leaf.size:
            away = block - np.median(block, axis=0)
            if leaf.size < 3:
                few[leaf.name] = away
            spreads[leaf.name] = _standardised(np.abs(away).mean(axis=1) if leaf.size < 3 else block.std(axis=1))
    for scale, column in columns.items():
        for name, spread in spreads.items():
            correlation = float(np.mean(column * spread))
            if name == scale or abs(correlation) <= max(STRONG, abs(found[2]) if found else 0):
                continue
            if name not in few or _is_spread(column, spread, few[name], correlation):
                found = scale, name, correlation
    return found


def _is_spread(column, spread, away: Float[np.ndarray, "draw few"], correlation: float) -> bool:
    """Whether the distance to the median goes with ``column`` as it does in a funnel.

    Of draws of one scale, nearly, it is anything from zero on, and along a curve it is not. On each side of a median
    alike: of components in either order it goes with whatever differs between the orders.
    """
    parts = np.array_split(np.abs(away).mean(axis=1)[np.argsort(column)], NUM_PARTS)
    if not np.median([part.std() / (part.mean() or 1.0) for part in parts if part.size]) > THICK:
        return False
    sides = (side for each in (away > 0).T for side in (each, ~each) if side.sum() > 1)
    shared = (np.mean(_standardised(column[side]) * _standardised(spread[side])) for side in sides)
    return all(of_side * np.sign(correlation) > STRONG / 2 for of_side in shared)


def is_given_by(target: Target, scale: str, other: str) -> bool | None:
    """Whether the prior of ``other`` depends on ``scale``; None where that is not known, as of a bare log density."""
    values = {leaf.name: np.ones(leaf.shape, int if leaf.is_discrete else float) for leaf in target.structure.leaves}
    is_known = True

    def arguments(values):
        found = []

        def see(name, distribution, value):
            nonlocal is_known
            if name == other:
                is_known = is_known and not is_improper(distribution)
                found.extend(jax.tree.leaves(distribution))

        target.prior.visit(lambda name, _, index: at_index(values[name], index), see)
        return found

    with double():
        reached = dependencies(arguments, values)
    return any(sorted(values).index(scale) in each for each in reached) if is_known else None


def funnel_sentence(found: tuple[str, str, float], is_centred: bool | None = None, *, has_steps: bool = False) -> str:
    """What to write in place of it. ``is_centred``: None where only the sign can tell, if ``scale`` is one.

    ``has_steps``: steps diverged. Shorter ones are the first thing to try where the data know some elements only: of
    a sparse regression (R2D2) the centred form of all of them is a funnel, and worse.
    """
    scale, other, correlation = found
    seen = f"{other} {'spreads' if correlation > 0 else 'narrows'} as {scale} grows"
    if is_centred or (is_centred is None and correlation > 0):
        return (
            f"{seen}: a funnel, which no step size fits at both ends. Write {other} as its mean plus its scale times a "
            "parameter z with the prior Normal(0, 1) (the non-centred form)."
        )
    otherwise = (
        f"if {scale} is the noise, give it a prior that keeps away from the end where {other} is narrow"
        if is_centred is False
        else f"if {scale} is a precision that {other} has in its prior, take the non-centred form instead"
    )
    first = "Try target_acceptance=0.99 first. Else make" if has_steps else "Make"
    return (
        f"{seen}: an inverted funnel, in which the data speak of a product and not of {other}. {first} that product a "
        f"parameter with its own prior (the centred form), of those elements that the data know; {otherwise}."
    )


def _shares_below(x: Float[np.ndarray, "draw dim"], chosen: Bool[np.ndarray, " draw"]) -> Float[np.ndarray, "d dim"]:
    """For each of the ``chosen`` draws, coordinate by coordinate, the share of all that lie below; of ties, half."""
    columns, own = np.array(x.T, order="C"), x[chosen].T
    columns.sort(axis=1)
    twice = [np.searchsorted(a, v) + np.searchsorted(a, v, side="right") for a, v in zip(columns, own, strict=True)]
    return np.transpose(twice) / (2 * len(x))


def _standardised(x: Float[np.ndarray, " draw"]) -> Float[np.ndarray, " draw"]:
    """Ranks, of mean zero and variance one; ties (draws that stayed) in the order they came."""
    ranks = np.empty(len(x))
    ranks[np.argsort(x, kind="stable")] = np.arange(len(x))
    return (ranks - ranks.mean()) / (ranks.std() or 1.0)
