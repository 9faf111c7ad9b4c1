"""The Gaussian as an importance proposal: how far it is from the target, in one number.

log wₛ = log p(uₛ, D) − log q(uₛ), uₛ = m + S zₛ, where log q(uₛ) = −½ zₛᵀzₛ up to a constant that k̂ does not see.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from credo.diagnose.pareto import smooth
from credo.methods.optimise.objective import Objective, generator
from credo.posterior.kinds import Gaussian

NUM_DRAWS = 1_000  # k̂ to about ± 0.1, for a tenth of a second on most models
STREAM = 1_000  # of the key's random numbers, apart from those of the starts


def pareto_k(objective: Objective, kind: Gaussian, key, chunk: int) -> float:
    """k̂ of ``NUM_DRAWS`` draws, ``chunk`` densities at a time; NaN or +inf where it cannot be known."""
    num_chunks = -(-NUM_DRAWS // chunk)
    chunk = -(-NUM_DRAWS // num_chunks)
    z = generator(key, STREAM).normal(size=(num_chunks, chunk, kind.mean.size)).astype(kind.mean.dtype)
    log_weights = np.asarray(_log_weights(objective.function, objective.args, kind, z))
    return float(smooth(log_weights.ravel()[:NUM_DRAWS]).k_hat)


@functools.partial(jax.jit, static_argnames=("function",))
def _log_weights(function: Callable, args, kind: Gaussian, z):
    def one(z):
        return function(args, kind.mean + kind.scale.matvec(z)) + 0.5 * jnp.dot(z, z)

    return jax.vmap(one)(z[0]) if len(z) == 1 else jax.lax.map(jax.vmap(one), z)
