"""Density work runs in float64 whatever the user's JAX setting.

JAX's 64-bit switch is a context of the current thread. Everything public that computes enters it through
``double`` and returns NumPy arrays, since a float64 JAX array falls to float32 in arithmetic outside the context.
"""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import ParamSpec, TypeVar

import jax
import numpy as np

P = ParamSpec("P")
R = TypeVar("R")


def double(enabled: bool = True) -> AbstractContextManager:
    """The context in which JAX computes in float64 (or, with ``enabled=False``, in float32)."""
    return jax.enable_x64(enabled)


def in_double(function: Callable[P, R]) -> Callable[P, R]:
    """Run ``function`` in float64 and return NumPy arrays in place of JAX arrays."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with double():
            return to_numpy(function(*args, **kwargs))

    return wrapped


def to_numpy(tree):
    """The same pytree with NumPy arrays for JAX arrays; other leaves are untouched."""
    return jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, tree)
