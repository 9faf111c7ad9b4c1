"""Log densities that numpyro has wrong, or not at all."""

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import optimize, stats

import credo
from credo.model.mended import log_prob, mended
from credo.precision import double

LOW, HIGH, SD = 0.5, 2.5, 0.7
Y = np.linspace(0.6, 2.4, 5)


@pytest.mark.parametrize("location", [-60.0, -18.0, -5.5, 0.0, 1.5, 4.0, 22.0, 60.0])
@pytest.mark.parametrize("ends", [(LOW, None), (None, HIGH), (LOW, HIGH)])
def test_truncated_normals_however_far_out(location, ends):
    """Log density and slope, mean and variance. Where location and bounds are 9 sds apart numpyro has +inf."""
    low, high = ends

    def exact(location):
        a, b = (
            sign * np.inf if end is None else (end - location) / SD for end, sign in zip(ends, (-1, 1), strict=True)
        )
        return stats.truncnorm(a, b, loc=location, scale=SD)

    with double():

        def found(location):
            return log_prob(dist.TruncatedNormal(location, SD, low=low, high=high).expand([5]).mask(True), Y).sum()

        value, slope = jax.value_and_grad(found)(location)
        law = mended(dist.TruncatedNormal(location, SD, low=low, high=high))
        moments = np.asarray(law.mean), np.asarray(law.variance)
    h = 1e-4
    differences = exact(location + h).logpdf(Y).sum() - exact(location - h).logpdf(Y).sum()
    np.testing.assert_allclose(value, exact(location).logpdf(Y).sum(), rtol=1e-9)
    np.testing.assert_allclose(slope, differences / (2 * h), rtol=1e-4, atol=1e-5)
    # JAX's log Φ has nine digits beyond 20 sds, of which differences leave fewer
    np.testing.assert_allclose(moments[0], exact(location).mean(), rtol=1e-7)
    np.testing.assert_allclose(moments[1], exact(location).var(), rtol=1e-3)


def test_a_fit_whose_location_lies_far_below_both_bounds():
    prior = {"m": dist.Normal(-9.0, 1.0)}
    model = credo.Model(prior, lambda p, x: dist.TruncatedNormal(p["m"], 0.5, low=0.0, high=1.0))
    posterior = credo.fit(model.given(y=np.array([0.1, 0.02])), credo.MAP(), start={"m": -8.0}, progress=False)

    def minus(m):
        law = stats.truncnorm(-m / 0.5, (1 - m) / 0.5, loc=m, scale=0.5)
        return -law.logpdf([0.1, 0.02]).sum() - stats.norm.logpdf(m, -9.0, 1.0)

    mode = optimize.minimize_scalar(minus, bounds=(-12.0, -6.0), method="bounded", options={"xatol": 1e-9}).x
    np.testing.assert_allclose(posterior.mean()["m"], mode, atol=1e-5)


def test_a_parameter_whose_prior_is_truncated_far_out():
    prior = {"x": dist.TruncatedNormal(-9.0, 1.0, low=0.0, high=1.0)}
    model = credo.Model(prior, lambda p, x: dist.Normal(p["x"], 0.2))
    posterior = credo.fit(model.given(y=np.array([0.3])), credo.Grid(), progress=False)
    x = np.linspace(0, 1, 20_001)
    p = np.exp(stats.truncnorm(9.0, 10.0, loc=-9.0).logpdf(x) + stats.norm.logpdf(0.3, x, 0.2))
    np.testing.assert_allclose(posterior.mean()["x"], np.sum(x * p) / np.sum(p), rtol=1e-3)


CENSORED = {
    "right": lambda inner, c: dist.RightCensoredDistribution(inner, c),
    "left": lambda inner, c: dist.LeftCensoredDistribution(inner, c),
    "interval": lambda inner, c: dist.IntervalCensoredDistribution(inner, c, 1 - c),
}


@pytest.mark.parametrize("kind", CENSORED)
@pytest.mark.parametrize(
    "law", [lambda a: dist.Weibull(a, 1.5), lambda a: dist.Normal(a, 2.0), lambda a: dist.LogNormal(a, 1.0)]
)
def test_censored_outcomes_of_an_expanded_law(kind, law):
    """numpyro raised NotImplementedError, since an expanded law has no distribution function."""
    c = np.array([0, 1, 0, 1])
    y = np.array([0.5, 1.0, 1.5, 3.0])
    y = np.stack([y, y + 1], axis=-1) if kind == "interval" else y

    def posterior(shape):
        model = credo.Model({"a": dist.LogNormal(0.0, 1.0)}, lambda p, x: CENSORED[kind](shape(law(p["a"])), x))
        return credo.fit(model.given(c, y), credo.Laplace(), progress=False)

    expanded, plain = posterior(lambda d: d.expand([4])), posterior(lambda d: d)
    np.testing.assert_allclose(expanded.kind.mean, plain.kind.mean, rtol=1e-7)
    np.testing.assert_allclose(expanded.predict(c).log_prob(y), plain.predict(c).log_prob(y), rtol=1e-7)


@pytest.mark.parametrize(("number", "y"), [(1, 0), (1, 1), (3, 0), (3, 2), (3, 3)])
@pytest.mark.parametrize("p", [0.0, 1e-100, 0.3, 1.0])
def test_probabilities_of_zero_and_one_have_derivatives(p, number, y):
    """numpyro's second ones are NaN, which a model of animals at sites without any could not be fitted for."""

    def of(p):
        return dist.Bernoulli(probs=p) if number == 1 else dist.Binomial(number, probs=p).mask(True)

    with double():
        value = log_prob(of(p), y)
        derivatives = [derivative(lambda p: log_prob(of(p), y))(p) for derivative in (jax.grad, jax.hessian)]
        np.testing.assert_allclose(value, of(p).log_prob(y), rtol=1e-12, atol=1e-12)
        if 0.0 < p < 1.0:
            np.testing.assert_allclose(derivatives[0], y / p - (number - y) / (1 - p), rtol=1e-9)
        assert np.isfinite(derivatives[0])
        assert not np.isnan(derivatives[1])


@pytest.mark.parametrize("y", [0, 2])
@pytest.mark.parametrize("rate", [0.0, 1.5])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_rates_of_zero_have_derivatives(rate, y, is_sparse):
    """No count has the log density −λ. One above zero is impossible there, and its slope counts for nothing."""
    counts = np.full(2, y)

    def found(rate):
        return log_prob(dist.Poisson(rate, is_sparse=is_sparse).expand([2]), counts)

    with double():
        value, slope, bend = (np.asarray(each(rate)) for each in (found, jax.jacrev(found), jax.hessian(found)))
    np.testing.assert_allclose(value, stats.poisson(rate).logpmf(counts), rtol=1e-12)
    if rate > 0 or y == 0:
        np.testing.assert_allclose(slope, y / max(rate, 1.0) - 1.0, rtol=1e-12)
        np.testing.assert_allclose(bend, -y / max(rate, 1.0) ** 2, rtol=1e-12)
    assert np.isfinite(slope).all()
    assert np.isfinite(bend).all()
