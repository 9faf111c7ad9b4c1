"""Means and variances over random vectors: right, and one vector at a time."""

import jax
import jax.numpy as jnp
import numpy as np

from credo.methods.sgmcmc.moments import mean_of, variance_of
from credo.precision import double

DIM = 1_000


def draw(key):
    return 3.0 + jnp.arange(DIM) * jax.random.normal(key, (DIM,))


def test_they_are_those_of_all_vectors_together():
    with double():
        keys = jax.random.split(jax.random.key(0), 64)
        draws = jax.vmap(draw)(keys)
        np.testing.assert_allclose(mean_of(draw, keys), np.mean(draws, axis=0), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(variance_of(draw, keys), np.var(draws, axis=0, ddof=1), rtol=1e-12, atol=1e-12)


def test_few_vectors_are_held():
    keys = jax.random.split(jax.random.key(0), 64)
    compiled = jax.jit(lambda keys: variance_of(draw, keys)).lower(keys).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 16 * 8 * DIM
