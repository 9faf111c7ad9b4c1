"""New inputs, held against those of the fit before anything is computed."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from credo.model.check import check_new_inputs
from credo.model.data import Unkept, as_array, by_column, column_name, inputs, num_rows
from credo.model.model import Model
from credo.model.prior import Prior
from credo.model.source import Loader
from credo.model.target import Target
from credo.predict.levels import NewRows, code
from credo.status import CredoError

FEW = 16  # rows that tell most columns of measurements from columns of whole numbers


SCALED = "Give prepared.inputs(x), or the inputs(x) of an estimator, whichever made the model, which scales them"


class Table(NamedTuple):
    """Checked inputs. ``size`` is None where the model has none; ``new_rows`` counts the unseen group levels."""

    x: Any
    size: int | None
    new_rows: NewRows


def check_inputs(target: Target, x) -> Table:
    """``x`` in the structure and dtypes of the inputs of the fit; CredoError, a sentence, where it cannot be."""
    fitted = target.x
    if isinstance(x, Loader):
        raise CredoError(
            "Predictions are of arrays, which may be memory-mapped, and x is a Loader: give the inputs of its batches, "
            "one after the other, as predict(x) of each."
        )
    if target.model.likelihood is None:
        raise CredoError(
            f"This posterior cannot predict, since its model has no likelihood: {target.model.without_likelihood}."
        )
    if any(map(_is_unkept, jax.tree.leaves(fitted, is_leaf=_is_unkept))):
        raise CredoError(
            "This posterior was loaded from a file, which could not hold the form of the inputs that it was fitted to: "
            "load it with the target, model.given(x, y)."
        )
    if fitted is None:
        if x is None:
            return Table(None, None, ())
        if type(target.model) is Model:
            raise CredoError("The model was fitted without inputs x: call predict() without any.")
        x, _ = inputs(x)  # an adapter's model has inputs that its target need not hold
        size = _size(x)
        _check_indices_of_adapter(target, x)
        return Table(x, size, ())
    if x is None:
        if target.size == 0:
            raise CredoError(
                "This posterior does not have its data (it was loaded without them, or they lie in a Loader), so there "
                "are no inputs to fall back on: give x."
            )
        return Table(widened(fitted), target.size, ())
    x, new_rows = code(target, _columns(fitted, x))
    x, _ = inputs(x)
    is_other_form = jax.tree.structure(x) != jax.tree.structure(fitted)
    is_table_for_array = isinstance(fitted, np.ndarray) and isinstance(x, Mapping)
    may_differ = type(target.model) is not Model and not is_table_for_array  # an adapter's may take inputs by name
    if not (is_other_form and may_differ):
        x = _match(fitted, x)
    size, wide = _size(x), widened(x)
    if not isinstance(target.model.prior, Prior):
        _check_indices_of_adapter(target, wide)
    elif _goes_further(fitted, x):
        unseen = {column: np.zeros_like(x[column]) for column in target.model.groups}  # they have rows of their own
        check_new_inputs(target, {**wide, **unseen} if unseen else wide)
    return Table(wide, size, new_rows)


def _is_unkept(node) -> bool:
    return isinstance(node, Unkept)


def _check_indices_of_adapter(target: Target, x) -> None:
    """Of whole numbers, which may be indices: an adapter's inputs need not have the form of those of the fit."""
    if any(np.issubdtype(np.asarray(leaf).dtype, np.integer) for leaf in jax.tree.leaves(x)):
        check_new_inputs(target, x)


def _goes_further(fitted, x) -> bool:
    """Whether a column that held whole numbers, which may be indices, holds others than the fit has seen."""
    return any(map(_has_further_whole_numbers, jax.tree.leaves(fitted), jax.tree.leaves(x)))


def _has_further_whole_numbers(fitted: np.ndarray, new: np.ndarray) -> bool:
    old, new = (array.reshape(len(array), math.prod(array.shape[1:])) for array in (fitted, new))
    whole = _whole(old[:FEW])
    if not whole.all():  # most columns of measurements are left out here
        old, new = old[:, whole], new[:, whole]
    further = np.flatnonzero((new.max(axis=0) > old.max(axis=0, initial=-1)) | (new.min(axis=0) < 0))
    return further.size > 0 and bool(_whole(old[:, further]).any())


def _whole(array: np.ndarray) -> np.ndarray:
    """Of each column whether it holds whole numbers alone; of % 1 a number takes a hundred times as long."""
    return np.all(array == np.floor(array), axis=0)


def _size(x) -> int:
    if any(np.shape(leaf)[:1] == (0,) for leaf in jax.tree.leaves(x)):
        raise CredoError("x has no rows: give at least one to predict for.")
    return num_rows(x, None, None)


def widened(tree):
    """Floats in float64: prediction integrates in it, whatever the precision of the fit."""

    def convert(leaf):
        is_narrow = hasattr(leaf, "dtype") and leaf.dtype != np.float64 and np.issubdtype(leaf.dtype, np.floating)
        return np.asarray(leaf, np.float64) if is_narrow else leaf

    return jax.tree.map(convert, tree)


def _columns(fitted, x):
    """The columns of a table that the fit knew; others may be there and are left aside."""
    table = by_column(x)
    if not (isinstance(fitted, Mapping) and isinstance(table, Mapping)):
        return table
    missing = [name for name in fitted if name not in table]
    if missing:
        is_prepared = "features" in missing  # by credo.prepare
        remedy = SCALED if is_prepared else "Give them all"
        raise CredoError(
            f"x lacks column {missing[0]!r}; the model was fitted with {', '.join(map(str, fitted))}. {remedy}."
        )
    return {
        name: as_array(f"x[{name!r}]", table[name]) if isinstance(fitted[name], np.ndarray) else table[name]
        for name in fitted
    }


def _match(fitted, x):
    if jax.tree.structure(x) != jax.tree.structure(fitted):
        is_prepared = isinstance(fitted, Mapping) and "features" in fitted  # by credo.prepare
        hint = " (of a DataFrame x.to_numpy())" if isinstance(x, Mapping) and isinstance(fitted, np.ndarray) else ""
        if is_prepared:
            hint = f" ({SCALED[0].lower()}{SCALED[1:]})"
        raise CredoError(
            f"x is {_described(x)} and the model was fitted with {_described(fitted)}: give the same kind of "
            f"inputs{hint}."
        )
    return jax.tree_util.tree_map_with_path(lambda path, old, new: _match_leaf(column_name(path), old, new), fitted, x)


def _match_leaf(name: str, fitted: np.ndarray, new: np.ndarray) -> np.ndarray:
    if new.shape[1:] != fitted.shape[1:] or new.ndim != fitted.ndim:
        wanted = f"(M{''.join(f', {n}' for n in fitted.shape[1:])})" if fitted.ndim > 1 else "(M,)"
        raise CredoError(
            f"{name} has shape {new.shape} and the model was fitted with {name} of shape {fitted.shape}: give "
            f"{wanted}, one row a datum and the same columns."
        )
    if fitted.dtype.kind in "iu" and new.dtype.kind == "f":
        uneven = np.flatnonzero(np.any((new != np.floor(new)).reshape(len(new), -1), axis=1))
        if uneven.size:
            raise CredoError(
                f"{name} held whole numbers in the fit and has others now (the first in row {uneven[0]}: "
                f"{new[uneven[0]]}): give whole numbers."
            )
    if fitted.dtype == bool and new.dtype != bool:
        other = np.flatnonzero(np.any(((new != 0) & (new != 1)).reshape(len(new), -1), axis=1))
        if other.size:
            raise CredoError(
                f"{name} held booleans in the fit and has other numbers now (the first in row {other[0]}: "
                f"{new[other[0]]}): give booleans, or 0 and 1."
            )
    return new.astype(fitted.dtype, copy=False)


def _described(x) -> str:
    if isinstance(x, Mapping):
        return f"a table with columns {', '.join(map(str, list(x)[:8]))}"
    return f"an array of shape {x.shape}" if isinstance(x, np.ndarray) else f"a {type(x).__name__}"
