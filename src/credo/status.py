"""What an answer is worth: estimates with their errors, verdicts with their reasons, errors that are sentences."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

EstimateKind = Literal["exact", "laplace", "lower bound", "upper bound", "monte carlo"]
VerdictStatus = Literal["pass", "doubtful", "failed"]


class CredoError(ValueError):
    """A request that cannot be answered. The message gives the cause, the value seen and the remedy."""


def is_number(value: object) -> bool:
    """Whether ``value`` is one finite real number; what a string or True holds is none."""
    array = np.asarray(value)
    return array.ndim == 0 and array.dtype.kind in "iuf" and bool(np.isfinite(array))


@dataclass(frozen=True)
class Estimate:
    """A number that is not known exactly.

    ``error`` is one standard error in the units of ``value``: 0.0 where ``value`` is exact,
    NaN where the size of the error is unknown (a Laplace evidence, the slack of a bound).
    """

    value: float
    error: float
    kind: EstimateKind

    def __str__(self) -> str:
        spread = f" ± {self.error:.2g}" if self.error > 0 else ""
        return f"{self.value:.4f}{spread} ({self.kind})"

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class Verdict:
    """Whether a posterior can be trusted, the figures behind the answer, and what to try next."""

    status: VerdictStatus
    figures: Mapping[str, float] = field(default_factory=dict)
    sentences: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join((self.status, *self.sentences))
