"""Held-out scores: against closed forms, and with an error that says how far other draws would be."""

import functools

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import credo
from credo.posterior.kinds import Draws
from credo.posterior.posterior import Posterior
from credo.predict import MonteCarlo, stream
from credo.reporting import scores
from credo.status import Verdict

RNG = np.random.default_rng(0)
X = RNG.normal(size=5)
Y = 0.8 * X + RNG.normal(size=5)
FAR = np.array([3.0, 2.6, -3.2, 3.1, 2.9])  # where the parameter's uncertainty is most of the outcome's
NEW = 0.8 * FAR + RNG.normal(size=5)
PRECISION = 1.0 + X @ X
MEAN, SD = FAR * (X @ Y / PRECISION), np.sqrt(1.0 + FAR**2 / PRECISION)  # p(y | x, D) = N(MEAN, SD²), by hand


@functools.cache
def line() -> credo.Model:
    return credo.Model({"w": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["w"] * x, 1.0))


def draws_of(key: int, number: int, is_weighted: bool) -> Posterior:
    """The posterior of the line as independent draws, or as draws of twice its variance with weights."""
    sd = PRECISION**-0.5
    w = X @ Y / PRECISION + sd * np.sqrt(1.0 + is_weighted) * np.random.default_rng(key).normal(size=(1, number))
    log_weights = None
    if is_weighted:
        log_weights = -0.25 * ((w - X @ Y / PRECISION) / sd) ** 2
        log_weights -= np.log(np.exp(log_weights).sum())
    return Posterior(Draws(w[..., None], log_weights), line().given(X, Y), verdict=Verdict("pass"))


def test_identical_posteriors_score_alike_and_right():
    target = line().given(X, Y)
    fits = {"exact": credo.fit(target, credo.Exact()), "laplace": credo.fit(target, credo.Laplace())}
    z = (NEW - MEAN) / SD
    log_score = stats.norm.logpdf(NEW, MEAN, SD)
    crps = np.mean(SD * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - np.pi**-0.5))
    for key in range(3):
        table = credo.compare(fits, held_out=(FAR, NEW), key=key, show=False)
        for name in fits:
            predictive = scores.predict_held_out(fits[name], FAR, key=key)
            of_draws = scores.monte_carlo_error(predictive, NEW)
            of_rows = predictive.log_prob(NEW).std(ddof=1) / np.sqrt(5)
            np.testing.assert_allclose(table.loc[name, "log_score_error"], np.hypot(of_rows, of_draws), rtol=1e-12)
            assert of_draws < 0.3 * of_rows
            assert abs(table.loc[name, "log_score"] - log_score.mean()) < 5 * of_draws
            # E|X − y| of 8,192 outcomes and 2,048 parameters
            assert abs(table.loc[name, "crps"] - crps) < 5 * np.mean(SD) / np.sqrt(2_048)


@pytest.mark.parametrize("is_weighted", [False, True])
def test_the_error_is_how_far_other_draws_are(is_weighted):
    """The sd of 128 scores is known to 6 %, and the mean of the errors they state to 1 %."""
    found = np.asarray(
        [
            (np.mean(predictive.log_prob(NEW)), scores.monte_carlo_error(predictive, NEW))
            for predictive in (draws_of(key, 256, is_weighted).predict(FAR) for key in range(128))
        ]
    )
    spread, stated = found[:, 0].std(ddof=1), np.sqrt(np.mean(found[:, 1] ** 2))
    assert 0.8 < stated / spread < 1.25  # three and a half standard errors


def test_an_autocorrelated_chain_errs_more():
    """AR(1) with coefficient 0.9: the variance of a mean is (1 + 0.9) / (1 − 0.9) = 19 times that of as many draws."""
    rng, sd = np.random.default_rng(3), PRECISION**-0.5
    w = [rng.normal()]
    for noise in rng.normal(size=4_095):
        w.append(0.9 * w[-1] + np.sqrt(0.19) * noise)
    chain = X @ Y / PRECISION + sd * np.asarray(w).reshape(2, 2_048, 1)
    shuffled = rng.permutation(chain.reshape(-1, 1)).reshape(chain.shape)
    errors = [
        scores.monte_carlo_error(
            Posterior(Draws(each), line().given(X, Y), verdict=Verdict("pass")).predict(FAR, MonteCarlo(4_096)), NEW
        )
        for each in (chain, shuffled)
    ]
    assert 2.0 < errors[0] / errors[1] < 8.0  # about √19, less where the score is not monotone in w


def test_a_point_has_no_such_error_and_chunks_change_nothing(monkeypatch):
    target = line().given(X, Y)
    point = credo.fit(target, credo.MAP())
    assert scores.monte_carlo_error(point.predict(FAR), NEW) == 0.0
    p = draws_of(0, 64, True)
    whole = scores.monte_carlo_error(p.predict(FAR), NEW)
    monkeypatch.setattr(stream, "MEMORY", 2 * 10 * 8 * 64)
    cut = p.predict(FAR)
    assert (cut._stream.chunk or 5) < 5
    np.testing.assert_allclose(scores.monte_carlo_error(cut, NEW), whole, rtol=1e-12)
    monkeypatch.setattr(scores, "MEMORY", 2 * 4 * 8 * scores.NUM_OUTCOMES)
    z = (NEW - MEAN) / SD
    exact = np.mean(SD * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - np.pi**-0.5))
    assert abs(scores.crps(draws_of(0, 4_096, False).predict(FAR, MonteCarlo(4_096)), NEW, 0) - exact) < 0.1


def test_many_rows_take_fewer_draws_and_little_memory():
    x = np.linspace(-3.0, 3.0, 2**16)
    assert scores.predict_held_out(draws_of(0, 4_096, False), x)._stream.law.width == 256
    assert scores.predict_held_out(draws_of(0, 4_096, False), FAR)._stream.law.width == 2_048


COUNTS = credo.Model({"w": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Poisson(3.0 * jnp.exp(params["w"] * x)))


@pytest.mark.parametrize("model", [line(), COUNTS], ids=["numbers", "counts"])
def test_coverage_without_intervals_is_that_of_the_intervals(model):
    x = np.linspace(-2.0, 2.0, 300)
    y = np.random.default_rng(1).poisson(3.0, 300) * (1 if model is COUNTS else 0.5)
    y = y.astype(np.uint8) if model is COUNTS else y
    w = np.random.default_rng(0).normal(size=(1, 60, 1))
    predictive = Posterior(Draws(w), model.given(x, y), verdict=Verdict("pass")).predict(x)
    low, high = predictive.interval(0.9)
    assert 0.05 < np.mean((low <= y) & (y <= high)) < 0.999
    assert scores.coverage(predictive, y, 0.9) == np.mean((low <= y) & (y <= high))


def test_angles_are_scored_by_their_density_alone():
    model = credo.Model({"w": dist.Normal(0.0, 1.0)}, lambda params, x: dist.VonMises(params["w"] * x, 8.0))
    posterior = credo.fit(model.given(X, 0.3 * X), credo.Laplace(), progress=False)
    table = credo.compare({"laplace": posterior}, held_out=(FAR, 0.3 * FAR), show=False)
    assert np.isfinite(table.loc["laplace", "log_score"])
    assert "crps" not in table or np.isnan(table.loc["laplace", "crps"])
    with pytest.raises(credo.CredoError, match="no PIT value"):
        credo.diagnose.pit(posterior.predict(FAR), 0.3 * FAR)


def test_parameters_of_other_shapes_are_not_compared():
    def fitted(size):
        model = credo.Model(
            {"w": dist.Normal(0.0, 1.0).expand([size])}, lambda p, x: dist.Normal(p["w"].sum() * x, 1.0)
        )
        return credo.fit(model.given(np.ones(4), np.ones(4)), credo.MAP())

    with pytest.raises(credo.CredoError, match=r"'w' has shape \(2,\) in 'a' and \(3,\) in 'b'"):
        credo.compare({"a": fitted(2), "b": fitted(3)}, show=False)


def test_a_network_is_scored_by_its_own_rule():
    """Laplace of a network predicts linearised; by draws of its weights it would be worse."""
    rng = np.random.default_rng(0)
    params = {"a": rng.normal(size=(2, 20)), "b": np.zeros(20), "c": 0.2 * rng.normal(size=(20, 3))}
    network = credo.nn.BayesianNetwork(
        lambda p, x: jnp.tanh(x @ p["a"] + p["b"]) @ p["c"], params, head=credo.nn.Categorical()
    )
    x = rng.normal(size=(60, 2))
    y = np.argmax(x @ rng.normal(size=(2, 3)), axis=1)
    posterior = credo.fit(network.given(x[:30], y[:30]), credo.Laplace(num_steps=200), key=0, progress=False)
    found = credo.compare({"Laplace": posterior}, (x[30:], y[30:]), show=False).loc["Laplace"]
    predictive = posterior.predict(x[30:])
    assert found["log_score"] == pytest.approx(predictive.log_prob(y[30:]).mean(), abs=1e-9)
    assert found["brier"] == pytest.approx(np.mean(np.sum((predictive.probs - np.eye(3)[y[30:]]) ** 2, axis=1)))
    assert found["log_score"] > posterior.predict(x[30:], MonteCarlo(2_000)).log_prob(y[30:]).mean() + 0.05
