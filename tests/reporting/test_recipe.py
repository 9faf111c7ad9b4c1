"""The table beside the posteriors: read again, it prepares new rows bit for bit as it did."""

import numpy as np
import pandas as pd
import pytest

from credo import CredoError
from credo.models.regression import prepare
from credo.models.table import read_table
from credo.reporting.recipe import load_recipe, save_recipe


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n = 60
    return pd.DataFrame(
        {
            "x 1": rng.normal(size=n) / 3.0,
            "count": rng.integers(0, 5, n),
            "is it": rng.uniform(size=n) < 0.5,
            "colour": rng.choice(["red", "blue", "grün"], n),
            "county": rng.choice(["a", "b", "c", "d"], n),
            "hours": rng.uniform(0.5, 3.0, n),
            "unused": [None if i % 7 == 0 else f"note {i}" for i in range(n)],
            "visits": rng.poisson(2.0, n),
        }
    )


@pytest.mark.parametrize(
    ("target", "formula", "exposure"),
    [
        (None, "visits ~ `x 1` + poly(count, 2) + C(colour) + (1 + `x 1` | county)", "hours"),
        ("colour", "`x 1` + count + `is it`", None),
        ("x 1", None, None),
    ],
)
def test_comes_back_to_the_bit(target, formula, exposure, tmp_path):
    table = read_table(frame().drop(columns=[] if formula else ["unused"]), target, formula=formula, exposure=exposure)
    prepared = prepare(table, np.arange(0, 60, 2))
    save_recipe(tmp_path / "table.credo", prepared, formula=formula, exposure=exposure)
    again = load_recipe(tmp_path / "table.credo")
    new = frame().iloc[3:9]
    here, there = prepared.inputs(new), again.inputs(new)
    here, there = (each if isinstance(each, dict) else {"x": each} for each in (here, there))
    assert here.keys() == there.keys()
    for name in here:
        np.testing.assert_array_equal(here[name], there[name])
    assert again.priors == prepared.priors
    assert again.labels == prepared.labels
    assert again.table.classes == prepared.table.classes
    assert again.table.family == prepared.table.family


def test_refuses_with_a_sentence(tmp_path):
    with pytest.raises(CredoError, match="There is no table.credo"):
        load_recipe(tmp_path / "table.credo")
    (tmp_path / "table.credo").write_text("something else")
    with pytest.raises(CredoError, match="damaged or no file of Credo's"):
        load_recipe(tmp_path / "table.credo")
