"""The Gaussian as an importance proposal: how far it is from the target.

log wₛ = log p(uₛ, D) − log q(uₛ), uₛ = m + S zₛ, where log q(uₛ) = −½ zₛᵀzₛ up to a constant that k̂ does not see.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from credo.diagnose.pareto import proposal_figures
from credo.methods.optimise.objective import Objective, generator
from credo.posterior.kinds import Gaussian

NUM_DRAWS = 1_000  # k̂ to about ± 0.1, for a tenth of a second on most models
STREAM = 1_000  # of the key's random numbers, apart from those of the starts


def figures(objective: Objective, kind: Gaussian, key, chunk: int) -> dict[str, float]:
    """k̂ and the shifts of moments by ``NUM_DRAWS`` draws, ``chunk`` densities at a time; NaN or +inf where unknown."""
    num_chunks = -(-NUM_DRAWS // chunk)
    chunk = -(-NUM_DRAWS // num_chunks)
    z = generator(key, STREAM).normal(size=(num_chunks, chunk, kind.mean.size)).astype(kind.mean.dtype)
    log_weights, deviations = _weigh(objective.function, objective.args, kind, z)
    deviations = np.asarray(deviations).reshape(-1, kind.mean.size)
    return proposal_figures(deviations[:NUM_DRAWS], np.asarray(log_weights).ravel()[:NUM_DRAWS])


@functools.partial(jax.jit, static_argnames=("function",))
def _weigh(function: Callable, args, kind: Gaussian, z):
    """Log weights, up to a constant, and deviations from the mean in sds of their coordinates."""
    sd = jnp.sqrt(kind.scale.diagonal())

    def one(z):
        deviation = kind.scale.matvec(z)
        return function(args, kind.mean + deviation) + 0.5 * jnp.dot(z, z), deviation / sd

    return jax.vmap(one)(z[0]) if len(z) == 1 else jax.lax.map(jax.vmap(one), z)
