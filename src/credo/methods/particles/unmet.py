"""What chains never met: the mass that lies further out than they have been.

A wide part of a posterior, to which no chain has gone, or where an independence sampler's proposal q has next to
nothing, is left out by all chains alike, and they agree. So their moments are compared with those of p by draws of a
mixture of q, or of the Gaussian with their moments, and what reaches 2 to 16 times as far (particles/reach.py), weighed
to p. The weights of an independence sampler's proposals hardly show it, while a posterior that outgrows q only where it
has no mass itself gives their tail the same shape.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from credo.algorithm import stream
from credo.diagnose.moments import shifts_between
from credo.diagnose.pareto import effective_sample_size, judged_shape, smooth
from credo.diagnose.rules import RULES
from credo.methods.optimise.objective import chunk_size
from credo.methods.particles.reach import drawn_far
from credo.methods.particles.scalars import judged_values
from credo.methods.particles.weighing import Drawn
from credo.model.target import Target
from credo.posterior.kinds import Kind
from credo.posterior.product import as_gaussian

NUM_DRAWS, FEWEST, AT_ONCE = 4_096, 1_000, 128  # few at once: far out an equation may take long to solve
MOST = 0.7
STREAM = 1 << 22  # apart from the keys of chains and starts

Positions = Float[np.ndarray, "chain draw dim"]


def far_shift(
    kind: Kind, target: Target, positions: Positions, figures: Mapping[str, float], key, deadline: float = np.inf
) -> tuple[float, float | None]:
    """(k̂ of draws that reach further than ``kind``, by how much means and log sds of the chains surely miss theirs).

    k̂ is NaN where ``kind`` has no such draws or time no room for them, the shift None where they do not tell.
    ``figures``: of the chains, which count as many draws as the least of their effective sizes. No batch begins after
    ``deadline``, by ``time.monotonic()``, but the first.
    """
    target = target.flat()
    batch = chunk_size(target, most=AT_ONCE)
    drawn = drawn_far(as_gaussian(kind), target, stream(key, STREAM), NUM_DRAWS, batch, deadline)
    if drawn is None or len(drawn.u) < FEWEST:
        return np.nan, None
    smoothed = smooth(drawn.log_weights)
    far_k = float(judged_shape(drawn.log_weights, smoothed.k_hat, drawn.log_own))
    if not (far_k <= RULES["pareto_k"].passes or _is_most(drawn)):
        return far_k, None
    u = positions.reshape(-1, target.dim)
    ess = min(figures.get(name, np.inf) for name in ("min_ess_bulk", "min_ess_tail"))
    u = u[:: int(np.ceil(len(u) / np.clip(ess, 1, NUM_DRAWS)))]
    nothing = np.full(len(drawn.u), -np.inf), np.full(len(u), -np.inf)
    by_weights = np.concatenate([smoothed.log_weights, nothing[1]])
    by_chains = np.concatenate([nothing[0], np.full(len(u), -np.log(len(u)))])
    moved = shifts_between(judged_values(target, np.concatenate([drawn.u, u])), by_weights, by_chains)
    return far_k, float(max(np.max(shift.least) for shift in moved))


def unmet(
    kind: Kind, target: Target, positions: Positions, log_weights: np.ndarray, figures: Mapping[str, float], key
) -> dict[str, float]:
    """Of an independence sampler: ``unmet_shift``, and the ``pareto_k`` that it leaves of the proposals'
    ``log_weights``: 0 where these are worth nearly all of their draws and nothing was missed, and that of the draws
    which reach far where these cannot tell. Nothing of a proposal that has no such draws."""
    far_k, shift = far_shift(kind, target, positions, figures, key)
    found = {} if shift is None else {"unmet_shift": shift}
    if not far_k <= RULES["pareto_k"].passes:
        return found if np.isnan(far_k) else found | {"pareto_k": far_k}
    of_proposals = np.ravel(log_weights).astype(float)
    is_light = judged_shape(of_proposals, np.nan, np.zeros(of_proposals.size)) == 0
    return found | ({"pareto_k": 0.0} if is_light else {})


def _is_most(drawn: Drawn) -> bool:
    """Whether weights whose tail is heavy are worth most of what those of the kind itself are: what they differ in is a
    few draws far out then, and their share, of which too little is met, no less for it."""
    if drawn.log_own is None:
        return False
    return effective_sample_size(drawn.log_weights) >= MOST * effective_sample_size(drawn.log_own)
