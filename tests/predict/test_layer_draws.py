"""Draws of linearised outputs from a network's layers: each row's have the law that draws of the weights give."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import ortho_group

import credo
from credo.linalg.kronecker import Block, Kronecker
from credo.model.layers import find_layers
from credo.nn import BayesianNetwork, Categorical, Isotropic
from credo.precision import double
from credo.predict import layer_draws, monte_carlo
from credo.predict.by_layers import groups
from credo.predict.linearised import LayeredLaw

RANDOM = np.random.default_rng(11)
NUM_DRAWS = 20_000


def dense(u, x):
    return u[35:38] * (jnp.tanh(x @ u[:20].reshape(4, 5)) @ u[20:35].reshape(5, 3))


def shared(u, x):
    """A convolution with its bias, and a layer that is used twice."""
    dimensions = ("NHWC", "HWIO", "NHWC")
    image = jax.lax.conv_general_dilated(x[None], u[:12].reshape(2, 2, 1, 3), (1, 1), "VALID", None, None, dimensions)
    h = jnp.tanh(image + u[12:15]).reshape(-1, 3)
    W = u[15:24].reshape(3, 3)
    return jnp.sum(jnp.tanh(h @ W) @ W, axis=0)


NETWORKS = {"dense": (dense, (4,), 38), "shared": (shared, (3, 3, 1), 24)}


def scale_of(apply, dim, row) -> Kronecker:
    def block(group):
        sides = (ortho_group.rvs(n, random_state=5) if n > 1 else np.ones((1, 1)) for n in group.shape)
        return Block(group, RANDOM.uniform(0.2, 1.0, group.shape), *sides)

    layers = find_layers(apply, jax.ShapeDtypeStruct((dim,), jnp.float64), row)
    *inner, last = groups(layers)
    final = Block(last, RANDOM.uniform(0.2, 1.0, last.shape)) if layers.rest.size else block(last)
    return Kronecker((*(block(group) for group in inner), final))


@pytest.mark.parametrize("num_rows", [2, 200])  # of so many by the weights, where outputs are more than inputs
@pytest.mark.parametrize("name", NETWORKS)
def test_each_row_has_the_law_of_its_linearised_outputs(name, num_rows):
    apply, shape, dim = NETWORKS[name]
    with double():
        x, centre = RANDOM.normal(size=(num_rows, *shape)), jnp.asarray(RANDOM.normal(size=dim))
        scale = scale_of(apply, dim, x[0])
        z, move = layer_draws.moves(apply, scale, centre, jnp.asarray(x))
        draws = np.asarray(jax.jit(jax.vmap(move))(jax.random.split(jax.random.key(3), NUM_DRAWS)))
        outputs, J = jax.jit(jax.vmap(lambda row: (apply(centre, row), jax.jacrev(apply)(centre, row))))(x)
        expected = np.einsum("mki,ij,mlj->mkl", J, np.asarray(scale.dense()), J)
        np.testing.assert_allclose(z, outputs, rtol=1e-12)
    sd = np.sqrt(np.diagonal(expected, axis1=1, axis2=2))
    assert np.max(np.abs(np.mean(draws, axis=0)) / sd) < 5 / np.sqrt(NUM_DRAWS)
    found = np.einsum("smk,sml->mkl", draws, draws) / NUM_DRAWS
    error = (found - expected) / sd[:, :, None] / sd[:, None, :]
    assert np.max(np.abs(error)) < 5 * np.sqrt(2 / NUM_DRAWS)


def test_many_classes_are_predicted_by_layers(monkeypatch):
    def apply(params, x):
        return jnp.tanh(x @ params["a"]) @ params["b"]

    params = {"a": RANDOM.normal(size=(3, 8)), "b": RANDOM.normal(size=(8, 70))}
    x = RANDOM.normal(size=(12, 3))
    network = BayesianNetwork(apply, params, head=Categorical(), prior=Isotropic(10.0))  # logits of sd 0.3
    target = network.given(x, RANDOM.integers(70, size=12))
    posterior = credo.fit(target, credo.Laplace(structure=credo.laplace.Kronecker(), num_steps=0), progress=False)
    rule = credo.Quadrature(8_000)
    stored = posterior.predict(x, rule)
    monkeypatch.setattr(monte_carlo, "MAX_STORED", 0)
    by_layers = posterior.predict(x, rule)
    assert isinstance(by_layers._stream.law, LayeredLaw)
    errors = (by_layers.probs - stored.probs) / np.sqrt(stored.epistemic / 8_000)
    assert np.mean(errors**2) < 2  # of two answers, evenly spread draws being the better one
    y = np.asarray(target.y)
    np.testing.assert_allclose(by_layers.log_prob(y), stored.log_prob(y), atol=0.2)
