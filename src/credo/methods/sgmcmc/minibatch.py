"""Stochastic gradients of the log density: windows of shuffled data, and control variates.

Rows are shuffled once and the first M − 1 repeated at the end; a minibatch is the window of M rows from a random place
on. Each row is in M of the N windows, so that (N/M) Σ over a window is unbiased, and a window is read at the speed of
memory, where M scattered rows would each miss the cache.

A control variate (Baker, Fearnhead, Fox & Nemeth 2019) takes û, a mode, as anchor:

    g(u) = ∇f_B(u) − ∇f_B(û) + ∇f(û)         f_B: the log density estimated on batch B, f: on all data

It has the mean of ∇f_B(u), which is ∇f(u), and hardly any variance near û.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credo.linalg.operator import Stored
from credo.model.data import Rows
from credo.model.target import Target

Gradient = Callable[[Array, Float[Array, " dim"]], Float[Array, " dim"]]  # (key, u) -> an estimate of ∇ log p(u, D)


class Anchor(NamedTuple):
    """A position and the gradient of the log density there on all data."""

    position: Float[Stored, " dim"]
    gradient: Float[Stored, " dim"]


def shuffled(target: Target, batch_size: int | None, random: np.random.Generator) -> Target:
    """``target`` with its rows in random order and the first ``batch_size`` − 1 of them once more at the end.

    Its density is right on windows alone. ``batch_size`` None: the target itself.
    """
    if batch_size is None:
        return target
    order = random.permutation(target.size)
    order = np.concatenate([order, order[: batch_size - 1]])
    rows = jax.tree.map(lambda leaf: np.asarray(leaf)[order], target.rows())
    return dataclasses.replace(target, x=rows.x, y=rows.y, weights=rows.weights)


def window(target: Target, batch_size: int, key) -> Rows:
    """A random window of a shuffled target's rows."""
    start = jax.random.randint(key, (), 0, target.size)
    rows = Rows(target.x, target.y, target.weights)
    return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, batch_size), rows)


def stochastic_gradient(target: Target, batch_size: int | None, anchor: Anchor | None) -> Gradient:
    """``target``: flat and, with a ``batch_size``, shuffled."""
    if batch_size is None:
        return lambda key, u: jax.grad(target.log_density)(u)

    def gradient(key, u):
        batch = window(target, batch_size, key)
        found = jax.grad(target.log_density)(u, batch)
        if anchor is None:
            return found
        here = jnp.asarray(anchor.position, u.dtype)
        return found - jax.grad(target.log_density)(here, batch) + jnp.asarray(anchor.gradient, u.dtype)

    return gradient
