"""Independent coordinates: S = diag(s), Σ = diag(s²)."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credo.linalg.operator import ScaleOperator, Stored, is_known
from credo.status import CredoError


class Diagonal(ScaleOperator):
    """``Diagonal(scale)`` with the standard deviations s, shape (dim,). CredoError where one is not positive."""

    scale: Float[Stored, " dim"]

    def __check_init__(self):
        check_positive("standard deviation", self.scale)

    @property
    def dim(self) -> int:
        return self.scale.shape[0]

    def matvec(self, z) -> Float[Array, " dim"]:
        return jnp.multiply(self.scale, z)

    def transpose_matvec(self, v) -> Float[Array, " dim"]:
        return jnp.multiply(self.scale, v)

    def solve(self, v) -> Float[Array, " dim"]:
        return jnp.divide(v, self.scale)

    def log_det(self) -> Float[Stored, ""]:
        if is_known(self.scale):  # nothing to compile
            return np.asarray(np.sum(np.log(self.scale)))
        return jnp.sum(jnp.log(self.scale))

    def diagonal(self) -> Float[Stored, " dim"]:
        return np.square(self.scale) if is_known(self.scale) else jnp.square(self.scale)

    def dense(self) -> Float[Array, "dim dim"]:
        return jnp.diag(self.diagonal())


def check_positive(what: str, values: Float[Stored, " n"]) -> None:
    """CredoError where a known value is not positive and finite."""
    if not is_known(values):
        return
    bad = np.flatnonzero(~((np.asarray(values) > 0) & np.isfinite(values)))
    if bad.size:
        raise CredoError(
            f"The {what} of coordinate {bad[0]} is {np.asarray(values)[bad[0]]:.3g} ({bad.size} of {np.size(values)} "
            "are not positive and finite): no Gaussian has it. Look for a parameter that data and prior leave free."
        )
