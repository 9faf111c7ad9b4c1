"""A diagonal and a factor, known by these two alone: Σ = diag(δ²) + A Aᵀ.

The matrix is that of ``LowRank.from_factor``, which is built anew at every use, for d k² operations. What is stored has
no constraint but δ > 0: unlike the roots that a ``LowRank`` keeps, averages of (δ, A) are such operators again, so
that iterates can be averaged and gradients taken in (δ, A).
"""

from jaxtyping import Array, Float

from credo.linalg.lowrank import LowRank
from credo.linalg.operator import ScaleOperator, Stored


class DiagonalPlusFactor(ScaleOperator):
    """``DiagonalPlusFactor(scale, factor)`` with δ (dim,) positive and A (dim, rank).

    CredoError, at use, where a scale is not positive or the shapes do not fit.
    """

    scale: Float[Stored, " dim"]
    factor: Float[Stored, "dim rank"]

    @property
    def dim(self) -> int:
        return self.scale.shape[0]

    def rooted(self) -> LowRank:
        """With its square root at hand."""
        return LowRank.from_factor(self.scale, self.factor)

    def matvec(self, z) -> Float[Array, " dim"]:
        return self.rooted().matvec(z)

    def transpose_matvec(self, v) -> Float[Array, " dim"]:
        return self.rooted().transpose_matvec(v)

    def solve(self, v) -> Float[Array, " dim"]:
        return self.rooted().solve(v)

    def log_det(self) -> Float[Stored, ""]:
        return self.rooted().log_det()

    def diagonal(self) -> Float[Stored, " dim"]:
        return self.scale**2 + (self.factor**2).sum(axis=1)

    def dense(self) -> Float[Array, "dim dim"]:
        return self.rooted().dense()
