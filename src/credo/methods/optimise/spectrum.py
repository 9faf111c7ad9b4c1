"""The sign and size of a curvature A = −∇²f, in units in which no parameter's scale matters.

D⁻¹AD⁻¹ with D² = |diag A| has as many positive, zero and negative eigenvalues as A (Sylvester's law of inertia) and is
far better conditioned where parameters differ in scale, so it tells a flat direction from a precisely known one.
A Cholesky factor settles the common case; eigenvectors, thirty times dearer, are found where they are asked for.
"""

from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse.linalg
from jaxtyping import Float

TINY = 1e-100
LEAST = 1e-6  # of the unit diagonal, where a curvature that is not positive must serve
MANY = 200  # dimensions: above it the smallest eigenvalue is found from the factor
SAFE = 1e-9  # reciprocal condition number above which a Cholesky factor says all


class Spectrum:
    """What there is to know of A (dim, dim). ``resolution``: ε of the precision in which A was computed."""

    def __init__(self, A: Float[np.ndarray, "dim dim"], resolution: float, *, least_scale=0.0):
        self.matrix = A.astype(np.float64)
        self.resolution = resolution
        D = np.maximum(np.sqrt(np.abs(np.diagonal(self.matrix))), least_scale)
        self.scale = np.where(D > TINY, D, 1.0)  # no curvature there
        self.scaled = self.matrix / self.scale[:, None] / self.scale[None, :]
        self.is_finite = bool(np.all(np.isfinite(self.scaled)))

    @cached_property
    def factor(self) -> Float[np.ndarray, "dim dim"] | None:
        """The Cholesky factor of D⁻¹AD⁻¹, upper; None unless A is safely positive definite."""
        if not self.is_finite:
            return None
        potrf, pocon = scipy.linalg.get_lapack_funcs(("potrf", "pocon"), dtype=np.float64)
        factor, failed = potrf(self.scaled)
        if failed:
            return None
        reciprocal_condition, _ = pocon(factor, np.linalg.norm(self.scaled, 1))
        return factor if reciprocal_condition > max(SAFE, 10 * self.resolution * len(factor)) else None

    def solve(self, v: Float[np.ndarray, " dim"]) -> Float[np.ndarray, " dim"]:
        """(D⁻¹AD⁻¹)⁻¹ v by the factor."""
        return scipy.linalg.cho_solve((self.factor, False), v, check_finite=False)

    @cached_property
    def _eigen(self) -> tuple[np.ndarray, np.ndarray]:
        if not self.is_finite:
            return np.full(len(self.scale), np.nan), np.full(self.scaled.shape, np.nan)
        return np.linalg.eigh(self.scaled)

    @property
    def eigenvalues(self) -> Float[np.ndarray, " dim"]:
        """Of D⁻¹AD⁻¹, ascending."""
        return self._eigen[0]

    @property
    def vectors(self) -> Float[np.ndarray, "dim dim"]:
        """Their eigenvectors, as columns."""
        return self._eigen[1]

    @property
    def floor(self) -> float:
        """Eigenvalues below it are zero to rounding."""
        λ = self.eigenvalues
        return 8 * len(λ) * self.resolution * max(float(np.max(np.abs(λ))), 1e-8)

    @property
    def is_positive(self) -> bool:
        return self.factor is not None or bool(self.eigenvalues[0] > self.floor)

    @property
    def is_indefinite(self) -> bool:
        return self.factor is None and bool(self.eigenvalues[0] < -self.floor)

    @cached_property
    def smallest(self) -> tuple[float, int]:
        """(smallest eigenvalue of A itself, 0 if zero to rounding; the coordinate that leads its direction)."""
        if not self.is_finite:
            return np.nan, 0
        if self.factor is not None:
            smallest, v = self._smallest_by_factor() if len(self.scale) > MANY else self._smallest_of_matrix()
            if smallest > 0:
                return smallest, int(np.argmax(np.abs(v * self.scale)))
        v = self.vectors[:, 0]
        coordinate = int(np.argmax(np.abs(v)))
        if abs(self.eigenvalues[0]) <= self.floor:
            return 0.0, coordinate
        smallest = np.linalg.eigvalsh(self.matrix)[0]
        if np.sign(smallest) == np.sign(self.eigenvalues[0]):
            return float(smallest), coordinate
        v = v / self.scale  # rounding hid the sign: the curvature along the direction that has it
        return float(self.eigenvalues[0] / np.dot(v, v)), coordinate

    def _smallest_of_matrix(self) -> tuple[float, np.ndarray]:
        smallest, v = scipy.linalg.eigh(self.matrix, subset_by_index=[0, 0], driver="evr")
        return float(smallest[0]), v[:, 0]

    def _smallest_by_factor(self) -> tuple[float, np.ndarray]:
        """As the largest eigenvalue of A⁻¹ to three digits: a few solutions, where the matrix takes dim³ steps."""
        dim = len(self.scale)

        def solve(v):
            return self.solve(v / self.scale) / self.scale

        inverse: Any = scipy.sparse.linalg.LinearOperator((dim, dim), matvec=solve)  # type: ignore[call-arg]
        tolerance: Any = 1e-3
        start = np.random.default_rng(0).normal(size=dim)
        try:
            largest, v = scipy.sparse.linalg.eigsh(inverse, k=1, which="LA", v0=start, ncv=10, tol=tolerance)
        except scipy.sparse.linalg.ArpackError:
            return self._smallest_of_matrix()
        return float(1 / largest[0]), v[:, 0]

    def safe(self) -> Float[np.ndarray, "dim dim"]:
        """A with |eigenvalues|, none near zero: something to draw from where A is no precision."""
        λ = np.maximum(np.abs(self.eigenvalues), LEAST)
        return (self.vectors * λ) @ self.vectors.T * self.scale[:, None] * self.scale[None, :]
