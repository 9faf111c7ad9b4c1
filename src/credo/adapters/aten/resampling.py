"""Operators of ATen that read an image between its pixels: resizing, and sampling on a grid of places."""

import itertools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np

BILINEAR, NEAREST, BICUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)
CUBIC = -0.75  # the parameter of the cubic kernel (Keys 1981) that torch takes; where it prevents aliasing, −0.5


# resizing -----------------------------------------------------------------------------------------------------------


def nearest(x, output_size, scale_factors):
    for axis in (2, 3):
        size = x.shape[axis]
        num = output_size[axis - 2] if output_size else int(size * scale_factors[axis - 2])
        step = 1 / scale_factors[axis - 2] if scale_factors else size / num
        x = jnp.take(x, np.minimum((np.arange(num) * step).astype(int), size - 1), axis=axis)
    return x


def bilinear(x, output_size, align_corners, scale_factors):
    for axis in (2, 3):
        size = x.shape[axis]
        num = output_size[axis - 2] if output_size else int(size * scale_factors[axis - 2])
        if align_corners:
            place = np.arange(num) * ((size - 1) / max(num - 1, 1))
        else:
            step = 1 / scale_factors[axis - 2] if scale_factors else size / num
            place = np.maximum((np.arange(num) + 0.5) * step - 0.5, 0.0)
        low = np.minimum(place.astype(int), size - 1)
        mix = np.zeros((num, size))
        np.add.at(mix, (np.arange(num), low), 1 - (place - low))
        np.add.at(mix, (np.arange(num), np.minimum(low + 1, size - 1)), place - low)
        x = _mixed(x, mix, axis)
    return x


def without_aliasing(kernel, reach: float):
    """Means under ``kernel``, as wide as a pixel of the result where that is the larger one."""

    def resized(x, output_size, align_corners, *scales):
        for axis, num, given in zip((2, 3), output_size, scales or (None, None), strict=True):
            size = x.shape[axis]
            step = 1 / given if given else size / num
            if align_corners:
                step = (size - 1) / (num - 1) if num > 1 else 0.0
            wide = max(step, 1.0)
            centre = step * (np.arange(num)[:, None] + 0.5)
            place = np.arange(size)
            low = np.maximum((centre - reach * wide + 0.5).astype(int), 0)
            high = np.minimum((centre + reach * wide + 0.5).astype(int), size)
            mix = np.where((place >= low) & (place < high), kernel((place - centre + 0.5) / wide), 0.0)
            x = _mixed(x, mix / mix.sum(axis=1, keepdims=True), axis)
        return x

    return resized


def _mixed(x, mix, axis: int):
    """``mix`` (new, old) along ``axis``."""
    return jnp.moveaxis(jnp.tensordot(x, mix.astype(x.dtype), ((axis,), (1,))), -1, axis)


def triangle(t):
    return np.maximum(1 - np.abs(t), 0.0)


def cubic(t, a=CUBIC, of=np):
    t = abs(t)
    inner = ((a + 2) * t - (a + 3)) * t**2 + 1
    outer = a * (((t - 5) * t + 8) * t - 4)
    return of.where(t < 1, inner, of.where(t < 2, outer, 0.0))


# a grid of places ---------------------------------------------------------------------------------------------------


def grid_sample(x, grid, mode=BILINEAR, padding=ZEROS, align_corners=False):
    """x (N, C, …) at the places of grid (N, …, n), the last axis of the image first, each from −1 to 1."""
    sizes = x.shape[2:]
    places = [_pixel(grid[..., -1 - i], size, align_corners) for i, size in enumerate(sizes)]
    if mode != BICUBIC:
        places = [_inside(p, size, padding, align_corners) for p, size in zip(places, sizes, strict=True)]
    taps = [_taps(place, mode) for place in places]
    rows = jnp.arange(x.shape[0]).reshape(-1, *(1,) * len(sizes))
    total: Any = 0.0
    for each in itertools.product(*taps):
        indices = [index for index, _ in each]
        weight: Any = math.prod(weight for _, weight in each)
        if mode == BICUBIC:
            indices = [_inside(i, size, padding, align_corners) for i, size in zip(indices, sizes, strict=True)]
        for index, size in zip(indices, sizes, strict=True):
            weight = jnp.where((index >= 0) & (index <= size - 1), weight, 0.0)
        whole = [jnp.clip(i, 0, size - 1).astype(int) for i, size in zip(indices, sizes, strict=True)]
        found = jnp.moveaxis(x, 1, -1)[(rows, *whole)]  # (N, …, C)
        total = total + found * weight[..., None]
    return jnp.moveaxis(total, -1, 1)


def _pixel(place, size: int, align_corners: bool):
    return (place + 1) / 2 * (size - 1) if align_corners else ((place + 1) * size - 1) / 2


def _inside(place, size: int, padding: int, align_corners: bool):
    """Beyond the image, the nearest place on it, or its mirror image there; as it is for zeros."""
    if padding == ZEROS:
        return place
    if padding == REFLECTION:
        low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
        if span == 0:
            return jnp.zeros_like(place)
        away = jnp.abs(place - low)
        turns, rest = jnp.floor(away / span), jnp.mod(away, span)
        place = jnp.where(turns % 2 == 0, rest + low, span - rest + low)
    return jnp.clip(place, 0, size - 1)


def _taps(place, mode: int) -> list:
    """(pixel, weight) of each neighbour along one axis."""
    if mode == NEAREST:
        return [(jnp.round(place), 1.0)]
    low = jnp.floor(place)
    offsets = (0, 1) if mode == BILINEAR else (-1, 0, 1, 2)
    kernel = (lambda t: 1 - abs(t)) if mode == BILINEAR else (lambda t: cubic(t, of=jnp))
    return [(low + k, kernel(place - low - k)) for k in offsets]


RESAMPLING = {
    "upsample_nearest2d.vec": nearest,
    "upsample_bilinear2d.vec": bilinear,
    "_upsample_bilinear2d_aa": without_aliasing(triangle, 1.0),
    "_upsample_bicubic2d_aa": without_aliasing(lambda t: cubic(t, -0.5), 2.0),
    **{f"grid_sampler_{n}d": grid_sample for n in (2, 3)},
}
