"""Distribution functions, quantiles and densities of laws that are made of other laws, outside of their support too."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from numpyro.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    PowerTransform,
    SigmoidTransform,
    SoftplusTransform,
)
from scipy import stats

import credo
from credo.model.mended import mended
from credo.precision import double
from credo.predict.invert import invert
from credo.predict.outcome import cdf, log_prob

HALVES = dist.Categorical(jnp.full((3, 2), 0.5))
ONES = jnp.ones(3)


def moved(base, *transforms):
    return lambda: dist.TransformedDistribution(base(), list(transforms))


def mixture(*components):
    return lambda: dist.MixtureGeneral(HALVES, [make() for make in components], support=constraints.real)


def same(make):
    return lambda: dist.MixtureSameFamily(HALVES, make())


def half(one, other):
    return lambda y: 0.5 * (one(y) + other(y))


LAWS = {  # the law, of three rows, and its distribution function by scipy
    "shifted": (moved(lambda: dist.LogNormal(0 * ONES, 0.5), AffineTransform(0.3, 1.0)), stats.lognorm(0.5, 0.3).cdf),
    "turned round": (
        moved(lambda: dist.Gamma(2 * ONES, 1.0), AffineTransform(0.5, -2.0)),
        lambda y: stats.gamma(2).sf((0.5 - y) / 2),
    ),
    "an interval moved": (
        moved(lambda: dist.Beta(2 * ONES, 1.5), AffineTransform(-1.0, 5.0)),
        stats.beta(2, 1.5, -1, 5).cdf,
    ),
    "a shift of each row": (
        moved(lambda: dist.Exponential(ONES), AffineTransform(jnp.arange(3.0), 1.0)),
        lambda y: stats.expon(np.arange(3)).cdf(y),
    ),
    "a sign of each row": (
        moved(lambda: dist.Exponential(ONES), AffineTransform(0.0, jnp.array([1.0, -1.0, 2.0]))),
        lambda y: np.stack([stats.expon.cdf(y), stats.expon.sf(-y), stats.expon(scale=2).cdf(y)], -1),
    ),
    "that is said to be positive": (
        moved(
            lambda: dist.Exponential(ONES),
            AffineTransform(0.0, jnp.array([1.0, -1.0, 2.0]), domain=constraints.positive),
        ),
        lambda y: np.stack([stats.expon.cdf(y), stats.expon.sf(-y), stats.expon(scale=2).cdf(y)], -1),
    ),
    "through two": (
        moved(lambda: dist.Normal(0 * ONES, 1.0), ExpTransform(), AffineTransform(-2.0, 3.0)),
        stats.lognorm(1, -2, 3).cdf,
    ),
    "down through a sigmoid": (
        moved(lambda: dist.Normal(0 * ONES, 1.0), AffineTransform(-2.0, -3.0), SigmoidTransform()),
        lambda y: stats.norm.sf((np.log(np.clip(y, 0, 1) / (1 - np.clip(y, 0, 1))) + 2) / -3),
    ),
    "by one transform of several": (
        moved(
            lambda: dist.Normal(0 * ONES, 1.0),
            ComposeTransform([ExpTransform(), AffineTransform(-2.0, 3.0, domain=constraints.positive)]),
            AffineTransform(0.0, 2.0).inv,
        ),
        stats.lognorm(1, -1, 1.5).cdf,
    ),
    "turned twice": (
        moved(lambda: dist.Gamma(2 * ONES, 1.0), AffineTransform(0.5, -2.0), AffineTransform(0.0, -1.0)),
        stats.gamma(2, -0.5, 2).cdf,
    ),
    "through a power": (
        moved(lambda: dist.Gamma(2 * ONES, 1.0), PowerTransform(jnp.asarray(-1.0))),
        stats.invgamma(2).cdf,
    ),
    "through softplus": (
        moved(lambda: dist.Normal(0 * ONES, 1.0), SoftplusTransform()),
        lambda y: stats.norm.cdf(np.log(np.expm1(np.clip(y, 0, 700)))),
    ),
    "Levy": (lambda: dist.Levy(0.5 * ONES, 2.0), stats.levy(0.5, 2).cdf),
    "components of two supports": (
        mixture(lambda: dist.Exponential(ONES), lambda: dist.Normal(0 * ONES, 2.0)),
        half(stats.expon.cdf, stats.norm(0, 2).cdf),
    ),
    "of three": (
        mixture(moved(lambda: dist.Gamma(2 * ONES, 1.0), AffineTransform(1.0, 1.0)), lambda: dist.Beta(2 * ONES, 3.0)),
        half(stats.gamma(2, 1).cdf, stats.beta(2, 3).cdf),
    ),
    "of one family": (
        same(lambda: dist.Gamma(jnp.full((3, 2), 2.0), jnp.array([1.0, 3.0]))),
        half(stats.gamma(2).cdf, stats.gamma(2, 0, 1 / 3).cdf),
    ),
    "a mixture moved": (
        moved(same(lambda: dist.Gamma(jnp.full((3, 2), 2.0), jnp.array([1.0, 3.0]))), AffineTransform(1.0, 2.0)),
        half(stats.gamma(2, 1, 2).cdf, stats.gamma(2, 1, 2 / 3).cdf),
    ),
    "expanded": (
        lambda: dist.TransformedDistribution(dist.LogNormal(0.0, 0.5), AffineTransform(0.3, 1.0)).expand([3]),
        stats.lognorm(0.5, 0.3).cdf,
    ),
}
EVERYWHERE = np.array([-np.inf, -1e300, -30.0, -1.5, -0.3, 0.0, 0.2, 0.7, 1.4, 3.3, 12.0, 1e8, np.inf])


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize("name", LAWS)
def test_distribution_functions_are_right_everywhere(name):
    make, right = LAWS[name]
    with double():
        found = np.asarray(jax.jit(jax.vmap(lambda y: cdf(make(), jnp.full(3, y))))(EVERYWHERE))
    expected = np.broadcast_to([np.broadcast_to(right(y), 3) for y in EVERYWHERE], found.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("name", LAWS)
def test_quantiles_are_where_the_distribution_function_says(name):
    make, right = LAWS[name]
    levels, unknown = np.array([0.001, 0.05, 0.5, 0.95, 0.999]), jnp.full(3, jnp.nan)

    def quantile(p):
        return invert(lambda y: cdf(make(), y), p, unknown, unknown, is_discrete=False)

    with double():
        found = np.asarray(jax.jit(jax.vmap(quantile))(levels))
    reached = [np.diagonal(np.broadcast_to([right(y) for y in row], (3, 3))) if np.ndim(right(row[0])) else right(row)
               for row in found]  # fmt: skip
    np.testing.assert_allclose(reached, np.broadcast_to(levels[:, None], found.shape), rtol=1e-7)


@pytest.mark.parametrize(
    "broken",
    [lambda y: jnp.full_like(y, jnp.nan), lambda y: jnp.where(y < 1.0, jnp.nan, 0.9), lambda y: 0.4 + 0 * y],
    ids=["never a number", "nowhere below", "never reached"],
)
@pytest.mark.parametrize("is_discrete", [False, True])
def test_a_distribution_function_that_is_none_gives_no_quantile(broken, is_discrete):
    with double():
        known, start = invert(broken, 0.5, jnp.zeros(2), jnp.ones(2), is_discrete=is_discrete)
    assert np.isnan([known, start]).all()


def test_densities_are_zero_below_a_shift():
    def law(shifts):
        return dist.TransformedDistribution(dist.LogNormal(0.0, 0.5), AffineTransform(shifts, 1.0))

    with double():
        found = jax.jit(lambda shifts: log_prob(law(shifts), jnp.full(3, 1.4)))(np.array([0.3, 1.0, 2.0]))
    np.testing.assert_allclose(found, stats.lognorm(0.5, [0.3, 1.0, 2.0]).logpdf(1.4), rtol=1e-6)


X = np.arange(80.0)
RNG = np.random.default_rng(4)


def fitted(prior, likelihood, y):
    model = credo.Model(prior, likelihood)
    posterior = credo.fit(model.given(X, y), credo.NUTS(num_draws=250), key=1, progress=False)
    return posterior, {name: values.ravel() for name, values in posterior.draws.items()}


def test_a_shift_that_is_not_known():
    """Some draws of it lie above an outcome, which has a density by the others; no quantile lies below all of them."""

    def likelihood(p, x):
        return dist.TransformedDistribution(dist.LogNormal(p["m"] + 0 * x, 0.5), AffineTransform(p["shift"], 1.0))

    y = 0.3 + RNG.lognormal(0, 0.5, 80)
    prior = {"m": dist.Normal(0, 0.3), "shift": dist.Uniform(0, 0.4)}
    posterior, draws = fitted(prior, likelihood, y)
    predictive = posterior.predict(X[:3], credo.MonteCarlo(1_000))
    law = stats.lognorm(0.5, draws["shift"][:, None], np.exp(draws["m"])[:, None])
    outcomes = np.array([np.quantile(draws["shift"], 0.9) + 0.03, 0.5, 2.0])
    np.testing.assert_allclose(predictive.log_prob(outcomes), np.log(law.pdf(outcomes).mean(axis=0)), rtol=1e-6)
    low, high = predictive.interval(0.9)
    np.testing.assert_allclose(law.cdf(low).mean(axis=0), 0.05, rtol=1e-6)
    np.testing.assert_allclose(law.cdf(high).mean(axis=0), 0.95, rtol=1e-6)
    assert credo.decide(predictive, credo.decisions.Absolute()).action[0] == pytest.approx(predictive.quantile(0.5)[0])


class WithoutNumbers(dist.Normal):
    """A law whose distribution function is no number above two."""

    def cdf(self, value):
        return jnp.where(value > 2.0, jnp.nan, super().cdf(value))


def test_samples_stand_in_for_a_distribution_function_that_is_none():
    posterior, draws = fitted(
        {"m": dist.Normal(0.0, 1.0)}, lambda p, x: WithoutNumbers(p["m"] + 0 * x, 1.0), RNG.normal(0.4, 1.0, size=80)
    )
    found = posterior.predict(X[:2]).quantile([0.5, 0.99])
    expected = stats.norm(draws["m"].mean(), np.sqrt(1 + draws["m"].var())).ppf([0.5, 0.99])
    np.testing.assert_allclose(found[0], expected[0], atol=0.05)
    np.testing.assert_allclose(found[1], expected[1], atol=0.25)


def test_an_interval_of_components_with_two_supports():
    def likelihood(p, x):
        rates, zeros = jnp.exp(p["m"] + 0 * x), 0 * x
        halves = dist.Categorical(jnp.full((*x.shape, 2), 0.5))
        return dist.MixtureGeneral(halves, [dist.Exponential(rates), dist.Normal(zeros, 2.0)], support=constraints.real)

    y = np.where(RNG.uniform(size=80) < 0.5, RNG.exponential(size=80), 2 * RNG.normal(size=80))
    posterior, draws = fitted({"m": dist.Normal(0, 1)}, likelihood, y)
    predictive = posterior.predict(X[:2], credo.MonteCarlo(1_000))

    def below(value):
        return np.mean(0.5 * (stats.expon(0, np.exp(-draws["m"])).cdf(value) + stats.norm(0, 2).cdf(value)))

    low, high = predictive.interval(0.9)
    assert (below(low[0]), below(high[0])) == pytest.approx((0.05, 0.95), rel=1e-6)
    np.testing.assert_allclose(
        credo.diagnose.pit(predictive, np.array([-1.0, 2.0])), [below(-1.0), below(2.0)], rtol=1e-6
    )


@pytest.mark.parametrize(
    ("low", "high"),
    [(0.0, 5.0), (-30.0, 40.0), (8.0, 9.0), (-9.0, -8.0), (1.0, 1.0 + 2e-4), (1.0, 1.0 + 5e-5), (50.0, 1e4)],
)
def test_a_cauchy_law_between_two_bounds_has_moments(low, high):
    with double():
        law = mended(dist.TruncatedCauchy(1.0, 2.0, low=1.0 + 2 * low, high=1.0 + 2 * high))
        found = float(law.mean), float(law.variance)
    nodes, weights = np.polynomial.legendre.leggauss(200)
    t = np.arctan(low) + (nodes + 1) / 2 * np.arctan2(high - low, 1 + high * low)  # uniform under the law
    mean = weights @ np.tan(t) / 2
    assert found[0] == pytest.approx(1 + 2 * mean, rel=1e-8)
    assert found[1] == pytest.approx(4 * weights @ np.square(np.tan(t) - mean) / 2, rel=1e-6)


def test_quantiles_lie_in_the_support():
    """The one of a share is the first number above one without the bound."""
    model = credo.Model({"m": dist.Normal(0.0, 0.01)}, lambda p, x: dist.Beta(0.2 + 0 * x * p["m"], 0.3))
    y = RNG.beta(0.2, 0.3, size=80).clip(1e-12, 1 - 1e-12)
    q = credo.fit(model.given(X, y), credo.Laplace(), progress=False)
    found = q.predict(X[:2]).quantile([1e-6, 1 - 1e-5, 1 - 1e-6, 1 - 1e-7, 1 - 1e-9])
    assert ((found >= 0) & (found <= 1)).all()
