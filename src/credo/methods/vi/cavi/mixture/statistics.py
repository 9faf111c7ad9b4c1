"""Sufficient statistics of a mixture of Gaussians: everything that its parameters ever see of the data.

With features φ(x) = (1, x, pairs x_i x_j) a component's log density is linear, log p(x | θ_k) = c_k · φ(x), and

    T_k = Σ_n r_nk φ(x_n)     the expected statistics, r_nk the responsibility of component k for row n

is all that an update needs: coordinate ascent, EM and stochastic inference differ in how they use the same (K, P)
array. The pairs are those of a covariance's free entries: all i ≤ j where it is full, i = j where it is diagonal.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class Features:
    """φ for rows of ``dim`` numbers. A covariance is a number of equal blocks: one of all, or ``dim`` of one each."""

    dim: int
    is_full: bool

    @property
    def block_size(self) -> int:
        return self.dim if self.is_full else 1

    @property
    def num_blocks(self) -> int:
        return self.dim // self.block_size

    @property
    def size(self) -> int:
        """P, the number of features."""
        return 1 + self.dim + len(self.pairs[0])

    @cached_property
    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """The indices (i, j) of the products, in their order."""
        return np.triu_indices(self.dim) if self.is_full else (np.arange(self.dim), np.arange(self.dim))

    def of(self, x: Float[np.ndarray, "row dim"]) -> Float[np.ndarray, "P row"]:
        """φ, a feature a line: products of whole lines, and the sums over rows run along memory."""
        lines = np.empty((self.size, len(x)))
        lines[0] = 1.0
        lines[1 : 1 + self.dim] = columns = np.ascontiguousarray(x.T)
        if not self.is_full:
            np.multiply(columns, columns, out=lines[1 + self.dim :])
            return lines
        at = 1 + self.dim
        for i in range(self.dim):
            np.multiply(columns[i], columns[i:], out=lines[at : at + self.dim - i])
            at += self.dim - i
        return lines

    def moments(self, statistics: Float[np.ndarray, "K P"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """T as counts (K,), Σ r x in blocks (K, B, b), and Σ r x xᵀ in blocks (K, B, b, b)."""
        K, B, b = len(statistics), self.num_blocks, self.block_size
        second = np.empty((K, B, b, b))
        products = statistics[:, 1 + self.dim :]
        if self.is_full:
            i, j = self.pairs
            second[:, 0, i, j] = second[:, 0, j, i] = products
        else:
            second[:, :, 0, 0] = products
        return statistics[:, 0], statistics[:, 1 : 1 + self.dim].reshape(K, B, b), second

    def coefficients(self, constant, linear, quadratic) -> Float[np.ndarray, "K P"]:
        """c with c·φ(x) = constant + linear·x + xᵀ quadratic x, from (K,), (K, B, b) and symmetric (K, B, b, b)."""
        K = len(constant)
        if self.is_full:
            i, j = self.pairs
            products = np.where(i == j, 1.0, 2.0) * quadratic[:, 0, i, j]
        else:
            products = quadratic[:, :, 0, 0]
        return np.concatenate([constant[:, None], linear.reshape(K, -1), products], axis=1)


@dataclass(frozen=True)
class Full:
    """Any covariance in each component: D (D + 1)/2 numbers."""

    def features(self, dim: int) -> Features:
        """φ for rows of ``dim`` numbers."""
        return Features(dim, True)


@dataclass(frozen=True)
class Diagonal:
    """Columns that are independent within a component: D variances."""

    def features(self, dim: int) -> Features:
        """φ for rows of ``dim`` numbers."""
        return Features(dim, False)
