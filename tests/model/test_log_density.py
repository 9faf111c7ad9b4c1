"""Models from a bare log density of constrained parameters."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy import stats
from numpyro.distributions import constraints

from credo.fitting import fit
from credo.methods.laplace import Laplace
from credo.model.model import Model
from credo.precision import double
from credo.status import CredoError


@jax.jit
def log_density(target, u):
    return target.log_density(u)


def value(target, u):
    with double():
        return float(log_density(target.flat(), np.asarray(u)))


def gamma(params):
    return stats.gamma.logpdf(params["rate"], 2.0)


def test_the_jacobian_is_added_here():
    target = Model.from_log_density(gamma, {"rate": constraints.positive}).given()
    expected = float(stats.gamma.logpdf(np.exp(0.3), 2.0)) + 0.3
    np.testing.assert_allclose(value(target, [0.3]), expected, rtol=1e-6)
    assert target.size == 0
    assert target.y is None


def test_dependent_supports():
    """low < middle < high, by supports that name earlier parameters."""

    def density(params):
        return -(params["high"] ** 2) + params["middle"] + jnp.sum(params["low"])

    model = Model.from_log_density(
        density,
        {
            "high": constraints.positive,
            "middle": lambda high: constraints.interval(0.0, high),
            "low": lambda middle: constraints.less_than(middle),
        },
        {"low": (2,)},
    )
    target = model.given()
    assert [leaf.shape for leaf in target.structure.leaves] == [(), (), (2,)]
    u = np.array([0.2, -0.5, 0.1, 0.7])
    with double():
        params = jax.jit(lambda u: target.flat().constrain(u))(u)
        jacobian = jax.jit(jax.jacobian(lambda u: jnp.hstack(jax.tree.leaves(target.flat().constrain(u)))))(u)
    params = jax.tree.map(np.asarray, params)
    assert 0 < params["middle"] < params["high"]
    assert np.all(params["low"] < params["middle"])
    expected = -(params["high"] ** 2) + params["middle"] + params["low"].sum() + np.linalg.slogdet(jacobian)[1]
    np.testing.assert_allclose(value(target, u), expected, rtol=1e-10)


def linear(params, data):
    return jnp.sum(stats.norm.logpdf(data["y"], data["x"] * params["slope"], 1.0))


def test_data_are_arguments():
    """log_density(params, data): other data of the same shapes compile nothing; given() looks once, abstractly."""
    count, compiled = [], []

    def density(params, data):
        count.append(None)
        return linear(params, data)

    model = Model.from_log_density(density, {"slope": constraints.real})
    x = np.arange(3.0)
    for factor in (1.0, 2.0):
        target = model.given({"x": x, "y": factor * x})
        expected = -0.5 * np.sum((factor * x - 0.5 * x) ** 2) - 1.5 * np.log(2 * np.pi)
        before = len(count)
        np.testing.assert_allclose(value(target, [0.5]), expected, rtol=1e-12)
        compiled.append(len(count) - before)
    assert compiled == [1, 0]


def test_what_it_cannot_do():
    target = Model.from_log_density(linear, {"slope": constraints.real}).given({"x": np.zeros(2), "y": np.zeros(2)})
    with double():
        with pytest.raises(CredoError, match="no likelihood apart from its prior"):
            target.log_likelihood({"slope": 0.0})
        with pytest.raises(CredoError, match="improper prior"):
            target.sample_prior(jax.random.key(0))
        with pytest.raises(CredoError, match="no likelihood to predict with"):
            target.likelihood_distribution({"slope": 0.0}, np.zeros(2))
    with pytest.raises(CredoError, match="no data to take minibatches of"):
        target.check_minibatch(1)
    with pytest.raises(CredoError, match="no likelihood to draw data from"):
        target.model.sample_prior_predictive(0, np.zeros(2), 3)


def test_init():
    model = Model.from_log_density(gamma, {"rate": constraints.positive}, init={"rate": 2})
    assert model.start["rate"].dtype == np.float64
    assert Model.from_log_density(gamma, {"rate": constraints.positive}).start is None


def test_derived():
    model = Model.from_log_density(gamma, {"rate": constraints.positive}, derived={"mean": lambda rate: 1 / rate})
    with double():
        assert float(model.report({"rate": jnp.asarray(4.0)})["mean"]) == 0.25


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"support": [constraints.positive]}, "support is a dict by parameter name"),
        ({"support": {"rate": constraints.positive}, "shape": (2,)}, "shape is a dict by parameter name"),
        ({"support": {"rate": "positive"}}, "A support must be a numpyro constraint"),
        ({"support": {"rate": constraints.positive}, "shape": {"rat": (2,)}}, "'rat' has a shape or an initial value"),
        ({"support": {"rate": constraints.positive}, "init": {"rat": 1.0}}, "'rat' has a shape or an initial value"),
        ({"support": {"rate": constraints.simplex}}, "needs shape with 1 axes"),
        ({"support": {"rate": lambda scale: constraints.positive}}, "'scale', which is not an earlier parameter"),
    ],
)
def test_refused(arguments, sentence):
    with pytest.raises(CredoError, match=sentence):
        Model.from_log_density(gamma, **arguments)


def with_data(params, data):
    return -jnp.sum((data - params["a"]) ** 2)


@pytest.mark.parametrize(
    ("density", "data", "sentence"),
    [
        (
            lambda p: jnp.stack([p["a"], p["a"]]),
            (),
            r"returned float64 of shape \(2,\): it must be one real number.*Sum",
        ),
        (lambda p: p["a"][None], (), r"of shape \(1,\)"),
        (lambda p: None, (), "returned a NoneType"),
        (lambda p: p["a"] > 0, (), "returned bool"),
        (lambda p: -(p["b"] ** 2), (), r"asks for 'b', which is not there: the model has parameters a"),
        (lambda p, d: d["z"] * p["a"], {"x": np.zeros(2)}, r"asks for 'z'.*the data have columns x"),
        (with_data, (), r"takes data, and given\(\) got none"),
        (lambda p: -((p["a"] - random.random()) ** 2), (), r"changes from one trace to the next \('\w+:f64"),
        (lambda p: -(p["a"] ** 2), np.zeros(2), r"the log density takes none: write it as log_density\(params, data\)"),
    ],
)
def test_a_density_that_cannot_be_one(density, data, sentence):
    model = Model.from_log_density(density, {"a": constraints.real})
    with pytest.raises(CredoError, match=sentence):
        model.given() if isinstance(data, tuple) else model.given(data)


@pytest.mark.parametrize("rest", [{"y": np.zeros(2)}, {"weights": np.ones(2)}])
def test_no_outcome_is_dropped_in_silence(rest):
    with pytest.raises(CredoError, match=r"takes its data as one argument.*given\({'x': x, 'y': y}\)"):
        Model.from_log_density(with_data, {"a": constraints.real}).given(np.zeros(2), **rest)


def test_data_with_a_default_may_be_left_out():
    model = Model.from_log_density(lambda p, scale=2.0: -((p["a"] / scale) ** 2), {"a": constraints.real})
    assert value(model.given(), [1.0]) == -0.25
    assert value(model.given(np.array(1.0)), [1.0]) == -1.0


def test_the_users_traceback_is_the_cause():
    def density(params):
        raise RuntimeError("out of paper")

    with pytest.raises(CredoError, match=r"raised RuntimeError \(out of paper\)") as caught:
        Model.from_log_density(density, {"a": constraints.real}).given()
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_function_is_asked_for():
    with pytest.raises(CredoError, match="The log density is a function"):
        Model.from_log_density(3.0, {"a": constraints.real})  # type: ignore[arg-type]


def test_data_are_known_by_their_shapes_alone_as_in_a_fit():
    """An array of NumPy may be read at a loop's counter; what Python must know of the data is asked for at once."""

    def in_a_loop(params, data):
        def add(total, i):
            return total - 0.5 * (params["m"] - data["y"][i]) ** 2, None

        return jax.lax.scan(add, 0.0, jnp.arange(3))[0]

    def by_length(params, data):
        return -0.5 * jnp.sum((params["m"] - data["y"][: int(data["n"])]) ** 2)

    def by_numpy(params, data):
        return -0.5 * jnp.sum((params["m"] - np.log(data["y"])) ** 2)

    data = {"y": np.array([1.0, 2.0, 6.0])}
    target = Model.from_log_density(in_a_loop, {"m": constraints.real}).given(data)
    assert fit(target, Laplace(), progress=False).mean()["m"] == pytest.approx(3.0)
    for log_density in (by_length, by_numpy):
        with pytest.raises(CredoError, match=r"value of a parameter, of data .*bind a number"):
            Model.from_log_density(log_density, {"m": constraints.real}).given({**data, "n": 2})
