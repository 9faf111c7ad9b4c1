"""What a flow is made of: bijections of R^dim whose inverse and determinant cost no more than they do.

A coupling layer (Dinh, Krueger & Bengio 2014) keeps some coordinates, z_A, and moves each of the others by an
increasing function of its own whose parameters a small network makes of z_A:

    u_A = z_A,  u_j = g(z_j; θ_j(z_A)) for j not in A;   log|du/dz| = Σ_j log g'(z_j)

Layer ``index`` keeps the coordinates whose binary digit number ⌊index/2⌋ is odd, or where ``index`` is odd those whose
digit is even: any two coordinates are on different sides in one of every 2 ⌈log₂ dim⌉ layers. A layer is arrays and
whole numbers, so that a file can hold it.
"""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credo.linalg.operator import Stored

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
    """A coupling layer; ``bend`` and ``unbend`` are those of its functions g.

    ``weights``, ``biases``: of the network, tanh(W₁ z_A + b₁) and then W₂ · + b₂, (moved × parameters of g).
    """

    weights: tuple[Float[Stored, "width kept"], Float[Stored, "out width"]]
    biases: tuple[Float[Stored, " width"], Float[Stored, " out"]]
    dim: int = eqx.field(static=True)
    index: int = eqx.field(static=True)

    @abstractmethod
    def bend(self, theta: Float[Array, "moved parameters"], z: Float[Array, " moved"]) -> tuple[Any, Any]:
        """(g(z), log g'(z)) of each coordinate; the identity where theta is zero."""

    @abstractmethod
    def unbend(self, theta: Float[Array, "moved parameters"], u: Float[Array, " moved"]) -> tuple[Any, Any]:
        """(g⁻¹(u), −log g'(g⁻¹(u))) of each coordinate."""

    def forward(self, z) -> Image:
        return self._apply(self.bend, z)

    def inverse(self, u) -> Image:
        return self._apply(self.unbend, u)

    def _apply(self, function, v) -> Image:
        kept, moved = sides(self.dim, self.index)
        hidden = jnp.tanh(jnp.matmul(self.weights[0], v[kept]) + self.biases[0])
        theta = jnp.reshape(jnp.matmul(self.weights[1], hidden) + self.biases[1], (len(moved), -1))
        image, log_slopes = function(theta, v[moved])
        order = np.argsort(np.concatenate([kept, moved]))
        return jnp.concatenate([v[kept], image])[order], jnp.sum(log_slopes)


def sides(dim: int, index: int) -> tuple[np.ndarray, np.ndarray]:
    """The coordinates that layer ``index`` keeps, and those that it moves: all, where there is only one."""
    num_digits = max(1, int(dim - 1).bit_length())
    digit = np.arange(dim) >> (index // 2 % num_digits) & 1
    is_moved = (digit == index % 2) | (dim == 1)
    return np.flatnonzero(~is_moved), np.flatnonzero(is_moved)


def network(dim: int, index: int, num_parameters: int, width: int, dtype) -> tuple[tuple, tuple]:
    """(weights, biases) of a layer that is the identity: fixed random features, and zeros behind them."""
    kept, moved = sides(dim, index)
    features = np.random.default_rng(index).normal(size=(width, len(kept))) / np.sqrt(max(len(kept), 1))
    out = len(moved) * num_parameters
    weights = features.astype(dtype), np.zeros((out, width), dtype)
    return weights, (np.zeros(width, dtype), np.zeros(out, dtype))
