"""Start and end of a fit without gradients: discrete parameters, and densities that have no derivative."""

import math
import time

import jax
import numpy as np

from credo.algorithm import as_key, stream
from credo.compiling import brief
from credo.diagnose.pareto import proposal_figures
from credo.diagnose.startup import explain
from credo.methods.optimise.objective import starting_position
from credo.methods.particles.importance import draw_and_weigh
from credo.methods.vi.families.family import Family
from credo.methods.vi.measure import ELBO_ERROR, Measured, estimate
from credo.methods.vi.needs import MAX_ROUNDS
from credo.methods.vi.start import Start
from credo.methods.vi.upper import evidence_upper
from credo.model.target import Target
from credo.posterior.kinds import Kind
from credo.status import CredoError

NUM_TRIED = 64  # draws of which one must have a finite density


def start_without_gradients(target: Target, family: Family, key, start) -> Start:
    """Unit scale about a position; every value of a discrete parameter as probable as the others.

    CredoError, which names parameter or row, where the density is finite at none of NUM_TRIED draws from there.
    """
    position = starting_position(target, key, start)
    q = family.start(position, np.ones_like(position))
    u, log_p = _tried(q, target, stream(key, 2))
    if not np.any(np.isfinite(log_p)):
        raise CredoError(explain(target, np.asarray(u)[0]))
    return Start(q, 0)


def measure_without_gradients(
    q: Kind, family: Family, target: Target, key, num_draws: int, at_once: int, deadline: float = np.inf
) -> Measured:
    """What measure.py finds, by values of the log density alone.

    A discrete coordinate that takes one value in all draws has no scale, and its shift is not looked at.
    """
    center, sd = np.asarray(family.center(q)), np.sqrt(np.asarray(family.variances(q)))
    u, log_weights = draw_and_weigh(q, target, stream(key, 0), num_draws, at_once, deadline)
    error = estimate(log_weights).error
    num_rounds = min(math.ceil((error / ELBO_ERROR) ** 2), MAX_ROUNDS) if math.isfinite(error) else 1
    is_moving = np.ptp(u, axis=0) > 0
    figures = proposal_figures((u[:, is_moving] - center[is_moving]) / sd[is_moving], log_weights)
    rounds = [log_weights]
    while len(rounds) < num_rounds and time.monotonic() < deadline:
        rounds.append(draw_and_weigh(q, target, stream(key, len(rounds)), num_draws, at_once, deadline)[1])
    log_weights = np.concatenate(rounds)
    return Measured(estimate(log_weights), figures, evidence_upper(log_weights, figures["pareto_k"]))


@brief
def _tried(q: Kind, target: Target, key):
    u = jax.vmap(q.sample_u)(jax.random.split(as_key(key), NUM_TRIED))
    return u, jax.lax.map(target.log_density, u)
