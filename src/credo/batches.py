"""A function of many rows, a few at a time."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def in_batches(function: Callable, rows, size: int) -> Any:
    """``function`` of each row of a pytree, at most ``size`` rows together: all of them by one vmap where they fit.

    Batches are even, and the last is filled up with copies of its last row, which are dropped again: ``lax.map`` would
    trace and compile ``function`` twice where rows are left over, and XLA refused such programs on a GPU (jaxlib 0.11,
    "Reshape input and output shapes must be the same").
    """
    number = jax.tree.leaves(rows)[0].shape[0]
    batches = -(-number // max(size, 1))
    if batches <= 1:
        return jax.vmap(function)(rows)
    each = -(-number // batches)
    if batches * each > number:
        rows = jax.tree.map(lambda leaf: leaf[jnp.minimum(jnp.arange(batches * each), number - 1)], rows)
    rows = jax.tree.map(lambda leaf: leaf.reshape(batches, each, *leaf.shape[1:]), rows)
    found = jax.lax.map(jax.vmap(function), rows)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:number], found)
