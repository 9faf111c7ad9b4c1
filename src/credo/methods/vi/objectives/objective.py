"""The interface of variational objectives: functions of the log weights log p(u_k, D) − log q(u_k) of K draws."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from jaxtyping import Array, Float


@dataclass(frozen=True)
class Objective(ABC):
    """What is maximised. A subclass is a frozen dataclass of settings: compiled code is keyed on it."""

    @abstractmethod
    def __call__(self, log_weights: Float[Array, " K"]) -> Float[Array, ""]:
        """The estimate of the objective that K log weights give."""
