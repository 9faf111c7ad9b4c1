"""A function in batches is that of all rows at once, traced once, whatever the number of rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credo.batches import in_batches


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10, 11, 0])
@pytest.mark.parametrize("number", [0, 1, 10])
def test_rows_in_batches_of_any_size(number, size):
    rows = {"x": np.arange(3.0 * number, dtype=np.float32).reshape(number, 3), "i": np.arange(number, dtype=np.int32)}
    seen = []

    def one(row):
        seen.append(row["x"].shape)
        return jnp.sum(row["x"] ** 2), jnp.stack([row["i"], row["i"] + 1])

    total, pair = jax.jit(lambda rows: in_batches(one, rows, size))(rows)
    np.testing.assert_array_equal(total, np.sum(rows["x"] ** 2, axis=1))
    np.testing.assert_array_equal(pair, np.stack([rows["i"], rows["i"] + 1], axis=1))
    assert seen == [(3,)]


def test_keys_derivatives_and_vmap():
    keys = jax.random.split(jax.random.key(0), 5)
    draw = jax.random.normal
    np.testing.assert_array_equal(in_batches(draw, keys, 2), jax.vmap(draw)(keys))
    z = np.arange(5.0, dtype=np.float32)

    def loss(scale):
        return jnp.sum(in_batches(lambda z: jnp.sin(scale * z), z, 2))

    np.testing.assert_allclose(jax.grad(loss)(2.0), np.sum(z * np.cos(2 * z)), rtol=1e-5)
    scales = jnp.asarray([1.0, 2.0])
    np.testing.assert_allclose(jax.vmap(loss)(scales), [loss(scale) for scale in scales], rtol=1e-5)
