"""Edges that the density falls to zero at, inside the support of the parameters: no gradient sees them.

A likelihood whose support moves with a parameter has one: Uniform(0, θ) is zero at every θ below the largest outcome.
Trajectories end there in divergences, and no step size is small enough.
"""

import jax
import numpy as np
from jaxtyping import Bool, Float

from credo.compiling import brief
from credo.diagnose.startup import explain
from credo.model.target import Target
from credo.precision import in_double
from credo.storage import gather

MANY = 0.02  # of the transitions that diverged: fewer are the work of curvature, or no matter
BEYOND = 0.05  # of the points tried: one or another overflows in a model that has no edge
NUM_TRIED = 200


@in_double
def edge_sentence(
    target: Target, positions: Float[np.ndarray, "chain draw dim"], is_divergent: Bool[np.ndarray, "chain draw"]
) -> str | None:
    """What to say where points a few sds from the draws that diverged have no density; None where all have."""
    flat, divergent = positions.reshape(-1, positions.shape[-1]), np.flatnonzero(is_divergent)
    if len(divergent) < MANY * len(flat):
        return None
    few = gather(flat, np.arange(0, len(flat), max(1, len(flat) // NUM_TRIED))).astype(float)
    chosen = gather(flat, np.resize(divergent, NUM_TRIED)).astype(float)
    u = chosen + np.std(few, axis=0) * np.random.default_rng(0).normal(size=chosen.shape)
    is_zero = np.asarray(log_densities(target.flat(), u)) == -np.inf
    if np.mean(is_zero) < BEYOND:
        return None
    cause = explain(target, u[is_zero][0]).split(". ")[0].split(": guard")[0].rstrip(".")  # it may be meant so
    return (
        f"The density is zero at {np.mean(is_zero):.0%} of points about the draws that diverged: an edge, which no "
        f"gradient sees. At one of them: {cause[:1].lower()}{cause[1:]}. Take Slice(), or choose parameters and priors "
        "whose own support ends where the density does."
    )


@brief
def log_densities(target: Target, positions):
    return jax.lax.map(target.log_density, positions)
