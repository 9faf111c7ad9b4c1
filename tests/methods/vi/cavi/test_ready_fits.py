"""Ready models as methods of ``credo.fit``: their factors as a posterior of the user's own model, held against it."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from contract import check_protocol
from credo.methods.vi.cavi import LinearRegression, NormalMeanPrecision, ProbitRegression
from credo.posterior.product import Product
from targets import Known

RNG = np.random.default_rng(3)
X = np.column_stack([np.ones(60), RNG.normal(size=(60, 2))])
W = np.array([0.5, -1.0, 2.0])
Y = X @ W + 0.7 * RNG.normal(size=60)


def normal(params, x):
    return dist.Normal(params["mean"], params["precision"] ** -0.5)


def regression(params, x):
    return dist.Normal(x @ params["weights"], params["noise_precision"] ** -0.5)


def probit(params, x):
    return dist.Bernoulli(jnp.clip(dist.Normal(0.0, 1.0).cdf(x @ params["weights"]), 1e-12, 1 - 1e-12))


def regression_target(shape=2.0):
    prior = {
        "weight_precision": dist.Gamma(shape, 1.0),
        "noise_precision": dist.Gamma(2.0, 1.0),
        "weights": lambda weight_precision: dist.Normal(0.0, weight_precision**-0.5).expand([3]).to_event(1),
    }
    return credo.Model(prior, regression).given(X, Y)


READY = LinearRegression(noise_prior=(2.0, 1.0), weight_prior=(2.0, 1.0))


def test_a_regression_has_its_factors_and_its_bound_as_a_posterior(tmp_path):
    target = regression_target()
    posterior = credo.fit(target, READY, progress=False)
    by_hand = READY.update(X, Y)
    assert isinstance(posterior.kind, Product)
    for name, value in by_hand.mean().items():
        np.testing.assert_allclose(posterior.mean()[name], value, rtol=1e-6)
        np.testing.assert_allclose(posterior.sd()[name], by_hand.sd()[name], rtol=1e-6)
    assert posterior.log_evidence is not None
    assert posterior.log_evidence.kind == "lower bound"
    assert posterior.log_evidence.value == by_hand.log_evidence.value
    np.testing.assert_array_equal(posterior.info["elbo_path"][1], by_hand.elbo_path)
    assert np.isfinite(posterior.verdict.figures["pareto_k"])
    check_protocol(posterior, Known(target, {}, {}, None))
    predicted = posterior.predict(X[:4])
    np.testing.assert_allclose(np.asarray(predicted.mean), X[:4] @ by_hand.mean()["weights"], atol=0.1)


def test_another_prior_than_the_models_is_seen():
    posterior = credo.fit(regression_target(shape=5.0), READY, progress=False)
    assert posterior.verdict.status == "failed"
    assert posterior.log_evidence is None
    assert any("that of another prior" in sentence for sentence in posterior.verdict.sentences)


def test_a_normal_with_unknown_mean_and_precision():
    prior = {"mean": dist.Normal(0.0, 2.0), "precision": dist.Gamma(2.0, 2.0)}
    y = np.array([1.0, 3.0, 2.0, 2.5, 0.4])
    posterior = credo.fit(
        credo.Model(prior, normal).given(y=y), NormalMeanPrecision(0.0, 2.0, 2.0, variance=4.0), progress=False
    )
    by_hand = NormalMeanPrecision(0.0, 2.0, 2.0, variance=4.0).update(y)
    for name, value in by_hand.mean().items():
        np.testing.assert_allclose(posterior.mean()[name], value, rtol=1e-6)
    assert posterior.log_evidence is not None
    assert posterior.log_evidence.value == by_hand.log_evidence.value
    assert posterior.info["evidence_upper"] is None or posterior.info["evidence_upper"].value > by_hand.elbo_path[-1]


def test_sds_that_mean_field_understates_are_said():
    """Probit's latent variables: the verdict sees, by weights, what the factors leave out."""
    y = (RNG.random(60) < 0.5 + 0.5 * np.tanh(X @ W)).astype(int)
    target = credo.Model({"weights": dist.Normal(0.0, 1.0).expand([3]).to_event(1)}, probit).given(X, y)
    posterior = credo.fit(target, ProbitRegression(alpha=1.0), progress=False)
    assert posterior.verdict.status != "pass"
    assert posterior.verdict.figures["log_sd_shift"] > 0.095


def test_a_time_limit_ends_the_sweeps():
    """Classes that a line separates, under next to no prior: the weights grow sweep by sweep."""
    x = RNG.normal(size=(4_000, 3))
    target = credo.Model({"weights": dist.Normal(0.0, 1e3).expand([3]).to_event(1)}, probit).given(x, x @ W > 0)
    method = ProbitRegression(alpha=1e-6, max_sweeps=100_000)
    posterior = credo.fit(target, method, time_limit=0.2, progress=False)
    assert not posterior.info["is_complete"]
    assert any("The time limit came after" in each for each in posterior.verdict.sentences)


def test_what_does_not_fit_is_said():
    target = regression_target()
    with pytest.raises(credo.CredoError, match="has data already"):
        credo.fit(target, READY.update(X, Y))
    with pytest.raises(credo.CredoError, match="finds its own start"):
        credo.fit(target, READY, start=START)
    with pytest.raises(credo.CredoError, match="no factor"):
        credo.fit(target, NormalMeanPrecision(0.0, 2.0, 2.0, variance=4.0))
    prior = {"mean": dist.Normal(0.0, 2.0), "precision": dist.Gamma(2.0, 2.0)}
    weighed = credo.Model(prior, normal).given(y=Y, weights=np.full(60, 2.0))
    with pytest.raises(credo.CredoError, match="counts every row once"):
        credo.fit(weighed, NormalMeanPrecision(0.0, 2.0, 2.0, variance=4.0))


START = {"weight_precision": 1.0, "noise_precision": 1.0, "weights": np.zeros(3)}
