"""The deterministic objective of Gaussians, and its derivatives, from those of log p at the draws.

    u_k = m + S (a + C z_k),  C diagonal (MeanField) or lower triangular (FullRank), with p = 1 … n its free entries
    F(a, C) = (1/K) Σ_k log p(u_k, D) + Σ_i log C_ii + const
With g_k, H_k the gradient and Hessian of log p in v = S⁻¹(u − m) at draw k, and p the entry (i, j) of C, q the (l, m):
    ∂F/∂a = ḡ,   ∂F/∂C_p = mean g_ki z_kj + [i = j]/C_p
    ∂²F/∂a∂aᵀ = H̄,  ∂²F/∂a∂C_p = mean H_k·i z_kj,  ∂²F/∂C_p∂C_q = mean H_kil z_kj z_km − [p = q, i = j]/C_p²

u is linear in (a, C), so that F is concave wherever log p is (Challis & Barber 2013), and nothing but log p has to be
compiled. A sum over the draws costs dim products with a Hessian a draw.
"""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from credo.linalg.dense import Dense as DenseScale
from credo.linalg.diagonal import Diagonal
from credo.methods.optimise.newton import Evaluation, Proposal
from credo.methods.optimise.subproblem import Dense
from credo.methods.vi.deterministic.derivatives import AtPositions, Derivatives
from credo.posterior.kinds import Gaussian


@dataclass(frozen=True)
class Gaussians:
    """Coordinates (a, C) about one Gaussian q = N(m, S Sᵀ). ``root``: S (dim, dim), lower triangular.

    ``is_diagonal``: S and C are. A point is a vector (dim + n,): a, then the free entries of C, row by row.
    """

    mean: Float[np.ndarray, " dim"]
    root: Float[np.ndarray, "dim dim"]
    is_diagonal: bool
    rows: np.ndarray = field(init=False)
    columns: np.ndarray = field(init=False)

    def __post_init__(self):
        dim = len(self.mean)
        rows, columns = (np.arange(dim), np.arange(dim)) if self.is_diagonal else np.tril_indices(dim)
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "columns", columns)

    @classmethod
    def about(cls, q: Gaussian) -> "Gaussians":
        mean = np.asarray(q.mean, np.float64)
        if isinstance(q.scale, Diagonal):
            return cls(mean, np.diag(np.asarray(q.scale.scale, np.float64)), True)
        assert isinstance(q.scale, DenseScale)
        return cls(mean, np.asarray(q.scale.lower, np.float64), False)

    @property
    def is_on_diagonal(self) -> np.ndarray:
        return self.rows == self.columns

    def origin(self) -> np.ndarray:
        """q itself."""
        return np.concatenate([np.zeros(len(self.mean)), np.where(self.is_on_diagonal, 1.0, 0.0)])

    def split(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(a, C)."""
        dim = len(self.mean)
        C = np.zeros((dim, dim))
        C[self.rows, self.columns] = point[dim:]
        return point[:dim], C

    def pulled(self, gradients: Float[np.ndarray, "K dim"]) -> Float[np.ndarray, "K dim"]:
        """Gradients in v: Sᵀg."""
        return gradients * np.diagonal(self.root) if self.is_diagonal else gradients @ self.root

    def scale(self, hessians: Float[np.ndarray, "K dim dim"]) -> None:
        """Hessians in v, SᵀHS, in the place of those in u: K dim² numbers are the most that a fit holds."""
        if self.is_diagonal:
            hessians *= np.outer(np.diagonal(self.root), np.diagonal(self.root))
        else:
            for H in hessians:
                H[:] = self.root.T @ H @ self.root

    def at(self, point: np.ndarray) -> Gaussian:
        """The Gaussian at a point."""
        a, C = self.split(point)
        mean = self.mean + self.root @ a
        if self.is_diagonal:
            return Gaussian(mean, Diagonal(np.diagonal(self.root) * np.diagonal(C)))
        return Gaussian(mean, DenseScale(self.root @ C))


@dataclass(frozen=True)
class FixedDraws:
    """F as what ``newton.maximise`` asks of a solver. ``noise``: z (K, dim). ``path``: F wherever it was evaluated."""

    coordinates: Gaussians
    noise: Float[np.ndarray, "K dim"]
    program: AtPositions
    dtype: np.dtype
    path: list[float] = field(default_factory=list)
    kept: list = field(default_factory=list)

    def positions(self, point: np.ndarray) -> Float[np.ndarray, "K dim"]:
        """u_k."""
        a, C = self.coordinates.split(point)
        v = a + self.noise @ C.T
        return (self.coordinates.mean + v @ self.coordinates.root.T).astype(self.dtype)

    def evaluate(
        self, objective, args, u: np.ndarray, minimum: float, last: Proposal | None, *, with_curvature: bool = True
    ) -> Evaluation:
        dim, size = len(self.coordinates.mean), len(u)
        resolution = float(np.finfo(self.dtype).eps)
        scales = u[dim:][self.coordinates.is_on_diagonal]
        if not np.all(scales > 0):
            return Evaluation(-np.inf, np.zeros(size), np.zeros((size, size)), (), resolution, 0)
        is_open = with_curvature and minimum == -np.inf
        at = self.derivatives(objective, args, u, with_hessians=is_open)
        root = self.coordinates.root
        entropy = np.sum(np.log(scales)) + np.sum(np.log(np.diagonal(root))) + 0.5 * dim * np.log(2 * np.pi * np.e)
        value = float(np.mean(at.values, dtype=np.float64) + entropy)
        self.path.append(value)
        if with_curvature and not is_open and value >= minimum:
            at = self.derivatives(objective, args, u, with_hessians=True)
        g = at.gradients
        gradient = np.concatenate([np.mean(g, axis=0), np.mean(self.by_entries(g), axis=0)])
        gradient[dim:][self.coordinates.is_on_diagonal] += 1 / scales
        if at.hessians is None or not with_curvature:
            return Evaluation(value, gradient, np.zeros((size, size)), (), resolution, 0)
        A = self._curvature(at.hessians, scales)
        return Evaluation(value, gradient, A, (), resolution, len(self.noise) * dim)

    def derivatives(self, objective, args, point: np.ndarray, *, with_hessians: bool) -> Derivatives:
        """Those of log p at the draws, in v; the last Hessians are kept."""
        if self.kept and np.array_equal(self.kept[0], point):
            return self.kept[1]
        if with_hessians:
            self.kept.clear()
        found = self.program.derivatives(objective, args, self.positions(point), with_hessians=with_hessians)
        found = found._replace(gradients=self.coordinates.pulled(found.gradients))
        if found.hessians is not None:
            self.coordinates.scale(found.hessians)
            self.kept[:] = [point.copy(), found]
        return found

    def propose(self, at: Evaluation, radius, scale) -> Proposal:
        return Dense(1).propose(at, radius, scale)

    def by_entries(self, g: Float[np.ndarray, "K dim"]) -> Float[np.ndarray, "K n"]:
        """g_ki z_kj of every free entry (i, j)."""
        return g[:, self.coordinates.rows] * self.noise[:, self.coordinates.columns]

    def _curvature(self, H: Float[np.ndarray, "K dim dim"], scales) -> Float[np.ndarray, "P P"]:
        """−∇²F."""
        rows, columns, (K, dim, _), z = self.coordinates.rows, self.coordinates.columns, H.shape, self.noise
        A = np.empty((dim + len(rows), dim + len(rows)))
        A[:dim, :dim] = np.sum(H, axis=0)
        if self.coordinates.is_diagonal:
            A[:dim, dim:] = np.einsum("kij,kj->ij", H, z)
            A[dim:, dim:] = np.einsum("kij,ki,kj->ij", H, z, z)
        else:
            A[:dim, dim:] = np.tensordot(H, z, axes=(0, 0))[:, rows, columns]
            products = (z[:, :, None] * z[:, None, :]).reshape(K, -1)
            all_four = (H.reshape(K, -1).T @ products).reshape(dim, dim, dim, dim)
            A[dim:, dim:] = all_four[rows[:, None], rows, columns[:, None], columns]
        A *= -1 / K
        A[dim:, :dim] = A[:dim, dim:].T
        own = dim + np.flatnonzero(self.coordinates.is_on_diagonal)
        A[own, own] += 1 / scales**2
        return 0.5 * (A + A.T)
