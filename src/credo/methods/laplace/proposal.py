"""The Gaussian as an importance proposal: how far it is from the target.

log wₛ = log p(uₛ, D) − log q(uₛ), uₛ = m + S zₛ, where log q(uₛ) = −½ zₛᵀzₛ up to a constant that k̂ does not see.
"""

import functools
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from credo.diagnose.pareto import is_undecided, proposal_figures
from credo.methods.optimise.objective import Objective, generator
from credo.posterior.kinds import Gaussian

NUM_DRAWS = 1_000  # at first: k̂ to about ± 0.1, for a tenth of a second on most models
STREAM = 1_000  # of the key's random numbers, apart from those of the starts


def figures(
    objective: Objective, kind: Gaussian, key, chunk: int, deadline: float = np.inf
) -> tuple[dict[str, float], int]:
    """k̂ and the shifts of moments, NaN or +inf where unknown; and by how many draws, ``chunk`` densities at a time.

    ``NUM_DRAWS``, doubled while they pass and more draws could change that; not after ``deadline``.
    """
    num_chunks = -(-NUM_DRAWS // chunk)
    chunk = -(-NUM_DRAWS // num_chunks)
    noise = generator(key, STREAM)
    deviations, log_weights = np.zeros((0, kind.mean.size)), np.zeros(0)
    num_rounds = 1
    while True:
        for _ in range(num_rounds):
            z = noise.normal(size=(num_chunks, chunk, kind.mean.size)).astype(kind.mean.dtype)
            more, further = jax.tree.map(np.asarray, _weigh(objective.function, objective.args, kind, z))
            log_weights = np.concatenate([log_weights, more.ravel()[:NUM_DRAWS]])
            deviations = np.concatenate([deviations, further.reshape(-1, kind.mean.size)[:NUM_DRAWS]])
        num_rounds = len(log_weights) // NUM_DRAWS
        if time.monotonic() > deadline or not is_undecided(deviations, log_weights):
            return proposal_figures(deviations, log_weights), len(log_weights)


@functools.partial(jax.jit, static_argnames=("function",))
def _weigh(function: Callable, args, kind: Gaussian, z):
    """Log weights, up to a constant, and deviations from the mean in sds of their coordinates."""
    sd = jnp.sqrt(kind.scale.diagonal())

    def one(z):
        deviation = kind.scale.matvec(z)
        return function(args, kind.mean + deviation) + 0.5 * jnp.dot(z, z), deviation / sd

    return jax.vmap(one)(z[0]) if len(z) == 1 else jax.lax.map(jax.vmap(one), z)
