"""Means and variances over random vectors, one of which is held at a time: those of ten million weights are large."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def mean_of(function: Callable, keys) -> Float[Array, " dim"]:
    """The mean of ``function(key)`` over the keys."""
    return mean_and_variance(function, keys)[0]


def variance_of(function: Callable, keys) -> Float[Array, " dim"]:
    """The unbiased variance of each entry."""
    return mean_and_variance(function, keys)[1]


def mean_and_variance(function: Callable, keys) -> tuple[Float[Array, " dim"], Float[Array, " dim"]]:
    """Both (Welford 1962)."""

    def add(carry, key):
        mean, squares, count = carry
        value, count = function(key), count + 1
        step = value - mean
        mean = mean + step / count
        return (mean, squares + step * (value - mean), count), None

    shape = jax.eval_shape(function, keys[0])
    zero = jnp.zeros(shape.shape, shape.dtype)
    mean, squares, _ = jax.lax.scan(add, (zero, zero, jnp.zeros((), shape.dtype)), keys)[0]
    return mean, squares / (len(keys) - 1)
