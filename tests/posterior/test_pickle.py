"""A posterior of functions that have names can be sent to another process."""

import pickle

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo

X = np.linspace(-1.0, 2.0, 12)
Y = 0.5 + 1.5 * X + 0.3 * np.cos(7 * X)


def line(params, x):
    return dist.Normal(params["a"] + params["b"] * x, 0.3)


def constant(params, x):
    return dist.Normal(params["a"], 0.3).expand([len(x)])


def columns(params, x):
    return dist.Normal(params["a"] + jnp.stack([x, params["b"] * x], axis=1), 0.3)


def classes(params, x):
    return dist.Categorical(logits=jnp.stack([params["a"] + 0 * x, params["b"] * x], axis=1))


def network(params, x):
    return jnp.tanh(x[:, None] @ params["in"]) @ params["out"]


PRIOR = {"a": dist.Normal(0.0, 2.0), "b": dist.Normal(0.0, 2.0)}
LAYERS = {"in": np.linspace(-1.0, 1.0, 3)[None], "out": np.ones((3, 1))}
MODELS = {
    "line": (credo.Model(PRIOR, line), Y),
    "shared": (credo.Model(PRIOR, constant), Y),
    "columns": (credo.Model(PRIOR, columns), np.stack([Y, 1 - Y], axis=1)),
    "classes": (credo.Model(PRIOR, classes), (Y > 1).astype(int)),
    "network": (credo.nn.BayesianNetwork(network, LAYERS, head=credo.nn.Gaussian(0.3)), Y),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", [credo.Laplace(), credo.NUTS(num_warmup=50, num_draws=50)])
def test_what_comes_back_predicts_the_same(name, method):
    model, y = MODELS[name]
    posterior = credo.fit(model.given(X, y), method, progress=False)
    again = pickle.loads(pickle.dumps(posterior))
    np.testing.assert_array_equal(again.predict(X).mean, posterior.predict(X).mean)
    assert again.verdict == posterior.verdict
    assert again.target.head is posterior.target.head
