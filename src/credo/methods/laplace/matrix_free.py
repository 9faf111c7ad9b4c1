"""Laplace without a matrix: draws, spreads and predictions by linear solves with products A v.

    u = û + S z,   S Sᵀ = A⁻¹,   A = Λ + Σᵢ Jᵢᵀ Fᵢ Jᵢ

S is a rational function of A in units of its diagonal, applied by conjugate gradients (linalg/matrix_free.py): every
covariance is there, and memory is that of some 40 vectors. What no solve gives is found by random signs z (or by
unit vectors, and thus without error, where there are no more coordinates than those), with Ã = D A D, D² = 1 / diag A:

    diag Ã⁻¹ ≈ mean of z ∘ Ã⁻¹z             (Bekas, Kokiopoulou & Saad 2007), kept within diag Ã⁻¹ ≥ 1 and Σ ≤ Λ⁻¹
    log |Ã| ≈ mean of zᵀ log(Ã) z          by Gauss' rule from the same solves (Ubaru, Chen & Saad 2017)

each with the standard error that the spread over z tells. Whether S is what it should be is looked at along a random
direction: Sᵀ A S z = z.
"""

import functools
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from credo.compiling import sound
from credo.convolutions import canonical
from credo.linalg.krylov import Solution, conjugate_gradients, gauss_rule
from credo.linalg.matrix_free import LOOSEST, inverse_root
from credo.linalg.matrix_free import MatrixFree as MatrixFreeScale
from credo.memory import chunk_bytes, footprint
from credo.methods.laplace import layered
from credo.methods.laplace.curvature import OuterProducts
from credo.methods.laplace.structure import Diagonal, Shape
from credo.methods.optimise.objective import Objective, log_density, log_density_less_jacobian
from credo.model.curvature import Curvature
from credo.model.data import Rows
from credo.model.target import Target
from credo.precision import abstract
from credo.status import CredoError

MOST_COLUMNS = 2_000  # coordinates whose diagonal is taken by a product each, where no layers give it
MOST_AT_ONCE = 16  # solves: more are no faster
VECTORS = 45  # of a solve: directions of some 20 shifts, before and after a step, and what stands beside them
SIGNS = 32  # of the estimate of a diagonal that only speeds solves up
COSTLY = 1e8  # rows times coordinates
FLOOR = 0.1  # of the median of an estimated diagonal
SAFE = 10.0  # how far the smallest eigenvalue may lie below the smallest that solves have met


@dataclass(frozen=True)
class MatrixFree:
    """Every covariance, as in ``Dense()``, and no matrix: for networks too large for it. Memory of some 40 vectors.

    Each draw, and each output of each row of a prediction, is a linear solve with the curvature over all data, by
    conjugate gradients to a relative residual of ``tolerance`` in at most ``max_products`` products; CredoError where
    these do not do. The sds of the parameters and log |A| in the evidence are estimated by ``num_probes`` solves, and
    exact up to so many coordinates.
    A file holds no data, so that draws of a loaded posterior need ``credo.load(path, target)``.

    Verdict: ``solver_error``, how far S Sᵀ is from A⁻¹; ``estimated_sd_error``, the standard error of the sds,
    which one in twenty exceeds; ``log_det_error``, that of ½ log |A|.
    """

    tolerance: float = 1e-8
    max_products: int = field(default=1_000, metadata={"at_least": 1})
    num_probes: int = field(default=64, metadata={"at_least": 2})
    seed: int = field(default=0, metadata={"at_least": 0})

    def __post_init__(self):
        if not (isinstance(self.tolerance, int | float | np.number) and 0 < self.tolerance < 1):
            raise CredoError(f"The tolerance of MatrixFree() lies between 0 and 1; got {self.tolerance!r}.")

    def shape(self, curvature, objective, target: Target, optimum, chunk, is_mode=True, free=None) -> Shape:
        u = np.asarray(optimum.position)
        prior = self._prior(curvature, objective, u, free)
        dim = u.size if free is None else free.size
        at_once = int(np.clip(chunk_bytes() // (8 * VECTORS * dim), 1, MOST_AT_ONCE))
        rows = _rows_at_once(target, u, at_once)
        fisher = curvature.fisher if isinstance(curvature, OuterProducts) else None
        product = Curvature(target, u, prior, free, fisher, rows, target.size)
        diagonal, is_exact = self._diagonal(curvature, objective, target, optimum, chunk, free, product)
        if not (is_mode and np.min(diagonal) > 0):
            return Diagonal().shape(curvature, objective, target, optimum, chunk, False, free)
        unit = diagonal**-0.5
        probes = self._probe(product, unit.astype(u.dtype), at_once, has_unit_diagonal=is_exact)
        if probes.least <= 0:
            fallback = Diagonal().shape(curvature, objective, target, optimum, chunk, False, free)
            return fallback._replace(min_curvature=probes.least, coordinate=probes.coordinate)
        below = 0.0 if prior is None else float(np.min(prior / diagonal))
        tolerance = max(self.tolerance, 10 * float(np.finfo(u.dtype).eps))
        shifts, weights = inverse_root(max(below, probes.lowest / SAFE), 1.1 * probes.highest, tolerance)
        scale = MatrixFreeScale(
            product,
            unit.astype(u.dtype),
            shifts.astype(u.dtype),
            weights.astype(u.dtype),
            (probes.variances * unit**2).astype(u.dtype),
            np.asarray(float(np.sum(np.log(unit))) - 0.5 * probes.log_det),
            tolerance,
            self.max_products,
            at_once,
        )
        error = max(probes.residual, self._error(scale, dim))
        smallest = max(probes.least, 0.0 if prior is None else float(np.min(prior)))
        figures = {"solver_error": error, "log_det_error": 0.5 * probes.log_det_error}
        said: tuple[str, ...] = ()
        if dim > self.num_probes:
            figures["estimated_sd_error"] = float(np.quantile(0.5 * probes.errors / probes.variances, 0.95))
            said = (
                f"The sds of {dim:,} parameters are estimated by {self.num_probes} solves, one in twenty no better "
                f"than to ± {figures['estimated_sd_error']:.1%}, and log |A| likewise; draws and predictions are none.",
            )
        return Shape(scale, smallest, int(np.argmin(diagonal)), said, figures=figures)

    def _prior(self, curvature, objective: Objective, u, free) -> np.ndarray | None:
        """The diagonal of Λ; None where it is no diagonal, or of a curvature that does not part."""
        found, is_diagonal = layered.prior_product(objective, jnp.asarray(u), free)
        is_own = objective.function in (log_density, log_density_less_jacobian)  # Laplace takes no Jacobian off
        if is_own and not (is_diagonal and isinstance(curvature, OuterProducts)):
            return None
        if not is_diagonal or not isinstance(curvature, OuterProducts):
            raise CredoError(
                "MatrixFree() after an earlier posterior needs one whose coordinates are independent, and "
                "curvature=GaussNewton(): fit the earlier data with structure=Diagonal(), or all data at once."
            )
        return found

    def _diagonal(
        self, curvature, objective, target, optimum, chunk, free, product: Curvature
    ) -> tuple[np.ndarray, bool]:
        """diag A, and whether it is exact: where that would take a product a coordinate an estimate, as solves need no
        more than the scales."""
        u = jnp.asarray(optimum.position)
        dim = u.size if free is None else free.size
        has_layers = isinstance(curvature, OuterProducts) and layered.layers_or_none(target, u, free) is not None
        if dim <= MOST_COLUMNS or has_layers:
            return curvature.diagonal(objective, target, optimum, chunk, free).astype(np.float64), True
        signs = _signs(np.random.default_rng(self.seed), SIGNS, dim, u.dtype)
        found = np.mean([z * np.asarray(_product(product, z)) for z in signs], axis=0, dtype=np.float64)
        # where entries beside the diagonal add up their noise hides it, and a floor far below would scale at random
        floor = np.full(dim, FLOOR * np.median(np.abs(found))) if product.prior is None else product.prior
        return np.maximum(found, floor), False

    def _probe(self, product: Curvature, unit: np.ndarray, at_once: int, *, has_unit_diagonal: bool) -> "Probes":
        """Solves with Ã of random signs, or of each unit vector. ``has_unit_diagonal``: Ã, whose (Ã⁻¹)ᵢᵢ ≥ 1/Ãᵢᵢ."""
        dim, is_exact = unit.size, unit.size <= self.num_probes
        number = dim if is_exact else self.num_probes
        noise = np.random.default_rng(self.seed)
        tolerance = max(self.tolerance, 10 * float(np.finfo(unit.dtype).eps))
        sums, squares, logs = np.zeros(dim), np.zeros(dim), []
        lowest, highest, residual = np.inf, 0.0, 0.0
        # of a large network the first by itself: it tells within minutes whether solves are to be had
        starts = range(0, number, at_once)
        if product.size * dim > COSTLY and at_once > 1:
            starts = [0, *range(1, number, at_once)]
        for first, end in zip(starts, [*starts[1:], number], strict=True):
            some = end - first
            z = _units(first, some, dim, unit.dtype) if is_exact else _signs(noise, some, dim, unit.dtype)
            solved = jax.tree.map(np.asarray, _solve(product, unit, z, tolerance, self.max_products))
            if np.min(solved.bend) <= 0:
                return _not_positive(solved, unit)
            if np.max(solved.residual) > LOOSEST:
                raise CredoError(
                    f"MatrixFree() cannot solve with this curvature of {dim:,} parameters: {self.max_products:,} "
                    f"products leave a relative residual of {np.max(solved.residual):.2g}, and draws would be no "
                    "numbers. Raise max_products, bring the inputs to like scales, give the weights a larger prior "
                    "precision, or use Kronecker()."
                )
            estimates = (z * solved.x).astype(np.float64)
            sums, squares = sums + estimates.sum(axis=0), squares + np.square(estimates).sum(axis=0)
            residual = max(residual, float(np.max(solved.residual)))
            for i in range(some):
                θ, τ2 = gauss_rule(Solution(*(leaf[i] for leaf in solved)))
                lowest, highest = min(lowest, float(np.min(θ))), max(highest, float(np.max(θ)))
                logs.append(float(np.sum(τ2 * np.log(np.maximum(θ, 1e-300)))))
        if lowest <= 0:  # rounding: a direction without curvature
            return Probes(lowest, int(np.argmax(unit)), lowest, highest, sums, sums, 0.0, 0.0, residual)
        least = lowest * float(np.min(unit**-2.0))
        if is_exact:
            return Probes(least, 0, lowest, highest, sums, 0 * sums, float(np.sum(logs)), 0.0, residual)
        mean = sums / number
        error = np.sqrt(np.maximum(squares / number - mean**2, 0) / (number - 1))
        prior = product.prior
        above = np.inf if prior is None else unit**-2.0 / np.where(prior > 0, prior, np.nan)
        below = 1.0 if has_unit_diagonal else 1 / (1.1 * highest)
        return Probes(
            least,
            0,
            lowest,
            highest,
            np.fmin(np.maximum(mean, below), above),
            error,
            dim * float(np.mean(logs)),
            dim * float(np.std(logs, ddof=1)) / number**0.5,
            residual,
        )

    def _error(self, scale: MatrixFreeScale, dim: int) -> float:
        """|Sᵀ A S z − z| / |z| of a random z: the error of S, as the root mean square over white directions."""
        z = np.random.default_rng([self.seed, 1]).normal(size=dim).astype(scale.unit.dtype)
        found = float(np.linalg.norm(np.asarray(_round_trip(scale, z), np.float64) - z) / np.linalg.norm(z))
        return np.inf if np.isnan(found) else found


class Probes(NamedTuple):
    """What solves of random signs tell of Ã, and of the smallest eigenvalue of A: at least ``least`` where positive.

    ``lowest``, ``highest``: eigenvalues met. ``variances``: diag Ã⁻¹, with standard ``errors``.
    """

    least: float
    coordinate: int
    lowest: float
    highest: float
    variances: np.ndarray
    errors: np.ndarray
    log_det: float
    log_det_error: float
    residual: float


def _not_positive(solved: Solution, unit: np.ndarray) -> Probes:
    """A direction v with vᵀ A v ≤ 0: A's smallest eigenvalue is no larger than vᵀ A v / vᵀ v."""
    worst = int(np.argmin(solved.bend))
    p = solved.direction[worst].astype(np.float64)
    v = unit * p
    least = float(solved.bend[worst]) * float(p @ p) / float(v @ v)
    nothing = np.zeros(unit.size)
    return Probes(min(least, 0.0), int(np.argmax(np.abs(v))), 0.0, 0.0, nothing, nothing, 0.0, 0.0, np.inf)


def _units(first: int, number: int, dim: int, dtype) -> np.ndarray:
    return np.eye(number, dim, first, dtype=dtype)


def _signs(noise: np.random.Generator, number: int, dim: int, dtype) -> np.ndarray:
    return (2 * noise.integers(0, 2, size=(number, dim), dtype=np.int8) - 1).astype(dtype)


@functools.partial(sound, static_argnames=("tolerance", "max_products"))
def _solve(product: Curvature, unit, Z, tolerance: float, max_products: int) -> Solution:
    """Of Ã, each row of Z."""
    apply = product.linear()

    def solve(z):
        return conjugate_gradients(lambda v: unit * apply(unit * v), z, tolerance, max_products)

    return canonical(jax.vmap(solve))(Z)


@sound
def _product(product: Curvature, v):
    return product.linear()(v)


@sound
def _round_trip(scale: MatrixFreeScale, z):
    return canonical(lambda z: scale.transpose_matvec(scale.product.linear()(scale.matvec(z))))(z)


def _rows_at_once(target: Target, u: np.ndarray, at_once: int) -> int:
    """How many rows a product takes together, ``at_once`` of them at a time: by what one more row computes."""
    if target.y is None or target.num_terms != target.size or not jax.tree.leaves(target.x):
        return max(target.size, 1)
    if not layered.stands_alone(target):
        return target.size

    def takes(number: int) -> int:
        x, y = jax.tree.map(
            lambda leaf: abstract((number, *np.shape(leaf)[1:]), np.asarray(leaf).dtype),
            (target.x, target.y),
        )
        return footprint(lambda u, x, y: target.log_likelihood(u, Rows(x, y)), u, x, y)

    more = max(takes(2) - takes(1), 1)
    return int(np.clip(chunk_bytes() // (3 * more * at_once), 1, target.size))
