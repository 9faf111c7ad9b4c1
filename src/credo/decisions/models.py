"""Which model: probabilities from log evidences, and a decision over them.

    p(m | D) = p(D | m) p(m) / Σ_j p(D | j) p(j)

An error e_j of log p(D | j) moves p(m | D) by p_m (δ_mj − p_j) e_j, and an expected loss L̄ = Σ_j p_j L_j by
p_j (L_j − L̄) e_j; independent errors add in squares.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from credo.arguments import as_numbers
from credo.decisions.losses import CostMatrix, Loss, ZeroOne
from credo.model.same_data import outcomes_differ
from credo.posterior.posterior import Posterior
from credo.status import CredoError


@dataclass(frozen=True, eq=False)
class ModelProbabilities:
    """``probs`` (K,) of the models ``names``, with ``error`` (K,), one standard error each.

    NaN errors: some log evidence has an error of unknown size (Laplace). The errors are of first order: above 0.5 or
    so they only say that the evidences are too uncertain. Pass it to ``credo.decide`` for a choice.
    """

    names: tuple[str, ...]
    probs: Float[np.ndarray, " K"]
    evidence_error: Float[np.ndarray, " K"]

    @property
    def error(self) -> np.ndarray:
        jacobian = self.probs[:, None] * (np.eye(len(self.probs)) - self.probs)
        return np.sqrt(np.sum((jacobian * self.evidence_error) ** 2, axis=1))

    def __repr__(self) -> str:
        pairs = zip(self.names, self.probs, self.error, strict=True)
        shown = (f"{name}: {p:.3g}" + (f" ± {e:.1g}" if e > 0 else "") for name, p, e in pairs)
        return f"<ModelProbabilities {', '.join(shown)}>"


def model_probabilities(
    posteriors: Mapping[str, Posterior], prior: Mapping[str, float] | None = None
) -> ModelProbabilities:
    """p(model | data) from the log evidences of posteriors of different models on the same data.

    ``prior``: name -> prior weight, not negative, brought to sum 1; equal where None.
    Warns of a posterior whose verdict is failed. Raises CredoError for one without an evidence or with a mere bound of
    it, and for different data (of bare log densities, what ``given`` had).
    """
    if not isinstance(posteriors, Mapping) or not posteriors:
        raise CredoError(f"model_probabilities takes a dict of posteriors by name; got {posteriors!r}.")
    names = tuple(posteriors)
    evidences = [_evidence(name, posterior) for name, posterior in posteriors.items()]
    first = posteriors[names[0]].target
    for name, posterior in posteriors.items() if len(posteriors) > 1 else ():
        target = posterior.target
        if target.model.log_factor is not None and target.x is None:
            raise CredoError(
                f"{name!r} is of a bare log density that reads its data from outside, and nobody can tell whether "
                "others are of the same: give them by given(data), as log_density(params, data)."
            )
        if target.y is None and target.source is None and target.model.log_factor is None:
            raise CredoError(
                f"{name!r} holds no data, by which posteriors of the same data are known: a loaded one has them where "
                "credo.load is given the target, load(path, model.given(x, y))."
            )
    for name in names[1:]:
        if differ := outcomes_differ(first, posteriors[name].target):
            raise CredoError(
                f"{names[0]!r} and {name!r} are posteriors of different {differ}: evidences compare models of the same "
                "data, so fit both to the same rows, each counted as often."
            )
    for name, posterior in posteriors.items():
        if posterior.verdict.status == "failed":
            warnings.warn(
                f"The posterior of {name!r} has failed, and its log evidence may be far off: "
                f"{' '.join(posterior.verdict.sentences[:1])}",
                stacklevel=2,
            )
    with np.errstate(divide="ignore"):
        log_joint = np.array([evidence.value for evidence in evidences]) + np.log(_prior(names, prior))
    probs = np.exp(log_joint - log_joint.max())
    return ModelProbabilities(names, probs / probs.sum(), np.array([evidence.error for evidence in evidences]))


def decide_model(belief: ModelProbabilities, loss: Callable, actions: Sequence | None) -> tuple[Any, float, float]:
    """(action, expected loss, its error): actions are names of models, or rows of a cost matrix."""
    costs, actions = _costs(belief.names, loss, actions)
    expected = costs @ belief.probs
    best = int(np.argmin(expected))
    slopes = belief.probs * (costs[best] - expected[best])
    error = float(np.sqrt(np.sum((slopes * belief.evidence_error) ** 2)))
    is_sure = np.ptp(costs[best]) == 0  # the same under every model, whatever their evidences
    return actions[best], float(expected[best]), 0.0 if is_sure else error


def _costs(names: tuple[str, ...], loss: Callable, actions: Sequence | None) -> tuple[np.ndarray, Sequence]:
    """costs[action][model], and the actions."""
    if isinstance(loss, CostMatrix):
        costs = np.asarray(loss.costs)
        if costs.shape[1] != len(names):
            raise CredoError(
                f"costs has shape {costs.shape} and there are {len(names)} models: give a column for each, in "
                f"the order {', '.join(names)}."
            )
        actions = actions or (names if len(costs) == len(names) else list(range(len(costs))))
        if len(actions) != len(costs):
            raise CredoError(f"costs has {len(costs)} rows and there are {len(actions)} actions: give a row for each.")
        return costs, actions
    actions = actions or names
    if isinstance(loss, ZeroOne):
        return np.array([[float(action != name) for name in names] for action in actions]), actions
    if isinstance(loss, Loss):
        raise CredoError(f"{type(loss).__name__} is for numbers: choose a model by ZeroOne() or CostMatrix(costs).")
    try:
        costs = np.array([[float(loss(action, name)) for name in names] for action in actions])
    except (TypeError, ValueError) as error:
        raise CredoError(f"The loss must return a number for an action and the name of a model: {error}.") from error
    if not np.all(np.isfinite(costs)):
        raise CredoError(f"The loss of an action and a model is not finite: {costs.tolist()}.")
    return costs, actions


def _evidence(name: str, posterior: Posterior):
    if not isinstance(posterior, Posterior):
        raise CredoError(f"{name!r} is a {type(posterior).__name__}: give the posteriors that credo.fit returns.")
    evidence = posterior.log_evidence
    if evidence is None or not np.isfinite(evidence.value):
        raise CredoError(
            f"{name!r} has no log evidence: fit it by Exact(), Grid(), Laplace(), SMC() or Importance(proposal), "
            "with a proper prior."
        )
    if evidence.kind in ("lower bound", "upper bound"):
        raise CredoError(
            f"The log evidence of {name!r} is a {evidence.kind}, whose slack may differ from model to model: fit it by "
            "Exact(), Grid(), Laplace(), SMC() or Importance(proposal)."
        )
    return evidence


def _prior(names: Sequence[str], prior: Mapping[str, float] | None) -> np.ndarray:
    if prior is None:
        return np.full(len(names), 1.0 / len(names))
    if not isinstance(prior, Mapping):
        raise CredoError(
            f"prior is {prior!r}: give a weight for each model by its name, such as {{{names[0]!r}: 2.0, …}}."
        )
    if set(prior) != set(names):
        raise CredoError(f"prior names {sorted(prior)} and the models are {sorted(names)}: give one weight for each.")
    weights = np.array([float(as_numbers(prior[name])) for name in names])
    if not (np.all(np.isfinite(weights)) and np.all(weights >= 0) and weights.sum() > 0):
        raise CredoError(f"Prior weights of models are not negative, and one is positive; got {dict(prior)}.")
    return weights / weights.sum()
