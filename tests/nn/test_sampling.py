"""Chains on small networks: begun at the members of an ensemble, and judged by what they predict."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo.diagnose.convergence import convergence

RNG = np.random.default_rng(0)
X = np.sort(RNG.uniform(-2, 2, size=20))[:, None]
Y = np.tanh(2 * X[:, 0]) + 0.1 * RNG.normal(size=20)
GRID = np.linspace(-2, 2, 9)[:, None]


def apply(params, x):
    return (jnp.tanh(x @ params["in"] + params["shift"]) @ params["out"]) + params["bias"]


PARAMS = {"in": RNG.normal(size=(1, 3)), "shift": np.zeros(3), "out": RNG.normal(size=3), "bias": np.zeros(1)}
NETWORK = credo.nn.BayesianNetwork(apply, PARAMS, head=credo.nn.Gaussian(0.1))
TARGET = NETWORK.given(X, Y)


@pytest.fixture(scope="module")
def ensemble():
    return credo.fit(TARGET, credo.DeepEnsemble(members=4, num_steps=300, batch_size=None), key=0)


@pytest.fixture(scope="module")
def sampled(ensemble):
    return credo.fit(TARGET, credo.NUTS(num_warmup=500, num_draws=1_000), key=1, start=ensemble)


def test_chains_are_judged_by_their_predictions(sampled):
    on_weights = float(np.max(convergence(np.asarray(sampled.kind.positions)).r_hat))
    assert sampled.verdict.figures["max_r_hat"] != pytest.approx(on_weights, rel=1e-6)  # hidden units trade places
    assert sampled.verdict.figures["max_r_hat"] < 1.05
    assert any("trade places" in sentence for sentence in sampled.verdict.sentences)


@pytest.mark.slow
def test_predictions_are_those_of_a_long_run_from_other_starts(sampled):
    long = credo.fit(TARGET, credo.NUTS(num_warmup=500, num_draws=4_000), key=5)
    rule = credo.MonteCarlo(4_000)
    a, b = (posterior.predict(GRID, rule) for posterior in (sampled, long))
    # five standard errors, by the smallest effective size of any prediction
    size = min(sampled.verdict.figures["min_ess_bulk"], long.verdict.figures["min_ess_bulk"])
    assert np.all(np.abs(a.mean - b.mean) < 5 * np.sqrt(2 * a.epistemic / size))
    assert np.allclose(np.sqrt(a.epistemic), np.sqrt(b.epistemic), rtol=5 * np.sqrt(1 / size))


def test_each_chain_begins_at_a_member(ensemble):
    members = ensemble.kind.positions[0]
    method = credo.SGHMC(num_warmup=0, num_draws=4, num_steps=1, step_size=1e-6, batch_size=None)
    chains = credo.fit(TARGET, method, key=0, start=ensemble).kind.positions
    distances = np.linalg.norm(chains[:, None, 0] - members[None], axis=-1)
    assert np.array_equal(np.argmin(distances, axis=1), np.arange(4))


def test_other_models_are_judged_by_their_parameters():
    model = credo.Model({"w": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["w"] * x, 1.0))
    posterior = credo.fit(model.given(X[:, 0], Y), credo.NUTS(num_warmup=100, num_draws=100), key=0)
    found = convergence(np.asarray(posterior.kind.positions))
    assert posterior.verdict.figures["max_r_hat"] == float(np.max(found.r_hat))
