"""Data and hyperparameters as float64 NumPy arrays, or a sentence that says what is wrong with them."""

import numpy as np
from numpy.typing import ArrayLike

from credo.arguments import unmasked
from credo.status import CredoError


def number(name: str, value: ArrayLike) -> float:
    """``value`` as a finite float."""
    array = _floats(name, value)
    if array.ndim != 0 or not np.isfinite(array):
        raise CredoError(f"{name} is {_shown(array)}: give one finite number.")
    return float(array)


def positive(name: str, value: ArrayLike) -> float:
    """``value`` as a finite float above zero."""
    result = number(name, value)
    if result <= 0:
        raise CredoError(f"{name} is {result:g}, and must be positive: give a value above zero.")
    return result


def vector(name: str, values: ArrayLike) -> np.ndarray:
    """Finite observations (N,), N ≥ 1; a single number counts as one row."""
    array = np.atleast_1d(_floats(name, values))
    if array.ndim != 1:
        raise CredoError(f"{name} has shape {array.shape}, and must be one-dimensional: give one value a row.")
    return _nonempty_and_finite(name, array).copy()  # families keep some of these


def matrix(name: str, values: ArrayLike, num_columns: int | None = None) -> np.ndarray:
    """A finite design matrix (N, D), N ≥ 1, D ≥ 1 (D = ``num_columns`` where that is known)."""
    array = _floats(name, values)
    if array.ndim != 2:
        raise CredoError(
            f"{name} has shape {array.shape}, and must be (rows, features): reshape one feature with (-1, 1)."
        )
    if array.shape[1] == 0:
        raise CredoError(f"{name} has no columns: give at least one feature (a column of ones is an intercept).")
    if num_columns is not None and array.shape[1] != num_columns:
        raise CredoError(
            f"{name} has {array.shape[1]} columns, but the model has {num_columns} weights: give the same features."
        )
    return _nonempty_and_finite(name, array)


def same_length(first: str, a: np.ndarray, second: str, b: np.ndarray) -> None:
    """Raise unless ``a`` and ``b`` have as many rows as each other."""
    if len(a) != len(b):
        raise CredoError(f"{first} has {len(a)} rows and {second} has {len(b)}: give one {second} for each {first}.")


def counts(name: str, values: np.ndarray) -> np.ndarray:
    """Raise unless every entry is one of 0, 1, 2, …"""
    return inside(name, values, (values >= 0) & (values == np.floor(values)), "a count (0, 1, 2, …)")


def inside(name: str, values: np.ndarray, is_inside: np.ndarray, support: str) -> np.ndarray:
    """Raise unless ``is_inside`` everywhere; the sentence names the first row that is not and its value."""
    if not np.all(is_inside):
        row, *rest = (int(i) for i in np.argwhere(~is_inside)[0])
        value = values[(row, *rest)]
        raise CredoError(
            f"{name} must be {support}, but row {row} holds {value:g}: correct that row, or choose another family."
        )
    return values


def _floats(name: str, values: ArrayLike) -> np.ndarray:
    try:
        array = np.asarray(unmasked(values))
        if np.iscomplexobj(array):
            raise TypeError
        return array.astype(np.float64, copy=False)
    except (TypeError, ValueError):
        raise CredoError(f"{name} is not numeric ({_shown(values)}): give numbers, coding categories first.") from None


def _nonempty_and_finite(name: str, array: np.ndarray) -> np.ndarray:
    if len(array) == 0:
        raise CredoError(f"{name} has no rows: give at least one observation.")
    is_bad = ~np.isfinite(array)
    if np.any(is_bad):
        row = int(np.argwhere(is_bad)[0][0])
        raise CredoError(
            f"{name} holds {int(is_bad.sum())} values that are not finite (the first, {array[is_bad][0]}, in row "
            f"{row}): drop or impute those rows."
        )
    return array


def _shown(values: ArrayLike) -> str:
    text = repr(values) if np.ndim(values) else str(values)
    return text if len(text) <= 60 else text[:57] + "..."
