"""What outputs end in: what a head applies itself must not have been applied before, and whatever else may."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credo
from credo.nn import BayesianNetwork, Bernoulli, Categorical, HeteroscedasticGaussian, Poisson
from credo.nn.endings import endings

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(12, 2))
LABELS = np.arange(12) % 3
LOGISTIC = "takes logits, to which it applies sigmoid itself: let the network return what goes into"


@pytest.mark.parametrize(
    ("last", "name"),
    [
        (jax.nn.softmax, "softmax"),
        (lambda z: jnp.exp(z) / jnp.exp(z).sum(axis=-1, keepdims=True), "softmax"),
        (jax.vmap(jax.nn.softmax), "softmax"),
        (jax.jit(lambda z: jax.nn.softmax(z).astype(jnp.float32)), "softmax"),
        (jax.jit(lambda z: jax.jit(lambda z: z)(jax.nn.softmax(z))), "softmax"),
        (lambda z: jax.jit(lambda z: (z, jax.nn.softmax(z)))(z)[1], "softmax"),
        (lambda z: jax.jit(lambda z: (jax.nn.softmax(z), z))(z)[1], ""),
        (jax.nn.sigmoid, "sigmoid"),
        (lambda z: jax.nn.sigmoid(z)[:, :1].ravel(), "sigmoid"),
        (lambda z: 1 / (1 + jnp.exp(-z)), "sigmoid"),
        (lambda z: 1 / (jnp.exp(-z) + 1), "sigmoid"),
        (jax.nn.softplus, "softplus"),
        (jnp.exp, "exp"),
        (lambda z: jnp.concatenate([z[:, :1], jnp.exp(z[:, 1:])], axis=1), "exp"),
        (lambda z: jnp.stack([z[:, 0], jnp.exp(z[:, 1])], axis=1), "exp"),
        (lambda z: z, ""),
        (jax.nn.log_softmax, ""),
        (jax.nn.relu, ""),
        (lambda z: 2 * jax.nn.softmax(z), ""),
        (lambda z: z / jnp.abs(z).sum(axis=-1, keepdims=True), ""),
        (lambda z: jnp.exp(z) / 3, ""),
        (lambda z: 1 / (2 + jnp.exp(-z)), ""),
        (lambda z: 1 / (1 + jnp.abs(z)), ""),
        (lambda z: jnp.logaddexp(z, 1.0), ""),
        (lambda z: jnp.concatenate([jnp.exp(z[:, :1]), z[:, 1:]], axis=1), ""),
        (lambda z: jnp.zeros(3), ""),
    ],
)
def test_endings(last, name):
    assert endings(jax.make_jaxpr(last)(jnp.ones((4, 3)))) == [name]


@pytest.mark.parametrize(
    ("head", "last", "y", "sentence"),
    [
        (Categorical(), jax.nn.softmax, LABELS, r"end in softmax, and Categorical\(\) takes logits"),
        (Bernoulli(), lambda z: jax.nn.sigmoid(z[:, 0]), LABELS % 2, rf"end in sigmoid.*{LOGISTIC} sigmoid"),
        (Poisson(), lambda z: jnp.exp(z[:, 0]), LABELS, "takes log rates, to which it applies exp itself"),
        (Poisson(), lambda z: jax.nn.softplus(z[:, 0]), LABELS, "let the network return what goes into softplus"),
        (HeteroscedasticGaussian(), lambda z: (z[:, 0], jnp.exp(z[:, 1])), X[:, 0], "takes raw scales"),
    ],
)
def test_what_a_head_applies_is_not_applied_before(head, last, y, sentence):
    network = BayesianNetwork(lambda w, x: last(x @ w), np.ones((2, 3)), head=head)
    with pytest.raises(credo.CredoError, match=sentence):
        network.given(X, y)


def test_other_endings_are_taken():
    """Means may be positive by exp, and log probabilities are logits."""
    means = BayesianNetwork(
        lambda w, x: (jnp.exp(x @ w[:, 0]), x @ w[:, 1]), np.ones((2, 2)), head=HeteroscedasticGaussian()
    )
    assert means.given(X, X[:, 0]).dim == 4
    classes = BayesianNetwork(lambda w, x: jax.nn.log_softmax(x @ w), np.ones((2, 3)), head=Categorical())
    assert classes.given(X, LABELS).dim == 6


@pytest.mark.parametrize("last", [jax.nn.softmax, jax.nn.log_softmax])
def test_modules_of_equinox(last):
    """Whose own weights are the pytree, though it can be called, as the prior of a parameter may be."""
    layers = eqx.nn.MLP(2, 3, 4, 1, key=jax.random.key(0))
    params, static = eqx.partition(layers, eqx.is_inexact_array)
    network = BayesianNetwork(lambda p, x: last(jax.vmap(eqx.combine(p, static))(x)), params, head=Categorical())
    if last is jax.nn.log_softmax:
        assert network.given(X, LABELS).dim == 2 * 4 + 4 + 4 * 3 + 3
    else:
        with pytest.raises(credo.CredoError, match="end in softmax"):
            network.given(X, LABELS)
