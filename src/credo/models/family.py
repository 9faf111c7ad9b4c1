"""Which likelihood suits an outcome, guessed from its values and said in one line; and the outcome in its code.

Counts. If y_i ~ Poisson(λ_i), whatever the λ_i, then Var(y) = E[λ] + Var(λ) ≥ E[y]: whole numbers whose variance lies
below their mean, by more than the sampling error of the ratio, √(2/N), are no such counts. Above 20 times the mean a
Poisson regression would claim far too much, and the guess is gaussian.
"""

from typing import Literal, cast, get_args

import numpy as np

from credo.models.columns import OTHER_KINDS, as_text, declared_levels, is_numeric
from credo.status import CredoError

LARGEST_COUNT = 2**53

Family = Literal["gaussian", "bernoulli", "categorical", "poisson"]
FAMILIES = get_args(Family)
MAX_CLASSES = 20
MOST_DISPERSION = 20.0  # of counts: variance over mean
FEWEST = 2  # counts come down to 2 or fewer


def check_family(family: str | None) -> None:
    if family is not None and family not in FAMILIES:
        raise CredoError(f"family={family!r} is unknown: choose one of {', '.join(FAMILIES)}.")


def guess_family(outcome) -> Family:
    """The likelihood that suits the values of a column: see ``guess`` for the reasons."""
    return guess(outcome, "y")[0]


def guess(outcome, target: str) -> tuple[Family, str]:
    """(family, the line that says what was guessed and why)."""
    values = outcome.dropna()
    number = values.nunique()
    if number == 2:
        return "bernoulli", f"Family bernoulli, guessed: {target!r} has two distinct values."
    if not is_numeric(outcome):
        return "categorical", f"Family categorical, guessed: {target!r} is text with {number} distinct values."
    y = np.asarray(values, np.float64)
    lowest, highest = y.min(), y.max()
    if number == 1:
        return "gaussian", f"Family gaussian, guessed: {target!r} is a number."
    if not np.all(y == np.floor(y)) or lowest < 0:
        reason = "has negative values" if lowest < 0 else "has values that are not whole"
        return "gaussian", f"Family gaussian, guessed: {target!r} {reason}."
    is_contiguous = number == highest - lowest + 1 and lowest in (0, 1) and number <= (10 if lowest else MAX_CLASSES)
    if _are_counts(y) and (not is_contiguous or _has_tail(y)):
        return "poisson", (
            f"Family poisson, guessed: {target!r} holds whole numbers from {lowest:g} to {highest:g} that vary as "
            f"counts do (variance {y.var():.3g}, mean {y.mean():.3g}); if they are measurements, say gaussian."
        )
    if is_contiguous:
        return "categorical", (
            f"Family categorical, guessed: {target!r} holds the codes {lowest:g} to {highest:g}; if they are amounts, "
            "say gaussian or poisson."
        )
    return "gaussian", f"Family gaussian, guessed: {target!r} holds whole numbers; if they are counts, say poisson."


def _are_counts(y: np.ndarray) -> bool:
    mean = y.mean()
    if y.min() > FEWEST or mean == 0:
        return False
    return 1 - 3 * np.sqrt(2 / len(y)) <= y.var() / mean <= MOST_DISPERSION


def _has_tail(y: np.ndarray) -> bool:
    """Counts thin out towards their largest value; codes of classes stop at one that is as frequent as others."""
    frequency = np.bincount(y.astype(int))
    return len(frequency) >= 5 and frequency[-1] <= frequency.max() / 4


def encode(outcome, family: Family, target: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """(y, the labels behind class codes): codes from 0 for classes, counts as int64, amounts as float64."""
    if outcome.dtype.kind in OTHER_KINDS:
        raise CredoError(
            f"The outcome {target!r} holds {OTHER_KINDS[outcome.dtype.kind]} (the first is {str(outcome.iloc[0])!r}): "
            "give numbers, such as days since a start, total seconds or sizes, or text where these are classes."
        )
    if family in ("bernoulli", "categorical"):
        return _encode_classes(outcome, family, target)
    if not is_numeric(outcome):
        first = next((value for value in outcome if not _is_numeral(value)), outcome.iloc[0])
        raise CredoError(
            f"{target!r} holds text where numbers belong (first value {str(first)!r}): for classes choose bernoulli "
            "or categorical, or correct those rows."
        )
    values = np.asarray(outcome, np.float64)
    if not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values)))
        raise CredoError(f"{target!r} is infinite in row {row}: drop that row or cap the value.")
    if family == "poisson":
        bad = (values < 0) | (values != np.floor(values))
        if bad.any():
            raise CredoError(
                f"{target!r} has {values[bad][0]:g}, which is no count: poisson takes whole numbers from 0."
            )
        if values.max(initial=0.0) > LARGEST_COUNT:
            raise CredoError(
                f"{target!r} has the count {values.max():g}, beyond which numbers of 8 bytes are not every whole "
                "number: count in larger units, or take its log as gaussian."
            )
        return values.astype(np.int64), ()
    if len(values) > 1 and np.ptp(values) == 0:
        raise CredoError(f"{target!r} is constant (every value is {values[0]:g}): there is nothing to explain.")
    return values, ()


def _encode_classes(outcome, family: Family, target: str) -> tuple[np.ndarray, tuple[str, ...]]:
    values, numbers = as_text(outcome), np.zeros(0)  # none, for text
    if is_numeric(outcome):  # in the order of the numbers, not of their digits
        numbers, y = np.unique(np.asarray(outcome), return_inverse=True)
        classes = as_text(numbers)
    elif declared := declared_levels(outcome):
        classes = np.array(declared)
        y = np.array([declared.index(value) for value in values])
    else:
        classes, y = np.unique(values, return_inverse=True)
    if len(classes) < 2:
        raise CredoError(f"{target!r} has one class only ({str(classes[0])!r}): there is nothing to tell apart.")
    if family == "bernoulli" and len(classes) != 2:
        amounts = numbers[numbers != np.floor(numbers)]
        if len(amounts):
            raise CredoError(
                f"{target!r} has {len(classes)} distinct values, not all of them whole (such as {amounts[0]:g}), and "
                "bernoulli takes two classes: use --family gaussian for amounts."
            )
        raise CredoError(f"{target!r} has {len(classes)} classes; bernoulli takes two: use --family categorical.")
    if len(classes) > MAX_CLASSES and len(classes) > len(values) / 10:
        others = [str(value) for value in classes if not _is_numeral(value)]
        if 0 < len(others) < len(classes) / 2:
            raise CredoError(
                f"{target!r} holds numbers, but for {len(others)} of its {len(classes)} distinct values (the first is "
                f"{others[0]!r}): write a number there, or leave the cell empty and the row out (missing='drop')."
            )
        raise CredoError(
            f"{target!r} has {len(classes)} distinct values in {len(values)} rows, too many to be classes: choose "
            "gaussian or poisson for numbers, or another outcome column."
        )
    return y.astype(np.int64), cast(tuple[str, ...], tuple(map(str, classes)))


def _is_numeral(value) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
