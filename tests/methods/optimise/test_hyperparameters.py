"""Hyperparameters of a network's prior: no maximum is sought over them and the weights, or it is said."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest

import credo
from credo.methods.optimise.hyperparameters import holding, num_hyperparameters, of_prior, without_mode
from credo.nn import BayesianNetwork, Gaussian, Isotropic, PerLayer

RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(80, 3))
Y = np.sin(X[:, 0]) + 0.3 * RANDOM.normal(size=80)
WEIGHTS = {"in": RANDOM.normal(size=(3, 6)), "out": RANDOM.normal(size=6) / 3}


def apply(p, x):
    return jnp.tanh(x @ p["in"]) @ p["out"]


def target(prior):
    return BayesianNetwork(apply, WEIGHTS, head=Gaussian(), prior=prior).given(X, Y)


def test_those_of_the_prior_are_told_from_the_noise():
    flat = target(PerLayer(dist.LogNormal(0.0, 2.0))).flat()
    assert num_hyperparameters(flat) == 3
    names = [leaf.name for leaf in flat.structure.leaves[:3]]
    assert [names[i] for i in of_prior(flat, np.full(flat.dim, 0.1))] == ["precision.in", "precision.out"]
    (said,) = without_mode(flat, np.full(flat.dim, 0.1))
    assert said.startswith("precision.in, precision.out and the weights")
    assert of_prior(target(Isotropic(1.0)).flat(), np.zeros(flat.dim - 2)) == ()


def test_held_coordinates_stay():
    steps = holding(optax.sgd(1.0), (1,))
    moved, _ = steps.update(jnp.ones(3), steps.init(jnp.ones(3)))
    np.testing.assert_array_equal(moved, [-1.0, 0.0, -1.0])
    assert holding(optax.sgd, ()) is optax.sgd


METHODS = [credo.DeepEnsemble(2, num_steps=50), credo.MAP(batch_size=40), credo.SWAG(batch_size=20)]


@pytest.mark.parametrize("method", METHODS)
def test_a_maximum_over_both_is_said(method):
    posterior = credo.fit(target(Isotropic(dist.LogNormal(0.0, 2.0))), method, key=0, progress=False)
    assert any("no useful mode together" in sentence for sentence in posterior.verdict.sentences)


@pytest.mark.parametrize("method", [METHODS[0], *(pytest.param(each, marks=pytest.mark.slow) for each in METHODS[1:])])
def test_a_maximum_over_weights_alone_is_not(method):
    posterior = credo.fit(target(Isotropic(1.0)), method, key=0, progress=False)
    assert not any("no useful mode together" in sentence for sentence in posterior.verdict.sentences)


def test_stochastic_gradient_chains_do_not_begin_where_all_weights_are_zero():
    """They began at the joint mode: a precision of 1e96, and draws that never moved."""
    method = credo.SGHMC(chains=2, num_warmup=50, num_draws=100, batch_size=40)
    posterior = credo.fit(target(PerLayer(dist.LogNormal(0.0, 2.0))), method, key=0, progress=False)
    precisions = posterior.mean()["precision"]
    assert all(0.01 < float(value) < 1e4 for value in precisions.values())
    residuals = np.std(Y - np.asarray(posterior.predict(X).mean))
    assert residuals < 0.5 < np.std(Y)
