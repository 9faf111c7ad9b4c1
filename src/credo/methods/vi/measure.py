"""What a variational posterior is worth, on draws that its fit has not seen."""

import math
import time
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from credo.algorithm import stream
from credo.diagnose.pareto import is_undecided, proposal_figures
from credo.methods.particles.importance import draw_and_weigh
from credo.methods.vi.families.family import Family
from credo.model.target import Target
from credo.posterior.kinds import Kind
from credo.status import Estimate

ELBO_ERROR = 0.05  # nats: half of what the verdict asks
MAX_ROUNDS = 32  # of ``num_draws`` draws


class Measured(NamedTuple):
    """``elbo``: a lower bound of log p(D), with its Monte Carlo error. ``figures``: what importance weights say."""

    elbo: Estimate
    figures: dict[str, float]


def measure(
    q: Kind, family: Family, target: Target, key, num_draws: int, at_once: int, deadline: float = np.inf
) -> Measured:
    """The ELBO from as many rounds of draws as it takes to know it to ELBO_ERROR.

    The figures are those of the first round, or of more where it cannot tell whether a moment is wrong. After
    ``deadline``, by ``time.monotonic()``, one batch of draws has to do.
    """
    u, log_weights = draw_and_weigh(q, target, stream(key, 0), num_draws, at_once, deadline)
    center, sd = np.asarray(family.center(q)), np.sqrt(np.asarray(family.variances(q)))
    error = estimate(log_weights).error
    num_rounds = min(math.ceil((error / ELBO_ERROR) ** 2), MAX_ROUNDS) if math.isfinite(error) else 1
    z = (u - center) / sd
    judged, i = len(z), 1  # the figures are those of so many draws
    is_open = is_undecided(z, log_weights)
    while (i < num_rounds or is_open) and time.monotonic() < deadline:
        u, more = draw_and_weigh(q, target, stream(key, i), num_draws, at_once, deadline)
        log_weights, i = np.concatenate([log_weights, more]), i + 1
        if is_open:
            z = np.concatenate([z, (u - center) / sd])
            judged = len(z)
            is_open = is_undecided(z, log_weights)
    return Measured(estimate(log_weights), proposal_figures(z, log_weights[:judged]))


def estimate(log_weights: Float[np.ndarray, " S"]) -> Estimate:
    """The ELBO is the mean of the log weights."""
    error = np.std(log_weights, ddof=1) / np.sqrt(len(log_weights)) if len(log_weights) > 1 else np.nan
    return Estimate(float(np.mean(log_weights)), float(error), "lower bound")
