"""Low rank beside a diagonal: the directions that the data inform most, and the exact diagonal of what is left.

With P the prior's curvature (its diagonal) and H that of the likelihood, in units of the prior H̃ = P^−½ H P^−½,

    A ≈ P^½ (diag(r) + V Θ Vᵀ) P^½,    r = 1 + diag(H̃ − V Θ Vᵀ)

V Θ Vᵀ holds the leading eigenvectors of H̃: no others are as good for a posterior of that rank (Spantini et al. 2015).
They come of randomised subspace iteration (Halko, Martinsson & Tropp 2011) on products H̃ v, with no matrix formed, and
of Nyström's formula at the end: with Y = H̃ Q, H̃ − Y (QᵀY)⁻¹ Yᵀ is a Schur complement and thus not negative, whatever
Q is, and no more is it after the smallest eigenvalues of Y (QᵀY)⁻¹ Yᵀ are left out. So r ≥ 1 however far the iteration
went, A is positive, and its diagonal exact. What is left out is the rest off the diagonal.
Where the prior has no curvature the unit is the diagonal of A.
"""

import functools
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from credo.batches import in_batches
from credo.compiling import brief
from credo.linalg.lowrank import LowRank as LowRankScale
from credo.methods.laplace.curvature import OuterProducts, likelihood_product, prior_diagonal
from credo.methods.laplace.structure import WIDEST, Dense, Shape, free_transformed
from credo.methods.optimise.spectrum import LEAST
from credo.model.target import Target
from credo.status import CredoError

MORE = 10  # vectors than the rank: the last directions converge by the gap behind these
AT_ONCE = 8  # products: each holds the network's intermediates of all rows
MOST = 30  # iterations
SETTLED = 1e-4  # relative change of the eigenvalues' sum
NOTHING = 1e-13  # of the largest eigenvalue: rounding
CORRELATED = (
    "The prior correlates parameters, and LowRank() leaves its correlations out: use structure=Dense() or MatrixFree()."
)


@dataclass(frozen=True)
class LowRank:
    """``rank`` directions and a diagonal: samples, log |A| and variances for dim × rank operations.

    Needs a curvature that is never negative: GaussNewton(), EmpiricalFisher() or SampledFisher(). With as many
    directions as the likelihood has it is ``Dense()``, under a prior of independent parameters; it leaves out the
    correlations that the other directions make, and those of the prior, which it says.
    """

    rank: int = field(default=20, metadata={"at_least": 1})
    seed: int = field(default=0, metadata={"at_least": 0})

    def shape(self, curvature, objective, target: Target, optimum, chunk, is_mode=True, free=None) -> Shape:
        dim = target.dim if free is None else free.size
        if self.rank > dim:
            raise CredoError(
                f"LowRank({self.rank}) of {dim} coordinates: give a rank of at most {dim}, or use structure=Dense()."
            )
        if not isinstance(curvature, OuterProducts):
            raise CredoError(
                "LowRank() needs a curvature that is never negative: say curvature=GaussNewton() beside it."
            )
        if self.rank == dim:  # all of A, which is positive where the prior alone, flat or heavy of tail, is not
            return Dense().shape(curvature, objective, target, optimum, chunk, is_mode, free)
        u = jnp.asarray(optimum.position)
        diagonal = curvature.diagonal(objective, target, optimum, chunk, free).astype(np.float64)
        prior, is_independent = prior_diagonal(objective, target, u, free)
        prior = prior.astype(np.float64)
        unit = np.where(prior > 0, prior, np.maximum(diagonal, 1e-100))
        V, values = self._directions(curvature, target, u, free, unit)
        rest = prior / unit + np.maximum((diagonal - prior) / unit - np.square(V) @ values, 0.0)
        coordinate = int(np.argmin(rest * unit))
        smallest = float((rest * unit)[coordinate])
        if not (is_mode and smallest > 0):
            rest = np.maximum(np.abs(rest), LEAST) + free_transformed(target, free) / WIDEST**2 / unit
        U, root, _ = np.linalg.svd(V * np.sqrt(values) / np.sqrt(rest)[:, None], full_matrices=False)
        scale = LowRankScale.from_eigen((unit * rest) ** -0.5, U, 1 / (1 + root**2))
        said = () if is_independent else (CORRELATED,)
        return Shape(jax.tree.map(np.asarray, scale), smallest, coordinate, said)

    def _directions(self, curvature, target: Target, u, free, unit) -> tuple[np.ndarray, np.ndarray]:
        """V (dim, rank) orthonormal and Θ (rank,), such that what is left of H̃ is not negative."""
        dim, width = unit.size, min(self.rank + MORE, unit.size)
        Q = np.linalg.qr(np.random.default_rng(self.seed).normal(size=(dim, width)))[0]
        last, root, Y, core = 0.0, jnp.asarray(unit**-0.5, u.dtype), Q, np.eye(width)
        for _ in range(MOST):
            Y = np.asarray(_products(curvature, target, u, free, root, jnp.asarray(Q.T, u.dtype)), np.float64).T
            core = Q.T @ Y
            total = float(np.sum(np.linalg.eigvalsh(0.5 * (core + core.T))[-self.rank :]))
            if abs(total - last) <= SETTLED * abs(total):
                break
            last, Q = total, np.linalg.qr(Y)[0]
        λ, E = np.linalg.eigh(0.5 * (core + core.T))
        kept = λ > NOTHING * max(float(λ[-1]), 0.0)
        if not kept.any():
            return np.zeros((dim, 1)), np.zeros(1)
        V, root, _ = np.linalg.svd(Y @ (E[:, kept] / np.sqrt(λ[kept])), full_matrices=False)
        return V[:, : self.rank], root[: self.rank] ** 2


@functools.partial(brief, static_argnames="curvature")
def _products(curvature: OuterProducts, target: Target, u, free, root, rows):
    """P^−½ H P^−½ of each row."""
    product = likelihood_product(curvature, target, u, free)
    return in_batches(lambda v: root * product(root * v), rows, AT_ONCE)
