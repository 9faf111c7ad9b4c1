"""What chains of a network are compared by."""

import jax.numpy as jnp
import numpy as np

import credo
from credo import storage
from credo.diagnose import function_space


def network():
    """The target of a network of 50 outputs, and draws of it."""
    params = {"in": np.full((1, 2), 0.1), "out": np.full((2, 50), 0.1)}
    network = credo.nn.BayesianNetwork(
        lambda p, x: jnp.tanh(x @ p["in"]) @ p["out"], params, head=credo.nn.Gaussian(0.1)
    )
    target = network.given(np.linspace(-1.0, 1.0, 30)[:, None], np.zeros((30, 50)))
    return target, np.random.default_rng(0).normal(size=(2, 10, target.dim))


def test_many_outputs_are_compared_by_some_of_them(monkeypatch):
    """Chains of 210 outputs were compared by their weights, which trade places, without a word."""
    target, positions = network()
    whole, _ = function_space.observed(target, positions)
    monkeypatch.setattr(function_space, "MOST_NUMBERS", 20 * 70)
    some, sentence = function_space.observed(target, positions)
    assert some.shape == (2, 10, 70)
    assert sentence is not None
    columns = np.linspace(0, whole.shape[-1] - 1, 70).astype(int)
    np.testing.assert_array_equal(some, whole[..., columns])


def test_draws_that_fill_the_memory_are_looked_at_in_blocks(monkeypatch):
    """Blocks are of one length, so that the last may overlap the one before it; stored draws stay in their file."""
    target, positions = network()
    whole, _ = function_space.observed(target, positions)
    on_disk = storage.stored(positions.shape, positions.dtype)
    on_disk[...] = positions
    for module in (function_space, storage):
        monkeypatch.setattr(module, "AT_ONCE", 7 * positions.shape[2])
    for draws in (positions, on_disk):
        np.testing.assert_allclose(function_space.observed(target, draws)[0], whole, rtol=1e-12)
