"""The density of an approximation in the user's space: inside, outside, and where it cannot be asked."""

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import credo

BERNOULLI = credo.Model({"p": dist.Beta(2.0, 2.0)}, lambda params, x: dist.Bernoulli(params["p"]).expand([1]))
SEVERAL = credo.Model({"a": dist.Normal(0.0, 1.0), "c": dist.Dirichlet(np.ones(3))}, None)


@pytest.fixture(scope="module")
def beta():
    return credo.fit(BERNOULLI.given(y=np.array([1])), credo.Exact())


@pytest.fixture(scope="module")
def several():
    return credo.fit(SEVERAL.given(), credo.Laplace(), key=0)


def test_outside_of_the_support_it_is_minus_infinity(beta):
    np.testing.assert_allclose(beta.log_prob({"p": 0.4}), stats.beta(3, 2).logpdf(0.4))
    assert beta.log_prob({"p": 1.5}) == -np.inf
    np.testing.assert_allclose(
        beta.log_prob({"p": np.array([0.2, -0.1, 0.7])}), stats.beta(3, 2).logpdf([0.2, -0.1, 0.7])
    )
    assert np.isnan(beta.log_prob({"p": np.nan}))
    np.testing.assert_array_equal(beta.log_prob({"p": np.array([0.0, 1.0])}), -np.inf)  # no coordinate is there


def test_a_simplex_that_does_not_sum_to_one_is_outside(several):
    """Coordinates are found for it all the same, which are another simplex's."""
    assert several.log_prob({"a": 0.5, "c": np.array([0.2, 0.3, 0.6])}) == -np.inf
    draws = several.sample(0, 50)
    assert np.all(np.isfinite(several.log_prob(draws)))


@pytest.mark.parametrize(
    ("prior", "inside", "outside"),
    [
        (dist.LKJ(2, 1.0), [[1.0, 0.3], [0.3, 1.0]], [[1.0, 0.3], [0.5, 1.0]]),
        (dist.LKJCholesky(2, 1.0), [[1.0, 0.0], [0.6, 0.8]], [[1.0, 0.0], [0.6, 0.9]]),
        (dist.Wishart(4.0, scale_matrix=np.eye(2)), [[1.0, 0.3], [0.3, 1.0]], [[1.0, 0.3], [0.5, 1.0]]),
        (dist.ZeroSumNormal(1.0, event_shape=(3,)), [1.0, -1.0, 0.0], [1.0, -1.0, 1.0]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, dist.Distribution) else "",
)
def test_values_between_which_something_holds_are_outside_where_it_does_not(prior, inside, outside):
    posterior = credo.fit(credo.Model({"a": prior}, None).given(), credo.Laplace(), key=0)
    assert np.isfinite(posterior.log_prob({"a": np.array(inside)}))
    assert posterior.log_prob({"a": np.array(outside)}) == -np.inf


def test_parameters_of_other_names_or_shapes(several):
    inside = {"a": 0.5, "c": np.array([0.2, 0.3, 0.5])}
    assert np.isfinite(several.log_prob(inside))
    assert several.log_prob({**inside, "c": np.array([-0.2, 0.7, 0.5])}) == -np.inf
    for params, sentence in (
        ({"a": 0.5}, "The parameters lack 'c'"),
        ({"c": np.array([0.2, 0.3, 0.5])}, "The parameters lack 'a'"),
        (3.0, "params lacks 'a'"),
        ({**inside, "a": "x"}, "gives 'a' 'x'"),
        ({**inside, "a": np.ones(3)}, r"gives 'c' the shape \(3,\)"),
        ({**inside, "c": np.ones(2)}, r"gives 'c' the shape \(2,\)"),
    ):
        with pytest.raises(credo.CredoError, match=sentence):
            several.log_prob(params)


def test_levels_counts_and_keys(beta):
    predictive = beta.predict()
    for ask, sentence in (
        (lambda: beta.quantile("a"), "level lies in"),
        (lambda: beta.quantile(np.nan), "level lies in"),
        (lambda: credo.exact.NormalKnownVariance(0.0, 1.0, 1.0).predictive().sample("a", 3), "key is an int"),
        (lambda: predictive.sample("a", 3), "key is an int"),
        (lambda: predictive.sample(0, -3), "whole number from 0; got -3"),
        (lambda: predictive.sample(0, 3.0), "whole number from 0; got 3.0"),
        (lambda: predictive.quantile("a"), "strictly between 0 and 1"),
        (lambda: predictive.interval([0.5, 0.9]), "one number strictly"),
        (lambda: predictive.interval("a"), "one number strictly"),
    ):
        with pytest.raises(credo.CredoError, match=sentence):
            ask()


def test_lists_stand_for_arrays(several):
    c = [0.2, 0.3, 0.5]
    assert several.log_prob({"a": 0.5, "c": c}) == several.log_prob({"a": 0.5, "c": np.array(c)})
