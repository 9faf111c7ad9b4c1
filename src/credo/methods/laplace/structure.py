"""How much of the curvature the Gaussian keeps: all of it, or its diagonal."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from credo.linalg.dense import Dense as DenseScale
from credo.linalg.diagonal import Diagonal as DiagonalScale
from credo.linalg.operator import ScaleOperator
from credo.methods.laplace.curvature import Curvature, ExactHessian
from credo.methods.optimise.diagnosis import transformed
from credo.methods.optimise.newton import Optimum
from credo.methods.optimise.objective import Objective
from credo.methods.optimise.spectrum import LEAST, Spectrum
from credo.model.target import Target
from credo.status import CredoError

MAX_DENSE = 10_000  # 800 MB a matrix, and minutes for its factors
WIDEST = 5.0  # sd of a log or logit where there is no mode: the data do not hold it, and exp() of a draw is a number


class Shape(NamedTuple):
    """S with S Sᵀ = A⁻¹; the smallest eigenvalue of A and the coordinate that leads its direction."""

    scale: ScaleOperator
    min_curvature: float
    coordinate: int


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
    ) -> Shape:
        """Where ``is_mode`` is False or the curvature not positive: no approximation, but numbers to draw from."""
        ...


@dataclass(frozen=True)
class Dense:
    """Every covariance. Up to 10,000 dimensions."""

    def shape(self, curvature, objective, target, optimum, chunk, is_mode=True):
        if target.dim > MAX_DENSE:
            raise CredoError(
                f"A dense Laplace of {target.dim} dimensions needs {8e-9 * target.dim**2:.1f} GB a matrix (the bound "
                f"is {MAX_DENSE} dimensions): use structure=Diagonal()."
            )
        A = curvature.matrix(objective, target, optimum, chunk).astype(np.float64)
        spectrum = Spectrum(A, float(np.finfo(optimum.position.dtype).eps))
        smallest, coordinate = spectrum.smallest
        if not (is_mode and spectrum.is_positive):
            A = spectrum.safe() + np.diag(transformed(target) / WIDEST**2)
        return Shape(DenseScale.from_precision(A), smallest, coordinate)


@dataclass(frozen=True)
class Diagonal:
    """The diagonal of the curvature alone: parameters independent, with their conditional variances."""

    def shape(self, curvature, objective, target, optimum, chunk, is_mode=True):
        diagonal = curvature.diagonal(objective, target, optimum, chunk).astype(np.float64)
        coordinate = int(np.argmin(diagonal))
        smallest = float(diagonal[coordinate])
        if optimum.curvature is not None and isinstance(curvature, ExactHessian):  # a saddle may hide off the diagonal
            smallest, coordinate = Spectrum(optimum.curvature, float(np.finfo(optimum.position.dtype).eps)).smallest
        if not (is_mode and smallest > 0):
            safe = np.maximum(np.abs(diagonal), LEAST * max(float(np.max(np.abs(diagonal))), 1e-100))
            diagonal = np.where(diagonal > 0, diagonal, safe) + transformed(target) / WIDEST**2
        return Shape(DiagonalScale(1 / np.sqrt(diagonal)), smallest, coordinate)
