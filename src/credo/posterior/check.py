"""Posterior predictive checks (Rubin, 1984; Gelman, Meng & Stern, 1996)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import numpy as np

from credo.posterior.marginals import sample_positions
from credo.precision import in_double
from credo.status import CredoError

if TYPE_CHECKING:
    from credo.posterior.posterior import Posterior


@dataclass(frozen=True, repr=False)
class Check:
    """``observed``: T(y). ``replicated``: T(y_rep), (num_draws,). ``p_value``: Pr(T(y_rep) ≥ T(y)), ties half counted.

    A p-value near 0 or 1 says that the model does not reproduce this aspect of the data.
    """

    observed: float
    replicated: np.ndarray
    p_value: float

    def __repr__(self) -> str:
        low, high = np.quantile(self.replicated, [0.05, 0.95])
        return (
            f"<Check: observed {self.observed:.4g}, replicated 90 % in [{low:.4g}, {high:.4g}], p = {self.p_value:.3f}>"
        )


def check(posterior: "Posterior", statistic: Callable, num_draws: int, key) -> Check:
    """See ``Posterior.check``. ``statistic(y) -> scalar`` takes NumPy data of the shape of y."""
    target = posterior.target
    if not callable(statistic):
        raise CredoError(f"statistic is a function of y that returns a number, such as numpy.max; got {statistic!r}.")
    if target.y is None or target.model.likelihood is None:
        raise CredoError("A predictive check needs a likelihood and observed y: this posterior has none.")
    replicated_y = replicate(posterior, num_draws, key)
    observed = statistic(target.y)
    if np.size(observed) != 1:
        raise CredoError(f"statistic returned shape {np.shape(observed)}: it must reduce y to one number.")
    observed = float(observed)
    each = (jax.tree.map(lambda leaf, i=i: leaf[i], replicated_y) for i in range(num_draws))
    replicated = np.array([float(statistic(y)) for y in each])
    p_value = float(np.mean(replicated > observed) + 0.5 * np.mean(replicated == observed))
    return Check(observed, replicated, p_value)


@in_double
def replicate(posterior: "Posterior", num_draws: int, key):
    """Data sets drawn from the posterior predictive at the observed inputs: (num_draws, N, …)."""
    k_positions, k_data = jax.random.split(key)
    positions = sample_positions(posterior.kind, k_positions, num_draws)
    return _replicate(posterior.target, positions, jax.random.split(k_data, num_draws))


@jax.jit
def _replicate(target, positions, keys):
    def one(pair):
        u, key = pair
        return target.model.draw_outcome(key, target.constrain(u), target.x)

    return jax.lax.map(one, (positions, keys))
