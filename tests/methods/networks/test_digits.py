"""Dropout and a Bayesian last layer on handwritten digits: an MLP 64-50-50-10, 1,200 rows to learn from and 597 new."""

import jax
import numpy as np
import pytest

import credo
from credo.nn import BayesianNetwork, Categorical

pytestmark = pytest.mark.slow


def mlp(params, x):
    h = jax.nn.relu(x @ params["l0"]["w"] + params["l0"]["b"])
    h = jax.nn.relu(h @ params["l1"]["w"] + params["l1"]["b"])
    return h @ params["l2"]["w"] + params["l2"]["b"]


def layer(random, num_in: int, num_out: int):
    return {"w": random.normal(size=(num_in, num_out)) * np.sqrt(2 / num_in), "b": np.zeros(num_out)}


@pytest.mark.parametrize(
    ("method", "log_score"),
    [(credo.MCDropout(), -0.15), (credo.GaussianDropout(), -0.2), (credo.VBLL(), -0.1)],
    ids=["dropout", "gaussian dropout", "last layer"],
)
def test_digits_are_learned(method, log_score):
    """Measured: accuracy 0.990, 0.985 and 0.987, mean log score −0.089, −0.141 and −0.054."""
    x, y = pytest.importorskip("sklearn.datasets").load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y, random = (x / 16)[order], y[order], np.random.default_rng(1)
    params = {"l0": layer(random, 64, 50), "l1": layer(random, 50, 50), "l2": layer(random, 50, 10)}
    target = BayesianNetwork(mlp, params, head=Categorical()).given(x[:1200], y[:1200])
    predictive = credo.fit(target, method, key=1, progress=False, precision="float32").predict(x[1200:])
    assert np.mean(np.argmax(predictive.mean, axis=-1) == y[1200:]) > 0.97
    assert np.mean(predictive.log_prob(y[1200:])) > log_score
