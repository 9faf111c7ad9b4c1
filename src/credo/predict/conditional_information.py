"""What an outcome would tell of the parameters beside those of other rows: I(y_m; θ | y_C, x, D).

By the chain rule such gains, each row given those before it, add up to what a batch of outcomes tells together (Lindley
1956; BatchBALD, Kirsch, van Amersfoort & Gal 2019):

    I(y_m; θ | y_C) = E_{y_C} I_ρ(y_m; θ),    ρ(θ) = p(θ | y_C, x, D)

with I_ρ that of a row alone (information.py) under ρ, which the outcomes y_C would leave.
*By draws* of the parameters ρ_s = w_s Π_{c∈C} p_s(y_c) / p(y_C). NUM_OUTCOMES of y_C are drawn, each with the draw s it
came from, which then gives y_m too.
Linearised outputs have a Gaussian ρ (conditional_outputs.py).
"""

import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import log_softmax

from credo.algorithm import stream, streams
from credo.compiling import sound
from credo.predict.conditional_outputs import of_outputs
from credo.predict.information import NUM_OUTCOMES, are_seen, by_draws, check_apart, entropy, of_keys
from credo.predict.linearised import ProjectedLaw
from credo.predict.mixed import MixedLaw
from credo.predict.monte_carlo import MixtureLaw
from credo.predict.outcome import Outcome, moments
from credo.predict.stream import MEMORY, can_cut
from credo.status import CredoError

LEAST = 10.0  # times e^I draws that outcomes leave: of small information then a tenth is missed


def conditional_information(predictive, outcome: Outcome, chosen: np.ndarray, key) -> np.ndarray:
    """I (M,) in nats, given the outcomes of the rows ``chosen``, one at least."""
    check_apart(outcome, "")
    law: Any = predictive._stream.law
    seen = are_seen(predictive, None, outcome)
    chosen = chosen[seen[chosen]]  # of the others no outcome will come
    if not chosen.size:
        return predictive.mutual_information
    if isinstance(law, MixtureLaw):
        return _of_mixture(predictive, outcome, chosen, seen, key)
    if isinstance(law, ProjectedLaw) and not law.how.is_drawn:
        return of_outputs(predictive, chosen)
    how = "a mixture of several Gaussians" if isinstance(law, MixedLaw) else "Probit()"
    how = "a covariance without a matrix" if isinstance(law, ProjectedLaw) else how
    raise CredoError(
        f"What rows tell together is not known for {how}: predict by MonteCarlo(), or by Linearised() of one Gaussian."
    )


def _of_mixture(predictive, outcome: Outcome, chosen: np.ndarray, seen: np.ndarray, key) -> np.ndarray:
    law, log_rho = predictive._stream.law, 0.0
    for again, distinct in enumerate(_rounds(chosen)):
        rows, taken = _rows_of(predictive, distinct)
        keys = streams(stream(key, 2, again), NUM_OUTCOMES)
        log_rho = log_rho + np.asarray(_log_probs(law, rows, taken, keys))
    log_rho = log_softmax(log_rho + np.asarray(law.log_weights), axis=1)
    if len(outcome.shape) == 1 and outcome.is_of_classes:
        width = 8 * (NUM_OUTCOMES + law.width) * (outcome.num_classes or 2)
        of_classes = functools.partial(_of_classes, log_rho=log_rho)
        found = np.maximum(predictive._compute(of_classes, chunk=max(1, MEMORY // (2 * width))), 0.0) * seen
    else:
        of_outcomes = functools.partial(_of_outcomes, log_rho=log_rho)
        found = predictive._compute(of_outcomes, key=stream(key, 3), chunk=1 if law.is_streamed else None)
    left = np.median(1.0 / np.sum(np.exp(2.0 * log_rho), axis=1))
    if left < min(LEAST * np.exp(np.max(found)), 0.5 * law.width):
        warnings.warn(
            f"The outcomes of the rows chosen leave a handful of the {law.width:,} draws of the parameters: what "
            "further rows tell is then told too low. Label these first, or predict by more draws, "
            "MonteCarlo(num_draws=…), or a Gaussian posterior by Linearised().",
            stacklevel=4,
        )
    return found


def _rounds(chosen: np.ndarray) -> list[np.ndarray]:
    """The rows chosen once at least, those chosen twice at least, and so on."""
    rows, counts = np.unique(chosen, return_counts=True)
    return [rows[counts > again] for again in range(np.max(counts))]


def _rows_of(predictive, chosen: np.ndarray) -> tuple[Any, np.ndarray]:
    """(rows, which of them are those chosen): these alone, where the likelihood knows a row without the others."""
    own = predictive._stream
    if can_cut(own.law, own.rows, own.size, 1):
        return jax.tree.map(lambda leaf: np.asarray(leaf)[chosen], own.rows), np.arange(len(chosen))
    return own.rows, chosen


@sound
def _log_probs(law: MixtureLaw, rows, taken, keys):
    """Σ log p_s(y) (outcome, draw) over the rows ``taken``, of outcomes drawn from the keys."""
    index, sample, mixture = by_draws(law, rows, NUM_OUTCOMES, None)
    return jax.lax.map(lambda pair: mixture(sample(*pair))[0][:, taken].sum(axis=1), (index, keys))


@sound
def _of_classes(law: MixtureLaw, rows, *, log_rho):
    p, rho = law._each(lambda d: moments(d)[0], rows), jnp.exp(log_rho)
    marginal = jnp.tensordot(rho, p, axes=1)  # (outcome, M, …)
    return jax.vmap(entropy)(marginal).mean(axis=0) - rho.mean(axis=0) @ jax.vmap(entropy)(p)


def _of_outcomes(law: MixtureLaw, rows, *, key, log_rho):
    return of_keys(law, rows, streams(key, NUM_OUTCOMES), None, log_rho)
