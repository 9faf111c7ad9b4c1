"""The interface of optimisers: from noisy natural gradients to steps, in a family's local coordinates."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from jaxtyping import Array, Float

Tangent = Any  # a pytree of arrays; linear: sums and multiples of tangents are tangents


@dataclass(frozen=True)
class Optimiser(ABC):
    """A subclass is a frozen dataclass of settings: compiled code is keyed on it. One that asks no more of tangents
    than to be pytrees serves any family.

    >>> from dataclasses import dataclass
    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> @dataclass(frozen=True)
    ... class Plain(credo.vi.Optimiser):
    ...     memory = 1.0
    ...     start = lambda self, rest: ()
    ...     update = lambda self, direction, state, step_size: (direction, state)
    >>> target = credo.Model({"m": dist.Normal(0, 1)}, lambda p, x: dist.Normal(p["m"], 1)).given(y=np.array([2.0]))
    >>> round(float(credo.fit(target, credo.ADVI(optimiser=Plain())).mean()["m"]), 2)
    1.0
    """

    @property
    def memory(self) -> float:
        """About how many past gradients a step depends on."""
        return 10.0

    @abstractmethod
    def start(self, rest: Tangent) -> Any:
        """The state before the first step of a stretch; ``rest``: a zero tangent."""

    @abstractmethod
    def update(self, direction: Tangent, state: Any, step_size: Float[Array, ""]) -> tuple[Tangent, Any]:
        """(step, new state) of the direction ρ F⁻¹g; ``step_size``: ρ."""
