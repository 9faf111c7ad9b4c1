"""How unlike the data a row looks to a posterior: scores that are higher out of distribution, for ``auroc``."""

import numpy as np
from jaxtyping import Float

from credo.predict.predictive import Predictive, outcomes_of
from credo.status import CredoError


def novelty_scores(predictive: Predictive) -> dict[str, Float[np.ndarray, " M"]]:
    """Scores by name, (M,) each; of classes the first four, of other outcomes the last three.

    ``max_probability``: one less the top class's probability (Hendrycks & Gimpel 2017). ``entropy``: of the classes,
    in nats. ``mutual_information``: the part of it that the parameters are to blame for. ``epistemic``: the variance
    of the mean, summed over columns. ``variance``: that of the outcome. ``entropy`` and ``max_probability`` are high
    where classes overlap too; the others that name the parameters are not.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"w": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["w"] * x, 1.0))
    >>> posterior = credo.fit(model.given(np.ones(4), np.zeros(4)), credo.Laplace())
    >>> scores = credo.diagnose.novelty_scores(posterior.predict(np.array([0.0, 1.0, 3.0]), credo.Linearised()))
    >>> scores["epistemic"].round(2)
    array([0. , 0.2, 1.8])
    """
    outcomes = outcomes_of(predictive)
    if isinstance(outcomes, dict):
        raise CredoError(f"The predictive has outcomes {', '.join(outcomes)}: novelty scores are of one outcome a row.")
    found = {}
    if is_of_classes(predictive):
        probs = class_probabilities(predictive)
        found["max_probability"] = 1.0 - probs.max(axis=1)
        found["entropy"] = class_entropy(probs)
    else:
        found["variance"] = _summed(predictive.variance)
    found["mutual_information"] = predictive.mutual_information
    found["epistemic"] = _summed(predictive.epistemic)
    return found


def is_of_classes(predictive: Predictive) -> bool:
    """Whether each row's outcome is one class, or 0 or 1."""
    outcome = outcomes_of(predictive)
    return not isinstance(outcome, dict) and len(outcome.shape) == 1 and outcome.is_of_classes


def class_probabilities(predictive: Predictive) -> Float[np.ndarray, "M K"]:
    """(M, K), of 0 and 1 for a binary outcome."""
    probs = np.asarray(predictive.probs)
    return np.stack([1.0 - probs, probs], axis=1) if probs.ndim == 1 else probs


def class_entropy(probs: Float[np.ndarray, "M K"]) -> Float[np.ndarray, " M"]:
    """−Σ p log p in nats."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return -np.sum(np.where(probs <= 0, 0.0, probs * np.log(probs)), axis=1)


def _summed(values) -> np.ndarray:
    values = np.asarray(values)
    return values.reshape(len(values), -1).sum(axis=1)
