"""Laws that mix over a scale or a rate: right at any size of what they mix by, with their slopes."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import credo
from credo.model.compound import log_rising
from credo.model.mended import log_prob
from credo.precision import double

Y = np.array([0, 1, 4, 7, 12])
N = 15
ROWS = np.linspace(-2.0, 3.0, 5)
SHARES, COUNTS = np.array([0.2, 0.3, 0.5]), np.array([2, 0, 7])


def negative_binomial(x):
    return stats.nbinom(x, x / (x + 3.0)).logpmf(Y)


LAWS = {  # of a size x: the law, where it is looked at, what it comes to as x grows, and scipy's
    "student": (
        lambda x: dist.StudentT(x, 0.3, 1.7),
        ROWS,
        lambda: dist.Normal(0.3, 1.7),
        lambda x: stats.t(x, 0.3, 1.7).logpdf(ROWS),
    ),
    "by rate": (lambda x: dist.GammaPoisson(x, x / 3.0), Y, lambda: dist.Poisson(3.0), negative_binomial),
    "by mean": (lambda x: dist.NegativeBinomial2(3.0, x), Y, lambda: dist.Poisson(3.0), negative_binomial),
    "by probability": (
        lambda x: dist.NegativeBinomialProbs(x, 3.0 / (x + 3.0)),
        Y,
        lambda: dist.Poisson(3.0),
        negative_binomial,
    ),
    "by logit": (
        lambda x: dist.NegativeBinomialLogits(x, jnp.log(3.0 / x)),
        Y,
        lambda: dist.Poisson(3.0),
        negative_binomial,
    ),
    "inflated": (
        lambda x: dist.ZeroInflatedNegativeBinomial2(3.0, x, gate=0.2).mask(True),
        Y,
        lambda: dist.ZeroInflatedPoisson(0.2, 3.0),
        lambda x: np.logaddexp(np.where(Y == 0, np.log(0.2), -np.inf), np.log(0.8) + negative_binomial(x)),
    ),
    "beta": (
        lambda x: dist.BetaBinomial(0.4 * x, 0.6 * x, N),
        Y,
        lambda: dist.Binomial(N, 0.4),
        lambda x: stats.betabinom(N, 0.4 * x, 0.6 * x).logpmf(Y),
    ),
    "dirichlet": (
        lambda x: dist.DirichletMultinomial(x * SHARES, 9),
        COUNTS,
        lambda: dist.Multinomial(9, SHARES),
        lambda x: stats.dirichlet_multinomial(x * SHARES, 9).logpmf(COUNTS),
    ),
}


@pytest.mark.parametrize("name", LAWS)
def test_the_limit_is_reached_and_stays(name):
    law, y, limit, _ = LAWS[name]
    with double():
        expected = np.asarray(log_prob(limit(), y))
        for power in (13, 15, 17, 40, 100):
            found, slope = jax.jvp(lambda v: log_prob(law(jnp.exp(v)), y), (power * np.log(10.0),), (1.0,))
            np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)
            np.testing.assert_allclose(slope, 0.0, atol=1e-9)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("x", [0.02, 1.0, 19.0, 21.0, 400.0])
def test_laws_are_scipys_at_any_size(name, x):
    law, y, _, scipys = LAWS[name]
    with double():
        found, slope = jax.jvp(lambda x: log_prob(law(x), y), (x,), (1.0,))
    h = 1e-4 * x
    np.testing.assert_allclose(found, scipys(x), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(slope, (scipys(x + h) - scipys(x - h)) / (2 * h), rtol=1e-6, atol=1e-7)


def test_rising_factorials():
    """Of whole numbers a sum of logs; two halves one after the other are a whole: their product is x."""
    x = np.array([1e-3, 0.7, 5.0, 19.9, 20.1, 1e3, 1e9, 1e16])
    with double():
        for n in (0, 1, 4, 30):
            expected = np.sum([np.log(x + i) for i in range(n)], axis=0) if n else np.zeros(len(x))
            np.testing.assert_allclose(log_rising(x, n), expected, rtol=1e-13, atol=1e-13)
        halves = np.asarray(log_rising(x, 0.5)) + np.asarray(log_rising(x + 0.5, 0.5))
        np.testing.assert_allclose(halves, np.log(x), rtol=1e-13, atol=2e-13)


# by mpmath, of 50 digits: log p of y under NegativeBinomial2(1.1 y, 30), and its slope in the concentration
BY_COUNT = {1e6: (-13.16867202, 0.01235790802), 1e9: (-20.07641603, 0.01235815983)}


@pytest.mark.parametrize("y", BY_COUNT)
def test_counts_are_as_large_as_they_come(y):
    value, slope = BY_COUNT[y]

    def found(k):
        return jnp.stack([
            log_prob(dist.NegativeBinomial2(1.1 * y, k), y),
            log_prob(dist.NegativeBinomialLogits(k, jnp.log(1.1 * y / k)), y),
        ])  # fmt: skip

    np.testing.assert_allclose(jax.jvp(found, (30.0,), (1.0,)), [[value] * 2, [slope] * 2], rtol=2e-3)  # in float32
    with double():
        np.testing.assert_allclose(jax.jvp(found, (30.0,), (1.0,)), [[value] * 2, [slope] * 2], rtol=1e-6)
        of_shares = log_prob(dist.BetaBinomial(2.0, 30.0, 1_000_000_000), 333_333_333)
        np.testing.assert_allclose(of_shares, -26.7451815016, rtol=1e-11)


def test_a_robust_regression_finds_its_mode_and_its_evidence():
    """Degrees of freedom 1/a² of nearly normal data: in numpyro's density chains ended at a of 1e-9, far too high."""
    y = np.random.default_rng(0).normal(1.0, 2.0, 40)
    prior = {"m": dist.Normal(0, 5), "s": dist.HalfNormal(5), "a": dist.HalfNormal(1.0)}
    model = credo.Model(prior, lambda p, x: dist.StudentT(p["a"] ** -2, p["m"] + 0 * x, p["s"]))
    target = model.given(np.zeros(40), y)
    posterior = credo.fit(target, credo.NUTS(), key=0, progress=False)
    assert posterior.verdict.status == "pass"
    a, m, s = np.meshgrid(np.linspace(0.01, 3.0, 80), np.linspace(-1.0, 3.0, 60), np.linspace(0.5, 4.0, 60))
    height = stats.norm.logpdf(m, 0, 5) + stats.halfnorm.logpdf(s, 0, 5) + stats.halfnorm.logpdf(a)
    height += sum(stats.t.logpdf(each, a**-2, m, s) for each in y)
    weight = np.exp(height - height.max())
    expected = np.sum(a * weight) / np.sum(weight)
    assert abs(posterior.mean()["a"] - expected) < 5 * posterior.sd()["a"] / np.sqrt(400)
    evidence = height.max() + np.log(weight.sum() * (2.99 / 79) * (4.0 / 59) * (3.5 / 59))
    grid = credo.fit(target, credo.Grid(), progress=False)
    assert grid.log_evidence.value == pytest.approx(evidence, abs=0.1)
