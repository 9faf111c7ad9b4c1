"""A posterior for ArviZ's own tools."""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from credo.batches import in_batches
from credo.compiling import brief
from credo.memory import in_words
from credo.model.target import Target, log_prob_rows, weighed
from credo.posterior.kinds import Draws
from credo.posterior.marginals import sample_positions
from credo.precision import double
from credo.status import CredoError
from credo.storage import memory_for_draws

if TYPE_CHECKING:
    from credo.posterior.posterior import Posterior

NUM_DRAWS = 4_000  # of a posterior that stores none
AT_ONCE = 2**22  # numbers of the log likelihood that are computed together
NAMES = {
    "is_divergent": "diverging",
    "acceptance": "acceptance_rate",
    "num_steps": "n_steps",
    "depth": "tree_depth",
    "log_density": "lp",
}  # of sample statistics, as ArviZ's schema has them


def to_arviz(posterior: "Posterior", log_likelihood: bool = False):
    """An ``xarray.DataTree`` with groups posterior, sample_stats, observed_data and, where asked, log_likelihood.

    Weighted draws are resampled to equal weights, since ArviZ knows none.
    """
    from arviz_base import from_dict

    key, kind, y = jax.random.key(0), posterior.kind, posterior.target.y
    stored = kind if isinstance(kind, Draws) and kind.log_weights is None else None
    if stored is not None:
        draws = posterior.draws
    else:
        with double():
            sampled = posterior._sampled(key, NUM_DRAWS)
        draws = {name: np.asarray(values)[None] for name, values in sampled.items()}
    groups: dict[str, Any] = {"posterior": draws}
    if stored is not None and posterior.info.get("sample_stats"):
        groups["sample_stats"] = {NAMES.get(n, n): values for n, values in posterior.info["sample_stats"].items()}
    if log_likelihood:
        with double():
            same = stored.positions if stored is not None else np.asarray(sample_positions(kind, key, NUM_DRAWS))[None]
            groups["log_likelihood"] = _by_rows(posterior.target.flat(), np.asarray(same))
    if y is not None:
        groups["observed_data"] = y if isinstance(y, dict) else {"y": y}
    return from_dict({group: _without_slashes(values) for group, values in groups.items()})


def _without_slashes(values: dict[str, Any]) -> dict[str, Any]:
    """By names in which a dot stands for each slash, as of flax's weights: in a tree of xarray it leads to a child."""
    named = {name.replace("/", "."): value for name, value in values.items()}
    return named if len(named) == len(values) else values


def _by_rows(target: Target, positions: np.ndarray) -> dict[str, np.ndarray]:
    """The log likelihood of each row (chain, draw, N) at positions (chain, draw, dim), by outcome."""
    if target.source is None and (target.model.likelihood is None or target.y is None):
        lacking = target.model.without_likelihood if target.model.likelihood is None else "there are no data (y)"
        raise CredoError(f"log_likelihood=True needs the model's likelihood and the data: {lacking}.")
    chains, draws, dim = positions.shape
    shape = jax.eval_shape(_terms, target, positions[0, :1])
    size = sum(leaf.shape[1] for leaf in shape.values())
    num_bytes, limit = 8 * chains * draws * size, memory_for_draws()
    if num_bytes > limit:
        raise CredoError(
            f"The log likelihood of {size:,} rows at {chains * draws:,} draws is {in_words(num_bytes)}, and "
            f"{in_words(limit)} may be used: leave log_likelihood out, or fit fewer rows or draws."
        )
    found = _terms(target, positions.reshape(-1, dim))
    by_rows = {name: np.asarray(terms).reshape(chains, draws, -1) for name, terms in found.items()}
    # ArviZ has no leave-one-out of a row that says nothing at any draw, as one that is masked or of weight 0
    return {name: terms[..., np.any(terms != 0, axis=(0, 1))] for name, terms in by_rows.items()}


@brief
def _terms(target: Target, positions) -> dict[str, Any]:
    x, y, weights = target.rows(None)

    def one(u) -> dict[str, Any]:
        outcome = target.likelihood_distribution(target.constrain(u), x)
        named = {name: (outcome[name], y[name]) for name in y} if isinstance(outcome, dict) else {"y": (outcome, y)}
        return {name: weighed(log_prob_rows(law, own), weights) for name, (law, own) in named.items()}

    return in_batches(one, positions, max(1, AT_ONCE // max(target.size, 1)))
