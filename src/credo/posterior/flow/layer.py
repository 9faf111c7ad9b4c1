"""What a flow is made of: bijections of R^dim whose inverse and determinant cost no more than they do.

A coupling layer (Dinh, Krueger & Bengio 2014) keeps some coordinates, z_A, and moves each of the others by an
increasing function of its own whose parameters a small network makes of z_A:

    u_A = z_A,  u_j = g(z_j; θ_j(z_A)) for j not in A;   log|du/dz| = Σ_j log g'(z_j)

Layer ``index`` keeps the coordinates whose binary digit number ⌊index/2⌋ is odd, or where ``index`` is odd those whose
digit is even: any two coordinates are on different sides in one of every 2 ⌈log₂ dim⌉ layers. Layers are
arrays and whole numbers, so that a file can hold them.
"""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from credo.linalg.operator import Stored

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # of coupling layers
Image = tuple[Float[Array, " dim"], Float[Array, ""]]


class Layer(eqx.Module):
    """A bijection of R^dim."""

    @abstractmethod
    def forward(self, z: Float[Array, " dim"]) -> Image:
        """(u, log|du/dz|)."""

    @abstractmethod
    def inverse(self, u: Float[Array, " dim"]) -> Image:
        """(z, log|dz/du|)."""


class Coupling(Layer):
    """Coupling layers, one after the other, as one loop: compiled once, whatever their number.

    The network of each is tanh(W₁ z_A + b₁) and then W₂ · + b₂, in shapes that do not hang on A: what is not in A goes
    in as zero, and what comes out for A is left. ``bend`` and ``unbend`` are those of g, for all coordinates.
    """

    inner: Float[Stored, "layer dim width"]
    inner_bias: Float[Stored, "layer width"]
    outer: Float[Stored, "layer dim parameters width"]
    outer_bias: Float[Stored, "layer dim parameters"]

    @abstractmethod
    def bend(self, theta: Float[Array, "dim parameters"], z: Float[Array, " dim"]) -> tuple[Any, Any]:
        """(g(z), log g'(z)) of each coordinate; the identity where theta is zero."""

    @abstractmethod
    def unbend(self, theta: Float[Array, "dim parameters"], u: Float[Array, " dim"]) -> tuple[Any, Any]:
        """(g⁻¹(u), −log g'(g⁻¹(u))) of each coordinate."""

    def forward(self, z) -> Image:
        return self._through(self.bend, z, is_inverse=False)

    def inverse(self, u) -> Image:
        return self._through(self.unbend, u, is_inverse=True)

    def _through(self, function, v, *, is_inverse: bool) -> Image:
        num_layers, dim, _ = self.inner.shape

        def one(carried, layer):
            v, log_det = carried
            inner, inner_bias, outer, outer_bias, moves = layer
            hidden = jnp.tanh(jnp.matmul(jnp.where(moves, 0.0, v), inner) + inner_bias)
            image, log_slopes = function(jnp.matmul(outer, hidden) + outer_bias, v)
            return (jnp.where(moves, image, v), log_det + jnp.sum(jnp.where(moves, log_slopes, 0.0))), None

        moves = np.stack([is_moved(dim, index) for index in range(num_layers)])
        layers = self.inner, self.inner_bias, self.outer, self.outer_bias, moves
        return lax.scan(one, (v, jnp.zeros((), v.dtype)), layers, reverse=is_inverse)[0]


def is_moved(dim: int, index: int) -> Bool[np.ndarray, " dim"]:
    """Which coordinates layer ``index`` moves: all, where there is only one."""
    num_digits = max(1, int(dim - 1).bit_length())
    digit = np.arange(dim) >> (index // 2 % num_digits) & 1
    return (digit == index % 2) | (dim == 1)


def identity_networks(dim: int, num_layers: int, num_parameters: int, width: int, dtype) -> Arrays:
    """The arrays of layers that change nothing: fixed random features, and zeros behind them."""
    inner = np.zeros((num_layers, dim, width), dtype)
    for index in range(num_layers):
        kept = np.flatnonzero(~is_moved(dim, index))
        features = np.random.default_rng(index).normal(size=(width, len(kept)))
        inner[index, kept] = features.T / np.sqrt(max(len(kept), 1))
    outer = np.zeros((num_layers, dim, num_parameters, width), dtype)
    return inner, np.zeros((num_layers, width), dtype), outer, outer[..., 0].copy()
