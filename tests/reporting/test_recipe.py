"""The table beside the posteriors: read again, it prepares new rows bit for bit as it did."""

import numpy as np
import pandas as pd
import pytest

import credo
from credo import CredoError
from credo.models.regression import prepare
from credo.models.table import read_table
from credo.posterior.kinds import Point
from credo.reporting.prediction import predict_table
from credo.reporting.recipe import load_prepared, save_recipe


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
    again = load_prepared(tmp_path / "table.credo")
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


def test_types_of_pandas_come_back(tmp_path):
    """Nullable numbers are no text, and categories keep their order."""
    rng = np.random.default_rng(1)
    count = pd.array(rng.integers(0, 5, 60), dtype="Int64")
    count[3] = pd.NA
    dose = pd.Categorical(rng.choice(["low", "mid", "high"], 60), ["low", "mid", "high", "never"])
    data = frame().assign(count=count, dose=dose, k=pd.array(rng.integers(0, 9, 60), dtype="Int64"))
    data["whole"] = pd.array(rng.integers(0, 9, 60).tolist(), dtype=object)
    data["sure"] = pd.array(rng.uniform(size=60) < 0.5, dtype="boolean")
    data["day"] = pd.to_datetime(["2020-01-01", None] * 30)
    formula = "y ~ C(dose, contr.poly) + k + whole + sure"
    prepared = prepare(read_table(data.assign(y=frame()["x 1"]), formula=formula), np.arange(60))
    save_recipe(tmp_path / "table.credo", prepared, formula=formula, exposure=None)
    again = load_prepared(tmp_path / "table.credo")
    assert again.table.columns == prepared.table.columns
    np.testing.assert_array_equal(*(each.inputs(data.iloc[5:9])["features"] for each in (again, prepared)))


def test_refuses_with_a_sentence(tmp_path):
    with pytest.raises(CredoError, match="There is no table.credo"):
        load_prepared(tmp_path / "table.credo")
    (tmp_path / "table.credo").write_text("something else")
    with pytest.raises(CredoError, match="damaged or no file of Credo's"):
        load_prepared(tmp_path / "table.credo")


@pytest.mark.parametrize("num_rows", [60, 1200])  # not centred, and centred
def test_a_group_posterior_loads_with_its_table_and_without(num_rows, tmp_path):
    rng = np.random.default_rng(5)
    county, x = rng.choice(["a", "b", "c"], num_rows), rng.normal(size=num_rows)
    data = pd.DataFrame({"y": x + rng.normal(size=num_rows), "x": x, "county": county})
    formula = "y ~ x + (1 + x | county)"
    prepared = prepare(read_table(data, formula=formula), np.arange(num_rows))
    target = prepared.model.given(prepared.inputs(prepared.rows), prepared.y)
    fitted = credo.Posterior(Point(np.linspace(-0.5, 0.5, target.dim)), target, verdict=credo.Verdict("pass"))
    fitted.save(tmp_path / "point.credo")
    save_recipe(tmp_path / "table.credo", prepared, formula=formula, exposure=None)
    bare = credo.load(tmp_path / "point.credo")
    for name, value in bare.mean().items():
        np.testing.assert_allclose(value, fitted.mean()[name], rtol=1e-12)
    assert -1 < bare.mean()["county_correlation"][0] < 1
    again = credo.load_prepared(tmp_path)
    loaded = credo.load(tmp_path / "point.credo", again.model)
    new = data.iloc[:3]
    here, there = fitted.predict(prepared.inputs(new)), loaded.predict(again.inputs(new))
    np.testing.assert_array_equal(np.asarray(here.mean), np.asarray(there.mean))


def test_rows_without_a_group_are_refused_dropped_or_named(tmp_path):
    data = frame()
    formula = "count ~ `x 1` + (1 | county)"
    prepared = prepare(read_table(data, family="gaussian", formula=formula), np.arange(60))
    target = prepared.model.given(prepared.inputs(prepared.rows), prepared.y)
    fitted = credo.Posterior(Point(np.zeros(target.dim)), target, verdict=credo.Verdict("pass"))
    fitted.save(tmp_path / "point.credo")
    save_recipe(tmp_path / "table.credo", prepared, formula=formula, exposure=None)
    new, out = tmp_path / "new.csv", tmp_path / "p.csv"
    new.write_text("x 1,county,row\n1,,5\n2,a,6\n")
    with pytest.raises(CredoError, match=r"new.csv has 1 missing value \(1 in 'county'\).*as a new group"):
        predict_table(tmp_path / "point.credo", str(new), out)
    predict_table(tmp_path / "point.credo", str(new), out, missing="drop")
    assert pd.read_csv(out)["row number"].tolist() == [1]
    new.write_text("x 1,county\n1,unknown\n2,a\n")
    predict_table(tmp_path / "point.credo", str(new), out)
    assert len(pd.read_csv(out)) == 2
    new.write_text("x 2,county\n1,a\n")
    with pytest.raises(CredoError, match="no column 'x 1': did you mean 'x 2'"):
        predict_table(tmp_path / "point.credo", str(new), out)


def test_a_column_kept_among_all_rows_is_kept_when_read_again(tmp_path):
    """12 levels of 30 rows are properties; of the 20 without a gap they would be names."""
    data = pd.DataFrame({"y": np.arange(30.0) ** 0.5, "x": np.arange(30.0), "c": [f"L{i % 12}" for i in range(30)]})
    data.loc[20:, "x"] = np.nan
    prepared = prepare(read_table(data, "y", missing="drop"), np.arange(20))
    save_recipe(tmp_path / "table.credo", prepared, formula=None, exposure=None)
    assert load_prepared(tmp_path).table.columns == prepared.table.columns


def test_text_of_numerals_alone_is_read_as_text(tmp_path):
    """1.10 in a file of its own is 1.1, another version."""
    rng = np.random.default_rng(0)
    levels = np.array(["1.1", "1.10", "beta"])
    g = rng.integers(0, 3, 60)
    pd.DataFrame({"y": np.array([-3.0, 3.0, 0.0])[g] + 0.1 * rng.normal(size=60), "v": levels[g]}).to_csv(
        tmp_path / "fit.csv", index=False
    )
    prepared = prepare(read_table(str(tmp_path / "fit.csv"), formula="y ~ (1 | v)"), np.arange(60))
    posterior = credo.fit(prepared.model.given(prepared.inputs(prepared.rows), prepared.y), credo.Laplace(), key=0)
    save_recipe(tmp_path / "table.credo", prepared, formula="y ~ (1 | v)", exposure=None)
    posterior.save(tmp_path / "laplace.credo")
    (tmp_path / "new.csv").write_text("v\n1.10\n")
    predict_table(tmp_path / "laplace.credo", str(tmp_path / "new.csv"), tmp_path / "out.csv")
    assert pd.read_csv(tmp_path / "out.csv")["predicted y"][0] == pytest.approx(3.0, abs=0.3)
