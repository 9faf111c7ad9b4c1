"""A Gaussian over weights in square-root information form (Bierman, 1977, chapter V): N(m, Λ⁻¹) with

    RᵀR = Λ (R upper triangular),  z = R m.

Observing y = X w + ε, ε ~ N(0, I), is one orthogonal triangularisation,

    Q [R z; X y] = [R' z'; 0 ρ],  ρ² = ‖y − X m'‖² + ‖R (m' − m)‖²,

which never forms XᵀX: the answer has the condition number of X and not its square, ρ² loses no digits to
cancellation, and the order in which rows arrive does not matter. N < D needs no special case.
"""

from typing import NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cholesky, qr, solve_triangular

from credo.status import CredoError


class Information(NamedTuple):
    """``root`` (D, D) upper triangular and ``target`` (D,), R and z above."""

    root: np.ndarray
    target: np.ndarray

    def absorb(self, x: np.ndarray, y: np.ndarray, scale: float = 1.0) -> tuple["Information", float]:
        """The posterior after rows ``x`` (N, D) and ``y`` (N,) with noise variance 1/scale², and ρ²."""
        dim = len(self.target)
        start = np.zeros((dim + 1, dim + 1))
        start[:dim] = np.column_stack([self.root, self.target])
        triangle = triangularise(start, x, y, scale)
        return Information(triangle[:dim, :dim], triangle[:dim, dim]), float(triangle[dim, dim] ** 2)

    @property
    def mean(self) -> np.ndarray:
        """m (D,)."""
        return solve_triangular(self.root, self.target)

    @property
    def log_det(self) -> float:
        """log |R| = ½ log |Λ|."""
        return float(np.sum(np.log(np.abs(np.diagonal(self.root)))))

    def half_solve(self, x: np.ndarray) -> np.ndarray:
        """R⁻ᵀ xᵀ (D, M) for rows ``x`` (M, D): its columns' products are x Λ⁻¹ xᵀ."""
        return solve_triangular(self.root, x.T, trans=1)

    @property
    def scale_tril(self) -> np.ndarray:
        """Lower triangular L with L Lᵀ = Λ⁻¹ and a positive diagonal."""
        upper = np.asarray(qr(self.half_solve(np.eye(len(self.target))), mode="r")[0])
        return (upper * np.where(np.diagonal(upper) < 0, -1.0, 1.0)[:, None]).T

    @classmethod
    def of_precision(cls, mean: np.ndarray, precision: np.ndarray) -> "Information":
        """From m (D,) and Λ (D, D)."""
        root = _cholesky(precision, "precision", lower=False)
        return cls(root, root @ mean)

    @classmethod
    def of_covariance(cls, mean: np.ndarray, covariance: np.ndarray) -> "Information":
        """From m (D,) and Λ⁻¹ (D, D)."""
        lower = _cholesky(covariance, "covariance", lower=True)
        root = np.asarray(qr(solve_triangular(lower, np.eye(len(mean)), lower=True), mode="r")[0])
        return cls(root, root @ mean)


def triangularise(triangle: np.ndarray, x: np.ndarray, y: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """The R factor (≤ D + 1, D + 1) of ``triangle`` (any, D + 1) on ``scale`` [x y], a block of rows at a time."""
    num_columns = x.shape[1] + 1
    block = max(1024, 4 * num_columns)  # the triangle adds a quarter to the work at most
    for start in range(0, len(x), block):
        rows = np.column_stack([x[start : start + block], y[start : start + block]])
        stacked = np.concatenate([triangle, scale * rows])
        triangle = np.asarray(qr(stacked, mode="r", overwrite_a=True, check_finite=False)[0])[:num_columns]
    return triangle


def _cholesky(matrix: np.ndarray, name: str, *, lower: bool) -> np.ndarray:
    if not np.allclose(matrix, matrix.T, rtol=1e-10, atol=1e-12 * np.abs(matrix).max()):
        raise CredoError(f"The prior {name} is not symmetric: give a symmetric positive definite matrix.")
    try:
        return cholesky(matrix, lower=lower)
    except LinAlgError:
        smallest = np.linalg.eigvalsh(matrix)[0]
        raise CredoError(
            f"The prior {name} is not positive definite (smallest eigenvalue {smallest:.3g}): "
            "give a proper prior, or add a small multiple of the identity."
        ) from None
