"""Any covariance: S = L, the lower Cholesky factor of Σ."""

from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float

from credo.linalg.operator import ScaleOperator, Stored, is_known
from credo.status import CredoError


def root(covariance: Float[Array, "M K K"]) -> Float[Array, "M K K"]:
    """R with R Rᵀ = C, which may be singular: a class without parameters of its own, a scale that all rows share."""
    values, vectors = jnp.linalg.eigh(covariance)
    return vectors * jnp.sqrt(jnp.maximum(values, 0.0))[:, None, :]


class Dense(ScaleOperator):
    """``Dense(lower)`` with a lower triangular S, shape (dim, dim), whose diagonal has no zero.

    ``inverse``: S⁻¹, where ``solve`` stands in a loop that a substitution would slow; None, and it is one.
    """

    lower: Float[Stored, "dim dim"]
    inverse: Float[Stored, "dim dim"] | None = None

    @classmethod
    def from_covariance(cls, covariance: Float[Stored, "dim dim"]) -> "Dense":
        """From Σ, symmetric. CredoError where it is not positive definite; NaN factors where it is traced."""
        return cls(_cholesky("covariance", covariance))

    @classmethod
    def from_precision(cls, precision: Float[Stored, "dim dim"]) -> "Dense":
        """From P = Σ⁻¹, symmetric. CredoError where it is not positive definite; NaN factors where it is traced.

        P = U Uᵀ with U upper triangular is the Cholesky factorisation from the last row to the first, and S = U⁻ᵀ is
        lower triangular with S Sᵀ = P⁻¹. P is never inverted: the condition number that counts is that of S.
        """
        inverse = _inverse(_cholesky("precision", precision[::-1, ::-1]))
        return cls(inverse[::-1, ::-1].T)

    def with_inverse(self) -> "Dense":
        return Dense(self.lower, _inverse(self.lower))

    @property
    def dim(self) -> int:
        return self.lower.shape[0]

    def matvec(self, z) -> Float[Array, " dim"]:
        return jnp.matmul(self.lower, z)

    def transpose_matvec(self, v) -> Float[Array, " dim"]:
        return jnp.matmul(self.lower.T, v)

    def transpose_matvecs(self, rows) -> Float[Array, "M dim"]:
        return jnp.matmul(rows, self.lower)  # as they lie: in half the time of products with the transpose

    def solve(self, v) -> Float[Array, " dim"]:
        if self.inverse is not None:
            return jnp.matmul(self.inverse, v)
        return jax.scipy.linalg.solve_triangular(self.lower, v, lower=True)

    def log_det(self) -> Float[Stored, ""]:
        if is_known(self.lower):  # nothing to compile
            return np.asarray(np.sum(np.log(np.abs(np.diagonal(self.lower).astype(np.float64)))))
        return jnp.sum(jnp.log(jnp.abs(jnp.diagonal(self.lower))))

    def diagonal(self) -> Float[Stored, " dim"]:
        if is_known(self.lower):
            return np.sum(np.square(self.lower), axis=1)
        return jnp.sum(jnp.square(self.lower), axis=1)

    def dense(self) -> Float[Array, "dim dim"]:
        return jnp.matmul(self.lower, self.lower.T)


def _library(matrix) -> ModuleType:
    """The host factorises known matrices, without compiling and in float64 in any context; JAX traced ones."""
    return scipy.linalg if is_known(matrix) else jax.scipy.linalg


def _inverse(lower: Float[Stored, "dim dim"]) -> Float[Stored, "dim dim"]:
    """L⁻¹; on the host for a third of the work of a solution for each column of the identity."""
    if is_known(lower):
        (trtri,) = scipy.linalg.get_lapack_funcs(("trtri",), (lower,))
        return trtri(lower, lower=1)[0]
    return jax.scipy.linalg.solve_triangular(lower, jnp.eye(lower.shape[0], dtype=lower.dtype), lower=True)


def _cholesky(what: str, matrix) -> Float[Stored, "dim dim"]:
    matrix = np.asarray(matrix, np.float64) if is_known(matrix) else matrix
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise CredoError(f"The {what} has shape {matrix.shape}: give a square matrix.")
    matrix = 0.5 * (matrix + matrix.T)  # symmetric but for rounding
    if is_known(matrix) and not np.all(np.isfinite(matrix)):
        raise CredoError(
            f"The {what} has {np.sum(~np.isfinite(matrix))} entries that are NaN or infinite: look for a log density "
            "whose second derivatives are not finite there."
        )
    try:
        return _library(matrix).cholesky(matrix, lower=True)
    except scipy.linalg.LinAlgError as error:
        values = np.linalg.eigvalsh(matrix)
        raise CredoError(
            f"The {what} is not positive definite (its eigenvalues run from {values[0]:.3g} to {values[-1]:.3g}): the "
            "point is a saddle, or the data and the prior leave a direction free. Give that direction a proper prior."
        ) from error
