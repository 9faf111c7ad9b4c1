"""What users hand in as a key, a count or numbers: in the form that the program takes, or a sentence."""

from typing import Any

import jax
import numpy as np

from credo.status import CredoError


def as_key(key):
    """An int or a JAX key -> a JAX key: that of jax.random.key in 64 bits, without compiling for it."""
    if isinstance(key, int | np.integer):
        halves = int(key) >> 32 & 0xFFFFFFFF, int(key) & 0xFFFFFFFF
        data: Any = np.array(halves, np.uint32)
        return jax.random.wrap_key_data(data, impl="threefry2x32")
    if not isinstance(key, jax.Array | np.ndarray):
        raise CredoError(f"key is an int or a JAX key such as jax.random.key(0); got {key!r}.")
    return key


def check_count(n) -> None:
    """CredoError where ``n`` is no number of draws."""
    if not isinstance(n, int | np.integer) or n < 0:
        raise CredoError(f"n is the number of draws, a whole number from 0; got {n!r}.")


def unmasked(values) -> Any:
    """``values``, but what a NumPy masked array masks as missing: NaN among numbers, None among anything else."""
    if not isinstance(values, np.ma.MaskedArray):
        return values
    if not np.ma.is_masked(values):
        return values.data
    dtype, hole = (np.float64, np.nan) if values.dtype.kind in "biuf" else (object, None)
    found = values.data.astype(dtype)
    found[np.ma.getmaskarray(values)] = hole
    return found


def as_numbers(value) -> np.ndarray:
    """In float64; NaN where they are no numbers."""
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError):
        return np.asarray(np.nan)
