"""Kronecker-factored Laplace (Ritter, Botev & Barber 2018): for each matrix of weights, curvature A ⊗ B.

With a the inputs of a linear layer at the places s of row n and g_k the derivatives of the outputs there along the
columns of a root of the Fisher information, Σ_k L_k L_kᵀ = F_n, the Gauss-Newton block of its weights is

    Σ_n Σ_k (Σ_s a_ns ⊗ g_nsk)(Σ_s a_ns ⊗ g_nsk)ᵀ ≈ (1 / R) (Σ a aᵀ) ⊗ (Σ g gᵀ)

*Expand* takes each place of each row for a datum: R = N S, sums over n, s and k. *Reduce* averages inputs and sums
derivatives over places first: R = N (Eschenhagen et al. 2023, section 3). Without shared weights they agree. A row of
weight w is w rows, in both sums and in R. A bias has the input 1 wherever it is added: its derivatives are summed, so
that its block is exact, as is that of any layer of one datum and one output. The prior's curvature adds its mean over
the array to the eigenvalues, which is exact where it is the same for each entry. Of a table of embeddings a aᵀ is
diagonal, the counts of its rows, and R the number of places that choose one.
Coordinates that are no weights of a linear layer (model/layers.py) get the exact diagonal of Gauss-Newton, and the
posterior says so. With the empirical or a sampled Fisher information the columns g_k are those of its root.
"""

import functools
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

from credo.compiling import brief
from credo.linalg.blas import threads_for
from credo.linalg.kronecker import Block
from credo.linalg.kronecker import Kronecker as KroneckerScale
from credo.methods.laplace import layered
from credo.methods.laplace.curvature import GaussNewton, OuterProducts
from credo.methods.laplace.structure import Shape
from credo.methods.optimise.spectrum import LEAST
from credo.model.data import Rows
from credo.model.layers import Layer, Layers
from credo.model.target import Target
from credo.status import CredoError

NAMED = 5  # parameters named in a sentence
LARGEST_FACTOR = 20_000  # rows of A or B: 3 GB each
CORRELATED = "The prior correlates weights, and Kronecker() leaves its correlations out: use structure=Dense()."


class Factors(NamedTuple):
    """Σ a aᵀ, of a lookup its diagonal, and Σ g gᵀ of each layer, and the diagonal of the other coordinates."""

    inputs: list[Any]
    outputs: list[Any]
    rest: Any


@dataclass(frozen=True)
class Kronecker:
    """Each matrix of weights with a covariance of Kronecker form, independent of the others.

    Needs GaussNewton(), EmpiricalFisher() or SampledFisher().

    ``shared``: "expand" or "reduce", where weights are used at several places of a row (pixels, tokens). The rows of a
    table of embeddings have covariances of their own and are independent of each other, either way.
    """

    shared: Literal["expand", "reduce"] = "expand"

    def shape(
        self, curvature, objective, target: Target, optimum, chunk, is_mode=True, free: np.ndarray | None = None
    ) -> Shape:
        if not isinstance(curvature, OuterProducts):
            if target.head is None:
                raise CredoError(
                    "Kronecker() factors the Gauss-Newton matrix, which needs the natural outputs of the likelihood, "
                    "and they are not known for this one: use structure=Dense() or Diagonal()."
                )
            raise CredoError("Kronecker() factors the Gauss-Newton matrix: say curvature=GaussNewton() beside it.")
        u = jnp.asarray(optimum.position)
        layers = layers_of(target, u)
        if free is not None:
            layers = layers.within(free)
            if not layers.layers:
                raise CredoError(
                    "The subset holds no whole matrix of weights, which Kronecker() needs: use structure=Diagonal() or "
                    "Dense(), or a subset of whole layers."
                )
        sizes = [size for layer in layers.layers for size in sides(layer)]
        if max(sizes, default=0) > LARGEST_FACTOR:
            raise CredoError(
                f"A layer has {max(sizes):,} inputs or outputs, and Kronecker() would factor a matrix of "
                f"{8e-9 * max(sizes) ** 2:.1f} GB: use structure=Diagonal()."
            )
        factors, num_places = gather(target, u, layers, self.shared, curvature)
        prior, is_independent = layered.prior_diagonal(objective, target, u, layers)
        num_rows = target.size if target.row_weights is None else float(np.sum(target.row_weights, dtype=float))
        blocks, smallest, coordinate = [], np.inf, 0
        last, b, V = None, np.zeros(0), np.zeros((0, 0))
        for layer, A, B, places in zip(layers.layers, factors.inputs, factors.outputs, num_places, strict=True):
            a, U = _eigh(A) if A.ndim == 2 else (np.asarray(A, float), None)
            if last is None or not np.array_equal(B, last):  # a bias has the derivatives of its weights
                last, (b, V) = B, _eigh(B)
            τ = float(np.mean(prior[layer.index]))
            num_uses = (float(np.sum(a)) if layer.is_lookup else num_rows * places) or 1.0
            values = np.outer(np.maximum(a, 0), np.maximum(b, 0)) / num_uses + τ
            index = _within(layer.index, free)
            block, least = _block(index, values, U, V)
            blocks.append(block)
            if least < smallest:
                smallest, coordinate = least, int(index.flat[0])
        if layers.rest.size:
            values = np.asarray(factors.rest, float)[None] + prior[layers.rest][None]
            index = _within(layers.rest[None], free)
            block, least = _block(index, values, None, None)
            blocks.append(block)
            if least < smallest:
                smallest, coordinate = least, int(index.flat[int(np.argmin(values))])
        met = layers.rest[np.asarray(factors.rest) > 0]  # what the data have no word on is its prior, whatever the form
        said = _said(target, met)
        if not is_independent:
            said = (*said, CORRELATED)
        return Shape(KroneckerScale(tuple(blocks)), smallest, coordinate, said)


def _within(index: np.ndarray, free: np.ndarray | None) -> np.ndarray:
    """Places among the free coordinates."""
    return index if free is None else np.searchsorted(free, index)


def _said(target: Target, rest: np.ndarray) -> tuple[str, ...]:
    """A sentence that names the parameters without a matrix of their own."""
    if not rest.size:
        return ()
    ends = np.cumsum([leaf.size for leaf in target.structure.leaves])
    names = [target.structure.leaves[i].name for i in np.unique(np.searchsorted(ends, rest, side="right"))]
    listed = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    verb = "has its" if len(names) == 1 else "have their"
    return (f"{listed} {verb} exact diagonal: Kronecker() found no matrix of weights of a layer there.",)


def _block(index, values: np.ndarray, U, V) -> tuple[Block, float]:
    """The block of these precisions, and the smallest of them."""
    least = float(values.min())
    if least <= 0:
        values = np.maximum(np.abs(values), LEAST * max(float(np.abs(values).max()), 1e-100))
    return Block(index, values**-0.5, U, V), least


def _eigh(matrix):
    with threads_for(len(matrix)):
        return np.linalg.eigh(np.asarray(matrix, float))


def sides(layer: Layer) -> tuple[int, ...]:
    """Those of a layer's weights for which a matrix is held: not of the rows of a table, which are counted."""
    return layer.index.shape[1:] if layer.is_lookup else layer.index.shape


def layers_of(target: Target, u) -> Layers:
    """The linear layers of a target's outputs. CredoError where a row cannot be evaluated alone."""
    if not layered.stands_alone(target):
        raise CredoError(
            "What the model says of a row changes without the rows beside it (a parameter with one entry a row, a lag "
            "or a mean over x?), and Kronecker() goes row by row: use structure=Diagonal() or Dense()."
        )
    return layered.layers_of(target, u, "Kronecker()", "structure=Diagonal() or Dense()")


# factors -------------------------------------------------------------------------------------------------------------


def gather(
    target: Target, u, layers: Layers, shared: str, curvature: OuterProducts | None = None
) -> tuple[Factors, list[int]]:
    """Factors summed over the rows, as many at once as memory holds, and the places of each layer."""
    curvature = curvature or GaussNewton()
    num_columns, by_use = layered.places(curvature, target, layers)
    numbers = num_columns * layers.rest.size + 1
    for layer, each in zip(layers.layers, by_use, strict=True):
        numbers += sum(each) * (layer.index.shape[0] + num_columns * layer.index.shape[1])
    frozen = layered.Frozen(layers)
    total = layered.summed(_gather, target, u, numbers, curvature, frozen, shared)
    is_once = [_is_reduced(layer, shared) for layer in layers.layers]
    return total, [1 if once else sum(each) for once, each in zip(is_once, by_use, strict=True)]


@functools.partial(brief, static_argnames=("curvature", "frozen", "shared"))
def _gather(target: Target, u, rows: Rows, curvature: OuterProducts, frozen: layered.Frozen, shared: str) -> Factors:
    layers = frozen.layers(target, u)
    inputs, derivatives, rest = layered.parts(curvature, target, layers, u, rows)
    root = jnp.sqrt(rows.weights)[:, None, None]  # as in the derivatives
    As, Bs = [], []
    for layer, a_uses, g_uses in zip(layers.layers, inputs, derivatives, strict=True):
        if _is_reduced(layer, shared):
            a_uses = [jnp.mean(jnp.concatenate(a_uses, axis=1), axis=1, keepdims=True)]
            g_uses = [sum(jnp.sum(g, axis=2, keepdims=True) for g in g_uses)]
        if layer.is_lookup:  # a place that chooses padding is none of the table's
            g_uses = [g * jnp.sum(a, axis=-1)[:, None, :, None] for a, g in zip(a_uses, g_uses, strict=True)]
        a_uses = [root * a for a in a_uses]
        As.append(sum(jnp.sum(root * a, axis=(0, 1)) if layer.is_lookup else _gram(a) for a in a_uses))
        Bs.append(sum(_gram(g) for g in g_uses))
    return Factors(As, Bs, jnp.zeros(0, u.dtype) if rest is None else jnp.sum(jnp.square(rest), axis=(0, 1)))


def _is_reduced(layer: Layer, shared: str) -> bool:
    """A bias always: all its inputs are 1, so that its block is exact."""
    return layer.is_bias or (shared == "reduce" and not layer.is_lookup)


def _gram(rows):
    """Σ r rᵀ over all axes but the last."""
    flat = rows.reshape(-1, rows.shape[-1])
    return flat.T @ flat
