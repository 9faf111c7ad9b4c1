"""Means and variances over random vectors, one of which is held at a time: those of ten million weights are large."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def mean_of(function: Callable, keys) -> Float[Array, " dim"]:
    """The mean of ``function(key)`` over the keys."""
    return _moments(function, keys)[0]


def variance_of(function: Callable, keys) -> Float[Array, " dim"]:
    """The unbiased variance of each entry (Welford 1962)."""
    return _moments(function, keys)[1] / (len(keys) - 1)


def _moments(function: Callable, keys):
    """The mean, and the sum of squares about it."""

    def add(carry, key):
        mean, squares, count = carry
        value, count = function(key), count + 1
        step = value - mean
        mean = mean + step / count
        return (mean, squares + step * (value - mean), count), None

    shape = jax.eval_shape(function, keys[0])
    zero = jnp.zeros(shape.shape, shape.dtype)
    return jax.lax.scan(add, (zero, zero, jnp.zeros((), shape.dtype)), keys)[0][:2]
