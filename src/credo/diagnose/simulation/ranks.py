"""The rank of a true value among independent draws of the fit to its data, for everything that a model reports."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Num

from credo.algorithm import as_key
from credo.compiling import sound
from credo.diagnose.convergence import ess_bulk
from credo.model.target import Target
from credo.posterior.kinds import Draws
from credo.posterior.marginals import draw_weights, sample_positions
from credo.posterior.posterior import Posterior
from credo.precision import in_double
from credo.status import CredoError

LOG_LIKELIHOOD = "log_likelihood"
ROUNDING = 1e-12  # of the median size: what differs by less is a tie (the diagonal of a correlation matrix)

Statistics = tuple[tuple[str, Callable], ...]


@in_double
def independent_draws(posterior: Posterior, number: int, data) -> tuple[Float[np.ndarray, "number dim"], float]:
    """(positions, the number of independent draws that all of them are worth). ``data``: of a key.

    Of a stored sample those that lie evenly apart, since neighbours are alike; of a weighted one, as many drawn by
    their weights; of anything else, fresh draws.
    """
    kind = posterior.kind
    if not isinstance(kind, Draws):
        return sample_positions(kind, as_key(data), number), np.inf
    stored = np.asarray(kind.positions)
    flat = stored.reshape(-1, stored.shape[-1])
    weights = draw_weights(kind)
    if weights is not None:
        rows = np.random.default_rng(data).choice(len(flat), number, p=weights)
        return flat[rows], float(1.0 / np.sum(weights**2))
    if len(flat) < number:
        raise TooFewDraws(
            f"A fit has {len(flat)} draws and {number} are needed: raise num_draws of the method, or ask for fewer."
        )
    rows = ((np.arange(number) + 0.5) * len(flat) / number).astype(int)
    num_effective = posterior.verdict.figures.get("min_ess_bulk")
    return flat[rows], float(np.min(ess_bulk(stored)) if num_effective is None else num_effective)


class TooFewDraws(CredoError):
    """The request cannot be answered, whatever the data."""


@in_double
def quantities(target: Target, positions, statistics: Statistics) -> dict[str, Any]:
    """Parameters, derived quantities, the joint log likelihood and statistics at each position: arrays (n, *shape)."""
    return _quantities(target, positions, statistics)


@functools.partial(sound, static_argnames="statistics")
def _quantities(target: Target, positions, statistics: Statistics) -> dict[str, Any]:
    def one(u):
        params = target.constrain(u)
        found = dict(target.model.report(params))
        if target.y is not None and target.model.likelihood is not None:
            found[LOG_LIKELIHOOD] = jnp.sum(target.log_likelihood(u))
        return found | {name: _value(name, function, params, target.y) for name, function in statistics}

    return jax.vmap(one)(positions)


def _value(name: str, function: Callable, params, y):
    try:
        return jnp.asarray(function(params, y))
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        are = f" (y is a dict of {', '.join(map(repr, y))})" if isinstance(y, dict) else ""
        raise CredoError(
            f"The statistic {name!r} has no value ({type(error).__name__}: {str(error)[:120]}): it is a function of "
            f"(params, y){are} that returns a number or an array, in jax.numpy."
        ) from error


@in_double
def check_statistics(target: Target, position, statistics: Statistics) -> None:
    """CredoError for a statistic with the name of what is ranked in any case, or without a value at ``position``."""
    ranked = {leaf.name for leaf in target.structure.leaves} | set(target.derived_names) | {LOG_LIKELIHOOD}
    taken = next((name for name, _ in statistics if name in ranked), None)
    if taken is not None:
        raise CredoError(f"A statistic is named {taken!r}, as what is ranked in any case: give it another name.")

    def values(u):
        params = target.constrain(u)
        return [_value(name, function, params, target.y) for name, function in statistics]

    jax.eval_shape(values, position)


def rank(values: Num[np.ndarray, "draw ..."], random: np.random.Generator) -> Int[np.ndarray, "..."]:
    """Of ``values[0]`` among the others: how many lie below it, ties broken at random."""
    truth, draws = values[0], values[1:]
    scale = np.median(np.where(np.isfinite(values), np.abs(values), 0.0), axis=0)  # the largest may be a tail's end
    with np.errstate(invalid="ignore"):  # two infinite values, which are equal
        is_tie = (draws == truth) | (np.abs(draws - truth) <= ROUNDING * scale)
    num_below = np.sum((draws < truth) & ~is_tie, axis=0)
    return np.asarray(num_below + random.integers(0, np.sum(is_tie, axis=0) + 1))
