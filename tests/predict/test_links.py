"""Integrals over Gaussian outputs against scipy's adaptive quadrature."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import integrate, special, stats

from cases import first_of
from credo.precision import double
from credo.predict.links import LINKS, mackay
from credo.predict.outcome import cdf

GAUSSIANS = [(0.0, 0.0), (0.3, 0.01), (-2.0, 1.0), (1.0, 3.0), (5.0, 10.0), (-20.0, 30.0), (0.5, 1e4)]


def one_output(m, s):
    return jnp.array([[float(m)]]), jnp.array([[[float(s) ** 2]]])


def integral(function, m, s, points=()):
    """∫ function(z) N(z; m, s²) dz, cut where the integrand bends."""
    if s == 0:
        return float(function(m))
    lower, upper = m - 12 * s, m + 12 * s
    cuts = [lower, *sorted(p for p in {*points, m, m - s, m + s} if lower < p < upper), upper]
    parts = [
        integrate.quad(lambda z: function(z) * stats.norm.pdf(z, m, s), a, b, epsabs=1e-14, epsrel=1e-12, limit=200)[0]
        for a, b in itertools.pairwise(cuts)
    ]
    return sum(parts)


@jax.jit
def logistic_moments(mean, covariance):
    return LINKS["bernoulli"].moments(mean, covariance, None, 256)


@pytest.mark.parametrize(("m", "s"), GAUSSIANS)
def test_logistic_moments(m, s):
    with double():
        mean, aleatoric, epistemic = (float(v[0]) for v in logistic_moments(*one_output(m, s)))
    bends = (-40.0, -5.0, 0.0, 5.0, 40.0)
    assert abs(mean - integral(special.expit, m, s, bends)) < 1e-10
    assert abs(epistemic + mean**2 - integral(lambda z: special.expit(z) ** 2, m, s, bends)) < 1e-10
    assert abs(aleatoric + epistemic - mean * (1 - mean)) < 1e-14


@pytest.mark.parametrize(("m", "s"), GAUSSIANS)
def test_mackay_is_within_its_known_error(m, s):
    """MacKay (1992), figure 1: the approximation is within 0.02 of the integral, and exact for s = 0."""
    with double():
        exact = float(logistic_moments(*one_output(m, s))[0][0])
        approximate = float(mackay(*one_output(m, s), "bernoulli").probs[0])
    assert abs(approximate - exact) < (0.02 if s else 1e-14)


COUNTS = {
    "poisson": (
        np.exp,
        lambda y, rate: stats.poisson(rate),
        [(0.0, 0.5, 3), (0.0, 1.0, 0), (9.0, 1.0, 8000), (3.0, 0.01, 20)],
    ),
    "binomial": (special.expit, lambda y, p: stats.binom(50, p), [(0.0, 1.0, 20), (-1.0, 3.0, 50), (2.0, 0.1, 0)]),
    "exponential": (lambda z: np.exp(-z), lambda y, mean: stats.expon(scale=mean), [(0.0, 0.5, 1.0), (2.0, 1.5, 0.01)]),
}


@jax.jit
def poisson_at(mean, covariance, y):
    return at("poisson", mean, covariance, dist.Poisson(1.0), y)


@jax.jit
def binomial_at(mean, covariance, y):
    return at("binomial", mean, covariance, dist.BinomialLogits(jnp.zeros(1), 50), y)


@jax.jit
def exponential_at(mean, covariance, y):
    return at("exponential", mean, covariance, dist.Exponential(1.0), y)


def at(head, mean, covariance, d, y):
    """(log p(y), Pr(Y ≤ y)), each (1,)."""
    mixture, log_weights = LINKS[head].components(mean, covariance, d, y, 256)
    log_density = jax.nn.logsumexp(mixture.log_prob(y) + log_weights, axis=0)
    return log_density, jnp.sum(jnp.exp(log_weights) * cdf(mixture, y), axis=0)


AT = {"poisson": poisson_at, "binomial": binomial_at, "exponential": exponential_at}


@pytest.mark.parametrize(("head", "case"), [(head, case) for head, (_, _, cases) in COUNTS.items() for case in cases])
def test_densities_and_distribution_functions(head, case):
    """Narrow likelihoods too: 8,000 counts under a rate known to a factor of three, where nodes lie at the count."""
    inverse_link, family, _ = COUNTS[head]
    m, s, y = case
    with double():
        log_density, probability = AT[head](*one_output(m, s), jnp.array([float(y)]))
    mode = {"poisson": np.log(y + 0.5), "binomial": special.logit((y + 0.5) / 51)}.get(head, -np.log(y + 1e-9))
    width = {"poisson": 1 / np.sqrt(y + 0.5)}.get(head, 0.5)
    points = [mode + k * width for k in (-8, -3, 0, 3, 8)]

    def density(z):
        d = family(y, inverse_link(z))
        return d.pdf(y) if head == "exponential" else d.pmf(y)

    expected = integral(density, m, s, points)
    assert abs(float(log_density[0]) - np.log(expected)) < 1e-8
    assert abs(float(probability[0]) - integral(lambda z: family(y, inverse_link(z)).cdf(y), m, s, points)) < 1e-8


@pytest.mark.parametrize("head", COUNTS)
def test_moments_obey_the_law_of_total_variance(head):
    """E m(z), E v(z) and Var m(z), with m and v the mean and variance of the outcome given z."""
    inverse_link, family, _ = COUNTS[head]
    m, s = 0.3, 0.6
    with double():
        found = LINKS[head].moments(*one_output(m, s), dist.BinomialLogits(jnp.zeros(1), 50), 256)

    def average(function):
        return integral(lambda z: function(family(None, inverse_link(z))), m, s)

    expected = average(lambda d: d.mean())
    between = average(lambda d: d.mean() ** 2) - expected**2
    np.testing.assert_allclose(np.ravel(found), [expected, average(lambda d: d.var()), between], rtol=1e-8)


@pytest.mark.parametrize("head", ["poisson", "exponential"])
def test_an_outlier_is_scored_where_it_pulls_the_rate(head):
    """The integrand's mode lies 10 and 6 sds out, and nodes that reach 8.5 sds would miss much of it."""
    (inverse_link, family, _), y = COUNTS[head], 100.0
    with double():
        log_density, _ = AT[head](*one_output(0.0, 0.1), jnp.array([y]))
    z = np.linspace(-8, 8, 400_001)
    d = family(y, inverse_link(z))
    terms = stats.norm.logpdf(z, 0.0, 0.1) + (d.logpmf(y) if head == "poisson" else d.logpdf(y))
    assert float(log_density[0]) == pytest.approx(special.logsumexp(terms) + np.log(z[1] - z[0]), abs=1e-8)


def test_poisson_probabilities_sum_to_one_and_have_the_moments():
    mean, covariance = jnp.full((200, 1), 1.5), jnp.full((200, 1, 1), 0.49)
    y = jnp.arange(200.0)
    with double():
        p = np.exp(np.asarray(poisson_at(mean, covariance, y)[0]))
        expected, aleatoric, epistemic = (float(v[0]) for v in LINKS["poisson"].moments(mean, covariance, None, 256))
    assert abs(p.sum() - 1) < 1e-6  # beyond 200 lies a little of a log-normal tail
    np.testing.assert_allclose(p @ np.arange(200), expected, rtol=1e-4)
    np.testing.assert_allclose(p @ np.arange(200) ** 2 - expected**2, aleatoric + epistemic, rtol=1e-2)


@pytest.mark.parametrize("df", first_of([4.0, 1.0, 200.0]))
def test_t_density_as_a_scale_mixture(df):
    """Location and log scale correlated, against a sum over a fine grid of both."""
    m, C = np.array([[0.3, -0.2]]), np.array([[[0.25, 0.06], [0.06, 0.09]]])
    t = np.linspace(-9, 9, 601)
    weights = np.exp(-0.5 * np.add.outer(t**2, t**2))
    weights /= weights.sum()
    location = 0.3 + 0.2 * t[:, None] + np.sqrt(0.25 - 0.04) * t[None]
    scale = np.exp(-0.2 + 0.3 * t)[:, None]
    for y in (0.0, -4.0, 12.0):
        with double():
            log_density, probability = at("student_t", m, C, dist.StudentT(df, jnp.zeros(1), 1.0), jnp.array([y]))
        expected = np.sum(weights * stats.t.pdf(y, df, location, scale))
        assert abs(float(log_density[0]) - np.log(expected)) < 1e-6
        assert abs(float(probability[0]) - np.sum(weights * stats.t.cdf(y, df, location, scale))) < 1e-7


def test_an_outlier_of_a_t_of_known_scale():
    """The precision w that y pulls down has its mode at ν/(ν + y²), where its own density has fallen to e^−95."""
    m, C, y, df = np.zeros((1, 2)), np.array([[[0.01, 0.0], [0.0, 0.0]]]), 40.0, 100.0
    with double():
        log_density, _ = at("student_t", m, C, dist.StudentT(df, jnp.zeros(1), 1.0), jnp.array([y]))
    t = np.linspace(-9, 9, 2_001)
    terms = stats.norm.logpdf(t) + stats.t.logpdf(y, df, 0.1 * t)
    assert float(log_density[0]) == pytest.approx(special.logsumexp(terms) + np.log(t[1] - t[0]), abs=1e-6)


def test_a_t_has_a_mean_above_one_degree_of_freedom_and_a_variance_above_two():
    mean, C = jnp.array([[0.3, -0.2]] * 3), jnp.array([[[0.25, 0.06], [0.06, 0.09]]] * 3)
    with double():
        d = dist.StudentT(jnp.array([1.0, 2.0, 5.0]))
        location, aleatoric, epistemic = LINKS["student_t"].moments(mean, C, d, 256)
    np.testing.assert_allclose(location, [np.nan, 0.3, 0.3], rtol=1e-6)
    np.testing.assert_allclose(aleatoric[1:], [np.inf, 5 / 3 * np.exp(2 * (-0.2 + 0.09))], rtol=1e-6)
    np.testing.assert_allclose(epistemic, 0.25, rtol=1e-6)


# classes ------------------------------------------------------------------------------------------------------------


def class_moments(m, C, number=256):
    with double():
        return [np.asarray(v) for v in LINKS["categorical"].moments(jnp.asarray(m), jnp.asarray(C), None, number)]


def random_covariance(num_classes, seed):
    A = np.random.default_rng(seed).normal(size=(num_classes, num_classes))
    return A @ A.T


def test_two_classes_are_a_bernoulli_of_the_difference():
    m, C = np.array([[0.4, -0.7]]), random_covariance(2, 0)[None]
    contrast = np.array([1.0, -1.0])
    with double():
        expected = logistic_moments(m @ contrast[:, None], (contrast @ C[0] @ contrast).reshape(1, 1, 1))
    probs, aleatoric, epistemic = class_moments(m, C)
    np.testing.assert_allclose(probs[0, 0], expected[0][0], atol=1e-12)
    np.testing.assert_allclose(aleatoric[0], np.repeat(expected[1], 2), atol=1e-12)
    np.testing.assert_allclose(epistemic[0], np.repeat(expected[2], 2), atol=1e-12)


@pytest.mark.parametrize(("num_classes", "tolerance"), [(3, 1e-6), (6, 1e-3)])
def test_several_classes_against_many_draws(num_classes, tolerance):
    C = random_covariance(num_classes, num_classes)
    m = np.linspace(-1, 1, num_classes)[None]
    z = np.random.default_rng(1).multivariate_normal(m[0], C, size=400_000)
    p = special.softmax(z, axis=1)
    probs, aleatoric, epistemic = class_moments(m, C[None])
    error = tolerance + 5 * p.std(axis=0) / np.sqrt(len(p))  # five Monte Carlo standard errors of the reference
    np.testing.assert_array_less(np.abs(probs[0] - p.mean(axis=0)), error)
    np.testing.assert_allclose(aleatoric + epistemic, probs * (1 - probs), atol=1e-12)
    # what is added to all logits alike changes nothing
    shifted = class_moments(m + 3.0, C[None] + 2.0)
    np.testing.assert_allclose(shifted[0], probs, atol=1e-10)


def test_three_classes_against_a_fine_grid():
    C = random_covariance(3, 5)
    m = np.array([[0.5, 0.0, -1.0]])
    coarse, fine = class_moments(m, C[None]), class_moments(m, C[None], 900)
    for a, b in zip(coarse, fine, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)


def test_probit_of_classes_is_the_softmax_where_nothing_is_uncertain():
    m = np.array([[0.5, 0.0, -1.0]])
    with double():
        probs = np.asarray(mackay(jnp.asarray(m), jnp.zeros((1, 3, 3)), "categorical").probs)
        uncertain = np.asarray(mackay(jnp.asarray(m), 1e6 * jnp.eye(3)[None], "categorical").probs)
    np.testing.assert_allclose(probs, special.softmax(m, axis=1), atol=1e-14)
    np.testing.assert_allclose(uncertain, 1 / 3, atol=1e-2)


@pytest.mark.parametrize(("y", "off"), [(0.3, 1e-6), (20.0, 1e-6), (50.0, 1e-6), (-50.0, 1e-6), (1e3, 0.2)])
def test_an_outlier_is_scored_where_it_pulls_the_scale(y, off):
    """Its mode in the log scale lies up to sixty sds out, and nodes ended at 8.5: 125 nats too few at 50."""
    mean, covariance = np.array([[0.1, -0.1]]), np.array([[[0.02, 0.002], [0.002, 0.01]]])
    with double():
        d = dist.Normal(jnp.zeros(1), jnp.ones(1))
        law, log_weights = LINKS["normal"].components(mean, covariance, d, jnp.array([y]), 64)
        found = special.logsumexp(np.asarray(law.log_prob(y) + log_weights), axis=0)[0]
    t = np.linspace(-80, 80, 400_001)
    slope, scale = 0.002 / 0.1, np.exp(-0.1 + 0.1 * t)
    terms = stats.norm.logpdf(t) + stats.norm.logpdf(y, 0.1 + slope * t, np.sqrt(0.02 - slope**2 + scale**2))
    assert found == pytest.approx(special.logsumexp(terms) + np.log(t[1] - t[0]), abs=off)
    np.testing.assert_allclose(special.logsumexp(np.asarray(log_weights), axis=0), 0.0, atol=1e-9)
