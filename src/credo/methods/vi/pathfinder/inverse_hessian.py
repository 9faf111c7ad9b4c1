"""Inverse Hessians from an optimiser's path, in factors (Zhang, Carpenter, Gelman & Vehtari 2022, algorithms 3, 4).

    s = u' − u,  y = ∇log p(u) − ∇log p(u')                                 of the last J steps, S and Y (dim, J)
    H = diag(α) + β γ βᵀ,  β = [diag(α) Y, S],  γ = [[0, −R⁻¹], [−R⁻ᵀ, R⁻ᵀ (D + Yᵀ diag(α) Y) R⁻¹]]
    R = triu(SᵀY), D = diag(SᵀY)                                            (Byrd, Nocedal & Schnabel 1994, theorem 2.2)

The diagonal follows the path as the diagonal of a BFGS update of its own would (Gilbert & Lemaréchal 1989):

    1/α_i ← a/(b α_i) + y_i²/b − a s_i²/(b c α_i²),   a = yᵀ diag(α) y,  b = yᵀs,  c = sᵀ diag(α)⁻¹ s

positive where b > 0, by Cauchy and Schwarz. As a covariance H = diag(√α) (I + B γ Bᵀ) diag(√α) with B = β/√α = Q T, and
the eigenvectors of T γ Tᵀ, 2 J of them, give its root: draws and densities cost dim × J. Everything is NumPy.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from credo.linalg.lowrank import LowRank

CURVED = 1e-12  # of |s| |y| that s·y must be: a step without curvature says nothing of H
LEAST = 1e-14  # eigenvalue of I + B γ Bᵀ: what is less is rounding


class InverseHessian(NamedTuple):
    """``diagonal`` α; ``steps`` S and ``changes`` Y, the newest last, which the points of a path share."""

    diagonal: Float[np.ndarray, " dim"]
    steps: tuple[Float[np.ndarray, " dim"], ...]
    changes: tuple[Float[np.ndarray, " dim"], ...]

    @classmethod
    def identity(cls, dim: int) -> "InverseHessian":
        """Before the first step."""
        return cls(np.ones(dim), (), ())

    def begun_again(self, curvature: Float[np.ndarray, " dim"]) -> "InverseHessian":
        """Without steps, α = 1/|curvature| where that is a number."""
        size = np.abs(curvature)
        return InverseHessian(np.where(size > 0, 1 / size, self.diagonal), (), ())

    def after(self, step, change, history: int) -> "InverseHessian":
        """With one more step; the same where it shows no positive curvature."""
        b = step @ change
        if not b > CURVED * np.linalg.norm(step) * np.linalg.norm(change):
            return self
        α = self.diagonal
        a, c = change @ (α * change), step @ (step / α)
        precision = a / (b * α) + change**2 / b - a * step**2 / (b * c * α**2)
        if not (np.all(precision > 0) and np.all(np.isfinite(precision))):
            return self
        return InverseHessian(1 / precision, (*self.steps, step)[-history:], (*self.changes, change)[-history:])

    def product(self, v) -> Float[np.ndarray, " dim"]:
        """H v by two loops over the steps, dim × J (Nocedal & Wright 2006, algorithm 7.4)."""
        pairs, pulls = list(zip(self.steps, self.changes, strict=True)), []
        for step, change in reversed(pairs):
            pulls.append((step @ v) / (step @ change))
            v = v - pulls[-1] * change
        v = self.diagonal * v
        for (step, change), pull in zip(pairs, reversed(pulls), strict=True):
            v = v + (pull - (change @ v) / (step @ change)) * step
        return v

    def gain(self, gradient) -> float:
        """½ gᵀHg: what a Newton step gains."""
        return 0.5 * float(gradient @ self.product(gradient))

    def root(self) -> "Root":
        """H = S Sᵀ."""
        root = np.sqrt(self.diagonal)
        if not len(self.steps):
            return Root(root, np.eye(root.size, 1), np.ones(1))
        β, γ = self._factors()
        Q, T = np.linalg.qr(β / root[:, None])
        values, V = np.linalg.eigh(T @ γ @ T.T)
        return Root(root, Q @ V, np.maximum(1 + values, LEAST))

    def _factors(self):
        S, Y = (np.stack(vectors, axis=1) for vectors in (self.steps, self.changes))
        products = S.T @ Y
        inverse = np.linalg.inv(np.triu(products))
        scaled = self.diagonal[:, None] * Y
        corner = inverse.T @ (np.diag(np.diagonal(products)) + Y.T @ scaled) @ inverse
        return np.concatenate([scaled, S], axis=1), np.block([[np.zeros_like(inverse), -inverse], [-inverse.T, corner]])


class Root(NamedTuple):
    """S = diag(√α) (I + V diag(√λ − 1) Vᵀ): ``scale`` √α, ``vectors`` V (dim, 2 J) and ``eigenvalues`` λ."""

    scale: Float[np.ndarray, " dim"]
    vectors: Float[np.ndarray, "dim rank"]
    eigenvalues: Float[np.ndarray, " rank"]

    def times(self, z: Float[np.ndarray, "K dim"]) -> Float[np.ndarray, "K dim"]:
        """S z, row by row."""
        return self.scale * (z + ((z @ self.vectors) * (np.sqrt(self.eigenvalues) - 1)) @ self.vectors.T)

    def whitened(self, v: Float[np.ndarray, "K dim"]) -> Float[np.ndarray, "K dim"]:
        """S⁻¹ v, row by row."""
        v = v / self.scale
        return v + ((v @ self.vectors) * (1 / np.sqrt(self.eigenvalues) - 1)) @ self.vectors.T

    def log_det(self) -> float:
        return float(np.sum(np.log(self.scale)) + 0.5 * np.sum(np.log(self.eigenvalues)))

    def operator(self) -> LowRank:
        return LowRank.from_eigen(self.scale, self.vectors, self.eigenvalues)
