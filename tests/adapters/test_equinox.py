"""Equinox modules as networks: rows mapped, integers and statistics constant, weights back."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credo
from credo.adapters import from_equinox, to_equinox
from credo.model.layers import find_layers
from credo.nn import BayesianNetwork, Gaussian
from credo.precision import double

X = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)


class Block(eqx.Module):
    """A layer whose units are reordered, normalised by statistics of training, and dropped out."""

    linear: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout
    order: jax.Array

    def __init__(self):
        self.linear = eqx.nn.Linear(2, 3, key=jax.random.key(0))
        self.norm = eqx.nn.BatchNorm(3, "batch", mode="batch")
        self.dropout = eqx.nn.Dropout(0.5)
        self.order = jnp.array([2, 0, 1])

    def __call__(self, row, state):
        h, state = self.norm(self.linear(row), state)
        return self.dropout(h)[self.order], state


def test_a_module_with_state_is_frozen_and_goes_back():
    module, state = eqx.nn.make_with_state(Block)()
    with pytest.warns(UserWarning, match=r"\(norm\) keeps the means.*Dropout \(dropout\) is off.*Arrays \(1\) of"):
        network = from_equinox(module, X, state=state)
    assert len(network.notes) == 3
    assert jax.tree.map(np.shape, network.params) == {
        "linear": {"weight": (3, 2), "bias": (3,)},
        "norm": {"weight": (3,), "bias": (3,)},
    }
    frozen = eqx.nn.inference_mode(module)
    expected = jax.vmap(lambda row: frozen(row, state)[0])(X)
    np.testing.assert_allclose(network.apply(network.params, X), expected, rtol=1e-6)
    back = to_equinox(module, jax.tree.map(lambda leaf: leaf + 1.0, network.params))
    np.testing.assert_array_equal(back.linear.weight, module.linear.weight + 1.0)
    np.testing.assert_array_equal(back.order, module.order)
    assert back.dropout.inference is False


@pytest.mark.filterwarnings("ignore:Batch normalisation")
def test_arrays_of_a_state_are_no_weights():
    """A state made apart leaves its first values in the module; and a module may hold its state."""
    module = Block()
    state = eqx.nn.State(module)

    class Whole(eqx.Module):
        block: Block
        state: eqx.nn.State

        def __call__(self, row):
            return self.block(row, self.state)[0]

    own = from_equinox(module, X, state=state).params
    assert jax.tree.map(np.shape, own) == {
        "linear": {"weight": (3, 2), "bias": (3,)},
        "norm": {"weight": (3,), "bias": (3,)},
    }
    whole = Whole(module, state)
    assert jax.tree.map(np.shape, from_equinox(whole, X).params) == {"block": jax.tree.map(np.shape, own)}
    back = to_equinox(whole, {"block": jax.tree.map(lambda leaf: leaf + 1.0, own)})
    assert jax.tree.all(jax.tree.map(np.array_equal, back.state, state))


def test_layers_are_found_and_constants_take_the_precision_of_a_fit():
    network = from_equinox(eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0)))
    posterior = credo.fit(
        BayesianNetwork(network.apply, network.params, head=Gaussian(0.5)).given(X, X[:, 0]),
        credo.Laplace(credo.laplace.Kronecker(), num_steps=0),
        progress=False,
    )
    assert posterior.mean()["weights"]["layers"]["0"]["weight"].dtype == np.float64
    with double():
        u, unravel = jax.flatten_util.ravel_pytree(jax.tree.map(lambda w: jnp.asarray(w, float), network.params))
        layers = find_layers(lambda u, row: network.apply(unravel(u), row[None])[0], u, jnp.asarray(X[0], float))
    assert len(layers.rest) == 0


def test_modules_that_cannot_be_brought():
    mlp = eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0))
    with pytest.raises(credo.CredoError, match="takes an equinox module; got PjitFunction"):
        from_equinox(jnp.tanh)
    with pytest.raises(credo.CredoError, match="mixed precision"):
        from_equinox(eqx.tree_at(lambda m: m.layers[0].weight, mlp, mlp.layers[0].weight.astype(jnp.float16)))
    with pytest.raises(credo.CredoError, match="weights are bfloat16"):
        from_equinox(jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16) if eqx.is_array(leaf) else leaf, mlp))
    with pytest.raises(credo.CredoError, match="changes with the rows beside it"):
        from_equinox(mlp, X, call=lambda module, x: jax.vmap(module)(x - x.mean(0)))
    with pytest.raises(credo.CredoError, match="cannot be applied to rows"):
        from_equinox(eqx.nn.make_with_state(Block)()[0], X)
    unchecked = from_equinox(mlp, call=lambda module, x: jax.vmap(module)(x - x.mean(0)))
    model = BayesianNetwork(unchecked.apply, unchecked.params, head=Gaussian(0.5))
    with pytest.raises(credo.CredoError, match="changes with the rows beside it"):
        model.given(X, X[:, 0])
    params = from_equinox(mlp).params
    wrong = {"layers": {**params["layers"], "0": {**params["layers"]["0"], "weight": np.zeros(2)}}}
    with pytest.raises(credo.CredoError, match=r"'layers.0.weight' has shape \(2,\)"):
        to_equinox(mlp, wrong)


class Words(eqx.Module):
    """A table of vectors that is indexed."""

    table: eqx.nn.Embedding
    out: eqx.nn.Linear

    def __init__(self):
        self.table, self.out = eqx.nn.Embedding(4, 3, key=jax.random.key(0)), eqx.nn.Linear(3, 1, key=jax.random.key(1))

    def __call__(self, row):
        return self.out(self.table(row))


def test_a_network_applies_its_own_weights_outside_of_a_program():
    x = np.array([0, 3, 1])
    network = from_equinox(Words(), x)
    alone = network.apply(network.params, x)
    np.testing.assert_allclose(alone, jax.jit(network.apply)(network.params, x), rtol=1e-5)
    np.testing.assert_allclose(alone, jax.vmap(Words())(x), rtol=1e-5)


class Attention(eqx.Module):
    query: jax.Array
    key: jax.Array
    value: jax.Array

    def __call__(self, x):
        return (x @ self.query) * (x @ self.key) + x @ self.value


class Holder(eqx.Module):
    attention: Attention

    def __call__(self, x):
        return self.attention(x)


def test_a_weight_called_value_is_one_among_the_others():
    keys = jax.random.split(jax.random.key(0), 3)
    module = Holder(Attention(*(jax.random.normal(key, (3, 2)) for key in keys)))
    x = np.random.default_rng(0).normal(size=(4, 3))
    network = from_equinox(module, x)
    assert sorted(network.params["attention"]) == ["key", "query", "value"]
    np.testing.assert_allclose(network.apply(network.params, x), jax.vmap(module)(x.astype(np.float32)), rtol=1e-5)


def test_what_goes_from_row_to_row_is_refused_though_the_first_is_left_alone():
    module = eqx.nn.Linear(3, 1, key=jax.random.key(0))
    x = np.random.default_rng(0).normal(size=(8, 3))
    with pytest.raises(credo.CredoError, match="changes with the rows beside it"):
        from_equinox(module, x, call=lambda module, x: jnp.cumsum(jax.vmap(module)(x), axis=0))


def test_rows_of_another_rank_than_a_convolution_has():
    with pytest.raises(credo.CredoError, match="cannot be applied to rows"):
        from_equinox(eqx.nn.Conv2d(1, 2, 3, key=jax.random.key(0)), np.ones((5, 3)))


def test_rows_that_are_cast_to_the_module_s_own_precision():
    """As images of bytes are, before a convolution, which takes weights of the same alone."""

    class Images(eqx.Module):
        layer: eqx.nn.Conv2d

        def __call__(self, x):
            return self.layer(jnp.moveaxis(x.astype(jnp.float32) / 255.0, -1, 0)).mean((1, 2))

    x = np.random.default_rng(0).integers(0, 255, size=(12, 6, 6, 1)).astype(np.uint8)
    network = from_equinox(Images(eqx.nn.Conv2d(1, 3, 3, key=jax.random.key(0))), x)
    model = credo.nn.BayesianNetwork(network.apply, network.params, head=credo.nn.Categorical())
    posterior = credo.fit(model.given(x, np.arange(12) % 3), credo.Laplace(num_steps=5), progress=False)
    assert np.all(np.isfinite(posterior.predict(x).probs))
