"""A metric that may turn out plain or rich, in one compiled program and at the cost of the one it is."""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from credo.linalg.diagonal import Diagonal
from credo.linalg.operator import ScaleOperator, Stored


class Switched(ScaleOperator):
    """S = ``rich`` where ``is_rich``, else ``plain``."""

    plain: Diagonal
    rich: ScaleOperator
    is_rich: Bool[Stored | np.bool, ""]

    @property
    def dim(self) -> int:
        return self.plain.dim

    def matvec(self, z) -> Float[Array, " dim"]:
        return self._either(lambda s: s.matvec(z))

    def transpose_matvec(self, v) -> Float[Array, " dim"]:
        return self._either(lambda s: s.transpose_matvec(v))

    def solve(self, v) -> Float[Array, " dim"]:
        return self._either(lambda s: s.solve(v))

    def log_det(self) -> Float[Array, ""]:
        return self._either(lambda s: s.log_det())

    def diagonal(self) -> Float[Array, " dim"]:
        return self._either(lambda s: s.diagonal())

    def dense(self) -> Float[Array, "dim dim"]:
        return self._either(lambda s: s.dense())

    def _either(self, use):
        return lax.cond(jnp.asarray(self.is_rich), lambda: use(self.rich), lambda: use(self.plain))
