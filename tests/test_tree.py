"""Pytree helpers keep dtypes, also where leaves differ in them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credo import tree
from credo.precision import double

pytestmark = pytest.mark.usefixtures("strict")


@pytest.fixture
def mixed():
    with double():
        yield {"w": jnp.arange(6, dtype=jnp.float32).reshape(2, 3), "b": (jnp.asarray(2.0, jnp.float64),)}


def dtypes(t):
    return [leaf.dtype for leaf in jax.tree.leaves(t)]


def test_axpy(mixed):
    for a in (0.5, jnp.asarray(0.5, jnp.float64)):
        result = tree.axpy(a, mixed, mixed)
        assert dtypes(result) == dtypes(mixed)
        np.testing.assert_allclose(result["w"], 1.5 * np.arange(6.0).reshape(2, 3))
        np.testing.assert_allclose(result["b"][0], 3.0)


def test_dot(mixed):
    result = tree.dot(mixed, mixed)
    assert result.dtype == jnp.float64
    assert result == 55 + 4
    assert tree.dot({}, {}) == 0


def test_normal_like(mixed):
    like = {"x": jnp.zeros(4000, jnp.float32), "y": jnp.zeros((2, 2000), jnp.float64)}
    draw = tree.normal_like(jax.random.key(0), like)
    assert dtypes(draw) == dtypes(like)
    # standard error of a correlation is 1/√4000 = 0.016, of a variance 0.022: 5 of them, false alarm 1e-6
    assert abs(np.corrcoef(draw["x"], draw["y"].ravel())[0, 1]) < 0.08
    assert abs(np.var(draw["x"]) - 1) < 0.11
    assert jax.tree.structure(tree.normal_like(jax.random.key(0), mixed)) == jax.tree.structure(mixed)


def test_where(mixed):
    other = jax.tree.map(jnp.zeros_like, mixed)
    chosen = jax.jit(tree.where)(jnp.asarray(False), mixed, other)
    assert dtypes(chosen) == dtypes(mixed)
    assert float(tree.dot(chosen, chosen)) == 0
