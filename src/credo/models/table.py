"""From a table to a design matrix and an outcome, with a sentence for everything that is wrong with it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np

from credo.status import CredoError

Family = Literal["gaussian", "bernoulli", "categorical", "poisson"]
FAMILIES = get_args(Family)
BUNDLED = ("breast_cancer", "diabetes", "digits", "iris", "wine")
MAX_CLASSES = 20


@dataclass(frozen=True)
class Table:
    """``x``: (N, D) numbers, text columns one-hot coded; ``y``: (N,); ``classes``: the labels behind class codes."""

    name: str
    x: np.ndarray
    columns: tuple[str, ...]
    y: np.ndarray
    target: str
    family: Family
    classes: tuple[str, ...] = ()


def read_table(source: str, target: str | None = None, family: str | None = None) -> Table:
    """A table bundled with scikit-learn by its name, or a CSV file with column ``target`` as the outcome."""
    if family is not None and family not in FAMILIES:
        raise CredoError(f"family={family!r} is unknown: choose one of {', '.join(FAMILIES)}.")
    if source in BUNDLED and target is not None:
        raise CredoError(f"{source!r} is a bundled table with an outcome of its own: leave --target out.")
    if source in BUNDLED:
        return _bundled(source, family)
    path = Path(source)
    if not path.is_file():
        raise CredoError(f"{source!r} is neither a file nor a bundled table ({', '.join(BUNDLED)}).")
    if target is None:
        raise CredoError("Name the outcome column with --target.")
    frame = _read_csv(path)
    if target not in frame.columns:
        raise CredoError(f"{path.name} has no column {target!r}; it has {', '.join(map(str, frame.columns[:20]))}.")
    missing = {str(column): int(number) for column, number in frame.isna().sum().items()}
    if any(missing.values()):
        column = next(name for name, number in missing.items() if number)
        raise CredoError(
            f"{path.name} has {sum(missing.values())} missing values ({missing[column]} of them in {column!r}): "
            "drop those rows or impute them."
        )
    return _table(path.stem, frame.drop(columns=[target]), frame[target], target, family)


def _read_csv(path: Path):
    import pandas as pd

    try:
        frame = pd.read_csv(path)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError, OSError) as error:
        raise CredoError(
            f"{path.name} cannot be read as CSV: {str(error).strip()}. Give a comma-separated table."
        ) from error
    if len(frame) == 0:
        raise CredoError(f"{path.name} has a header and no rows: give at least one row.")
    return frame


def _bundled(name: str, family: str | None) -> Table:
    import sklearn.datasets

    bunch = getattr(sklearn.datasets, f"load_{name}")(as_frame=True)
    target = bunch.target
    if name != "diabetes":
        target = target.map(dict(enumerate(map(str, bunch.target_names))))
        if name == "breast_cancer":
            target = (target == "malignant").astype(int).rename("malignant")
    return _table(name, bunch.data, target, str(target.name), family)


def _table(name: str, features: Any, outcome: Any, target: str, family: str | None) -> Table:
    import pandas as pd

    if features.shape[1] == 0:
        raise CredoError(f"{name} has no column besides {target!r}: give at least one feature.")
    text = [column for column in features.columns if not pd.api.types.is_numeric_dtype(features[column])]
    wide = [column for column in text if features[column].nunique() > max(50, len(features) // 2)]
    if wide:
        raise CredoError(
            f"Column {wide[0]!r} is text with {features[wide[0]].nunique()} distinct values: it names rows rather than "
            "describes them. Drop it."
        )
    coded = pd.get_dummies(features, columns=text, drop_first=True, dtype=float)
    x = coded.to_numpy(np.float64)
    if not np.isfinite(x).all():
        row, column = np.argwhere(~np.isfinite(x))[0]
        raise CredoError(f"Column {coded.columns[column]!r} is infinite in row {row}: drop that row or cap the value.")
    constant = [column for column, sd in zip(coded.columns, x.std(axis=0), strict=True) if sd == 0]
    keep = [column not in constant for column in coded.columns]
    family = cast(Family, family or guess_family(outcome))
    y, classes = _encode(outcome, family, target)
    return Table(name, x[:, keep], tuple(np.asarray(coded.columns, str)[keep]), y, target, family, classes)


def guess_family(outcome) -> Family:
    """Two distinct values: bernoulli; text or few whole numbers from a small range: categorical; else gaussian."""
    values = outcome.unique()
    if len(values) == 2:
        return "bernoulli"
    is_text = outcome.dtype.kind not in "iuf"
    is_code = outcome.dtype.kind in "iu" and len(values) <= MAX_CLASSES and set(values) == set(range(len(values)))
    return "categorical" if is_text or is_code else "gaussian"


def _encode(outcome, family: Family, target: str) -> tuple[np.ndarray, tuple[str, ...]]:
    values = np.asarray(outcome)
    if family in ("bernoulli", "categorical"):
        classes, y = np.unique(values.astype(str) if values.dtype == object else values, return_inverse=True)
        if len(classes) < 2:
            raise CredoError(f"{target!r} has one class only ({str(classes[0])!r}): there is nothing to tell apart.")
        if family == "bernoulli" and len(classes) != 2:
            raise CredoError(f"{target!r} has {len(classes)} classes; bernoulli takes two: use --family categorical.")
        return y.astype(np.int64), tuple(map(str, classes))
    if values.dtype.kind not in "iufb":
        raise CredoError(f"{target!r} holds text where numbers belong (first value {str(values[0])!r}).")
    if family == "poisson":
        bad = (values < 0) | (values != np.floor(values))
        if bad.any():
            raise CredoError(f"{target!r} has {values[bad][0]}, which is no count: poisson takes whole numbers from 0.")
        return values.astype(np.int64), ()
    return values.astype(np.float64), ()
