"""What a variational posterior is worth, on draws that its fit has not seen."""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from credo.algorithm import stream
from credo.diagnose.pareto import smooth
from credo.diagnose.rules import RULES
from credo.methods.optimise.objective import log_density
from credo.methods.particles.correction import correct, gradients
from credo.methods.particles.elsewhere import Climber
from credo.methods.particles.importance import draw_and_weigh, values_at_once
from credo.methods.particles.reach import reaching
from credo.methods.particles.weighing import Drawn, Weighed
from credo.methods.vi.families.family import Family
from credo.methods.vi.needs import MAX_ROUNDS, rounds_at_once
from credo.methods.vi.upper import evidence_upper
from credo.model.target import Target
from credo.posterior.kinds import Flow, Kind
from credo.status import Estimate
from credo.timing import counted

ELBO_ERROR = 0.05  # nats: half of what the verdict asks
FLOW_ROUNDS = 16  # of a flow: it may follow a funnel so far down that few draws meet what it misses
CHEAP = 4  # a gradient keeps what its value passed through: so many fewer at once


class Measured(NamedTuple):
    """``elbo``: a lower bound of log p(D), with its Monte Carlo error. ``figures``: what importance weights say.

    ``upper``: an upper bound of log p(D), where the weights allow one (upper.py). ``num_draws``: of q, in all rounds.
    """

    elbo: Estimate
    figures: dict[str, float]
    upper: Estimate | None = None
    num_draws: int = 0


def measure(
    q: Kind,
    family: Family,
    target: Target,
    key,
    num_draws: int,
    at_once: int,
    deadline: float = np.inf,
    max_memory: int | None = None,
) -> Measured:
    """The ELBO from as many rounds of draws as it takes to know it to ELBO_ERROR, and the figures of the verdict.

    These are of the first round, or of more where it cannot tell whether means and sds are right (correction.py) and
    memory holds them. After ``deadline``, by ``time.monotonic()``, one batch of draws has to do.
    """

    values = values_at_once(target, at_once)

    def weigh(i: int) -> Weighed:
        return draw_and_weigh(q, target, stream(key, i), num_draws, values, deadline)

    def gradient(u: np.ndarray) -> np.ndarray:
        return gradients(log_density, target, u, max(at_once // CHEAP, 1))

    reach = reaching(q, target, key, num_draws, values)
    most = rounds_at_once(num_draws, target.dim, max_memory)
    return assess(weigh, gradient, q, target, deadline, reach, Climber.of(target), most)


@counted("verdict")
def assess(
    weigh: Callable[[int], Weighed],
    gradient: Callable[[np.ndarray], np.ndarray],
    q: Kind,
    target: Target,
    deadline: float = np.inf,
    reach: Callable[[int], Drawn] | None = None,
    climber: Climber | None = None,
    most_rounds: int = MAX_ROUNDS,
) -> Measured:
    """The same of draws that ``weigh(i)`` gives with log weights in round i; ``gradient(u)``: ∇ log p, (S, dim).

    ``reach``, ``climber``, ``most_rounds``: correction.py.
    """
    rounds: list[np.ndarray] = []

    def draw(i: int) -> Weighed:
        u, log_weights = weigh(i)
        rounds.append(log_weights)
        return u, log_weights

    is_flow = target.dim > 1 and _has_flow(q)
    least = FLOW_ROUNDS if is_flow else 1
    corrected = correct(draw, gradient, q, target, deadline, most_rounds, least, reach, climber)
    figures = corrected.figures | ({"flow_pareto_k": corrected.figures["pareto_k"]} if is_flow else {})
    error = estimate(rounds[0]).error
    num_rounds = min(math.ceil((error / ELBO_ERROR) ** 2), MAX_ROUNDS) if math.isfinite(error) else 1
    while len(rounds) < num_rounds and time.monotonic() < deadline:
        rounds.append(weigh(len(rounds))[1])
    log_weights = np.concatenate(rounds)
    unseen = ("copy_weight", "mode_share", "peak_share")
    is_left_out = any(corrected.figures.get(name, 0.0) > RULES[name].passes for name in unseen)
    is_unseen = is_left_out or corrected.has_far_tail
    upper = None if is_unseen else evidence_upper(log_weights, smooth(log_weights).k_hat)
    return Measured(estimate(log_weights), figures, upper, len(log_weights))


def _has_flow(q: Kind) -> bool:
    """Whether q, or a part of it, is a flow."""
    parts = jax.tree.leaves(q, is_leaf=lambda node: isinstance(node, Flow))
    return any(isinstance(part, Flow) for part in parts)


def estimate(log_weights: Float[np.ndarray, " S"]) -> Estimate:
    """The ELBO is the mean of the log weights."""
    with np.errstate(invalid="ignore"):  # −inf where a draw met no density: the error is then not known
        error = np.std(log_weights, ddof=1) / np.sqrt(len(log_weights)) if len(log_weights) > 1 else np.nan
    return Estimate(float(np.mean(log_weights)), float(error), "lower bound")
