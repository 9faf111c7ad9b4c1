"""The interface of variational families: sets of distributions q that an optimiser can move about in.

A member q is a kind of posterior (a pytree). A family knows how to draw from it by noise z ~ N(0, I), differentiably,
and in which local coordinates to move: a *tangent* ξ at q, with ξ = 0 at q itself. Gradients are taken in ξ at zero,
where the Fisher information of a Gaussian is known and constant, so that the natural gradient is a division and every
fit is the same whatever the units and the correlations of the parameters.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from jaxtyping import Array, Float

from credo.linalg.operator import Stored
from credo.posterior.kinds import Kind

Tangent = Any  # a pytree of arrays; linear: sums and multiples of tangents are tangents


class Draw(NamedTuple):
    """A draw u from q moved by a tangent.

    ``path_log_prob``: log q(u) under q *not* moved, so that it depends on the tangent by way of u alone.
    """

    u: Float[Array, " dim"]
    path_log_prob: Float[Array, ""]


@dataclass(frozen=True)
class Family(ABC):
    """A variational family. A subclass is a frozen dataclass of settings: compiled code is keyed on it.

    ``has_correlations``: whether a start profits from a full covariance.
    """

    has_correlations: ClassVar[bool]

    def num_samples(self, dim: int, size: int) -> int:
        """Draws a step where the caller does not say: 16 keep both cores of a small machine busy."""
        return 16

    def largest_step(self, num_samples: int, dim: int) -> float:
        """The largest step size at which the noise of ``num_samples`` draws dies out."""
        return 1.0

    @abstractmethod
    def start(self, mean: Float[Stored, " dim"], sd: Float[Stored, " dim"]) -> Kind:
        """The member with independent coordinates of these means and standard deviations."""

    @abstractmethod
    def around(self, mean: Float[Stored, " dim"], precision: Float[Stored, "..."]) -> Kind:
        """The member nearest in KL(q ‖ p) to the Gaussian of this mean and precision: (dim, dim), or its diagonal.

        On the host. A direction of negative precision counts as one of its absolute value.
        """

    @abstractmethod
    def center(self, q: Kind) -> Float[Array, " dim"]:
        """A position in the middle of q."""

    @abstractmethod
    def variances(self, q: Kind) -> Float[Array, " dim"]:
        """The variance of each coordinate under q."""

    @abstractmethod
    def rest(self, q: Kind) -> Tangent:
        """The zero tangent at q."""

    @abstractmethod
    def draw(self, q: Kind, tangent: Tangent, z: Float[Array, " dim"]) -> Draw:
        """The draw that noise ``z`` makes from q moved by ``tangent``; differentiable in ``tangent``."""

    @abstractmethod
    def entropy(self, q: Kind, tangent: Tangent) -> Float[Array, ""]:
        """−E[log q] of q moved by ``tangent``, in closed form."""

    @abstractmethod
    def natural(self, gradient: Tangent, step_size: Float[Array, ""]) -> Tangent:
        """ρ F⁻¹ g: a natural gradient step, shortened to where a local model can be trusted."""

    @abstractmethod
    def contract(self, q: Kind) -> Kind:
        """q drawn nearer to its mean: what is done where its draws leave the support."""

    @abstractmethod
    def move(self, q: Kind, tangent: Tangent) -> Kind:
        """q moved by ``tangent``."""
