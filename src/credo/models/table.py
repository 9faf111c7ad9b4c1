"""From a table to a design matrix and an outcome, with a sentence for everything that is wrong with it."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from credo.models.columns import as_fitted, as_text, check_same_levels, drop_missing, kinds_of, require
from credo.models.design import (
    Columns,
    Design,
    Kept,
    Terms,
    as_expression,
    evaluate,
    required_columns,
    row_names,
    single_levels,
    superfluous,
)
from credo.models.expressions import names_in
from credo.models.family import FAMILIES as FAMILIES
from credo.models.family import Family, check_family, encode, guess
from credo.models.family import guess_family as guess_family
from credo.models.formula import Formula, Group, parse, split
from credo.models.groups import GroupTerm
from credo.models.reading import BUNDLED as BUNDLED
from credo.models.reading import as_frame, read_frame
from credo.status import CredoError


class Inputs(NamedTuple):
    """Unscaled inputs of M rows: ``x`` (M, D), ``offset`` (M,) or None, and for each group (levels, design)."""

    x: np.ndarray
    offset: np.ndarray | None
    groups: tuple[tuple[np.ndarray, np.ndarray], ...]


@dataclass(frozen=True)
class GroupDesign:
    """A group term of the formula: the levels of its rows and the columns whose coefficients vary."""

    group: Group
    terms: Terms
    term: GroupTerm
    all_rows: np.ndarray = field(repr=False)

    @property
    def key(self) -> str:
        return self.term.key

    @property
    def label(self) -> str:
        return self.group.name

    @property
    def has_intercept(self) -> bool:
        return self.terms.has_intercept

    def with_intercept(self, columns: np.ndarray) -> np.ndarray:
        """(M, K): a column of ones before ``columns``, where the group has an intercept."""
        ones = [np.ones((len(columns), 1))] if self.has_intercept else []
        return np.concatenate([*ones, columns], axis=1)

    def levels(self, frame) -> np.ndarray:
        """The groups of the rows as text, combinations joined by a colon; CredoError where one is missing."""
        require(frame, self.group.by)
        for column in self.group.by:
            if (number := int(frame[column].isna().sum())) > 0:
                raise CredoError(
                    f"The group column {column!r} has {number} missing value{'s' * (number > 1)} (the first in row "
                    f"{int(np.argmax(frame[column].isna()))}): drop those rows, or give them a name of their own, such "
                    "as 'unknown', which is then a group like the others."
                )
        columns: list[Any] = [as_text(frame[column]) for column in self.group.by]
        if len(columns) > 1:  # "a:b" and "c" are not "a" and "b:c"
            columns = [[repr(str(part)) if ":" in part else part for part in parts] for parts in columns]
        return np.array([":".join(parts) for parts in zip(*columns, strict=True)], dtype=str)


@dataclass(frozen=True)
class Offset:
    """The sum of offset terms, and of the log of the exposure, on the scale of the linear predictor."""

    terms: tuple[Terms, ...]
    exposure: str | None

    def __call__(self, frame) -> np.ndarray:
        total = np.zeros(len(frame))
        for terms in self.terms:
            total += terms(frame)[:, 0]
        if self.exposure is None:
            return total
        amount = evaluate(f"`{self.exposure}`", frame)
        if np.any(amount <= 0):
            row = int(np.argmax(amount <= 0))
            raise CredoError(
                f"The exposure {self.exposure!r} is {amount[row]:g} in row {row}: an exposure is a positive amount of "
                "time, people or area. Drop that row."
            )
        return total + np.log(amount)


@dataclass(frozen=True, eq=False)
class Table:
    """``x``: (N, D) the design matrix, unscaled; ``y``: (N,); ``classes``: the labels behind class codes.

    ``notes``: what was guessed, coded and left out, a sentence each. ``frame``: the rows as they were read.
    """

    name: str
    x: np.ndarray = field(repr=False)
    columns: tuple[str, ...]
    y: np.ndarray = field(repr=False)
    target: str
    family: Family
    classes: tuple[str, ...]
    notes: tuple[str, ...]
    frame: Any = field(repr=False)
    design: Design = field(repr=False)
    groups: tuple[GroupDesign, ...] = ()
    offset: Offset | None = None

    def row_numbers(self, rows) -> np.ndarray:
        """Row numbers (M,) from row numbers or a mask (N,); CredoError for a row that the table lacks."""
        rows = np.asarray(rows)
        if rows.dtype == bool and rows.shape != self.y.shape:
            raise CredoError(
                f"The mask of rows has shape {rows.shape}, and {self.name} has {len(self.y)} rows: give one entry a "
                "row (rows that were dropped when it was read are not among them)."
            )
        if rows.ndim != 1 or not (rows.dtype.kind in "biu" or not rows.size):
            raise CredoError(f"Rows are a list of row numbers, or a mask of {len(self.y)} entries; got {rows!r:.80}.")
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.int64)
        wrong = rows[(rows < 0) | (rows >= len(self.y))]
        if len(wrong):
            raise CredoError(f"There is no row {wrong[0]} in {self.name}, which has rows 0 to {len(self.y) - 1}.")
        return rows

    @property
    def required(self) -> tuple[str, ...]:
        """The columns that new rows must have."""
        design = self.design.design if isinstance(self.design, Kept) else self.design
        parts = [design, *(group.terms for group in self.groups), *(self.offset.terms if self.offset else ())]
        read = {name for part in parts if isinstance(part, Columns | Terms) for name in part.kinds}
        read |= {column for group in self.groups for column in group.group.by}
        read |= {self.offset.exposure} if self.offset and self.offset.exposure else set()
        return tuple(name for name in self.frame.columns if name in read)

    def inputs(self, rows) -> Inputs:
        """``rows``: row numbers of this table, or a DataFrame (or dict of columns) of new rows."""
        if hasattr(rows, "columns") or isinstance(rows, Mapping):
            frame = as_frame(rows)
            require(frame, self.required)
            for column in dict.fromkeys(column for group in self.groups for column in group.group.by):
                frame[column] = as_fitted(frame[column], self.frame[column])
                check_same_levels(column, frame[column], self.frame[column])
            x, designs = self.design(frame), [group.terms(frame) for group in self.groups]
        else:
            rows = self.row_numbers(rows)
            frame = self.frame.iloc[rows].reset_index(drop=True)
            x, designs = self.x[rows], [group.all_rows[rows] for group in self.groups]
        offset = self.offset(frame) if self.offset else None
        groups = [(group.levels(frame), design) for group, design in zip(self.groups, designs, strict=True)]
        return Inputs(x, offset, tuple(groups))


def read_table(
    source: Any,
    target: str | None = None,
    family: str | None = None,
    *,
    formula: str | None = None,
    missing: str | None = None,
    exposure: str | None = None,
) -> Table:
    """A table bundled with scikit-learn by its name, a CSV file, a DataFrame or a dict of columns, and its outcome.

    ``target``: the column of the outcome. ``family``: gaussian, bernoulli, categorical or poisson; guessed from the
    outcome if not given, and the reason is the first note. ``formula``: ``"y ~ x1 + C(g) + x1:x2 + (1 + x1 | county) +
    offset(log(e))"``, or the part after the tilde with ``target``; without it, every other column. ``missing``: "drop"
    leaves out rows with missing values. ``exposure``: the column of the amount of time, people or area behind each
    count.
    Raises CredoError for what cannot be used: see the sentences of ``credo.models.columns`` and ``design``.

    >>> read_table("iris").classes
    ('setosa', 'versicolor', 'virginica')
    """
    check_family(family)
    return table_of(read_frame(source), target, family, formula=formula, missing=missing, exposure=exposure)


def table_of(
    read: tuple[str, Any, str | None, tuple[str, ...]],
    target: str | None,
    family: str | None,
    *,
    formula: str | None,
    exposure: str | None,
    missing: str | None = None,
    is_chosen: bool = False,
) -> Table:
    """The same of what ``read_frame`` gives. ``is_chosen``: no column is left out as one of names."""
    name, frame, own_target, notes = read
    target, exposure = (each if each is None else str(each) for each in (target, exposure))  # as columns are named
    if own_target is not None and target not in (None, own_target):
        raise CredoError(f"{name!r} is a bundled table with an outcome of its own: leave --target out.")
    parts = None if formula is None else parse(formula)
    target = _target(target or own_target, parts)
    if exposure is not None:
        require(frame, (exposure,), name)
    used = _used(name, frame, target, parts, exposure)
    _check_cells(name, frame, used)
    candidates = [] if parts is not None or is_chosen else [c for c in used if c not in (target, exposure)]
    left_out = row_names(frame, candidates)
    frame, used = frame.drop(columns=list(left_out)), [column for column in used if column not in left_out]
    frame, dropped = drop_missing(name, frame, used, missing)
    outcome = frame[target] if target in frame.columns else _computed(target, frame)
    family, reason = (family, None) if family else _guess(outcome, target, exposure)  # type: ignore[assignment]
    if exposure is not None and family != "poisson":
        raise CredoError(f"exposure={exposure!r} is for counts, and the family is {family}: use family='poisson'.")
    y, classes = encode(outcome, family, target)  # type: ignore[arg-type]
    if parts is None:
        features = frame.drop(columns=[target, *([exposure] if exposure else [])])
        if features.shape[1] == 0:
            reasons = " ".join(left_out.values())
            raise CredoError(f"{name} has no column besides {target!r}: give at least one feature. {reasons}".strip())
        design = Columns(kinds_of(features, features.columns))
        groups, offset = (), Offset((), exposure) if exposure else None
    else:
        others = [column for column in used if column not in _columns_of(target, frame) and column != exposure]
        parts = parts.with_columns(others)
        design = Terms(parts.fixed, frame)
        keys = _keys(parts.groups)
        groups = tuple(_group_design(group, key, frame) for group, key in zip(parts.groups, keys, strict=True))
        offsets = tuple(_offset(text, frame) for text in parts.offsets)
        offset = Offset(offsets, exposure) if offsets or exposure else None
    x = design(frame)
    keep, repeated = superfluous(x, design.names, design.has_intercept)
    repeated = (*single_levels(design.kinds), *repeated)
    kept = Kept(design, tuple(keep))
    if parts is None and not keep:
        raise CredoError(f"No column of {name} is of use: {' '.join((*left_out.values(), *repeated))}")
    notes = (*([reason] if reason else []), *notes, *left_out.values(), *dropped, *repeated)
    table = Table(name, x[:, keep], kept.names, y, target, family, classes, notes, frame, kept, groups, offset)  # type: ignore[arg-type]
    if offset is not None:
        offset(frame)  # said now what is wrong with it
    return table


def _check_cells(name: str, frame, columns) -> None:
    """CredoError for a column of lists, dicts, sets or arrays."""
    for column in columns:
        if column in frame.columns and frame[column].dtype == object:
            row = next((row for row, cell in enumerate(frame[column]) if not isinstance(cell, Hashable)), None)
            if row is not None:
                raise CredoError(
                    f"Column {column!r} of {name} holds {type(frame[column].iloc[row]).__name__}s (the first in row "
                    f"{row}): a cell is one number or one text. Make columns of what is in them, or leave it out."
                )


def _target(target: str | None, parts: Formula | None) -> str:
    if parts is not None and parts.outcome is not None:
        if target is not None and target != parts.outcome:
            raise CredoError(
                f"The outcome is {target!r} by target and {parts.outcome!r} by the formula: give one of them."
            )
        return parts.outcome
    if target is None:
        raise CredoError("Name the outcome column with --target, or in a formula before the tilde.")
    return target


def _used(name: str, frame, target: str, parts: Formula | None, exposure: str | None) -> list[str]:
    """The columns whose missing values matter, in the order of the table."""
    outcome = _columns_of(target, frame)
    require(frame, outcome, name)
    if exposure in outcome:
        raise CredoError(
            f"The exposure is the outcome itself, {exposure!r}: name the column of the amount of time, people or area "
            "in which it was counted."
        )
    if parts is None:
        return list(frame.columns)
    grouping = {column for group in parts.groups for column in group.by}
    require(frame, sorted(grouping))
    if any(term == "." for term in parts.fixed.split()):
        parts = parts.with_columns([c for c in frame.columns if c not in outcome and c != exposure])
    texts = [parts.fixed, *(group.inner for group in parts.groups), *map(as_expression, parts.offsets)]
    predictors = {*grouping, *(column for text in texts for column in required_columns(text, frame))}
    both = next((column for column in outcome if column in predictors), None)
    if both is not None:
        raise CredoError(
            f"The formula explains {both!r} by itself: leave it out after the tilde, where a dot stands for all others."
        )
    wanted = {*outcome, *predictors}
    return [column for column in frame.columns if column in wanted or column == exposure]


def _columns_of(target: str, frame) -> tuple[str, ...]:
    if target in frame.columns or not _is_computed(target, frame):
        return (target,)
    if len(split(target, "|")) > 1:
        raise CredoError(
            f"The outcome {target!r} has a bar, by which other libraries mark truncation, censoring, weights or "
            "trials, and which formulas here do not know: name one column before the tilde, or a function of columns "
            "such as log(y)."
        )
    return required_columns(as_expression(target), frame)


def _is_computed(target: str, frame) -> bool:
    """Whether it has a function, or is arithmetic of columns; anything else is a column that is not there."""
    if set("({").intersection(target):
        return True
    try:
        return not target.isidentifier() and set() < names_in(target) <= set(frame.columns)
    except SyntaxError:
        return False


def _computed(target: str, frame):
    import pandas as pd

    return pd.Series(evaluate(target, frame), name=target)


def _guess(outcome, target: str, exposure: str | None) -> tuple[Family, str]:
    if exposure is not None:
        return "poisson", f"Family poisson, since {target!r} has an exposure."
    return guess(outcome, target)


def _offset(text: str, frame) -> Terms:
    evaluate(text, frame)  # that it is one column of finite numbers
    return Terms(as_expression(text), frame)


def _group_design(group: Group, key: str, frame) -> GroupDesign:
    terms = Terms(group.inner, frame)
    effects = (*(("intercept",) if terms.has_intercept else ()), *terms.names)
    if not effects:
        raise CredoError(f"The group term over {group.name!r} has no effect in it: write (1 | {group.name}).")
    term = GroupTerm(key, group.name, effects, group.is_correlated and len(effects) > 1)
    return GroupDesign(group, terms, term, terms(frame))


def _keys(groups: tuple[Group, ...]) -> list[str]:
    """An identifier for each group term, unlike the others and the names of other inputs and parameters."""
    keys: list[str] = []
    for group in groups:
        key = "".join(letter if letter.isalnum() else "_" for letter in group.name)
        key = key if key[0].isalpha() else f"g_{key}"
        number = 1
        while (tried := key if number == 1 else f"{key}_{number}") in (*keys, "features", "offset", "noise"):
            number += 1
        keys.append(tried)
    return keys
