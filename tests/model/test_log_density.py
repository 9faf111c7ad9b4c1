"""Models from a bare log density of constrained parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy import stats
from numpyro.distributions import constraints

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
    """log_density(params, data): other data of the same shapes trace nothing."""
    count = []

    def density(params, data):
        count.append(None)
        return linear(params, data)

    model = Model.from_log_density(density, {"slope": constraints.real})
    x = np.arange(3.0)
    for factor in (1.0, 2.0):
        target = model.given({"x": x, "y": factor * x})
        expected = -0.5 * np.sum((factor * x - 0.5 * x) ** 2) - 1.5 * np.log(2 * np.pi)
        np.testing.assert_allclose(value(target, [0.5]), expected, rtol=1e-12)
    assert len(count) == 1


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
