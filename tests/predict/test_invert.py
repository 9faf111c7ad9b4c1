"""Quantiles invert distribution functions: against scipy's own, for whole arrays at once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

from credo.precision import double
from credo.predict.invert import invert
from credo.predict.outcome import cdf

LEVELS = (1e-6, 0.05, 0.5, 0.95, 1 - 1e-9)
CONTINUOUS = {
    "normal": (
        lambda: dist.Normal(jnp.array([0.0, 5.0, -1e6]), jnp.array([1.0, 1e-8, 3.0])),
        stats.norm([0, 5, -1e6], [1, 1e-8, 3]),
    ),
    "gamma": (lambda: dist.Gamma(jnp.array([2.0, 3.0, 1e4]), 2.0), stats.gamma([2, 3, 1e4], scale=0.5)),
    "inverse gamma": (
        lambda: dist.InverseGamma(jnp.array([2.5, 3.0, 300.0]), 2.0),
        stats.invgamma([2.5, 3, 300], scale=2),
    ),
    "chi square": (lambda: dist.Chi2(jnp.array([1.0, 6.0, 200.0])), stats.chi2([1, 6, 200])),
    "beta": (
        lambda: dist.Beta(jnp.array([0.3, 4.0, 900.0]), jnp.array([0.5, 2.0, 70.0])),
        stats.beta([0.3, 4, 900], [0.5, 2, 70]),
    ),
    "student": (lambda: dist.StudentT(jnp.array([0.8, 3.0, 200.0]), 1.0, 2.0), stats.t([0.8, 3, 200], 1, 2)),
    "cauchy, without moments": (lambda: dist.Cauchy(jnp.array([0.0, 1e3]), 2.0), stats.cauchy([0, 1e3], 2)),
    "cauchy in small units": (lambda: dist.Cauchy(0.0, jnp.array([1e-10, 1e-14])), stats.cauchy(0, [1e-10, 1e-14])),
    "lognormal": (lambda: dist.LogNormal(0.0, jnp.array([1.0, 6.0, 8.0])), stats.lognorm([1.0, 6.0, 8.0])),
    "logistic": (lambda: dist.Logistic(jnp.array([0.0, 3.0]), 0.1), stats.logistic([0, 3], 0.1)),
}
COUNTS = {
    "poisson": (lambda: dist.Poisson(jnp.array([0.01, 3.0, 1e5])), stats.poisson([0.01, 3, 1e5])),
    "binomial": (lambda: dist.BinomialProbs(jnp.array([0.5, 0.01, 0.999]), 10), stats.binom(10, [0.5, 0.01, 0.999])),
    "bernoulli": (lambda: dist.BernoulliProbs(jnp.array([0.5, 0.1, 0.9])), stats.bernoulli([0.5, 0.1, 0.9])),
    "geometric": (lambda: dist.GeometricProbs(jnp.array([0.5, 0.01])), stats.geom([0.5, 0.01], loc=-1)),
}


@functools.partial(jax.jit, static_argnames=("is_discrete",))
def quantile(d, p, is_discrete):
    mean, sd = jnp.broadcast_to(d.mean, d.batch_shape), jnp.broadcast_to(jnp.sqrt(d.variance), d.batch_shape)
    return invert(lambda y: cdf(d, y), p, mean, sd, is_discrete=is_discrete)


@pytest.mark.parametrize("name", list(CONTINUOUS))
def test_continuous_quantiles_have_their_probability(name):
    make, reference = CONTINUOUS[name]
    with double():
        found = [np.asarray(quantile(make(), p, is_discrete=False)) for p in LEVELS]
    sd = np.nan_to_num(reference.std(), nan=2.0)
    for p, q in zip(LEVELS, found, strict=True):
        # a bracket of sd / √p and its resolution, the spacing of floats, and what the function itself is good to
        error = 2e-12 * (sd / np.sqrt(min(p, 1 - p)) + np.abs(q)) + 4e-16 * np.abs(q)
        np.testing.assert_array_less(np.abs(reference.cdf(q) - p), reference.pdf(q) * error + 1e-11)


@pytest.mark.parametrize("spread", [12.0, 18.0])
def test_quantiles_lie_where_the_mass_is_however_far_the_moments(spread):
    """exp(σ z) has a median of 1 and an sd of e^(σ²), 3e62 at σ = 12: next to such a bracket the mass is a point."""
    with double():
        found = [float(quantile(dist.LogNormal(0.0, spread), p, is_discrete=False)) for p in LEVELS]
    np.testing.assert_allclose(stats.norm.cdf(np.log(found) / spread), LEVELS, rtol=1e-8)


@pytest.mark.parametrize("name", list(COUNTS))
def test_quantiles_of_counts_are_exact(name):
    make, reference = COUNTS[name]
    with double():
        found = [np.asarray(quantile(make(), p, is_discrete=True)) for p in LEVELS]
    for p, q in zip(LEVELS, found, strict=True):
        np.testing.assert_array_equal(q, reference.ppf(p))


@pytest.mark.parametrize("mean", [0.0, 0.3, 20.0, 240.0, 900.0])
def test_few_counts_and_many_have_their_probabilities(mean):
    """Sums of few terms and special functions meet at 32."""
    y = np.array([0.0, 1.0, 2.5, 9.0, 31.0, 32.0, 33.0, 40.0, 41.0, 300.0, 1_000.0])
    with double():
        np.testing.assert_allclose(cdf(dist.Poisson(mean), jnp.asarray(y)), stats.poisson(mean).cdf(y), atol=1e-12)
        for concentration in (0.05, 2.0, 1e4):
            expected = stats.nbinom(concentration, concentration / (concentration + mean)).cdf(y)
            for law in (
                dist.NegativeBinomial2(mean, concentration),
                dist.ZeroInflatedNegativeBinomial2(mean, concentration, gate=0.0),
                dist.NegativeBinomialProbs(concentration, mean / (concentration + mean)),
            ):
                np.testing.assert_allclose(cdf(law, jnp.asarray(y)), expected, atol=1e-9)


@pytest.mark.parametrize(
    "law", [dist.Poisson(np.float32(3.0)), dist.NegativeBinomial2(np.float32(3.0), np.float32(2.0))]
)
def test_a_count_that_is_no_number_hides_no_other(law):
    """Nor does one beyond the sum, nor single precision; of no rows there is nothing."""
    reference = stats.poisson(3.0) if isinstance(law, dist.Poisson) else stats.nbinom(2.0, 0.4)
    y = np.array([2.0, np.nan, 5.0, 1e4, np.inf])
    with double():
        np.testing.assert_allclose(cdf(law, jnp.asarray(y)), np.where(np.isnan(y), np.nan, reference.cdf(y)), atol=1e-7)
        assert cdf(law, jnp.zeros(0)).shape == (0,)


def test_limits_of_large_parameters():
    """Logarithms of gamma functions of 1e12 and more, subtracted, leave hardly a digit."""
    y, z = np.array([34.0, 50.0, 60.0]), np.array([-3.0, -1e-5, 0.0, 1.0])
    with double():
        for size in (1e12, 1e16):
            np.testing.assert_allclose(
                cdf(dist.NegativeBinomial2(50.0, size), jnp.asarray(y)), stats.poisson(50).cdf(y), atol=2e-11
            )
            np.testing.assert_allclose(
                cdf(dist.StudentT(size, 0.0, 1.0), jnp.asarray(z)), stats.norm.cdf(z), atol=2e-11
            )
        rare = cdf(dist.GammaPoisson(1e-3, 1e-20), jnp.array([33.0, 40.0]))
        np.testing.assert_allclose(rare, stats.nbinom(1e-3, 1e-20).cdf([33, 40]), atol=1e-12)


@pytest.mark.parametrize("rate", [1.5e6, 1e8, 1e14])
def test_millions_of_counts_have_their_probabilities(rate):
    y = np.floor(rate + np.sqrt(rate) * np.linspace(-4, 4, 9))
    with double():
        np.testing.assert_allclose(cdf(dist.Poisson(rate), jnp.asarray(y)), stats.poisson(rate).cdf(y), atol=1e-11)


@pytest.mark.slow
def test_distribution_functions_hold_outside_the_support():
    with double():
        assert cdf(dist.Poisson(2.0), jnp.array([-3.0, -0.5])).tolist() == [0.0, 0.0]
        assert cdf(dist.Exponential(2.0), jnp.array(-1.0)) == 0.0
        assert cdf(dist.BinomialProbs(0.3, 4), jnp.array([4.0, 9.0])).tolist() == [1.0, 1.0]
        assert cdf(dist.Beta(2.0, 2.0), jnp.array([-1.0, 2.0])).tolist() == [0.0, 1.0]
        inflated = cdf(dist.ZeroInflatedPoisson(0.2, 3.0), jnp.array([-1.0, 0.0, 2.0]))
        np.testing.assert_allclose(inflated, [0.0, *(0.2 + 0.8 * stats.poisson(3).cdf([0, 2]))], rtol=1e-12)
