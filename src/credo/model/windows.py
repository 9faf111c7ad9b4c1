"""Minibatches as windows of shuffled data.

Rows are shuffled once and the first M − 1 repeated at the end; a minibatch is the window of M rows from some place on.
Each row is in M of the N windows: from a random place, (N/M) Σ over a window is unbiased. A window is read at the speed
of memory, where M scattered rows would each miss the cache.
"""

import dataclasses

import jax
import numpy as np

from credo.model.data import Rows
from credo.model.target import Target
from credo.normals import below


def shuffled(target: Target, batch_size: int | None, random: np.random.Generator) -> Target:
    """``target`` with its rows in random order and the first ``batch_size`` − 1 of them once more at the end.

    Its density is right on windows alone. ``batch_size`` None: the target itself.
    """
    if batch_size is None:
        return target
    order = random.permutation(target.size)
    if target.source is not None:
        return dataclasses.replace(target, source=dataclasses.replace(target.source, order=order))
    order = np.concatenate([order, order[: batch_size - 1]])
    rows = jax.tree.map(lambda leaf: np.asarray(leaf)[order], target.rows())
    return dataclasses.replace(target, x=rows.x, y=rows.y, weights=rows.weights)


def window(target: Target, batch_size: int, start) -> Rows:
    """The rows of a shuffled target from ``start``, in 0 … N − 1, on."""
    if target.source is not None:
        return target.source.read((start + jax.numpy.arange(batch_size)) % target.size)
    rows = Rows(target.x, target.y, target.weights)
    return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, batch_size), rows)


def place_of(target: Target, batch_size: int, order, i, *, is_independent: bool = False):
    """Where the window of update ``i`` begins: an epoch is a pass from a random place on, by the key ``order``.

    ``is_independent``: each window is from a random place of its own.
    """
    num_batches = 1 if is_independent else max(target.size // batch_size, 1)
    offset = jax.random.randint(jax.random.fold_in(order, i // num_batches), (), 0, target.size)
    return (offset + (i % num_batches) * batch_size) % target.size


def rows_at(
    target: Target, batch_size: int, random: np.random.Generator, order, i: int, *, is_independent: bool = False
) -> np.ndarray:
    """The numbers of the rows that update ``i`` saw. ``random``: as ``shuffled`` had it."""
    shuffled_rows = random.permutation(target.size)
    first = int(place_of(target, batch_size, order, i, is_independent=is_independent))
    return shuffled_rows[(first + np.arange(batch_size)) % target.size]


def random_window(target: Target, batch_size: int, key) -> Rows:
    """From a random place on."""
    return window(target, batch_size, below(key, target.size))


def all_rows(target: Target) -> Rows | None:
    """All data of a shuffled target, once: what is repeated at the end is left out. None: read block by block."""
    if target.source is not None:
        return None
    return jax.tree.map(lambda leaf: leaf[: target.size], Rows(target.x, target.y, target.weights))
