"""Where outcomes fall in their predictive distributions: PIT values, and the share inside central intervals."""

from typing import Any

import numpy as np

from credo.algorithm import stream
from credo.arguments import as_key
from credo.compiling import sound
from credo.diagnose.ranking import Measured
from credo.precision import double
from credo.predict.predictive import Predictive, outcomes_of
from credo.status import CredoError, is_number

NUM_DRAWS = 4_096  # of the outcome, where numpyro knows no distribution function: PIT values to 0.8 % at most


def pit(predictive: Predictive, y, *, key=0) -> np.ndarray:
    """F(y) of each outcome, in the shape of ``y``: uniform on (0, 1) where the predictive is right (Dawid 1984).

    A count's, or an ordered class's, is drawn uniformly between F(y − 1) and F(y) (Czado, Gneiting & Held 2009). NaN
    where a mask of the likelihood hides the outcome. Raises CredoError for outcomes outside the likelihood's support,
    for classes without an order, and for outcomes by name.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"m": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["m"], 1.0))
    >>> posterior = credo.fit(model.given(y=np.zeros(3)), credo.Exact())
    >>> credo.diagnose.pit(posterior.predict(), np.zeros(1)).round(3)
    array([0.5])
    """
    before, at, counts = _ends(predictive, y, key)
    seed = key if isinstance(key, int) else stream(as_key(key)).tolist()
    values = before + np.random.default_rng(seed).uniform(size=at.shape) * (at - before)
    return np.where(counts, values, np.nan)


def interval_coverage(predictive: Predictive, y, mass: float = 0.9, *, key=0) -> Measured:
    """The share of outcomes inside the central interval of ``mass``, and its error from the number of rows.

    The ends are the quantiles of (1 ∓ mass) / 2, which count as inside; so counts are covered more often than
    ``mass``. The error is the sd of a Beta(k + ½, M − k + ½) variable, which is no zero where all or none of M are
    inside; rows of one table count as independent, and what the likelihood masks does not count. Raises CredoError as
    ``pit`` does.
    """
    if not (is_number(mass) and 0 < mass < 1):
        raise CredoError(f"An interval's mass lies strictly between 0 and 1; got {mass!r}.")
    before, at, counts = _ends(predictive, y, key)
    is_inside = ((at >= 0.5 * (1.0 - mass)) & (before < 0.5 * (1.0 + mass)))[counts]
    a, b = is_inside.sum() + 0.5, np.sum(~is_inside) + 0.5
    return Measured(float(is_inside.mean()), float(np.sqrt(a * b / (a + b + 1.0)) / (a + b)))


def _ends(predictive: Predictive, y, key) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(Pr(Y < y), Pr(Y ≤ y), which are data): the first two are alike for a continuous outcome."""
    outcome = outcomes_of(predictive)
    if isinstance(outcome, dict):
        raise CredoError(f"The predictive has outcomes {', '.join(outcome)}: PIT values are of one.")
    if outcome.num_classes is not None and not outcome.is_ordered:
        raise CredoError("A class has no order and no PIT value: use calibration_error.")
    if outcome.is_circular:
        raise CredoError("An angle has no place on the line and no PIT value: use log_prob(y).")
    if outcome.is_censored:
        raise CredoError(
            f"The outcomes are censored ({outcome.family}), and the time of censoring is no outcome that a "
            "distribution could be held against: use log_prob(y), which counts censored rows as the fit does."
        )
    y, counts = predictive._held_out(y)
    if outcome.is_ordered:
        probs: Any = predictive.probs
        probs = np.broadcast_to(probs, (*np.shape(y), probs.shape[-1]))  # one row of a model without inputs
        up_to = np.concatenate([np.zeros((*np.shape(y), 1)), np.cumsum(probs, axis=-1)], axis=-1)
        place = np.asarray(y, int)[..., None]
        before, at = (np.take_along_axis(up_to, each, axis=-1)[..., 0] for each in (place, place + 1))
        return before, at, counts
    if not outcome.has_cdf:
        draws = np.asarray(predictive.sample(key, NUM_DRAWS))
        return (draws < y).mean(axis=0), (draws <= y).mean(axis=0), counts
    return *ends_by_formula(predictive, y), counts


def ends_by_formula(predictive: Predictive, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(Pr(Y < y), Pr(Y ≤ y)) of the one outcome of a predictive whose distribution function is known."""
    outcome: Any = predictive._outcomes
    y = y.astype(float)  # first: one less than zero is 255 where counts are bytes
    with double():
        return predictive._compute(_distribution, y - 1 if outcome.is_discrete else y, y)


@sound
def _distribution(law, rows, before, y):
    function = law.cdf(rows, None)
    return function(before), function(y)
