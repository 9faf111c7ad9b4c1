"""Flax modules as networks: of nnx and of linen, frozen as in evaluation, weights back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credo
from credo.adapters import from_flax, to_flax
from credo.model.layers import find_layers
from credo.nn import BayesianNetwork, Categorical
from credo.precision import double

linen = pytest.importorskip("flax.linen", reason="it comes with the `oracles` extra")
nnx = pytest.importorskip("flax.nnx")
pytestmark = pytest.mark.oracle
X = np.random.default_rng(0).normal(size=(6, 4, 4, 1)).astype(np.float32)
Y = np.arange(6) % 3


class Convolutional(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.convolution = nnx.Conv(1, 2, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(2, rngs=rngs)
        self.dropout = nnx.Dropout(0.3, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 2, decode=False, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(32, 4, rngs=rngs), nnx.Linear(4, 3, rngs=rngs)])

    def __call__(self, x):
        h = self.dropout(nnx.relu(self.norm(self.convolution(x)))).reshape(x.shape[0], 16, 2)
        h = (h + self.attention(h)).reshape(x.shape[0], -1)
        return self.layers[1](nnx.tanh(self.layers[0](h)))


class Dense(linen.Module):
    @linen.compact
    def __call__(self, x, train):
        h = linen.BatchNorm(use_running_average=not train)(linen.Dense(3)(x.reshape(x.shape[0], -1)))
        return linen.Dropout(0.2, deterministic=not train)(h)


@pytest.fixture(scope="module")
def trained():
    """An nnx module whose statistics are not 0 and 1."""
    module = Convolutional()
    module(3.0 * X + 1.0)
    return module


def test_an_nnx_module_is_frozen_and_goes_back(trained):
    with pytest.warns(UserWarning, match=r"\(norm\) keeps the means and variances.*Dropout \(dropout\) is off"):
        network = from_flax(trained, X)
    frozen = nnx.clone(trained)
    frozen.eval()
    np.testing.assert_allclose(network.apply(network.params, X), frozen(X), rtol=1e-5, atol=1e-6)
    assert network.params["layers"]["1"]["kernel"].shape == (4, 3)
    changed = jax.tree.map(lambda leaf: leaf + 1.0, network.params)
    back = to_flax(trained, changed)
    np.testing.assert_array_equal(back.layers[1].kernel[...], trained.layers[1].kernel[...] + 1.0)
    np.testing.assert_array_equal(back.norm.mean[...], trained.norm.mean[...])
    with pytest.raises(credo.CredoError, match="lack attention.key.bias, .* and 8 more"):
        to_flax(trained, {"layers": changed["layers"]})


@pytest.mark.filterwarnings("ignore:Batch norm")
def test_layers_are_found_in_flax_networks(trained):
    network = from_flax(trained)
    model = BayesianNetwork(network.apply, network.params, head=Categorical())
    posterior = credo.fit(model.given(X, Y), credo.Laplace(credo.laplace.Kronecker()), progress=False)
    assert posterior.predict(X).probs.shape == (6, 3)
    with double():
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), network.params)
        u, unravel = jax.flatten_util.ravel_pytree(params)
        layers = find_layers(lambda u, row: network.apply(unravel(u), row[None])[0], u, jnp.asarray(X[0], float))
    names = np.concatenate(
        [[".".join(k.key for k in path)] * leaf.size for path, leaf in jax.tree_util.tree_leaves_with_path(params)]
    )
    assert set(names[layers.rest]) == {"norm.scale"}


def test_a_linen_module_is_frozen_and_goes_back():
    variables = Dense().init(jax.random.key(0), X, False)
    call = lambda module, x: module(x, train=False)  # noqa: E731
    with pytest.warns(UserWarning, match="The collections batch_stats are constants"):
        network = from_flax(Dense(), X, variables=variables, call=call)
    np.testing.assert_allclose(
        network.apply(network.params, X), Dense().apply(variables, X, train=False), rtol=1e-5, atol=1e-6
    )
    back = to_flax(variables, jax.tree.map(lambda leaf: leaf + 1.0, network.params))
    assert set(back) == {"params", "batch_stats"}
    kernel = variables["params"]["Dense_0"]["kernel"]
    np.testing.assert_array_equal(back["params"]["Dense_0"]["kernel"], kernel + 1.0)


def test_modules_that_cannot_be_brought():
    variables = Dense().init(jax.random.key(0), X, False)
    for call in (None, lambda module, x: module(x, train=True)):  # an argument missing; statistics that are not frozen
        with pytest.raises(credo.CredoError, match="cannot be applied as in evaluation.*Say how to call it"):
            from_flax(Dense(), X, variables=variables, call=call)
    with pytest.raises(credo.CredoError, match="keeps its weights apart"):
        from_flax(Dense(), X)
    with pytest.raises(credo.CredoError, match="holds its own variables"):
        from_flax(Convolutional(), X, variables=variables)
    with pytest.raises(credo.CredoError, match="takes a flax module"):
        from_flax(np.tanh)
    params = variables["params"]
    mixed = {**params, "Dense_0": jax.tree.map(lambda leaf: leaf.astype("float16"), params["Dense_0"])}
    with pytest.raises(credo.CredoError, match="mixed precision"):
        from_flax(Dense(), X, variables={**variables, "params": mixed})
    with pytest.raises(credo.CredoError, match="to_flax takes"):
        to_flax(Dense(), variables["params"])


@pytest.mark.filterwarnings("ignore:Batch norm")
def test_unfrozen_statistics_are_found():
    class Unfrozen(nnx.Module):
        def __init__(self):
            self.norm = nnx.BatchNorm(1, rngs=nnx.Rngs(0))

        def __call__(self, x):
            return self.norm(x, use_running_average=False)

    with pytest.raises(credo.CredoError, match="changes with the rows beside it"):
        from_flax(Unfrozen(), X)


def recurrent_nnx():
    class Recurrent(nnx.Module):
        def __init__(self):
            rngs = nnx.Rngs(0)
            self.layer, self.last = nnx.RNN(nnx.LSTMCell(3, 4, rngs=rngs)), nnx.Linear(4, 2, rngs=rngs)

        def __call__(self, x):
            return self.last(self.layer(x)[:, -1])

    return Recurrent(), {}


def recurrent_linen():
    class Recurrent(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(2)(linen.RNN(linen.GRUCell(4))(x)[:, -1])

    module = Recurrent()
    return module, {"variables": module.init(jax.random.key(0), SEQUENCES)}


SEQUENCES = np.random.default_rng(0).normal(size=(6, 5, 3)).astype(np.float32)


@pytest.mark.parametrize("make", [recurrent_nnx, recurrent_linen])
def test_a_recurrence_that_begins_in_its_own_precision(make):
    """At weights in double precision too, in which fits compute."""
    module, variables = make()
    network = from_flax(module, SEQUENCES, **variables)
    narrow = network.apply(network.params, SEQUENCES)
    with double():
        wide = network.apply(
            jax.tree.map(lambda leaf: np.asarray(leaf, float), network.params), SEQUENCES.astype(float)
        )
    assert wide.dtype == np.float64
    np.testing.assert_allclose(wide, narrow, rtol=1e-5, atol=1e-6)
    model = credo.nn.BayesianNetwork(network.apply, network.params, head=credo.nn.Categorical())
    posterior = credo.fit(model.given(SEQUENCES, np.arange(6) % 2), credo.Laplace(num_steps=0), key=0, progress=False)
    assert np.all(np.isfinite(posterior.predict(SEQUENCES).probs))


def test_a_state_of_nnx_serves_as_weights():
    """Its variables can be called, and are no functions of the model's."""
    nnx = pytest.importorskip("flax.nnx")
    definition, state = nnx.split(nnx.Linear(3, 1, rngs=nnx.Rngs(0)))
    model = BayesianNetwork(lambda params, x: nnx.merge(definition, params)(x), state, head=credo.nn.Gaussian(0.2))
    x = np.random.default_rng(0).normal(size=(30, 3))
    posterior = credo.fit(model.given(x, x[:, 0]), credo.Laplace(), progress=False)
    np.testing.assert_allclose(posterior.predict(x).mean, x[:, 0], atol=0.2)
