"""Several columns a row: exact where they are linear with known noise, against many draws elsewhere."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import special, stats

from credo.linalg.dense import Dense
from credo.model.model import Model
from credo.posterior.kinds import Gaussian
from credo.posterior.posterior import Posterior
from credo.predict.linearised import Linearised, Quadrature
from credo.predict.monte_carlo import MonteCarlo
from credo.predict.probit import Probit
from credo.status import CredoError, Verdict

RNG = np.random.default_rng(1)
X, X_NEW = RNG.normal(size=(20, 2)), RNG.normal(size=(6, 2))
Y = X @ [[1.0, -1.0, 0.5], [0.3, 0.7, -2.0]] + 0.3 * RNG.normal(size=(20, 3))
NOISE = 0.4
WEIGHTS = dist.Normal(0.0, 1.0).expand([2, 3])


def known(params, x):
    return dist.Normal(x @ params["w"], NOISE)


def known_events(params, x):
    return known(params, x).to_event(1)


def learned(params, x):
    return dist.Normal(x @ params["w"], params["sigma"])


def by_input(params, x):
    return dist.Normal(x @ params["w"], jnp.exp(0.3 * x @ params["w"][:, ::-1])).to_event(1)


def labels(params, x):
    return dist.Bernoulli(logits=x @ params["w"])


def posterior(likelihood, y=Y, **others):
    """(a posterior of the weights and ``others``, its mean and covariance)."""
    target = Model({**others, "w": WEIGHTS}, likelihood).given(X, y)
    rng = np.random.default_rng(target.dim)
    root, mean = rng.normal(size=(target.dim, target.dim)), rng.normal(size=target.dim)
    covariance = 0.09 * (root @ root.T / target.dim + 0.1 * np.eye(target.dim))
    return (
        Posterior(Gaussian(mean, Dense.from_covariance(covariance)), target, verdict=Verdict("pass")),
        mean,
        covariance,
    )


@pytest.mark.parametrize("likelihood", [known, known_events])
def test_columns_with_known_noise_are_a_normal_vector(likelihood):
    fitted, mean, covariance = posterior(likelihood)
    jacobian = np.stack([np.kron(row[None], np.eye(3)) for row in X_NEW])
    location, epistemic = jacobian @ mean, jacobian @ covariance @ jacobian.transpose(0, 2, 1)
    variance = np.diagonal(epistemic, axis1=1, axis2=2) + NOISE**2
    predictive = fitted.predict(X_NEW, Linearised())
    np.testing.assert_allclose(predictive.mean, location, atol=1e-12)
    np.testing.assert_allclose(predictive.variance, variance, rtol=1e-12)
    y = location + RNG.normal(size=location.shape)
    laws = [stats.multivariate_normal(m, C + NOISE**2 * np.eye(3)) for m, C in zip(location, epistemic, strict=True)]
    np.testing.assert_allclose(predictive.log_prob(y), [law.logpdf(v) for law, v in zip(laws, y, strict=True)])
    np.testing.assert_allclose(predictive.quantile(0.9), location + stats.norm.ppf(0.9) * np.sqrt(variance))
    gained = [0.5 * np.linalg.slogdet(np.eye(3) + C / NOISE**2)[1] for C in epistemic]
    np.testing.assert_allclose(predictive.mutual_information, gained)
    draws = predictive.sample(0, 4_000)
    error = np.cov(draws[:, 0].T) - laws[0].cov
    scale = np.sqrt(np.outer(variance[0], variance[0]))
    assert np.all(np.abs(error) < 5 * scale * np.sqrt(2 / 4_000))  # an entry's sd is √2 of the scale at most


@pytest.mark.parametrize(
    ("likelihood", "y", "others"),
    [
        pytest.param(learned, Y, {"sigma": dist.HalfNormal(1.0)}, id="learned noise"),
        pytest.param(by_input, Y, {}, id="noise by input"),
        pytest.param(labels, (Y > 0).astype(int), {}, id="labels"),
    ],
)
def test_integrals_over_columns_are_those_by_draws(likelihood, y, others):
    fitted, _, _ = posterior(likelihood, y, **others)
    exact, drawn = fitted.predict(X_NEW, Quadrature()), fitted.predict(X_NEW, MonteCarlo(20_000))
    new = np.asarray(drawn.sample(1, 1))[0]
    np.testing.assert_allclose(exact.mean, drawn.mean, atol=5e-3)
    np.testing.assert_allclose(exact.variance, drawn.variance, rtol=5e-2)
    np.testing.assert_allclose(exact.log_prob(new), drawn.log_prob(new), atol=2e-2)
    if likelihood is not labels:
        np.testing.assert_allclose(exact.quantile(0.8), drawn.quantile(0.8), rtol=2e-2, atol=2e-2)


def test_many_columns_are_drawn_and_no_covariances_formed():
    target = Model({"w": dist.Normal(0.0, 1.0).expand([2, 40])}, known).given(X, np.tile(Y[:, :1], 40))
    fitted = Posterior(Gaussian(np.ones(80), Dense(0.1 * np.eye(80))), target, verdict=Verdict("pass"))
    predictive = fitted.predict(X_NEW, Linearised())
    assert predictive._stream.law.width == 256
    expected = 0.1**2 * np.sum(X_NEW**2, axis=1)
    # a variance of 256 draws is off by 9 %: 0.5 is five times that
    np.testing.assert_allclose(predictive.epistemic, np.tile(expected[:, None], 40), rtol=0.5)


def test_probit_is_for_one_class_a_row():
    with pytest.raises(CredoError, match=r"Probit\(\) is for classes"):
        posterior(labels, (Y > 0).astype(int))[0].predict(X_NEW, Probit())


@pytest.mark.parametrize("likelihood", [learned, by_input])
def test_information_of_columns_with_unknown_noise_is_that_of_draws(likelihood):
    """Locations and scales both tell: the entropy of y less its mean given the parameters, by draws of both."""
    others = {"sigma": dist.LogNormal(-1.0, 0.3)} if likelihood is learned else {}
    fitted, *_ = posterior(likelihood, **others)
    direct = fitted.predict(X_NEW[:2], Linearised())
    found = direct.mutual_information
    # of the linearised outputs themselves, with as many draws of them on the inside as bias allows
    rows = direct._stream.law.full(direct._stream.rows)
    z_mean, z_cov = np.asarray(rows.mean), np.asarray(rows.covariance)
    rng = np.random.default_rng(0)
    for i in range(2):
        root = np.linalg.cholesky(z_cov[i] + 1e-12 * np.eye(len(z_cov[i])))
        z = z_mean[i] + rng.normal(size=(8_000, len(root))) @ root.T
        location, scale = z[:, ::2], np.exp(z[:, 1::2])
        y = location[:2_000] + scale[:2_000] * rng.normal(size=(2_000, 3))
        # log densities but for a constant, by one product: ½ ((y − m) / s)² is quadratic in y
        parts = np.hstack([-0.5 * scale**-2, location * scale**-2])
        constant = -np.sum(0.5 * (location / scale) ** 2 + np.log(scale), axis=1)
        terms = np.hstack([y**2, y]) @ parts.T + constant
        gains = terms[np.arange(2_000), np.arange(2_000)] - special.logsumexp(terms, axis=1) + np.log(len(z))
        assert abs(found[i] - gains.mean()) < 5 * gains.std() / np.sqrt(2_000) + 0.05 * gains.mean()


def test_columns_of_a_t_with_known_scale_know_that_the_weights_are_uncertain():
    fitted, _, _ = posterior(lambda params, x: dist.StudentT(4.0, x @ params["w"], NOISE))
    y = np.asarray(fitted.predict(X_NEW, Linearised()).mean) + 0.4
    many = fitted.predict(X_NEW, MonteCarlo(20_000))
    np.testing.assert_allclose(fitted.predict(X_NEW, Quadrature(1_000)).log_prob(y), many.log_prob(y), atol=0.02)
    np.testing.assert_allclose(fitted.predict(X_NEW, Linearised()).log_prob(y), many.log_prob(y), atol=0.1)
    assert np.all(fitted.predict(X_NEW, Linearised()).mutual_information > 0.01)
