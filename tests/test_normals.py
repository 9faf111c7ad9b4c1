"""Normal numbers: those of JAX, to the last bit."""

import jax
import numpy as np
import pytest

from credo.normals import normal
from credo.precision import double


@pytest.mark.parametrize(("is_double", "dtype"), [(False, np.float32), (True, np.float32), (True, np.float64)])
def test_they_are_those_of_jax(is_double, dtype):
    with double(is_double):
        key = jax.random.key(3)
        for shape in ((1001,), (2, 3), ()):
            ours = jax.jit(lambda key, shape=shape: normal(key, shape, dtype))(key)
            np.testing.assert_array_equal(ours, jax.random.normal(key, shape, dtype))
            assert ours.dtype == dtype


def test_other_generators_are_left_to_jax():
    key = jax.random.key(3, impl="rbg")
    np.testing.assert_array_equal(normal(key, (5,)), jax.random.normal(key, (5,)))
