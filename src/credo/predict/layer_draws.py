"""Draws of a network's linearised outputs without draws of its weights: J S z from the inputs of its layers.

A layer W = U (sd ∘ Z) Vᵀ that is applied once moves its outputs by (ξ ∘ √t) Vᵀ, t = (Uᵀa)² sd², ξ ~ N(0, I) of as many
numbers as there are outputs (local reparameterisation: Kingma, Salimans & Welling 2015, section 2.3). Z is neither
drawn nor rotated, which takes in · out · (in + out) products a draw. The law of each row is right, that of several
together is not.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from credo.linalg.kronecker import Block, Kronecker
from credo.linalg.operator import ScaleOperator
from credo.model.layers import find_layers, is_single
from credo.normals import normal
from credo.predict.by_layers import blocks_of, inner_of, varying


def is_rotated(scale: ScaleOperator) -> bool:
    """Whether a draw of a layer's weights takes products of whole matrices."""
    inner, _ = inner_of(scale)
    return isinstance(inner, Kronecker) and not all(block.is_diagonal for block in inner.blocks)


def moves(outputs: Callable, scale: ScaleOperator, centre, x) -> tuple[Any, Callable]:
    """(``outputs(u, row)`` (M, K) at the centre, key -> J S z (M, K), in each row by the law of the row alone).

    Rows share ξ. Of many rows drawing a layer's weights is the cheaper way.
    """
    layers = varying(find_layers(outputs, centre, jax.tree.map(lambda leaf: leaf[0], x)), scale)
    blocks = blocks_of(*inner_of(scale), layers)
    inputs = jax.vmap(lambda row: layers.linearised(centre, row)[1])(x)
    noises = [_noise(block, a_uses) for block, a_uses in zip(blocks, inputs, strict=False)]
    rest = layers.rest

    def shifted(shifts, part):
        """Of all rows, with ``shifts`` (M, places, out) of each use of each layer, and the rest at ``part``."""
        u = centre.at[rest].set(part)
        return jax.vmap(lambda row, shifts: layers.shifted(u, row, shifts))(x, shifts)

    shapes = jax.eval_shape(lambda: [noise(jax.random.key(0)) for noise in noises])
    still = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    z, forward = jax.linearize(shifted, still, centre[rest])

    def move(key):
        shifts = [noise(jax.random.fold_in(key, i)) for i, noise in enumerate(noises)]
        step = normal(jax.random.fold_in(key, len(noises)), rest.shape, centre.dtype)
        return forward(shifts, step * blocks[-1].sd[0] if rest.size else step)

    return z, move


def _noise(block: Block, a_uses: list) -> Callable:
    """key -> a draw of the layer's share of its outputs (M, places, out) in each of its uses."""
    num_in, num_out = block.sd.shape
    by_rows, by_weights = len(a_uses[0]) * num_out**2, num_in * num_out * (num_in + num_out + len(a_uses[0]))
    if is_single(a_uses) and by_rows < by_weights:
        a = a_uses[0] if block.left is None else a_uses[0] @ block.left
        root = jnp.sqrt(jnp.square(a) @ jnp.square(block.sd))

        def own(key):
            g = root * normal(key, (num_out,), root.dtype)
            return [g if block.right is None else g @ block.right.T]

        return own

    def of_weights(key):
        W = block.rotate(block.sd * normal(key, block.sd.shape, a_uses[0].dtype))
        return [a @ W for a in a_uses]

    return of_weights
