"""The design matrix: columns as they are and text by indicators, or the terms of a formula (by formulaic).

A design is learnt from the table's inputs alone. It reads new rows in the same way, and refuses with a sentence what it
did not know.
"""

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np

from credo.models.columns import MAX_LEVELS, Kinds, is_numeric, kinds_of, read_columns, require
from credo.models.expressions import check_term, names_in
from credo.models.formula import split
from credo.status import CredoError

LEAST_SPREAD = 1e-12  # of the largest value: below, a column is constant but for rounding


@runtime_checkable
class Design(Protocol):
    """``names``: what each of the D columns stands for. ``design(frame)``: the rows of ``frame``, (M, D)."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def has_intercept(self) -> bool: ...
    def __call__(self, frame) -> np.ndarray: ...


@dataclass(frozen=True)
class Columns:
    """Numbers as they are; a text column by an indicator for each level but the first."""

    kinds: Kinds
    has_intercept: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(
            name
            for column, levels in self.kinds.items()
            for name in ([column] if levels is None else [f"{column}={level}" for level in levels[1:]])
        )

    def __call__(self, frame) -> np.ndarray:
        read = read_columns(frame, self.kinds)
        columns = []
        for column, levels in self.kinds.items():
            if levels is None:
                columns.append(read[column].to_numpy()[:, None])
            else:
                columns.append(read[column].cat.codes.to_numpy()[:, None] == np.arange(1, len(levels)))
        return np.concatenate([np.zeros((len(frame), 0)), *columns], axis=1)


def row_names(frame, features: Sequence[str]) -> dict[str, str]:
    """The columns among ``features`` whose text names rows rather than describes them, and a note on each."""
    found = {}
    for column in features:
        if not is_numeric(frame[column]):
            number, size = frame[column].nunique(), int(frame[column].notna().sum())
            if number > MAX_LEVELS or (number > 10 and number > size / 2):
                kinds_of(frame, (column,))  # dates, and numbers spoilt by words, have sentences of their own
                found[column] = (
                    f"Column {column!r} is left out: it is text with {number} distinct values in {size} rows, more "
                    f"names than properties; a formula with (1 | {column}) would use it as a group."
                )
    return found


class Terms:
    """The fixed terms of a formula. formulaic keeps levels and constants (of ``poly``, ``center`` …) as learnt."""

    def __init__(self, text: str, frame):
        names = required_columns(text, frame)
        self.kinds = kinds_of(frame, names)
        self._text = text
        self._spec = _materialise(text, text, self._read(frame)).model_spec
        # not by its name, which a column may have too
        intercept = [i for term, indices in self._spec.term_indices.items() if term.degree == 0 for i in indices]
        columns = self._spec.column_names
        self.has_intercept = bool(intercept)
        self._keep = [i for i in range(len(columns)) if i not in intercept]
        self.names = tuple(_plain(columns[i]) for i in self._keep)

    def __call__(self, frame) -> np.ndarray:
        if not len(frame):
            raise CredoError("The table has no rows: give at least one.")
        matrix = np.asarray(_materialise(self._text, self._spec, self._read(frame)), np.float64)
        matrix = matrix.reshape(len(frame), -1)[:, self._keep] if self._keep else np.zeros((len(frame), 0))
        if not np.isfinite(matrix).all():
            row, column = np.argwhere(~np.isfinite(matrix))[0]
            raise CredoError(
                f"The term {self.names[column]!r} is not finite in row {row}: drop that row, or choose a function "
                "that is defined there."
            )
        return matrix

    def _read(self, frame):
        read = read_columns(frame, self.kinds)
        return read if self.kinds else read.assign(**{"no column": 0.0})  # formulaic counts the rows of a column


def required_columns(text: str, frame) -> tuple[str, ...]:
    """The columns that formulaic terms need, in the order of the table; CredoError for what is none.

    Of a term that is taken away the columns must be there, and are not needed.
    """
    import formulaic
    from formulaic.parser import DefaultFormulaParser
    from formulaic.transforms import TRANSFORMS

    parsed: Any = formulaic.Formula
    try:
        tokens = list(DefaultFormulaParser().get_tokens_from_formula(text, context={}))
        written = [(token.token, token.kind.value) for token in tokens if token.kind is not None]
        for term in (term for term, kind in written if kind == "python"):
            check_term(term)  # before anything else: looking for variables evaluates a part of some
        _check_written(text, written)
        kept = [(factor.expr, factor.eval_method.value) for term in parsed(text) for factor in term.factors]
    except CredoError:
        raise
    except SyntaxError as error:  # of Python's own parser, which formulaic lets through
        raise CredoError(
            f"The formula's part {_shown(text)!r} cannot be read, for {_culprit(text)!r}: a term is a column or a "
            "function of columns such as log(x)."
        ) from error
    except Exception as error:
        raise _unreadable(text, error) from error
    contrasts = set(TRANSFORMS) - set(frame.columns)
    named, wanted = _names(written) - contrasts, _names(kept) - contrasts
    require(frame, sorted(named - set(frame.columns)), used=named)
    return tuple(name for name in frame.columns if name in wanted)


def _names(pieces: Sequence[tuple[str, str]]) -> set[str]:
    """The names in (text, kind), tokens or factors of formulaic."""
    names = {text for text, kind in pieces if kind in ("name", "lookup")}
    return names.union(*(names_in(text) for text, kind in pieces if kind == "python"))


def _check_written(text: str, tokens: Sequence[tuple[str, str]]) -> None:
    """CredoError for what formulaic would read as something else."""
    if (".", "operator") in tokens:
        raise CredoError(
            f"The formula's part {_shown(text)!r} has a dot inside a term, and it stands for all other columns only as "
            "a term of its own, as in y ~ . + x:z: name the columns there."
        )
    if ("1", "name") in tokens:
        raise CredoError(
            "The formula names a column '1', which would be taken for the intercept: rename it, as in "
            "table.rename(columns={'1': 'x1'})."
        )
    for (base, kind), (mark, _) in pairwise(tokens):
        if mark in ("**", "^") and kind in ("name", "python"):
            quoted = f"`{base}`" if kind == "name" and not base.isidentifier() else base
            raise CredoError(
                f"The formula's part {_shown(text)!r} has a power of {base!r}, by which a formula crosses terms: it is "
                f"{base!r} again. For its square write {{{quoted}**2}}."
            )


def evaluate(text: str, frame) -> np.ndarray:
    """One column (N,) computed by an expression such as ``log(y) + 1``."""
    term = as_expression(text)
    if not required_columns(term, frame):
        raise CredoError(f"{text!r} names no column of the table: name one, or a function of columns such as log(x).")
    column = Terms(term, frame)
    if len(column.names) != 1:
        raise CredoError(f"{text!r} stands for {len(column.names)} columns where one is needed: name one column.")
    return column(frame)[:, 0]


def as_expression(text: str) -> str:
    """The term that computes ``text``: in braces + and * are arithmetic, where a formula adds and crosses terms."""
    is_name = re.fullmatch(r"(`?)[^\W\d][\w.]*\1", text)  # which may be a word or dotted, as Python's are not
    return f"0 + {text}" if is_name or (text.startswith("{") and text.endswith("}")) else f"0 + {{{text}}}"


def _materialise(text: str, spec, frame) -> Any:
    from formulaic import model_matrix
    from formulaic.errors import DataMismatchWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # log(−1) is NaN, and found as such
        warnings.simplefilter("error", DataMismatchWarning)
        try:
            return model_matrix(spec, frame, output="numpy", na_action="ignore", context={})
        except DataMismatchWarning as error:
            raise CredoError(
                f"{_shown(text)!r} meets a level that the fit did not know: {_one_line(error)} Drop those rows, or use "
                "a group effect, (1 | column), whose new levels are drawn from their prior."
            ) from error
        except Exception as error:  # whatever a function of the formula raises
            raise _unreadable(text, error) from error


def _culprit(text: str) -> str:
    """The first term that formulaic cannot read."""
    import formulaic

    parsed: Any = formulaic.Formula
    for _, term in split(text, "+-"):
        try:
            parsed(term)
        except SyntaxError:
            return term
    return _shown(text)


def _unreadable(text: str, error: Exception) -> CredoError:
    return CredoError(f"The formula's part {_shown(text)!r} cannot be read: {_one_line(error)}")


def _one_line(error: Exception) -> str:
    """formulaic marks the place of an error with control characters on a line of its own."""
    line = str(error).strip().split("\n")[0].strip()
    return line if line.endswith(".") else f"{line}."


def _shown(text: str) -> str:
    text = text.removeprefix("1 + ").removeprefix("0 + ")
    return text[1:-1] if text.startswith("{") and text.endswith("}") else text


def _plain(name: str) -> str:
    """``colour[T.red]`` -> ``colour=red``, ``C(k)[T.2.0]`` -> ``C(k)=2``."""
    return re.sub(r"\[(?:T\.)([^\]]*?)(?:(?<=\d)\.0)?\]", r"=\1", name)


def mean_and_sd(x: np.ndarray, weights=None, is_centred: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Over rows that count by weight, about 0 if not centred; the sd is 0 of what is constant but for rounding.

    In units of the largest, since the squares of 1e200 and of 1e-200 are no numbers.
    """
    weights = np.ones(len(x)) if weights is None else weights
    x, weights = x[weights > 0], weights[weights > 0]
    largest = np.abs(x).max(axis=0)
    size = np.where(largest > 0, largest, 1.0)
    mean = np.average(x / size, axis=0, weights=weights) if is_centred else np.zeros(x.shape[1:])
    sd = np.sqrt(np.average((x / size - mean) ** 2, axis=0, weights=weights))
    return mean * size, np.where(sd > LEAST_SPREAD, sd * size, 0.0)


@dataclass(frozen=True)
class Scaling:
    """Columns as the coefficients see them: centred (where there is an intercept) and divided by ``scale``.

    ``scale`` is the sd over the rows of the fit, or the root mean square of what is not centred; for a column of two
    values it is their difference, so that the coefficient of an indicator is the difference between its two groups,
    however rare one of them is.
    """

    centre: np.ndarray
    scale: np.ndarray
    is_binary: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray, rows: Sequence[int] | np.ndarray, is_centred: bool, weights=None) -> "Scaling":
        """From the rows of the fit among all rows of ``x`` (N, D), each counted by its weight."""
        fitted = x[rows] if len(x[rows]) else np.zeros((1, x.shape[1]))
        low, high = fitted.min(axis=0), fitted.max(axis=0)
        are_apart = high - low > LEAST_SPREAD * np.abs(fitted).max(axis=0)
        is_binary = np.all((fitted == low) | (fitted == high), axis=0) & are_apart
        centre, spread = mean_and_sd(fitted, weights, is_centred)
        scale = np.where(is_binary, high - low, spread)
        return cls(centre, np.where(scale > 0, scale, 1.0), is_binary)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return (x - self.centre) / self.scale


def superfluous(x: np.ndarray, names: Sequence[str], has_intercept: bool) -> tuple[list[int], tuple[str, ...]]:
    """(columns to keep, notes): a constant column and an exact copy of an earlier one say nothing of their own.

    Without an intercept the first constant is one.
    """
    seen: dict[bytes, int] = {}
    keep, notes = [], []
    for i, name in enumerate(names):
        column = np.ascontiguousarray(x[:, i]) + 0.0  # −0 becomes 0
        first = seen.setdefault(blake2b(column.data).digest(), i)
        is_constant = len(column) > 0 and bool(np.all(column == column[0]))
        if is_constant and not has_intercept and column[0] != 0:
            has_intercept = True
            keep.append(i)
        elif is_constant:
            notes.append(f"Column {name!r} is constant (every value is {column[0]:g}) and is left out.")
        elif first != i:
            notes.append(f"Column {name!r} is a copy of {names[first]!r} and is left out.")
        else:
            keep.append(i)
    return keep, tuple(notes)


def single_levels(kinds: Kinds) -> tuple[str, ...]:
    """A note on each text column that holds one level alone, which has no indicator."""
    return tuple(
        f"Column {name!r} holds {levels[0]!r} in every row, which tells none apart."
        for name, levels in kinds.items()
        if levels is not None and len(levels) == 1
    )


@dataclass(frozen=True)
class Kept:
    """A design without its superfluous columns."""

    design: Design
    keep: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        names = self.design.names
        return tuple(names[i] for i in self.keep)

    @property
    def has_intercept(self) -> bool:
        return self.design.has_intercept

    def __call__(self, frame) -> np.ndarray:
        return self.design(frame)[:, list(self.keep)]
