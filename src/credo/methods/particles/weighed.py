"""Weighed draws as an answer: how many it takes, and what can be known of them.

k̂ and the effective size say whether the weights that were seen behave. A part of the posterior that no draw has met
yet makes them behave better, so that two more things are asked of a pass:

- means and sds are known to within the bounds of a pass, by the central limit theorem. Rounds of draws are added until
  they are, which also is what meets the rest;
- Stein's identities hold: E_p[φ'(z) + φ(z) ∂ log p/∂z] = 0 for φ = 1, z, z², z one coordinate. Over draws that end
  where the posterior does not, such means are the density at that end, and no longer zero.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from credo.diagnose.moments import MOST, errors, figures_of_errors, stein_gap
from credo.diagnose.pareto import effective_sample_size, judged_shape, smooth, threshold
from credo.diagnose.rules import RULES
from credo.methods.particles.correction import MOST_NUMBERS
from credo.methods.particles.scalars import judged_values
from credo.methods.particles.weighing import Drawn
from credo.model.target import Target

MOST_ROUNDS = 8


class Answer(NamedTuple):
    """Draws (S, dim) with raw and smoothed log weights, the figures of their verdict and sentences beside it.

    ``k_hat``: of the tail, whatever it is worth, by which errors are known or not. ``num_groups``: as of ``Drawn``.
    """

    u: Float[np.ndarray, "S dim"]
    raw: Float[np.ndarray, " S"]
    log_weights: Float[np.ndarray, " S"]
    k_hat: float
    figures: dict[str, float]
    sentences: tuple[str, ...]
    num_gradients: int
    num_groups: int

    @property
    def is_lost(self) -> bool:
        """Whether no draw has a density."""
        return bool(np.isnan(self.log_weights).any())


def answer(
    target: Target,
    draw: Callable[[int], Drawn],
    gradient: Callable[[np.ndarray], np.ndarray],
    deadline: float,
    most_rounds: int = MOST_ROUNDS,
) -> Answer:
    """``draw(i)``: the i-th round of draws; ``gradient(u)``: ∇ log p at (S, dim).

    Nothing begins after ``deadline``, by ``time.monotonic()``, but the first round.
    """
    rounds = [draw(0)]
    most_rounds = max(1, min(most_rounds, MOST_NUMBERS // max(rounds[0].u.size, 1)))
    while True:
        found = _judged(target, rounds)
        is_known = all(found.figures.get(name, np.inf) <= RULES[name].passes for name in MOST)
        is_late = time.monotonic() > deadline
        if is_known:
            gap = np.nan if is_late else stein_gap(found.u, found.log_weights, gradient(found.u))
            num_gradients = 0 if is_late else len(found.u)
            return found._replace(figures=found.figures | {"stein_gap": gap}, num_gradients=num_gradients)
        may_help = MOST[0] in found.figures and len(rounds) < most_rounds
        if is_late or not may_help:
            return found
        for i in range(len(rounds), min(2 * len(rounds), most_rounds)):
            if time.monotonic() <= deadline:
                rounds.append(draw(i))


def _judged(target: Target, rounds: list[Drawn]) -> Answer:
    u, raw = (np.concatenate(part) for part in zip(*(each[:2] for each in rounds), strict=True))
    own = [each.log_own for each in rounds if each.log_own is not None]
    smoothed = smooth(raw)
    k_hat = float(judged_shape(raw, smoothed.k_hat, np.concatenate(own) if own else None))
    figures = {
        "pareto_k": k_hat,
        "importance_ess": effective_sample_size(smoothed.log_weights),
        "num_draws": float(len(u)),
    }
    sentences: tuple[str, ...] = ()
    if k_hat <= RULES["pareto_k"].passes:
        figures |= figures_of_errors(errors(judged_values(target, u), smoothed.log_weights))
        if k_hat > threshold(len(u)):
            # below about 2,200 draws the largest reliable k̂ is smaller than the table's (Vehtari et al. 2024, 3.2.4)
            enough = int(np.ceil(10 ** (1 / (1 - k_hat))))
            few = f"With a Pareto k-hat of {k_hat:.2f}, {len(u):,} draws are too few: raise num_draws to {enough:,}."
            sentences = (few,)
    tail = float(judged_shape(raw, smoothed.k_hat))
    return Answer(u, raw, smoothed.log_weights, tail, figures, sentences, 0, rounds[0].num_groups)
