"""Data as the model sees them: NumPy arrays with a common leading axis, checked once.

Floats become float64 and text becomes codes where a group asks for it; nothing else is changed. Everything that is
wrong with a table is said here, before anything is compiled.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from credo.status import CredoError

Inputs = Any  # None, an array, or a pytree of arrays with a common leading axis


class Rows(NamedTuple):
    """A batch handed over as data: what an iterator of minibatches yields."""

    x: Inputs
    y: Any
    weights: Any = None


class Levels:
    """The levels of each group column, in the order of their codes. Equal to any other: no compiled code reads it."""

    def __init__(self, levels: Mapping[str, np.ndarray] | None = None):
        self.levels = dict(levels or {})

    def __eq__(self, other) -> bool:
        return isinstance(other, Levels)

    def __hash__(self) -> int:
        return hash(Levels)

    def encode(self, column: str, values: np.ndarray) -> np.ndarray:
        """Codes 0 … L − 1 for known levels; each unseen level gets a code of its own from L on."""
        known = self.levels[column]
        unseen = np.setdiff1d(values, known)
        table = np.concatenate([known, unseen]) if unseen.size else known
        order = np.argsort(table, kind="stable")
        return order[np.searchsorted(table, values, sorter=order)].astype(np.int64)


def inputs(x, groups: Mapping[str, str] = {}, levels: Levels | None = None) -> tuple[Inputs, Levels]:
    """Check and convert inputs. With ``levels`` (prediction) the group columns are coded by the known levels."""
    if x is None:
        return None, levels or Levels()
    table = {str(name): np.asarray(x[name]) for name in x.columns} if hasattr(x, "columns") else x
    missing = [name for name in groups if not (isinstance(table, Mapping) and name in table)]
    if missing:
        raise CredoError(
            f"The model groups by column {missing[0]!r}, which the inputs lack: give x as a DataFrame or a dict of "
            "columns that has it."
        )
    coded, found = {}, {}
    for name in groups:
        values = np.asarray(table[name])
        found[name] = levels.levels[name] if levels is not None else _levels(name, values)
        coded[name] = Levels(found).encode(name, values)
    if coded:
        table = {**table, **coded}
    return _columns(table, "x"), Levels(found)


def outcomes(y):
    """Check and convert outcomes: an array, or a dict of arrays."""
    return _columns(y, "y")


def num_rows(x: Inputs, y, weights) -> int:
    """The common length of everything given."""
    lengths = {}
    for root, tree in (("x", x), ("y", y), ("weights", weights)):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if not np.ndim(leaf):
                raise CredoError(
                    f"{column_name(path, root)} is a single number: data have one row a datum; give an array."
                )
            lengths[column_name(path, root)] = np.shape(leaf)[0]
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} has {length}" for name, length in list(lengths.items())[:6])
        raise CredoError(f"The data differ in length ({shown} rows): give one row a datum in each.")
    size = next(iter(lengths.values()), 0)
    if lengths and size == 0:
        raise CredoError("The data have no rows: give at least one, or call given() without data for the prior alone.")
    return size


def case_weights(weights) -> np.ndarray | None:
    if weights is None:
        return None
    weights = column("weights", weights)
    if weights.ndim != 1 or np.any(weights < 0):
        raise CredoError("The weights must be one non-negative number a row; correct or drop the negative ones.")
    return weights.astype(np.float64)


def _levels(name: str, values: np.ndarray) -> np.ndarray:
    """Whole numbers from 0 are codes already; anything else is coded by its sorted distinct values."""
    if np.issubdtype(values.dtype, np.integer) and values.size and values.min() >= 0:
        return np.arange(values.max() + 1)
    return np.unique(values)


def _columns(tree, root: str):
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: column(column_name(path, root), leaf), tree, is_leaf=_is_list_of_numbers
    )


def _is_list_of_numbers(node) -> bool:
    """Lists are arrays as Python writes them, unless they hold arrays."""
    return isinstance(node, list | tuple) and bool(node) and all(np.isscalar(leaf) for leaf in jax.tree.leaves(node))


def column(name: str, leaf) -> np.ndarray:
    try:
        values = np.asarray(leaf)
    except ValueError as error:
        raise CredoError(f"{name} is ragged (its rows differ in length): give a rectangular array.") from error
    if values.dtype == object:
        values = _from_objects(name, values)
    if values.dtype.kind in "USTMm":
        raise CredoError(
            f"{name} holds text or dates (first value {values.ravel()[0]!r}) where numbers belong: encode it, drop it, "
            "or name it in groups=."
        )
    if values.dtype.kind in "biu":
        return values.astype(np.int64)
    if values.dtype.kind != "f":
        raise CredoError(f"{name} has dtype {values.dtype}, which is not a real number: convert it to float or int.")
    bad = ~np.isfinite(values)
    if bad.any():
        first = tuple(np.argwhere(bad)[0])
        raise CredoError(
            f"{name} has {int(bad.sum())} NaN or infinite value{'s' if bad.sum() > 1 else ''} (the first in row "
            f"{first[0] if first else 0}: {values[first]}): drop those rows or impute them."
        )
    return values.astype(np.float64)


def _from_objects(name: str, values: np.ndarray) -> np.ndarray:
    """A pandas column of mixed objects: numbers if all are numbers, text otherwise; None counts as missing."""
    missing = np.array([v is None for v in values.ravel()])
    if missing.any():
        raise CredoError(f"{name} has {missing.sum()} missing values (None): drop those rows or impute them.")
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError):
        return values.astype(str)


def column_name(path, root: str = "x") -> str:
    parts = [str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k)))) for k in path]
    return f"{root}[{parts[0]!r}]" + "".join(f".{part}" for part in parts[1:]) if parts else root
