"""Normal numbers: those of JAX, to the last bit."""

import jax
import numpy as np
import pytest

from credo.normals import below, fold_in, normal, normal_apart, split
from credo.precision import double


@pytest.mark.parametrize(("is_double", "dtype"), [(False, np.float32), (True, np.float32), (True, np.float64)])
def test_they_are_those_of_jax(is_double, dtype):
    with double(is_double):
        key = jax.random.key(3)
        for shape in ((1001,), (2, 3), ()):
            ours = jax.jit(lambda key, shape=shape: normal(key, shape, dtype))(key)
            np.testing.assert_array_equal(ours, jax.random.normal(key, shape, dtype))
            assert ours.dtype == dtype


@pytest.mark.parametrize("is_double", [False, True])
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_keys_and_places_are_those_of_jax(is_double, impl):
    stops = 1, 1797, 100_000, 2**31 - 1

    def ours(key, i):
        return fold_in(key, i), *split(key), *(below(key, stop) for stop in stops)

    def theirs(key, i):
        return jax.random.fold_in(key, i), *jax.random.split(key), *(jax.random.randint(key, (), 0, n) for n in stops)

    with double(is_double):
        for seed in range(3):
            key = jax.random.key(seed, impl=impl)
            for one, other in zip(jax.jit(ours)(key, 7 * seed), jax.jit(theirs)(key, 7 * seed), strict=True):
                assert one.dtype == other.dtype
                assert one == other


def test_a_kernel_of_its_own_changes_no_number():
    key = jax.random.key(3)
    apart = jax.jit(lambda count: normal_apart(key, (1001,), np.float32, count))(0)
    np.testing.assert_array_equal(apart, jax.random.normal(key, (1001,), np.float32))


def test_other_generators_are_left_to_jax():
    key = jax.random.key(3, impl="rbg")
    np.testing.assert_array_equal(normal(key, (5,)), jax.random.normal(key, (5,)))
