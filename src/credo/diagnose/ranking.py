"""How well a score tells two kinds of rows apart: the area under the ROC curve, and its error."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Shaped

from credo.diagnose.columns import paired
from credo.status import CredoError


class Measured(NamedTuple):
    """A figure of held-out rows: ``error`` is one standard error, that other rows of the same kind would give."""

    value: float
    error: float


def auroc(scores: Float[np.ndarray, " M"], is_positive: Shaped[np.ndarray, " M"]) -> Measured:
    """The probability that a positive row scores above a negative one, ties counting a half (Hanley & McNeil 1982).

    ``is_positive``: (M,) of 0 and 1, such as which rows are out of distribution. Exact by ranks; the error is DeLong,
    DeLong & Clarke-Pearson's (1988): with V_i the share of negative rows below positive row i and W_j the share of
    positive rows above negative row j, error² = Var(V)/P + Var(W)/N. It is zero where the kinds do not overlap, and
    NaN where there is one row of a kind. Raises CredoError where a kind is missing or a score is NaN.

    >>> import numpy as np, credo
    >>> credo.diagnose.auroc(np.array([0.1, 0.4, 0.4, 0.9]), np.array([0, 0, 1, 1])).value
    0.875
    """
    scores, positive = paired(scores=scores, is_positive=is_positive)
    scores = scores.astype(np.float64)
    if scores.ndim != 1 or positive.shape != scores.shape:
        raise CredoError(
            f"scores has shape {scores.shape} and is_positive {positive.shape}: give one score and one 0 or 1 a row."
        )
    is_other = ~np.isin(positive, (0, 1))
    if is_other.any():
        first = int(np.argmax(is_other))
        raise CredoError(f"is_positive holds {positive[first]} in row {first}: give 1 or 0, or booleans, as y == that.")
    if np.isnan(scores).any():
        raise CredoError(f"Score {int(np.argmax(np.isnan(scores)))} is NaN: rows without a score have no rank.")
    positive = positive.astype(bool)
    a, b = scores[positive], scores[~positive]
    if not len(a) or not len(b):
        raise CredoError(f"There are {len(a)} positive and {len(b)} negative rows: the area needs both kinds.")
    v, w = _share_below(a, b), 1.0 - _share_below(b, a)
    if len(a) < 2 or len(b) < 2:
        return Measured(float(v.mean()), float("nan"))
    return Measured(float(v.mean()), float(np.sqrt(v.var(ddof=1) / len(a) + w.var(ddof=1) / len(b))))


def _share_below(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The share of ``b`` below each of ``a``, equals counted half."""
    ordered = np.sort(b)
    return 0.5 * (np.searchsorted(ordered, a, "left") + np.searchsorted(ordered, a, "right")) / len(b)
