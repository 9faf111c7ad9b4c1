"""The table behind a comparison, kept beside its posteriors, so that new rows are read as the rows of the fit were.

The file holds the columns as they were read, exactly, and what was chosen (formula, family, rows of the fit). Reading
it prepares the table anew: scales, levels and the constants of a formula's functions come out as they were, and no code
is in the file.
"""

from pathlib import Path
from typing import Any

import numpy as np

from credo.checkpoint import read_arrays, write_arrays
from credo.models.columns import as_text, declared_levels, is_numeric
from credo.models.regression import Prepared, prepare
from credo.models.table import table_of
from credo.status import CredoError

FILE = "table.credo"
KIND = "table"


def save_recipe(path: Path, prepared: Prepared, *, formula: str | None, exposure: str | None) -> None:
    """Write the table of ``prepared`` and how it was read."""
    table = prepared.table
    arrays: dict[str, np.ndarray] = {"rows of the fit": np.asarray(prepared.rows)}
    columns = []
    for i, name in enumerate(table.frame.columns):
        arrays[f"column {i}"], levels = _as_array(table.frame[name])
        is_categorical = declared_levels(table.frame[name]) is not None
        columns.append({"name": str(name), "levels": levels, "is_categorical": is_categorical})
    header = {
        "columns": columns,
        "name": table.name,
        "target": table.target,
        "family": table.family,
        "formula": formula,
        "exposure": exposure,
    }
    write_arrays(path, arrays, header, kind=KIND)


def load_prepared(path: str | Path) -> Prepared:
    """The table of a saved comparison, prepared as it was: its model, and how it reads new rows.

    ``path``: the folder that credo compare wrote, or table.credo in it. CredoError where there is none, or where it is
    damaged.

    >>> prepared = load_prepared("credo-out")  # doctest: +SKIP
    >>> posterior = credo.load("credo-out/nuts.credo", prepared.model)  # doctest: +SKIP
    >>> posterior.predict(prepared.inputs(new_rows)).mean  # doctest: +SKIP
    """
    import pandas as pd

    path = Path(path) / FILE if Path(path).is_dir() else Path(path)
    if not path.is_file():
        raise CredoError(
            f"There is no {path.name} in {path.parent}: predictions for new rows need it beside the posterior, where "
            "credo compare writes it."
        )
    arrays, header = read_arrays(path, kind=KIND)
    columns = {
        c["name"]: _as_column(arrays[f"column {i}"], c["levels"], is_categorical=c.get("is_categorical", False))
        for i, c in enumerate(header["columns"])
    }
    chosen = {key: header[key] for key in ("formula", "exposure")}
    read = header["name"], pd.DataFrame(columns), None, ()
    table = table_of(read, header["target"], header["family"], is_chosen=True, **chosen)  # as chosen among more rows
    return prepare(table, arrays["rows of the fit"])


def _as_array(column) -> tuple[np.ndarray, list[str] | None]:
    """(numbers, None), or (codes, the levels behind them) with −1 for what is missing."""
    missing = column.isna().to_numpy()
    if is_numeric(column):  # nullable types and objects too, which as text would be read as levels
        is_plain = isinstance(column.dtype, np.dtype) and column.dtype != object
        is_boolean = column.dtype.kind == "b" and not missing.any()
        return column.to_numpy() if is_plain else column.to_numpy(bool if is_boolean else np.float64), None
    levels = declared_levels(column) or tuple(np.unique(as_text(column[~missing])).tolist())
    codes = {level: code for code, level in enumerate(levels)}
    texts = zip(missing, as_text(column), strict=True)
    return np.array([-1 if gone else codes[text] for gone, text in texts], np.int64), list(levels)


def _as_column(values: np.ndarray, levels: list[str] | None, *, is_categorical: bool) -> Any:
    import pandas as pd

    if levels is None:
        return values
    if is_categorical:
        return pd.Categorical.from_codes(values, levels)  # type: ignore[arg-type]
    return np.array([None if code < 0 else levels[code] for code in values], dtype=object)
