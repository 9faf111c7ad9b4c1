"""Scales that differ by orders of magnitude are said, and ordinary data earn no sentence."""

import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine

import credo
from credo import Model
from credo.diagnose.scales import (
    column_sentence,
    escape_sentence,
    outcome_sentence,
    parameter_sentence,
    size_sentence,
)
from credo.linalg.diagonal import Diagonal
from credo.posterior.kinds import Draws, Gaussian, Point

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
Y = X.sum(axis=1) + np.cos(np.arange(40.0))


def line(params, x):
    return dist.Normal(x @ params["w"], params["sd"])


MODEL = Model({"w": dist.Normal(0.0, 1.0).expand([3]), "sd": dist.HalfNormal(1.0)}, line)


@pytest.mark.parametrize("factor", [1e-5, 1e5])
@pytest.mark.parametrize("method", [credo.Laplace(), credo.MAP()])
def test_columns(factor, method):
    verdict = credo.fit(MODEL.given(X * np.array([1.0, factor, 1.0]), Y), method).verdict
    (sentence,) = [each for each in verdict.sentences if "differ in scale" in each]
    assert "The columns of x differ in scale by 1e+05" in sentence
    assert "standardise" in sentence


def test_parameters_of_a_table():
    """Its columns are not judged, since one may be an exposure; the coefficients are."""

    def by_name(params, x):
        return dist.Normal(params["a"] * x["small"] + params["b"] * x["large"], 1.0)

    model = Model({"a": dist.Normal(0.0, 1.0), "b": dist.Normal(0.0, 1.0)}, by_name)
    table = pd.DataFrame({"small": X[:, 0], "large": 1e6 * X[:, 1]})
    for method in (credo.Laplace(), credo.NUTS(chains=2, num_warmup=200, num_draws=300)):
        verdict = credo.fit(model.given(table, Y), method, progress=False).verdict
        (sentence,) = [each for each in verdict.sentences if "differ in scale" in each]
        assert "posterior sd" in sentence
        assert "in 'a'" in sentence
        assert "in 'b'" in sentence
    exact = credo.fit(model.given(table, Y), credo.Exact())
    assert not any("scale" in each for each in exact.verdict.sentences)


def test_an_exposure_is_no_coefficient():
    def rates(params, x):
        return dist.Poisson(x["exposure"] * np.exp(1.0) ** (params["a"] + params["b"] * x["z"]))

    model = Model({"a": dist.Normal(-9.0, 2.0), "b": dist.Normal(0.0, 1.0)}, rates)
    table = {"exposure": np.exp(RNG.uniform(0, 14, 40)), "z": X[:, 0]}
    posterior = credo.fit(model.given(table, RNG.poisson(1e-4 * table["exposure"])), credo.Laplace())
    assert not any("scale" in each for each in posterior.verdict.sentences)


@pytest.mark.parametrize("load", [load_diabetes, load_digits, load_iris, load_wine])
def test_ordinary_tables_as_they_are(load):
    assert column_sentence(load().data) is None


def test_a_table_that_wants_standardising():
    """Areas in square micrometres beside the standard errors of fractal dimensions."""
    x = load_breast_cancer().data
    assert "(column 23 ranges over 4.07e+03, column 19 over 0.0289)" in (column_sentence(x) or "")
    assert column_sentence((x - x.mean(axis=0)) / x.std(axis=0)) is None


@pytest.mark.parametrize(
    "x",
    [
        None,
        X,
        (RNG.uniform(size=(10_000, 5)) < [0.5, 0.1, 0.01, 0.001, 0.0]).astype(float),  # rare categories, and a constant
        {"a": X[:, 0], "b": 1e9 * X[:, 1]},
        np.stack([X[:, 0], np.full(40, 1e9)], axis=1),
    ],
)
def test_what_is_no_matter_of_scale(x):
    assert column_sentence(x) is None


def test_the_widest_and_the_narrowest_are_named():
    structure = MODEL.structure
    sd = np.array([1.0, 1e-3, 30.0, 1.0])
    sentence = parameter_sentence(Gaussian(np.zeros(4), Diagonal(sd)), structure)
    assert sentence is not None
    assert "3e+04" in sentence
    assert "posterior sd 30 in 'w', 0.001 in 'w'" in sentence
    draws = sd * RNG.normal(size=(2, 200, 4))
    assert "differ in scale" in (parameter_sentence(Draws(draws), structure) or "")
    assert parameter_sentence(Gaussian(np.zeros(4), Diagonal(np.minimum(sd, 5.0))), structure) is None
    assert parameter_sentence(Point(np.zeros(4)), structure) is None


def test_an_ordinary_fit_has_no_such_sentence():
    verdict = credo.fit(MODEL.given(X, Y), credo.Laplace()).verdict
    assert not any("scale" in each for each in verdict.sentences)


def test_outcomes_that_are_all_the_same_are_said_where_the_fit_fails():
    model = credo.Model(
        {"m": dist.Normal(0.0, 1.0), "s": dist.HalfNormal(1.0)}, lambda p, x: dist.Normal(p["m"], p["s"])
    )
    verdict = credo.fit(model.given(y=np.full(30, 3.0)), credo.MAP()).verdict
    assert any("All 30 outcomes are 3:" in sentence for sentence in verdict.sentences)


@pytest.mark.parametrize("y", [None, np.zeros(1), np.zeros(9, int), np.arange(9.0), np.full(9, np.nan)])
def test_outcomes_that_say_nothing_of_a_noise(y):
    assert outcome_sentence(y) is None


@pytest.mark.parametrize("method", [credo.Slice(), credo.RandomWalkMetropolis()], ids=repr)
def test_draws_that_went_where_numbers_end_are_no_posterior(method):
    """The chains come to rest at the largest float, where they look stationary."""
    model = credo.Model.from_log_density(lambda params: 0.0 * params["s"], {"s": dist.constraints.positive})
    verdict = credo.fit(model.given(), method, key=0, progress=False).verdict
    assert verdict.status == "failed"
    assert "Draws of 's' went on to where numbers end" in verdict.sentences[0]


@pytest.mark.parametrize(("place", "is_away"), [(500.0, True), (-500.0, False), (200.0, False)])
def test_a_positive_parameter_ends_where_it_is_large_and_not_next_to_zero(place, is_away):
    """Logarithms of a gamma variable of shape 0.001 go down to −7,000."""
    structure = Model({"s": dist.Gamma(0.001, 1.0)}, None).given().structure
    assert (escape_sentence(Draws(np.full((4, 100, 1), place)), structure) is not None) == is_away


@pytest.mark.parametrize("method", [credo.NUTS(), credo.Slice()], ids=repr)
def test_probabilities_that_are_one_but_for_rounding_do_not_pass(method):
    """Beta(3.01, 0.01): two thirds of it lie nearer to one than numbers do, and the sd came out 60 % too large."""
    model = Model({"p": dist.Beta(0.01, 0.01)}, lambda params, x: dist.Bernoulli(params["p"]).expand([3]))
    verdict = credo.fit(model.given(y=np.ones(3, int)), method, key=0, progress=False).verdict
    assert verdict.status != "pass"
    assert any("are one but for rounding" in sentence for sentence in verdict.sentences)


@pytest.mark.parametrize("y", [np.zeros(3, int), np.array([0, 1, 1])])
def test_probabilities_next_to_zero_are_no_matter(y):
    model = Model({"p": dist.Beta(0.01, 0.01)}, lambda params, x: dist.Bernoulli(params["p"]).expand([3]))
    posterior = credo.fit(model.given(y=y), credo.Slice(), key=0, progress=False)
    assert not any("rounding" in sentence for sentence in posterior.verdict.sentences)


def test_data_far_from_one_are_said():
    assert size_sentence(X, Y) is None
    assert size_sentence({"g": np.array(["a"] * 40), "n": np.zeros(40), "is": Y > 0}, None) is None
    assert "Half of y is above 7e+11" in (size_sentence(X, 7.1e11 * np.ones(40)) or "")
    assert "Half of x['t'] is below 2e-09" in (size_sentence({"t": 2e-9 * np.ones(40), "x": X}, Y) or "")
    for scale, is_said in ((1.0, False), (1e12, True)):
        verdict = credo.fit(MODEL.given(X, scale * Y), credo.Laplace(), progress=False).verdict
        assert any("in which it is of order 1" in sentence for sentence in verdict.sentences) == is_said
