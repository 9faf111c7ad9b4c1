"""The whole Gauss-Newton matrix of a network with more weights than the data have outputs, from its few directions.

With J̃ the R rows Lᵢᵀ Jᵢ of the weighted Jacobian, H = J̃ᵀ J̃ has R eigenvalues at most, those of J̃ J̃ᵀ = V s Vᵀ, along
U = J̃ᵀ V s^−½: with these the evidence of noise and precisions is exact (pieces.py). Factors of layers count more
directions than the data have outputs, and their evidence takes for noise what the weights explain.
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Normal

from credo.batches import in_batches
from credo.compiling import brief
from credo.linalg.singular import along
from credo.methods.laplace import layered
from credo.methods.laplace.curvature import Curvature, OuterProducts
from credo.methods.laplace.structure import Dense
from credo.methods.optimise.hyperparameters import num_hyperparameters
from credo.model.data import Rows
from credo.model.distributions import unwrapped
from credo.model.target import Target
from credo.traced import by_shapes

MOST_ROWS, MOST_NUMBERS = 2_000, 2 * 10**7  # of J̃: its products take seconds, and 160 MB
LEAST = 1e-10  # of the largest eigenvalue: smaller ones have no eigenvectors, for rounding


def serves(target: Target, curvature: Curvature, num_outputs: int) -> bool:
    """Whether J̃, of data in memory, has fewer rows than columns and is small, and the weights have normal laws."""
    if target.source is not None or not (isinstance(curvature, OuterProducts) and _has_normal_weights(target)):
        return False
    num_rows = target.size * curvature.width(num_outputs)
    return (
        num_rows < target.dim - num_hyperparameters(target)
        and num_rows <= MOST_ROWS
        and num_rows * target.dim <= MOST_NUMBERS
    )


@by_shapes
def _has_normal_weights(target: Target) -> bool:
    """Given the hyperparameters."""
    laws: dict[str, bool] = {}
    target.model.prior.survey(lambda name, law, _: laws.update({name: isinstance(unwrapped(law), Normal)}))
    return all(is_normal for name, is_normal in laws.items() if name.split(".")[0] == target.model.weights_name)


@dataclass(frozen=True)
class Gram(Dense):
    """The same matrix by its few directions: what hyperparameters are tuned by."""

    def directions(self, curvature: OuterProducts, target: Target, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(s, U) with H = U diag(s) Uᵀ and U (dim, R) orthonormal."""
        J = np.asarray(_rows(curvature, target, jnp.asarray(u)))
        least, J = max(LEAST, 10 * float(np.finfo(J.dtype).eps)), J.astype(np.float64)
        J = J[:, num_hyperparameters(target) :]
        has_word = np.any(J != 0, axis=1)  # not of outputs that are the hyperparameters' alone, such as a scale
        J = J[has_word] if has_word.any() else J[:1]
        size = float(np.max(np.abs(J))) or 1.0  # whose square may be no number
        J /= size
        s, V = (each[..., ::-1] for each in np.linalg.eigh(J @ J.T))  # the largest first
        s = np.where(s > least * max(float(s[0]), np.finfo(float).tiny), s, 0.0)
        U = along(J.T, s, V)
        return s * size**2, np.concatenate([np.zeros((len(u) - len(U), len(s))), U])


@functools.partial(brief, static_argnames=("curvature",))
def _rows(curvature: OuterProducts, target: Target, u):
    """J̃ (rows · columns, dim)."""
    weights = jnp.ones(target.size, u.dtype) if target.weights is None else jnp.asarray(target.weights, u.dtype)
    roots = curvature.roots(target, u, Rows(target.x, target.y, weights))

    def of_row(pair):
        row, root = pair
        return root.T @ jax.jacrev(lambda u: layered.outputs_of_row(target, u, row))(u)

    return in_batches(of_row, (target.x, roots), 32).reshape(-1, u.size)
