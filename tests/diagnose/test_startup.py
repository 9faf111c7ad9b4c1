"""Each way in which a start can fail is told apart, names its culprit and ends with a remedy."""

import re

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import ImproperUniform, constraints

from credo.adapters import from_numpyro
from credo.diagnose.startup import check_finite_start, explain
from credo.model.model import Model
from credo.status import CredoError

X = np.ones((4, 2))
Y = np.array([1.0, 2.0, 3.0, 4.0])
A = {"a": dist.Normal(0.0, 1.0)}
S = {"s": dist.HalfNormal(1.0)}


def rows(loc=0.0, scale=1.0):
    return dist.Normal(loc, scale).expand([4])


class Own(dist.Distribution):
    """log p(y) = log(1 + a) a row, and no parameters that are told."""

    arg_constraints, support = {}, constraints.real

    def __init__(self, a):
        self.a = a
        super().__init__((4,))

    def log_prob(self, value):
        return jnp.log(1 + self.a) + 0 * value


# (prior, likelihood, position, what the sentence says)
CASES = {
    "position": (A, lambda p, x: rows(), [np.nan], ["position is not finite at a", "finite starting values"]),
    "shape": (A, lambda p, x: rows(), [0.0, 1.0], [r"shape \(2,\)", r"shape \(1,\)"]),
    "a transform overflows": (S, lambda p, x: rows(), [1000.0], ["Parameter s is inf", "nearer the origin"]),
    "a scale underflows": (
        S,
        lambda p, x: rows(scale=p["s"]),
        [-800.0],
        ["nan in 4 of 4 rows", "row 0, y = 1", "scale is 0", "s has rounded to 0, the boundary of its support"],
    ),
    "a scale is negative": (
        A,
        lambda p, x: rows(scale=p["a"]),
        [-1.0],
        ["likelihood's scale is -1", "exp or softplus"],
    ),
    "a mean overflows": (
        A,
        lambda p, x: dist.Normal(jnp.exp(p["a"] * x[:, 0]), 1.0),
        [800.0],
        ["loc is inf", "exp or a division overflows"],
    ),
    "0/0": (A, lambda p, x: rows(p["a"] / p["a"]), [0.0], ["loc is nan", "Look for 0/0"]),
    "outside the support": (
        {"h": dist.HalfNormal(5.0)},
        lambda p, x: dist.Uniform(0.0, p["h"]).expand([4]),
        [np.log(2.5)],
        [r"-inf in 2 of 4 rows \(rows 2, 3\)", "row 2, y = 3, outside", "high = 2.5", "start="],
    ),
    "too far away": (A, lambda p, x: rows(1e200 * p["a"]), [1.0], [r"loc = 1e\+200", "heavier tails"]),
    "a density of the user's own": (A, lambda p, x: Own(p["a"]), [-2.0], [r"row 0, y = 1\. Look for 0/0"]),
    "a support of the user's own": (A, lambda p, x: Own(p["a"]), [-1.0], [r"row 0, y = 1\. The datum is impossible"]),
    "the prior of a child": (
        {"t": dist.Normal(0.0, 1.0), "th": lambda t: dist.Normal(0.0, jnp.exp(t)).expand([3])},
        lambda p, x: rows(),
        [-800.0, 1.0, 1.0, 1.0],
        [r"The prior of th\[0\]", "its scale is 0 there", "add a small constant"],
    ),
    "an unused branch": (
        {**A, "b": dist.Normal(0.0, 1.0)},
        lambda p, x: rows(p["b"] + jnp.where(p["a"] > 0, jnp.sqrt(p["a"]), 0.0)),
        [0.0, 0.5],
        ["gradient is nan with respect to a", "forward mode gives", "jnp.where did not take"],
    ),
    "no derivative": (
        {"v": dist.Normal(0.0, 1.0).expand([2])},
        lambda p, x: rows(jnp.sqrt(jnp.sum(p["v"] ** 2))),
        [0.0, 0.0],
        [r"gradient is nan with respect to v\[0\], v\[1\]", "no finite derivative", "small constant"],
    ),
    "nothing wrong": (A, lambda p, x: rows(p["a"]), [0.5], ["gradient are finite"]),
}


@pytest.mark.parametrize("name", CASES)
def test_explains(name):
    prior, likelihood, u, sentences = CASES[name]
    target, u = Model(prior, likelihood).given(X, Y), np.array(u)
    text = explain(target, u)
    for sentence in sentences:
        assert re.search(sentence, text), text
    assert text.endswith(".")
    if name == "nothing wrong":
        check_finite_start(target, u)
    elif name != "shape":
        with pytest.raises(CredoError, match=re.escape(text)):
            check_finite_start(target, u)


@pytest.mark.parametrize(("concentration", "said"), [(2.0, "-inf"), (0.5, "inf")])
def test_an_outcome_at_an_end_of_the_support(concentration, said):
    """No start and no tail helps where a share has been rounded to 0."""
    model = Model(A, lambda p, x: dist.Beta(concentration + 0 * p["a"], 2.0).expand([3]))
    text = explain(model.given(None, np.array([0.5, 0.0, 0.7])), np.zeros(1))
    assert f"of y is {said} in 1 of 3 rows (row 1)" in text
    assert "stands at an end of the likelihood's support" in text
    assert "inflated there" in text
    assert "impossible" not in text


def test_a_density_without_bound_within_the_support():
    class Pole(Own):
        def log_prob(self, value):
            return -jnp.log(jnp.abs(value - self.a))

    text = explain(Model(A, lambda p, x: Pole(p["a"])).given(X, Y), np.array([2.0]))
    assert "is inf in 1 of 4 rows (row 1)" in text
    assert "no bound there" in text


def test_a_bare_log_density():
    target = Model.from_log_density(lambda p: jnp.log(p["a"]), {"a": constraints.real}).given()
    assert "The log density is nan at a = -1" in explain(target, np.array([-1.0]))


def test_a_log_density_of_data_that_are_not_there():
    model = Model.from_log_density(lambda p, x: -jnp.sum((x["y"] - p["a"]) ** 2), {"a": constraints.real})
    target = model.given({"t": np.arange(4.0), "y": np.array([1.0, np.nan, 2.0, np.nan])})
    assert "and x['y'] are NaN in 2 of 4 entries, the first in row 1: leave these out" in explain(target, np.zeros(1))


def test_a_model_that_breaks():
    works = [True]

    def log_density(params):
        return params["a"] if works else params["b"]

    target = Model.from_log_density(log_density, {"a": constraints.real}).given()
    works.clear()  # given() asks for the density once, and would have said so itself
    assert "The model cannot be evaluated: KeyError: 'b'." in explain(target, np.array([0.0]))


def test_an_improper_prior():
    target = Model({"a": ImproperUniform(constraints.positive, (), ())}, lambda p, x: rows(p["a"])).given(X, Y)
    assert "Parameter a is inf" in explain(target, np.array([800.0]))


def test_a_parameter_without_elementwise_transform():
    """Gradient entries are named by unconstrained coordinate where no scalar corresponds."""
    target = Model({"p": dist.Dirichlet(np.ones(3))}, lambda p, x: rows(jnp.sqrt(jnp.abs(p["p"][0] - 1 / 3)))).given(
        X, Y
    )
    assert "p[0] (unconstrained)" in explain(target, np.zeros(2))


def test_several_outcomes():
    target = Model(A, lambda p, x: {"u": rows(p["a"]), "v": rows(scale=p["a"])}).given(X, {"u": Y, "v": Y})
    assert "log likelihood of v is nan" in explain(target, np.array([-1.0]))


def test_a_numpyro_model():
    def model(y):
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        numpyro.sample("obs", dist.Normal(0.0, tau), obs=y)

    assert "tau has rounded to the boundary of its support (tau = 0)" in explain(
        from_numpyro(model, Y).given(), np.array([-800.0])
    )


def test_a_covariance_that_is_none_is_told_apart_from_an_underflow():
    model = Model(
        {"s": dist.HalfNormal(1.0)},
        lambda params, x: dist.MultivariateNormal(jnp.zeros(2), (params["s"] - 2) * jnp.eye(2)),
    )
    said = explain(model.given(y=np.ones((4, 2))), np.zeros(1))
    assert "not positive definite" in said
    assert "underflows" not in said
