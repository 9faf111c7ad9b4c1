"""J Σ Jᵀ of outputs where each product with S is a linear solve (linalg/matrix_free.py): by draws of the parameters.

    J Σ Jᵀ ≈ (1/n) Σ_s (J S z_s)(J S z_s)ᵀ,   z_s ~ N(0, I)

n solves for any number of rows, whose means stay exact. Unbiased; the standard error of a variance is √(2/n) of it. Up
to n dimensions the z_s are √dim times the axes, and nothing is left to chance.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credo.compiling import sound
from credo.linalg.matrix_free import MatrixFree
from credo.linalg.operator import ScaleOperator
from credo.memory import footprint
from credo.model.target import Target
from credo.model.user_head import AnyHead
from credo.posterior.kinds import Gaussian
from credo.precision import abstract
from credo.predict.monte_carlo import outputs_at
from credo.predict.stream import MEMORY

NUM_SOLVES, FEWEST_DRAWS = 128, 16  # of outputs of rows, or of draws in their place
MAX_DEVIATIONS = 2**25  # numbers: 256 MB


def takes_solves(scale: ScaleOperator) -> bool:
    """Whether S z is found by linear solves."""
    parts = jax.tree.leaves(scale, is_leaf=lambda node: isinstance(node, MatrixFree))
    return any(isinstance(part, MatrixFree) for part in parts)


def deviations(kind: Gaussian, key: np.ndarray) -> Float[np.ndarray, "draw dim"]:
    """S z of as many z as memory holds, 128 at most. ``key``: key data."""
    dim = kind.mean.size
    if dim <= NUM_SOLVES:
        z = np.sqrt(dim) * np.eye(dim)
    else:
        number = int(np.clip(MAX_DEVIATIONS // dim, FEWEST_DRAWS, NUM_SOLVES))
        z = np.random.default_rng(key.tolist()).normal(size=(number, dim))
    return np.asarray(_moved(kind.scale, z.astype(kind.mean.dtype)))


@sound
def _moved(scale: ScaleOperator, z):
    return jax.vmap(scale.matvec)(z)


@functools.partial(sound, static_argnames=("head", "product"))
def outputs(
    target: Target, centre, steps, x, head: AnyHead, product: Callable
) -> tuple[Float[Array, "M K"], Float[Array, "M K *K"]]:
    """Mean and covariance of the outputs at rows ``x``, by the ``deviations`` of the parameters.

    ``product``: ``by_layers.joint`` for covariances (M, K, K), ``by_layers.alone`` for variances (M, K).
    """
    mean, forward = jax.linearize(lambda u: outputs_at(target, head, u, x), centre)

    def add(total, step):
        moved = forward(step)
        return total + product(moved[:, :, None], moved[:, :, None]), None

    start = jnp.zeros_like(product(mean[..., None], mean[..., None]))
    return mean, jax.lax.scan(add, start, steps)[0] / len(steps)


def rows_at_once(target: Target, head: AnyHead, x) -> int:
    """By what one more row computes."""

    def takes(number: int) -> int:
        rows = jax.tree.map(lambda leaf: abstract((number, *leaf.shape[1:]), leaf.dtype), x)
        u = abstract((target.dim,))
        return footprint(lambda u, x: outputs_at(target, head, u, x), u, rows)

    return max(1, MEMORY // (3 * max(takes(2) - takes(1), 1)))
