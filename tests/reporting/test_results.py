"""A folder used twice: posteriors of one table never stand beside another one, whose scales new rows would get."""

import numpy as np
import pandas as pd

from credo.models.regression import prepare
from credo.models.table import read_table
from credo.reporting.results import Results


def results(folder, centre: float) -> Results:
    rng = np.random.default_rng(0)
    x = rng.normal(centre, 1.0, 40)
    table = read_table(pd.DataFrame({"x": x, "y": (x + rng.normal(size=40) > centre).astype(int)}), "y")
    return Results(folder, prepare(table, np.arange(40)), "")


def test_files_of_another_table_are_removed(tmp_path):
    methods = ["laplace", "nuts"]
    assert results(tmp_path, 0.0).write_table(methods, formula=None, exposure=None) == []
    for name in ("laplace.credo", "verdicts.json", "report.html", "own.credo"):
        (tmp_path / name).write_text("of the first table")
    assert results(tmp_path, 0.0).write_table(methods, formula=None, exposure=None) == []
    removed = results(tmp_path, 50.0).write_table(methods, formula=None, exposure=None)
    assert sorted(removed) == ["laplace.credo", "report.html", "verdicts.json"]
    assert {path.name for path in tmp_path.iterdir()} == {"table.credo", "own.credo"}
