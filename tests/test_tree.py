"""Pytree helpers keep dtypes, also where leaves differ in them."""

import jax
import jax.numpy as jnp
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


def test_dot(mixed):
    result = tree.dot(mixed, mixed)
    assert result.dtype == jnp.float64
    assert result == 55 + 4
    assert tree.dot({}, {}) == 0


def test_where(mixed):
    other = jax.tree.map(jnp.zeros_like, mixed)
    chosen = jax.jit(tree.where)(jnp.asarray(False), mixed, other)
    assert dtypes(chosen) == dtypes(mixed)
    assert float(tree.dot(chosen, chosen)) == 0
