"""Tables as users bring them: what is accepted, how it is coded, and the sentence for each thing that is wrong."""

import warnings
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
import scipy.sparse

import credo
from credo.model.data import inputs
from credo.model.model import Model
from credo.precision import double
from credo.status import CredoError

X = np.arange(8.0).reshape(4, 2)
Y = np.array([0.5, 1.0, -0.5, 2.0])
PRIOR = {"w": dist.Normal(0.0, 1.0).expand([2])}


class Batches:
    """As the loaders of other libraries: iterable, and neither an iterator nor an array."""

    def __iter__(self):
        return iter([(X, Y)])

    def __len__(self):
        return 1


def line(params, x):
    return dist.Normal(x @ params["w"], 1.0)


def constant(params, x):
    return dist.Normal(params["w"][0], 1.0).expand([4])


def given(x=X, y=Y, likelihood=line, prior=PRIOR, **options):
    return Model(prior, likelihood).given(x, y, **options)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["x", "y", "weights"])
def test_not_finite(name, value):
    data = {"x": X.copy(), "y": Y.copy(), "weights": np.ones(4)}
    data[name][2] = value
    kind = "infinite value" if name == "y" and np.isinf(value) else "NaN or infinite value"
    with pytest.raises(CredoError, match=rf"{name} has \d {kind}.*first in row 2: {value}"):
        given(**data)


def test_outcomes_that_are_whole_numbers_as_objects_stay_whole():
    """Classes are whole numbers, and a column of a table that once held others is of objects. Inputs may be any."""
    target = given(np.array([0, 1, 2, 1], object), np.array([0, 1, 2, 1], object), likelihood=constant)
    assert target.y.dtype.kind == "i"
    assert target.x.dtype.kind == "f"
    assert given(y=np.array([0, 1.5, 2, 1], object)).y.dtype.kind == "f"
    assert given(y=np.array([0, 2**70, 2, 1], object)).y.dtype.kind == "f"


def test_bounds_of_censored_rows_that_are_not_known():
    """An infinite bound is no missing value: to drop those rows would drop the survivors."""

    def survival(params, x):
        flags = jnp.zeros(4, int)
        return dist.IntervalCensoredDistribution(dist.Exponential(jnp.exp(params["w"][0]) * jnp.ones(4)), flags, flags)

    bounds = np.array([[1.0, 2.0], [1.0, np.inf], [0.5, 1.0], [2.0, 3.0]])
    for missing in (None, "drop", "impute"):
        with pytest.raises(
            CredoError, match=r"y has 1 infinite value.*any number inside the support, as right_censored=1"
        ):
            given(y=bounds, likelihood=survival, missing=missing)
    with pytest.raises(CredoError, match=r"row 1: \[-0.5  1. \]. Of an interval both ends lie inside.*left_censored=1"):
        given(
            y=np.where(bounds == np.inf, 1.0, bounds) - np.array([[0, 0], [1.5, 0], [0, 0], [0, 0]]),
            likelihood=survival,
        )


def test_the_column_is_named():
    table = pd.DataFrame({"age": [1.0, 2.0, np.nan, 4.0], "dose": [1, 2, 3, 4]})
    with pytest.raises(CredoError, match=r"x\['age'\] has 1 NaN or infinite value \(the first in row 2"):
        given(table, likelihood=constant)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"y": Y[:3]}, r"differ in length \(x has 4, y has 3 rows\)"),
        ({"weights": np.ones(3)}, "x has 4, y has 4, weights has 3"),
        ({"x": X[:0], "y": Y[:0]}, "no rows"),
        ({"x": [], "y": []}, "The data have no rows"),
        ({"x": None, "y": []}, "The data have no rows"),
        ({"x": (), "y": ()}, "The data have no rows"),
        ({"x": []}, r"differ in length \(x has 0, y has 4 rows\)"),
        ({"y": [], "missing": "drop"}, "The data have no rows"),
        ({"x": {1.0, 2.0}}, "x is a set, which has no order, and rows do: give an array, or a list"),
        ({"x": {"a": {3: 1.0}.values()}}, r"x\['a'\] is a dict_values, which is no array"),
        ({"y": (i for i in range(4))}, r"y is a generator, which is no array: .* or credo.Loader\(…\) of batches"),
        ({"x": Batches()}, r"x is a Batches, which is no array: .* or credo.Loader\(…\) of batches"),
        ({"weights": map(float, range(4))}, "weights is a map, which is no array"),
        ({"x": lambda: X}, "x is a function, which is no array"),
        ({"x": 3.0}, "x is a single number"),
        ({"y": 3.0}, "y is a single number"),
        ({"x": [[1.0, 2.0], [3.0]]}, "x is ragged"),
        ({"x": np.array([["a", "b"]] * 4)}, "x holds text or dates"),
        ({"x": pd.DataFrame({"day": pd.to_datetime(["2024-01-01"] * 4)})}, r"x\['day'\] holds text or dates"),
        ({"x": pd.DataFrame({"a": [1, None, "b", 3]})}, r"x\['a'\] has 1 missing value"),
        ({"x": pd.DataFrame({1: Y, "b": Y, "1": Y})}, "Two columns of the table are called '1'"),
        ({"x": X + 1j}, "not a real number"),
        ({"weights": np.array([1.0, -1.5, 1.0, 1.0])}, "1 of 4 are not .the first in row 1: -1.5"),
        ({"y": None, "weights": np.ones(4)}, "there are no data: give y too"),
        ({"likelihood": None}, "has no likelihood, so y says nothing"),
        ({"weights": np.ones((4, 1))}, r"shape \(4, 1\): give one non-negative number a row"),
        ({"y": Y[:, None]}, r"batch_shape \(4,\).*y has shape \(4, 1\)"),
        ({"likelihood": lambda p, x: dist.Normal(x @ p["w"][:, None], 1.0)}, r"batch_shape \(4, 1\)"),
        ({"likelihood": lambda p, x: dist.Normal((x @ p["w"])[:3], 1.0)}, r"batch_shape \(3,\)"),
        ({"likelihood": lambda p, x: x @ p["w"]}, "must return a numpyro distribution"),
    ],
)
def test_refused(data, sentence):
    with pytest.raises(CredoError, match=sentence):
        given(**data)


@pytest.mark.parametrize(
    ("distribution", "y", "row"),
    [
        (lambda p, x: dist.Bernoulli(logits=x @ p["w"]), np.array([0, 1, 2, 1]), "row 2: 2"),
        (lambda p, x: dist.Bernoulli(logits=x @ p["w"]), np.array([0, 1, 0.5, 1]), "row 2: 0.5"),
        (lambda p, x: dist.Poisson(jnp.exp(x @ p["w"])), np.array([0, -1, 2, 1]), "row 1: -1"),
        (lambda p, x: dist.Gamma(1.0, jnp.exp(x @ p["w"])), np.array([0.5, 1.0, 2.0, -1.0]), "row 3: -1"),
        (lambda p, x: dist.Categorical(logits=x[:, :1] * jnp.ones(3)), np.array([0, 1, 2, 3]), "row 3: 3"),
        (lambda p, x: dist.Binomial(x[:, 0].astype(int), logits=p["w"][0]), np.array([0, 1, 5, 3]), "row 2: 5"),
        (lambda p, x: dist.Dirichlet(jnp.exp(p["w"])).expand([4]), np.array([[0.5, 0.5]] * 3 + [[0.5, 0.6]]), "row 3"),
    ],
)
def test_outside_the_support(distribution, y, row):
    with pytest.raises(CredoError, match=f"1 row.* outside the likelihood's support .* {row}"):
        given(y=y, likelihood=distribution)


def test_a_support_that_depends_on_parameters_refuses_nothing():
    """Some position may hold every row; the start-up diagnosis speaks if the start does not."""
    given(y=np.array([0.5, 1.0, 70.0, 2.0]), likelihood=lambda p, x: dist.Uniform(0.0, jnp.exp(p["w"][0])).expand([4]))


def test_masked_parts_of_a_row_may_hold_anything():
    """Of outcomes (N, C), one event a row: the mask is of the entries, the support of the rows."""
    y, seen = np.array([[0, 1], [7, 0], [1, 1], [1, 0]]), np.ones((4, 2), bool)

    def likelihood(seen):
        return lambda p, x: dist.Bernoulli(logits=x * p["w"]).mask(seen).to_event(1)

    with pytest.raises(CredoError, match=r"1 row.* outside the likelihood's support.*row 1: \[7 0\]"):
        given(y=y, likelihood=likelihood(seen))
    seen[1, 0] = False
    target = given(y=y, likelihood=likelihood(seen))
    np.testing.assert_allclose(target.log_likelihood({"w": jnp.zeros(2)}), np.log(0.5) * seen.sum(1), rtol=1e-6)


def test_masked_rows_may_hold_anything():
    y = np.array([0, 1, 9, 1])
    given(y=y, likelihood=lambda p, x: dist.Bernoulli(logits=x @ p["w"]).mask(jnp.arange(4) != 2))


def test_types():
    target = given(
        X.astype(np.float32), np.array([True, False, True, True]), lambda p, x: dist.Bernoulli(logits=x @ p["w"])
    )
    assert target.x.dtype == np.float64
    assert target.y.dtype == np.int64
    assert isinstance(target.x, np.ndarray)


def test_lists():
    target = given(X.tolist(), Y.tolist())
    np.testing.assert_array_equal(target.x, X)
    np.testing.assert_array_equal(target.y, Y)
    with pytest.raises(CredoError, match="y has 1 missing value"):
        given(y=[0.5, None, 1.0, 2.0])


def test_data_frame():
    table = pd.DataFrame({"a": [1, 2, 3, 4], "b": [0.5, 1.0, 1.5, 2.0], 3: [True, False, True, False]})
    target = given(table, pd.Series(Y), lambda p, x: dist.Normal(x["a"] * p["w"][0] + x["b"] * p["w"][1], 1.0))
    assert set(target.x) == {"a", "b", "3"}
    assert target.x["a"].dtype == np.int64
    np.testing.assert_array_equal(target.y, Y)


def test_mapping_that_is_no_dict():
    """As xarray.Dataset is."""
    columns = MappingProxyType({"a": Y, "b": X[:, 0]})
    target = given(columns, Y, lambda p, x: dist.Normal(x["a"] * p["w"][0] + x["b"] * p["w"][1], 1.0))
    assert set(target.x) == {"a", "b"}
    both = given(columns, MappingProxyType({"y": Y}), lambda p, x: {"y": dist.Normal(x["a"] * p["w"][0], 1.0)})
    np.testing.assert_array_equal(both.y["y"], Y)
    posterior = credo.fit(target, credo.Laplace(), key=jax.random.key(0))
    np.testing.assert_array_equal(posterior.predict(columns).mean, posterior.predict(dict(columns)).mean)


def test_half_precision():
    x = jnp.asarray(X, jnp.bfloat16)
    np.testing.assert_array_equal(given(x).x, np.asarray(X.astype(x.dtype), np.float64))


# groups -------------------------------------------------------------------------------------------------------------

GROUPED = {"w": dist.Normal(0.0, 1.0), "city_effect": dist.Normal(0.0, 1.0).expand([3])}


def by_city(params, x):
    return dist.Normal(params["w"] + params["city_effect"][x["city"]], 1.0)


GROUP_MODEL = Model(GROUPED, by_city, groups={"city": "city_effect"})


@pytest.mark.parametrize("kind", [list, np.array, pd.Series, pd.Categorical])
def test_group_columns_become_codes(kind):
    target = GROUP_MODEL.given({"city": kind(["Rome", "Oslo", "Rome", "Bern"])}, Y)
    np.testing.assert_array_equal(target.x["city"], [2, 1, 2, 0])
    assert list(target.levels.levels["city"]) == ["Bern", "Oslo", "Rome"]


def test_unseen_levels_get_codes_of_their_own():
    target = GROUP_MODEL.given(pd.DataFrame({"city": ["Rome", "Oslo", "Rome", "Bern"]}), Y)
    coded, _ = inputs({"city": np.array(["Oslo", "Lima", "Kyiv", "Lima", "Rome"])}, GROUP_MODEL.groups, target.levels)
    np.testing.assert_array_equal(coded["city"], [1, 4, 3, 4, 2])


def test_integer_levels_are_codes_already():
    target = GROUP_MODEL.given({"city": np.array([2, 0, 2, 0])}, Y)
    np.testing.assert_array_equal(target.x["city"], [2, 0, 2, 0])
    coded, _ = inputs({"city": np.array([1, 5])}, GROUP_MODEL.groups, target.levels)
    np.testing.assert_array_equal(coded["city"], [1, 3])


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        ({"town": np.zeros(4)}, "groups by column 'city', which the inputs lack"),
        (X, "groups by column 'city', which the inputs lack"),
        ({"city": ["a", "b", "c", "d"]}, "has 4 levels but parameter 'city_effect' has 3 rows"),
    ],
)
def test_groups_refused(x, sentence):
    with pytest.raises(CredoError, match=sentence):
        GROUP_MODEL.given(x, Y)


MISSING_LEVELS = {
    "None": ["Rome", None, "Rome", "Bern"],
    "NaN": ["Rome", np.nan, "Rome", "Bern"],
    "numbers": [1.0, np.nan, 2.0, 1.0],
    "NA": pd.array([1, pd.NA, 2, 1], dtype="Int64"),
    "category": pd.Categorical(["Rome", None, "Rome", "Bern"]),
    "dates": pd.to_datetime(["2024-01-01", None, "2024-01-02", "2024-01-01"]),
}


@pytest.mark.parametrize("name", list(MISSING_LEVELS))
def test_a_missing_level_is_named(name):
    with pytest.raises(CredoError, match=r"Column 'city', a group, has 1 missing value \(the first in row 1"):
        GROUP_MODEL.given(pd.DataFrame({"city": MISSING_LEVELS[name]}), Y)


def test_missing_values_of_a_column_are_named_by_row():
    with pytest.raises(CredoError, match=r"x\['a'\] has 2 missing values \(the first in row 1\)"):
        given(pd.DataFrame({"a": [1, None, "b", pd.NA]}), likelihood=constant)


def test_levels_of_two_kinds():
    with pytest.raises(CredoError, match="Column 'city', a group, holds both text and numbers"):
        GROUP_MODEL.given({"city": pd.Series([1, "Rome", 1, 1])}, Y)


def test_prior_alone_and_prior_predictive_of_groups():
    assert GROUP_MODEL.given().dim == 4
    with pytest.raises(CredoError, match="groups by column 'city', which the inputs lack"):
        GROUP_MODEL.given(y=Y)
    with pytest.raises(CredoError, match="groups by column 'city', which the inputs lack"):
        GROUP_MODEL.sample_prior_predictive(0, None, 3)
    assert GROUP_MODEL.sample_prior_predictive(0, {"city": ["Rome", "Oslo"]}, 3).shape == (3, 2)


def match(params, x):
    return dist.Normal(params["skill"][x["home"]] - params["skill"][x["away"]], 1.0)


MATCHES = Model({"skill": dist.Normal(0.0, 1.0).expand([4])}, match, groups={"home": "skill", "away": "skill"})


def test_columns_of_one_parameter_share_their_levels():
    """No level is in both columns, so that separate codes would call different teams the same."""
    target = MATCHES.given({"home": ["u", "w", "u", "w"], "away": ["v", "v", "z", "z"]}, Y)
    np.testing.assert_array_equal(target.x["home"], [0, 2, 0, 2])
    np.testing.assert_array_equal(target.x["away"], [1, 1, 3, 3])
    numbers = MATCHES.given({"home": np.array([0, 1, 0, 1]), "away": np.array([3, 3, 2, 2])}, Y)
    np.testing.assert_array_equal(numbers.x["away"], [3, 3, 2, 2])
    assert [len(levels) for levels in numbers.levels.levels.values()] == [4, 4]
    with pytest.raises(CredoError, match="'home', 'away' index the same parameter 'skill', but one holds text"):
        MATCHES.given({"home": ["u", "w", "u", "w"], "away": np.arange(4)}, Y)
    with pytest.raises(CredoError, match="has 5 levels but parameter 'skill' has 4 rows"):
        MATCHES.given({"home": ["u", "w", "u", "w"], "away": ["v", "v", "z", "a"]}, Y)


def test_groups_name_a_parameter_with_rows():
    with pytest.raises(CredoError, match="not a parameter with a row a level"):
        Model(GROUPED, by_city, groups={"city": "w"})


# constants ------------------------------------------------------------------------------------------------------------


def test_a_float32_constant_earns_a_sentence():
    offsets = jnp.array([0.1, 0.2, 0.3, 0.4], jnp.float32)
    with pytest.warns(UserWarning, match=r"float32 constant of shape \(4,\)"):
        given(likelihood=lambda p, x: dist.Normal(x @ p["w"] + offsets, 1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given(likelihood=lambda p, x: dist.Normal(x @ p["w"] + np.asarray(offsets, np.float64), 1.0))


def masked(values, bad):
    return np.ma.masked_equal(np.array(values), bad)


LEVEL = Model({"b": dist.Normal(0.0, 10.0)}, lambda params, x: dist.Normal(params["b"], 1.0))


@pytest.mark.parametrize(
    ("x", "y", "weights"),
    [
        (None, masked([1.0, -999.0, 2.0], -999.0), None),
        (None, masked([1, -999, 2], -999), None),
        (masked([1.0, -999.0, 2.0], -999.0), np.ones(3), None),
        ({"a": masked([1, -999, 2], -999)}, np.ones(3), None),
        (None, np.ones(3), masked([1.0, -999.0, 2.0], -999.0)),
    ],
    ids=["y", "counts", "x", "a column", "weights"],
)
def test_what_is_masked_is_missing(x, y, weights):
    """The number under the mask was a datum: a mean of -330.9 from 1, --, 2."""
    with pytest.raises(CredoError, match=r"NaN or infinite value \(the first in row 1: nan\)"):
        LEVEL.given(x, y, weights=weights)


def test_masked_outcomes_are_dropped_and_a_mask_of_nothing_is_none():
    dropped = LEVEL.given(y=masked([1.0, -999.0, 2.0], -999.0), missing="drop")
    np.testing.assert_array_equal(dropped.y, [1.0, 2.0])
    whole = LEVEL.given(y=np.ma.masked_equal([1.0, 2.0], -1.0))
    assert type(whole.y) is np.ndarray
    np.testing.assert_array_equal(whole.y, [1.0, 2.0])


@pytest.mark.parametrize(
    "values",
    [np.array(["a", "b", "c"]), np.array(["2026-01-01"] * 3, "M8[D]"), np.array([1.0, "b", 2.0], object)],
    ids=["text", "dates", "objects"],
)
def test_what_is_masked_among_other_things_than_numbers(values):
    hidden = np.ma.array(values, mask=[False, True, False])
    for given in (lambda: LEVEL.given({"a": hidden}, np.ones(3)), lambda: LEVEL.given(y=hidden)):
        with pytest.raises(CredoError, match=r"1 missing value \(the first in row 1\)"):
            given()
    grouped = Model(
        {"b": dist.Normal(0.0, 1.0).expand([2])}, lambda p, x: dist.Normal(p["b"][x["a"]], 1.0), groups={"a": "b"}
    )
    with pytest.raises(CredoError, match=r"'a', a group, has 1 missing value \(the first in row 1"):
        grouped.given({"a": hidden}, np.ones(3))


def test_masked_batches_and_data_of_a_log_density():
    hidden = masked([1.0, -999.0, 2.0], -999.0)
    for loader in (
        credo.Loader([credo.Rows(np.ones(3), hidden)], in_memory=False),
        credo.Loader([(np.ones(3), hidden)]),
        credo.Loader(credo.Rows(np.ones(3), hidden), in_memory=False),
    ):
        with pytest.raises(CredoError, match=r"y has 1 NaN or infinite value \(the first in row 1: nan\)"):
            LEVEL.given(loader)
    model = Model.from_log_density(
        lambda params, data: -jnp.nansum((data - params["b"]) ** 2), {"b": dist.constraints.real}
    )
    np.testing.assert_array_equal(model.given(hidden).x, [1.0, np.nan, 2.0])


@pytest.mark.parametrize(
    "as_table", [lambda flags: flags, lambda flags: {"on": flags}, lambda f: pd.DataFrame({"on": f})]
)
def test_booleans_reach_the_likelihood_as_they_are(as_table):
    """As numbers, ~x is -1 or -2, which is true of every row."""
    flags = np.array([True, False, True])

    def likelihood(params, x):
        on = x if not isinstance(x, dict) else x["on"]
        return dist.Normal(jnp.where(~on, 0.0, params["b"]), 1.0)

    model = Model({"b": dist.Normal(0.0, 10.0)}, likelihood)
    posterior = credo.fit(model.given(as_table(flags), np.array([2.0, 0.0, 2.0])), credo.Exact())
    assert posterior.mean()["b"] == pytest.approx(4 / 2.01)
    assert posterior.predict(as_table(np.array([False, True]))).mean == pytest.approx([0.0, 4 / 2.01], abs=1e-3)
    slope = Model({"b": dist.Normal(0.0, 10.0)}, lambda params, x: dist.Normal(params["b"] * x, 1.0))
    assert slope.given(flags, np.ones(3)).x.dtype == bool
    assert credo.fit(slope.given(flags, np.ones(3)), credo.Laplace()).mean()["b"] == pytest.approx(2 / 2.01)


@pytest.mark.parametrize(
    "method",
    [credo.Exact(), credo.Laplace(), credo.ADVI(batch_size=10, max_steps=60), credo.MAP()],
    ids=lambda m: type(m).__name__,
)
def test_a_matrix_of_booleans_counts_as_numbers_do(method):
    """Its columns' ranges could not be taken, so that every method but Exact() raised."""
    flags = np.random.default_rng(0).uniform(size=(40, 2)) < 0.5
    y = flags @ np.array([1.0, -1.0])
    found, wanted = (credo.fit(Model(PRIOR, line).given(x, y), method) for x in (flags, flags.astype(float)))
    np.testing.assert_allclose(found.mean()["w"], wanted.mean()["w"], rtol=1e-6)
    np.testing.assert_allclose(found.predict(flags[:3]).mean, wanted.predict(1.0 * flags[:3]).mean, rtol=1e-6)


@pytest.mark.parametrize("likelihood", [lambda p, x: dist.Normal(p["w"][x], 1.0), lambda p, x: dist.Normal(-x, 1.0)])
def test_booleans_that_were_to_be_numbers_are_said(likelihood):
    with pytest.raises(CredoError, match=r"Booleans reach it as they are.*x.astype\(int\)"):
        Model(PRIOR, likelihood).given(np.array([True, False, True]), np.ones(3))


def test_a_sparse_matrix_is_told_to_be_an_array():
    with pytest.raises(CredoError, match=r"x is a sparse matrix of shape \(3, 3\).*toarray"):
        LEVEL.given(scipy.sparse.eye_array(3), np.ones(3))
    with pytest.raises(CredoError, match=r"y is a sparse matrix of shape \(3, 3\).*toarray"):
        LEVEL.given(y=scipy.sparse.eye_array(3), missing="drop")


def test_one_index_in_two_orders_is_no_pair():
    x = pd.DataFrame({"x": [1.0, 2.0, 3.0]}, index=["a", "b", "c"])
    y = pd.Series([1.0, 2.0, 3.0], index=["b", "a", "c"])
    model = Model({"b": dist.Normal(0.0, 1.0)}, lambda p, x: dist.Normal(p["b"] * x["x"], 1.0))
    with pytest.raises(CredoError, match=r"x and y have the same index in different orders \(row 0 is a and b\)"):
        model.given(x, y)
    with pytest.raises(CredoError, match="x and weights have the same index"):
        model.given(x, y.to_numpy(), weights=y)
    with pytest.raises(CredoError, match=r"x\['x'\] and x\['z'\] have the same index in different orders"):
        model.given({"x": x["x"], "z": y}, y.to_numpy())
    with pytest.raises(CredoError, match=r"x\['x'\] and y have the same index in different orders"):
        model.given({"x": x["x"]}, y)
    model.given(x, y.loc[x.index])
    model.given({"x": x["x"]}, y.loc[x.index])
    model.given(x, y.reset_index(drop=True))
    model.given(x, y.to_numpy())


def test_whole_numbers_beyond_64_bits_are_told():
    model = Model({"b": dist.Normal(0.0, 1.0)}, lambda p, x: dist.Normal(p["b"] * x, 1.0))
    with pytest.raises(CredoError, match="x holds 9223372036854775813"):
        model.given(np.full(2, 2**63 + 5, np.uint64), np.zeros(2))


@pytest.mark.parametrize(
    ("ids", "rows", "codes"),
    [
        ([0, 2, 1], 4, [0, 2, 1]),
        ([1, 2, 3], 3, [0, 1, 2]),
        ([0, 3, 1], 3, [0, 2, 1]),
        ([5_000_000_000, 7, 1001], 3, [2, 0, 1]),
    ],
    ids=["codes", "from one", "with a gap", "identifiers"],
)
def test_whole_numbers_are_codes_where_the_parameter_has_a_row_for_each(ids, rows, codes):
    model = Model(
        {"u": dist.Normal(0.0, 1.0).expand([rows])}, lambda p, x: dist.Normal(p["u"][x["g"]], 1.0), groups={"g": "u"}
    )
    target = model.given({"g": np.array(ids)}, np.zeros(3))
    np.testing.assert_array_equal(target.x["g"], codes)
    with pytest.raises(CredoError, match="has 5 levels but parameter 'u' has"):
        model.given({"g": np.array([*ids, 11, 12])}, np.zeros(5))


def test_a_row_of_no_weight_is_no_row_though_it_could_not_be():
    model = Model({"top": dist.HalfNormal(2.0)}, lambda p, x: dist.Uniform(jnp.zeros(len(x)), 2.0 + p["top"]))
    x, y = np.zeros(4), np.array([0.5, 1.5, 2.2, 50.0])
    whole = model.given(x, y, weights=[1, 1, 1, 0])
    three = model.given(x[:3], y[:3])
    density = jax.jit(jax.value_and_grad(lambda u, target: target.log_density(u)))
    for u in (-1.0, 0.5):
        with double():
            found = [density(jnp.array([u]), each.flat()) for each in (whole, three)]
        np.testing.assert_allclose(found[0][0], found[1][0])
        np.testing.assert_allclose(found[0][1], found[1][1])


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [({0: 1.0, 1: 2.0}, "weights is a dict, as of classes"), (np.zeros(3), "All weights are 0")],
)
def test_weights_that_are_none_of_rows(weights, sentence):
    model = Model({"b": dist.Normal(0.0, 1.0)}, lambda p, x: dist.Normal(p["b"] * x, 1.0))
    with pytest.raises(CredoError, match=sentence):
        model.given(np.ones(3), np.zeros(3), weights=weights)
