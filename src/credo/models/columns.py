"""Columns of a table as numbers or as levels: what each is, and the same reading of new rows at prediction."""

from collections.abc import Collection, Mapping
from datetime import datetime
from decimal import Decimal
from difflib import get_close_matches
from numbers import Real
from typing import Any

import numpy as np

from credo.model.data import as_double, kind_of_level
from credo.status import CredoError

Levels = tuple[str, ...]
Kinds = Mapping[str, Levels | None]  # column -> its levels, or None where it holds numbers

MAX_LEVELS = 100  # of a text column that is coded by indicators
DATE = (
    r"\s*(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}|\d{1,2}[ -][A-Za-z]{3,9}[ -]\d{2,4})([ T].*)?"
)
TIME = r"\s*\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?\s*([AaPp][Mm])?\s*"
AMOUNT = r"\s*-?[$€£¥]?\s?-?\d[\d,.' ]*\s?[%€$£¥]?\s*"  # with a currency, thousands apart, a decimal comma
OTHER_KINDS = {"M": "dates", "m": "spans of time", "c": "complex numbers"}  # by NumPy's letter
FEW_AMOUNTS = 10  # written so may be levels, such as doses


def is_numeric(column) -> bool:
    """By its type, or since all that is there is a number, as Decimal and a transposed table's columns are."""
    if column.dtype.kind in "biuf":  # extension types have a kind too
        return True
    present = column.dropna() if column.dtype == object else ()
    return len(present) > 0 and all(isinstance(v, Real | Decimal) and not isinstance(v, bool) for v in present)


def as_text(values) -> np.ndarray:
    """Levels as text: 2 and 2.0 are the same level, so are a day and its midnight, and 0.1 in any precision."""

    def text(value: Any) -> str:
        if isinstance(value, datetime):
            return str(value).removesuffix(" 00:00:00")
        is_whole = isinstance(value, float | np.floating) and np.isfinite(value) and value == np.floor(value)
        return str(int(value)) if is_whole else str(value)

    return np.array([text(value) for value in np.asarray(as_double(values), object)], dtype=str)


def as_fitted(column, fitted):
    """Numbers among the words of a ``column`` as numbers, where the ``fitted`` one held numbers: 0042 is 42 there."""
    import pandas as pd

    if not is_numeric(fitted) or is_numeric(column) or column.dtype.kind == "b":
        return column
    texts = [value if isinstance(value, str) else None for value in column]
    numbers = np.asarray(pd.to_numeric(pd.Series(texts, dtype=object), errors="coerce"), float)
    return column.astype(object).mask(np.isfinite(numbers), pd.Series(numbers, column.index))


def check_same_levels(name: str, column, fitted) -> None:
    """CredoError where levels of another kind than the ``fitted`` ones are all new, as 1 is where True was known."""
    was, now = _kind_of_levels(fitted), _kind_of_levels(column)
    known, new = (set(as_text(each.dropna().unique()).tolist()) for each in (fitted, column))
    if was != now and new and not new & known:
        raise CredoError(
            f"Group column {name!r} held {was} in the fit ({', '.join(sorted(known)[:3])}, …) and holds {now} now "
            f"({min(new)}), so that every level would be a new one: write them as they were."
        )


def _kind_of_levels(column) -> str:
    values = column.dropna().unique().tolist()
    return " and ".join(sorted({"truth values" if isinstance(v, bool) else kind_of_level(v) for v in values}))


def declared_levels(column) -> Levels | None:
    """Of a categorical column the categories that occur, in its own order; None of any other column.

    A category that no row has would have a coefficient of which the data say nothing.
    """
    categories = getattr(column.dtype, "categories", None)
    if categories is None:
        return None
    present = set(as_text(column.dropna().unique()).tolist())
    return tuple(level for level in dict.fromkeys(as_text(categories).tolist()) if level in present)


def kinds_of(frame, names: Collection[str]) -> dict[str, Levels | None]:
    """Numbers or levels, column by column; CredoError for dates and for numbers spoilt by a few words."""
    return {name: _kind(name, frame[name]) for name in names}


def _kind(name: str, column) -> Levels | None:
    import pandas as pd

    if is_numeric(column):
        return None
    if (declared := declared_levels(column)) is not None:
        return declared
    present = column.dropna()
    texts = pd.Series(as_text(present))
    if len(texts):
        _check_no_time(name, column.dtype, texts)
        _check_no_numbers(name, {type(value) for value in present}, texts)
    return tuple(np.unique(texts).tolist())


def _check_no_time(name: str, dtype, texts) -> None:
    import pandas as pd

    if dtype.kind in "mc":
        remedy = "total seconds" if dtype.kind == "m" else "sizes"
        raise CredoError(
            f"Column {name!r} holds {OTHER_KINDS[dtype.kind]} (the first is {texts[0]!r}): give their {remedy} in its "
            "place, or leave it out by a formula."
        )
    is_date = dtype.kind == "M" or isinstance(dtype, pd.PeriodDtype)
    if is_date or texts.str.fullmatch(DATE).mean() > 0.9:
        raise CredoError(
            f"Column {name!r} holds dates (the first is {texts[0]!r}), which are no numbers and no levels: turn it "
            "into numbers (days since a start, the month), drop it, or leave it out by a formula."
        )
    if texts.str.fullmatch(TIME).mean() > 0.9:
        raise CredoError(
            f"Column {name!r} holds times of day (the first is {texts[0]!r}), which are no numbers and no levels: turn "
            "it into hours, or into the sine and cosine of its angle on the clock, or drop it."
        )


def _check_no_numbers(name: str, types: Collection[type], texts) -> None:
    """CredoError for numbers that are text, all or most of them. Few of them, and whole ones alone, may be levels."""
    import pandas as pd

    numbers: Any = pd.to_numeric(texts, errors="coerce")
    share, are_many = float(numbers.notna().mean()), texts.nunique() > FEW_AMOUNTS
    if 0.5 < share < 1:
        words = np.flatnonzero(numbers.isna())
        raise CredoError(
            f"Column {name!r} holds text where numbers belong: {len(words)} of {len(texts)} values are no numbers "
            f"(the first is {texts[words[0]]!r}). Correct them, or leave them empty and drop those rows."
        )
    if share == 1 and ((are_many and np.any(numbers % 1 != 0)) or (len(types) > 1 and str in types)):
        raise CredoError(
            f"Column {name!r} holds numbers {'of which some are' if len(types) > 1 else 'as'} text (the first value is "
            f"{texts[0]!r}): turn it into numbers, as by pandas.to_numeric, or into levels, by astype('category')."
        )
    if are_many and share <= 0.5 and texts.str.fullmatch(AMOUNT).mean() > 0.9:
        raise CredoError(
            f"Column {name!r} holds numbers written as text (the first is {texts[0]!r}): write them bare, with a "
            "decimal point and no mark between thousands, or drop the column."
        )


def read_columns(frame, kinds: Kinds):
    """A DataFrame of float64 and categorical columns; CredoError, a sentence, for what the kinds do not allow."""
    import pandas as pd

    require(frame, kinds)
    read: dict[str, Any] = {}
    for name, levels in kinds.items():
        column = frame[name]
        if (number := int(column.isna().sum())) > 0:
            row = int(np.argmax(column.isna().to_numpy()))
            raise CredoError(
                f"Column {name!r} has {_missing(number)} (the first in row {row}): drop those rows or impute them."
            )
        read[name] = _numbers(name, column) if levels is None else _levels(name, column, levels)
    return pd.DataFrame(read, index=pd.RangeIndex(len(frame)))


def _numbers(name: str, column) -> np.ndarray:
    try:
        values = None if column.dtype.kind in OTHER_KINDS else np.asarray(column, np.float64)
    except (TypeError, ValueError):
        values = None
    if values is None:
        first = next((value for value in column if not _is_number(value)), column.iloc[0])
        what = OTHER_KINDS.get(column.dtype.kind, "text")
        raise CredoError(
            f"Column {name!r} held numbers in the fit and holds {what} now (first value {str(first)!r:.60}): give "
            "numbers."
        )
    if not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values)))
        raise CredoError(f"Column {name!r} is infinite in row {row}: drop that row or cap the value.")
    return values


def _is_number(value) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _levels(name: str, column, levels: Levels):
    import pandas as pd

    values = as_text(column)
    unseen = np.setdiff1d(values, levels)
    if len(unseen):
        known = ", ".join(levels[:8]) + (", …" if len(levels) > 8 else "")
        raise CredoError(
            f"Column {name!r} holds {str(unseen[0])!r} (first in row {int(np.argmax(values == unseen[0]))}), a level "
            f"that the fit did not know (it knew {known}), so it has no coefficient: drop those rows, or fit the "
            f"column as a group, (1 | {name}), whose new levels are drawn from their prior."
        )
    return pd.Categorical(values, categories=list(levels))


def require(frame, names: Collection[str], text: str = "", used: Collection[str] = ()) -> None:
    """CredoError naming the first of ``names`` that is no column, with near matches. ``text``: who asks for it.

    ``used``: columns that, like ``names``, have a place already, so that none of them is what was meant.
    """
    for name in names:
        if name not in frame.columns:
            free = [column for column in frame.columns if column not in used and column not in names]
            near = get_close_matches(name, free, n=3, cutoff=0.5)
            near = near or [column for column in free if column.lower() == name.lower()]
            shown = ", ".join(map(str, frame.columns[:20])) + (", …" if len(frame.columns) > 20 else "")
            hint = f"did you mean {' or '.join(repr(each) for each in near)}?" if near else f"the table has {shown}."
            raise CredoError(f"{text or 'The table'} has no column {name!r}: {hint}")


def _missing(number: int) -> str:
    return f"{number} missing value{'' if number == 1 else 's'}"


def drop_missing(name: str, frame, columns: Collection[str], missing: str | None) -> tuple[Any, tuple[str, ...]]:
    """``frame`` without missing values in ``columns``, and a note; CredoError unless ``missing`` is "drop"."""
    if missing not in (None, "drop"):
        raise CredoError(f"missing={missing!r} is unknown: leave it out, or give 'drop' to leave out those rows.")
    gaps = frame[list(columns)].isna()
    rows, counts = gaps.any(axis=1), gaps.sum()
    if not rows.any():
        return frame, ()
    worst = counts[counts > 0].sort_values(ascending=False)
    shown = ", ".join(f"{number} in {column!r}" for column, number in worst.head(3).items())
    if missing is None:
        raise CredoError(
            f"{name} has {_missing(int(counts.sum()))} ({shown}{', …' if len(worst) > 3 else ''}): impute them, "
            f"or give missing='drop' (--missing drop) to leave out the {int(rows.sum())} of {len(frame)} rows that "
            "have one."
        )
    left_out = f"{int(rows.sum())} of {len(frame)} rows {'is' if rows.sum() == 1 else 'are'} left out"
    if rows.all():
        raise CredoError(f"Every row of {name} has a missing value ({shown}): drop that column or impute it.")
    note = f"{left_out}, for missing values ({shown})."
    return frame[~rows].reset_index(drop=True), (note,)
