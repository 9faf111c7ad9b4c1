"""The interface of variational objectives, most of them functions of log weights ℓ_k = log p(u_k, D) − log q(u_k).

Draws fall into groups of M, independent of each other within a group; the objective is the mean over groups of a
function L of the log weights in one. Its gradient in the parameters ξ of q has the form

    E Σ_k a_k ∂ℓ_k^path + b_k ∂ log q_ξ(u_k),   ∂ℓ^path = ∇_u(log p − log q) · ∂u/∂ξ,  ∂ log q_ξ at u held fixed

with a_k = ∂L/∂ℓ_k =: L_k and b_k = −L_k where it is the derivative of L. How the two terms are estimated is the
business of gradients/. Path derivatives can stand for scores (Tucker, Lawson, Gu & Maddison 2019, eq. 5):

    E[b_k ∂ log q_ξ(u_k)] = E[(∂b_k/∂ℓ_k) ∂ℓ_k^path],   so that   a_k + ∂b_k/∂ℓ_k = L_k − L_kk   are all that is needed.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from credo.status import CredoError


@dataclass(frozen=True)
class Objective:
    """What is maximised. A subclass is a frozen dataclass of settings: compiled code is keyed on it.

    ``is_linear``: an average of log weights, so that closed forms and minibatches serve it without bias.
    """

    is_linear: ClassVar[bool] = False

    @property
    def group_size(self) -> int:
        """Draws in a group."""
        return 1

    def num_samples(self, asked: int) -> int:
        """Draws a step where ``asked`` would do: whole groups, an even number of them (noise comes in pairs)."""
        size = 2 * self.group_size
        return asked if self.group_size == 1 else size * -(-asked // size)


@dataclass(frozen=True)
class WeightObjective(Objective, ABC):
    """A function of log weights.

    ``is_derivative``: gradients are those of ``of_group``; else ``score_weights`` and ``path_weights`` alone tell them.
    ``shift``: what 1 added to every log weight, as another constant in log p does, adds to L: Σ_k L_k.
    """

    is_derivative: ClassVar[bool] = True
    shift: ClassVar[float] = 1.0

    def __call__(self, log_weights: Float[Array, " K"], log_shares: Float[Array, " K"]) -> Float[Array, ""]:
        """The estimate of the objective that K draws give; ``log_shares``: those of families/family.py, else zero."""
        return jnp.mean(self.terms(log_weights, log_shares))

    def terms(self, log_weights: Float[Array, " K"], log_shares: Float[Array, " K"]) -> Float[Array, " G"]:
        """One estimate a group."""
        return jax.vmap(self.of_group)(self.grouped(log_weights), self.grouped(log_shares))

    def grouped(self, values: Float[Array, " K"]) -> Float[Array, "G M"]:
        """One row a group."""
        return jnp.reshape(values, (-1, self.group_size))

    @abstractmethod
    def of_group(self, log_weights: Float[Array, " M"], log_shares: Float[Array, " M"]) -> Float[Array, ""]:
        """L of the draws in one group."""

    @abstractmethod
    def path_weights(self, log_weights: Float[Array, " M"]) -> Float[Array, " M"]:
        """a_k + ∂b_k/∂ℓ_k: what multiplies ∂ℓ_k^path where no scores are to be sampled."""

    @abstractmethod
    def score_weights(self, log_weights: Float[Array, " M"], log_shares: Float[Array, " M"]) -> Float[Array, " M"]:
        """b_k, less what multiplies scores of mean zero: b_k − mean b."""


def check_inner(name: str, num_inner: int, least: int) -> None:
    """CredoError for groups that are too small."""
    if num_inner < least:
        raise CredoError(f"{name}(num_inner={num_inner}): it needs groups of {least} draws or more.")
