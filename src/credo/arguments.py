"""What users hand in as a key, a path, a count or numbers: in the form that the program takes, or a sentence."""

from os import PathLike, fsencode, fspath
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credo.precision import as_usual
from credo.status import CredoError

THREEFRY = "threefry2x32"  # what keys are unless another kind is asked for
RAW = {2: THREEFRY, 4: "rbg"}  # keys of JAX's older form, by how many numbers they have
LONGEST_NAME = 255  # bytes, on the file systems in use


def as_key(key):
    """An int or a JAX key -> a JAX key: that of jax.random.key in 64 bits, without compiling for it."""
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        if key.ndim:
            raise CredoError(f"key is an array of {key.shape} keys: give one of them, such as keys[0].")
        return key
    if isinstance(key, jax.Array | np.ndarray) and key.ndim == 0 and np.issubdtype(key.dtype, np.integer):
        key = int(key)
    if isinstance(key, int | np.integer):
        if not -(2**63) <= key < 2**64:
            raise CredoError(f"key={key} does not fit into 64 bits, the rest of which would be ignored: give less.")
        halves = int(key) >> 32 & 0xFFFFFFFF, int(key) & 0xFFFFFFFF
        return _wrapped(np.array(halves, np.uint32), THREEFRY)
    if isinstance(key, jax.Array | np.ndarray) and key.dtype == np.uint32 and key.ndim == 1 and key.size in RAW:
        return _wrapped(key, RAW[key.size])
    raise CredoError(f"key is an int or a JAX key such as jax.random.key(0); got {key!r}.")


def _wrapped(data: Any, impl: str):
    with as_usual():
        return jax.random.wrap_key_data(jnp.asarray(data), impl=impl)


def as_path(path, of: str) -> Path:
    """``of``: what is there, such as "a folder". CredoError where it is no path."""
    if not isinstance(path, str | PathLike) or not fspath(path) or "\0" in str(path):
        raise CredoError(f"The path of {of} is wanted; got {path!r}.")
    if max((len(fsencode(part)) for part in Path(path).parts), default=0) > LONGEST_NAME:
        raise CredoError(f"The path of {of} has a name of more than {LONGEST_NAME} bytes: shorten {path!r}.")
    return Path(path)


def leaves_of(tree: Any, name: str, is_leaf=None) -> list:
    """CredoError where a dict within ``tree`` has keys that no order knows: JAX sorts them."""
    try:
        return jax.tree.leaves(tree, is_leaf=is_leaf)
    except ValueError as error:
        raise CredoError(f"The keys of a dict within {name} are of several types: make all of them text.") from error


def check_count(n) -> None:
    """CredoError where ``n`` is no number of draws."""
    if not isinstance(n, int | np.integer) or n < 0:
        raise CredoError(f"n is the number of draws, a whole number from 0; got {n!r}.")


def check_at_least(name: str, value, least: int) -> None:
    """CredoError where a setting is no whole number, or a smaller one."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise CredoError(f"{name} is a whole number from {least}; got {value!r}.")


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


def of_tensor(leaf) -> Any:
    """A tensor of torch as NumPy's array, on whatever device, sparse or of half precision; anything else as it is."""
    if not hasattr(leaf, "detach"):
        return leaf
    leaf = leaf.detach()
    if not hasattr(leaf, "is_meta"):  # no tensor of torch
        return leaf
    if leaf.is_meta:
        raise CredoError("A tensor on torch's device 'meta' has a shape and no values: give one that has them.")
    try:
        leaf = leaf.cpu()
        leaf = leaf.to_dense() if str(leaf.layout) != "torch.strided" else leaf.resolve_conj().resolve_neg()
        return (leaf.float() if str(leaf.dtype) == "torch.bfloat16" else leaf).numpy()
    except (TypeError, RuntimeError) as error:
        raise CredoError(
            f"A tensor of type {leaf.dtype} is no array ({error}): give one of float32 or int64."
        ) from error


def as_numbers(value) -> np.ndarray:
    """In float64; NaN where they are no numbers."""
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError):
        return np.asarray(np.nan)


def check_limit(name: str, value, unit: str, default: str) -> None:
    """CredoError unless ``value`` is None, which stands for ``default``, or a number above zero."""
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if value is not None and not (is_number and value > 0):
        raise CredoError(f"{name} is a number of {unit} above 0; got {value!r}. Leave it out for {default}.")
