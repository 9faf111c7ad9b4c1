"""The Jacobian of a network's outputs from the inputs and derivatives of its layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credo.model.layers import find_layers, jacobian
from credo.precision import double

RANDOM = np.random.default_rng(0)

BIASES = {  # of an array (2, 3): how many coordinates, and how they lie in it
    "one each": (6, lambda u: u.reshape(2, 3)),
    "along the first axis": (3, lambda u: u),
    "along the last axis": (2, lambda u: u[:, None]),
    "one for all": (1, lambda u: u[0]),
    "reversed": (3, lambda u: u[::-1]),
    "transposed": (6, lambda u: u.reshape(3, 2).T),
    "twice in a row": (2, lambda u: jnp.broadcast_to(u[:, None], (2, 3)).reshape(3, 2).T),
}


@pytest.mark.parametrize("name", BIASES)
def test_biases_that_places_share(name):
    dim, placed = BIASES[name]
    matrix = RANDOM.normal(size=(6, 4))

    def outputs(u, row):
        return jnp.tanh(row + placed(u)).ravel() @ matrix

    with double():
        u, row = jnp.asarray(RANDOM.normal(size=dim)), jnp.asarray(RANDOM.normal(size=(2, 3)))
        layers = find_layers(outputs, u, row)
        _, inputs, back = layers.linearised(u, row)
        derivatives = jax.vmap(back)(jnp.eye(4))
        (layer,) = layers.layers
        found = jacobian([a[None] for a in inputs[0]], [g[None] for g in derivatives[0]])[0]
        expected = jax.jacrev(outputs)(u, row)[:, layer.index.ravel()]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)
