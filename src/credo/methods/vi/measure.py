"""What a variational posterior is worth, on draws that its fit has not seen."""

import math
import time
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from credo.diagnose.pareto import proposal_figures
from credo.methods.particles.importance import draw_and_weigh
from credo.methods.vi.families.family import Family
from credo.model.target import Target
from credo.posterior.kinds import Kind
from credo.run import stream
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
    """The ELBO from as many rounds of draws as it takes to know it to ELBO_ERROR; the figures from the first round.

    After ``deadline``, by ``time.monotonic()``, one batch of draws has to do.
    """
    u, log_weights = draw_and_weigh(q, target, stream(key, 0), num_draws, at_once, deadline)
    z = (u - np.asarray(family.center(q))) / np.sqrt(np.asarray(family.variances(q)))
    figures = proposal_figures(z, log_weights)
    error = estimate(log_weights).error
    num_rounds = min(math.ceil((error / ELBO_ERROR) ** 2), MAX_ROUNDS) if math.isfinite(error) else 1
    more = []
    for i in range(1, num_rounds):
        if time.monotonic() > deadline:
            break
        more.append(draw_and_weigh(q, target, stream(key, i), num_draws, at_once, deadline)[1])
    return Measured(estimate(np.concatenate([log_weights, *more])), figures)


def estimate(log_weights: Float[np.ndarray, " S"]) -> Estimate:
    """The ELBO is the mean of the log weights."""
    error = np.std(log_weights, ddof=1) / np.sqrt(len(log_weights)) if len(log_weights) > 1 else np.nan
    return Estimate(float(np.mean(log_weights)), float(error), "lower bound")
