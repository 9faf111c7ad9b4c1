"""Convolutions of many narrow groups, as depthwise ones are, by products of numbers along the groups.

XLA takes such groups by loops of scalars. Here groups g are the last axis, and each product is of all of them:
    y(n, p, o, g) = Σ_w Σ_i x(n, p + w, i, g) k(w, i, o, g)     written out over the places w of the window
    k(n, p, o, g) = Σ_w Σ_i x(i, p + w, n, g) y(i, w, o, g)     as derivatives have it, where the window is large: by a
                                                                loop over the places p of the answer
The sums of the second are of ``FOLD`` parts beside each other, then by a product with ones: XLA sums down columns one
number at a time.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from credo.places import cut, fitting, reach, scaled

FOLD = 8


def by_features(x, kernel, num_groups: int, strides, steps):
    """Of x (rows, *places, g i), padded, and ``kernel`` (*window, i, g o): (rows, *places, g o)."""
    *window, num_in, num_out = kernel.shape
    x = _groups_last(x, num_groups)  # (rows, *places, i, g)
    kernel = _groups_last(kernel, num_groups)  # (*window, i, o, g)
    answer = fitting(x.shape[1:-2], window, strides, steps)
    total = jnp.zeros((), x.dtype)
    for at in np.ndindex(*window):
        seen = cut(x, scaled(at, steps), answer, strides)
        total = total + sum(seen[..., i, None, :] * kernel[(*at, i)] for i in range(num_in))
    return jnp.moveaxis(total, -1, -2).reshape(len(x), *answer, num_out)


def by_rows(x, kernel, num_groups: int, strides, steps):
    """Of x (g n, *places, i), padded, and ``kernel`` (*window, i, g o): (n, *places, g o)."""
    *window, _, num_out = kernel.shape
    x = _groups_last(jnp.moveaxis(x, (-1, 0), (0, -1)), num_groups)  # (i, *places, n, g)
    kernel = _groups_last(jnp.moveaxis(kernel, -2, 0), num_groups)  # (i, *window, o, g)
    num_rows, num_own = x.shape[-2], kernel.shape[-2]
    answer = fitting(x.shape[1:-2], window, strides, steps)

    def at(start):
        seen = lax.dynamic_slice(x, start, (len(x), *reach(window, steps), num_rows, num_groups))
        seen = cut(seen, [0] * len(window), window, steps)
        return jnp.stack([_total(seen[..., n, :], kernel[..., o, :]) for n in range(num_rows) for o in range(num_own)])

    starts = [(0, *scaled(place, strides), 0, 0) for place in np.ndindex(*answer)]
    found = lax.map(at, jnp.asarray(np.array(starts, np.int32).reshape(-1, x.ndim)))  # (places, n o, g)
    found = found.reshape(*answer, num_rows, num_own, num_groups)
    return jnp.moveaxis(jnp.moveaxis(found, -3, 0), -1, -2).reshape(num_rows, *answer, num_out)


def _total(a, b):
    """Σ a b over all axes but the last."""
    axis = int(np.argmax(a.shape[:-1]))
    num_parts = min(FOLD, a.shape[axis])
    size, rest = divmod(a.shape[axis], num_parts)

    def part(first: int, size: int):
        return math.prod(lax.slice_in_dim(each, first, first + size, axis=axis) for each in (a, b))

    parts: list[Any] = [sum(part(i * size, size) for i in range(num_parts))]
    parts += [part(num_parts * size, rest)] if rest else []
    columns = [each.reshape(-1, a.shape[-1]) for each in parts]
    return sum(jnp.ones(len(each), each.dtype) @ each for each in columns)


def _groups_last(array, num_groups: int):
    """(…, g k) -> (…, k, g)."""
    return jnp.moveaxis(array.reshape(*array.shape[:-1], num_groups, -1), -2, -1)
