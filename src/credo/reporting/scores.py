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
from credo.compiling import sound
from credo.diagnose import calibration
from credo.diagnose.intervals import ends_by_formula
from credo.model.data import check_order
from credo.model.observed import rows_of
from credo.posterior.posterior import Posterior
from credo.precision import double
from credo.predict import MonteCarlo, Predictive
from credo.predict.monte_carlo import NUM_GROUPS, MixtureLaw
from credo.predict.predictive import own_rule
from credo.predict.stream import MEMORY
from credo.predict.undefined import UndefinedPredictionError
from credo.status import CredoError

NUM_DRAWS = 2_048  # of the parameters, for few rows; the error is then 2 % of what one draw's would be
MIN_DRAWS = 256  # of the parameters, for many rows: those of the default rule
MAX_DENSITIES = 2**23  # rows × draws: seconds, in chunks of little memory
MAX_WORK = 2**31  # rows × draws × parameters
NUM_OUTCOMES, MIN_OUTCOMES, MAX_OUTCOMES = 8_192, 512, 2**22  # drawn a row for the CRPS; the last in all rows


def pair(held_out) -> tuple[Any, Any]:
    """(x, y) of ``held_out``, (None, None) of None; CredoError for anything else."""
    if held_out is None:
        return None, None
    if not isinstance(held_out, tuple | list) or len(held_out) != 2:
        number = f" of {len(held_out)}" if isinstance(held_out, tuple | list) else ""
        raise CredoError(
            "held_out is a pair (x, y) of inputs and outcomes, (None, y) of a model without inputs; got "
            f"{type(held_out).__name__}{number}."
        )
    x, y = held_out
    if y is None:
        raise CredoError("held_out has no outcomes: give (x, y), with a y for each row of x.")
    check_order(x=x, y=y)
    return x, y


def predict_held_out(posterior: Posterior, x, y=None, *, key=0) -> Predictive:
    """The prediction that is scored: by the rule of ``posterior.predict(x)``, whose numbers are to be judged.

    Where that is draws of the parameters there are 2,048, or fewer where rows or parameters are many.
    """
    predictive = posterior.predict(x, key=key)
    if not isinstance(own_rule(posterior), MonteCarlo):
        return predictive
    if any(outcome.is_joint for _, outcome in predictive._named()):  # each draw factors a matrix of all rows
        return posterior.predict(x, MonteCarlo(MIN_DRAWS), key=key)
    leaves = jax.tree.leaves((x, y), is_leaf=lambda each: isinstance(each, list))
    size = max(1, next((np.shape(leaf)[0] for leaf in leaves if np.ndim(leaf)), 1))
    most = min(MAX_DENSITIES // size, MAX_WORK // (size * posterior.target.dim))
    return posterior.predict(x, MonteCarlo(int(np.clip(most, MIN_DRAWS, NUM_DRAWS))), key=key)


def scores(predictive: Predictive, y, key) -> dict[str, float]:
    """The scores of ``compare``; none for a failed posterior that predicts no numbers."""
    try:
        return _scores(predictive, y, key)
    except UndefinedPredictionError:
        return {}


def _scores(predictive: Predictive, y, key) -> dict[str, float]:
    y, counts = predictive._held_out(y)
    value, error = log_score(predictive, y, counts)
    found = {"log_score": value, "log_score_error": error}
    outcome: Any = predictive._outcomes
    if isinstance(outcome, dict) or outcome.is_circular or outcome.is_censored:
        return found  # units differ; on the line 3.1 and −3.1 are far apart; a time of censoring is no outcome
    if outcome.is_of_classes and not outcome.is_ordered:
        probs, labels = class_probabilities(predictive, y.shape)[counts], y[counts].astype(int)
        return found | {
            "brier": calibration.brier(probs, labels),
            "ece": calibration.expected_calibration_error(probs, labels),
        }
    return found | {
        "crps": crps(predictive, y, key, where=counts),
        "coverage_90": coverage(predictive, y, 0.9, where=counts),
    }


def class_probabilities(predictive: Predictive, shape: tuple[int, ...]) -> np.ndarray:
    """Of each class at each entry of outcomes of ``shape``, (*shape, K); of 0 and 1 for a binary outcome."""
    outcome, probs = predictive._named()[0][1], np.asarray(predictive.probs)
    probs = np.stack([1.0 - probs, probs], axis=-1) if outcome.num_classes is None else probs
    return np.broadcast_to(probs, (*shape, probs.shape[-1]))


def log_score(predictive: Predictive, y, counts) -> tuple[float, float]:
    """The mean log predictive density of the rows and its standard error, of rows and draws together.

    ``counts``: which entries of ``y`` are data.
    """
    densities = predictive.log_prob(y)
    is_scored = rows_of(counts, len(densities))
    of_draws = monte_carlo_error(predictive, y, where=is_scored)
    densities = densities[is_scored]
    size = len(densities)
    with np.errstate(invalid="ignore"):  # an impossible outcome scores −∞, and has no error
        of_rows = densities.std(ddof=1) / np.sqrt(size) if size > 1 else np.nan
    return float(densities.mean()), float(np.hypot(of_rows, of_draws))


def monte_carlo_error(predictive: Predictive, y, where: Any = True) -> float:
    """The standard error of the mean log score that comes of the draws of the parameters; 0 without any.

    ``where``: (M,), the rows that are scored.
    """
    law: Any = predictive._stream.law
    if not isinstance(law, MixtureLaw) or law.width < 2:
        return 0.0
    number = min(NUM_GROUPS, law.width)
    group = np.arange(law.width) * number // law.width
    members = (group == np.arange(number)[:, None]).astype(np.float64)  # (groups, draws)
    with double():
        shares = predictive._stream(lambda law, rows, y: _shares(law, rows, y, members), y)
    expected = members @ np.exp(np.asarray(law.log_weights))
    found = shares.mean(axis=0, where=np.reshape(where, (-1, 1)))
    return float(np.sqrt(number / (number - 1.0) * np.sum((found - expected) ** 2)))


@sound
def _shares(law: MixtureLaw, rows, y, members):
    """r (rows, groups); NaN where the outcome is impossible under every draw."""
    terms = law.log_probs(rows, y) + law.log_weights[:, None]
    return (members @ jnp.exp(terms - jax.nn.logsumexp(terms, axis=0))).T


def crps(predictive: Predictive, y, key, where: Any = True) -> float:
    """The mean continuous ranked probability score, from draws that are alike for all posteriors of one ``key``.

    ``where``: the entries of ``y`` that are scored.
    """
    entries = int(np.prod(np.shape(y)[1:]))
    number = int(np.clip(MAX_OUTCOMES // max(np.size(y), 1), MIN_OUTCOMES, NUM_OUTCOMES))
    chunk = max(1, MEMORY // (4 * 8 * number * entries))

    def score(draws, y):
        return calibration.crps_of_rows(np.asarray(draws), y)

    with double():
        return float(np.mean(predictive._sample(as_key(key), number, chunk, score, y), where=where))


def coverage(predictive: Predictive, y, mass: float, where: Any = True) -> float:
    """The share of outcomes in their central intervals, which one distribution function tells without the ends.

    The ends are the smallest values with F(low) ≥ (1 − mass) / 2 and F(high) ≥ (1 + mass) / 2; so low ≤ y ≤ high just
    where F(y) ≥ (1 − mass) / 2 and F(y − 1) < (1 + mass) / 2 for a count, F(y) ≤ (1 + mass) / 2 for a number.
    """
    outcome: Any = predictive._outcomes
    if not outcome.has_cdf:
        low, high = predictive.interval(mass)
        return float(np.mean((low <= y) & (y <= high), where=where))
    below, at = ends_by_formula(predictive, y)
    return float(np.mean((at >= 0.5 * (1.0 - mass)) & (below < 0.5 * (1.0 + mass)), where=where))
