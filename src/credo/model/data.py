"""Data as the model sees them: NumPy arrays with a common leading axis, checked once.

Floats become float64 and text becomes codes where a group asks for it; nothing else is changed. Everything that is
wrong with a table is said here, before anything is compiled.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, MappingView
from datetime import date
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from credo.arguments import of_tensor, unmasked
from credo.status import CredoError

NO_ROWS = "The data have no rows: give at least one, or call given() without data for the prior alone."
Inputs = Any  # None, an array, or a pytree of arrays with a common leading axis


class Rows(NamedTuple):
    """A batch handed over as data: what an iterator of minibatches yields."""

    x: Inputs
    y: Any
    weights: Any = None


class Unkept(NamedTuple):
    """In place of the inputs of a fit, or of a part of them, whose form the file of a posterior could not hold."""


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


def inputs(
    x, groups: Mapping[str, str] = {}, levels: Levels | None = None, rows: Mapping[str, int] = {}
) -> tuple[Inputs, Levels]:
    """Check and convert inputs. With ``levels`` (prediction) the group columns are coded by the known levels.

    ``rows``: how many each parameter of ``groups`` has.
    """
    if x is None:
        return None, levels or Levels()
    table = by_column(x)
    missing = [name for name in groups if not (isinstance(table, Mapping) and name in table)]
    if missing:
        raise CredoError(
            f"The model groups by column {missing[0]!r}, which the inputs lack: give x as a DataFrame or a dict of "
            "columns that has it."
        )
    if groups:
        columns = {name: group_column(name, table[name]) for name in groups}
        levels = levels or _levels(columns, groups, rows)
        table = {**table, **{name: levels.encode(name, values) for name, values in columns.items()}}
    return _columns(table, "x"), levels or Levels()


def by_column(x):
    """A table of any library as a dict of its columns, their names as text; CredoError where two have one."""
    if not hasattr(x, "columns"):
        return dict(x) if isinstance(x, Mapping) else x
    names = [str(name) for name in x.columns]
    doubled = [name for name, number in Counter(names).items() if number > 1]
    if doubled:
        raise CredoError(f"Two columns of the table are called {doubled[0]!r}, as text: rename one, or drop it.")
    return {str(name): np.asarray(x[name]) for name in x.columns}


def outcomes(y):
    """Check and convert outcomes: an array, or a dict of arrays."""
    return _columns(dict(y) if isinstance(y, Mapping) else y, "y")


def outcome_arrays(y):
    """Outcomes as arrays of any dtype, or a dict of them, whatever they hold."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: as_array(column_name(path, "y"), leaf), y, is_leaf=is_leaf
    )


def check_order(**tables) -> None:
    """CredoError where tables or columns of pandas have one index in two orders: rows are paired by position."""
    columns: dict[str, Any] = {}
    for name, table in tables.items():
        is_dict = isinstance(table, Mapping)
        columns |= {f"{name}[{key!r}]": column for key, column in table.items()} if is_dict else {name: table}
    found: list[tuple[str, Any]] = [
        (name, table.index) for name, table in columns.items() if hasattr(getattr(table, "index", None), "equals")
    ]
    for name, other in found[1:]:
        first, index = found[0]
        if index.equals(other) or len(index) != len(other) or not index.is_unique or set(index) != set(other):
            continue
        row = int(np.argmax(np.asarray(index != other)))
        raise CredoError(
            f"{first} and {name} have the same index in different orders (row {row} is {index[row]} and {other[row]}), "
            f"and rows are paired by position: give {name}.loc[{first}.index], or both as arrays."
        )


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
    if size == 0 and (lengths or y is not None):
        raise CredoError(NO_ROWS)
    return size


def case_weights(weights) -> np.ndarray | None:
    if weights is None:
        return None
    if isinstance(weights, Mapping):
        raise CredoError("weights is a dict, as of classes, and there is one weight a row: give an array of them.")
    weights = column("weights", weights)
    if weights.ndim != 1:
        raise CredoError(f"The weights have shape {weights.shape}: give one non-negative number a row.")
    negative = np.flatnonzero(weights < 0)
    if negative.size:
        raise CredoError(
            f"The weights must be non-negative, since each says how often its row counts, and {negative.size} of "
            f"{len(weights)} are not (the first in row {negative[0]}: {weights[negative[0]]:g}): correct or drop them."
        )
    if weights.size and not weights.any():
        raise CredoError("All weights are 0, so that no row counts: call given() without data for the prior alone.")
    return weights.astype(np.float64)


def group_column(name: str, values) -> np.ndarray:
    """The levels of each row, one kind of value, none of them missing."""
    values = as_array(f"Column {name!r}", values)
    missing = are_missing(values)
    if missing.any():
        first = int(np.argmax(missing))
        raise CredoError(
            f"Column {name!r}, a group, has {_counted(missing.sum(), 'missing value')} (the first in row {first}: "
            f"{values[first]}): drop those rows, or give unknown levels a name of their own."
        )
    if values.dtype != object:
        return as_double(values)
    kinds = sorted({kind_of_level(value) for value in values.ravel().tolist()})
    if len(kinds) > 1:
        raise CredoError(
            f"Column {name!r}, a group, holds both {kinds[-1]} and {kinds[0]}: write all its levels as text."
        )
    return as_double(np.array(values.tolist())) if kinds == ["numbers"] else values


def as_double(levels):
    """Numbers of single or half precision as they are written, 0.1 for 0.10000000149, widened since or not; whole ones
    as they are."""
    values = np.asarray(levels)
    if values.dtype.kind != "f":
        return levels
    with np.errstate(over="ignore"):
        narrow = values if values.dtype == np.float16 else values.astype(np.float32)
    found = values.astype(np.float64)
    is_written = (narrow == found) & (found != np.round(found))
    found[is_written] = narrow[is_written].astype(str).astype(np.float64)
    return found


def kind_of_level(value) -> str:
    """What cannot be compared with one another."""
    if isinstance(value, str | bytes):
        return "text" if isinstance(value, str) else "bytes"
    return "dates" if isinstance(value, date | np.datetime64) else "numbers"


def are_missing(values: np.ndarray) -> np.ndarray:
    """Which entries are None, NaN, or the missing value of a library of tables."""
    if values.dtype != object:
        return values != values
    return np.array([_is_missing(value) for value in values.ravel()], bool).reshape(values.shape)


def _is_missing(value) -> bool:
    try:
        return value is None or bool(value != value)
    except TypeError:  # pandas.NA has no truth value
        return True


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _levels(columns: Mapping[str, np.ndarray], groups: Mapping[str, str], rows: Mapping[str, int]) -> Levels:
    """Columns that index one parameter share their levels.

    Whole numbers from 0 are codes already, if the parameter has a row for each; anything else is coded by its sorted
    distinct values.
    """
    found: dict[str, np.ndarray] = {}
    for parameter in dict.fromkeys(groups.values()):
        names = [name for name in groups if groups[name] == parameter]
        kinds = {"text" if columns[name].dtype.kind in "USO" else "numbers" for name in names}
        if len(kinds) > 1:
            raise CredoError(
                f"Columns {', '.join(map(repr, names))} index the same parameter {parameter!r}, but one holds text and "
                "one numbers: write their levels alike."
            )
        together = np.concatenate([columns[name].ravel() for name in names])
        are_whole = all(columns[name].dtype.kind in "iu" for name in names) and together.size > 0
        are_codes = are_whole and together.min() >= 0 and together.max() < rows[parameter]
        found |= dict.fromkeys(names, np.arange(together.max() + 1) if are_codes else np.unique(together))
    return Levels(found)


def _columns(tree, root: str):
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: column(column_name(path, root), leaf), tree, is_leaf=is_leaf
    )


def is_leaf(node) -> bool:
    """Lists are arrays as Python writes them, unless they hold arrays. An empty list has no rows, () is no data.

    What could be listed is no array, and is said to be none by ``as_array``: JAX would warn, and one day refuse it.
    """
    if _is_listable(node):
        return True
    is_list = isinstance(node, list) or (isinstance(node, tuple) and bool(node))
    return is_list and all(np.isscalar(leaf) for leaf in jax.tree.leaves(node, is_leaf=_is_listable))


def _is_listable(node) -> bool:
    return isinstance(node, set | frozenset | Iterator | MappingView)


def as_array(name: str, leaf) -> np.ndarray:
    """What was given as a NumPy array of any dtype, masked entries as missing ones."""
    if hasattr(leaf, "toarray"):
        raise CredoError(
            f"{name} is a sparse matrix of shape {leaf.shape}, and models read arrays: give its toarray(), or fewer "
            "columns."
        )
    if isinstance(leaf, Tracer):
        raise CredoError(
            f"{name} is being traced, by jax.jit, vmap or grad, and a model looks at its data: call given() and fit() "
            "outside."
        )
    leaf = of_tensor(leaf)
    try:
        values = np.asarray(unmasked(leaf))
    except ValueError as error:
        raise CredoError(f"{name} is ragged (its rows differ in length): give a rectangular array.") from error
    if values.shape == () and values.dtype == object and (isinstance(leaf, Iterable) or callable(leaf)):
        is_set, gives_batches = isinstance(leaf, set | frozenset), not isinstance(leaf, MappingView)
        cause = "has no order, and rows do" if is_set else "is no array"
        or_loader = ", or credo.Loader(…) of batches (x, y)" if isinstance(leaf, Iterable) and gives_batches else ""
        raise CredoError(
            f"{name} is a {type(leaf).__name__}, which {cause}: give an array, or a list of its values{or_loader}."
        )
    return values


def column(name: str, leaf) -> np.ndarray:
    values = as_array(name, leaf)
    if values.dtype == object:
        values = _from_objects(name, values)
    if values.dtype.kind in "USTMm":
        raise CredoError(
            f"{name} holds text or dates (first value {str(values.ravel()[0])!r}) where numbers belong: encode it, "
            "drop it, or name it in groups=."
        )
    if values.dtype.kind == "b" and not _is_outcome(name):
        return values  # ~x is not what it is of numbers
    if values.dtype.kind == "u" and values.size and values.max() > np.iinfo(np.int64).max:
        raise CredoError(
            f"{name} holds {values.max()}, and whole numbers go up to {np.iinfo(np.int64).max:,}: an identifier is a "
            "group of the model (groups=), as text; a measurement is a float."
        )
    if values.dtype.kind in "biu":
        return values.astype(np.int64)
    if not jax.numpy.issubdtype(values.dtype, np.floating):  # of which bfloat16 is one to JAX alone
        raise CredoError(f"{name} has dtype {values.dtype}, which is not a real number: convert it to float or int.")
    bad = ~np.isfinite(values)
    if _is_outcome(name) and bad.any() and not np.isnan(values).any():
        first = tuple(np.argwhere(bad)[0])
        raise CredoError(
            f"{name} has {_counted(bad.sum(), 'infinite value')} (the first in row {first[0] if first else 0}: "
            f"{values[first]}), which are not missing and cannot be observed: correct those rows. Of an "
            "interval-censored row a bound that is not known is any number inside the support, as right_censored=1 or "
            "left_censored=1 says that it does not count."
        )
    if bad.any():
        first = tuple(np.argwhere(bad)[0])
        raise CredoError(
            f"{name} has {_counted(bad.sum(), 'NaN or infinite value')} (the first in row "
            f"{first[0] if first else 0}: {values[first]}): {_remedy(name)}."
        )
    return values.astype(np.float64)


def _from_objects(name: str, values: np.ndarray) -> np.ndarray:
    """A pandas column of mixed objects: numbers if all are numbers, whole ones where outcomes all are, as classes must
    be; text otherwise; None counts as missing."""
    missing = are_missing(values)
    if missing.any():
        first = int(np.argwhere(missing)[0][0]) if values.ndim else 0
        raise CredoError(
            f"{name} has {_counted(missing.sum(), 'missing value')} (the first in row {first}): {_remedy(name)}."
        )
    is_whole = all(isinstance(value, int | np.integer) and not isinstance(value, bool) for value in values.flat)
    if _is_outcome(name) and is_whole:
        with contextlib.suppress(OverflowError):
            return values.astype(np.int64)
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError):
        return values.astype(str)


MASKED = (
    "to keep what a row has beside them, put any number in their place and mask them in the likelihood, by "
    "dist.….mask(x['is_seen'])"
)


OF_LOADER = "(of a Loader, in what gives its batches)"


def _remedy(name: str) -> str:
    if name == "y":
        return f"drop those rows or impute them, by given(x, y, missing='drop') or 'impute' {OF_LOADER}"
    if _is_outcome(name):
        return f"drop those rows, by given(x, y, missing='drop') {OF_LOADER}, or {MASKED}"
    return "drop those rows or impute them"


def _is_outcome(name: str) -> bool:
    return name == "y" or name.startswith("y[")


def column_name(path, root: str = "x") -> str:
    parts = [str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k)))) for k in path]
    return f"{root}[{parts[0]!r}]" + "".join(f".{part}" for part in parts[1:]) if parts else root
