"""Schedules of step sizes: the factor of the step size at each step, and when to inject noise and to keep draws."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from credo.status import CredoError


@dataclass(frozen=True)
class Schedule(ABC):
    """Factors of the step size at step ``t`` of sampling, out of ``total``; warm-up runs at step 0."""

    @abstractmethod
    def factor(self, t, total) -> Float[Array, ""]:
        """In (0, 1]."""

    def is_hot(self, t, total) -> Bool[Array, ""]:
        """Whether noise is injected: without it a step is one of gradient ascent."""
        return jnp.ones((), bool)

    def log_weights(self, t: np.ndarray, total: int) -> np.ndarray | None:
        """Log weights of draws made at steps ``t``; −inf for those not kept, None where all count alike."""
        return None


@dataclass(frozen=True)
class Constant(Schedule):
    """The step size as it is: its bias stays, and is measured (``temperature_error`` of the verdict)."""

    def factor(self, t, total):
        return jnp.ones(())


@dataclass(frozen=True)
class Decaying(Schedule):
    """(1 + t/b)^−γ (Welling & Teh 2011): no bias in the limit. Draws are weighed by their step size.

    ``power``: γ in (0.5, 1]. ``offset``: b, as a share of the steps of sampling.
    """

    power: float = 0.55
    offset: float = 0.05

    def __post_init__(self):
        if not (0.5 < self.power <= 1 and self.offset > 0):
            raise CredoError(f"A decaying step size needs 0.5 < power <= 1 and offset > 0; got {self}.")

    def factor(self, t, total):
        return (1 + t / (self.offset * total)) ** -self.power

    def log_weights(self, t, total):
        return -self.power * np.log1p(np.asarray(t) / (self.offset * total))


@dataclass(frozen=True)
class Cyclical(Schedule):
    """½ (cos π s + 1) at place s in [0, 1) of each of ``cycles`` (Zhang, Li, Zhang, Chen & Wilson 2020, eq. 4).

    The first ``exploration`` of a cycle goes without noise, to another mode perhaps, and its draws are not kept.
    """

    cycles: int = field(default=4, metadata={"at_least": 1})
    exploration: float = 0.8

    def __post_init__(self):
        if not 0 <= self.exploration < 1:
            raise CredoError(f"exploration is a share in [0, 1); got {self.exploration}.")

    def factor(self, t, total):
        return 0.5 * (jnp.cos(jnp.pi * self._place(t, total)) + 1)

    def is_hot(self, t, total):
        return self._place(t, total) >= self.exploration

    def log_weights(self, t, total):
        return np.where(self._place(np.asarray(t), total) >= self.exploration, 0.0, -np.inf)

    def _place(self, t, total):
        length = -(-total // self.cycles)
        return (t % length) / length
