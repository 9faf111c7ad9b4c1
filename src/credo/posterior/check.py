"""Posterior predictive checks: data replicated from the posterior, beside those observed."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax

from credo.compiling import sound
from credo.diagnose.checks import Check, check_draws, counted, make_check, require_checkable
from credo.posterior.marginals import sample_positions
from credo.precision import in_double

if TYPE_CHECKING:
    from credo.model.target import Target
    from credo.posterior.posterior import Posterior


def check(posterior: "Posterior", statistic: Callable, num_draws: int, key) -> Check:
    """See ``Posterior.check``."""
    require_checkable(posterior.target, statistic)
    check_draws(num_draws)
    target = counted(posterior.target, num_draws)
    return make_check(statistic, target, replicate(posterior, target, num_draws, key))


@in_double
def replicate(posterior: "Posterior", target: "Target", num_draws: int, key):
    """Data sets drawn from the posterior predictive at the inputs of ``target``: (num_draws, N, …)."""
    k_positions, k_data = jax.random.split(key)
    positions = sample_positions(posterior.kind, k_positions, num_draws)
    return replicate_at(target, positions, jax.random.split(k_data, num_draws))


@sound
def replicate_at(target, positions, keys):
    """One data set at each of positions (n, dim), by keys (n,)."""

    def one(pair):
        u, key = pair
        return target.model.draw_outcome(key, target.constrain(u), target.x, target.y)

    return jax.lax.map(one, (positions, keys))
