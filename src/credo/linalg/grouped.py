"""Groups of coordinates of one size, each with a covariance of its own; the coordinates in no group are known.

As in linalg/embedded.py the Gaussian lives on a plane, and its density is that of the free coordinates. Here these may
lie anywhere, and many groups are one array: the weights of each output of a layer, or those that pruning has left.
"""

import functools

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int

from credo.compiling import TINY, brief
from credo.linalg.operator import ScaleOperator, Stored
from credo.status import CredoError


class Grouped(ScaleOperator):
    """``Grouped(index, roots, size)``: lower triangular ``roots`` (group, n, n) at coordinates ``index`` (group, n).

    ``size``: of all coordinates. CredoError where the shapes differ.
    """

    index: Int[Stored, "group n"]
    roots: Float[Stored, "group n n"]
    size: int = eqx.field(static=True)

    def __check_init__(self):
        if self.roots.shape != (*self.index.shape, self.index.shape[1]):
            raise CredoError(f"Roots of shape {self.roots.shape} were given for groups of {self.index.shape}.")

    @classmethod
    def of_variances(cls, index: np.ndarray, sd: np.ndarray, size: int) -> "Grouped":
        """Single coordinates ``index`` (n,) that vary by ``sd``."""
        return cls(index[:, None], sd[:, None, None], size)

    @property
    def dim(self) -> int:
        return self.size

    @property
    def rank(self) -> int:
        return int(np.prod(self.index.shape))

    def matvec(self, z) -> Float[Array, " dim"]:
        return self._spread(jnp.einsum("gij,gj->gi", self.roots, jnp.asarray(z)[self.index]))

    def transpose_matvec(self, v) -> Float[Array, " dim"]:
        return self._spread(jnp.einsum("gij,gi->gj", self.roots, jnp.asarray(v)[self.index]))

    def solve(self, v) -> Float[Array, " dim"]:
        """Infinite where a fixed coordinate deviates by more than rounding."""
        v = jnp.asarray(v)
        rounding = float(np.sqrt(jnp.finfo(v.dtype).eps))
        off = jnp.where(jnp.abs(v) > rounding, jnp.asarray(jnp.inf, v.dtype), jnp.zeros((), v.dtype))
        white = solve_triangular(jnp.asarray(self.roots), v[self.index][..., None], lower=True)[..., 0]
        return off.at[self.index].set(white.astype(v.dtype))

    def log_det(self) -> Float[Array, ""]:
        return jnp.sum(jnp.log(jnp.abs(jnp.diagonal(self.roots, axis1=-2, axis2=-1))))

    def diagonal(self) -> Float[Array, " dim"]:
        return _diagonal(self)

    def dense(self) -> Float[Array, "dim dim"]:
        blocks = jnp.einsum("gij,gkj->gik", self.roots, self.roots)
        matrix = jnp.zeros((self.size, self.size), blocks.dtype)
        return matrix.at[self.index[:, :, None], self.index[:, None, :]].set(blocks)

    def _spread(self, part) -> Float[Array, " dim"]:
        return jnp.zeros(self.size, part.dtype).at[self.index].set(part)


@functools.partial(brief, options=TINY)  # on the host each operation would be a program of its own
def _diagonal(scale: Grouped):
    return scale._spread(jnp.sum(jnp.square(scale.roots), axis=-1))
