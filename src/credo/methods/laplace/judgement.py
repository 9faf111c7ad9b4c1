"""What the verdict on a network's Laplace rests on.

Weighing draws against the posterior says nothing in many dimensions: log weights vary by the dimension times the
relative error of each coordinate, whatever the predictions are worth. So three things are looked at that can be known:
the distance to the mode, the curvature's sign, and whether data are as likely as the linearised predictive expects,

    surprise = mean over rows of  −log p(yᵢ | xᵢ, D) + E[log p(y | xᵢ, D)],  y ~ p(y | xᵢ, D)

None of them shows other modes, nor how far from normal the posterior is around this one: no pass without weights.
"""

import numpy as np

from credo.algorithm import stream
from credo.diagnose.verdict import RULES, judge
from credo.methods.laplace.proposal import figures as proposal_figures
from credo.methods.optimise.objective import Objective
from credo.model.target import Target
from credo.posterior.kinds import Gaussian
from credo.posterior.posterior import Posterior
from credo.predict.linearised import Linearised, Quadrature
from credo.predict.probit import Probit
from credo.status import CredoError, Verdict

WEIGHED = 100  # coordinates up to which draws are weighed
NUM_ROWS, FEWEST_ROWS, NUM_REPLICATES = 1_000, 100, 8
WORK = 1e8  # rows times coordinates, of rows above the fewest
NUM_DRAWS = 64  # of the outputs of many classes
CERTAIN = 3.0  # standard errors

LINEARISED = (
    "predict(x) linearises the network in its weights. Draws of the weights (sample(), MonteCarlo()) leave the region "
    "where the Gaussian holds, and predictions by them underfit."
)


def verdict_of(
    posterior: Posterior,
    objective: Objective,
    figures: dict[str, float | None],
    sentences: tuple[str, ...],
    key,
    chunk: int,
    deadline: float,
) -> tuple[Verdict, int]:
    """The verdict, and how many draws were weighed. ``figures``: those of the mode."""
    target = posterior.target
    figures = figures | {"surprise": surprise(posterior, target, stream(key, 6))}
    if target.dim > WEIGHED:
        unweighed = (
            f"The posterior of {target.dim:,} coordinates was not compared with this Gaussian: in so many, weights of "
            "draws say nothing, and there are other modes. Judge it by held-out scores (credo.compare)."
        )
        return judge(figures, [*sentences, unweighed, LINEARISED], at_best="doubtful"), 0
    assert isinstance(posterior.kind, Gaussian)
    weighed, num_draws = proposal_figures(objective, posterior.kind, target, key, chunk, deadline)
    if all(RULES[name].status(value) == "pass" for name, value in weighed.items()):
        return judge(figures | weighed, sentences), num_draws
    worst = weighed.get("pareto_k", np.nan)
    doubt = (
        f"The posterior of the weights is not this Gaussian (weights of draws have a k-hat of {worst:.2g}, or move "
        "means or sds). Judge its predictions by held-out scores (credo.compare)."
    )
    return judge(figures, [*sentences, doubt, LINEARISED], at_best="doubtful"), num_draws


def surprise(posterior: Posterior, target: Target, key) -> float | None:
    """What is certain of it; None where the outcome has no linearised predictive."""
    number = min(target.size, int(np.clip(WORK / target.dim, FEWEST_ROWS, NUM_ROWS)))
    rows = np.unique(np.linspace(0, target.size - 1, number).astype(int))
    data = target.rows(rows)
    try:
        seen, expected = _scores(posterior, data.x, data.y, key)
    except CredoError:
        return None
    excess = expected - seen
    error = np.std(excess) / np.sqrt(max(len(excess), 1))
    return float(np.mean(excess) - CERTAIN * error)


def _scores(posterior: Posterior, x, y, key) -> tuple[np.ndarray, np.ndarray]:
    """log p(yᵢ | xᵢ, D), and its expectation: of classes a sum over them; of normal outcomes that of a normal
    distribution of their variance; of others by draws."""
    head = posterior.target.head
    if head is not None and head.name in ("bernoulli", "categorical"):
        probs = _probs(posterior, x)
        probs = np.stack([1 - probs, probs], axis=1) if probs.ndim == 1 else probs
        logs = np.log(np.maximum(probs, np.finfo(probs.dtype).tiny))
        return logs[np.arange(len(logs)), np.asarray(y).astype(int)], np.sum(probs * logs, axis=1)
    predictive = posterior.predict(x, Linearised())
    seen = predictive.log_prob(y)
    if predictive._outcomes.family == "Normal":
        return seen, -0.5 * np.log(2 * np.pi * np.e * np.asarray(predictive.variance)).reshape(len(seen), -1).sum(
            axis=1
        )
    replicates = predictive.sample(int(key[0]), NUM_REPLICATES)
    return seen, np.mean([predictive.log_prob(each) for each in replicates], axis=0)


def _probs(posterior: Posterior, x) -> np.ndarray:
    """By MacKay's formula, without an integral; of more classes than it takes, by draws of their logits."""
    try:
        return np.asarray(posterior.predict(x, Probit()).probs)
    except CredoError:
        return np.asarray(posterior.predict(x, Quadrature(NUM_DRAWS)).probs)
