"""Scores of predictions on held-out outcomes, with Monte Carlo errors far below those of the rows, and counted.

The draws of the parameters behind a mean log score are correlated between rows, so its error has two parts: the spread
of the rows' scores, and what other draws would have changed. With p(y_i) = Σ_s w_s p(y_i | θ_s), N rows and groups g
of draws,

    r_ig = Σ_{s in g} w_s p(y_i | θ_s) / p(y_i),   error² ≈ G/(G−1) Σ_g (mean_i r_ig − Σ_{s in g} w_s)²,

the delta method on mean_i log p(y_i) with batch means (Flegal & Jones 2010): groups are runs of neighbours, so that a
chain's autocorrelation counts. Stratified draws err less than that says.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credo.arguments import as_key
from credo.diagnose import calibration
from credo.diagnose.intervals import ends_by_formula
from credo.posterior.posterior import Posterior
from credo.precision import double
from credo.predict import MonteCarlo, Predictive
from credo.predict.monte_carlo import MixtureLaw
from credo.predict.predictive import UndefinedPredictionError
from credo.predict.stream import MEMORY

NUM_DRAWS = 2_048  # of the parameters, for few rows; the error is then 2 % of what one draw's would be
MIN_DRAWS = 256  # of the parameters, for many rows: those of the default rule
MAX_DENSITIES = 2**23  # rows × draws: seconds, in chunks of little memory
MAX_WORK = 2**31  # rows × draws × parameters
NUM_GROUPS = 32  # the error is then known to 13 %
NUM_OUTCOMES, MIN_OUTCOMES, MAX_OUTCOMES = 8_192, 512, 2**22  # drawn a row for the CRPS; the last in all rows


def predict_held_out(posterior: Posterior, x, *, key=0) -> Predictive:
    """The prediction that is scored, by 2,048 draws of the parameters, or fewer where rows or parameters are many."""
    size = max(1, next((np.shape(leaf)[0] for leaf in jax.tree.leaves(x) if np.ndim(leaf)), 1))
    most = min(MAX_DENSITIES // size, MAX_WORK // (size * posterior.target.dim))
    predictive = posterior.predict(x, MonteCarlo(int(np.clip(most, MIN_DRAWS, NUM_DRAWS))), key=key)
    if any(outcome.is_joint for _, outcome in predictive._named()):  # each draw factors a matrix of all rows
        return posterior.predict(x, MonteCarlo(MIN_DRAWS), key=key)
    return predictive


def scores(posterior: Posterior, predictive: Predictive, y, key) -> dict[str, float]:
    """The scores of ``compare``; none for a failed posterior that predicts no numbers."""
    try:
        return _scores(posterior, predictive, y, key)
    except UndefinedPredictionError:
        return {}


def _scores(posterior: Posterior, predictive: Predictive, y, key) -> dict[str, float]:
    value, error = log_score(predictive, y)
    found = {"log_score": value, "log_score_error": error}
    head = posterior.target.head
    if head is not None and head.name in ("bernoulli", "categorical"):
        mean = np.asarray(predictive.mean)
        probs = np.stack([1.0 - mean, mean], axis=1) if head.name == "bernoulli" else mean
        labels = y.astype(int)
        return found | {
            "brier": calibration.brier(probs, labels),
            "ece": calibration.expected_calibration_error(probs, labels),
        }
    if any(outcome.is_circular or outcome.is_censored for _, outcome in predictive._named()):
        return found  # on the line 3.1 and −3.1 are far apart; a time of censoring is no outcome
    return found | {"crps": crps(predictive, y, key), "coverage_90": coverage(predictive, y, 0.9)}


def log_score(predictive: Predictive, y) -> tuple[float, float]:
    """The mean log predictive density of the rows and its standard error, of rows and draws together."""
    densities = np.asarray(predictive.log_prob(y))  # which checks y
    size = len(densities)
    with np.errstate(invalid="ignore"):  # an impossible outcome scores −∞, and has no error
        of_rows = densities.std(ddof=1) / np.sqrt(size) if size > 1 else np.nan
    return float(densities.mean()), float(np.hypot(of_rows, monte_carlo_error(predictive, y)))


def monte_carlo_error(predictive: Predictive, y) -> float:
    """The standard error of the mean log score that comes of the draws of the parameters; 0 without any."""
    law: Any = predictive._stream.law
    if not isinstance(law, MixtureLaw) or law.width < 2:
        return 0.0
    number = min(NUM_GROUPS, law.width)
    group = np.arange(law.width) * number // law.width
    members = (group == np.arange(number)[:, None]).astype(np.float64)  # (groups, draws)
    with double():
        shares = predictive._stream(lambda law, rows, y: _shares(law, rows, y, members), y)
    expected = members @ np.exp(np.asarray(law.log_weights))
    return float(np.sqrt(number / (number - 1.0) * np.sum((shares.mean(axis=0) - expected) ** 2)))


@jax.jit
def _shares(law: MixtureLaw, rows, y, members):
    """r (rows, groups); NaN where the outcome is impossible under every draw."""
    terms = law.log_probs(rows, y) + law.log_weights[:, None]
    return (members @ jnp.exp(terms - jax.nn.logsumexp(terms, axis=0))).T


def crps(predictive: Predictive, y, key) -> float:
    """The mean continuous ranked probability score, from draws that are alike for all posteriors of one ``key``."""
    entries = int(np.prod(np.shape(y)[1:]))
    number = int(np.clip(MAX_OUTCOMES // max(np.size(y), 1), MIN_OUTCOMES, NUM_OUTCOMES))
    chunk = max(1, MEMORY // (4 * 8 * number * entries))

    def score(draws, y):
        flat = np.asarray(draws).reshape(number, -1)
        return calibration.crps_of_rows(flat, np.ravel(y)).reshape(np.shape(y))

    with double():
        return float(np.mean(predictive._sample(as_key(key), number, chunk, score, y)))


def coverage(predictive: Predictive, y, mass: float) -> float:
    """The share of outcomes in their central intervals, which one distribution function tells without the ends.

    The ends are the smallest values with F(low) ≥ (1 − mass) / 2 and F(high) ≥ (1 + mass) / 2; so low ≤ y ≤ high just
    where F(y) ≥ (1 − mass) / 2 and F(y − 1) < (1 + mass) / 2 for a count, F(y) ≤ (1 + mass) / 2 for a number.
    """
    outcome: Any = predictive._outcomes
    if isinstance(outcome, dict) or not outcome.has_cdf:
        low, high = predictive.interval(mass)
        return calibration.coverage(np.asarray(low), np.asarray(high), y)
    below, at = ends_by_formula(predictive, y)
    return float(np.mean((at >= 0.5 * (1.0 - mass)) & (below < 0.5 * (1.0 + mass))))
