"""A warning where a handful of draws makes a predicted mean, which then may not exist: no number would show it.

A rate is the exp of a line in most models of counts. Where no data bound that line, as of a group never seen, the mean
over the parameters is ruled by the largest exp, and infinite under many priors of a scale. Of m_s, the means of an
outcome above zero at S draws, (Σ m_s)² / Σ m_s² says how many of them make the mean: S mean² / (mean² + epistemic).
"""

import warnings
from typing import Any

import numpy as np

from credo.predict.monte_carlo import MixtureLaw
from credo.predict.outcome import over

LEAST = 50.0  # draws that make a mean, known to 14 % then: of a lognormal rate with log sd s it is S / exp(s²)
SHARE = 10  # where there are few draws, one of so many
ENOUGH = 200  # draws in all, of which so few are a sign


def warn_of_few_draws(law: MixtureLaw, outcomes: Any, moments: Any) -> None:
    """``moments``: (mean, aleatoric, epistemic) by row, or a dict of such by outcome."""
    weights = np.exp(np.asarray(law.log_weights, float))
    number = 1.0 / np.sum(weights**2)
    if not number >= ENOUGH:
        return
    least = min(LEAST, number / SHARE)

    def few(outcome, triple) -> np.ndarray:
        mean, _, epistemic = triple
        if outcome.lower != 0 or outcome.num_classes is not None:
            return np.zeros(1, bool)
        with np.errstate(all="ignore"):
            makers = number / (1.0 + epistemic / np.square(mean))
        return (makers < least).reshape(len(makers), -1).any(axis=1)

    found = over(few, outcomes, moments)
    for name, rows in found.items() if isinstance(found, dict) else [(None, found)]:
        if rows.any():
            warnings.warn(
                f"At {rows.sum():,} of {len(rows):,} rows (the first is row {int(np.argmax(rows))}) fewer than "
                f"{least:.0f} of {number:,.0f} draws make the mean{f' of {name!r}' if name else ''}: it may be "
                "infinite, and with it the sd, as where a rate is the exp of what no data bound, say of a group never "
                "seen. Read quantiles, such as quantile(0.5), or give that scale a prior that is narrower.",
                stacklevel=6,
            )
