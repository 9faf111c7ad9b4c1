"""Do probabilities come true? Calibration error and the parts of the Brier score, in bins of equal numbers of rows.

A calibrated predictor has a calibration error above zero too: in a bin of n rows, chance alone sets frequency and mean
probability about √(p(1 − p)/n) apart. So the error is shown beside what it would be, had the outcomes been drawn from
the probabilities themselves.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from credo.diagnose.columns import paired
from credo.status import CredoError

ROUNDING = 1e-5  # of probabilities in float32, and of their sums
NUM_BINS = 10
NUM_SIMULATIONS = 400  # of the outcomes: the floor's mean is then known to 5 % of its sd
MAX_NUMBERS = 2**22  # drawn at once


class CalibrationError(NamedTuple):
    """``value``: the expected calibration error. ``floor``, ``floor_sd``: its mean and sd for outcomes drawn from the
    probabilities themselves, so under perfect calibration; ``p_value``: how often it then is as large as ``value``.
    """

    value: float
    floor: float
    floor_sd: float
    p_value: float

    @property
    def is_within_noise(self) -> bool:
        """Whether a calibrated predictor would show as large an error in more than 5 of 100 such tables."""
        return self.p_value > 0.05


class BrierDecomposition(NamedTuple):
    """score = reliability − resolution + uncertainty + within_bins, exactly.

    ``reliability`` is the cost of miscalibration, ``resolution`` what telling rows apart gains, ``uncertainty`` the
    score of the base rates; ``within_bins`` is what rows differ inside a bin.
    """

    score: float
    reliability: float
    resolution: float
    uncertainty: float
    within_bins: float


def calibration_error(
    probs: Float[np.ndarray, "*M"],
    y: Int[np.ndarray, " M"],
    *,
    num_bins: int = NUM_BINS,
    num_simulations: int = NUM_SIMULATIONS,
    key: int = 0,
) -> CalibrationError:
    """The expected calibration error in ``num_bins`` bins of equal mass, beside its floor.

    ``probs``: (M,) probabilities of 1, compared with the share of ones; or (M, K), of which the top class's
    probability is compared with the share of rows where it is right (Naeini, Cooper & Hauskrecht 2015; Nguyen &
    O'Connor 2015 for the bins). The floor is Monte Carlo over ``num_simulations`` tables of outcomes drawn from
    ``probs`` (Bröcker & Smith 2007). Raises CredoError where ``probs`` are no probabilities or ``y`` no labels.

    >>> import numpy as np, credo
    >>> p = np.random.default_rng(0).uniform(size=500)
    >>> y = (np.random.default_rng(1).uniform(size=500) < p).astype(int)
    >>> credo.diagnose.calibration_error(p, y).is_within_noise
    True
    """
    probs, y = check_classes(probs, y)
    if not isinstance(num_simulations, int | np.integer) or num_simulations < 2:
        raise CredoError(f"num_simulations is a whole number from 2; got {num_simulations}.")
    p, happened = (probs, y == 1) if probs.ndim == 1 else (probs.max(axis=1), probs.argmax(axis=1) == y)
    order, starts = equal_bins(p, num_bins)
    p, happened = p[order], happened[order]
    value = float(gap(p, happened[None], starts)[0])
    generator = np.random.default_rng(key)
    most = max(1, MAX_NUMBERS // len(p))
    sizes = [min(most, num_simulations - done) for done in range(0, num_simulations, most)]
    chance = np.concatenate([gap(p, generator.uniform(size=(n, len(p))) < p, starts) for n in sizes])
    p_value = (1.0 + np.sum(chance >= value - 1e-12)) / (1.0 + num_simulations)
    return CalibrationError(value, float(chance.mean()), float(chance.std(ddof=1)), float(p_value))


def brier_decomposition(
    probs: Float[np.ndarray, "*M"], y: Int[np.ndarray, " M"], *, num_bins: int = NUM_BINS
) -> BrierDecomposition:
    """The Brier score in Murphy's (1973) three parts, with those inside bins (Stephenson, Coelho & Jolliffe 2008).

    ``probs``: (M,) probabilities of 1, scored by (p − y)²; or (M, K), summed over classes, each with bins of its own.
    Reliability and resolution are freed of the bias that few rows in a bin give them (Ferro & Fricker 2012, equations
    9 to 11), so that they may fall a little below zero. Raises CredoError as ``calibration_error`` does.
    """
    probs, y = check_classes(probs, y)
    if len(y) < 2:
        raise CredoError("The parts of the Brier score need two rows at least; got one.")
    if probs.ndim == 1:
        return _parts(probs, y == 1, num_bins)
    columns = [_parts(probs[:, k], y == k, num_bins) for k in range(probs.shape[1])]
    return BrierDecomposition(*(float(np.sum(part)) for part in zip(*columns, strict=True)))


def check_classes(probs, y) -> tuple[np.ndarray, np.ndarray]:
    """``probs`` (M,) or (M, K) and labels (M,) as arrays, or a sentence."""
    probs, y = paired(probs=probs, y=y)
    probs = probs.astype(np.float64)
    if probs.ndim not in (1, 2) or y.shape != probs.shape[:1] or not len(y):
        raise CredoError(f"probs has shape {probs.shape} and y {y.shape}: give (M,) or (M, K) and one label a row.")
    if np.isnan(probs).any():
        raise CredoError("probs holds NaN or masked entries: leave those rows out, and say how many.")
    if not np.all((probs >= -ROUNDING) & (probs <= 1 + ROUNDING)):
        raise CredoError("probs holds entries outside [0, 1]: give probabilities, not logits.")
    if probs.ndim == 2 and not np.allclose(probs.sum(axis=1), 1.0, atol=ROUNDING):
        raise CredoError(f"A row of probs sums to {probs.sum(axis=1)[np.argmax(np.abs(probs.sum(axis=1) - 1))]:.4g}.")
    number = 2 if probs.ndim == 1 else probs.shape[1]
    if not np.all(np.isin(y, np.arange(number))):
        raise CredoError(f"Labels are 0 to {number - 1}; one is {y[~np.isin(y, np.arange(number))][0]}.")
    return np.clip(probs, 0.0, 1.0), y.astype(int)


def equal_bins(p: Float[np.ndarray, " M"], num_bins: int, least: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """(the rows in order of ``p``, where each bin starts): bins of equal numbers of rows, but for one.

    Rows of one ``p`` stay together, whatever their order: then bins are fewer and unequal, of ``least`` rows each.
    """
    if not isinstance(num_bins, int | np.integer) or num_bins < 1:
        raise CredoError(f"num_bins is a whole number from 1; got {num_bins}.")
    number, size = min(num_bins, len(p)), len(p)
    sizes = np.full(number, size // number) + (np.arange(number) < size % number)
    order, starts = np.argsort(p, kind="stable"), np.cumsum(sizes) - sizes
    first, last = (np.searchsorted(p[order], p[order][starts], side) for side in ("left", "right"))
    kept = [0]
    for start in np.where(starts - first <= last - starts, first, last):
        if start - kept[-1] >= least and size - start >= least:
            kept.append(int(start))
    return order, np.array(kept)


def gap(p: np.ndarray, happened: Bool[np.ndarray, "S M"], starts: np.ndarray) -> Float[np.ndarray, " S"]:
    """Σ_b |Σ_{i in b} (p_i − happened_i)| / M of each table."""
    return np.abs(np.add.reduceat(p - happened, starts, axis=1)).sum(axis=1) / len(p)


def _parts(p: np.ndarray, happened: np.ndarray, num_bins: int) -> BrierDecomposition:
    """With bin means p_b and o_b: Σ (p − y)² = Σ n_b (p_b − o_b)² + Σ_b Σ_i ((p − p_b) − (y − o_b))², and the last
    term without its Σ (y − o_b)² = n_b o_b (1 − o_b) is what lies within bins."""
    size = len(p)
    order, starts = equal_bins(p, min(num_bins, size // 2), least=2)  # for the correction
    p, happened = p[order], happened[order].astype(float)
    n = np.diff(np.append(starts, size))
    p_b, o_b = np.add.reduceat(p, starts) / n, np.add.reduceat(happened, starts) / n
    rate = happened.mean()
    bias = np.sum(n * o_b * (1.0 - o_b) / (n - 1.0)) / size
    of_rate = rate * (1.0 - rate) / (size - 1.0)
    inside_p, inside_y = p - np.repeat(p_b, n), happened - np.repeat(o_b, n)
    return BrierDecomposition(
        score=float(np.mean((p - happened) ** 2)),
        reliability=float(np.sum(n * (p_b - o_b) ** 2) / size - bias),
        resolution=float(np.sum(n * (o_b - rate) ** 2) / size - bias + of_rate),
        uncertainty=float(rate * (1.0 - rate) + of_rate),
        within_bins=float(np.mean(inside_p**2 - 2.0 * inside_p * inside_y)),
    )
