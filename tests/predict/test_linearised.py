"""Linearised, probit and quadrature prediction: closed forms, sums over grids, and each other."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import credo
from credo.linalg.dense import Dense
from credo.linalg.lowrank import LowRank
from credo.model.model import Model
from credo.posterior.kinds import Draws, Gaussian, Point
from credo.posterior.posterior import Posterior
from credo.posterior.product import Product
from credo.precision import double
from credo.predict import by_layers
from credo.predict.linearised import Linearised, Quadrature
from credo.predict.monte_carlo import MonteCarlo
from credo.predict.probit import Probit
from credo.predict.stream import Stream
from credo.status import CredoError, Verdict

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 3))
X_NEW = RNG.normal(size=(8, 3))
NOISE = 0.7


def known_noise(params, x):
    return dist.Normal(x @ params["w"], NOISE)


def unknown_noise(params, x):
    return dist.Normal(x @ params["w"], params["sigma"])


def logistic(params, x):
    return dist.Bernoulli(logits=x @ params["w"])


def curved(params, x):
    return dist.Normal(jnp.tanh(x @ params["w"]) * 3.0, 0.5)


WEIGHTS = dist.Normal(0.0, 2.0).expand([3])


def posterior(kind, likelihood, y, prior=None):
    target = Model(prior or {"w": WEIGHTS}, likelihood).given(X, y)
    return Posterior(kind, target, verdict=Verdict("pass"))


@functools.cache
def linear():
    """Bayesian linear regression with known noise: (posterior, m_N, S_N) of Bishop (2006), equations 3.50 and 3.51."""
    y = X @ [1.0, -2.0, 0.5] + NOISE * RNG.normal(size=30)
    S = np.linalg.inv(np.eye(3) / 4.0 + X.T @ X / NOISE**2)
    m = S @ X.T @ y / NOISE**2
    return posterior(Gaussian(m, Dense.from_covariance(S)), known_noise, y), m, S


def test_linear_regression_in_closed_form():
    p, m, S = linear()
    predictive = p.predict(X_NEW, Linearised())
    variance = np.einsum("ij,jk,ik->i", X_NEW, S, X_NEW)
    exact = stats.norm(X_NEW @ m, np.sqrt(variance + NOISE**2))
    np.testing.assert_allclose(predictive.mean, X_NEW @ m, rtol=1e-10)
    np.testing.assert_allclose(predictive.epistemic, variance, rtol=1e-10)
    np.testing.assert_allclose(predictive.aleatoric, NOISE**2, rtol=1e-10)
    y = exact.mean() + np.linspace(-6, 6, 8)
    np.testing.assert_allclose(predictive.log_prob(y), exact.logpdf(y), rtol=1e-10)
    np.testing.assert_allclose(predictive.quantile([0.05, 0.5]), [exact.ppf(0.05), exact.ppf(0.5)], rtol=1e-8)
    low, high = predictive.interval(0.9)
    np.testing.assert_allclose(exact.cdf(high) - exact.cdf(low), 0.9, rtol=1e-9)


def test_samples_share_the_parameters_within_a_draw():
    """A sum over rows has the variance of the joint predictive, not that of independent rows."""
    p, m, S = linear()
    total = p.predict(X_NEW, Linearised()).sample(1, 20_000).sum(axis=1)
    ones = X_NEW.sum(axis=0)
    sd = np.sqrt(ones @ S @ ones + 8 * NOISE**2)
    assert abs(total.mean() - ones @ m) < 4 * sd / np.sqrt(20_000)
    assert abs(total.std() / sd - 1) < 4 / np.sqrt(2 * 20_000)


def test_random_noise_is_integrated_over():
    """Weights and log σ jointly Gaussian and correlated, against a sum over a fine grid."""
    A = RNG.normal(size=(4, 4)) * 0.4
    C, m = A @ A.T, np.array([0.5, -1.0, 0.2, -0.3])
    prior = {"w": WEIGHTS, "sigma": dist.LogNormal(0.0, 1.0)}
    predictive = posterior(Gaussian(m, Dense.from_covariance(C)), unknown_noise, X[:, 0], prior).predict(
        X_NEW, Linearised()
    )
    J = np.hstack([X_NEW, np.zeros((8, 1))])
    t = np.linspace(-9, 9, 2_001)
    weights = np.exp(-0.5 * t**2) / np.exp(-0.5 * t**2).sum()
    y = np.linspace(-3, 3, 8)
    for i in range(8):
        covariance = np.array([[J[i] @ C @ J[i], J[i] @ C[3]], [C[3] @ J[i], C[3, 3]]])
        slope = covariance[0, 1] / np.sqrt(C[3, 3])
        log_scale = m[3] + np.sqrt(C[3, 3]) * t
        location = J[i] @ m + slope * t
        sd = np.sqrt(covariance[0, 0] - slope**2 + np.exp(2 * log_scale))
        density = weights @ stats.norm.pdf(y[i], location, sd)
        assert abs(predictive.log_prob(y)[i] - np.log(density)) < 1e-8
        assert abs(predictive.aleatoric[i] - weights @ np.exp(2 * log_scale)) < 1e-10
        assert abs(predictive.epistemic[i] - covariance[0, 0]) < 1e-12
        level = weights @ stats.norm.cdf(predictive.quantile(0.8)[i], location, sd)
        assert abs(level - 0.8) < 1e-9


def test_outputs_that_are_not_linear_use_their_jacobian():
    m, S = np.array([0.3, -0.2, 0.1]), 0.01 * np.eye(3) + 0.005
    p = posterior(Gaussian(m, Dense.from_covariance(S)), curved, X[:, 0])
    predictive = p.predict(X_NEW, Linearised())
    J = 3.0 * (1 - np.tanh(X_NEW @ m) ** 2)[:, None] * X_NEW
    np.testing.assert_allclose(predictive.mean, 3.0 * np.tanh(X_NEW @ m), rtol=1e-12)
    np.testing.assert_allclose(predictive.epistemic, np.einsum("ij,jk,ik->i", J, S, J), rtol=1e-10)
    # draws of the linearised outputs, not of the curved ones
    np.testing.assert_allclose(predictive.sample(0, 20_000).std(axis=0), np.sqrt(predictive.variance), rtol=0.02)


def test_rows_that_cannot_be_cut_give_the_same():
    """A likelihood without x: J Σ Jᵀ by columns of S in place of rows of J."""
    A = RNG.normal(size=(3, 3))
    model = Model({"theta": WEIGHTS}, lambda params, x: dist.Normal(params["theta"], np.ones(3)))
    target = model.given(None, np.zeros(3))
    p = Posterior(Gaussian(np.arange(3.0), Dense.from_covariance(A @ A.T)), target, verdict=Verdict("pass"))
    predictive = p.predict(rule=Linearised())
    np.testing.assert_allclose(predictive.mean, np.arange(3.0), atol=1e-12)
    np.testing.assert_allclose(predictive.epistemic, np.diag(A @ A.T), rtol=1e-10)


@pytest.mark.parametrize("at_once", [1, 3])
def test_chunks_that_run_together_are_joined_in_order(at_once):
    rows = RNG.normal(size=(23, 2))
    with double():
        found = Stream(None, rows, 23, 4, at_once=at_once)(lambda law, rows: (jnp.exp(rows), rows))
    assert found[0].dtype == np.float64
    np.testing.assert_allclose(found[0], np.exp(rows), rtol=1e-14)
    np.testing.assert_array_equal(found[1], rows)


def test_the_scale_operator_does_not_matter():
    p, m, _ = linear()
    factor = RNG.normal(size=(3, 1))
    with double():
        low_rank = LowRank.from_factor(np.full(3, 0.3), factor)
    covariance = np.asarray(0.09 * np.eye(3) + factor @ factor.T)
    a = posterior(Gaussian(m, low_rank), known_noise, p.target.y).predict(X_NEW, Linearised())
    b = posterior(Gaussian(m, Dense.from_covariance(covariance)), known_noise, p.target.y).predict(X_NEW, Linearised())
    np.testing.assert_allclose(a.epistemic, b.epistemic, rtol=1e-10)


# classes and counts -------------------------------------------------------------------------------------------------


@functools.cache
def binary():
    A = RNG.normal(size=(3, 3))
    m, S = np.array([0.5, -1.0, 0.2]), A @ A.T
    return posterior(Gaussian(m, Dense.from_covariance(S)), logistic, (X[:, 0] > 0).astype(int)), m, S


@pytest.mark.slow
def test_the_three_rules_for_a_binary_outcome():
    p, m, S = binary()
    z, s = X_NEW @ m, np.sqrt(np.einsum("ij,jk,ik->i", X_NEW, S, X_NEW))
    exact = p.predict(X_NEW, Quadrature())
    draws = p.predict(X_NEW, MonteCarlo(4_096), key=3)
    probit = p.predict(X_NEW, Probit())
    t = np.linspace(-12, 12, 20_001)
    weights = stats.norm.pdf(t) * (t[1] - t[0])
    reference = (1 / (1 + np.exp(-(z[:, None] + s[:, None] * t)))) @ weights
    np.testing.assert_allclose(exact.mean, reference, atol=1e-10)
    np.testing.assert_array_equal(p.predict(X_NEW, Linearised()).mean, exact.mean)
    assert np.all(np.abs(draws.mean - exact.mean) < 5 * np.sqrt(exact.epistemic / 4_096))
    np.testing.assert_allclose(probit.mean, 1 / (1 + np.exp(-z / np.sqrt(1 + np.pi * s**2 / 8))), rtol=1e-12)
    assert np.max(np.abs(probit.mean - exact.mean)) < 0.02
    for predictive in (exact, draws, probit):
        np.testing.assert_allclose(predictive.variance, predictive.mean * (1 - predictive.mean), atol=1e-12)
        assert np.all(predictive.aleatoric >= 0)
        assert np.all(predictive.epistemic >= 0)
        both = np.exp(predictive.log_prob(np.zeros(8))) + np.exp(predictive.log_prob(np.ones(8)))
        np.testing.assert_allclose(both, 1.0, rtol=1e-10)
        np.testing.assert_array_equal(predictive.quantile(0.5), (predictive.mean > 0.5).astype(int))
        frequency = predictive.sample(2, 4_000).mean(axis=0)
        assert np.all(np.abs(frequency - predictive.mean) < 5 * np.sqrt(0.25 / 4_000))
        np.testing.assert_array_equal(predictive.probs, predictive.mean)


def test_classes():
    rng = np.random.default_rng(3)  # of its own: how far MacKay's formula is off depends on the numbers
    A = rng.normal(size=(9, 9)) * 0.5
    prior = {"w": dist.Normal(0.0, 1.0).expand([3, 3])}
    y = rng.integers(0, 3, size=30)
    kind = Gaussian(rng.normal(size=9), Dense.from_covariance(A @ A.T))
    p = posterior(kind, lambda params, x: dist.Categorical(logits=x @ params["w"]), y, prior)
    exact, probit, draws = (p.predict(X_NEW, rule) for rule in (Linearised(), Probit(), MonteCarlo(4_096)))
    assert np.all(np.abs(draws.probs - exact.probs) < 5 * np.sqrt(exact.epistemic / 4_096) + 1e-9)
    assert np.max(np.abs(probit.probs - exact.probs)) < 0.1  # each logit is looked at alone: no bound is known
    for predictive in (exact, probit, draws):
        assert predictive.mean.shape == predictive.epistemic.shape == (8, 3)
        np.testing.assert_allclose(predictive.probs.sum(axis=1), 1.0, rtol=1e-12)
        np.testing.assert_allclose(predictive.variance, predictive.mean * (1 - predictive.mean), atol=1e-12)
        chosen = np.take_along_axis(predictive.probs, y[:8, None], axis=1)[:, 0]
        np.testing.assert_allclose(predictive.log_prob(y[:8]), np.log(chosen), rtol=1e-9)
        with pytest.raises(CredoError, match="no order"):
            predictive.quantile(0.5)


def test_a_point_predicts_without_epistemic_uncertainty():
    y = (X[:, 0] > 0).astype(int)
    point = posterior(Point(np.array([0.5, -1.0, 0.2])), logistic, y)
    expected = 1 / (1 + np.exp(-X_NEW @ [0.5, -1.0, 0.2]))
    for rule in (MonteCarlo(), Linearised(), Probit()):
        predictive = point.predict(X_NEW, rule)
        np.testing.assert_allclose(predictive.mean, expected, rtol=1e-9)
        np.testing.assert_allclose(predictive.epistemic, 0.0, atol=1e-15)


@pytest.mark.parametrize(
    ("make", "rule", "sentence"),
    [
        (
            lambda: posterior(Draws(np.zeros((1, 5, 3))), logistic, (X[:, 0] > 0) * 1),
            Linearised(),
            "Gaussian posterior",
        ),
        (lambda: linear()[0], Probit(), "for classes"),
        (
            lambda: posterior(Point(np.zeros(3)), lambda q, x: dist.Laplace(x @ q["w"], 1.0), X[:, 0]),
            Quadrature(),
            "this one is not: use MonteCarlo",
        ),
        (lambda: linear()[0], Linearised, "rule is one of"),
        (lambda: linear()[0], "linearised", "rule is one of"),
    ],
)
def test_what_a_rule_cannot_do_it_says(make, rule, sentence):
    with pytest.raises(CredoError, match=sentence):
        make().predict(X_NEW, rule)


def test_settings_are_checked():
    with pytest.raises(CredoError, match="whole number from 8"):
        Quadrature(num_nodes=2)
    with pytest.raises(CredoError, match="whole number from 1"):
        MonteCarlo(num_draws=0)


def test_settings_of_jax_are_left_alone():
    linear()[0].predict(X_NEW, Linearised()).quantile(0.5)
    assert not jax.config.jax_enable_x64


@pytest.mark.parametrize("columns", [1, 2])
def test_a_product_of_normal_distributions_is_a_gaussian(columns):
    """Orthogonal columns have a conjugate answer by parts; the same rules take it as that of columns that lean."""
    x = np.linalg.qr(np.random.default_rng(0).normal(size=(30, columns)))[0]
    model = credo.Model(
        {"w": dist.Normal(0.5, 2.0).expand([columns])}, lambda params, x: dist.Normal(x @ params["w"], 0.3)
    )
    posterior = credo.fit(model.given(x, x.sum(axis=1)), credo.Exact())
    assert isinstance(posterior.kind, Product)
    gaussian = credo.fit(model.given(x, x.sum(axis=1)), credo.Laplace())
    for rule in (Linearised(), Quadrature()):
        found, known = posterior.predict(x, rule), gaussian.predict(x, rule)
        np.testing.assert_allclose(found.mean, known.mean, rtol=1e-6)
        np.testing.assert_allclose(found.variance, known.variance, rtol=1e-6)


# networks of a location and a scale ---------------------------------------------------------------------------------


NOISES = {
    "known": lambda: credo.nn.Gaussian(NOISE),
    "learned": lambda: credo.nn.Gaussian(dist.LogNormal(0.0, 1.0)),
    "of each row": credo.nn.HeteroscedasticGaussian,
}
DENSE, LAST = credo.laplace.Dense(), credo.laplace.LastLayer()
LOOKS = {  # structure, subset, and whether a dense root too is taken by layers
    "dense": credo.Laplace(structure=DENSE),
    "by layers": credo.Laplace(structure=DENSE),
    "last layer": credo.Laplace(structure=DENSE, subset=LAST),
    "diagonal": credo.Laplace(structure=credo.laplace.Diagonal()),
    "kronecker": credo.Laplace(structure=credo.laplace.Kronecker()),
    "low rank": credo.Laplace(structure=credo.laplace.LowRank(3)),
}


@pytest.mark.parametrize("noise", ["known", "learned", pytest.param("of each row", marks=pytest.mark.slow)])
@pytest.mark.parametrize("look", LOOKS)
def test_outputs_that_weights_do_not_change(look, noise, monkeypatch):
    if look == "by layers":
        monkeypatch.setattr(by_layers, "FEW", 1_000)
        monkeypatch.setattr(by_layers, "SMALL", 0)
    rng, num_outputs = np.random.default_rng(3), 2 if noise == "of each row" else 1
    shapes = {"a": (3, 4), "c": (4,), "w": (4, num_outputs), "d": (num_outputs,)}
    weights = {name: rng.normal(size=shape) / np.sqrt(shape[0]) for name, shape in shapes.items()}

    def outputs(p, x):
        found = jnp.tanh(x @ p["a"] + p["c"]) @ p["w"] + p["d"]
        return found if num_outputs == 2 else found[:, 0]

    model = credo.nn.BayesianNetwork(outputs, weights, head=NOISES[noise](), prior=credo.nn.Isotropic(1.0))
    method = dataclasses.replace(LOOKS[look], num_steps=0, tune=False)
    fitted = credo.fit(model.given(X, X[:, 0] + NOISE * rng.normal(size=30)), method, progress=False)
    kind, target = fitted.kind, fitted.target.flat()
    with double():

        def z(u):
            return target.outputs(target.constrain(u), X_NEW)

        u = jnp.asarray(kind.mean)
        mean, J = (np.asarray(each) for each in jax.jit(lambda u: (z(u), jax.jacrev(z)(u)))(u))
        S = np.asarray(jax.vmap(kind.scale.matvec, out_axes=1)(jnp.eye(target.dim)))
    covariance = (J @ S) @ np.swapaxes(J @ S, 1, 2)
    found = fitted.predict(X_NEW, rule=Linearised())
    np.testing.assert_allclose(found.mean, mean[:, 0], rtol=1e-10)
    np.testing.assert_allclose(found.epistemic, covariance[:, 0, 0], rtol=1e-8)
    np.testing.assert_allclose(found.aleatoric, np.exp(2 * mean[:, 1] + 2 * covariance[:, 1, 1]), rtol=1e-8)
    is_changed = noise == "of each row" or (noise == "learned" and look != "last layer")
    assert (covariance[:, 1, 1].max() > 0) == is_changed
