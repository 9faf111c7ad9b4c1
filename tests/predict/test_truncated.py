"""Quantiles, intervals and PIT of truncated outcomes, however far their location is from what is left of them."""

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import credo
from credo.precision import double
from credo.predict.outcome import cdf

LOW, HIGH, SD = 0.5, 2.5, 0.7


@pytest.mark.parametrize("location", [-18.0, -5.0, 0.0, 1.5, 4.0, 22.0])
@pytest.mark.parametrize("ends", [(LOW, None), (None, HIGH), (LOW, HIGH)])
def test_distribution_functions_far_out(location, ends):
    low, high = ends
    y = np.linspace(LOW, HIGH, 9)
    a, b = (sign * np.inf if end is None else (end - location) / SD for end, sign in zip(ends, (-1, 1), strict=True))
    expected = stats.truncnorm(a, b, loc=location, scale=SD).cdf(y)
    with double():
        found = np.asarray(cdf(dist.TruncatedNormal(location, SD, low=low, high=high), y))
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-12)


@pytest.mark.slow
def test_predictions_at_a_bound_and_of_any_number_of_rows():
    """numpyro's own function is 1 at 8 sds below the bound and NaN at 9: medians stood at the bound."""
    x = np.linspace(-1, 3, 60)
    location = -2 + 2 * x
    y = stats.truncnorm(-location / 0.5, np.inf, loc=location, scale=0.5).rvs(random_state=0)
    prior = {"a": dist.Normal(0.0, 5.0), "b": dist.Normal(0.0, 5.0)}
    model = credo.Model(prior, lambda p, x: dist.TruncatedNormal(p["a"] + p["b"] * x, 0.5, low=0.0))
    posterior = credo.fit(model.given(x, y), credo.Laplace(), key=0, progress=False)
    for number in (1, 2, 3):
        rows = np.array([-1.0, 2.0, 0.0])[:number]
        predictive = posterior.predict(rows)
        draws = np.asarray(predictive.sample(0, 20_000))
        np.testing.assert_allclose(predictive.quantile(0.5), np.median(draws, axis=0), rtol=0.05)
        assert np.all(np.isfinite(credo.diagnose.pit(predictive, np.full(number, 0.05))))


@pytest.mark.parametrize("side", [dist.LeftCensoredDistribution, dist.RightCensoredDistribution])
def test_what_is_foretold_is_not_censored(side):
    """Moments and quantiles are those of the law behind, exactly."""
    x = np.linspace(0.5, 2.0, 9)
    priors = {"a": dist.Normal(0.0, 1.0)}

    def lifetime(params, x):
        return dist.Weibull(x, 1.5 + 0.0 * params["a"])

    plain = credo.Model(priors, lifetime).given(x, x)
    censored = credo.Model(priors, lambda params, x: side(lifetime(params, x), np.zeros(x.shape, int))).given(x, x)
    expected, found = (credo.fit(each, credo.MAP(), progress=False).predict(x) for each in (plain, censored))
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-10)
    np.testing.assert_allclose(found.sd, expected.sd, rtol=1e-10)
    np.testing.assert_allclose(found.quantile([0.05, 0.999]), expected.quantile([0.05, 0.999]), rtol=1e-8)
