"""The Jacobian of a network's outputs from the inputs and derivatives of its layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credo.linalg.diagonal import Diagonal
from credo.linalg.kronecker import Block, Kronecker
from credo.model.layers import find_layers, jacobian
from credo.precision import double
from credo.predict.by_layers import alone, covariances, groups, joint

RANDOM = np.random.default_rng(0)

BIASES = {  # of an array (2, 3): how many coordinates, and how they lie in it
    "one each": (6, lambda u: u.reshape(2, 3)),
    "along the first axis": (3, lambda u: u),
    "along the last axis": (2, lambda u: u[:, None]),
    "one for all": (1, lambda u: u[0]),
    "reversed": (3, lambda u: u[::-1]),
    "stacked": (6, lambda u: jnp.stack([u[:3], u[3:]])),
    "of columns": (6, lambda u: jnp.stack(jnp.unstack(u.reshape(2, 3), axis=1), axis=1)),
    "tiled": (3, lambda u: jnp.tile(u, (2, 1))),
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


MATRICES = {  # of u (6,), a matrix (3, 2)
    "of columns": lambda u: jnp.stack([u[:3], u[3:]], axis=1),
    "of rows": lambda u: jnp.stack([u[:2], u[2:4], u[4:]]),
    "of rows turned round": lambda u: jnp.stack(jnp.unstack(u.reshape(3, 2))[::-1]),
    "of one part": lambda u: jnp.tile(u.reshape(3, 2), (1, 1)),
}


@pytest.mark.parametrize("name", MATRICES)
def test_weights_that_are_put_together(name):
    def outputs(u, row):
        return row @ MATRICES[name](u)

    with double():
        layers = find_layers(outputs, jnp.arange(6.0), jnp.ones(3))
    (layer,) = layers.layers
    np.testing.assert_array_equal(layer.index, MATRICES[name](jnp.arange(6)))


def test_weights_that_are_tiled_are_tied():
    with double():
        layers = find_layers(lambda u, row: row @ jnp.tile(u.reshape(3, 2), (1, 2)), jnp.arange(6.0), jnp.ones(3))
    assert layers.layers == ()


W = slice(0, 6)  # of u: a matrix
BESIDE = {  # of a row (3,): what comes out, and for each layer the one that it has its derivatives from
    "a bias": (lambda u, x: jnp.tanh(x @ u[W].reshape(3, 2) + u[6:8]), [0, 0]),
    "in front": (lambda u, x: jnp.tanh(u[6:8] + x @ u[W].reshape(3, 2)), [0, 0]),
    "of a matrix from the left": (lambda u, x: jnp.tanh(u[W].reshape(2, 3) @ x + u[6:8]), [0, 0]),
    "of two layers": (
        lambda u, x: jnp.tanh(x @ u[W].reshape(3, 2) + u[6:8]) @ u[8:12].reshape(2, 2) + u[12:14],
        [0, 0, 2, 2],
    ),
    "before the product": (lambda u, x: jnp.tanh(x + u[6:9]) @ u[W].reshape(3, 2), [0, 1]),
    "of a product that is used again": (
        lambda u, x: jnp.tanh((p := x @ u[W].reshape(3, 2)) + u[6:8]) * p,
        [0, 1],
    ),
    "from which the product is taken": (lambda u, x: jnp.tanh(u[6:8] - x @ u[W].reshape(3, 2)), [0, 1]),
    "and another": (lambda u, x: jnp.tanh((x @ u[W].reshape(3, 2) + u[6:8]) + u[8:10]), [0, 0, 2]),
    "in another order": (lambda u, x: jnp.tanh(x @ u[W].reshape(3, 2) + u[6:8][::-1]), [0, 1]),
    "one for all": (lambda u, x: jnp.tanh(x @ u[W].reshape(3, 2) + u[6]), [0, 1]),
    "of places": (lambda u, x: jnp.tanh(jnp.outer(x, x) @ u[W].reshape(3, 2) + u[6:12].reshape(3, 2)).ravel(), [0, 1]),
    "added twice": (
        lambda u, x: jnp.tanh(jnp.tanh(x @ u[W].reshape(3, 2) + u[6:8]) @ u[8:12].reshape(2, 2) + u[6:8]),
        [0, 1, 2],
    ),
}


@pytest.mark.parametrize("product", [joint, alone])
@pytest.mark.parametrize("name", BESIDE)
def test_a_bias_has_the_derivatives_of_its_product(name, product):
    outputs, beside = BESIDE[name]
    with double():
        u, x = jnp.asarray(RANDOM.normal(size=14)), jnp.asarray(RANDOM.normal(size=(5, 3)))
        layers = find_layers(outputs, u, x[0])
        _, _, back = layers.linearised(u, x[0])
        g = jax.vmap(back)(jnp.eye(layers.num_outputs))
        sd = RANDOM.uniform(0.5, 2, size=14)
        _, found = covariances(outputs, Diagonal(sd), None, u, x, product)
        root = jax.vmap(lambda row: jax.jacrev(outputs)(u, row))(x) * sd
        expected = product(root, root)
    assert layers.beside == beside
    for i, other in enumerate(beside):
        np.testing.assert_array_equal(g[i][0], g[other][0])
    np.testing.assert_allclose(found, expected, rtol=1e-11)


def rotation(size):
    return np.linalg.qr(RANDOM.normal(size=(size, size)))[0]


@pytest.mark.parametrize("product", [joint, alone])
@pytest.mark.parametrize("name", BESIDE)
def test_covariances_of_factors_and_of_outputs_that_stay(name, product):
    """Each layer with factors of its own, a bias others than its product; outputs before and behind do not change."""

    def outputs(u, x):
        return jnp.concatenate([x[:1], BESIDE[name][0](u, x), jnp.ones(2)])

    with double():
        u, x = jnp.asarray(RANDOM.normal(size=14)), jnp.asarray(RANDOM.normal(size=(5, 3)))
        layers = find_layers(outputs, u, x[0])
        blocks = []
        for index in groups(layers):
            sd = RANDOM.uniform(0.5, 2, size=index.shape)
            is_rest = index.size == layers.rest.size and len(blocks) == len(layers.layers)
            factors = () if is_rest else tuple(map(rotation, index.shape))
            blocks.append(Block(index, sd, *factors))
        scale = Kronecker(tuple(blocks))
        z, found = covariances(outputs, scale, None, u, x, product)
        J = jax.vmap(lambda row: jax.jacrev(outputs)(u, row))(x)
        root = jax.vmap(jax.vmap(scale.transpose_matvec))(J)
        expected = product(root, root)
    assert layers.reached.tolist() == list(range(1, z.shape[1] - 2))
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-14)


REACHED = {  # what a model's outputs are of u (14,) and a row (3,), the free coordinates, and which of them change
    "a known scale": (lambda u, x: jnp.stack([x @ u[:3], jnp.log(2.0)]), range(14), [0]),
    "a scale of its own": (lambda u, x: jnp.stack([x @ u[:3], u[3]]), range(14), [0, 1]),
    "a scale that is not free": (lambda u, x: jnp.stack([x @ u[:3], u[3]]), range(3), [0]),
    "a scale in a call": (lambda u, x: jax.jit(lambda a: jnp.append(a, jnp.log(2.0)))(x @ u[:3]), range(14), [0]),
    "of several columns": (
        lambda u, x: jnp.stack([x @ u[:6].reshape(3, 2), jnp.zeros(2)], axis=-1).reshape(-1),
        range(14),
        [0, 2],
    ),
    "a class that is zero": (lambda u, x: jnp.append(jnp.zeros(1), x @ u[:6].reshape(3, 2))[::-1], range(14), [0, 1]),
    "a slice of a batch": (lambda u, x: jnp.stack([x[None] @ u[:3], jnp.ones(1)], -1)[0], range(14), [0]),
    "mixed": (lambda u, x: jnp.stack([x @ u[:3], 1.0]) @ jnp.ones((2, 2)), range(14), [0, 1]),
    "a loop": (
        lambda u, x: jax.lax.scan(lambda c, r: (c + r * u[0], c), jnp.zeros(2), x)[0],
        range(14),
        [0, 1],
    ),
    "a choice": (
        lambda u, x: jnp.stack([jax.lax.cond(u[0] > 0, lambda a: a * u[1], jnp.cos, x[0]), x[1]]),
        range(14),
        [0],
    ),
    "nothing": (lambda u, x: x[:2], range(14), [0, 1]),
}


@pytest.mark.parametrize("name", REACHED)
def test_outputs_that_the_coordinates_change(name):
    outputs, free, reached = REACHED[name]
    with double():
        u, x = jnp.asarray(RANDOM.normal(size=14)), jnp.asarray(RANDOM.normal(size=3))
        layers = find_layers(outputs, u, x).within(np.asarray(free))
        slope = jax.jacrev(outputs)(u, x)[:, np.asarray(free)]
    np.testing.assert_array_equal(layers.reached, reached)
    others = np.setdiff1d(np.arange(layers.num_outputs), reached)
    np.testing.assert_array_equal(slope[others], 0.0)
