"""The table behind a comparison, kept beside its posteriors, so that new rows are read as the rows of the fit were.

The file holds the columns as they were read, exactly, and what was chosen (formula, family, rows of the fit). Reading
it prepares the table anew: scales, levels and the constants of a formula's functions come out as they were, and no code
is in the file.
"""

from pathlib import Path
from typing import Any

import numpy as np

from credo.checkpoint import read_arrays, write_arrays
from credo.models.regression import Prepared, prepare
from credo.models.table import read_table
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
        columns.append({"name": str(name), "levels": levels})
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
    columns = {c["name"]: _as_column(arrays[f"column {i}"], c["levels"]) for i, c in enumerate(header["columns"])}
    chosen = {key: header[key] for key in ("formula", "exposure")}
    table = read_table(pd.DataFrame(columns), header["target"], header["family"], **chosen)
    return prepare(table, arrays["rows of the fit"])


def _as_array(column) -> tuple[np.ndarray, list[Any] | None]:
    """(numbers, None), or (codes, the levels behind them) with −1 for what is missing."""
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iufb":
        return column.to_numpy(), None
    missing = column.isna().to_numpy()
    texts = column.astype(str).to_numpy(dtype=str)
    levels, codes = np.unique(texts, return_inverse=True)
    return np.where(missing, -1, codes).astype(np.int64), levels.tolist()


def _as_column(values: np.ndarray, levels: list[Any] | None) -> np.ndarray:
    if levels is None:
        return values
    return np.array([None if code < 0 else levels[code] for code in values], dtype=object)
