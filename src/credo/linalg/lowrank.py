"""Few directions beside independent coordinates: Σ = D + A Aᵀ and its kin, at the cost of d × k.

With D = diag(δ²) and B (d, k), the square root is S = diag(δ) (I + B K Bᵀ), square and exact: a draw needs d normal
numbers, not d + k. What K (k, k) is depends on what is given.

*A factor.* Σ = D + A Aᵀ, B = A / δ, G = Bᵀ B. (I + B K Bᵀ)(I + B K Bᵀ)ᵀ = I + B Bᵀ asks K + Kᵀ + K G Kᵀ = I; with
W = K⁻¹ that is (W − I)(W − I)ᵀ = I + G, so that K = (I + L)⁻¹ with the Cholesky factor L Lᵀ = I + G. By the matrix
inversion lemma (I + B K Bᵀ)⁻¹ = I − B C Bᵀ with C = (K⁻¹ + G)⁻¹ = (L (I + Lᵀ))⁻¹, and det(I + B K Bᵀ) = det L.
No singular vectors: the derivative exists for any A, zero and repeated columns included.

*Eigenvectors.* Σ = diag(δ) (I + V diag(λ − 1) Vᵀ) diag(δ), V orthonormal, λ > 0 on either side of 1. B = V,
K = diag(√λ − 1), C = diag(1 − 1/√λ), det = Π √λ.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credo.compiling import TINY, brief
from credo.linalg.diagonal import check_positive
from credo.linalg.operator import ScaleOperator, Stored, is_known
from credo.status import CredoError

AT_ONCE = 2**18  # coordinates of a block


class LowRank(ScaleOperator):
    """Built by ``from_factor`` or ``from_eigen``; the fields are δ, B, K, C and log det (I + B K Bᵀ)."""

    scale: Float[Stored, " dim"]
    factor: Float[Stored, "dim rank"]
    root: Float[Stored, "rank rank"]
    inverse_root: Float[Stored, "rank rank"]
    log_det_root: Float[Stored, ""]

    @classmethod
    def from_factor(cls, scale: Float[Stored, " dim"], factor: Float[Stored, "dim rank"]) -> "LowRank":
        """Σ = diag(scale²) + factor factorᵀ. CredoError where a scale is not positive."""
        _check_shapes(scale, factor)
        B = jnp.divide(factor, scale[:, None])
        return cls.from_whitened(scale, B)

    @classmethod
    def from_whitened(cls, scale: Float[Stored, " dim"], B: Float[Stored, "dim rank"]) -> "LowRank":
        """Σ = diag(scale) (I + B Bᵀ) diag(scale): ``from_factor`` of B times the scale, without a copy of B."""
        check_positive("standard deviation", scale)
        _check_shapes(scale, B)
        return cls(scale, B, *_of_gram(_gram(B)))

    @classmethod
    def from_eigen(
        cls, scale: Float[Stored, " dim"], vectors: Float[Stored, "dim rank"], eigenvalues: Float[Stored, " rank"]
    ) -> "LowRank":
        """Σ = diag(scale) (I + V diag(λ − 1) Vᵀ) diag(scale), the columns of V orthonormal.

        CredoError where a scale or an eigenvalue is not positive, or the vectors are not orthonormal.
        """
        check_positive("standard deviation", scale)
        check_positive("eigenvalue", eigenvalues)
        _check_shapes(scale, vectors)
        if is_known(vectors):
            fault = np.max(np.abs(np.asarray(vectors.T @ vectors) - np.eye(vectors.shape[1])), initial=0.0)
            if fault > 1e-4:
                raise CredoError(
                    f"The vectors are not orthonormal (Vᵀ V differs from I by {fault:.2g}): take them from a QR or "
                    "eigenvalue factorisation, or use from_factor."
                )
        return cls(scale, vectors, *_of_eigenvalues(eigenvalues))

    @property
    def dim(self) -> int:
        return self.scale.shape[0]

    def matvec(self, z) -> Float[Array, " dim"]:
        return jnp.multiply(self.scale, self._update(self.root, z))

    def transpose_matvec(self, v) -> Float[Array, " dim"]:
        return self._update(self.root.T, jnp.multiply(self.scale, v))

    def solve(self, v) -> Float[Array, " dim"]:
        return self._update(-self.inverse_root, jnp.divide(v, self.scale))

    def log_det(self) -> Float[Array, ""]:
        return _log_det(self.scale, self.log_det_root)

    def diagonal(self) -> Float[Stored, " dim"]:
        M = self.excess()
        if is_known(self.factor) and is_known(self.scale):  # in blocks: of B there is no second copy
            M, B, found = np.asarray(M), np.asarray(self.factor), np.square(np.asarray(self.scale))
            for first in range(0, self.dim, AT_ONCE):
                rows = slice(first, first + AT_ONCE)
                found[rows] *= 1 + np.sum(B[rows] @ M * B[rows], axis=1)
            return found
        return jnp.square(self.scale) * (1 + jnp.sum(jnp.matmul(self.factor, M) * self.factor, axis=1))

    def dense(self) -> Float[Array, "dim dim"]:
        half = jnp.multiply(self.scale[:, None], self.factor)
        return jnp.diag(jnp.square(self.scale)) + jnp.matmul(half, jnp.matmul(self.excess(), half.T))

    def _update(self, core, z) -> Float[Array, " dim"]:
        """(I + B core Bᵀ) z."""
        return jnp.asarray(z) + jnp.matmul(self.factor, jnp.matmul(core, jnp.matmul(self.factor.T, z)))

    def excess(self) -> Float[Array, "rank rank"]:
        """M in Σ = diag(δ) (I + B M Bᵀ) diag(δ): K + Kᵀ + K Bᵀ B Kᵀ."""
        return _excess(self.root, _gram(self.factor))


# on the host each operation of these would be a program of its own


@brief
def _of_gram(G):
    """K, C and log det (I + B K Bᵀ) of G = Bᵀ B."""
    identity = jnp.eye(len(G), dtype=G.dtype)
    L = jnp.linalg.cholesky(identity + G)
    K = jax.scipy.linalg.solve_triangular(identity + L, identity, lower=True)
    C = K.T @ jax.scipy.linalg.solve_triangular(L, identity, lower=True)
    return K, C, jnp.sum(jnp.log(jnp.diagonal(L)))


@functools.partial(brief, options=TINY)
def _of_eigenvalues(values):
    root = jnp.sqrt(values)
    return jnp.diag(root - 1), jnp.diag(1 - 1 / root), jnp.sum(jnp.log(root))


@functools.partial(brief, options=TINY)
def _log_det(scale, log_det_root):
    return jnp.sum(jnp.log(scale)) + log_det_root


@brief
def _excess(K, G):
    return K + K.T + K @ G @ K.T


def _gram(B):
    """Bᵀ B; on the host where B is known there."""
    return B.T @ B if is_known(B) else jnp.matmul(B.T, B)


def _check_shapes(scale, columns) -> None:
    if columns.ndim != 2 or columns.shape[0] != scale.shape[0]:
        raise CredoError(
            f"The scale has shape {scale.shape} and the columns {columns.shape}: give (dim,) and (dim, rank)."
        )
