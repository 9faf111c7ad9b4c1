"""What a user says of a mixture's parameters, in the units of the data: a prior, or that a point will do."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from credo.methods.vi.cavi.mixture.factors import Factor, NormalWishartFactor, PointFactor
from credo.methods.vi.cavi.mixture.statistics import Features
from credo.status import CredoError

SINGULAR = 1e-12  # of the largest eigenvalue: below it a variance is rounding


class Units(NamedTuple):
    """Rows are worked on as (x − shift)/unit, so that squares cost no digits and a fit is the same in other units."""

    shift: Float[np.ndarray, " dim"]
    unit: Float[np.ndarray, " dim"]

    @classmethod
    def of(cls, x: Float[np.ndarray, "row dim"]) -> "Units":
        """Mean and sd of the columns; 1 where a column is constant."""
        sd = np.std(x, axis=0)
        shift = np.mean(x, axis=0)
        return cls(shift, np.where(sd > 1e-12 * np.abs(shift), sd, 1.0))

    def standard(self, x):
        return (x - self.shift) / self.unit

    @property
    def log_jacobian(self) -> float:
        """log density in standard units − log density in those of the data, a row."""
        return float(np.sum(np.log(self.unit)))


class Belief(ABC):
    """The interface: how the factor of the parameters is made for given data."""

    @abstractmethod
    def factor(self, features: Features, num_components: int, x: Float[np.ndarray, "row dim"], units: Units) -> Factor:
        """For rows ``x`` in standard units."""


@dataclass(frozen=True, eq=False)
class NormalWishart(Belief):
    """A conjugate prior: variational Bayes. With ``Diagonal()`` covariances it is Normal-Gamma, a column at a time.

    π ~ Dirichlet(``concentration``), Λ_k ~ Wishart(``degrees_of_freedom``, ``scale``⁻¹), E Λ⁻¹ = scale/(ν₀ − b − 1),
    and μ_k | Λ_k ~ N(``mean``, (``mean_precision`` Λ_k)⁻¹). ``scale`` is (D, D), or (D,) for diagonal covariances,
    where the precisions are Gamma(ν₀/2, scale/2) and b = 1; else b = D.

    What is left out is taken from the data, weakly (Fraley & Raftery 2007): concentration 1/K, by which components
    that are not needed empty themselves (Rousseau & Mengersen 2011); the mean of the rows; mean_precision 0.01; b + 2
    degrees of freedom; and the rows' covariance over K^(2/D), which shares their volume among K components. The
    evidence is then conditional on these figures: compare numbers of components under one prior of your own.
    """

    concentration: float | None = None
    mean: ArrayLike | None = None
    mean_precision: float = 0.01
    degrees_of_freedom: float | None = None
    scale: ArrayLike | None = None

    def factor(self, features, num_components, x, units):
        b, B, D = features.block_size, features.num_blocks, features.dim
        concentration = 1 / num_components if self.concentration is None else self.concentration
        nu = b + 2.0 if self.degrees_of_freedom is None else self.degrees_of_freedom
        for name, value, least in (
            ("concentration", concentration, 0),
            ("mean_precision", self.mean_precision, 0),
            ("degrees_of_freedom", nu, b - 1),
        ):
            if not (np.ndim(value) == 0 and np.isfinite(value) and value > least):
                raise CredoError(f"{name} is {value!r}, and must be one number above {least}.")
        mean = np.zeros(D) if self.mean is None else units.standard(_shaped("mean", self.mean, (D,)))
        scale = self._default(x, num_components, b) if self.scale is None else self._given(D, b, units)
        values = np.linalg.eigvalsh(scale)
        if not np.all(values[..., 0] > SINGULAR * values[..., -1]):
            raise CredoError(
                "The prior's scale is not positive definite. Where it is the covariance of x, here of "
                f"{len(x)} rows and {D} columns, columns are constant or repeat one another, or rows are fewer than "
                "columns: drop some columns, use Diagonal(), or give NormalWishart a scale."
            )
        return NormalWishartFactor(
            features, float(concentration), float(self.mean_precision), float(nu), mean.reshape(B, b), scale
        )

    def _default(self, x, num_components: int, b: int) -> np.ndarray:
        D = x.shape[1]
        if len(x) < 2:
            raise CredoError(f"x has {len(x)} row, which has no covariance: give NormalWishart a scale.")
        shared = num_components ** (-2 / D)
        covariance = np.atleast_2d(np.cov(x.T)) * shared
        if np.any(np.diagonal(covariance) < 1e-12):
            raise CredoError(
                f"Column {int(np.argmin(np.diagonal(covariance)))} of x is constant: drop it, or give NormalWishart a "
                "scale."
            )
        return covariance[None] if b > 1 or D == 1 else np.diagonal(covariance)[:, None, None].copy()

    def _given(self, D: int, b: int, units: Units) -> np.ndarray:
        if b == D and D > 1:
            return (_shaped("scale", self.scale, (D, D)) / np.outer(units.unit, units.unit))[None]
        given = np.asarray(self.scale, float)
        given = given.reshape(1) if D == 1 and given.size == 1 else _shaped("scale", given, (D,))
        return (given / units.unit**2)[:, None, None]


@dataclass(frozen=True)
class PointMass(Belief):
    """No prior, and a point for an answer: maximum likelihood, by EM (Dempster, Laird & Rubin 1977).

    ``ridge``: a variance, in units of the squared data, that is added to every covariance. Without one the likelihood
    has no maximum where a component closes in on few rows, which is refused when it happens.
    """

    ridge: float = 0.0

    def __post_init__(self):
        if not (np.ndim(self.ridge) == 0 and np.isfinite(self.ridge) and self.ridge >= 0):
            raise CredoError(f"ridge is {self.ridge!r}: give a variance from 0.")

    def factor(self, features, num_components, x, units):
        ridge = (self.ridge / units.unit**2).reshape(features.num_blocks, features.block_size)
        return PointFactor(features, ridge)


def _shaped(name: str, value: ArrayLike | None, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(value, float)
    if array.shape != shape or not np.all(np.isfinite(array)):
        raise CredoError(f"{name} has shape {array.shape}, and must be finite numbers of shape {shape}.")
    return array
