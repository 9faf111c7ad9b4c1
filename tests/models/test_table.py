"""Tables: what is guessed and said, what is coded and left out, and a sentence for everything that is wrong."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

import credo
from credo.models.family import guess
from credo.models.table import read_table
from credo.status import CredoError


def csv(tmp_path, text: str, name: str = "a table.csv") -> str:
    path = tmp_path / name
    path.write_bytes(text.encode())
    return str(path)


def frame(**columns) -> pd.DataFrame:
    return pd.DataFrame(columns)


# what is read ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "y,a,b\n1.5,2,u\n-2.5,3,v\n0,4,u\n",
        "\ufeffy, a, b\r\n1.5, 2, u\r\n-2.5, 3, v\r\n0, 4, u\r\n",
        "y;a;b\n1,5;2;u\n-2,5;3;v\n0,0;4;u\n",
        "y\ta\tb\n1.5\t2\tu\n-2.5\t3\tv\n0\t4\tu\n",
        ",y,a,b\n0,1.5,2,u\n1,-2.5,3,v\n2,0,4,u\n",
        'y,a,b\n1.5,2,"u"\n\n-2.5,3,v\n0,4,u\n',
    ],
)
def test_reads_the_dialects_of_csv(text, tmp_path):
    table = read_table(csv(tmp_path, text), "y")
    np.testing.assert_array_equal(table.y, [1.5, -2.5, 0.0])
    np.testing.assert_array_equal(table.x, [[2, 0], [3, 1], [4, 0]])
    assert table.columns == ("a", "b=v")
    assert any("row numbers" in note for note in table.notes) == text.startswith(",")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a,b\n1,2\n3\n", "^a table.csv cannot be read as CSV: line 3 has 1 fields and the header 2"),
        ("a,b\n1,2,3\n4,5,6\n", "line 2 has 3 fields and the header 2"),
        ("", "cannot be read as CSV"),
        ("a,b\n", "no rows"),
        ("a,b\n1,2\n2,\n", r"1 missing value \(1 in 'b'\).*missing='drop'.*1 of 2 rows"),
        ("a,b\n1,1\ninf,2\n2,3\n", "'a' is infinite in row 1"),
        ("a,b\n1,1\n5,2\nx,3\n", "'a' holds text where numbers belong: 1 of 3 values.*first is 'x'"),
        ("a,b\n2020-01-01,1\n2020-01-02,2\n2020-01-04,9\n", r"'a' holds dates \(the first is '2020-01-01'\)"),
        ("a,b\n1/2/2020 10:00,1\n13/2/2020 11:00,2\n1/3/2020 09:30,9\n", "'a' holds dates"),
        ("a,b\n1,2\n2,2\n3,2\n", "there is nothing to"),
        ("a,b\n1,2.5\n1,3.5\n1,9\n", r"No column of a table is of use: Column 'a' is constant \(every value is 1\)"),
    ],
)
def test_what_cannot_be_used_is_said(text, sentence, tmp_path):
    with pytest.raises(CredoError, match=sentence):
        read_table(csv(tmp_path, text), "b")


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,b\n\xff\xfe,2\n")
    with pytest.raises(CredoError, match="cannot be read as CSV: it is not text in UTF-8.*encoding='latin-1'"):
        read_table(str(path), "b")


def test_missing_rows_are_dropped_when_asked_and_counted():
    data = frame(a=[1.0, None, 3.0, 4.0], b=["u", "v", None, "u"], y=[1.0, 2.5, 3.0, 4.0])
    table = read_table(data, "y", "gaussian", missing="drop")
    assert any("2 of 4 rows are left out" in note for note in table.notes)
    np.testing.assert_array_equal(table.y, [1.0, 4.0])
    assert len(read_table(data, formula="y ~ a", missing="drop").y) == 3  # only what the formula uses matters
    with pytest.raises(CredoError, match="missing='impute' is unknown"):
        read_table(data, "y", missing="impute")
    with pytest.raises(CredoError, match="Every row of table has a missing value"):
        read_table(data.assign(b=None), "y", missing="drop")


def test_constant_and_repeated_columns_are_left_out_and_named():
    data = frame(a=[1.0, 2.0, 3.0], twice=[1.0, 2.0, 3.0], same=[7, 7, 7], b=[-0.0, 1.0, 0.0], y=[1.5, 2.0, 3.0])
    table = read_table(data, "y")
    assert table.columns == ("a", "b")
    assert "Column 'twice' is a copy of 'a' and is left out." in table.notes
    assert "Column 'same' is constant (every value is 7) and is left out." in table.notes


def test_text_that_names_rows_is_left_out_and_said():
    names = [f"person {i}" for i in range(30)]
    table = read_table(frame(name=names, a=np.arange(30.0), y=np.arange(30) * 1.5), "y")
    assert table.columns == ("a",)
    assert any("'name' is left out" in note and "(1 | name)" in note for note in table.notes)


def test_what_is_missing_in_a_column_left_out_costs_no_rows():
    cabins = [f"C{i}" if i % 3 else None for i in range(60)]
    table = read_table(frame(cabin=cabins, a=np.arange(60.0), y=np.arange(60) * 1.5), "y")
    assert (len(table.y), table.columns) == (60, ("a",))
    with pytest.raises(CredoError, match="no column besides 'y'.*'cabin' is left out: it is text with 40 distinct"):
        read_table(frame(cabin=cabins, y=np.arange(60) * 1.5), "y")


def test_bundled_tables_have_their_classes_names():
    table = read_table("breast_cancer")
    assert (table.target, table.classes) == ("diagnosis", ("benign", "malignant"))
    assert table.y.mean() == pytest.approx(212 / 569)  # malignant is the event
    assert read_table("diabetes").family == "gaussian"
    assert read_table("iris").classes == ("setosa", "versicolor", "virginica")


def test_new_rows_are_read_as_the_old_ones():
    data = frame(a=[1.0, 2.0, 3.0], b=["u", "v", "w"], y=[1.5, 2.0, 3.0])
    table = read_table(data, "y")
    np.testing.assert_array_equal(table.inputs(frame(b=["w", "u"], a=[5, 6])).x, [[5, 0, 1], [6, 0, 0]])
    np.testing.assert_array_equal(table.inputs({"b": ["v"], "a": [5]}).x, [[5, 1, 0]])
    with pytest.raises(
        CredoError, match=r"'b' holds 'z' \(first in row 0\), a level that the fit did not know \(it knew u, v, w\)"
    ):
        table.inputs(frame(a=[1.0], b=["z"]))
    with pytest.raises(CredoError, match="no column 'a': did you mean 'A'"):
        table.inputs(frame(A=[1.0], b=["u"]))
    with pytest.raises(CredoError, match=r"'a' has 1 missing value \(the first in row 1\)"):
        table.inputs(frame(a=[1.0, np.nan], b=["u", "u"]))
    with pytest.raises(CredoError, match="'a' held numbers in the fit and holds text now"):
        table.inputs(frame(a=["one"], b=["u"]))


@pytest.mark.parametrize("is_ordered", [True, False])
def test_categories_keep_their_own_order(is_ordered):
    """As pandas, formulaic and R have it: the first is the reference; one that no row has is no level."""
    dose = pd.Categorical(["mid", "high", "low", "mid"], ["low", "never", "mid", "high"], ordered=is_ordered)
    data = frame(dose=dose, y=[1.5, 2.0, 3.0, 4.0])
    table = read_table(data, "y")
    assert table.columns == ("dose=mid", "dose=high")
    np.testing.assert_array_equal(table.x, [[1, 0], [0, 1], [0, 0], [1, 0]])
    np.testing.assert_array_equal(table.inputs({"dose": ["high", "low"]}).x, [[0, 1], [0, 0]])
    shuffled = pd.Categorical(["high", "low"], ["high", "low"])
    np.testing.assert_array_equal(table.inputs(frame(dose=shuffled)).x, [[0, 1], [0, 0]])
    with pytest.raises(CredoError, match=r"'dose' holds 'never'.*did not know \(it knew low, mid, high\)"):
        table.inputs({"dose": ["never"]})


def test_categories_may_be_numbers_ranges_or_mostly_numerals():
    data = frame(
        k=pd.Categorical([10, 2, 1, 2]),
        age=pd.cut([5, 25, 105, 25], [0, 10, 100, 110]),
        rooms=pd.Categorical(["2", "3", "4+", "1"]),
        y=[1.5, 2.0, 3.0, 4.0],
    )
    assert read_table(data, formula="y ~ k").columns == ("k=2", "k=10")
    assert read_table(data, formula="y ~ age").columns == ("age=(10, 100]", "age=(100, 110]")
    assert read_table(data, formula="y ~ rooms").columns == ("rooms=2", "rooms=3", "rooms=4+")


def test_classes_that_are_categories_keep_their_order():
    """Of two the first is the failure, as R has it."""
    state = pd.Categorical(["well", "ill", "ill"], ["well", "ill", "dead"])
    table = read_table(frame(x=[1.0, 2.0, 4.0], y=state), "y")
    assert (table.family, table.classes) == ("bernoulli", ("well", "ill"))
    np.testing.assert_array_equal(table.y, [0, 1, 1])


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (pd.to_datetime(["2020-01-01"]), "'a' held numbers in the fit and holds dates now .first value '2020-01-01"),
        (pd.to_timedelta([1], unit="D"), "'a' held numbers in the fit and holds spans of time now"),
        (np.array([1 + 2j]), "'a' held numbers in the fit and holds complex numbers now"),
        (np.ma.masked_array([1.0], [True]), "'a' has 1 missing value"),
        ({1.0}, "Column 'a' is a set"),
        ((i for i in range(1)), "Column 'a' is a generator"),
        (np.ones((1, 2)), r"Column 'a' has shape \(1, 2\): give one value a row"),
        ([1.0, 2.0], r"The columns differ in length \(a has 2, b has 1 rows\)"),
    ],
)
def test_new_columns_of_another_kind(values, sentence):
    """Dates were read as their nanoseconds."""
    table = read_table(frame(a=[1.0, 2.0, 3.0], b=["u", "v", "w"], y=[1.5, 2.0, 3.0]), "y")
    with pytest.raises(CredoError, match=sentence):
        table.inputs({"a": values, "b": ["u"]})


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (pd.to_timedelta([1, 2, 5], unit="D"), "'a' holds spans of time .the first is '1 days"),
        (np.array([1j, 2.0, 3.0]), "'a' holds complex numbers"),
        (pd.period_range("2020-01", periods=3, freq="M"), "'a' holds dates .the first is '2020-01'"),
    ],
)
def test_columns_that_are_no_numbers_and_no_levels(values, sentence):
    with pytest.raises(CredoError, match=sentence):
        read_table(frame(a=values, y=[1.5, 2.0, 3.0]), "y")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (pd.to_timedelta([1, 2, 2], unit="D"), "The outcome 'y' holds spans of time .the first is '1 days"),
        (pd.to_datetime(["2020-01-01", "2021-01-01", "2021-01-01"]), "The outcome 'y' holds dates"),
        (np.array([1j, 2.0, 2.0]), "The outcome 'y' holds complex numbers"),
    ],
)
def test_outcomes_that_are_no_numbers_and_no_classes(values, sentence):
    with pytest.raises(CredoError, match=sentence):
        read_table(frame(a=[1.0, 2.0, 4.0], y=values), "y")


def test_one_number_or_word_stands_for_all_rows():
    table = read_table({"a": [1.0, 2.0, 3.0], "b": ["u", "v", "w"], "y": [1.5, 2.0, 3.0]}, "y")
    np.testing.assert_array_equal(table.inputs({"a": [5, 6], "b": "w"}).x, [[5, 0, 1], [6, 0, 1]])
    np.testing.assert_array_equal(table.inputs({"a": 5, "b": "v"}).x, [[5, 1, 0]])


@pytest.mark.parametrize("cell", [[1, 2], {1}, {"a": 1}, np.ones(2)])
def test_columns_of_what_is_no_single_value(cell):
    table = frame(y=[0.1, 0.2, 0.4, 0.3], k=["a", cell, "b", "c"])
    for target in ("y", "k"):
        with pytest.raises(CredoError, match=rf"'k' .* holds {type(cell).__name__}s \(the first in row 1\)"):
            read_table(table, target)


def test_columns_of_pandas_in_a_dict_stay_what_they_are():
    dose = pd.Categorical(["mid", "high", "low"], ["low", "mid", "high"])
    for column in (dose, pd.Series(dose, index=[2, 1, 0]), pd.CategoricalIndex(dose)):
        assert read_table({"dose": column, "y": [1.5, 2.0, 4.0]}, "y").columns == ("dose=mid", "dose=high")


def test_columns_of_one_index_in_two_orders():
    table = read_table(frame(a=[1.0, 2.0, 3.0], b=["u", "v", "w"], y=[1.5, 2.0, 3.0]), "y")
    a, b = pd.Series([1.0, 2.0], index=[5, 6]), pd.Series(["u", "v"], index=[6, 5])
    with pytest.raises(CredoError, match=r"table\['a'\] and table\['b'\] have the same index in different orders"):
        table.inputs({"a": a, "b": b})
    np.testing.assert_array_equal(table.inputs({"a": a, "b": b.loc[a.index]}).x, [[1, 1, 0], [2, 0, 0]])


def test_names_of_columns():
    numbered = pd.DataFrame([[1.0, 5.0], [2.0, 3.0], [4.0, 9.0]])
    assert read_table(numbered, 0).columns == ("1",)  # type: ignore[arg-type]
    nested = numbered.set_axis(pd.MultiIndex.from_tuples([("a", "x"), ("a", "y")]), axis=1)
    with pytest.raises(CredoError, match=r"names of 2 levels \(the first is \('a', 'x'\)\): join them"):
        read_table(nested, "y")
    table = read_table(numbered, "0")
    with pytest.raises(CredoError, match="The table has two columns named '1'"):
        table.inputs(numbered.set_axis(["1", 1], axis=1))
    assert read_table(numbered.set_axis(pd.CategoricalIndex(["y", "a"]), axis=1), "y").columns == ("a",)


@pytest.mark.parametrize("source", [np.ones((3, 2)), [[1.0, 2.0]], pd.Series([1.0]), 3, None])
def test_what_is_no_table(source):
    with pytest.raises(CredoError, match=f"a dict of columns, and this one is a {type(source).__name__}: give pandas"):
        read_table(source, "y")


def test_a_table_of_another_library_is_turned_into_one_of_pandas():
    class Other:
        columns = ("a", "y")

        def to_pandas(self):
            raise NotImplementedError

    with pytest.raises(CredoError, match=r"this one is a Other: give its to_pandas\(\)"):
        read_table(Other(), "y")


# what is guessed ------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(5)


@pytest.mark.parametrize(
    ("values", "family"),
    [
        ([0, 1, 1, 0], "bernoulli"),
        (["no", "yes", "no"], "bernoulli"),
        ([True, False, True], "bernoulli"),
        (list("abcabc"), "categorical"),
        (np.repeat([0, 1, 2], 50), "categorical"),
        (np.repeat([1, 2, 3], 50), "categorical"),
        (np.repeat(np.arange(10), 180), "categorical"),
        (RNG.poisson(3.0, 200), "poisson"),
        (RNG.poisson(3.0, 200).astype(float), "poisson"),
        (RNG.poisson(np.exp(RNG.normal(1.5, 0.7, 500))), "poisson"),
        (RNG.negative_binomial(1.0, 0.2, 300), "poisson"),
        (RNG.normal(size=50), "gaussian"),
        (RNG.integers(20, 90, 300), "gaussian"),  # ages
        (np.round(RNG.normal(300_000, 80_000, 200)).astype(int), "gaussian"),  # prices
        (RNG.binomial(16, 0.6, 2_000), "gaussian"),  # years of schooling: their variance is below their mean
        (np.arange(-3, 20), "gaussian"),
    ],
)
def test_guesses_the_family_and_says_why(values, family):
    guessed, reason = guess(pd.Series(values), "y")
    assert guessed == family
    assert reason.startswith(f"Family {family}, guessed: 'y' ")
    assert reason.endswith(".")


def test_what_was_guessed_is_the_first_note_and_what_was_said_is_not():
    data = frame(a=np.arange(9.0), y=[0, 3, 1, 2, 9, 4, 2, 1, 0])
    assert read_table(data, "y").notes[0].startswith("Family poisson, guessed")
    assert read_table(data, "y", "poisson").notes == ()


@pytest.mark.parametrize(
    ("y", "family", "sentence"),
    [
        (["u", "u", "u"], None, r"one class only \('u'\)"),
        ([1, 2, 3], "bernoulli", "3 classes; bernoulli takes two: use --family categorical"),
        ([1.25, 2.0, 3.0], "bernoulli", "not all of them whole .such as 1.25.*use --family gaussian"),
        ([1.5, 2.0, 3.0], "poisson", "1.5, which is no count"),
        ([-1, 2, 3], "poisson", "-1, which is no count"),
        (["u", "v", "w"], "gaussian", "text where numbers belong .first value 'u'"),
        ([2.0, 2.0, 2.0], "gaussian", "constant .every value is 2"),
        ([1.0, np.inf, 2.0], "gaussian", "infinite in row 1"),
    ],
)
def test_outcomes_that_do_not_fit_the_family(y, family, sentence):
    with pytest.raises(CredoError, match=sentence):
        read_table(frame(a=[1.0, 2.0, 3.0], y=y), "y", family)


def test_too_many_distinct_values_are_no_classes():
    with pytest.raises(CredoError, match="30 distinct values in 30 rows, too many to be classes"):
        read_table(frame(a=np.arange(30.0), y=[f"n{i}" for i in range(30)]), "y")


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        ([f"{i}:30" for i in range(12)], "holds times of day .the first is '0:30'"),
        ([f"${i}.13" for i in range(12)], "holds numbers written as text .the first is '.0.13'"),
        ([f"{i},347" for i in range(12)], "holds numbers written as text .the first is '0,347'"),
        ([f"{i} %" for i in range(12)], "holds numbers written as text .the first is '0 %'"),
    ],
)
def test_numbers_and_times_as_text(texts, sentence):
    with pytest.raises(CredoError, match=sentence):
        read_table(frame(a=texts, y=np.arange(12.0)), "y")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ((np.arange(12) / 4).astype(str), r"'a' holds numbers as text \(the first value is '0.0'\)"),
        ([*range(11), "11"], r"'a' holds numbers of which some are text.*pandas.to_numeric"),
        ([0.5, "1.5"] * 6, "'a' holds numbers of which some are text"),
    ],
)
def test_numerals_of_measurements_are_no_levels(values, sentence):
    data = frame(a=pd.Series(values, dtype=object), y=np.arange(12.0))
    with pytest.raises(CredoError, match=sentence):
        read_table(data, formula="y ~ a")


def test_whole_numerals_may_be_levels():
    codes = [f"{i:03d}" for i in range(12)]
    assert read_table(frame(a=codes, y=np.arange(12.0)), formula="y ~ a").columns[0] == "a=001"
    assert read_table(frame(a=["1.5", "2.5"] * 6, y=np.arange(12.0)), "y").columns == ("a=2.5",)


def test_a_column_of_one_level_is_named():
    table = read_table(frame(a=np.arange(3.0), site=["north"] * 3, y=[1.5, 2.0, 4.0]), "y")
    assert table.columns == ("a",)
    assert "Column 'site' holds 'north' in every row, which tells none apart." in table.notes


def test_a_few_amounts_are_levels():
    assert read_table(frame(a=["10 %", "20 %"] * 6, y=np.arange(12.0)), "y").columns == ("a=20 %",)


def test_a_cell_that_is_no_number_is_named():
    y = [*map(str, np.arange(30.0)), "n/a?"]
    with pytest.raises(CredoError, match="holds numbers, but for 1 of its 31 distinct values .the first is 'n/a.'"):
        read_table(frame(a=np.arange(31.0), y=y), "y")


@pytest.mark.parametrize("header", ["y,a,a", "y,y,a", "y, a,a "])
def test_a_file_with_two_columns_of_one_name(header, tmp_path):
    with pytest.raises(CredoError, match="has two columns named '[ay]': rename one"):
        read_table(csv(tmp_path, f"{header}\n1.5,2,3\n-2.5,3,4\n0,4,4\n"), "y")


def test_an_outcome_does_not_explain_itself():
    table = frame(a=[1.0, 2.0, 3.5], y=[1.0, 2.5, 3.0])
    for formula in ("y ~ a + y", "log(y) ~ a + y", "y ~ a + I(y**2)"):
        with pytest.raises(CredoError, match="explains 'y' by itself"):
            read_table(table, formula=formula)
    assert read_table(table, formula="y ~ .").columns == read_table(table, formula="y ~ a").columns


def test_numbers_as_classes_keep_their_order():
    table = read_table(frame(a=np.arange(4.0), y=[10, 9, 2, 10]), "y", "categorical")
    assert table.classes == ("2", "9", "10")
    np.testing.assert_array_equal(table.y, [2, 1, 0, 2])


def test_without_an_intercept_a_constant_column_is_one():
    x = np.linspace(-1, 1, 40)
    data = frame(one=1.0, x=x, two=2.0, none=0.0, y=10 + 2 * x + 0.1 * np.sin(9 * x))
    kept = read_table(data, formula="y ~ 0 + none + one + x + two", family="gaussian")
    assert kept.columns == ("one", "x")
    assert read_table(data, formula="y ~ one + x", family="gaussian").columns == ("x",)
    prepared = credo.prepare(kept, range(40))
    target = prepared.model.given(prepared.inputs(prepared.rows), prepared.y[prepared.rows])
    posterior = credo.fit(target, credo.Laplace(), key=0)
    np.testing.assert_allclose(posterior.predict(prepared.inputs(range(3))).mean, data["y"][:3], atol=1.0)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (np.ones(5, bool), "The mask of rows has shape .5,., and .* has 12 rows"),
        ([0.7, 1.9], "Rows are a list of row numbers"),
        ("abc", "Rows are a list of row numbers"),
        (np.arange(6).reshape(2, 3), "Rows are a list of row numbers"),
    ],
)
def test_rows_that_are_none(rows, sentence):
    table = read_table(frame(x=np.arange(12.0), y=np.arange(12.0) % 5), target="y", family="gaussian")
    with pytest.raises(CredoError, match=sentence):
        credo.prepare(table, rows)


def test_numbers_as_objects_are_numbers():
    k = np.arange(40) % 12
    y = 3.0 * k + np.sin(np.arange(40))
    for values in (k.astype(object), [Decimal(int(v)) for v in k]):
        table = read_table(pd.DataFrame({"k": values, "y": y.astype(object)}), target="y", family="gaussian")
        assert table.columns == ("k",)
        np.testing.assert_array_equal(table.x[:, 0], k)
        assert credo.prepare(table, range(40)).inputs({"k": 20}) is not None  # a row by itself
    words = read_table(pd.DataFrame({"k": [f"a{v}" for v in k], "y": y}), target="y", family="gaussian")
    assert "k=a1" in words.columns


@pytest.mark.parametrize(
    ("fitted", "new", "sentence"),
    [
        ([True, False], [1, 0], "'g' held truth values in the fit .False, True, …. and holds numbers now .0."),
        ([1, 2], [True, False], "'g' held numbers in the fit .* and holds truth values now .False."),
        (["u", "v"], [1, 2], "'g' held text in the fit .* and holds numbers now .1.*every level would be a new one"),
    ],
)
def test_groups_of_another_kind_are_no_new_ones(fitted, new, sentence):
    table = read_table(frame(g=fitted * 6, y=np.arange(12.0)), formula="y ~ 1 + (1 | g)")
    with pytest.raises(CredoError, match=sentence):
        table.inputs({"g": new})


def test_numerals_and_numbers_are_the_same_groups():
    table = read_table(frame(g=["1", "2"] * 6, y=np.arange(12.0)), formula="y ~ 1 + (1 | g)")
    assert table.inputs({"g": [2, 1, 3]}).groups[0][0].tolist() == ["2", "1", "3"]


@pytest.mark.parametrize("precision", ["float16", "float32", "Float32"])
def test_levels_are_the_same_in_any_precision(precision):
    """0.1 in single precision is 0.10000000149, which was a new group."""
    long = frame(g=[0.1, 0.3] * 6, y=np.arange(12.0))
    short = long.astype({"g": precision})
    for known, new in ((long, short), (short, long)):
        table = read_table(known, formula="y ~ 1 + (1 | g)")
        assert table.inputs(new).groups[0][0].tolist() == ["0.1", "0.3"] * 6


def test_a_large_file_has_one_type_a_column(tmp_path):
    """By chunks, 0101 was 101 in the first and text in the last: one level in two."""
    zips = [*np.array(["0101", "0202"])[np.arange(400_000) % 2], "A303"]
    path = tmp_path / "zips.csv"
    pd.DataFrame({"y": np.arange(400_001.0), "zip": zips}).to_csv(path, index=False)
    table = read_table(str(path), formula="y ~ (1 | zip)")
    assert set(np.unique(table.groups[0].levels(table.frame))) == {"0101", "0202", "A303"}


def test_numbers_among_words_are_the_numbers_of_the_fit():
    """A file of ids and one word is text, where 0042 of the fit was 42."""
    data = frame(y=np.arange(8.0), g=[7, 42, 100, 1234] * 2)
    table = read_table(data, formula="y ~ (1 | g)")
    levels = table.inputs({"g": ["0042", "1234", "B9"]}).groups[0][0]
    assert levels.tolist() == ["42", "1234", "B9"]


def test_counts_beyond_whole_numbers_are_refused():
    with pytest.raises(CredoError, match=r"'y' has the count 1e\+19, beyond which"):
        read_table(frame(y=[1e19, 0.0, 1.0], x=[1.0, 2.0, 4.0]), "y", "poisson")


def test_a_product_of_rows_is_not_value_by_value():
    with pytest.raises(CredoError, match=r"np\.matmul"):
        read_table(frame(y=np.arange(9.0), x=np.arange(9.0) ** 2), formula="y ~ {x / np.matmul(x, x) ** 0.5}")
