"""All that a dense Laplace needs of a curvature that is safely positive, from one factor of it.

    A = D (U Uᵀ) D,  D² = diag A,  U upper triangular:  S = D⁻¹ U⁻ᵀ is lower triangular, and S Sᵀ = A⁻¹

U is the Cholesky factor from the last row to the first. Its rounding is that of A's own entries, so a curvature found
in float32 is factored in float32, for half the time and memory, unless it is so ill conditioned that this would show.
"""

from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse.linalg
from jaxtyping import Float

from credo.linalg.blas import threads_for
from credo.linalg.dense import Dense
from credo.methods.optimise.spectrum import MANY, SAFE

VECTORS = 10  # of Lanczos's method
ROWS = 64  # at a time, where a second matrix would be too much
SINGLE = 1e-6  # reciprocal condition number above which float32 serves


class Factored(NamedTuple):
    """S; the smallest eigenvalue of A, to two digits above 200 dimensions; the coordinate that leads it."""

    scale: Dense
    smallest: float
    coordinate: int


def factored(A: Float[np.ndarray, "dim dim"]) -> Factored | None:
    """Of A (dim, dim), symmetric, in its own precision; None where it is not safely positive definite."""
    with threads_for(len(A)):  # of a subset A is far smaller than the model
        return _factored(A)


def _factored(A) -> Factored | None:
    D = np.sqrt(np.maximum(np.diagonal(A), 0.0).astype(np.float64))
    if not (np.all(np.isfinite(D)) and np.all(D > 0)):
        return None
    root = _root(A, D.astype(A.dtype), SINGLE if A.dtype == np.float32 else SAFE)
    if root is None:
        return None if A.dtype == np.float64 else _factored(A.astype(np.float64))
    smallest, v = _smallest(root) if len(A) > MANY else _smallest_of(A)
    if not smallest > 0:
        return None
    return Factored(Dense(root), smallest, int(np.argmax(np.abs(v * D))))


def _root(A, D, safe: float) -> Float[np.ndarray, "dim dim"] | None:
    """S, None where the reciprocal condition number of D⁻¹AD⁻¹ is not above ``safe``."""
    flipped = np.array(A[::-1, ::-1], order="C")
    flipped /= D[::-1, None]
    flipped /= D[None, ::-1]
    potrf, pocon, trtri = scipy.linalg.get_lapack_funcs(("potrf", "pocon", "trtri"), (flipped,))
    norm = float(np.max([np.max(np.sum(np.abs(flipped[i : i + ROWS]), axis=1)) for i in range(0, len(A), ROWS)]))
    if not np.isfinite(norm):
        return None
    lower, failed = potrf(flipped.T, lower=1, overwrite_a=1)
    if failed or pocon(lower, norm, uplo="L")[0] <= max(safe, 10 * float(np.finfo(A.dtype).eps)):
        return None
    root = np.ascontiguousarray(trtri(lower, lower=1, overwrite_c=1)[0].T[::-1, ::-1])
    root /= D[:, None]
    return root


def _smallest_of(A) -> tuple[float, np.ndarray]:
    smallest, v = scipy.linalg.eigh(A.astype(np.float64), subset_by_index=[0, 0], driver="evr")
    return float(smallest[0]), v[:, 0]


def _smallest(root) -> tuple[float, np.ndarray]:
    """As the largest eigenvalue of S Sᵀ."""
    dim, upper = len(root), root.T
    (times,) = scipy.linalg.get_blas_funcs(("trmv",), (root,))

    def square(v):
        return times(upper, times(upper, v), trans=1)

    product: Any = scipy.sparse.linalg.LinearOperator((dim, dim), matvec=square, dtype=root.dtype)  # type: ignore[call-arg]
    start = np.random.default_rng(0).normal(size=dim).astype(root.dtype)
    tolerance: Any = 1e-2
    try:
        largest, v = scipy.sparse.linalg.eigsh(product, k=1, which="LA", v0=start, ncv=VECTORS, tol=tolerance)
    except scipy.sparse.linalg.ArpackError:
        largest, v = scipy.linalg.eigh(root @ root.T, subset_by_index=[dim - 1, dim - 1])
    return float(1 / largest[0]), v[:, 0]
