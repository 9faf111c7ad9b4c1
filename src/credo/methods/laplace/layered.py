"""The Gauss-Newton matrix of a network from the inputs and derivatives of its layers (model/layers.py), row by row.

With a the inputs of a layer and g_k the derivatives of its outputs along column k of a root of the Fisher information,
the rows of the weighted Jacobian are J_k = Σ_s a_s ⊗ g_ks over the places s. For two layers that a row uses once each,

    Σ_nk J_nk J'_nkᵀ = Σ_n (a_n a'_nᵀ) ⊗ (Σ_k g_nk g'_nkᵀ)

is one product of matrices with (in · in') × n and n × (out · out') numbers: K times less work than with J. Where places
are shared, J is formed for a chunk of rows. Coordinates that are in no layer have their derivatives by autodiff.
"""

import functools
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from credo.compiling import TINY, brief, sound
from credo.linalg.products import second_order
from credo.methods.optimise.hyperparameters import num_before
from credo.methods.optimise.objective import Objective
from credo.model.data import Rows
from credo.model.layers import (
    Layers,
    alike,
    find_layers,
    is_single,
    is_wide,
    jacobian,
    jacobian_of_row,
    num_products,
    separable,
    set_corner,
    symmetric_places,
)
from credo.model.target import Target
from credo.status import CredoError
from credo.traced import by_shapes

MAX_APART = 2_000  # coordinates whose prior curvature is found one by one
MEMORY = 2**25  # bytes of activations and derivatives at once: more is no faster, but where sums are larger still


@runtime_checkable
class Rooted(Protocol):
    """A curvature that is a sum of outer products: Σ Jᵀ L Lᵀ J. Frozen: compiled programs are keyed on it."""

    def roots(self, target: Target, u, rows: Rows) -> Any:
        """L (M, K, columns) of each row, weights included."""
        ...

    def width(self, num_outputs: int) -> int:
        """How many columns L has."""
        ...

    def columns(self, target: Target, reached: np.ndarray) -> np.ndarray | None:
        """The columns of L that the outputs ``reached`` take, where each output has its own; None for all."""
        ...


def layers_of(target: Target, u, who: str, instead: str) -> Layers:
    """The linear layers of a target's outputs. CredoError where a row cannot be evaluated alone."""
    row = jax.tree.map(lambda leaf: leaf[0], target.x)
    try:
        return _layers_at(target, u, row)
    except (TypeError, ValueError, IndexError) as error:
        raise CredoError(
            f"The network cannot be evaluated on one row alone ({str(error)[:80]}), which {who} needs: use {instead}."
        ) from error


@by_shapes
def _layers_at(target: Target, u, row) -> Layers:
    """On the host for their shapes alone: the program may have been traced with another target's values."""
    return find_layers(functools.partial(outputs_of_row, target), u, row)


def stands_alone(target: Target) -> bool:
    """Whether a row's outputs are its own. Networks were looked at when they met their data."""
    return target.model.weights_name is not None or target.y is None or target.rows_stand_apart()


def layers_or_none(target: Target, u, free: np.ndarray | None) -> Layers | None:
    """The layers among the free coordinates, None where there are none or a row cannot be evaluated alone."""
    if target.head is None or target.num_terms != target.size or not jax.tree.leaves(target.x):
        return None
    if not stands_alone(target):
        return None
    try:
        layers = layers_of(target, u, "", "")
    except CredoError:
        return None
    layers = layers if free is None else layers.within(free)
    return layers if layers.layers else None


def outputs_of_row(target: Target, u, row):
    """(K,)"""
    head = target.head
    assert head is not None  # checked by the curvature
    one = jax.tree.map(lambda leaf: leaf[None], row)
    params = target.constrain(u)
    return head.natural(target.likelihood_distribution(params, one), params, one)[0]


def places(curvature: Rooted, target: Target, layers: Layers) -> tuple[int, list[list[int]]]:
    """The number of columns of a row, and at how many places it is in each use of each layer."""
    columns = curvature.columns(target, layers.reached)
    return curvature.width(layers.num_outputs) if columns is None else columns.size, layers.places


def summed(function, target: Target, u, numbers: int, *static, size: int = 0):
    """Σ ``function(target, u, rows, *static)`` over chunks of ``Rows``, each row of which takes so many numbers.

    ``size``: bytes of the sum. Each chunk passes over it once, so a large sum has few of them.
    """
    chunk = int(np.clip(max(MEMORY, size) // (8 * 4 * numbers), 1, target.size))
    chunk = -(-target.size // -(-target.size // chunk))
    total = None
    for first in range(0, target.size, chunk):
        place = np.arange(first, first + chunk)
        counts = np.where(place < target.size, 1.0, 0.0)
        place = np.minimum(place, target.size - 1)
        rows = target.read(place)
        weights = counts if rows.weights is None else counts * rows.weights
        found = function(target, u, rows._replace(weights=weights.astype(u.dtype)), *static)
        total = found if total is None else _added(total, found)
    assert total is not None
    return total


@functools.partial(sound, donate_argnums=0)
def _added(total, found):
    """In the memory of ``total``."""
    return jax.tree.map(jnp.add, total, found)


# the matrix ----------------------------------------------------------------------------------------------------------


def matrix(curvature: Rooted, target: Target, u, layers: Layers, free: np.ndarray) -> np.ndarray:
    """Σ Jᵀ F J over the coordinates ``free``, those of ``layers``: (free, free) in the precision of u."""
    num_columns, by_use = places(curvature, target, layers)
    shapes = [layer.index.shape for layer in layers.layers]
    is_single = [len(each) == 1 and each[0] == 1 for each in by_use]
    pairs = separable(shapes, is_single, num_columns)
    numbers = num_columns * free.size if len(pairs) < len(shapes) * (len(shapes) + 1) // 2 or layers.rest.size else 0
    numbers += sum(num_products(shapes[i], shapes[j], i == j) for i, j in pairs)
    numbers += sum(num_columns * s[0] * s[1] for s, single in zip(shapes, is_single, strict=True) if not single)
    numbers += num_columns * sum(sum(each) * s[1] for each, s in zip(by_use, shapes, strict=True))
    size = free.size**2 * u.dtype.itemsize
    blocks = summed(_blocks, target, u, numbers + 1, curvature, Frozen(layers), pairs, size=size)
    groups = [np.searchsorted(free, layer.index.ravel()) for layer in layers.layers]
    groups += [np.searchsorted(free, layers.rest)] if layers.rest.size else []
    found = np.empty((free.size, free.size), u.dtype)
    for (i, j), block in blocks.items():
        block = np.asarray(block)
        if (i, j) in pairs:  # to (in, out), (in', out')
            (a, b), (c, d) = shapes[i], shapes[j]
            block = _unfolded(block, a, b) if i == j else block.reshape(a, c, b, d).transpose(0, 2, 1, 3)
            block = block.reshape(a * b, c * d)
        set_corner(found, groups[i], groups[j], block)
        if i != j:
            set_corner(found, groups[j], groups[i], block.T)
    return found


def _unfolded(block: np.ndarray, num_in: int, num_out: int) -> np.ndarray:
    """(in, out, in, out), of a layer and itself: of (pairs of inputs, pairs of outputs), or of a wide layer (pairs of
    outputs, in, in)."""
    places = symmetric_places(num_out)
    if block.ndim == 2:
        block = block[symmetric_places(num_in).ravel()][:, places.ravel()]
        return block.reshape(num_in, num_in, num_out, num_out).transpose(0, 2, 1, 3)
    found = np.empty((num_in, num_out, num_in, num_out), block.dtype)
    for o in range(num_out):
        found[:, o] = block[places[o]].transpose(1, 2, 0)
    return found


class Frozen:
    """Layers as a static argument: they are traced anew where a program is compiled, and equal if their places are."""

    def __init__(self, layers: Layers):
        self.free = np.sort(np.concatenate([*(layer.index.ravel() for layer in layers.layers), layers.rest]))
        self.key = self.free.tobytes()

    def __hash__(self):
        return hash(self.key)

    def __eq__(self, other):
        return isinstance(other, Frozen) and self.key == other.key

    def layers(self, target: Target, u) -> Layers:
        return layers_of(target, u, "", "").within(self.free)


@functools.partial(brief, static_argnames=("curvature", "frozen", "pairs"))
def _blocks(target: Target, u, rows, curvature: Rooted, frozen: Frozen, pairs) -> dict[tuple[int, int], Any]:
    layers = frozen.layers(target, u)
    inputs, derivatives, rest = parts(curvature, target, layers, u, rows)
    num_groups = len(layers.layers) + (rest is not None)
    J: dict[int, Any] = {}

    def jacobian_of(i):
        """(M · K, coordinates of group i)."""
        if i not in J:
            found: Any = rest if i == len(layers.layers) else jacobian(inputs[i], derivatives[i])
            J[i] = found.reshape(-1, found.shape[-1])
        return J[i]

    blocks = {}
    for i in range(num_groups):
        for j in range(i, num_groups):
            if (i, j) in pairs and i == j:  # symmetric in the inputs and in the outputs: of pairs in order alone
                a, g = inputs[i][0][:, 0], derivatives[i][0][:, :, 0]
                (p, q), (s, t) = np.triu_indices(a.shape[1]), np.triu_indices(g.shape[2])
                squares = jnp.einsum("mko,mkp->mop", g, g)[:, s, t]
                if is_wide(a.shape[1], g.shape[2]):
                    moved = (squares[:, :, None] * a[:, None]).reshape(len(a), -1)
                    blocks[i, i] = (moved.T @ a).reshape(-1, a.shape[1], a.shape[1])
                else:
                    blocks[i, i] = (a[:, p] * a[:, q]).T @ squares
            elif (i, j) in pairs:
                a, c = inputs[i][0][:, 0], inputs[j][0][:, 0]
                g, h = derivatives[i][0][:, :, 0], derivatives[j][0][:, :, 0]
                products = (a[:, :, None] * c[:, None, :]).reshape(len(a), -1)
                blocks[i, j] = products.T @ jnp.einsum("mko,mkp->mop", g, h).reshape(len(g), -1)
            else:
                blocks[i, j] = jacobian_of(i).T @ jacobian_of(j)
    return blocks


def parts(curvature: Rooted, target: Target, layers: Layers, u, rows):
    """Inputs (M, S, in) and derivatives (M, K, S, out) of each use of each layer, and J (M, K, rest) of the others."""
    reached = curvature.columns(target, layers.reached)
    columns = curvature.roots(target, u, rows)
    columns = columns if reached is None else columns[:, :, reached]

    def one(row, root):
        _, inputs, back = layers.linearised(u, row)
        return inputs, jax.vmap(back, in_axes=1)(root)

    inputs, derivatives = jax.vmap(one)(rows.x, columns)
    if not layers.rest.size:
        return inputs, derivatives, None

    def others(row, root):
        _, pull = jax.vjp(lambda part: outputs_of_row(target, u.at[layers.rest].set(part), row), u[layers.rest])
        return jax.vmap(lambda column: pull(column)[0], in_axes=1)(root)

    return inputs, derivatives, jax.vmap(others)(rows.x, columns)


# the diagonal --------------------------------------------------------------------------------------------------------


def diagonal(curvature: Rooted, target: Target, u, layers: Layers, free: np.ndarray) -> np.ndarray:
    """The diagonal of ``matrix`` (free,)."""
    num_columns, by_use = places(curvature, target, layers)
    numbers = num_columns * layers.rest.size + 1
    for layer, each in zip(layers.layers, by_use, strict=True):
        numbers += sum(each) * (layer.index.shape[0] + num_columns * layer.index.shape[1])
    parts = summed(_squares, target, u, numbers, curvature, Frozen(layers))
    found = np.empty(free.size, u.dtype)
    for layer, part in zip(layers.layers, parts, strict=False):
        found[np.searchsorted(free, layer.index.ravel())] = np.asarray(part).ravel()
    if layers.rest.size:
        found[np.searchsorted(free, layers.rest)] = np.asarray(parts[-1])
    return found


@functools.partial(brief, static_argnames=("curvature", "frozen"))
def _squares(target: Target, u, rows, curvature: Rooted, frozen: Frozen) -> list[Any]:
    layers = frozen.layers(target, u)
    inputs, derivatives, rest = parts(curvature, target, layers, u, rows)
    found = []
    for layer, a_uses, g_uses in zip(layers.layers, inputs, derivatives, strict=True):
        if is_single(a_uses):
            a, g = a_uses[0][:, 0], g_uses[0][:, :, 0]
            found.append(jnp.square(a).T @ jnp.sum(jnp.square(g), axis=1))
        elif layer.is_lookup:
            a, g = jnp.concatenate(a_uses, axis=1), jnp.concatenate(g_uses, axis=2)
            squares = jnp.sum(g * jax.vmap(alike)(a, g), axis=1)
            found.append(a.reshape(-1, a.shape[-1]).T @ squares.reshape(-1, squares.shape[-1]))
        else:
            found.append(_summed_squares(a_uses, g_uses))
    return found if rest is None else [*found, jnp.sum(jnp.square(rest), axis=(0, 1))]


def _summed_squares(a_uses, g_uses):
    """(in, out): Σ over rows and columns of the squares of the weighted Jacobian, row by row."""

    def add(total, row):
        return total + jnp.sum(jnp.square(jacobian_of_row(*row)), axis=0), None

    start = jnp.zeros((g_uses[0].shape[-1], a_uses[0].shape[-1]), g_uses[0].dtype)
    return jax.lax.scan(add, start, (a_uses, g_uses))[0].T


# the prior -----------------------------------------------------------------------------------------------------------


def prior_diagonal(objective: Objective, target: Target, u, layers: Layers) -> tuple[np.ndarray, bool]:
    """The diagonal of −∇² log p(u) (dim,), and whether it has no other entries among the weights of layers.

    Weights are independent given the hyperparameters, so that a product with ones on them gives theirs at once; the
    coordinates in no layer follow one by one, or the hyperparameters alone where those are many. So do all where the
    prior correlates them.
    """
    found, is_independent = _prior_of_weights(objective, target, u, layers)
    if not is_independent:
        found = np.asarray(_one_by_one(objective.log_prior, objective.args, u))
    return found, is_independent


def _prior_of_weights(objective: Objective, target: Target, u, layers: Layers) -> tuple[np.ndarray, bool]:
    """(the diagonal where weights are independent, whether they are). Coordinates in neither place are left out."""
    is_apart = (layers.rest < num_before(target)) | (layers.rest.size <= MAX_APART)
    apart = tuple(int(i) for i in layers.rest[is_apart])
    is_weight = np.zeros(u.size, bool)
    for group in (*(layer.index for layer in layers.layers), layers.rest[~is_apart]):
        is_weight[group] = True
    z = np.where(is_weight, _random(u.size, u.dtype), 0).astype(u.dtype)
    ones = is_weight.astype(u.dtype)
    found, moved = map(np.asarray, _prior_diagonal(objective.log_prior, objective.args, u, apart, ones, z))
    return found, _maps_so(found[is_weight], moved[is_weight], z[is_weight])


def _random(size: int, dtype) -> np.ndarray:
    return np.random.default_rng(0).normal(size=size).astype(dtype)


def _maps_so(diagonal, moved, z) -> bool:
    """Whether a matrix with the row sums ``diagonal`` maps a random z to z times these: it is diagonal then.

    To the rounding of each row, or of the middle one where a row's terms cancel: the largest would hide the others.
    """
    size = np.abs(diagonal)
    scale = np.finfo(moved.dtype).eps * 100 * np.maximum(size, max(float(np.median(size)) if size.size else 0.0, 1e-30))
    return bool(np.all(np.abs(moved - diagonal * z) <= scale * (1 + np.abs(z))))


def prior_product(objective: Objective, u, free: np.ndarray | None) -> tuple[np.ndarray, bool]:
    """The product of −∇² log p(u) over the free coordinates with ones, and whether it is that matrix's diagonal."""
    z = _random(u.size if free is None else free.size, u.dtype)
    found, moved = map(np.asarray, _prior_products(objective.log_prior, objective.args, u, free, z))
    return found, _maps_so(found, moved, z)


@functools.partial(
    brief, static_argnames=("log_prior", "apart"), options=TINY
)  # of vectors, and run once a fit: sooner compiled than optimised
def _prior_diagonal(log_prior, args, u, apart: tuple[int, ...], ones, z):
    """The product with ``ones``, but the diagonal where coordinates are ``apart``, one by one; and that with ``z``."""
    *_, product = second_order(lambda v: log_prior(args, v), u)
    found, moved = -product(ones), -product(z)
    if not apart:
        return found, moved
    alone = jnp.asarray(apart, int)
    own = jax.lax.map(lambda i: -product(jnp.zeros_like(u).at[i].set(1.0))[i], alone)
    return found.at[alone].set(own), moved


@functools.partial(brief, static_argnames="log_prior")
def _one_by_one(log_prior, args, u):
    *_, product = second_order(lambda v: log_prior(args, v), u)
    return jax.lax.map(lambda i: -product(jnp.zeros_like(u).at[i].set(1.0))[i], jnp.arange(u.size))


@functools.partial(
    brief, static_argnames="log_prior", options=TINY
)  # of vectors, and run once a fit: sooner compiled than optimised
def _prior_products(log_prior, args, u, free, z):
    def density(v):
        return log_prior(args, v if free is None else u.at[free].set(v))

    *_, product = second_order(density, u if free is None else u[free])
    return -product(jnp.ones_like(z)), -product(z)
