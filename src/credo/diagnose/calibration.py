"""How good a prediction was: proper scores and calibration of predictives on held-out outcomes. NumPy in and out."""

import numpy as np
from jaxtyping import Float, Int

from credo.diagnose.reliability import NUM_BINS, check_classes, equal_bins, gap


def brier(probs: Float[np.ndarray, "M K"], y: Int[np.ndarray, " M"]) -> float:
    """The mean squared distance of class probabilities from the outcome (Brier, 1950), summed over classes.

    Binary outcomes are given as two columns; the score then is twice the one-column form.
    """
    return float(np.mean(np.sum((probs - np.eye(probs.shape[1])[y]) ** 2, axis=1)))


def expected_calibration_error(probs: Float[np.ndarray, "M K"], y: Int[np.ndarray, " M"]) -> float:
    """Mean gap between confidence and accuracy over equal-mass bins of the top class's probability.

    Naeini, Cooper & Hauskrecht (2015); equal-mass bins (Nguyen & O'Connor, 2015) keep the error of each bin alike.
    """
    confidence, correct = probs.max(axis=1), probs.argmax(axis=1) == y
    order, starts = equal_bins(confidence, NUM_BINS)
    return float(gap(confidence[order], correct[order][None], starts)[0])


def crps(draws: Float[np.ndarray, "S M"], y: Float[np.ndarray, " M"]) -> float:
    """The mean continuous ranked probability score E|X − y| − ½ E|X − X'| (Gneiting & Raftery, 2007, eq. 21).

    The second term is the unbiased estimate over distinct pairs, from the sorted draws in O(S log S).
    """
    return float(np.mean(crps_of_rows(draws, y)))


def crps_of_rows(draws: Float[np.ndarray, "S *#M"], y: Float[np.ndarray, "*M"]) -> Float[np.ndarray, "*M"]:
    """The same of each row, or of each entry of several columns."""
    s = draws.shape[0]
    ranks = 2.0 * np.arange(1, s + 1) - s - 1.0
    pairs = 2.0 * np.tensordot(ranks, np.sort(draws, axis=0), axes=1) / (s * (s - 1.0))
    return np.abs(draws - y).mean(axis=0) - 0.5 * pairs


def negative_log_likelihood(probs: Float[np.ndarray, "*M"], y: Int[np.ndarray, " M"]) -> float:
    """The mean of −log p(y) in nats; ``probs`` (M,) of 1, or (M, K). Infinite where what happened was impossible.

    Raises CredoError as ``calibration_error`` does.
    """
    probs, y = check_classes(probs, y)
    of_outcome = np.where(y == 1, probs, 1.0 - probs) if probs.ndim == 1 else probs[np.arange(len(y)), y]
    with np.errstate(divide="ignore"):
        return float(-np.mean(np.log(of_outcome)))
