"""What all chains missed: R-hat compares chains with each other, and knows nothing of where none has been.

A mode far narrower than another catches no chain from afar. Where a posterior has few dimensions and all else passes,
the density is climbed from far away, as beside an approximation (particles/elsewhere.py), which here is the Gaussian
with the moments of the draws, and draws that reach further than they do are weighed for what is wide (unmet.py). Where
they lie along a curve so do such draws (straightened.py), beside those from the Gaussian, which reach what lies off it.
Chains that begin together agree at any one mode: theirs are climbed from in more dimensions too.
"""

import time
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from credo.diagnose.verdict import all_pass, judge
from credo.methods.from_prior import SAME
from credo.methods.optimise.objective import is_differentiable
from credo.methods.particles.elsewhere import LARGEST, Climber
from credo.methods.particles.left_out import evenly, left_out, of_moments
from credo.methods.particles.straightened import straightened
from credo.methods.particles.unmet import far_shift
from credo.model.target import Target
from credo.posterior.kinds import Kind

MOST_DIMENSIONS = 8  # beyond, the program that climbs takes longer to compile than many a sampler
PATIENCE = 10.0  # seconds: on a busy machine too, enough for a small model, which takes 0.3 s with compilation
NUM_DRAWS = 2_000
ERRS_ON_CURVES = 0.25  # what draws from a Gaussian may put right moments off that lie along a curve, but for few keys


def missed(
    target: Target,
    positions: Float[np.ndarray, "chain draw dim"],
    figures: Mapping[str, float],
    *,
    log_weights: Float[np.ndarray, "chain draw"] | None = None,
    has_gradient: bool = False,
    begin_together: bool = False,
) -> dict[str, float]:
    """Figures of what the draws leave out; none where that is not looked for. ``log_weights``: of the draws.

    ``has_gradient``: the sampler took gradients, so that there are some; else that is looked up. ``begin_together``:
    the chains may all have begun at one place.
    """
    # that of an independence sampler's proposals may yet be cleared, by draws that know of no mode (unmet.py)
    figures = {name: value for name, value in figures.items() if name != "pareto_k"}
    most = LARGEST if begin_together else MOST_DIMENSIONS
    if target.dim > most or target.structure.discrete_names or judge(figures).status != "pass":
        return {}
    if not (has_gradient or is_differentiable(target)):
        return {}
    if log_weights is not None:
        positions = evenly(positions.reshape(-1, target.dim), np.ravel(log_weights), NUM_DRAWS)[None]
    u = np.asarray(positions).reshape(-1, target.dim)
    u = u[:: max(1, len(u) // NUM_DRAWS)]
    kind = of_moments(u)
    if kind is None:
        return {}
    deadline = time.monotonic() + PATIENCE
    found = left_out(kind, target, u, figures, deadline, climber=Climber.of(target))
    is_open = all_pass(found) and time.monotonic() <= deadline
    if not is_open or target.dim > MOST_DIMENSIONS:
        return found

    def shift_by(law: Kind, least: float = 0.0) -> list[float]:
        shift = far_shift(law, target, np.asarray(positions), figures, SAME, deadline)[1]
        return [] if shift is None or shift < least else [shift]

    along = straightened(u)
    known = shift_by(kind) if along is None else [*shift_by(along), *shift_by(kind, ERRS_ON_CURVES)]
    return found | ({"unmet_shift": max(known)} if known else {})
