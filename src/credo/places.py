"""Places of images, of any number of axes, which stand after the rows: (rows, *places, …)."""

import math

import jax.numpy as jnp
from jax import lax


def padded(x, padding, spread):
    """``x`` (rows, *places, features) with zeros before and after, and ``spread`` − 1 of them between places."""
    inside = [(low, high, step - 1) for (low, high), step in zip(padding, spread, strict=True)]
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *inside, (0, 0, 0)])


def reach(window, steps) -> list[int]:
    """How many places it covers along each axis."""
    return [(size - 1) * step + 1 for size, step in zip(window, steps, strict=True)]


def fitting(sizes, window, strides, steps) -> list[int]:
    """At how many places along each axis of an image a window lies within it."""
    along = zip(sizes, reach(window, steps), strides, strict=True)
    return [max((size - across) // stride + 1, 0) for size, across, stride in along]


def cut(x, start, sizes, steps):
    """``x`` from the place ``start`` on, so many places of each axis."""
    ends = [first + across for first, across in zip(start, reach(sizes, steps), strict=True)]
    rest = x.shape[1 + len(ends) :]
    return lax.slice(x, (0, *start, *[0] * len(rest)), (len(x), *ends, *rest), (1, *steps, *[1] * len(rest)))


def scaled(place, steps) -> list[int]:
    return [math.prod(pair) for pair in zip(place, steps, strict=True)]
