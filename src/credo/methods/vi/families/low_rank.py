"""A normal with few directions beside independent coordinates: q(u) = N(m, diag(δ²) + A Aᵀ), A (dim, rank).

With B = A/δ, M = I + B Bᵀ = R Rᵀ, G = BᵀB, H = BᵀM⁻¹B = I − (I + G)⁻¹ = L_H L_Hᵀ and Q = R⁻¹ B L_H⁻ᵀ (orthonormal),

    T(ε, η) = m + δ ∘ ε + A η,  ε ~ N(0, I_dim), η ~ N(0, I_rank);  tangent (a, b, C):
    m ← m + δ ∘ R a,   log δ_i ← log δ_i + b_i (2 (M⁻¹)_ii)^-½,   A ← A + δ ∘ R Π(C) L_H⁻¹
    Π(C) = C − Q QᵀC + 2^-½ Q sym(QᵀC)

The Fisher information of a covariance, ½ tr(Σ⁻¹dΣ Σ⁻¹dΣ), is then 1 for a; at most 1 for b (exactly where A = 0, and
by Gershgorin's theorem elsewhere, since Σ_j (M⁻¹_ij)² ≤ M⁻¹_ii); and for C it is tr(CᵀC), but for rotations
A → A U, which change nothing and which Π leaves out, so that noise does not turn A about. What b and C have in common
is left out, which at most doubles the information. (Mishkin et al. 2018 and Ong et al. 2018 have the family; these
coordinates are in the manner of Lin et al. 2021.) A draw and a gradient cost dim × rank², and so does memory.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from credo.linalg.factor import DiagonalPlusFactor
from credo.methods.vi.families.family import Draw, Family, antithetic_normal
from credo.methods.vi.families.mean_field import CONTRACTION, LARGEST_GROWTH, gaussian_entropy, positive, shortened
from credo.posterior.kinds import Gaussian
from credo.status import CredoError

DAMPING = 0.01  # added to H and to M⁻¹_ii: what makes up less than a hundredth of a variance moves no faster
LONGEST = 1.0  # of ‖Π(C) L_H⁻¹‖ and of log δ in one step, softly
FIRST = 0.3  # length of B's columns where nothing says which they are: A = 0 is a saddle
LEAST = 1e-4  # of 1/P_ii, a coordinate's variance given all others, below which δ² makes no difference
FEWEST, MOST, WORK = 3, 300, 1e8  # rounds of ``_nearest``, and how many d³ they may take


@dataclass(frozen=True)
class LowRank(Family):
    """A normal of covariance A Aᵀ + diagonal, A (dim, ``rank``). Exact on Gaussian targets with such a covariance.

    Raises CredoError for a rank that is no positive whole number.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"w": dist.Normal(0.0, 1.0).expand([3])}, lambda w, x: dist.Normal(x @ w["w"], 1.0))
    >>> target = model.given(np.ones((4, 3)), np.ones(4))
    >>> posterior = credo.fit(target, credo.ADVI(family=credo.vi.LowRank(rank=1)))
    >>> posterior.mean()["w"].round(1)
    array([0.3, 0.3, 0.3])
    """

    rank: int = 5
    has_correlations: ClassVar[bool] = True

    def __post_init__(self):
        if not isinstance(self.rank, int | np.integer) or self.rank < 1:
            raise CredoError(f"LowRank(rank={self.rank!r}): rank is a whole number from 1. For none, use MeanField().")

    def noise(self, key, num_samples: int, dim: int):
        return antithetic_normal(key, num_samples, dim + self._columns(dim))

    def largest_step(self, num_samples: int, dim: int) -> float:
        """The noise of the gradient in C is the error of Σ times (rank/K)^½, that of the whole covariance (dim/K)^½."""
        return min(1.0, 0.5 * num_samples / self._columns(dim))

    def start(self, mean, sd) -> Gaussian:
        """Nearly independent: with small A in fixed directions, which the ascent turns."""
        B = _basis(mean.shape[0], self._columns(mean.shape[0]))
        return Gaussian(mean, DiagonalPlusFactor(sd, sd[:, None] * B.astype(sd.dtype)))

    def around(self, mean, precision) -> Gaussian:
        precision = np.asarray(precision)
        if precision.ndim == 1:
            return self.start(np.asarray(mean), 1 / np.sqrt(positive(precision)))
        return Gaussian(mean, DiagonalPlusFactor(*_nearest(precision, self._columns(len(precision)))))

    def center(self, q: Gaussian):
        return q.mean

    def variances(self, q: Gaussian):
        return q.scale.diagonal()

    def rest(self, q: Gaussian):
        return jnp.zeros_like(q.mean), jnp.zeros_like(q.mean), jnp.zeros_like(_scale(q).factor)

    def draw(self, q: Gaussian, tangent, z) -> Draw:
        moved, d = self.move(q, tangent), q.mean.shape[0]
        scale = _scale(moved)
        u = moved.mean + scale.scale * z[:d] + jnp.matmul(scale.factor, z[d:])
        return Draw(u, q.log_prob_u(u))

    def entropy(self, q: Gaussian, tangent):
        return gaussian_entropy(self.move(q, tangent))

    def natural(self, gradient, step_size):
        a, b, C = (step_size * g for g in gradient)
        limit = np.sqrt(2) * LARGEST_GROWTH
        length = jnp.maximum(_spectral_norm(C), jnp.finfo(C.dtype).tiny)
        return shortened(a), jnp.clip(b, -limit, limit), C * jnp.minimum(1.0, LARGEST_GROWTH / length)

    def careful(self, step, share, longest):
        slow = step[0], *(share * part for part in step[1:])
        return tuple(jnp.clip(part, -longest, longest) for part in slow)

    def contract(self, q: Gaussian) -> Gaussian:
        scale = _scale(q)
        return Gaussian(q.mean, DiagonalPlusFactor(CONTRACTION * scale.scale, CONTRACTION * scale.factor))

    def move(self, q: Gaussian, tangent) -> Gaussian:
        a, b, C = tangent
        scale = _scale(q)
        root, delta = scale.rooted(), jnp.asarray(scale.scale)
        B = root.factor
        identity = jnp.eye(B.shape[1], dtype=B.dtype)
        G = jnp.matmul(B.T, B)
        lower = jnp.linalg.cholesky(identity + G)
        half = jax.scipy.linalg.solve_triangular(lower, B.T, lower=True)  # halfᵀ half = B (I + G)⁻¹ Bᵀ = I − M⁻¹
        own = jnp.maximum(1 - jnp.sum(jnp.square(half), axis=0), 0.0)
        inverse = jax.scipy.linalg.cho_solve((lower, True), identity)
        T = jax.scipy.linalg.solve_triangular(
            jnp.linalg.cholesky((1 + DAMPING) * identity - inverse), identity, lower=True
        )
        Q = jnp.matmul(B - jnp.matmul(B, jnp.matmul(root.inverse_root, G)), T.T)
        within = jnp.matmul(Q.T, C)
        X = jnp.matmul(C - jnp.matmul(Q, within - np.sqrt(0.125) * (within + within.T)), T)
        X = X / (1 + jnp.sum(jnp.square(jnp.matmul(X.T, X))) / LONGEST**4) ** 0.25
        growth = b / jnp.sqrt(2 * (own + DAMPING))
        growth = growth / jnp.sqrt(1 + jnp.square(growth / LONGEST))
        RX = X + jnp.matmul(B, jnp.matmul(root.root, jnp.matmul(B.T, X)))
        factor = jnp.asarray(scale.factor) + delta[:, None] * RX
        return Gaussian(q.mean + root.matvec(a), DiagonalPlusFactor(delta * jnp.exp(growth), factor))

    def _columns(self, dim: int) -> int:
        return min(self.rank, dim)


def _scale(q: Gaussian) -> DiagonalPlusFactor:
    return q.scale  # type: ignore[return-value]  # members of this family have such a scale


def _basis(dim: int, rank: int) -> np.ndarray:
    return FIRST * np.linalg.qr(np.random.default_rng(0).normal(size=(dim, rank)))[0]


def _nearest(precision: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """(δ, A) at which KL(N(0, diag(δ²) + A Aᵀ) ‖ N(0, P⁻¹)) = ½ (tr PΣ − log|Σ|) + … is stationary.

    At given δ the best A is known: with δPδ = Σ_j λ_j v_j v_jᵀ, the ``rank`` smallest λ_j < 1 give B the columns
    (1/λ_j − 1)^½ v_j. At the best δ the diagonals of Σ⁻¹ = (I − Σ_j (1 − λ_j) v_j v_jᵀ)/δ² and P agree, which gives the
    next δ. It may vanish, where a factor is one coordinate (a Heywood case of factor analysis), but for LEAST.
    """
    d = len(precision)
    values, vectors = scipy.linalg.eigh(0.5 * (precision + precision.T))
    if not values[0] > 0:  # a saddle, or a flat direction
        precision = (vectors * positive(values)) @ vectors.T
    precisions = np.diagonal(precision)
    variances = 1 / precisions  # δ²
    for _ in range(int(np.clip(WORK / d**3, FEWEST, MOST)) + 1):
        delta = np.sqrt(variances)
        values, vectors = scipy.linalg.eigh(delta[:, None] * precision * delta, subset_by_index=(0, rank - 1))
        values = np.clip(values, np.finfo(float).tiny, 1.0)
        new = np.maximum((1 - np.square(vectors) @ (1 - values)) / precisions, LEAST / precisions)
        if np.max(np.abs(new / variances - 1)) < 1e-12:
            break
        variances = new
    length = np.maximum(np.sqrt(1 / values - 1), 0.1 * FIRST)
    return delta, delta[:, None] * vectors * length


def _spectral_norm(C):
    """An upper bound of that of a tall matrix: that of CᵀC is at most its largest absolute row sum."""
    return jnp.sqrt(jnp.max(jnp.sum(jnp.abs(jnp.matmul(C.T, C)), axis=1), initial=0.0))
