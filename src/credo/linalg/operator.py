"""The interface of scale operators: S with Σ = S Sᵀ, the covariance of a Gaussian posterior."""

from abc import abstractmethod

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

Stored = Array | np.ndarray  # factorised on the host, an operator holds NumPy arrays: exact in any JAX precision


class ScaleOperator(eqx.Module):
    """A square root S of a covariance Σ = S Sᵀ, stored as cheaply as its structure allows.

    S is square and invertible. The methods take one vector (``jax.vmap`` adds axes) and are traceable; the
    constructors check what they are given where its values are known, and leave NaN to answer where it is traced.
    """

    @property
    @abstractmethod
    def dim(self) -> int:
        """The number of rows."""

    @property
    def rank(self) -> int:
        """The number of coordinates that vary: all, unless some are held fixed (``Embedded``)."""
        return self.dim

    def white(self, z: Float[Stored, " dim"]) -> Float[Stored, " dim"]:
        """White noise z of those coordinates that vary, zero for the others: S z is the same."""
        return z

    @abstractmethod
    def matvec(self, z: Float[Stored, " dim"]) -> Float[Array, " dim"]:
        """S z: white noise to a draw."""

    @abstractmethod
    def transpose_matvec(self, v: Float[Stored, " dim"]) -> Float[Array, " dim"]:
        """Sᵀ v: its squared length is vᵀ Σ v, the variance along v."""

    def transpose_matvecs(self, rows: Float[Array, "M dim"]) -> Float[Array, "M rank"]:
        """Sᵀ v of each row v; of what does not vary no zeros."""
        return jax.vmap(self.transpose_matvec)(rows)

    @abstractmethod
    def solve(self, v: Float[Stored, " dim"]) -> Float[Array, " dim"]:
        """S⁻¹ v: a deviation to white noise."""

    @abstractmethod
    def log_det(self) -> Float[Stored, ""]:
        """log |det S|."""

    @abstractmethod
    def diagonal(self) -> Float[Stored, " dim"]:
        """The variances, diag Σ."""

    @abstractmethod
    def dense(self) -> Float[Array, "dim dim"]:
        """Σ as a matrix."""


def is_known(array) -> bool:
    """Whether the values of ``array`` can be looked at (it is not being traced)."""
    return not isinstance(array, Tracer)
