"""Stochastic gradients of the log density on random windows of the data, and control variates.

A control variate (Baker, Fearnhead, Fox & Nemeth 2019) takes û, a mode, as anchor:

    g(u) = ∇f_B(u) − ∇f_B(û) + ∇f(û)         f_B: the log density estimated on batch B, f: on all data

It has the mean of ∇f_B(u), which is ∇f(u), and hardly any variance near û.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from credo.linalg.operator import Stored
from credo.model.target import Target
from credo.model.windows import random_window

Gradient = Callable[[Array, Float[Array, " dim"]], Float[Array, " dim"]]  # (key, u) -> an estimate of ∇ log p(u, D)


class Anchor(NamedTuple):
    """A position and the gradient of the log density there on all data."""

    position: Float[Stored, " dim"]
    gradient: Float[Stored, " dim"]


def stochastic_gradient(target: Target, batch_size: int | None, anchor: Anchor | None) -> Gradient:
    """``target``: flat and, with a ``batch_size``, shuffled."""
    if batch_size is None:
        return lambda key, u: jax.grad(target.log_density)(u)

    def gradient(key, u):
        batch = random_window(target, batch_size, key)
        found = jax.grad(target.log_density)(u, batch)
        if anchor is None:
            return found
        here = jnp.asarray(anchor.position, u.dtype)
        return found - jax.grad(target.log_density)(here, batch) + jnp.asarray(anchor.gradient, u.dtype)

    return gradient
