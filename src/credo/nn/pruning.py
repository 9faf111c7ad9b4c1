"""Weights that carry nothing, set to zero: variational dropout's log α = log(σ²/μ²) above a threshold.

Molchanov, Ashukha & Vetrov (2017) train sds under ``LogUniform()`` and drop weights of log α > 3, whose noise is 4.5
times their mean and more: a Bernoulli mask of the same α would leave 95 % of them out.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from credo.linalg.diagonal import Diagonal
from credo.linalg.grouped import Grouped
from credo.nn.priors import WEIGHTS
from credo.posterior.kinds import Gaussian
from credo.posterior.posterior import Posterior
from credo.precision import double
from credo.status import CredoError, is_number

LOG_ALPHA = 3.0


def prune(posterior: Posterior, log_alpha: float = LOG_ALPHA) -> Posterior:
    """The posterior with weights of log σ²/μ² above ``log_alpha`` exactly zero, without spread; the others stay.

    ``posterior``: a Gaussian of independent coordinates over a network's weights, such as one by
    ``VariationalLayers()``. Biases and other vectors stay. ``info["sparsity"]``: the share of zeros by the name of the
    weights, and ``"all"`` of them together. Raises CredoError for other posteriors.
    """
    if not (is_number(log_alpha) or (isinstance(log_alpha, float | np.floating) and np.isinf(log_alpha))):
        raise CredoError(f"log_alpha is a number, 3.0 by default; got {log_alpha!r}.")
    mean, sd = _factorised(posterior)
    is_weight = np.concatenate([np.full(leaf.size, _is_matrix(leaf)) for leaf in posterior.target.structure.leaves])
    if not is_weight.any():
        raise CredoError("The posterior has no matrix of weights to prune: it is not that of a network.")
    with np.errstate(divide="ignore", invalid="ignore"):
        is_zero = is_weight & ((2 * (np.log(sd) - np.log(np.abs(mean))) > log_alpha) | ((sd == 0) & (mean == 0)))
    free = np.flatnonzero(~is_zero & (sd > 0))  # what was a point before, such as layers without spread, stays one
    if not free.size:
        raise CredoError(f"Every weight has log alpha above {log_alpha:g}, so that nothing would be left: raise it.")
    kind = Gaussian(np.where(is_zero, 0.0, mean), Grouped.of_variances(free, sd[free], mean.size))
    share = float(is_zero.sum() / is_weight.sum())
    sentence = f"{share:.0%} of the weights were set to zero, where log alpha exceeds {log_alpha:g}."
    verdict = replace(posterior.verdict, sentences=(*posterior.verdict.sentences, sentence))
    sparsity = {"all": share, **_by_name(posterior, is_zero)}
    return Posterior(kind, posterior.target, verdict=verdict, info={**posterior.info, "sparsity": sparsity})


def sparsity_table(posterior: Posterior, x, y, log_alphas: Sequence[float] = (np.inf, 6.0, 4.0, 3.0, 2.0, 1.0, 0.0)):
    """A DataFrame with a row a threshold: ``log_alpha``, ``sparsity`` (share of zeros), and scores at rows x, y.

    ``log_score``: mean log predictive density; ``accuracy``, of classes alone: of the most probable class.
    """
    import pandas as pd

    rows = []
    for log_alpha in log_alphas:
        pruned = prune(posterior, log_alpha)
        predictive = pruned.predict(x)
        row = {
            "log_alpha": float(log_alpha),
            "sparsity": pruned.info["sparsity"]["all"],
            "log_score": float(np.mean(predictive.log_prob(y))),
        }
        mean = np.asarray(predictive.mean)
        if mean.ndim == 2 and np.ndim(y) == 1:
            row["accuracy"] = float(np.mean(np.argmax(mean, axis=1) == np.asarray(y)))
        rows.append(row)
    return pd.DataFrame(rows)


def _factorised(posterior: Posterior) -> tuple[np.ndarray, np.ndarray]:
    """Means and sds. CredoError where coordinates are not independent normals."""
    kind = posterior.kind
    scale = kind.scale if isinstance(kind, Gaussian) else None
    is_grouped = isinstance(scale, Grouped) and scale.index.shape[1] == 1
    if not isinstance(kind, Gaussian) or not (isinstance(scale, Diagonal) or is_grouped):
        raise CredoError(
            "Pruning looks at each weight's own mean and sd, and takes a Gaussian of independent coordinates; this one "
            f"is {type(kind).__name__}: fit VariationalLayers(), or ADVI() with MeanField()."
        )
    with double():
        return np.asarray(kind.mean), np.sqrt(np.asarray(kind.scale.diagonal())).astype(kind.mean.dtype)


def _is_matrix(leaf) -> bool:
    return leaf.name.split(".")[0] == WEIGHTS and len(leaf.shape) >= 2


def _by_name(posterior: Posterior, is_zero: np.ndarray) -> dict[str, float]:
    shares, first = {}, 0
    for leaf in posterior.target.structure.leaves:
        if _is_matrix(leaf):
            shares[leaf.name.removeprefix(f"{WEIGHTS}.")] = float(np.mean(is_zero[first : first + leaf.size]))
        first += leaf.size
    return shares
