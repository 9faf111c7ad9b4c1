"""Inputs that do not fit those of the model: a sentence each, before anything is computed."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.distributions import constraints

from credo import Loader, load
from credo.model.model import Model
from credo.posterior.kinds import Point
from credo.posterior.posterior import Posterior
from credo.status import CredoError, Verdict

X = np.random.default_rng(0).normal(size=(10, 3))
TABLE = pd.DataFrame({"a": X[:, 0], "k": np.arange(10)})


def matrix():
    model = Model({"w": dist.Normal(0.0, 1.0).expand([3])}, lambda q, x: dist.Normal(x @ q["w"], 1.0))
    return Posterior(Point(np.ones(3)), model.given(X, np.zeros(10)), verdict=Verdict("pass"))


def table():
    model = Model({"w": dist.Normal(0.0, 1.0)}, lambda q, x: dist.Normal(q["w"] * x["a"] + x["k"], 1.0))
    return Posterior(Point(np.ones(1)), model.given(TABLE, np.zeros(10)), verdict=Verdict("pass"))


def bare():
    model = Model.from_log_density(lambda q: -(q["x"] ** 2), {"x": constraints.real})
    return Posterior(Point(np.ones(1)), model.given(), verdict=Verdict("pass"))


@pytest.mark.parametrize(
    ("make", "x", "sentence"),
    [
        (matrix, X[:, :2], r"shape \(10, 2\).*fitted with x of shape \(10, 3\).*give \(M, 3\)"),
        (matrix, X[0], r"shape \(3,\)"),
        (matrix, X[:, :, None], r"shape \(10, 3, 1\)"),
        (matrix, np.where(X > 2, np.nan, X) * np.where(X[4, 1] == X, np.inf, 1), "NaN or infinite.*row 4"),
        (matrix, TABLE, r"a table with columns a, k and the model was fitted with an array.*x.to_numpy\(\)"),
        (matrix, X[:0], "no rows"),
        (matrix, np.array([["u", "v", "w"]]), "text or dates"),
        (table, X, "an array of shape"),
        (table, TABLE[["a"]], "lacks column 'k'; the model was fitted with a, k"),
        (table, {"a": X[:, 0], "k": np.arange(9)}, "differ in length"),
        (table, {"a": X[:2, 0], "k": np.array([0.0, 1.5])}, "whole numbers in the fit.*row 1: 1.5"),
        (bare, None, "no likelihood"),
    ],
)
def test_each_has_its_sentence(make, x, sentence):
    with pytest.raises(CredoError, match=sentence):
        make().predict(x)


def test_what_fits_is_taken():
    np.testing.assert_allclose(matrix().predict(np.ones((2, 3), int)).mean, 3.0)  # whole numbers where floats were
    np.testing.assert_allclose(matrix().predict(X.tolist()).mean, X.sum(axis=1))
    np.testing.assert_allclose(matrix().predict().mean, X.sum(axis=1))  # the inputs of the fit
    extra = TABLE.assign(note="text", k=TABLE["k"].astype(float))[["note", "k", "a"]]
    np.testing.assert_allclose(table().predict(extra).mean, X[:, 0] + np.arange(10))


@pytest.mark.parametrize(
    ("y", "sentence"),
    [
        (np.zeros(9), "an outcome for each row"),
        (np.full(10, np.nan), "NaN"),
        (np.zeros((10, 1)), "an outcome for each"),
    ],
)
def test_outcomes_are_checked(y, sentence):
    with pytest.raises(CredoError, match=sentence):
        matrix().predict(X).log_prob(y)


@pytest.mark.parametrize("p", [0.0, 1.0, -0.1, [0.5, 1.5]])
def test_levels_are_checked(p):
    with pytest.raises(CredoError, match="strictly between 0 and 1"):
        matrix().predict(X).quantile(p)
    with pytest.raises(CredoError, match="strictly between 0 and 1"):
        matrix().predict(X).interval(1.0)


def test_a_parameter_with_one_entry_a_row_is_pointed_out():
    model = Model({"w": dist.Normal(0.0, 1.0).expand([10])}, lambda q, x: dist.Normal(x[:, 0] + q["w"], 1.0))
    p = Posterior(Point(np.zeros(10)), model.given(X, np.zeros(10)), verdict=Verdict("pass"))
    np.testing.assert_allclose(p.predict(X).mean, X[:, 0])
    with pytest.raises(CredoError, match="one entry a row must be indexed by a column of x"):
        p.predict(X[:4])


def test_booleans_of_the_fit_stay_booleans():
    model = Model({"w": dist.Normal(0.0, 1.0)}, lambda q, x: dist.Normal(jnp.where(~x, 0.0, q["w"]), 1.0))
    posterior = Posterior(Point(np.ones(1)), model.given(np.arange(10) < 5, np.zeros(10)), verdict=Verdict("pass"))
    for x in (np.array([False, True]), np.array([0, 1]), np.array([0.0, 1.0])):
        np.testing.assert_array_equal(posterior.predict(x).mean, [0.0, 1.0])
    with pytest.raises(
        CredoError, match=r"held booleans in the fit and has other numbers now \(the first in row 1: 2\)"
    ):
        posterior.predict(np.array([0, 2]))


def test_masked_entries_are_missing():
    hidden = np.ma.masked_equal([1.0, -999.0], -999.0)
    with pytest.raises(CredoError, match=r"x\['a'\] has 1 NaN or infinite value"):
        table().predict({"a": hidden, "k": np.arange(2)})
    model = Model(
        {"w": dist.Normal(0.0, 1.0).expand([3])}, lambda q, x: dist.Normal(q["w"][x["g"]], 1.0), groups={"g": "w"}
    )
    posterior = Posterior(Point(np.ones(3)), model.given({"g": np.arange(3)}, np.zeros(3)), verdict=Verdict("pass"))
    with pytest.raises(CredoError, match=r"x\['g'\] has 1 missing values \(the first in row 1\)"):
        posterior.predict({"g": np.ma.masked_equal([1, -999], -999)})


def indexing(likelihood):
    model = Model({"a": dist.Normal(0.0, 1.0).expand([3])}, likelihood)
    k = np.array([0, 1, 2, 1])
    return Posterior(Point(np.arange(3.0)), model.given({"k": k}, np.zeros(4)), verdict=Verdict("pass"))


def test_an_index_past_the_rows_of_a_parameter_is_no_other_level(tmp_path):
    """JAX reads it as the last row."""
    posterior = indexing(lambda q, x: dist.Normal(q["a"][x["k"]], 1.0))
    posterior.save(tmp_path / "a.credo")
    loaded = load(tmp_path / "a.credo", posterior.target.model)  # without the data
    for each in (posterior, loaded):
        np.testing.assert_array_equal(each.predict({"k": np.array([2, 0])}).mean, [2.0, 0.0])
        with pytest.raises(CredoError, match=r"x\['k'\] indexes 'a' at 7 \(in row 1\).*0 to 2.*groups="):
            each.predict({"k": np.array([2, 7])})
        with pytest.raises(CredoError, match=r"x\['k'\] indexes 'a' at -4 \(in row 0\)"):
            each.predict({"k": np.array([-4, 1])})


@pytest.mark.parametrize(
    "x", [np.array([0.0, 1.0, 2.0]), np.array([[0.3, 0.0], [-1.2, 2.0], [2.1, 1.0]])], ids=["column", "one of two"]
)
def test_numbers_that_are_cast_to_indices_are_looked_at_too(x):
    model = Model(
        {"a": dist.Normal(0.0, 1.0).expand([3])},
        lambda q, x: dist.Normal(q["a"][x.reshape(len(x), -1)[:, -1].astype(int)], 1.0),
    )
    posterior = Posterior(Point(np.arange(3.0)), model.given(x, np.zeros(3)), verdict=Verdict("pass"))
    posterior.predict(x[::-1])
    with pytest.raises(CredoError, match="x indexes 'a' at 7"):
        posterior.predict(np.where(x == 2.0, 7.0, x))


@pytest.mark.parametrize(
    ("likelihood", "mean"),
    [
        (lambda q, x: dist.Normal(q["a"][jnp.minimum(x["k"], 2)], 1.0), 2.0),
        (lambda q, x: dist.Normal(q["a"][1] * x["k"], 1.0), 7.0),
        (lambda q, x: dist.Normal(q["a"].sum() * x["k"], 1.0), 21.0),
        (lambda q, x: dist.Normal(q["a"] @ jnp.ones(3) + x["k"], 1.0), 10.0),
    ],
    ids=["clamped by the user", "one row", "all rows", "all three rows"],
)
def test_a_number_that_indexes_nothing_may_be_any(likelihood, mean):
    np.testing.assert_allclose(indexing(likelihood).predict({"k": np.array([7])}).mean, mean)


def by_row():
    """Each row has an effect of its own, in the order of the rows."""
    prior = {"w": dist.Normal(0.0, 1.0), "effect": dist.Normal(0.0, 1.0).expand([10])}
    return prior, lambda q, x: dist.Normal(q["w"] * x + q["effect"], 1.0)


def by_column():
    prior = {"w": dist.Normal(0.0, 1.0), "effect": dist.Normal(0.0, 1.0).expand([10])}
    return prior, lambda q, x: dist.Normal(q["w"] * x["a"] + q["effect"][x["k"]], 1.0)


def centred():
    return {"w": dist.Normal(0.0, 1.0)}, lambda q, x: dist.Normal(q["w"] * (x - x.mean()), 1.0)


def lagged():
    return {"w": dist.Normal(0.0, 1.0)}, lambda q, x: dist.Normal(q["w"] * jnp.concatenate([jnp.zeros(1), x[:-1]]), 1.0)


def posterior_of(model, x):
    target = Model(*model()).given(x, np.zeros(10))
    return Posterior(Point(np.ones(target.dim)), target, verdict=Verdict("pass"))


def test_inputs_in_single_precision_are_looked_at_as_they_are_used():
    """A likelihood may refuse two precisions together, as convolutions do."""
    x = np.zeros((10, 3), np.float32)  # whole numbers, which may be indices

    def product(q, x):
        return dist.Normal(jax.lax.mul(x, jnp.broadcast_to(q["w"], x.shape)).sum(axis=1), 1.0)

    target = Model({"w": dist.Normal(0.0, 1.0).expand([3])}, product).given(x, np.zeros(10)).cast(np.float32)
    p = Posterior(Point(np.ones(3, np.float32)), target, verdict=Verdict("pass"))
    np.testing.assert_allclose(p.predict(x + 1.5).mean, 4.5)


def test_as_many_new_rows_are_no_others_unsaid():
    posterior = posterior_of(by_row, X[:, 0])
    posterior.predict()  # those of the fit, as are the next
    posterior.predict(X[:, 0])
    with pytest.warns(UserWarning, match="one entry for each of the 10 rows of the fit.*taken for the same ones"):
        posterior.predict(X[:, 1])
    with pytest.raises(CredoError, match="indexed by a column of x"):
        posterior.predict(X[:5, 1])
    posterior_of(by_column, {"a": X[:, 0], "k": np.arange(10)}).predict({"a": X[:, 1], "k": np.arange(10)})


def test_rows_that_change_with_those_beside_them_are_not_so_unsaid():
    with pytest.warns(UserWarning, match="changes with the rows beside it"):
        posterior_of(centred, X[:, 0]).predict(X[:3, 0])
    posterior_of(centred, X[:, 0]).predict()
    posterior_of(lagged, X[:, 0]).predict(X[:3, 0])  # a series is meant


def test_a_loader_is_no_array():
    model = Model({"w": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["w"] * x, 1.0))
    posterior = Posterior(Point(np.zeros(1)), model.given(X[:, 0], X[:, 1]).flat(), verdict=Verdict("pass", {}, ()))
    with pytest.raises(CredoError, match="x is a Loader: give the inputs of its batches"):
        posterior.predict(Loader([(X[:, 0], X[:, 1])]))
