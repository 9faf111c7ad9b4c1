"""How much of the curvature the Gaussian keeps: all of it, or its diagonal."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from credo.linalg.dense import Dense as DenseScale
from credo.linalg.diagonal import Diagonal as DiagonalScale
from credo.linalg.operator import ScaleOperator
from credo.methods.laplace.curvature import Curvature, ExactHessian, Free, OuterProducts
from credo.methods.laplace.factored import factored
from credo.methods.optimise.diagnosis import transformed
from credo.methods.optimise.newton import Optimum
from credo.methods.optimise.objective import Objective
from credo.methods.optimise.spectrum import LEAST, Spectrum
from credo.model.target import Target
from credo.status import CredoError

MAX_DENSE = 10_000  # 800 MB a matrix, and minutes for its factors
WIDEST = 5.0  # sd of a log or logit where there is no mode: the data do not hold it, and exp() of a draw is a number


class Shape(NamedTuple):
    """S with S Sᵀ = A⁻¹; the smallest eigenvalue of A and the coordinate that leads its direction.

    ``sentences``: what the posterior should say of it. ``log_fixed``: the log prior density of the coordinates that do
    not vary, None where it is not known. ``figures``: of the verdict.
    """

    scale: ScaleOperator
    min_curvature: float
    coordinate: int
    sentences: tuple[str, ...] = ()
    log_fixed: float | None = 0.0
    figures: Mapping[str, float] = {}


@runtime_checkable
class Structure(Protocol):
    """From the curvature at the mode to the Gaussian's scale."""

    def shape(
        self,
        curvature: Curvature,
        objective: Objective,
        target: Target,
        optimum: Optimum,
        chunk: int,
        is_mode: bool = True,
        free: Free = None,
    ) -> Shape:
        """Of the coordinates ``free`` (ascending; None for all), which ``scale`` and ``coordinate`` count.

        Where ``is_mode`` is False or the curvature not positive: no approximation, but numbers to draw from.
        """
        ...


@dataclass(frozen=True)
class Dense:
    """Every covariance. Up to 10,000 dimensions."""

    def shape(self, curvature, objective, target, optimum, chunk, is_mode=True, free=None):
        dim = target.dim if free is None else free.size
        if dim > MAX_DENSE:
            raise CredoError(
                f"A dense Laplace of {dim} dimensions needs {8e-9 * dim**2:.1f} GB a matrix (the bound is {MAX_DENSE} "
                "dimensions): use structure=Diagonal(), or a subset of the parameters."
            )
        A = curvature.matrix(objective, target, optimum, chunk, free)
        if is_mode and isinstance(curvature, OuterProducts):
            found = factored(A)
            if found is not None:
                return Shape(found.scale, found.smallest, found.coordinate)
        A = A.astype(np.float64, copy=False)
        spectrum = _spectrum(A, curvature, float(np.finfo(optimum.position.dtype).eps))
        smallest, coordinate = spectrum.smallest
        if not (is_mode and spectrum.is_positive):
            A = spectrum.safe() + np.diag(free_transformed(target, free) / WIDEST**2)
        return Shape(DenseScale.from_precision(A), smallest, coordinate)


@dataclass(frozen=True)
class Diagonal:
    """The diagonal of the curvature alone: parameters independent, with their conditional variances."""

    def shape(self, curvature, objective, target, optimum, chunk, is_mode=True, free=None):
        diagonal = curvature.diagonal(objective, target, optimum, chunk, free).astype(np.float64)
        coordinate = int(np.argmin(diagonal))
        smallest = float(diagonal[coordinate])
        if optimum.curvature is not None and isinstance(curvature, ExactHessian):  # a saddle may hide off the diagonal
            A = optimum.curvature if free is None else optimum.curvature[np.ix_(free, free)]
            smallest, coordinate = Spectrum(A, float(np.finfo(optimum.position.dtype).eps)).smallest
        if not (is_mode and smallest > 0):
            safe = np.maximum(np.abs(diagonal), LEAST * max(float(np.max(np.abs(diagonal))), 1e-100))
            diagonal = np.where(diagonal > 0, diagonal, safe) + free_transformed(target, free) / WIDEST**2
        return Shape(DiagonalScale(1 / np.sqrt(diagonal)), smallest, coordinate)


def _spectrum(A: np.ndarray, curvature: Curvature, resolution: float) -> Spectrum:
    """Where the curvature cannot be negative, a factor of A says all, whatever the precision that A was computed in."""
    if isinstance(curvature, OuterProducts):
        spectrum = Spectrum(A, float(np.finfo(np.float64).eps))
        if spectrum.factor is not None:
            return spectrum
    return Spectrum(A, resolution)


def free_transformed(target: Target, free: Free) -> np.ndarray:
    """Which of the free coordinates pass through a transform that is not the identity."""
    found = transformed(target)
    return found if free is None else found[free]
