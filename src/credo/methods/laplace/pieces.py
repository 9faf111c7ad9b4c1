"""The curvature of a network's posterior as a function of its hyperparameters: c H + diag(P) over the weights.

H, that of the likelihood, is found once; noise scales it by c and precisions move P. Each form of H has the work on it
done beforehand, so that log |c H + P| is a sum over eigenvalues for Kronecker factors and diagonals, and a factor of a
small matrix where data are few.
"""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credo.linalg.blocks import BlockDiagonal
from credo.linalg.dense import Dense as DenseScale
from credo.linalg.diagonal import Diagonal as DiagonalScale
from credo.linalg.kronecker import Block
from credo.linalg.kronecker import Kronecker as KroneckerScale
from credo.linalg.lowrank import LowRank
from credo.linalg.operator import ScaleOperator, Stored
from credo.linalg.singular import along

NOTHING = 1e-10  # of the largest eigenvalue: rounding


class Pieces(eqx.Module):
    """c H + diag(P) over the weights, for any c and P, with the work on H done once."""

    @abstractmethod
    def log_det(self, c, P: Float[Array, " weight"]) -> Float[Array, ""]:
        """log |c H + diag(P)|."""

    @abstractmethod
    def solve(self, c, P: Float[Array, " weight"], g: Float[Array, " weight"]) -> Float[Array, " weight"]:
        """(c H + diag(P))⁻¹ g."""

    def least(self, c: float, P: np.ndarray) -> float:
        """The smallest eigenvalue of c H + diag(P), or a positive bound below it: H has no negative ones."""
        return float(np.min(P))

    @abstractmethod
    def scale(self, c: float, P: np.ndarray, covariance: np.ndarray) -> ScaleOperator:
        """That of all coordinates: the hyperparameters with ``covariance`` first, then the weights."""


class DensePieces(Pieces):
    """H (weight, weight). Where the prior has one precision, its eigenvalues and vectors serve for any."""

    matrix: Stored
    values: Stored | None
    vectors: Stored | None

    @classmethod
    def of(cls, H: np.ndarray, is_isotropic: bool) -> "DensePieces":
        """Of a matrix that has negative eigenvalues by rounding alone."""
        values, vectors = np.linalg.eigh(0.5 * (H + H.T))
        values = np.maximum(values, 0.0)
        matrix = (vectors * values) @ vectors.T
        return cls(matrix, values, vectors) if is_isotropic else cls(matrix, None, None)

    def log_det(self, c, P):
        if self.values is not None:
            return jnp.sum(jnp.log(c * self.values + P[0]))
        return 2 * jnp.sum(jnp.log(jnp.diagonal(jnp.linalg.cholesky(c * self.matrix + jnp.diag(P)))))

    def solve(self, c, P, g):
        if self.values is not None and self.vectors is not None:
            return self.vectors @ ((self.vectors.T @ g) / (c * self.values + P[0]))
        return jnp.linalg.solve(c * self.matrix + jnp.diag(P), g)

    def least(self, c, P):
        if np.min(P) > 0:
            return float(np.min(P))
        return float(np.linalg.eigvalsh(c * np.asarray(self.matrix) + np.diag(P))[0])

    def scale(self, c, P, covariance):
        lower = np.asarray(DenseScale.from_precision(c * np.asarray(self.matrix) + np.diag(P)).lower)
        k = len(covariance)
        whole = np.zeros((k + len(lower),) * 2)
        whole[k:, k:] = lower
        whole[:k, :k] = np.linalg.cholesky(covariance) if k else 0.0
        return DenseScale(whole)


class LowRankPieces(Pieces):
    """H = U diag(s) Uᵀ, ``values`` s (r,) and ``vectors`` U (weight, r) orthonormal; with B = U s^½

        |c H + P| = |P| |I + c Bᵀ P⁻¹ B|,   (c H + P)⁻¹ = P⁻¹ − c P⁻¹ B (I + c Bᵀ P⁻¹ B)⁻¹ Bᵀ P⁻¹

    ``grams`` (G, r, r): Bᵀ B over each group of weights that have one precision, of which ``firsts`` (G,) are some;
    None where groups are many, or there is one alone, of which Bᵀ B = diag(s).
    """

    values: Stored
    vectors: Stored
    grams: Stored | None
    firsts: Stored

    @classmethod
    def of(cls, s: np.ndarray, U: np.ndarray, groups: np.ndarray) -> "LowRankPieces":
        """``groups`` (weight,): 0 … G − 1."""
        _, firsts = np.unique(groups, return_index=True)
        B, grams = U * np.sqrt(s), None
        if len(firsts) > 1 and len(firsts) * len(s) <= len(U):  # no more numbers than U has
            grams = np.stack([B[groups == g].T @ B[groups == g] for g in range(len(firsts))])
        return cls(s, U, grams, firsts)

    def log_det(self, c, P):
        if self._is_isotropic:
            return jnp.sum(jnp.log(P)) + jnp.sum(jnp.log1p(c * self.values / P[self.firsts]))
        return jnp.sum(jnp.log(P)) + 2 * jnp.sum(jnp.log(jnp.diagonal(self._middle(c, P))))

    def solve(self, c, P, g):
        root = jnp.sqrt(self.values)
        along = root * (self.vectors.T @ (g / P))
        if self._is_isotropic:
            along = along / (1 + c * self.values / P[self.firsts])
        else:
            along = jax.scipy.linalg.cho_solve((self._middle(c, P), True), along)
        return (g - c * (self.vectors @ (root * along))) / P

    def scale(self, c, P, covariance):
        s, U = c * np.asarray(self.values), np.asarray(self.vectors)
        if self._is_isotropic:
            s = s / P[self.firsts]
        else:
            B = U * np.sqrt(s) / np.sqrt(P)[:, None]
            s, V = (each[..., ::-1] for each in np.linalg.eigh(B.T @ B))  # of P^−½ c H P^−½, the largest first
            s = np.where(s > NOTHING * s[0], s, 0.0)
            U = along(B, s, V)
        own, k = LowRank.from_eigen(P**-0.5, U, 1 / (1 + s)), len(covariance)
        blocks = DenseScale(np.linalg.cholesky(covariance)), own
        return BlockDiagonal(blocks, (((0, k),), ((k, k + len(P)),)))

    @property
    def _is_isotropic(self) -> bool:
        return len(self.firsts) == 1

    def _middle(self, c, P):
        """The Cholesky factor of I + c Bᵀ P⁻¹ B."""
        if self.grams is None:
            B = self.vectors * jnp.sqrt(self.values)
            weighed = B.T @ (B / P[:, None])
        else:
            weighed = jnp.tensordot(1 / P[self.firsts], self.grams, axes=1)
        return jnp.linalg.cholesky(jnp.eye(len(self.values)) + c * weighed)


class BlockPieces(Pieces):
    """Blocks of Kronecker form or diagonal: ``values`` (in, out), the eigenvalues of H in a block's own basis.

    The prior's curvature of a block with factors is its mean over it. ``num_fixed``: how many coordinates come before
    the weights.
    """

    blocks: tuple[Block, ...]
    values: tuple[Stored, ...]
    num_fixed: int = eqx.field(static=True)
    is_diagonal: bool = eqx.field(static=True)

    @classmethod
    def of(cls, scale: DiagonalScale | KroneckerScale, num_fixed: int, unit: float) -> "BlockPieces":
        """From S with S Sᵀ = (H + unit I)⁻¹: the unit is taken off again, and should be far below what counts of H."""
        if isinstance(scale, DiagonalScale):
            sd = np.asarray(scale.scale)
            blocks: tuple[Block, ...] = (Block(np.arange(len(sd))[None], sd[None]),)
        else:
            blocks = scale.blocks
        values: Any = tuple(np.maximum(np.asarray(block.sd, float) ** -2.0 - unit, 0.0) for block in blocks)
        return cls(blocks, values, num_fixed, isinstance(scale, DiagonalScale))

    def _each(self, c, P):
        """(block, precisions, whether an entry is a weight's) for each block."""
        whole = jnp.concatenate([jnp.ones(self.num_fixed, P.dtype), P])
        for block, values in zip(self.blocks, self.values, strict=True):
            τ = whole[block.index] if block.is_diagonal else jnp.mean(whole[block.index])
            yield block, c * values + τ, jnp.asarray(block.index) >= self.num_fixed

    def log_det(self, c, P):
        terms = [jnp.sum(jnp.where(is_weight, jnp.log(A), 0.0)) for _, A, is_weight in self._each(c, P)]
        return sum(terms, start=jnp.zeros(()))

    def solve(self, c, P, g):
        g = jnp.concatenate([jnp.zeros(self.num_fixed, g.dtype), g])
        out = jnp.zeros_like(g)
        for block, A, _ in self._each(c, P):
            out = out.at[block.index].set(block.rotate(block.rotate_back(g[block.index]) / A))
        return out[self.num_fixed :]

    def least(self, c, P):
        each = [np.where(is_weight, A, np.inf) for _, A, is_weight in self._each(c, jnp.asarray(P))]
        return float(min(np.min(values) for values in each))

    def scale(self, c, P, covariance):
        own = np.concatenate([np.diagonal(covariance) ** -1.0, P])
        blocks = []
        for block, values in zip(self.blocks, self.values, strict=True):
            index = np.asarray(block.index)
            H = np.where(index >= self.num_fixed, c * np.asarray(values), 0.0)
            A = H + (own[index] if block.is_diagonal else np.mean(own[index]))
            blocks.append(Block(index, A**-0.5, block.left, block.right))
        if not self.is_diagonal:
            return KroneckerScale(tuple(blocks))
        out = np.zeros(blocks[0].index.size)
        out[np.asarray(blocks[0].index)[0]] = np.asarray(blocks[0].sd)[0]
        return DiagonalScale(out)


def groups_of(precisions: np.ndarray) -> np.ndarray:
    """Which weights have one precision wherever (positions, weight) it was looked at: (weight,), 0 … G − 1."""
    with np.errstate(divide="ignore"):
        digits = np.round(np.log(np.abs(precisions)), 10)  # but for rounding
    return np.unique(digits, axis=1, return_inverse=True)[1].ravel()
