"""J Σ Jᵀ of a network's outputs without J: from the inputs and derivatives of its layers (model/layers.py).

For a block Σ = (U ⊗ V) diag(sd²) (U ⊗ V)ᵀ and a layer that is applied once, ∂z_k/∂W = a g_kᵀ, the share of the layer is

    cov_kl = Σ_j t_j ĝ_kj ĝ_lj,    t = sd²ᵀ (Uᵀ a)²,  ĝ = g V

three matrix products for all rows; where weights are shared by places s, cov_kl = Σ_ij M_kij M_lij with
M_k = sd ∘ Σ_s (Uᵀ a_s)(g_ks V)ᵀ. Few directions beside a diagonal, Σ = D + P M Pᵀ, add (J P) M (J P)ᵀ. Of any Σ, the
share of two layers with inputs a, a' is gᵀ T g', T_jj' = Σ_ii' a_i a'_i' Σ_iji'j': one product of matrices for all
rows, and K times less work than with J. Jacobians of K × dim numbers are not held for many rows.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from credo.linalg.blas import threads_for
from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.linalg.embedded import Embedded
from credo.linalg.kronecker import Block, Kronecker
from credo.linalg.lowrank import LowRank
from credo.linalg.operator import ScaleOperator
from credo.model.layers import (
    Layers,
    alike,
    corner,
    find_layers,
    is_single,
    is_wide,
    jacobian,
    jacobian_of_row,
    num_products,
    separable,
    symmetric_places,
)
from credo.traced import Last

TILE = 128  # rows and columns
HELD, HELD_OF_PAIRS = 3, 3  # arrays at a time of a row's inputs and derivatives, and of products of a pair of layers
SMALL = 2_000  # numbers of a row's Jacobian: up to so many, the product of it with a dense root is quicker
FEW = 4  # a product of two dense roots, by the dimension, costs as much as so many directions moved through one


class Plan(NamedTuple):
    """``width``: numbers that a row takes. ``prepared``: Σ by pairs of layers, where it is dense."""

    width: int
    prepared: dict[tuple[int, int], Any] | None


def plan(layers: Layers, reached: tuple[int, ...], scale: ScaleOperator, num_rows: int) -> Plan | None:
    """What is known before any row is looked at, of the outputs that these layers reach: on the host.

    ``layers``: of the coordinates that vary. None where the covariance does not part by them.
    """
    num_outputs = len(reached)
    if not _suits(scale, layers, num_outputs, num_rows):
        return None
    places = [sum(uses) for uses in layers.places]
    shapes = [layer.index.shape for layer in layers.layers]
    inner, index = inner_of(scale)
    pairs = separable(shapes, [count == 1 for count in places], num_outputs) if isinstance(inner, Dense) else ()
    width = num_outputs * layers.rest.size
    for i, (count, (num_in, num_out)) in enumerate(zip(places, shapes, strict=True)):
        width += count * (num_in + num_outputs * num_out)
        if (isinstance(inner, Dense) and (i, i) not in pairs) or (isinstance(inner, LowRank) and count > 1):
            width += num_outputs * num_in * num_out
    numbers = max((num_products(shapes[i], shapes[j], i == j) for i, j in pairs), default=0)
    width = max(HELD * width + HELD_OF_PAIRS * numbers, 1)
    if not isinstance(inner, Dense):
        return Plan(width, None)
    key = (index is None or index.tobytes(), *(group.tobytes() for group in groups(layers)), pairs)
    return Plan(width, _PAIRS.of(inner.lower, key, lambda: _by_pairs(inner, index, layers, shapes, pairs)))


def _suits(scale: ScaleOperator, layers: Layers, num_outputs: int, num_rows: int) -> bool:
    """Whether ``scale`` parts into blocks by these layers."""
    inner, index = inner_of(scale)
    if isinstance(inner, Dense):
        is_many = num_rows * num_outputs >= inner.dim // FEW
        return bool(layers.layers) and is_many and num_outputs * inner.dim > SMALL
    if isinstance(inner, Diagonal | LowRank):
        return bool(layers.layers)
    if not isinstance(inner, Kronecker):
        return False
    return len(groups(layers)) == len(inner.blocks) and all(
        np.array_equal(np.asarray(block.index), _among(index, group))
        for block, group in zip(inner.blocks, groups(layers), strict=True)
    )


def varying(layers: Layers, scale: ScaleOperator) -> Layers:
    return layers.within(scale.index) if isinstance(scale, Embedded) else layers


def groups(layers: Layers) -> list[np.ndarray]:
    """The coordinates of each layer (in, out), and last of what is in none (1, rest)."""
    return [layer.index for layer in layers.layers] + ([layers.rest[None]] if layers.rest.size else [])


class Folded(NamedTuple):
    """Σ of a layer and itself, where a_i a_i' and T are symmetric: ``values`` (pairs i ≤ i', pairs j ≤ j')."""

    values: Any


_PAIRS = Last()  # Σ by pairs takes longer to find than its use


def _by_pairs(scale: Dense, index: np.ndarray | None, layers: Layers, shapes, pairs) -> dict[tuple[int, int], Any]:
    """Σ by pairs of layers, in float64.

    (in, in', out, out') where they are separable, elsewhere (in · out, in' · out'). Of a layer and itself ``Folded``,
    or (in, pairs of outputs, in) where it is wide.
    """
    places = [_among(index, group) for group in groups(layers)]
    blocks = _parted(_square(np.asarray(scale.lower)), places, shapes, pairs)
    return jax.device_put(blocks)  # once for all chunks of rows, and after Σ is gone


def _parted(Σ: np.ndarray, places: list[np.ndarray], shapes, pairs) -> dict[tuple[int, int], Any]:
    blocks = {}
    for i, rows in enumerate(places):
        for j, columns in enumerate(places[i:], start=i):
            block = corner(Σ, rows.ravel(), columns.ravel())
            if (i, j) in pairs:
                block = block.reshape(*shapes[i], *shapes[j]).transpose(0, 2, 1, 3)
            is_own = i == j and (i, j) in pairs
            blocks[i, j] = _own(block) if is_own else jnp.asarray(block)
    return blocks


def _own(block: np.ndarray) -> Any:
    """Of Σ (in, in, out, out) of a layer and itself."""
    j, beside = np.triu_indices(block.shape[2])
    if is_wide(len(block), block.shape[2]):  # in this order at once: a second copy is as large as Σ
        return block.transpose(0, 2, 3, 1)[:, j, beside]
    found = block[:, :, j, beside]
    i, other = np.triu_indices(len(block))
    return Folded(np.where(i == other, 0.5, 1.0)[:, None] * (found[i, other] + found[other, i]))


def joint(left, right):
    """(M, K, K): the products of each output with every other, of two arrays (M, K, n)."""
    return jnp.einsum("mkj,mlj->mkl", left, right)


def alone(left, right):
    """(M, K): those of each output with itself."""
    return (left * right) @ jnp.ones(left.shape[-1], left.dtype)  # quicker than a sum, which XLA does not vectorise


def covariances(
    outputs: Callable, scale: ScaleOperator, prepared: dict | None, centre, x, product: Callable = joint
) -> tuple[Any, Any]:
    """``outputs(u, row)`` (M, K) and their covariances (M, K, K) at the rows of ``x``; ``prepared``: of the plan.

    ``product``: ``alone`` for the variances (M, K), which are less work.
    """
    layers = varying(find_layers(outputs, centre, jax.tree.map(lambda leaf: leaf[0], x)), scale)
    reached = layers.reached

    def one(row):
        z, inputs, back = layers.linearised(centre, row)
        return z, inputs, jax.vmap(back)(jnp.eye(z.shape[0], dtype=z.dtype)[reached])

    z, inputs, derivatives = jax.vmap(one)(x)
    J_rest = _jacobian_of_rest(outputs, layers.rest, reached, centre, x) if layers.rest.size else None
    if prepared is not None:
        return z, among_all(_of_pairs(prepared, inputs, derivatives, J_rest, product), reached, z.shape[1])
    inner, index = inner_of(scale)
    blocks = blocks_of(inner, index, layers)
    total = jnp.zeros((), z.dtype)
    spreads: dict[int, Any] = {}  # t, by the layer whose derivatives it goes with
    for i, (beside, block, a_uses) in enumerate(zip(layers.beside, blocks, inputs, strict=False)):
        if is_single(a_uses):
            a = a_uses[0][:, 0]
            t = jnp.square(a if block.left is None else a @ block.left) @ jnp.square(block.sd)
            own = beside if block.right is None and blocks[beside].right is None else i
            spreads[own] = spreads.get(own, 0) + t
        else:
            total = total + _of_places(block, a_uses, derivatives[i], layers.layers[i].is_lookup, product)
    for i, t in spreads.items():
        g = derivatives[i][0][:, :, 0]
        g = g if blocks[i].right is None else g @ blocks[i].right
        total = total + product(g * t[:, None, :], g)
    if J_rest is not None:
        root = J_rest * blocks[-1].sd[0]
        total = total + product(root, root)
    if isinstance(inner, LowRank):
        moved = _along_directions(inner, index, layers, inputs, derivatives, J_rest)
        total = total + product(moved @ inner.excess(), moved)
    return z, among_all(total, reached, z.shape[1])


def among_all(found, reached: np.ndarray, num_outputs: int):
    """(M, K, K), or (M, K), of the outputs ``reached`` among all: those of the others are zero."""
    if reached.size == num_outputs:
        return found
    place = np.full(num_outputs, reached.size)
    place[reached] = np.arange(reached.size)
    padded = jnp.pad(found, [(0, 0), *[(0, 1)] * (found.ndim - 1)])
    return padded[:, place] if found.ndim == 2 else padded[:, place][:, :, place]


def inner_of(scale: ScaleOperator) -> tuple[ScaleOperator, np.ndarray | None]:
    """The operator of the coordinates that vary, and which these are; None for all."""
    return (scale.inner, scale.index) if isinstance(scale, Embedded) else (scale, None)


def without_root(scale: ScaleOperator) -> ScaleOperator:
    """For ``covariances`` that are prepared: the same coordinates vary, and no matrix goes along to each chunk."""
    inner, index = inner_of(scale)
    light = Diagonal(np.ones(inner.dim))
    return light if index is None else Embedded.at(index, light, scale.dim)


def _among(index: np.ndarray | None, group: np.ndarray) -> np.ndarray:
    return group if index is None else np.searchsorted(index, group)


def _square(lower: np.ndarray) -> np.ndarray:
    """L Lᵀ in float64, for a third of the work of the product."""
    # U, upper triangular: L Lᵀ from the last row to the first is U Uᵀ, and Uᵀ is stored as LAPACK wants it
    flipped = np.array(lower[::-1, ::-1], np.float64, order="C")
    (lauum,) = scipy.linalg.get_lapack_funcs(("lauum",), (flipped,))
    with threads_for(len(flipped)):
        found = lauum(flipped.T, lower=1, overwrite_c=1)[0].T
    for first in range(0, len(found), TILE):  # what is below the diagonal, in tiles that stay in the cache
        rows = slice(first, first + TILE)
        found[rows, rows] = np.triu(found[rows, rows]) + np.triu(found[rows, rows], 1).T
        for other in range(first + TILE, len(found), TILE):
            columns = slice(other, other + TILE)
            found[columns, rows] = found[rows, columns].T
    return found[::-1, ::-1]


def blocks_of(scale: ScaleOperator, index: np.ndarray | None, layers: Layers) -> list[Block]:
    if isinstance(scale, Kronecker):
        return list(scale.blocks)
    sd = scale.scale if isinstance(scale, LowRank) else jnp.sqrt(scale.diagonal())
    sd = jnp.asarray(sd)
    return [Block(group, sd[_among(index, group)]) for group in groups(layers)]


def _of_places(block: Block, a_uses, g_uses, is_lookup: bool, product: Callable):
    """(M, K, K), or (M, K), of a layer at several places. ``a_uses``: (M, S, in) each, ``g_uses``: (M, K, S, out)."""
    a_uses = a_uses if block.left is None else [a @ block.left for a in a_uses]
    g_uses = g_uses if block.right is None else [g @ block.right for g in g_uses]
    if is_lookup and block.left is None:  # of the rows chosen alone
        a, g = jnp.concatenate(a_uses, axis=1), jnp.concatenate(g_uses, axis=2)
        variances = a @ jnp.square(block.sd)
        flat = (*g.shape[:2], -1)
        return product((g * variances[:, None]).reshape(flat), jax.vmap(alike)(a, g).reshape(flat))
    sd = jnp.ravel(jnp.transpose(block.sd))

    def one(row):
        """(K, K), or (K,), while the row's Jacobian stays in the processor's cache."""
        J = jacobian_of_row(*row)
        root = (J.reshape(len(J), -1) * sd)[None]
        return product(root, root)[0]

    return jax.lax.map(one, (a_uses, g_uses))


def _jacobian_of_rest(outputs: Callable, rest: np.ndarray, reached: np.ndarray, centre, x):
    """(M, outputs reached, rest)."""

    def jacobian(row):
        return jax.jacrev(lambda part: outputs(centre.at[rest].set(part), row)[reached])(centre[rest])

    return jax.vmap(jacobian)(x)


def _along_directions(scale: LowRank, index, layers: Layers, inputs, derivatives, J_rest):
    """J P (M, K, rank) with Σ = diag(δ²) + P M Pᵀ, P = diag(δ) B."""
    P = jnp.asarray(scale.scale)[:, None] * scale.factor
    moved = jnp.zeros((), P.dtype)
    for layer, a_uses, g_uses in zip(layers.layers, inputs, derivatives, strict=True):
        own = P[_among(index, layer.index)]  # (in, out, rank)
        if is_single(a_uses):
            a, g = a_uses[0][:, 0], g_uses[0][:, :, 0]
            along = (a @ own.reshape(len(own), -1)).reshape(len(a), *own.shape[1:])
            moved = moved + jnp.einsum("mko,mor->mkr", g, along)
        else:
            moved = moved + jacobian(a_uses, g_uses) @ own.reshape(-1, own.shape[-1])
    if J_rest is not None:
        moved = moved + J_rest @ P[_among(index, layers.rest)]
    return moved


def _of_pairs(blocks: dict, inputs, derivatives, J_rest, product: Callable):
    """Σ over pairs of layers of g T g'ᵀ, or of J Σ J'ᵀ where places are shared."""
    J: dict[int, Any] = {}

    def jacobian_of(i):
        if i not in J:
            J[i] = J_rest if i == len(inputs) else jacobian(inputs[i], derivatives[i])
        return J[i]

    total: Any = 0
    for (i, j), block in blocks.items():
        if isinstance(block, Folded) or block.ndim == 3:
            a, g = inputs[i][0][:, 0], derivatives[i][0][:, :, 0]
            T = _of_products(block, a)[:, symmetric_places(g.shape[2])]
            share = product(g @ T, g)
        elif block.ndim == 4:
            a, c = inputs[i][0][:, 0], inputs[j][0][:, 0]
            g, h = derivatives[i][0][:, :, 0], derivatives[j][0][:, :, 0]
            num_rows, shape = len(a), block.shape
            products = (a[:, :, None] * c[:, None, :]).reshape(num_rows, -1)
            T = (products @ block.reshape(shape[0] * shape[1], -1)).reshape(num_rows, *shape[2:])
            share = product(g @ T, h)
        else:
            share = product(jacobian_of(i) @ block, jacobian_of(j))
        both = share if i == j else share + (jnp.swapaxes(share, 1, 2) if share.ndim == 3 else share)
        total = total + both
    return total


def _of_products(block, a):
    """Σ_ii' a_i a_i' Σ_ii's of each row and pair of outputs s: (M, pairs)."""
    if isinstance(block, Folded):
        p, q = np.triu_indices(a.shape[1])
        return (a[:, p] * a[:, q]) @ block.values
    moved = (a @ block.reshape(len(block), -1)).reshape(len(a), *block.shape[1:])
    return jnp.sum(moved * a[:, None], axis=-1)
