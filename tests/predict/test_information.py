"""Mutual information of outcome and parameters: against enumeration, quadrature and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import integrate, special, stats

import credo
from credo.linalg.dense import Dense
from credo.model.model import Model
from credo.posterior.kinds import Draws, Gaussian, Point
from credo.posterior.posterior import Posterior
from credo.status import CredoError, Verdict

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 2))
W = dist.Normal(0.0, 1.0).expand([2])
ROOT = np.array([[0.8, 0.0], [-0.3, 0.5]])
MEAN = np.array([0.7, -0.4])
LINES = MEAN @ X.T, np.sqrt(np.sum((X @ ROOT) ** 2, axis=1))  # mean and sd of each row's output


def posterior(kind, likelihood, y, prior=None):
    return Posterior(kind, Model(prior or {"w": W}, likelihood).given(X, y), verdict=Verdict("pass"))


def gaussian(likelihood, y=None):
    kind = Gaussian(MEAN, Dense.from_covariance(ROOT @ ROOT.T))
    return posterior(kind, likelihood, np.zeros(6, int) if y is None else y)


def draws(likelihood, number=40, y=None, dim=2):
    positions = np.random.default_rng(1).normal(size=(1, number, dim))
    log_weights = np.log(np.random.default_rng(2).dirichlet(np.ones(number)))[None]
    return posterior(Draws(positions, log_weights), likelihood, np.zeros(6, int) if y is None else y)


def binary(params, x):
    return dist.Bernoulli(logits=2.0 * (x @ params["w"]))


def three(params, x):
    z = x @ params["w"]
    return dist.Categorical(logits=jnp.stack([z, -2.0 * z, 0.0 * z + 0.5], axis=-1))


def known(params, x):
    return dist.Normal(x @ params["w"], 0.6)


def count(params, x):
    return dist.Poisson(jnp.exp(x @ params["w"]))


def binary_entropy(p):
    return special.entr(p) + special.entr(1 - p)


# classes ------------------------------------------------------------------------------------------------------------


def test_classes_by_enumeration_of_draws():
    for likelihood in (binary, three):
        p = draws(likelihood)
        z = p.kind.positions[0] @ X.T
        logits = np.stack([0 * z, 2 * z], -1) if likelihood is binary else np.stack([z, -2 * z, 0 * z + 0.5], -1)
        probs, weights = special.softmax(logits, axis=-1), p.weights
        entropy = special.entr(np.tensordot(weights, probs, 1)).sum(-1)
        expected = entropy - weights @ special.entr(probs).sum(-1)
        np.testing.assert_allclose(p.predict(X).mutual_information, expected, atol=1e-13)


@pytest.mark.parametrize("rule", [credo.Linearised(), credo.Quadrature()])
def test_a_binary_outcome_by_quadrature(rule):
    found = gaussian(binary).predict(X, rule).mutual_information
    for value, m, s in zip(found, 2 * LINES[0], 2 * LINES[1], strict=True):

        def mean(f, m=m, s=s):
            return integrate.quad(lambda z: f(special.expit(z)) * stats.norm.pdf(z, m, s), m - 9 * s, m + 9 * s)[0]

        assert abs(value - (binary_entropy(mean(lambda p: p)) - mean(binary_entropy))) < 1e-8


def test_three_classes_on_a_line_by_quadrature():
    found = gaussian(three).predict(X, credo.Quadrature()).mutual_information
    for value, m, s in zip(found, *LINES, strict=True):
        z = m + s * np.linspace(-9, 9, 4_001)
        w = stats.norm.pdf(z, m, s)
        probs = special.softmax(np.stack([z, -2 * z, 0 * z + 0.5], -1), axis=-1)
        entropy = special.entr(w @ probs / w.sum()).sum()
        assert abs(value - (entropy - w @ special.entr(probs).sum(-1) / w.sum())) < 1e-6


def test_many_draws_agree_with_quadrature():
    p = gaussian(binary)
    exact = p.predict(X, credo.Quadrature()).mutual_information
    found = p.predict(X, credo.MonteCarlo(4_000)).mutual_information
    np.testing.assert_allclose(found, exact, atol=0.005)  # evenly drawn: below one error of independent draws


def test_probit_is_near_the_integral_and_below_its_own_entropy():
    p = gaussian(binary)
    probit = p.predict(X, credo.Probit())
    np.testing.assert_allclose(probit.mutual_information, p.predict(X, credo.Quadrature()).mutual_information)
    assert np.all(probit.mutual_information <= binary_entropy(probit.probs))


def test_probit_claims_no_more_than_its_own_entropy_and_variance():
    """The formula looks at each logit alone, and of z and −z it is surer than the integral: its shares end there."""

    def opposed(params, x):
        z = 30.0 * (x @ params["w"])
        return dist.Categorical(logits=jnp.stack([z, -z], axis=-1))

    p = gaussian(opposed)
    probit, exact = p.predict(X, credo.Probit()), p.predict(X, credo.Quadrature())
    entropy = special.entr(probit.probs).sum(axis=-1)
    assert np.any(entropy < exact.mutual_information)
    np.testing.assert_allclose(probit.mutual_information, np.minimum(exact.mutual_information, entropy), rtol=1e-6)
    np.testing.assert_allclose(probit.epistemic, np.minimum(exact.epistemic, probit.variance), rtol=1e-6)


# numbers ------------------------------------------------------------------------------------------------------------


def test_a_normal_outcome_of_known_noise_in_closed_form():
    predictive = gaussian(known, np.zeros(6)).predict(X, credo.Linearised())
    expected = 0.5 * np.log(predictive.variance / predictive.aleatoric)
    np.testing.assert_allclose(predictive.mutual_information, expected, rtol=1e-12)
    np.testing.assert_allclose(expected, 0.5 * np.log1p((LINES[1] / 0.6) ** 2), rtol=1e-10)
    by_draws = gaussian(known, np.zeros(6)).predict(X).mutual_information
    # the inner figure is I + ½ (s²/v)(z² − 1): its error, and a share as small of 256 draws of the parameters
    error = LINES[1] ** 2 / (LINES[1] ** 2 + 0.36) * np.sqrt(0.5 * (1 / 512 + 1 / 256))
    assert np.all(np.abs(by_draws - expected) < 5 * error)


def test_outcomes_that_tell_the_draw_give_the_entropy_of_its_weight():
    kind = Draws(np.array([[[50.0, 0.0], [-50.0, 0.0]]]), np.log([[0.75, 0.25]]))
    found = posterior(kind, known, np.zeros(6)).predict(np.ones((1, 2))).mutual_information
    np.testing.assert_allclose(found, special.entr([0.75, 0.25]).sum(), rtol=1e-9)


@pytest.mark.parametrize("df", [None, 1.5])
def test_an_unknown_scale_by_quadrature(df):
    """y = m + s ε + σ e^{τ η} t: I = H(y) − E[H(y | θ)], the marginal by a sum over η."""

    def likelihood(params, x):
        scale = jnp.exp(params["log_scale"])
        return dist.Normal(x @ params["w"], scale) if df is None else dist.StudentT(df, x @ params["w"], scale)

    covariance = np.zeros((3, 3))
    covariance[:2, :2], covariance[2, 2] = ROOT @ ROOT.T, 0.3**2
    kind = Gaussian(np.array([*MEAN, -0.5]), Dense.from_covariance(covariance))
    p = posterior(kind, likelihood, np.zeros(6), {"w": W, "log_scale": dist.Normal(0.0, 1.0)})
    found = p.predict(X[:2], credo.Linearised()).mutual_information
    t = np.linspace(-7, 7, 113)
    weights = stats.norm.pdf(t) / stats.norm.pdf(t).sum()
    scales = np.exp(-0.5 + 0.3 * t)
    x = np.linspace(-16, 16, 801) if df else np.linspace(-5, 5, 801)  # the outcome less its mean is sinh(x)
    for value, s in zip(found, LINES[1], strict=False):
        if df is None:
            given = weights @ stats.norm(0, scales).entropy()
            density = weights @ stats.norm.pdf(np.sinh(x), 0, np.sqrt(s**2 + scales[:, None] ** 2))
        else:
            given = stats.t(df).entropy() + weights @ np.log(scales)
            density = sum(
                w * ((weights / scales) @ stats.t.pdf((np.sinh(x) - s * node) / scales[:, None], df))
                for node, w in zip(t, weights, strict=True)
            )
        marginal = np.sum(special.entr(density) * np.cosh(x)) * (x[1] - x[0])
        assert abs(value - (marginal - given)) < 1e-6


# counts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_drawn", [True, False])
def test_counts_by_enumeration(is_drawn):
    p = draws(count) if is_drawn else gaussian(count)
    found = p.predict(X, credo.MonteCarlo() if is_drawn else credo.Quadrature()).mutual_information
    k = np.arange(400)
    for row, value in enumerate(found):
        if is_drawn:
            z, weights = p.kind.positions[0] @ X[row], p.weights
        else:
            t = np.linspace(-7, 7, 281)
            z, weights = LINES[0][row] + LINES[1][row] * t, stats.norm.pdf(t) / stats.norm.pdf(t).sum()
        each = stats.poisson.pmf(k, np.exp(z)[:, None])
        mean = weights @ each
        gains = np.where(each > 0, each * np.log(np.where(each > 0, each / np.maximum(mean, 1e-300), 1.0)), 0.0)
        of_count = np.where(mean > 1e-200, weights @ gains / np.maximum(mean, 1e-200), 0.0)
        exact = mean @ of_count
        sd = np.sqrt(mean @ (of_count - exact) ** 2)
        assert abs(value - exact) < 4.5 * sd / np.sqrt(512)


# in general ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", [three, known, count])
def test_a_point_has_nothing_to_learn(likelihood):
    p = posterior(Point(MEAN), likelihood, np.zeros(6) if likelihood is known else np.zeros(6, int))
    np.testing.assert_allclose(p.predict(X).mutual_information, 0.0, atol=1e-12)
    np.testing.assert_allclose(p.predict(X, credo.Linearised()).mutual_information, 0.0, atol=1e-12)


def test_outcomes_by_name_and_chunks(monkeypatch):
    def likelihood(params, x):
        return {"a": binary(params, x), "b": count(params, x)}

    kind = draws(binary).kind
    y = {"a": np.zeros(6, int), "b": np.zeros(6, int)}
    p = posterior(kind, likelihood, y)
    found = p.predict(X).mutual_information
    np.testing.assert_allclose(found["a"], draws(binary).predict(X).mutual_information, atol=1e-13)
    np.testing.assert_array_equal(found["b"], p.predict(X).mutual_information["b"])  # one key, one answer
    rows = np.concatenate([X] * 300)
    monkeypatch.setattr("credo.predict.stream.MEMORY", 2**21)
    chunked = draws(binary).predict(rows)
    assert chunked._stream.chunk < len(rows)
    np.testing.assert_allclose(chunked.mutual_information[:6], found["a"], atol=1e-13)


def test_a_joint_outcome_is_refused():
    def likelihood(params, x):
        return dist.MultivariateNormal(x @ params["w"], jnp.eye(x.shape[0]))

    p = posterior(Point(MEAN), likelihood, np.zeros(6))
    with pytest.raises(CredoError, match="all rows together"):
        _ = p.predict(X).mutual_information


def test_nothing_is_left_in_float32():
    assert gaussian(binary).predict(X).mutual_information.dtype == np.float64
    assert not jax.config.jax_enable_x64


def test_outcomes_rounded_to_an_end_count_nothing():
    """Of a beta distribution with small parameters: many of its draws are one but for rounding, of density +inf."""
    model = credo.Model({"a": dist.Gamma(2.0, 20.0)}, lambda p, x: dist.Beta(jnp.broadcast_to(p["a"], x.shape), 0.05))
    posterior = credo.fit(model.given(np.zeros(5), np.full(5, 0.4)), credo.Laplace(), progress=False)
    information = posterior.predict(np.zeros(2), credo.MonteCarlo()).mutual_information
    assert np.all(np.isfinite(information) & (information > 0))
