"""A posterior for ArviZ's own tools."""

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from credo.batches import in_batches
from credo.compiling import brief
from credo.diagnose.checks import require_replicable, without_masked
from credo.memory import in_words
from credo.model.target import Target, log_prob_rows, weighed
from credo.posterior.check import replicate_at
from credo.posterior.kinds import Draws
from credo.posterior.marginals import sample_positions
from credo.precision import double
from credo.status import CredoError
from credo.storage import memory_for_draws

if TYPE_CHECKING:
    from credo.posterior.posterior import Posterior

NUM_DRAWS = 4_000  # of a posterior that stores none
COORDINATES = "chain", "draw", "sample"  # of what ArviZ makes of draws
AT_ONCE = 2**22  # numbers of the log likelihood that are computed together
NAMES = {
    "is_divergent": "diverging",
    "acceptance": "acceptance_rate",
    "num_steps": "n_steps",
    "depth": "tree_depth",
    "log_density": "lp",
}  # of sample statistics, as ArviZ's schema has them


def to_arviz(
    posterior: "Posterior",
    *,
    log_likelihood: bool = False,
    log_prior: bool = False,
    posterior_predictive: bool = False,
):
    """An ``xarray.DataTree`` with groups posterior, sample_stats, observed_data and those that are asked for.

    Weighted draws are resampled to equal weights, since ArviZ knows none. A parameter ``draw``, which ArviZ would take
    for the number of the draw, is called ``draw_``, and so are ``chain`` and ``sample``.
    """
    from arviz_base import from_dict

    key, kind, target, y = jax.random.key(0), posterior.kind, posterior.target, posterior.target.y
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
    if log_likelihood or log_prior or posterior_predictive:
        with double():
            same = stored.positions if stored is not None else np.asarray(sample_positions(kind, key, NUM_DRAWS))[None]
            positions = np.asarray(same)
            if log_prior:
                groups["log_prior"] = _by_parameters(posterior, positions)
            if log_likelihood:
                groups["log_likelihood"] = _by_rows(target.flat(), positions)
            if posterior_predictive:
                y, replicated = _replicated(target, positions, key)
                groups["posterior_predictive"] = _by_outcomes(replicated)
    if y is not None:
        groups["observed_data"] = _by_outcomes(y)
    return from_dict({group: _named(values) for group, values in groups.items()})


def _by_outcomes(y) -> dict[str, Any]:
    return y if isinstance(y, dict) else {"y": y}


def _named(values: dict[str, Any]) -> dict[str, Any]:
    """By names that a tree of xarray takes: a dot for each slash, as of flax's weights, which would lead to a child,
    and ``draw_`` for a parameter ``draw``, which would be lost among the coordinates."""
    named = {name.replace("/", "."): value for name, value in values.items()}
    named = named if len(named) == len(values) else dict(values)
    for name in COORDINATES:
        if name in named:
            named = {_free(each, named) if each == name else each: value for each, value in named.items()}
    return named


def _free(name: str, taken: dict[str, Any]) -> str:
    return name if name not in taken else _free(f"{name}_", taken)


def _by_parameters(posterior: "Posterior", positions: np.ndarray) -> dict[str, np.ndarray]:
    """log p of each parameter given those it hangs on, (chain, draw), at positions (chain, draw, dim)."""
    target, model = posterior.target, posterior.target.model
    if posterior._recorded is not None:
        raise CredoError(f"log_prior=True needs the model's prior: {model.without_likelihood}.")
    if model.log_factor is not None or model.prior.factors:
        raise CredoError(
            "log_prior=True needs a prior of distributions, and this model has a bare log density or a log factor, "
            "which may hold the data too: write the prior as distributions."
        )
    found = _densities(target, positions.reshape(-1, positions.shape[-1]))
    return {name: np.asarray(values).reshape(positions.shape[:2]) for name, values in found.items()}


@brief
def _densities(target: Target, positions) -> dict[str, Any]:
    def one(u) -> dict[str, Any]:
        return target.model.prior.densities(target.structure.unravel(u))

    return in_batches(one, positions, 256)


def _replicated(target: Target, positions: np.ndarray, key) -> tuple[Any, Any]:
    """y, and data (chain, draw, N, …) drawn anew at its inputs at each of positions (chain, draw, dim).

    Of the rows that count, as those of the log likelihood do.
    """
    require_replicable(target, "posterior_predictive=True")
    if target.row_weights is not None:
        rows = target.read(np.flatnonzero(target.row_weights))
        target = dataclasses.replace(target, x=rows.x, y=rows.y, weights=None)
    chains, draws, dim = positions.shape
    size = sum(map(np.size, jax.tree.leaves(target.y)))
    _require_memory("The replicated data", len(jax.tree.leaves(target.y)[0]), size, chains * draws)
    found = replicate_at(target, positions.reshape(-1, dim), jax.random.split(key, chains * draws))
    y, found, _ = without_masked(target, jax.tree.map(np.asarray, found))
    return y, jax.tree.map(lambda leaf: leaf.reshape(chains, draws, *leaf.shape[1:]), found)


def _require_memory(what: str, num_rows: int, of_draw: int, num_draws: int) -> None:
    """CredoError where ``of_draw`` numbers at each draw do not fit."""
    num_bytes, limit = 8 * num_draws * of_draw, memory_for_draws()
    if num_bytes > limit:
        raise CredoError(
            f"{what} of {num_rows:,} rows at {num_draws:,} draws would take {in_words(num_bytes)}, and "
            f"{in_words(limit)} may be used: leave that out, or fit fewer rows or draws."
        )


def _by_rows(target: Target, positions: np.ndarray) -> dict[str, np.ndarray]:
    """The log likelihood of each row (chain, draw, N) at positions (chain, draw, dim), by outcome."""
    if target.source is None and (target.model.likelihood is None or target.y is None):
        lacking = target.model.without_likelihood if target.model.likelihood is None else "there are no data (y)"
        raise CredoError(f"log_likelihood=True needs the model's likelihood and the data: {lacking}.")
    chains, draws, dim = positions.shape
    shape = jax.eval_shape(_terms, target, positions[0, :1])
    size = sum(leaf.shape[1] for leaf in shape.values())
    _require_memory("The log likelihood", size, size, chains * draws)
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
