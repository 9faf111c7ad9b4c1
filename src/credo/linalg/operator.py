"""The interface of scale operators: S with Σ = S Sᵀ, the covariance of a Gaussian posterior."""

from abc import abstractmethod

import equinox as eqx
from jaxtyping import Array, Float


class ScaleOperator(eqx.Module):
    """A square root S of a covariance Σ = S Sᵀ, stored as cheaply as its structure allows."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """The number of rows."""

    @abstractmethod
    def matvec(self, z: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """S z: white noise to a draw."""

    @abstractmethod
    def solve(self, v: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """S⁻¹ v: a deviation to white noise."""

    @abstractmethod
    def log_det(self) -> Float[Array, ""]:
        """log |det S|."""

    @abstractmethod
    def diagonal(self) -> Float[Array, " dim"]:
        """The variances, diag Σ."""

    @abstractmethod
    def dense(self) -> Float[Array, "dim dim"]:
        """Σ as a matrix."""
