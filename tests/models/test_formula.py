"""Formulas: their parts, the same reading of new rows, and a sentence for what cannot be read."""

import formulaic
import numpy as np
import pandas as pd
import pytest

from credo.models.formula import Group, parse
from credo.models.regression import prepare
from credo.models.table import read_table
from credo.status import CredoError

RNG = np.random.default_rng(3)
DATA = pd.DataFrame(
    {
        "y": RNG.normal(size=40),
        "x1": RNG.normal(2.0, 3.0, 40),
        "a name": RNG.uniform(1.0, 2.0, 40),
        "colour": RNG.choice(["blue", "green", "red"], 40),
        "k": RNG.integers(1, 4, 40),
        "county": RNG.choice(["p", "q", "r"], 40),
        "n": RNG.poisson(4.0, 40),
        "e": RNG.uniform(1.0, 3.0, 40),
    }
)


def read(formula: str, **options):
    return read_table(DATA, formula=formula, **options)


def test_the_parts_of_a_formula():
    parts = parse("y ~ x1 + C(g) + x1:x2 - 1 + (1 + x1 | county) + (x2 || a/`b c`) + offset(log(e + 1))")
    assert parts.outcome == "y"
    assert parts.fixed == "1 + x1 + C(g) + x1:x2 - 1"
    assert parts.groups == (
        Group("1 + 1 + x1", ("county",)),
        Group("1 + x2", ("a",), is_correlated=False),
        Group("1 + x2", ("a", "b c"), is_correlated=False),
    )
    assert parts.offsets == ("log(e + 1)",)


def test_terms_are_the_columns_that_they_say():
    table = read("y ~ x1 + C(k) + colour + x1:`a name` + np.sqrt(e)")
    x1, e = DATA["x1"].to_numpy(), DATA["e"].to_numpy()
    wanted = {
        "x1": x1,
        "C(k)=2": DATA["k"] == 2,
        "C(k)=3": DATA["k"] == 3,
        "colour=green": DATA["colour"] == "green",
        "colour=red": DATA["colour"] == "red",
        "x1:a name": x1 * DATA["a name"],
        "np.sqrt(e)": np.sqrt(e),
    }
    assert set(table.columns) == set(wanted)
    for name, column in wanted.items():
        np.testing.assert_allclose(table.x[:, table.columns.index(name)], np.asarray(column, float), rtol=1e-12)


@pytest.mark.parametrize("formula", ["y ~ poly(x1, 2) + center(e)", "y ~ C(k) * colour + log(e)", "y ~ bs(x1, df=4)"])
def test_new_rows_use_the_constants_of_the_fit(formula):
    """A row alone has the same design as among the others: nothing is learnt from new rows."""
    table = read(formula)
    for row in (0, 7):
        np.testing.assert_allclose(table.inputs(DATA.iloc[[row]]).x[0], table.x[row], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("term", ["`a.b`", "a.b", "log(`a.b`)", "x1 + `a.b`:x1"])
def test_names_may_hold_dots(term):
    data = DATA.assign(**{"a.b": DATA["e"]})
    table = read_table(data, formula=f"y ~ {term}")
    wanted = read_table(data, formula=f"y ~ {term.replace('`', '').replace('a.b', 'e')}")
    np.testing.assert_array_equal(table.x, wanted.x)
    assert table.required == tuple("a.b" if name == "e" else name for name in wanted.required)


def test_names_alike_but_for_a_mark_keep_apart():
    data = DATA.rename(columns={"x1": "a_name", "e": "a-name"})
    table = read_table(data, formula="y ~ {`a name` + 2 * a_name - 3 * `a-name`} + Q('a name')")
    np.testing.assert_allclose(table.x[:, 0], DATA["a name"] + 2 * DATA["x1"] - 3 * DATA["e"])
    np.testing.assert_array_equal(table.x[:, 1], DATA["a name"])


def test_the_dot_is_every_other_column():
    table = read("y ~ . - e + (1 | county)")
    assert set(table.columns) == {"x1", "a name", "colour=green", "colour=red", "k", "n"}


def test_without_intercept_every_level_has_a_column():
    table = read("y ~ 0 + colour")
    assert len(table.columns) == 3
    assert not table.design.has_intercept


@pytest.mark.parametrize("contrast", ["poly", "diff", "helmert", "sum", "treatment"])
def test_contrasts_follow_the_order_of_the_categories(contrast):
    """Against formulaic itself, and where new rows come as text."""
    dose = pd.Categorical(RNG.choice(["low", "mid", "high"], 40), ["low", "mid", "high", "never"], ordered=True)
    data, term = DATA.assign(dose=dose), f"C(dose, contr.{contrast})"
    known = formulaic.model_matrix(term, data.assign(dose=dose.remove_unused_categories())).iloc[:, 1:].to_numpy()
    table = read_table(data, formula=f"y ~ {term}")
    np.testing.assert_allclose(table.x, known, atol=1e-12)
    np.testing.assert_allclose(table.inputs(data.astype({"dose": str}).iloc[::-1]).x, known[::-1], atol=1e-12)


def test_an_outcome_may_be_computed():
    table = read("log(e) ~ x1")
    assert table.target == "log(e)"
    np.testing.assert_allclose(table.y, np.log(DATA["e"]))


def test_what_is_taken_away_is_not_needed():
    """Nor read: dates are no columns of a design."""
    data = DATA.assign(day=pd.date_range("2020-01-01", periods=40), gaps=np.where(np.arange(40) > 3, 1.0, np.nan))
    table = read_table(data, formula="y ~ . - day - gaps - colour")
    assert len(table.y) == 40
    assert set(table.required) == {"x1", "a name", "k", "county", "n", "e"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("log(e) + 1", np.log(DATA["e"]) + 1),
        ("log(e) ** 2", np.log(DATA["e"]) ** 2),
        ("2 * log(e) - x1", 2 * np.log(DATA["e"]) - DATA["x1"]),
        ("{e - 1}", DATA["e"] - 1),
        ("e * `a name`", DATA["e"] * DATA["a name"]),
    ],
)
def test_outcomes_and_offsets_are_arithmetic(text, value):
    """A formula's own + and ** would add and cross terms: of log(e) + 1 only log(e) was left."""
    np.testing.assert_allclose(read(f"{text} ~ k").y, value)
    np.testing.assert_allclose(read(f"y ~ k + offset({text})").inputs(range(40)).offset, value)


def test_columns_named_as_parts_of_a_formula_are():
    """The first two were taken for the intercept, and left out."""
    data = DATA.rename(columns={"x1": "Intercept", "e": "1"})
    table = read_table(data, formula="y ~ Intercept + k")
    assert table.columns == ("Intercept", "k")
    assert not read_table(data, formula="y ~ 0 + Intercept + k").design.has_intercept
    with pytest.raises(CredoError, match="Column 'a`b' has a backtick in its name.*rename it"):
        read_table(DATA.rename(columns={"x1": "a`b"}), formula="y ~ .")
    with pytest.raises(CredoError, match="names a column '1', which would be taken for the intercept: rename it"):
        read_table(data, formula="y ~ .")


def test_offsets_and_exposure_say_the_same():
    by_formula, by_option = read("n ~ x1 + offset(log(e))"), read("n ~ x1", exposure="e")
    rows = np.arange(5)
    np.testing.assert_allclose(by_formula.inputs(rows).offset, np.log(DATA["e"][:5]))
    np.testing.assert_allclose(by_option.inputs(DATA.iloc[:5]).offset, np.log(DATA["e"][:5]))
    assert by_option.family == "poisson"
    assert "e" not in read_table(DATA, "n", exposure="e").columns


def test_groups_are_levels_and_columns():
    table = read("y ~ x1 + (1 + x1 | county) + (1 | county:k)")
    (levels, design), (pairs, ones) = table.inputs(np.arange(40)).groups
    np.testing.assert_array_equal(levels, DATA["county"])
    np.testing.assert_allclose(design[:, 0], DATA["x1"])
    assert set(pairs) == {f"{a}:{b}" for a, b in zip(DATA["county"], DATA["k"], strict=True)}
    assert ones.shape == (40, 0)
    assert [group.term.effects for group in table.groups] == [("intercept", "x1"), ("intercept",)]


@pytest.mark.parametrize("name", ["class", "1", "a b", "a.b", "e1"])
def test_names_of_an_exposure(name):
    data = DATA.rename(columns={"e": name})
    table = read_table(data, formula="n ~ x1", exposure=name)
    np.testing.assert_allclose(table.inputs(range(40)).offset, np.log(DATA["e"]))
    if name != "1":
        quoted = f"`{name}`" if " " in name else name
        offset = read_table(data, formula=f"n ~ x1 + offset({quoted})").inputs(range(40)).offset
        np.testing.assert_array_equal(offset, DATA["e"])


def test_days_are_groups_as_they_are_written():
    days = pd.to_datetime(["2020-01-01", "2020-01-02", "2020-01-01"])
    table = read_table({"y": [1.0, 2.0, 4.0], "day": days}, formula="y ~ (1 | day)")
    for new in (["2020-01-02"], days[1:2], [days[1].date()]):
        assert table.inputs({"day": new}).groups[0][0] == table.inputs([1]).groups[0][0]


def test_combinations_of_groups_keep_apart():
    """Whatever colons their names hold."""
    g, h = ["a", "a:b", "a", "c"], ["b:c", "c", "b", "a:b"]
    table = read_table({"y": [1.0, 2.0, 4.0, 3.0], "g": g, "h": h}, formula="y ~ (1 | g:h)")
    assert len(set(table.inputs(range(4)).groups[0][0])) == 4
    assert table.inputs({"g": ["c", "a"], "h": ["z", "b"]}).groups[0][0].tolist() == ["c:z", "a:b"]


def test_groups_named_like_something_else_keep_apart():
    data = DATA.rename(columns={"county": "noise", "colour": "offset"}).assign(**{"a b": DATA["k"], "a_b": DATA["k"]})
    table = read_table(data, formula="y ~ (1 | noise) + (1 | offset) + (1 | `a b`) + (1 | a_b) + (0 + x1 | noise)")
    assert [group.key for group in table.groups] == ["noise_2", "offset_2", "a_b", "a_b_2", "noise_3"]
    parameters = prepare(table, np.arange(40)).model.structure.tree_names
    assert len(set(parameters)) == 2 + 2 * 5  # intercept, noise_sd, and sd and effects of each group term


@pytest.mark.parametrize(
    ("formula", "sentence"),
    [
        ("y ~ x1 + colr", "no column 'colr': did you mean 'colour'"),
        ("z ~ x1", "no column 'z'"),
        ("y ~ x1 + x2", "no column 'x2': the table has"),
        ("y ~ x1 + (1 | contry)", "no column 'contry': did you mean 'county'"),
        ("y ~ log(zz)", "no column 'zz'"),
        ("y ~ foo(x1)", "cannot be used, for 'foo'"),
        ("y ~ (x1).f(k)", "cannot be read, for '.x1..f.k.'"),
        ("log(y).f(k) ~ x1", "cannot be used, for 'log.y..f'"),
        ("y ~ x1 + (1 + (x1).f(k) | county)", "cannot be read, for '.x1..f.k.'"),
        ("y ~ x1 + __import__('os').system('touch pwn')", "cannot be read, for .__import__"),
        ("y ~ x1 + np.linalg.inv(x1)", "cannot be used, for 'np.linalg.inv'"),
        ("y ~ x1 + {1 / 0}", "division by zero"),
        ("y ~ x1 +", "a term is missing"),
        ("y ~", "has no terms"),
        ("y ~ x1 x2", "cannot be read: Missing operator"),
        ("y ~ x1 ~ k", "has 2 tildes"),
        ("y ~ (x1 + k", "brackets that do not match"),
        ("y ~ `x1", "not closed"),
        ("y ~ x1 | county", "bar outside a group term"),
        ("y ~ x1 - (1 | county)", "takes '.1 . county.' away"),
        ("y ~ (1 | log(k))", "groups by 'log.k.', which is no column's name"),
        ("y ~ (0 | county)", "no effect in it"),
        ("y ~ log(x1)", r"'log\(x1\)' is not finite in row"),
        ("n ~ offset(log(x1))", "is not finite in row"),
        ("y ~ x1 - colr", "no column 'colr': did you mean 'colour'"),
        ("y ~ . - colr", "no column 'colr'"),
        ("y ~ (x1 + k - colr) + e", "no column 'colr'"),
        ("y ~ x1 - log(colr)", "no column 'colr'"),
        ("y ~ x1 + (1 + k - colr | county)", "no column 'colr'"),
        ("y ~ x1 - open('written')", "cannot be used, for 'open'"),
        ("y ~ x1 - .", "takes all other columns away"),
        ("y ~ .:x1", "has a dot inside a term"),
        ("y ~ (. | county)", "has a dot inside a term"),
        ("y|trunc(0) ~ x1", r"outcome 'y\|trunc\(0\)' has a bar"),
        ("y|trunk(0) ~ x1", "has a bar"),
        ("e^2 ~ x1", r"'e \^ 2' has \^, which is no power"),
        ("y ~ x1 + x1^2", r"has a power of 'x1', by which a formula crosses terms.*write \{x1\*\*2\}"),
        ("y ~ k*log(e)**2", r"has a power of 'log\(e\)'"),
        ("y ~ I(x1^2)", r"'I\(x1 \^ 2\)' has \^, which is no power.*write \*\*"),
        ("y + z ~ x1", r"no column 'y \+ z'"),
        ("y ~ np.nan_to_num(lag(x1))", "cannot be used, for 'lag'"),
        ("y ~ {x1 - x1[0]}", r"cannot be used, for 'x1\[0\]'"),
        ("y ~ (x1 + k + e)**2 + {x1**2}", "pass"),
        ("1 ~ x1", "no column '1'"),
        ("(1) ~ x1", r"'\(1\)' names no column"),
        ("y ~ x1 + offset(2)", "'2' names no column"),
        ("x1 ~ k", "pass"),
    ],
)
def test_what_cannot_be_read_is_said(formula, sentence):
    if sentence == "pass":
        read(formula)
        return
    with pytest.raises(CredoError, match=sentence):
        read(formula)


@pytest.mark.parametrize(
    "term",
    [
        "{open('written', 'w').write('x')}",
        "I(open('written', 'w').write('x'))",
        "C(x1, levels=open('written', 'w'))",
        "x1.to_csv('written')",
        "np.savetxt('written', x1)",
        "{[x1.to_csv('written') for i in [1]]}",
    ],
)
def test_a_formula_reaches_nothing_but_columns(term, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CredoError, match="cannot be used"):
        read(f"y ~ x1 + {term}")
    assert not list(tmp_path.iterdir())


def test_target_and_formula_must_agree():
    with pytest.raises(CredoError, match=r"A formula is a text such as .*; got \['x1', 'k'\]"):
        read_table(DATA, "y", formula=["x1", "k"])  # type: ignore[arg-type]
    assert read_table(DATA, "y", formula="x1 + k").target == "y"
    with pytest.raises(CredoError, match="'n' by target and 'y' by the formula"):
        read_table(DATA, "n", formula="y ~ x1")
    with pytest.raises(CredoError, match="Name the outcome"):
        read_table(DATA, formula="x1")


def test_levels_that_the_fit_did_not_know():
    new = DATA.iloc[:2].assign(colour="violet", k=9, county="elsewhere")
    with pytest.raises(CredoError, match="'colour' holds 'violet'.*fit the column as a group"):
        read("y ~ colour").inputs(new)
    with pytest.raises(CredoError, match="meets a level that the fit did not know.*9"):
        read("y ~ C(k)").inputs(new)
    np.testing.assert_array_equal(read("y ~ (1 | county)").inputs(new).groups[0][0], ["elsewhere", "elsewhere"])


def test_exposure_is_positive_and_for_counts():
    for outcome in ("n", "np.round(n)"):
        with pytest.raises(CredoError, match="The exposure is the outcome itself, 'n'"):
            read(f"{outcome} ~ x1", exposure="n")
    with pytest.raises(CredoError, match="'x1' is -.* in row .*: an exposure is a positive amount"):
        read("n ~ k", exposure="x1")
    with pytest.raises(CredoError, match="is for counts, and the family is gaussian"):
        read("y ~ k", exposure="e", family="gaussian")
