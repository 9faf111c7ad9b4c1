"""The interface of gradient estimators.

An estimator turns draws of q moved by a tangent ξ into K log weights log p(u_k, D) − log q(u_k) whose *derivative* in
ξ at zero has the right mean. Objectives are functions of log weights, so that any objective meets any estimator.
An estimator writes the log weight of one draw; axes are added elsewhere.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from credo.methods.vi.families.family import Family, Tangent
from credo.model.target import Target
from credo.posterior.kinds import Kind


@dataclass(frozen=True)
class Estimator(ABC):
    """A gradient estimator. A subclass is a frozen dataclass of settings: compiled code is keyed on it."""

    def prepare(self, target: Target) -> Any:
        """What the estimator must know of the target beforehand: a pytree of arrays, made once a fit."""
        return ()

    @abstractmethod
    def log_weight(
        self,
        family: Family,
        q: Kind,
        tangent: Tangent,
        log_density: Callable[[Float[Array, " dim"]], Float[Array, ""]],
        known: Any,
    ) -> Callable[[Float[Array, " dim"]], Float[Array, ""]]:
        """z -> the log weight of its draw, differentiable in ``tangent`` at zero.

        ``log_density``: the target's, on full data or on a minibatch. ``known``: what ``prepare`` gave.
        """


def antithetic_normal(key, num_samples: int, dim: int) -> Float[Array, "K dim"]:
    """Standard normal noise in pairs z, −z: what is odd in z cancels, such as all noise of the mean on Gaussians."""
    z = jax.random.normal(key, (-(-num_samples // 2), dim))
    return jnp.concatenate([z, -z])[:num_samples]


def in_batches(function: Callable, z: Float[Array, "K dim"], draws_at_once: int):
    """``function`` of each row, as many at once as memory holds."""
    if draws_at_once >= z.shape[0]:
        return jax.vmap(function)(z)
    return jax.lax.map(function, z, batch_size=draws_at_once)
