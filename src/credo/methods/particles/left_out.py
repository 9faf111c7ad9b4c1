"""What an approximation leaves out that no figure on its own draws can see: copies of itself, and modes elsewhere."""

import time
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from credo.diagnose.verdict import all_pass, judge
from credo.linalg.dense import Dense
from credo.methods.particles.copies import NUM_DRAWS, copy_weight
from credo.methods.particles.elsewhere import Climber, shares_elsewhere
from credo.model.target import Target
from credo.posterior.kinds import Gaussian, Kind

LARGEST = 1_000  # dimensions


def left_out(
    kind: Kind,
    target: Target,
    u: Float[np.ndarray, "S dim"],
    figures: Mapping[str, float],
    deadline: float,
    *,
    log_weights: Float[np.ndarray, " S"] | None = None,
    climber: Climber | None = None,
    log_z: float | None = None,
) -> dict[str, float]:
    """The figures of the verdict: copies where the others would pass without, modes where none fails; ``u``: draws of
    ``kind``.

    ``log_weights``: theirs. ``log_z``: the log of their raw mean. ``climber``: none where the density has no
    derivative. Not of networks, whose copies are the same function and whose modes are many, nor after ``deadline``,
    by ``time.monotonic()``.
    """
    found: dict[str, float] = {}
    if target.model.weights_name is not None or target.dim > LARGEST or judge(figures).status == "failed":
        return found
    if all_pass(figures) and time.monotonic() <= deadline:
        found["copy_weight"] = copy_weight(
            kind, target, u if log_weights is None else evenly(u, log_weights, NUM_DRAWS)
        )
    if climber is not None and all_pass(found) and time.monotonic() <= deadline:
        found |= shares_elsewhere(climber, kind, target, u, deadline, log_z)
    return found


def evenly(u, log_weights, num_draws: int) -> Float[np.ndarray, "draw dim"]:
    """Draws of the posterior, from those of an approximation or of weighted chains, at even steps of their weights."""
    share = np.cumsum(np.exp(log_weights - np.max(log_weights)))
    return u[np.searchsorted(share, (np.arange(num_draws) + 0.5) / num_draws * share[-1])]


def of_moments(u: Float[np.ndarray, "S dim"], log_weights: Float[np.ndarray, " S"] | None = None) -> Gaussian | None:
    """The Gaussian with the mean and the covariance of draws; None where they lie in a plane."""
    weights = None if log_weights is None else np.exp(log_weights - np.max(log_weights))
    covariance = np.atleast_2d(np.cov(u, rowvar=False, aweights=weights, ddof=0, dtype=np.float64))
    try:
        lower = np.linalg.cholesky(covariance).astype(u.dtype)
    except np.linalg.LinAlgError:
        return None
    return Gaussian(np.average(u, axis=0, weights=weights).astype(u.dtype), Dense(lower))
