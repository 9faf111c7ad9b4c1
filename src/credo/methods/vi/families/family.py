"""The interface of variational families: sets of distributions q that an optimiser can move about in.

A member q is a kind of posterior (a pytree). A family knows how to draw from it by noise z ~ N(0, I), differentiably,
and in which local coordinates to move: a *tangent* ξ at q, with ξ = 0 at q itself. Gradients are taken in ξ at zero,
where the Fisher information of a Gaussian is known and constant, so that the natural gradient is a division and every
fit is the same whatever the units and the correlations of the parameters.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from credo.linalg.operator import Stored
from credo.methods.vi.optimisers.momentum import Momentum
from credo.methods.vi.optimisers.optimiser import Optimiser
from credo.methods.vi.optimisers.optimiser import Tangent as Tangent  # re-exported: families and optimisers share it
from credo.model.structure import Structure
from credo.normals import normal
from credo.posterior.kinds import Kind

Noise = Any  # a pytree of arrays with a leading axis of draws


class Draw(NamedTuple):
    """A draw u from q moved by a tangent.

    ``path_log_prob``: log q(u) under q *not* moved, so that it depends on the tangent by way of u alone.
    ``log_share``: log of K times the share of this draw in expectations under q moved, E_q[f] ≈ mean_k exp(log_share_k)
    f_k. Zero but where draws are stratified (mixtures); differentiable in the tangent.
    """

    u: Float[Array, " dim"]
    path_log_prob: Float[Array, ""]
    log_share: Float[Array, ""] | float = 0.0


@dataclass(frozen=True)
class Family(ABC):
    """A variational family. A subclass is a frozen dataclass of settings: compiled code is keyed on it.

    ``has_correlations``: whether a start profits from a full covariance.
    """

    has_correlations: ClassVar[bool]

    @property
    def has_density(self) -> bool:
        """Whether members have a density in all coordinates, so that the objective is a bound; points have none."""
        return True

    @property
    def num_strata(self) -> int:
        """Draws are taken in turn from so many strata, with ``Draw.log_share``; 1 where they are independent."""
        return 1

    def bound(self, structure: Structure) -> "Family":
        """This family on the parameters of ``structure``: what every fit asks for before anything else.

        A family that speaks of parameters by name resolves them here. CredoError for names that the model lacks, and
        for supports that the family cannot represent.
        """
        return self

    def optimiser(self) -> Optimiser:
        """The optimiser that suits this family."""
        return Momentum()

    def noise(self, key, num_samples: int, dim: int) -> Noise:
        """What ``num_samples`` draws are made from: a pytree with that leading axis.

        The first half of the draws are independent of each other (or one of each stratum in turn); the others may be
        their mirror images.
        """
        return antithetic_normal(key, num_samples, dim)

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

    def location(self, q: Kind) -> tuple[Float[Array, " dim"], Float[Array, " dim"]]:
        """``center`` and ``variances``."""
        return self.center(q), self.variances(q)

    @abstractmethod
    def rest(self, q: Kind) -> Tangent:
        """The zero tangent at q."""

    @abstractmethod
    def draw(self, q: Kind, tangent: Tangent, z: Any) -> Draw:
        """The draw that one row of noise makes from q moved by ``tangent``; differentiable in ``tangent``."""

    def settled(self, q: Kind, z: Any) -> Draw:
        """``draw`` at rest, of which no derivative is wanted."""
        return self.draw(q, self.rest(q), z)

    @abstractmethod
    def entropy(self, q: Kind, tangent: Tangent) -> Float[Array, ""] | None:
        """−E[log q] of q moved by ``tangent``, in closed form; None where there is none, and it is sampled."""

    def log_probs(self, q: Kind, u: Float[Array, " dim"]) -> Float[Array, " dim"] | None:
        """log q_i(u_i) of each coordinate, where q makes them independent; None where it does not."""
        return None

    @abstractmethod
    def natural(self, gradient: Tangent, step_size: Float[Array, ""]) -> Tangent:
        """ρ F⁻¹ g: a natural gradient step, shortened to where a local model can be trusted."""

    def careful(self, step: Tangent, share: float, longest) -> Tangent:
        """A step in which what widens or turns q is ``share`` of what it was, no entry longer than ``longest``."""
        return step

    @abstractmethod
    def contract(self, q: Kind) -> Kind:
        """q drawn nearer to its mean: what is done where its draws leave the support."""

    @abstractmethod
    def move(self, q: Kind, tangent: Tangent) -> Kind:
        """q moved by ``tangent``."""


def antithetic_normal(key, num_samples: int, dim: int) -> Float[Array, "K dim"]:
    """Standard normal noise in pairs z, −z: what is odd in z cancels, such as all noise of the mean on Gaussians."""
    z = normal(key, (-(-num_samples // 2), dim))
    if num_samples == 1:
        return z
    return jnp.concatenate([z, -z])[:num_samples]
