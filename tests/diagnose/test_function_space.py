"""What chains of a network are compared by."""

import jax.numpy as jnp
import numpy as np
import pytest

import credo
from credo import storage
from credo.diagnose import function_space
from credo.precision import double


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


def test_chains_are_compared_between_the_rows_too():
    target, positions = network()
    seen, _ = function_space.observed(target, positions)
    index = np.linspace(0, 29, 20).astype(int)
    between = 0.5 * (target.x[index[1:]] + target.x[index[:-1]])
    with double():
        draw = target.flat().constrain(jnp.asarray(positions[1, 3]))
        expected = target.flat().likelihood_distribution(draw, jnp.asarray(np.concatenate([target.x[index], between])))
    np.testing.assert_allclose(seen[1, 3], np.ravel(expected.mean), rtol=1e-6)


@pytest.mark.parametrize(("key", "num_draws"), [(1, 1_000), (4, 3_000)])
def test_chains_that_agree_where_the_data_are_alone_do_not_pass(key, num_draws):
    """Of two clusters, between which the sd of the function is 1.2 to 1.7: chains that began together say 0.4."""
    random = np.random.default_rng(5)
    x = np.r_[random.uniform(-2, -1, 30), random.uniform(1, 2, 30)][:, None]
    y = 0.5 * np.sign(x[:, 0]) + 0.1 * random.normal(size=60)
    random = np.random.default_rng(100 + key)
    a, b, c = random.normal(size=(1, 2)), 0.5 * random.normal(size=2), 0.3 * random.normal(size=(2, 1))
    model = credo.nn.BayesianNetwork(
        lambda p, x: (jnp.tanh(x @ p["a"] + p["b"]) @ p["c"] + p["d"])[:, 0],
        {"a": a, "b": b, "c": c, "d": np.zeros(1)},
        head=credo.nn.Gaussian(0.1),
        prior=credo.nn.Isotropic(0.1),
    )
    method = credo.SGHMC(batch_size=32, num_draws=num_draws)
    posterior = credo.fit(model.given(x, y), method, key=key, progress=False)
    assert np.sqrt(posterior.predict(np.zeros((1, 1))).epistemic)[0] < 0.5
    assert posterior.verdict.status != "pass"
