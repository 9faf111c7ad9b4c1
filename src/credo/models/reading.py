"""From what the user names (a bundled table, a CSV file, a DataFrame) to a DataFrame, or a sentence."""

import csv
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from credo.model.data import as_array, check_order
from credo.status import CredoError

BUNDLED = ("breast_cancer", "diabetes", "digits", "iris", "wine")
SEPARATORS = (";", "\t", "|")  # tried where a header holds no comma


def read_frame(source: Any, texts: Collection[str] = ()) -> tuple[str, Any, str | None, tuple[str, ...]]:
    """(name, DataFrame, the outcome column of a bundled table, notes on what was left out).

    ``texts``: columns of a file that are text, whatever numbers stand in it.
    """
    if not isinstance(source, str | Path):
        return "table", _checked("The DataFrame", as_frame(source)), None, ()
    if source in BUNDLED:
        return (str(source), *_bundled(str(source)), ())
    path = Path(source)
    if not path.is_file():
        raise CredoError(f"{str(source)!r} is neither a file nor a bundled table ({', '.join(BUNDLED)}).")
    frame = _checked(path.name, _read_csv(path, texts))
    unnamed = [column for column in frame.columns if column.startswith("Unnamed: ")]
    numbers = [column for column in unnamed if frame[column].is_unique and frame[column].dtype.kind == "i"]
    notes = ("A column without a name holds row numbers and is left out.",) if numbers else ()
    return path.stem, frame.drop(columns=numbers), None, notes


def as_frame(rows):
    """A DataFrame, or a mapping of columns, as a DataFrame with a plain index and texts for names."""
    import pandas as pd

    if isinstance(rows, Mapping):
        return pd.DataFrame(_columns(rows))
    if not isinstance(rows, pd.DataFrame):
        remedy = "its to_pandas()" if hasattr(rows, "to_pandas") else "pandas.DataFrame(…), with names for its columns"
        raise CredoError(
            f"A table is a pandas DataFrame or a dict of columns, and this one is a {type(rows).__name__}: give "
            f"{remedy}."
        )
    if rows.columns.nlevels > 1:
        raise CredoError(
            f"The columns of the table have names of {rows.columns.nlevels} levels (the first is {rows.columns[0]}): "
            "join them, as in table.columns = ['_'.join(map(str, name)) for name in table.columns]."
        )
    frame = rows.set_axis([str(name) for name in rows.columns], axis=1).reset_index(drop=True)
    return _with_single_names("The table", frame)


def _columns(given: Mapping) -> dict[str, Any]:
    """The columns, all of one length: a single number or word stands for every row."""
    check_order(table=given)
    columns = {str(name): _column(str(name), values) for name, values in given.items()}
    lengths = {name: len(values) for name, values in columns.items() if values.ndim}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} has {length}" for name, length in list(lengths.items())[:6])
        raise CredoError(f"The columns differ in length ({shown} rows): give one value a row in each.")
    size = next(iter(lengths.values()), 1)
    return {name: values if values.ndim else np.repeat(values, size) for name, values in columns.items()}


def _column(name: str, values) -> Any:
    import pandas as pd

    if isinstance(values, pd.Series | pd.Index):
        return values.array
    if isinstance(values, pd.api.extensions.ExtensionArray):
        return values
    array = as_array(f"Column {name!r}", values)
    if array.ndim > 1:
        raise CredoError(f"Column {name!r} has shape {array.shape}: give one value a row.")
    return array


def _bundled(name: str) -> tuple[Any, str]:
    import sklearn.datasets

    bunch = getattr(sklearn.datasets, f"load_{name}")(as_frame=True)
    target = bunch.target
    if name != "diabetes":
        target = target.map(dict(enumerate(map(str, bunch.target_names))))
    if name == "breast_cancer":
        target = target.rename("diagnosis")  # benign, malignant: the later in the alphabet is the event
    return bunch.data.assign(**{str(target.name): target}), str(target.name)


def _read_csv(path: Path, texts: Collection[str]):
    import pandas as pd

    try:
        separator = _separator(path)
        options: dict[str, Any] = {"sep": separator, "skipinitialspace": True, "encoding": "utf-8-sig"}
        options["low_memory"] = False  # by chunks, 0101 would be 101 in one and text in another
        options["dtype"] = {name: str for name in pd.read_csv(path, nrows=0, **options) if name.strip() in texts}
        frame = pd.read_csv(path, **options)
        if separator != "," and _has_decimal_commas(frame):
            frame = pd.read_csv(path, decimal=",", **options)
    except CredoError:
        raise
    except UnicodeError as error:
        raise CredoError(
            f"{path.name} cannot be read as CSV: it is not text in UTF-8 ({error}). Save it in UTF-8, or read it "
            f"yourself, as in pandas.read_csv({path.name!r}, encoding='latin-1'), and give the DataFrame."
        ) from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError, OSError, ValueError, csv.Error) as error:
        raise _unreadable(path, str(error)) from error
    return frame.rename(columns=lambda name: str(name).strip())


def _separator(path: Path) -> str:
    """The separator of the header; CredoError where a line has another number of fields, which pandas would fill."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        header = file.readline()
        separator = "," if "," in header else next((mark for mark in SEPARATORS if mark in header), ",")
        file.seek(0)
        lines = csv.reader(file, delimiter=separator, skipinitialspace=True)
        names = [field.strip() for field in next(lines, [])]
        width, twice = len(names), next((name for name in names if name and names.count(name) > 1), None)
        if twice is not None:  # pandas would give them other names
            raise CredoError(f"{path.name} has two columns named {twice!r}: rename one.")
        for fields in lines:
            if fields and len(fields) != width:
                raise _unreadable(path, f"line {lines.line_num} has {len(fields)} fields and the header {width}")
    return separator


def _unreadable(path: Path, reason: str) -> CredoError:
    reason = reason.strip().rstrip(".").replace("\n", " ")
    return CredoError(
        f"{path.name} cannot be read as CSV: {reason}. Give a comma-separated table whose rows have "
        "as many fields as its header."
    )


def _has_decimal_commas(frame) -> bool:
    texts = [frame[column].dropna().astype(str) for column in frame.columns if frame[column].dtype.kind not in "biuf"]
    return any(len(text) > 0 and text.str.fullmatch(r"\s*-?\d+,\d+\s*").mean() > 0.9 for text in texts)


def _checked(name: str, frame):
    if len(frame) == 0:
        raise CredoError(f"{name} has a header and no rows: give at least one row.")
    return _with_single_names(name, frame)


def _with_single_names(name: str, frame):
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise CredoError(f"{name} has two columns named {twice[0]!r}: rename one.")
    return frame
