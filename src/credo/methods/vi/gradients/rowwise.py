"""Gradients in which each row of a minibatch sees a draw of its own, at the price of one.

The layers of a network are found in the traced log likelihood of a row (model/layers.py). For q a product of normals
N(μ, σ²), a layer with inputs a_s at its places s has outputs a_sᵀW + noise, where for row i

    one place:  N(0, Σ_j a_j² σ_jk²), independent over k      local reparameterisation (Kingma, Salimans & Welling 2015)
    any places: (a_s ∘ r_i)ᵀ Δ ∘ t_i,  Δ = σ ∘ z shared        flipout (Wen, Vicol, Ba, Tran & Grosse 2018, eq. 4)

with random signs r_i (inputs), t_i (outputs). Given its inputs the outputs of a layer that a row uses once are
independent normals, whose law the first line is; under the second the row's weights μ + r_i t_iᵀ ∘ Δ are a draw of q,
the same one at every place. So each row's likelihood has its expectation under q, and the sum over rows too; rows are
(nearly) independent, so that noise falls with the size of the batch, where one shared draw leaves a part that does not.
Independent noise at each place of a convolution would be another law, and no bound: there flipout takes over.
Coordinates outside of layers, and tables of rows that are looked up, are drawn as usual, once for all rows, and so is
the prior; the entropy is exact.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from credo.algorithm import as_key
from credo.batches import in_batches
from credo.linalg.diagonal import Diagonal
from credo.methods.vi.families.mean_field import MeanField
from credo.methods.vi.gradients.estimator import Estimator
from credo.methods.vi.minibatch import random_rows
from credo.methods.vi.objectives.elbo import ELBO
from credo.model.data import Rows
from credo.model.layers import Layer, Layers, find_layers
from credo.model.target import Target
from credo.normals import normal
from credo.posterior.kinds import Gaussian
from credo.precision import abstract
from credo.status import CredoError


class OnRows(NamedTuple):
    """The density on these rows, row by row."""

    target: Target
    rows: Rows

    def row(self, u, row: Rows):
        """log p(y_i | x_i, u), (1,)."""
        return self.target.log_likelihood(u, jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], row))

    def layers(self, u) -> Layers:
        one = jax.tree.map(lambda leaf: abstract(leaf.shape[1:], leaf.dtype), self.rows)
        return find_layers(self.row, abstract(u.shape, u.dtype), one).without_lookups().outside_scans()

    def num_places(self, layers: Layers, u) -> list[int]:
        """Inputs that a row gives to each layer."""
        one = jax.tree.map(lambda leaf: abstract(leaf.shape[1:], leaf.dtype), self.rows)
        inputs = jax.eval_shape(lambda u, row: layers.linearised(u, row)[1], abstract(u.shape, u.dtype), one)
        return [sum(a.shape[0] for a in uses) for uses in inputs]


@dataclass(frozen=True)
class RowWise(Estimator):
    """What local reparameterisation and flipout share."""

    def check(self, objective, family, target, num_samples):
        super().check(objective, family, target, num_samples)
        name = type(self).__name__
        if not isinstance(family, MeanField) or not isinstance(objective, ELBO):
            raise CredoError(
                f"{name}() is for independent normals and the ELBO, and was given {type(family).__name__}() and "
                f"{type(objective).__name__}(): take StickingTheLanding()."
            )
        if target.y is None or target.model.likelihood is None or target.num_terms != target.size:
            raise CredoError(
                f"{name}() gives each row of data a draw of its own, and this likelihood has no factors by row: take "
                "StickingTheLanding()."
            )
        if not self.on_rows(target, target.read(np.arange(1))).layers(jnp.zeros(target.dim)).layers:
            raise CredoError(
                f"{name}() found no parameter that enters the likelihood as the weights of a layer: take "
                "StickingTheLanding()."
            )

    def density(self, target, anchor, batch_size, key):
        return self.on_rows(target, None if batch_size is None else random_rows(target, batch_size, key))

    def on_rows(self, target, batch) -> OnRows:
        return OnRows(target, target.rows(batch))

    def noise(self, objective, family, key, num_samples, dim):
        k_shared, k_rows = jax.random.split(key)
        seeds = jax.random.key_data(jax.random.split(k_rows, num_samples))
        return family.noise(k_shared, num_samples, dim), seeds, jnp.ones(num_samples)  # signs, which a mirror turns

    def surrogate(self, objective, family, q, tangent, log_density, z, known, draws_at_once):
        moved, on = family.move(q, tangent), log_density
        assert isinstance(on, OnRows)
        assert isinstance(moved, Gaussian)
        assert isinstance(moved.scale, Diagonal)
        μ, σ = jnp.asarray(moved.mean), jnp.asarray(moved.scale.scale)
        layers = on.layers(μ)
        num_places = on.num_places(layers, μ)
        is_shared = np.zeros(μ.size, bool)  # drawn once for all rows
        is_shared[layers.rest] = True
        num_rows = len(jax.tree.leaves(on.rows)[0])
        factor = on.target.num_terms / num_rows

        def one(noise):
            z, seed, sign = noise
            u = μ + σ * z
            center = jnp.where(is_shared, u, μ) if is_shared.any() else μ
            keys = [jax.random.fold_in(as_key(seed), i) for i in range(len(layers.layers))]
            makers = [
                self.maker(layer, places, key, num_rows, σ, z, sign)
                for layer, places, key in zip(layers.layers, num_places, keys, strict=True)
            ]

            def of_row(row, own):
                noises = [make(mine) for (make, _), mine in zip(makers, own, strict=True)]
                return layers.perturbed(center, row, noises)[0]

            terms = jax.vmap(of_row)(on.rows, [own for _, own in makers])
            return on.target.log_prior(u) + factor * jnp.sum(terms)

        entropy = family.entropy(q, tangent)
        assert entropy is not None  # of independent normals
        return jnp.mean(in_batches(one, z, draws_at_once)) + entropy

    def maker(self, layer: Layer, num_places: int, key, num_rows: int, σ, z, sign) -> tuple[Callable, object]:
        """(what a row draws -> its noise, a function of inputs (places, in) -> (places, out); what all rows draw)."""
        return flipped(layer, key, num_rows, σ, z)


@dataclass(frozen=True)
class Flipout(RowWise):
    """One draw of the weights a step, under random signs of each row's own; any layer, used as often as it may be.

    For ``MeanField()`` and the ELBO. Costs two products with each weight matrix where others cost one.
    """


@dataclass(frozen=True)
class LocalReparameterised(RowWise):
    """Each row's outputs of a layer are drawn, in place of the layer's weights: the least noise on a minibatch.

    For ``MeanField()`` and the ELBO. Exact for layers that a row uses once (dense ones, and biases); the weights of
    others (convolutions, attention, recurrence, shared weights), whose outputs at several places hang together, are
    drawn as by ``Flipout()``, and what enters the network otherwise as usual.
    """

    def maker(self, layer, num_places, key, num_rows, σ, z, sign):
        if num_places > 1:
            return flipped(layer, key, num_rows, σ, z)
        variance = jnp.square(entries(σ, layer.index))
        ε = sign * normal(key, (num_rows, layer.index.shape[1]), σ.dtype)

        def make(ε):
            def noise(a):
                v = jnp.matmul(jnp.square(a), variance)
                is_positive = v > 0  # the root has no derivative where all inputs are zero
                return jnp.where(is_positive, jnp.sqrt(jnp.where(is_positive, v, 1.0)), 0.0) * ε

            return noise

        return make, ε


def flipped(layer: Layer, key, num_rows: int, σ, z) -> tuple[Callable, object]:
    """Flipout's noise of a layer."""
    num_in, num_out = layer.index.shape
    Δ = entries(σ * z, layer.index)
    k_in, k_out = jax.random.split(key)
    r = jax.random.rademacher(k_in, (num_rows, num_in), σ.dtype)
    t = jax.random.rademacher(k_out, (num_rows, num_out), σ.dtype)

    def make(own):
        r, t = own
        return lambda a: jnp.matmul(a * r, Δ) * t

    return make, (r, t)


def entries(values, index: np.ndarray):
    """``values[index]``; without a gather where they stand one after the other, row by row or column by column."""
    first = int(index.min())
    run = first + np.arange(index.size)
    if np.array_equal(index.ravel(), run):
        return values[first : first + index.size].reshape(index.shape)
    if np.array_equal(index.T.ravel(), run):
        return values[first : first + index.size].reshape(index.shape[::-1]).T
    return values[index]
