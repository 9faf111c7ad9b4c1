"""Variational ascent on minibatches: networks, and models of many dimensions."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import multivariate_normal

import credo
from credo.linalg.diagonal import Diagonal
from credo.methods.vi.stochastic.ascent import Tuning, place
from credo.methods.vi.stochastic.fit import _end
from credo.posterior.kinds import Gaussian

N, D, NOISE = 300, 4, 0.5


def linear(rows=N):
    """A network of one linear layer, whose posterior is Bayesian linear regression's."""
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, D)) @ (np.eye(D) + 0.4)
    y = x @ np.array([1.0, -1.0, 0.5, 0.0]) + NOISE * random.normal(size=rows)
    network = credo.nn.BayesianNetwork(
        lambda params, x: x @ params["w"], {"w": np.zeros(D)}, head=credo.nn.Gaussian(NOISE)
    )
    return network.given(x, y), x, y


@pytest.mark.parametrize("batch_size", [32, None])
def test_on_a_linear_network_it_finds_the_best_member(batch_size):
    """Means are the posterior's, variances one over the diagonal of its precision: to what steps and batches leave."""
    target, x, y = linear()
    method = credo.ADVI(batch_size=batch_size, max_steps=6_000)
    posterior = credo.fit(target, method, key=0)
    precision = x.T @ x / NOISE**2 + np.eye(D)
    mean, sd = np.linalg.solve(precision, x.T @ y / NOISE**2), np.diagonal(precision) ** -0.5
    np.testing.assert_allclose(posterior.kind.mean, mean, atol=0.3 * np.min(sd))
    np.testing.assert_allclose(posterior.kind.scale.scale, sd, rtol=0.15)
    gap = 0.5 * (np.linalg.slogdet(precision)[1] - np.sum(np.log(np.diagonal(precision))))  # KL, negative of it
    exact = multivariate_normal(cov=NOISE**2 * np.eye(N) + x @ x.T).logpdf(y)
    assert posterior.log_evidence.value == pytest.approx(exact + gap, abs=5 * posterior.log_evidence.error + 0.1)
    assert posterior.verdict.status == "doubtful"
    assert "takes no weights of draws" in str(posterior.verdict)
    assert "4 dimensions allow" in str(posterior.verdict)


def test_each_window_is_as_likely_as_any_other():
    """Over all first places every row is equally often in the batch of an update, whatever the update."""
    first = np.arange(10)
    for count in (0, 3, 8, 1_234):
        begins = [int(place(Tuning(np.int32(f), np.int32(1), np.float32(0.1)), 10, 4, count)) for f in first]
        assert sorted(begins) == list(range(10))


def test_a_gaussian_posterior_is_a_start_with_its_sds():
    mean, sd = np.array([0.5, -0.5, 0.0, 1.0]), np.array([0.1, 0.2, 0.3, 0.4])
    kind = Gaussian(mean, Diagonal(sd))
    start = credo.Posterior(kind, linear()[0], verdict=credo.Verdict("pass"))
    method = credo.ADVI(batch_size=32, max_steps=10, step_size=1e-6)
    posterior = credo.fit(linear()[0], method, start=start, key=0, progress=False)
    np.testing.assert_allclose(posterior.kind.mean, mean, atol=1e-3)
    np.testing.assert_allclose(posterior.kind.scale.scale, sd, rtol=1e-3)


def test_noise_alone_is_no_rise():
    """Of paths without one a rise of more than two standard errors is seen in 2.3 %; a true one is told a row."""
    noise = np.random.default_rng(0).normal(size=(1_000, 500))
    rises = [_end(path, 10).rise for path in noise]
    assert 0.01 < np.mean(np.array(rises) > 0) < 0.04
    assert _end(noise[0] + np.arange(500), 10).rise == pytest.approx(100 / 10, rel=0.1)  # last fifth, one before


def test_a_loss_that_is_not_finite_keeps_the_last_good_state_and_names_the_batch():
    x = np.random.default_rng(1).uniform(0.5, 1.0, size=60)
    is_odd = np.arange(60) == 17
    y = np.where(is_odd, 0.0, 1.3 * x)

    def apply(params, x):
        w = params["w"]
        return jnp.where(x > 30, jnp.where(w > 0.75, jnp.nan, 0.0), w * x)

    network = credo.nn.BayesianNetwork(apply, {"w": np.zeros(())}, head=credo.nn.Gaussian(0.1))
    start = credo.fit(network.given(x, 1.3 * x), credo.Laplace(), key=0)
    target = network.given(np.where(is_odd, 40.0, x), y)
    posterior = credo.fit(target, credo.ADVI(batch_size=10, max_steps=1_000), key=0, start=start)
    assert posterior.info["failed_at"] > 0
    assert posterior.info["num_steps"] == posterior.info["failed_at"]
    assert np.all(np.isfinite(posterior.kind.mean))
    assert np.all(np.isfinite(posterior.kind.scale.scale))
    text = str(posterior.verdict)
    assert f"not finite at step {posterior.info['failed_at']:,}, on the 10 rows" in text
    assert "row 17 has no finite likelihood" in text


def test_gradients_are_counted_as_they_were_taken():
    """Of the warm start, and of each draw one gradient and as many products with the Hessian as dimensions."""
    target, _, _ = linear()
    posterior = credo.fit(target, credo.NaturalGradient(batch_size=32, max_steps=200), key=0, progress=False)
    assert posterior.info["num_gradients"] == 1_000 + 200 * (1 + D)


def test_it_resumes_bit_for_bit(tmp_path):
    target, _, _ = linear()
    method = credo.ADVI(batch_size=32, max_steps=4_000)
    whole = credo.fit(target, method, key=1, progress=False)
    credo.fit(target, method, key=1, checkpoint=tmp_path, progress=False)
    again = credo.resume(tmp_path, target, progress=False)
    np.testing.assert_array_equal(again.kind.mean, whole.kind.mean)
    np.testing.assert_array_equal(again.kind.scale.scale, whole.kind.scale.scale)
    assert again.info["num_gradients"] == whole.info["num_gradients"] == 1_000 + 4_000


@pytest.mark.parametrize(("batch_size", "noisy"), [(32, "minibatches"), (None, "steps")])
def test_a_time_limit_is_said(batch_size, noisy):
    target, _, _ = linear()
    method = credo.ADVI(batch_size=batch_size, max_steps=20_000_000)
    posterior = credo.fit(target, method, key=0, time_limit=2.0)
    assert not posterior.info["is_complete"]
    assert "The time limit came after" in str(posterior.verdict)
    assert f"the noise of its {noisy}" in str(posterior.verdict)


def test_many_dimensions_run_in_single_precision_and_leave_in_double():
    random = np.random.default_rng(0)
    x = random.normal(size=(50, 1_100))
    model = credo.Model({"w": dist.Normal(0.0, 0.1).expand([1_100])}, lambda params, x: dist.Normal(x @ params["w"], 1))
    target = model.given(x, x[:, 0])
    posterior = credo.fit(target, credo.ADVI(batch_size=10, max_steps=500), key=0)
    assert posterior.kind.mean.dtype == np.float64
    np.testing.assert_array_equal(posterior.kind.mean, posterior.kind.mean.astype(np.float32))
    assert "1,100 dimensions" in str(posterior.verdict)
