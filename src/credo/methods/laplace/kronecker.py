"""Kronecker-factored Laplace (Ritter, Botev & Barber 2018): for each matrix of weights, curvature A ⊗ B.

With a the inputs of a linear layer at the places s of row n and g_k the derivatives of the outputs there along the
columns of a root of the Fisher information, Σ_k L_k L_kᵀ = F_n, the Gauss-Newton block of its weights is

    Σ_n Σ_k (Σ_s a_ns ⊗ g_nsk)(Σ_s a_ns ⊗ g_nsk)ᵀ ≈ (1 / R) (Σ a aᵀ) ⊗ (Σ g gᵀ)

*Expand* takes each place of each row for a datum: R = N S, sums over n, s and k. *Reduce* averages inputs and sums
derivatives over places first: R = N (Eschenhagen et al. 2023, section 3). Without shared weights they agree; a bias
has the input 1, so that its block is exact, as is that of any layer of one datum and one output. The prior's curvature
adds its mean over the array to the eigenvalues, which is exact where it is the same for each entry.
Coordinates that are no weights of a linear layer (model/layers.py) get the exact diagonal of Gauss-Newton.
"""

import functools
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from credo.linalg.kronecker import Block
from credo.linalg.kronecker import Kronecker as KroneckerScale
from credo.linalg.products import second_order
from credo.methods.laplace.curvature import GaussNewton
from credo.methods.laplace.structure import Shape
from credo.methods.optimise.spectrum import LEAST
from credo.model.distributions import Scaled
from credo.model.layers import Layers, find_layers
from credo.model.target import Target
from credo.status import CredoError

MEMORY = 256 * 2**20  # bytes of activations and derivatives at once
LARGEST_FACTOR = 20_000  # rows of A or B: 3 GB each
MAX_APART = 2_000  # coordinates whose prior curvature is found one by one


class Factors(NamedTuple):
    """Σ a aᵀ and Σ g gᵀ of each layer, how many places a row has, and the diagonal of the other coordinates."""

    inputs: list[Any]
    outputs: list[Any]
    rest: Any


@dataclass(frozen=True)
class Kronecker:
    """Each matrix of weights with a covariance of Kronecker form, independent of the others. Needs GaussNewton().

    ``shared``: "expand" or "reduce", where weights are used at several places of a row (pixels, tokens).
    """

    shared: Literal["expand", "reduce"] = "expand"

    def shape(self, curvature, objective, target: Target, optimum, chunk, is_mode=True) -> Shape:
        if not isinstance(curvature, GaussNewton):
            raise CredoError("Kronecker() factors the Gauss-Newton matrix: say curvature=GaussNewton() beside it.")
        u = jnp.asarray(optimum.position)
        layers = layers_of(target, u)
        sizes = [size for layer in layers.layers for size in layer.index.shape]
        if max(sizes, default=0) > LARGEST_FACTOR:
            raise CredoError(
                f"A layer has {max(sizes):,} inputs or outputs, and Kronecker() would factor a matrix of "
                f"{8e-9 * max(sizes) ** 2:.1f} GB: use structure=Diagonal()."
            )
        factors, num_places = gather(target, u, layers, self.shared)
        prior = np.asarray(_prior_curvature(objective.log_prior, objective.args, u, _apart(layers)))
        blocks, smallest, coordinate = [], np.inf, 0
        for layer, A, B, places in zip(layers.layers, factors.inputs, factors.outputs, num_places, strict=True):
            (a, U), (b, V) = np.linalg.eigh(np.asarray(A, float)), np.linalg.eigh(np.asarray(B, float))
            τ = float(np.mean(prior[layer.index]))
            values = np.outer(np.maximum(a, 0), np.maximum(b, 0)) / (target.size * places) + τ
            block, least = _block(layer.index, values, U, V)
            blocks.append(block)
            if least < smallest:
                smallest, coordinate = least, int(layer.index.flat[0])
        if layers.rest.size:
            values = np.asarray(factors.rest, float)[None] + prior[layers.rest][None]
            block, least = _block(layers.rest[None], values, None, None)
            blocks.append(block)
            if least < smallest:
                smallest, coordinate = least, int(layers.rest[int(np.argmin(values))])
        return Shape(KroneckerScale(tuple(blocks)), smallest, coordinate)


def _block(index, values: np.ndarray, U, V) -> tuple[Block, float]:
    """The block of these precisions, and the smallest of them."""
    least = float(values.min())
    if least <= 0:
        values = np.maximum(np.abs(values), LEAST * max(float(np.abs(values).max()), 1e-100))
    return Block(index, values**-0.5, U, V), least


def layers_of(target: Target, u) -> Layers:
    """The linear layers of a target's outputs. CredoError where a row cannot be evaluated alone."""
    row = jax.tree.map(lambda leaf: leaf[0], target.x)
    try:
        return find_layers(functools.partial(_outputs, target), u, row)
    except (TypeError, ValueError, IndexError) as error:
        raise CredoError(
            f"The network cannot be evaluated on one row alone ({str(error)[:80]}), which Kronecker() needs: use "
            "structure=Diagonal() or Dense()."
        ) from error


def _outputs(target: Target, u, row):
    head = target.head
    assert head is not None  # GaussNewton has checked
    one = jax.tree.map(lambda leaf: leaf[None], row)
    return head.split(target.likelihood_distribution(target.constrain(u), one))[0]


# factors -------------------------------------------------------------------------------------------------------------


def gather(target: Target, u, layers: Layers, shared: str) -> tuple[Factors, list[int]]:
    """Factors summed over the rows, as many at once as memory holds, and the places of each layer."""
    row = jax.eval_shape(lambda: jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], target.x))
    z, inputs = jax.eval_shape(lambda u, row: layers.linearised(u, row)[:2], u, row)
    num_places = [1 if shared == "reduce" else sum(a.shape[0] for a in each) for each in inputs]
    numbers = z.size * layers.rest.size + 1
    for layer, each in zip(layers.layers, inputs, strict=True):
        numbers += sum(a.size + z.size * a.shape[0] * layer.index.shape[1] for a in each)
    chunk = int(np.clip(MEMORY // (8 * 4 * numbers), 1, target.size))
    weights = np.ones(target.size) if target.weights is None else np.asarray(target.weights)
    total = None
    for first in range(0, target.size, chunk):
        rows = np.arange(first, first + chunk)
        counts = np.where(rows < target.size, 1.0, 0.0)
        rows = np.minimum(rows, target.size - 1)
        x = jax.tree.map(lambda leaf, rows=rows: np.asarray(leaf)[rows], target.x)
        found = _gather(target, u, x, jnp.asarray(counts * weights[rows], u.dtype), shared)
        total = found if total is None else jax.tree.map(jnp.add, total, found)
    assert total is not None
    return total, num_places


@functools.partial(jax.jit, static_argnames="shared")
def _gather(target: Target, u, x, weights, shared: str) -> Factors:
    layers = layers_of(target, u)
    roots = _fisher_roots(target, u, x, weights)

    def one(row, root):
        _, inputs, back = layers.linearised(u, row)
        return inputs, jax.vmap(back, in_axes=1)(root)

    inputs, derivatives = jax.vmap(one)(x, roots)
    is_counted = (weights > 0).astype(u.dtype)
    As, Bs = [], []
    for a_uses, g_uses in zip(inputs, derivatives, strict=True):
        if shared == "reduce":
            a_uses = [jnp.mean(jnp.concatenate(a_uses, axis=1), axis=1, keepdims=True)]
            g_uses = [sum(jnp.sum(g, axis=2, keepdims=True) for g in g_uses)]
        As.append(sum(_gram(a * is_counted[:, None, None]) for a in a_uses))
        Bs.append(sum(_gram(g) for g in g_uses))
    return Factors(As, Bs, _rest(target, layers, u, x, roots))


def _gram(rows):
    """Σ r rᵀ over all axes but the last."""
    flat = rows.reshape(-1, rows.shape[-1])
    return flat.T @ flat


def _rest(target: Target, layers: Layers, u, x, roots):
    """The diagonal of Gauss-Newton at the other coordinates."""
    if not layers.rest.size:
        return jnp.zeros(0, u.dtype)

    def squares(row, root):
        _, pull = jax.vjp(lambda part: _outputs(target, u.at[layers.rest].set(part), row), u[layers.rest])
        return jnp.sum(jnp.square(jax.vmap(lambda column: pull(column)[0], in_axes=1)(root)), axis=0)

    return jnp.sum(jax.vmap(squares)(x, roots), axis=0)


def _fisher_roots(target: Target, u, x, weights):
    """L (M, K, K) with L Lᵀ = the weighted Fisher information of each row."""
    head, likelihood = target.head, target.model.likelihood
    assert head is not None
    assert likelihood is not None
    distribution: Any = likelihood(target.constrain(u), x)
    if isinstance(distribution, Scaled):
        weights, distribution = weights * distribution.scale, distribution.base_dist
    fisher = head.fisher(head.split(distribution), distribution)
    values, vectors = jnp.linalg.eigh(fisher)
    return jnp.sqrt(weights)[:, None, None] * vectors * jnp.sqrt(jnp.maximum(values, 0.0))[:, None, :]


# the prior -----------------------------------------------------------------------------------------------------------


def _apart(layers: Layers) -> tuple[int, ...]:
    """Coordinates whose prior curvature is found one by one: hyperparameters couple with all weights."""
    return tuple(int(i) for i in layers.rest) if layers.rest.size <= MAX_APART else ()


@functools.partial(jax.jit, static_argnames=("log_prior", "apart"))
def _prior_curvature(log_prior, args, u, apart: tuple[int, ...]):
    """The diagonal of −∇² log p(u). Weights are independent given the hyperparameters, so that a product with ones on
    them gives theirs at once."""
    *_, product = second_order(lambda v: log_prior(args, v), u)
    alone = jnp.asarray(apart, int)
    found = -product(jnp.ones_like(u).at[alone].set(0.0))
    if not apart:
        return found
    own = jax.lax.map(lambda i: -product(jnp.zeros_like(u).at[i].set(1.0))[i], alone)
    return found.at[alone].set(own)
