"""Prediction that may abstain: what is lost on the rows that are answered, the surest first."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from credo.diagnose.columns import paired
from credo.status import CredoError


class RiskCoverage(NamedTuple):
    """``risk`` (M,): the mean loss of the surest k rows, at ``coverage`` k/M (M,).

    ``area``: the mean of the risks over coverages. ``best_area``: that of rows ordered by their loss itself;
    ``random_area``: that of a confidence that knows nothing, which is the mean loss.
    """

    coverage: np.ndarray
    risk: np.ndarray
    area: float
    best_area: float
    random_area: float

    def risk_at(self, coverage: float) -> float:
        """The mean loss where the surest share ``coverage`` of the rows is answered."""
        if not 0 < coverage <= 1:
            raise CredoError(f"A coverage lies in (0, 1]; got {coverage}.")
        return float(self.risk[max(0, int(np.ceil(coverage * len(self.risk) - 1e-9)) - 1)])


def risk_coverage(confidence: Float[np.ndarray, " M"], losses: Float[np.ndarray, " M"]) -> RiskCoverage:
    """The risk–coverage curve (El-Yaniv & Wiener 2010) of rows answered in order of their confidence.

    ``losses``: what each row would lose if answered, such as ``predicted != y``. Rows of one confidence are taken in
    random order, and the curve is the expectation over that order. Raises CredoError where a number is not finite.

    >>> import numpy as np, credo
    >>> credo.diagnose.risk_coverage(np.array([0.9, 0.8, 0.6, 0.5]), np.array([0, 0, 0, 1])).risk_at(0.75)
    0.0
    """
    columns = paired(confidence=confidence, losses=losses)
    confidence, losses = (column.astype(np.float64) for column in columns)
    if confidence.ndim != 1 or losses.shape != confidence.shape or not len(losses):
        raise CredoError(
            f"confidence has shape {confidence.shape} and losses {losses.shape}: give one number of each a row."
        )
    if np.isnan(confidence).any() or not np.isfinite(losses).all():
        raise CredoError("A confidence is NaN or a loss is not finite: leave those rows out, and say how many.")
    values, group = np.unique(-confidence, return_inverse=True)
    sizes = np.bincount(group, minlength=len(values))
    # within a group of equals each place holds the group's mean loss, on average over orders
    expected = np.repeat(np.bincount(group, losses, minlength=len(values)) / sizes, sizes)
    number = np.arange(1, len(losses) + 1)
    risk = np.cumsum(expected) / number
    best = np.cumsum(np.sort(losses)) / number
    return RiskCoverage(number / len(losses), risk, float(risk.mean()), float(best.mean()), float(losses.mean()))
