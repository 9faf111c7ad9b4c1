"""Minibatches with an anchor (Johnson & Zhang 2013).

With a the anchor and f_B the log density estimated on the random batch B,

    f̃(u) = f_B(u) − f_B(a) − (u − a)ᵀ(∇f_B(a) − ∇f(a)) + f(a)

has the mean of f_B, which is f(u), and far less noise: to first order about a, batch and full data agree.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from credo.model.data import Rows
from credo.model.target import Target


class Anchor(NamedTuple):
    """A position, and log density and gradient there on full data."""

    position: Float[Array, " dim"]
    value: Float[Array, ""]
    gradient: Float[Array, " dim"]


def lay_anchor(target: Target, position: Float[Array, " dim"]) -> Anchor:
    """One pass through the data."""
    return Anchor(position, *jax.value_and_grad(target.log_density)(position))


def anchored(target: Target, anchor: Anchor | None, batch_size: int | None, key) -> Callable:
    """u -> log p(u, D); with an anchor its estimate on one random batch, rows drawn with replacement."""
    if anchor is None or batch_size is None:
        return target.log_density
    return on_batch(target, anchor, random_rows(target, batch_size, key))


def random_rows(target: Target, batch_size: int, key) -> Rows:
    """Rows drawn with replacement."""
    return target.rows(jax.random.randint(key, (batch_size,), 0, target.size))


def on_batch(target: Target, anchor: Anchor, batch: Rows) -> Callable:
    """f̃ on ``batch``."""
    value, gradient = jax.value_and_grad(lambda u: target.log_density(u, batch))(anchor.position)
    slope = anchor.gradient - gradient
    offset = anchor.value - value - jnp.dot(slope, anchor.position)
    return lambda u: target.log_density(u, batch) + jnp.dot(slope, u) + offset
