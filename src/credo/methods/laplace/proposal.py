"""The Gaussian as an importance proposal: how far it is from the target.

log wₛ = log p(uₛ, D) − log q(uₛ), uₛ = m + S zₛ, where log q(uₛ) = −½ zₛᵀzₛ up to a constant that k̂ does not see.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from credo.compiling import brief, has_many_rows
from credo.diagnose.pareto import judged_shape, smooth
from credo.methods.optimise.objective import Objective, generator
from credo.methods.particles.correction import correct, gradients
from credo.methods.particles.elsewhere import Climber
from credo.methods.particles.reach import LARGEST, reach
from credo.model.target import Target
from credo.posterior.kinds import Gaussian

NUM_DRAWS = 1_000  # at first: k̂ to about ± 0.1, for a tenth of a second on most models
MOST_HELD = 2**26  # coordinates of draws in memory: 0.5 GB
FEW_DRAWS = 100  # of so many coordinates that the draws are not kept: k̂ alone
STREAM = 1_000  # of the key's random numbers, apart from those of the starts


def figures(
    objective: Objective, kind: Gaussian, target: Target, key, chunk: int, deadline: float = np.inf
) -> tuple[dict[str, float], int]:
    """k̂ and the shifts of moments, NaN or +inf where unknown; and by how many draws, ``chunk`` densities at a time.

    Rounds of ``NUM_DRAWS``, as many as can tell whether they pass; not after ``deadline``.
    """
    if NUM_DRAWS * kind.mean.size > MOST_HELD:
        return _tail_alone(objective, kind, key, min(chunk, FEW_DRAWS)), FEW_DRAWS
    num_chunks = -(-NUM_DRAWS // chunk)
    chunk = -(-NUM_DRAWS // num_chunks)
    noise = generator(key, STREAM)

    def draw(i: int):
        z = noise.normal(size=(num_chunks, chunk, kind.mean.size)).astype(kind.mean.dtype)
        log_weights, u = jax.tree.map(np.asarray, _weigh(objective.function, objective.args, kind, z))
        return u.reshape(-1, kind.mean.size)[:NUM_DRAWS], log_weights.ravel()[:NUM_DRAWS]

    def weigh(z):
        white = z.reshape(num_chunks, chunk, -1).astype(kind.mean.dtype)
        log_weights, u = jax.tree.map(np.asarray, _weigh(objective.function, objective.args, kind, white))
        return u.reshape(z.shape), log_weights.ravel()

    def reached(i: int):
        return reach(weigh, i, num_draws=num_chunks * chunk, dim=kind.mean.size, key=key)

    corrected = correct(
        draw,
        lambda u: gradients(objective.function, objective.args, u, chunk),
        kind,
        target,
        deadline,
        reach=reached if kind.mean.size <= LARGEST and kind.scale.rank == kind.mean.size else None,
        climber=Climber.of(target, objective),
    )
    return corrected.figures, corrected.num_draws


def _tail_alone(objective: Objective, kind: Gaussian, key, chunk: int) -> dict[str, float]:
    """k̂ of a few draws, of which no more than ``chunk`` are in memory."""
    noise, log_weights = generator(key, STREAM), []
    for first in range(0, FEW_DRAWS, chunk):
        z = noise.normal(size=(min(chunk, FEW_DRAWS - first), kind.mean.size)).astype(kind.mean.dtype)
        log_weights.append(np.asarray(_weigh_alone(objective.function, objective.args, kind, z)))
    found = np.concatenate(log_weights)
    return {"pareto_k": float(judged_shape(found, smooth(found).k_hat))}


@functools.partial(brief, static_argnames=("function",))
def _weigh_alone(function: Callable, args, kind: Gaussian, z):
    """Log weights without the positions."""

    def one(z):
        z = kind.scale.white(z)
        return function(args, kind.mean + kind.scale.matvec(z)) + 0.5 * jnp.dot(z, z)

    return jax.lax.map(one, z)


@functools.partial(brief, static_argnames=("function",), is_large=lambda _, args, *__: has_many_rows(args))
def _weigh(function: Callable, args, kind: Gaussian, z):
    """Log weights, up to a constant, and where they were taken."""

    def one(z):
        z = kind.scale.white(z)
        u = kind.mean + kind.scale.matvec(z)
        return function(args, u) + 0.5 * jnp.dot(z, z), u

    return jax.vmap(one)(z[0]) if len(z) == 1 else jax.lax.map(jax.vmap(one), z)
