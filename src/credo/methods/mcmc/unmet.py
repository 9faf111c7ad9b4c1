"""What an independence sampler never met: the mass that lies where its proposal q has next to none.

Where w = p/q has no bound, chains of p leave out what they have no proposals for, all of them alike, and the weights
of the proposals hardly show it; while a posterior that outgrows q only where it has no mass itself gives their tail the
same shape. So moments of the chains are compared with those of p by draws of a mixture of q and what reaches 2 to 16
times as far (particles/reach.py), weighed to p.
"""

import numpy as np
from jaxtyping import Float

from credo.algorithm import stream
from credo.diagnose.moments import shifts_between
from credo.diagnose.pareto import judged_shape, smooth
from credo.diagnose.rules import RULES
from credo.methods.optimise.objective import chunk_size
from credo.methods.particles.reach import drawn_far
from credo.methods.particles.scalars import judged_values
from credo.model.target import Target
from credo.posterior.kinds import Kind
from credo.posterior.product import as_gaussian

NUM_DRAWS = 4_096
STREAM = 1 << 22  # apart from the keys of chains and starts


def unmet(
    kind: Kind,
    target: Target,
    positions: Float[np.ndarray, "chain draw dim"],
    log_weights: Float[np.ndarray, "..."],
    key,
) -> dict[str, float]:
    """``unmet_shift``, and the ``pareto_k`` that it leaves of the proposals' ``log_weights``: 0 where these are worth
    nearly all of their draws and nothing was missed, and that of the draws which reach far where these cannot tell.
    Nothing of a proposal that has no such draws."""
    target = target.flat()
    drawn = drawn_far(as_gaussian(kind), target, stream(key, STREAM), NUM_DRAWS, chunk_size(target, most=NUM_DRAWS))
    if drawn is None:
        return {}
    smoothed = smooth(drawn.log_weights)
    far_k = float(judged_shape(drawn.log_weights, smoothed.k_hat, drawn.log_own))
    if not far_k <= RULES["pareto_k"].passes:
        return {"pareto_k": far_k}
    u = positions.reshape(-1, target.dim)
    u = u[:: max(1, len(u) // NUM_DRAWS)]
    nothing = np.full(len(drawn.u), -np.inf), np.full(len(u), -np.inf)
    by_weights = np.concatenate([smoothed.log_weights, nothing[1]])
    by_chains = np.concatenate([nothing[0], np.full(len(u), -np.log(len(u)))])
    moved = shifts_between(judged_values(target, np.concatenate([drawn.u, u])), by_weights, by_chains)
    figures = {"unmet_shift": float(max(np.max(shift.least) for shift in moved))}
    of_proposals = np.ravel(log_weights).astype(float)
    if judged_shape(of_proposals, np.nan, np.zeros(of_proposals.size)) == 0:
        figures["pareto_k"] = 0.0
    return figures
