"""Predicted means that a handful of draws makes."""

import warnings
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo.predict.few import warn_of_few_draws


def rates():
    """exp(a x), where a has an sd of 6 or so after one count at x = 0.01: lognormal at other x."""
    model = credo.Model({"a": dist.Normal(0.0, 6.0)}, lambda params, x: dist.Poisson(jnp.exp(params["a"] * x)))
    return credo.fit(model.given(np.array([0.01]), np.array([1])), credo.Laplace(), key=0, progress=False)


def test_a_mean_that_few_draws_make_is_told_by_row_and_once():
    predictive = rates().predict(np.array([0.0, 1.0, 0.1]))
    with pytest.warns(UserWarning, match=r"At 1 of 3 rows \(the first is row 1\) fewer than 26 of 256 draws make the"):
        assert predictive.mean[1] > 100
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert predictive.sd[1] > predictive.mean[1]


def is_told(weights, mean, epistemic) -> bool:
    law, outcome = SimpleNamespace(log_weights=np.log(weights)), SimpleNamespace(lower=0.0, num_classes=None)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warn_of_few_draws(law, outcome, (np.array([mean]), None, np.array([epistemic])))  # type: ignore[arg-type]
    return bool(found)


@pytest.mark.parametrize("unit", [0.01, 1.0, 100.0])
def test_how_many_draws_make_a_mean_has_no_unit(unit):
    """Of 1,000 whose means have an sd of 5 or of 1/2 of their mean, 38 or 800."""
    weights = np.full(1_000, 1e-3)
    assert is_told(weights, unit, (5.0 * unit) ** 2)
    assert not is_told(weights, unit, (0.5 * unit) ** 2)


def test_draws_of_next_to_no_weight_make_no_mean():
    """300 of 1,000 draws count, of which 25 make the mean: fewer than one in ten."""
    weights = np.where(np.arange(1_000) < 300, 1.0, 1e-9)
    assert is_told(weights / weights.sum(), 1.0, 11.0)


def test_quantiles_and_means_that_many_draws_make_are_not():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rates().predict(np.array([1.0])).quantile(0.5) < 10
        assert rates().predict(np.array([0.1, 0.15])).mean == pytest.approx(np.exp([0.18, 0.405]), rel=0.1)


def test_outcomes_of_either_sign_have_no_such_mean():
    prior = {"a": dist.Normal(0.0, 1.0)}
    model = credo.Model(prior, lambda params, x: dist.Normal(params["a"] * x, 1.0))
    posterior = credo.fit(model.given(np.ones(3), np.zeros(3)), credo.NUTS(num_draws=500), key=0, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert abs(posterior.predict(np.array([1e4])).mean[0]) < 1e4
