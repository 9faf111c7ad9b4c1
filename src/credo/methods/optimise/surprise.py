"""Whether the data that were fitted are as likely as the predictive of a network expects them to be.

    surprise = mean over rows of  −log p(yᵢ | xᵢ, D) + E[log p(y | xᵢ, D)],  y ~ p(y | xᵢ, D)

A noise that is too small, or features that fit nothing, show here at once, whatever is known of the weights.
"""

import jax
import numpy as np

from credo.algorithm import stream
from credo.diagnose.verdict import judge
from credo.memory import bytes_of
from credo.posterior.posterior import Posterior
from credo.predict.linearised import Linearised, Quadrature
from credo.predict.monte_carlo import MonteCarlo
from credo.predict.probit import Probit
from credo.predict.undefined import UndefinedPredictionError
from credo.status import CredoError
from credo.timing import counted

NUM_ROWS, FEWEST_ROWS, NUM_REPLICATES = 1_000, 100, 8
WORK = 1e8  # rows times coordinates, of rows above the fewest
NUM_OUTPUTS = 64  # draws of the outputs of many classes
NUM_WEIGHTS = 32  # draws of the weights
CERTAIN = 3.0  # standard errors
LARGEST = 2**29  # bytes of the posterior
NO_NUMBERS = "By these weights the data that were fitted have no likelihood that is a number: nothing can be predicted."
STREAM = 1 << 21  # of the key, away from those of training


def judged(posterior: Posterior, figures: dict[str, float], sentences: list[str], key) -> Posterior:
    """``posterior`` with a verdict on ``figures`` and, where the model is a network, on what surprises it; no pass.

    Weights by which the data have no likelihood that is a number have failed, and so has training that ended at a loss
    which was none.
    Of one that takes more than ``LARGEST`` bytes, copies of it for predictions would be dearer than the fit.
    """
    target = posterior.target
    is_done = posterior.info.get("is_complete", True)  # else that is the reason
    is_network = target.model is not None and target.model.weights_name is not None
    if is_done and is_network and target.y is not None and bytes_of(posterior.kind) <= LARGEST:
        found = surprise(posterior, stream(key, STREAM), is_linearised=False)
        if found == np.inf:
            posterior.verdict = judge(figures, [NO_NUMBERS, *sentences], at_best="failed")
            return posterior
        figures = figures if found is None else {**figures, "surprise": found}
    is_failed = bool(np.all(np.asarray(posterior.info.get("failed_at", -1)) >= 0))  # all members
    posterior.verdict = judge(figures, sentences, at_best="failed" if is_failed else "doubtful")
    return posterior


@counted("verdict")
def surprise(posterior: Posterior, key, *, is_linearised: bool) -> float | None:
    """What is certain of it, in nats a row by their weights; None where the outcome has no such predictive, NaN where
    it is no number, and ∞ where the data themselves have no likelihood at any row.

    ``is_linearised``: of the network linearised in its weights; else of draws of them.
    """
    target = posterior.target
    weights = target.row_weights
    every = np.arange(target.size) if weights is None else np.flatnonzero(np.asarray(weights) > 0)
    number = min(len(every), int(np.clip(WORK / target.dim, FEWEST_ROWS, NUM_ROWS)))
    rows = every[np.unique(np.linspace(0, len(every) - 1, number).astype(int))]
    data = target.rows(rows)
    share = np.ones(len(rows)) if data.weights is None else np.asarray(data.weights, float)
    share = share / share.sum()
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            seen, expected = _scores(posterior, data.x, data.y, key, is_linearised)
            if not np.any(np.isfinite(seen)):
                return np.inf
            excess = expected - seen
            mean = float(share @ excess)
            return mean - CERTAIN * float(np.sqrt(share**2 @ (excess - mean) ** 2))
    except UndefinedPredictionError:
        return np.inf
    except CredoError:
        return None


def _scores(posterior: Posterior, x, y, key, is_linearised: bool) -> tuple[np.ndarray, np.ndarray]:
    """log p(yᵢ | xᵢ, D), and its expectation: of classes a sum over them; of normal outcomes that of a normal
    distribution of their variance; of others, and of mixtures, by draws."""
    head = posterior.target.head
    if head is not None and head.name in ("bernoulli", "categorical"):
        found = _linearised_probs(posterior, x) if is_linearised else posterior.predict(x, MonteCarlo(NUM_WEIGHTS)).mean
        probs = np.asarray(found)
        probs = np.stack([1 - probs, probs], axis=1) if probs.ndim == 1 else probs
        logs = np.log(np.maximum(probs, np.finfo(probs.dtype).tiny))
        return logs[np.arange(len(logs)), np.asarray(y).astype(int)], np.sum(probs * logs, axis=1)
    predictive = posterior.predict(x, Linearised() if is_linearised else MonteCarlo(NUM_WEIGHTS))
    seen = predictive.log_prob(y)
    if is_linearised and getattr(predictive._outcomes, "family", "") == "Normal":  # several outcomes are a dict
        return seen, -0.5 * np.log(2 * np.pi * np.e * np.asarray(predictive.variance)).reshape(len(seen), -1).sum(
            axis=1
        )
    drawn = predictive.sample(int(key[0]), NUM_REPLICATES)
    replicates = [jax.tree.map(lambda leaf, i=i: leaf[i], drawn) for i in range(NUM_REPLICATES)]
    return seen, np.mean([predictive.log_prob(each) for each in replicates], axis=0)


def _linearised_probs(posterior: Posterior, x) -> np.ndarray:
    """By MacKay's formula, without an integral; of more classes than it takes, by draws of their logits."""
    try:
        return np.asarray(posterior.predict(x, Probit()).probs)
    except CredoError:
        return np.asarray(posterior.predict(x, Quadrature(NUM_OUTPUTS)).probs)
