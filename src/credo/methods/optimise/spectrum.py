"""Eigenvalues of a curvature A = −∇²f in units in which no parameter's scale matters.

D⁻¹AD⁻¹ with D² = |diag A| has as many positive, zero and negative eigenvalues as A (Sylvester's law of inertia) and is
far better conditioned where parameters differ in scale, so it tells a flat direction from a precisely known one.
"""

from typing import NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Float

TINY = 1e-100
LEAST = 1e-6  # of the unit diagonal, where a curvature that is not positive must serve


class Spectrum(NamedTuple):
    """``eigenvalues`` (ascending) and ``vectors`` (columns) of D⁻¹AD⁻¹, ``scale`` D.

    Eigenvalues below ``floor`` are zero to rounding.
    """

    scale: Float[np.ndarray, " dim"]
    eigenvalues: Float[np.ndarray, " dim"]
    vectors: Float[np.ndarray, "dim dim"]
    floor: float

    @classmethod
    def of(cls, A: Float[np.ndarray, "dim dim"], resolution: float, *, least_scale=0.0) -> "Spectrum":
        """``resolution``: ε of the precision in which A was computed. NaN where A is not finite."""
        A = A.astype(np.float64)
        D = np.maximum(np.sqrt(np.abs(np.diagonal(A))), least_scale)
        D = np.where(D > TINY, D, 1.0)  # no curvature there
        scaled = A / D[:, None] / D[None, :]
        if not np.all(np.isfinite(scaled)):
            return cls(D, np.full(len(D), np.nan), np.full(A.shape, np.nan), np.nan)
        λ, Q = scipy.linalg.eigh(scaled)
        return cls(D, λ, Q, 8 * len(λ) * resolution * max(np.max(np.abs(λ)), 1e-8))

    @property
    def is_positive(self) -> bool:
        return bool(self.eigenvalues[0] > self.floor)

    def smallest(self, A: Float[np.ndarray, "dim dim"]) -> tuple[float, int]:
        """(smallest eigenvalue of A itself, 0 if zero to rounding; the coordinate that leads its direction)."""
        if not np.isfinite(self.floor):
            return np.nan, 0
        v = self.vectors[:, 0]
        coordinate = int(np.argmax(np.abs(v)))
        if abs(self.eigenvalues[0]) <= self.floor:
            return 0.0, coordinate
        smallest = float(np.linalg.eigvalsh(A.astype(np.float64))[0])
        if np.sign(smallest) == np.sign(self.eigenvalues[0]):
            return smallest, coordinate
        v = v / self.scale  # rounding hid the sign: the curvature along the direction that has it
        return float(self.eigenvalues[0] / np.dot(v, v)), coordinate

    def safe(self) -> Float[np.ndarray, "dim dim"]:
        """A with |eigenvalues|, none near zero: something to draw from where A is no precision."""
        λ = np.maximum(np.abs(self.eigenvalues), LEAST)
        return (self.vectors * λ) @ self.vectors.T * self.scale[:, None] * self.scale[None, :]
