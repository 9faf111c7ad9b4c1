"""A covariance of some coordinates, the others known: Σ = E Σ_s Eᵀ, E the columns of the identity in ``index``.

The Gaussian that has it lives on a plane. Its density is that of the free coordinates, and zero off the plane:
``solve`` gives infinity for a deviation of a fixed coordinate beyond rounding, and ``log_det`` is that of S_s.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from credo.compiling import brief
from credo.linalg.blocks import Spans, size_of
from credo.linalg.operator import ScaleOperator, Stored
from credo.status import CredoError


class Embedded(ScaleOperator):
    """``Embedded(inner, spans, size)``: ``inner`` acts on the coordinates in ``spans``, others of ``size`` are fixed.

    CredoError where the operator has another dimension than the spans.
    """

    inner: ScaleOperator
    spans: Spans = eqx.field(static=True)
    size: int = eqx.field(static=True)

    @classmethod
    def at(cls, index: Int[np.ndarray, " free"], inner: ScaleOperator, size: int) -> "Embedded":
        """With the coordinates ``index``, ascending."""
        ends = np.flatnonzero(np.diff(index) != 1)
        starts, stops = index[np.append(0, ends + 1)], index[np.append(ends, len(index) - 1)] + 1
        return cls(inner, tuple(zip(starts.tolist(), stops.tolist(), strict=True)), size)

    def __check_init__(self):
        free = size_of(self.spans)
        if self.inner.dim != free:
            raise CredoError(f"An operator of dimension {self.inner.dim} was given for {free} coordinates.")

    @property
    def index(self) -> Int[np.ndarray, " free"]:
        """The coordinates that vary: known, whatever is traced."""
        return np.concatenate([np.arange(*span) for span in self.spans])

    @property
    def dim(self) -> int:
        return self.size

    @property
    def rank(self) -> int:
        return self.inner.rank

    def white(self, z) -> Float[Array, " dim"]:
        return self._spread(jnp.asarray(z)[self.index])

    def matvec(self, z) -> Float[Array, " dim"]:
        z = jnp.asarray(z)
        return self._spread(self.inner.matvec(z[self.index]))

    def transpose_matvec(self, v) -> Float[Array, " dim"]:
        return self._spread(self.inner.transpose_matvec(jnp.asarray(v)[self.index]))

    def transpose_matvecs(self, rows) -> Float[Array, "M rank"]:
        return self.inner.transpose_matvecs(jnp.asarray(rows)[:, self.index])

    def solve(self, v) -> Float[Array, " dim"]:
        v = jnp.asarray(v)
        rounding = float(np.sqrt(jnp.finfo(v.dtype).eps))
        off = jnp.where(jnp.abs(v) > rounding, jnp.asarray(jnp.inf, v.dtype), jnp.zeros((), v.dtype))
        return off.at[self.index].set(self.inner.solve(v[self.index]).astype(v.dtype))

    def log_det(self) -> Float[Stored, ""]:
        return self.inner.log_det()

    def diagonal(self) -> Float[Array, " dim"]:
        return _diagonal(self)

    def dense(self) -> Float[Array, "dim dim"]:
        inner = self.inner.dense()
        return jnp.zeros((self.size, self.size), inner.dtype).at[jnp.ix_(self.index, self.index)].set(inner)

    def _spread(self, part) -> Float[Array, " dim"]:
        return jnp.zeros(self.size, part.dtype).at[self.index].set(part)


@brief
def _diagonal(scale: Embedded):
    return scale._spread(jnp.asarray(scale.inner.diagonal()))
