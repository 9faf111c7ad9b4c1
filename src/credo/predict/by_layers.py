"""J Σ Jᵀ of a network's outputs without J: from the inputs and derivatives of its layers (model/layers.py).

For a block Σ = (U ⊗ V) diag(sd²) (U ⊗ V)ᵀ and a layer that is applied once, ∂z_k/∂W = a g_kᵀ, the share of the layer is

    cov_kl = Σ_j t_j ĝ_kj ĝ_lj,    t = sd²ᵀ (Uᵀ a)²,  ĝ = g V

three matrix products for all rows; where weights are shared by places s, cov_kl = Σ_ij M_kij M_lij with
M_k = sd ∘ Σ_s (Uᵀ a_s)(g_ks V)ᵀ. A Jacobian of K × dim numbers a row is never held.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credo.linalg.diagonal import Diagonal
from credo.linalg.kronecker import Block, Kronecker
from credo.linalg.operator import ScaleOperator
from credo.model.layers import Layers, find_layers


def suits(scale: ScaleOperator, layers: Layers) -> bool:
    """Whether ``scale`` parts into blocks by these layers: looked at on the host."""
    if isinstance(scale, Diagonal):
        return bool(layers.layers)
    if not isinstance(scale, Kronecker):
        return False
    expected = [layer.index for layer in layers.layers] + ([layers.rest[None]] if layers.rest.size else [])
    return len(expected) == len(scale.blocks) and all(
        np.array_equal(np.asarray(block.index), index) for block, index in zip(scale.blocks, expected, strict=True)
    )


def layers_in(outputs: Callable, centre, x) -> Layers | None:
    """The layers of ``outputs(u, row) -> (K,)`` at the first row of ``x``, None where a row cannot be seen alone."""
    try:
        return find_layers(outputs, centre, jax.tree.map(lambda leaf: leaf[0], x))
    except (TypeError, ValueError, IndexError):
        return None


def covariances(outputs: Callable, layers: Layers, scale: ScaleOperator, centre, x) -> tuple[Any, Any]:
    """Outputs (M, K) and their covariances (M, K, K) at the rows of ``x``."""
    blocks = _blocks(scale, layers)

    def one(row):
        z, inputs, back = layers.linearised(centre, row)
        return z, inputs, jax.vmap(back)(jnp.eye(z.shape[0], dtype=z.dtype))

    z, inputs, derivatives = jax.vmap(one)(x)
    total = jnp.zeros((*z.shape, z.shape[-1]), z.dtype)
    for block, a_uses, g_uses in zip(blocks, inputs, derivatives, strict=False):
        total = total + _of_layer(block, a_uses, g_uses)
    if layers.rest.size:
        total = total + _of_rest(outputs, layers.rest, blocks[-1], centre, x)
    return z, total


def _blocks(scale: ScaleOperator, layers: Layers) -> list[Block]:
    if isinstance(scale, Kronecker):
        return list(scale.blocks)
    sd = jnp.sqrt(scale.diagonal())
    indices = [layer.index for layer in layers.layers] + ([layers.rest[None]] if layers.rest.size else [])
    return [Block(index, sd[index]) for index in indices]


def _of_layer(block: Block, a_uses, g_uses):
    """(M, K, K). ``a_uses``: (M, S, in) each, ``g_uses``: (M, K, S, out)."""
    if block.left is not None:
        a_uses = [a @ block.left for a in a_uses]
        g_uses = [g @ block.right for g in g_uses]
    if len(a_uses) == 1 and a_uses[0].shape[1] == 1:
        a, g = a_uses[0][:, 0], g_uses[0][:, :, 0]
        t = jnp.square(a) @ jnp.square(block.sd)
        return jnp.einsum("mkj,mlj->mkl", g * t[:, None, :], g)
    M = sum(jnp.einsum("msi,mkso->mkio", a, g) for a, g in zip(a_uses, g_uses, strict=True)) * block.sd
    flat = M.reshape(*M.shape[:2], -1)
    return jnp.einsum("mkp,mlp->mkl", flat, flat)


def _of_rest(outputs: Callable, rest: np.ndarray, block: Block, centre, x):
    def jacobian(row):
        return jax.jacrev(lambda part: outputs(centre.at[rest].set(part), row))(centre[rest])

    root = jax.vmap(jacobian)(x) * block.sd[0]
    return jnp.einsum("mkp,mlp->mkl", root, root)
