"""The interface of optimisers: from noisy natural gradients to steps, in a family's local coordinates."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

Tangent = Any  # a pytree of arrays; linear: sums and multiples of tangents are tangents


@dataclass(frozen=True)
class Optimiser(ABC):
    """A subclass is a frozen dataclass of settings: compiled code is keyed on it."""

    @property
    def memory(self) -> float:
        """About how many past gradients a step depends on."""
        return 10.0

    @abstractmethod
    def start(self, rest: Tangent) -> Any:
        """The state before the first step; ``rest``: a zero tangent."""

    @abstractmethod
    def update(self, direction: Tangent, state: Any) -> tuple[Tangent, Any]:
        """(step, new state) of the direction ρ F⁻¹g."""
