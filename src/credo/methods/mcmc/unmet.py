"""What an independence sampler never met: the mass that lies where its proposal q has next to none.

Where w = p/q has no bound, chains of p leave out what they have no proposals for, all of them alike, and the weights
of the proposals show it as little. So moments of the chains are compared with those of p by the draws of a mixture of q
and what reaches 2 to 16 times as far (particles/reach.py), weighed to p.
"""

import numpy as np
from jaxtyping import Float

from credo.algorithm import stream
from credo.diagnose.moments import LEAST, shifts_between
from credo.diagnose.pareto import smooth
from credo.diagnose.rules import RULES
from credo.methods.optimise.objective import chunk_size
from credo.methods.particles.reach import drawn_far
from credo.methods.particles.scalars import judged_values
from credo.model.target import Target
from credo.posterior.kinds import Kind

NUM_DRAWS = 4_096
STREAM = 1 << 22  # apart from the keys of chains and starts


def unmet(kind: Kind, target: Target, positions: Float[np.ndarray, "chain draw dim"], key) -> dict[str, float]:
    """By how much means and log sds of the chains surely miss those of p; nothing where such draws do not tell."""
    drawn = drawn_far(kind, target.flat(), stream(key, STREAM), NUM_DRAWS, chunk_size(target, most=NUM_DRAWS))
    smoothed = None if drawn is None else smooth(drawn.log_weights)
    if drawn is None or smoothed is None or not smoothed.k_hat <= RULES["pareto_k"].passes:
        return {}
    u = np.asarray(positions).reshape(-1, target.dim)
    u = u[:: max(1, len(u) // NUM_DRAWS)]
    none_of = np.full(len(drawn.u), -np.inf), np.full(len(u), -np.inf)
    by_weights = np.concatenate([smoothed.log_weights, none_of[1]])
    by_chains = np.concatenate([none_of[0], np.full(len(u), -np.log(len(u)))])
    moved = shifts_between(judged_values(target.flat(), np.concatenate([drawn.u, u])), by_weights, by_chains)
    return {name: float(np.max(shift.least)) for name, shift in zip(LEAST, moved, strict=True)}
