"""What one figure of a verdict means, and the values of it that pass."""

import math
from dataclasses import dataclass
from typing import Literal

from credo.status import VerdictStatus

ANY = math.inf  # as a doubtful bound of "at most", −ANY of "at least": never failed by this figure alone


@dataclass(frozen=True)
class Rule:
    """What a figure means, the values that pass or are doubtful, and the sentence for the others.

    ``direction``: which side of the bounds is good; "information" is never judged. ``passes`` is the bound of a pass,
    ``doubtful`` that of a doubt; beyond it the answer failed. ``sentence`` holds ``{value}`` and the next step;
    ``unknown`` is the next step where the figure could not be computed.
    """

    meaning: str
    direction: Literal["at most", "at least", "above", "information"]
    passes: float = math.nan
    doubtful: float = math.nan
    source: str = "this library"
    sentence: str = ""
    unknown: str = "treat the answer as unchecked and compare it with another method"

    def status(self, value: float | int) -> VerdictStatus:
        """``value`` against the bounds. What is not finite on the good side was not computed: doubtful."""
        if self.direction == "information":
            return "pass"
        if not self.is_known(value):
            return "doubtful"
        if self._is_good(value, self.passes):
            return "pass"
        return "doubtful" if self._is_good(value, self.doubtful) else "failed"

    def is_known(self, value: float | int) -> bool:
        """Whether ``value`` says anything: a number, or infinite on the bad side."""
        return not math.isnan(value) and value != (-math.inf if self.direction == "at most" else math.inf)

    def _is_good(self, value: float, bound: float) -> bool:
        if self.direction == "at most":
            return value <= bound
        return value >= bound if self.direction == "at least" else value > bound
