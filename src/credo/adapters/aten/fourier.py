"""Operators of ATen for Fourier transforms and for the complex numbers that they give."""

import math

import jax.numpy as jnp


def scaled(z, size: int, normalization: int):
    """``z`` as it is (0), over √``size`` (1) or over ``size`` (2), whichever way the transform goes."""
    return z if normalization == 0 else z / (size if normalization == 2 else math.sqrt(size))


def _size(x, dim) -> int:
    return math.prod(x.shape[axis] for axis in dim)


def of_real(x, dim, normalization, is_one_sided):
    """The last of ``dim`` has half of its frequencies where ``is_one_sided``."""
    transform = jnp.fft.rfftn if is_one_sided else jnp.fft.fftn
    return scaled(transform(x, axes=tuple(dim)), _size(x, dim), normalization)


def to_real(x, dim, normalization, last_size):
    """Back from half of the frequencies to ``last_size`` numbers along the last of ``dim``."""
    sizes = [x.shape[axis] for axis in dim[:-1]] + [last_size]
    return scaled(jnp.fft.irfftn(x, sizes, axes=tuple(dim), norm="forward"), math.prod(sizes), normalization)


def of_complex(x, dim, normalization, is_forward):
    if is_forward:
        return scaled(jnp.fft.fftn(x, axes=tuple(dim)), _size(x, dim), normalization)
    return scaled(jnp.fft.ifftn(x, axes=tuple(dim), norm="forward"), _size(x, dim), normalization)


FOURIER = {
    "_fft_r2c": of_real,
    "_fft_c2r": to_real,
    "_fft_c2c": of_complex,
    "complex": lambda real, imaginary: real + 1j * imaginary,
    "polar": lambda size, angle: size * (jnp.cos(angle) + 1j * jnp.sin(angle)),
    "view_as_real": lambda z: jnp.stack([z.real, z.imag], axis=-1),
    "view_as_complex": lambda x: x[..., 0] + 1j * x[..., 1],
    "real": jnp.real,
    "imag": jnp.imag,
    "angle": jnp.angle,
    **dict.fromkeys(("_conj", "_conj_physical", "conj_physical"), jnp.conj),
    **dict.fromkeys(("resolve_conj", "resolve_neg"), lambda z: z),
}
