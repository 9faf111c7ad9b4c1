"""A covariance that is known by products with its inverse alone: Σ = A⁻¹, with no matrix formed.

In units D = diag(d) in which A has a diagonal near one, Ã = D A D, the root is S = D Ã^−½, square and invertible:

    S Sᵀ = D Ã⁻¹ D = A⁻¹,   S⁻¹ = Ã Ã^−½ D⁻¹

and Ã^−½ = (2/π) ∫₀^∞ (t² I + Ã)⁻¹ dt. With t = √m sc(v), sc Jacobi's function of parameter 1 − m/M, the integrand is
periodic and analytic in v where the eigenvalues lie in [m, M], and the midpoint rule of Q nodes has an error of order
exp(−2π² Q / (log(M/m) + 3)) (Hale, Higham & Trefethen 2008, section 4):

    Ã^−½ ≈ Σⱼ wⱼ (Ã + σⱼ I)⁻¹,   σⱼ = m sc²(vⱼ),   wⱼ = (2 K √m / (π Q)) dn(vⱼ) / cn²(vⱼ),   vⱼ = (j − ½) K / Q

Conjugate gradients solve all these systems with one product a step (linalg/krylov.py; Pleiss et al. 2020). Where
|rⱼ| ≤ ε |z| the error of Ã^−½ z is at most ε |z| / √m.
"""

from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float

from credo.batches import in_batches
from credo.convolutions import canonical
from credo.linalg.krylov import Vector, shifted_sum
from credo.linalg.operator import ScaleOperator, Stored

MOST_NODES = 40
LOOSEST = 0.1  # a relative residual above it is no solution: the answer is NaN


class Product(eqx.Module):
    """A symmetric positive definite A, by what it does."""

    @abstractmethod
    def linear(self) -> Callable[[Vector], Vector]:
        """v ↦ A v, with the work that does not depend on v done once."""


class MatrixFree(ScaleOperator):
    """``product``: A. ``unit``: d. ``shifts``, ``weights``: σ and w. The rest is found once by who makes this.

    ``variances``: diag Σ, or an estimate. ``log_det_root``: log |det S|, or an estimate. ``tolerance``: of solves, in
    ``max_products`` each at most; what is not solved to a relative residual of 0.1 by then is NaN. ``at_once``: solves.
    """

    product: Product
    unit: Float[Stored, " dim"]
    shifts: Float[Stored, " shift"]
    weights: Float[Stored, " shift"]
    variances: Float[Stored, " dim"]
    log_det_root: Float[Stored, ""]
    tolerance: float = eqx.field(static=True)
    max_products: int = eqx.field(static=True)
    at_once: int = eqx.field(static=True)

    @property
    def dim(self) -> int:
        return self.unit.shape[0]

    def matvec(self, z) -> Float[Array, " dim"]:
        return jnp.multiply(self.unit, self._root(z))

    def transpose_matvec(self, v) -> Float[Array, " dim"]:
        return self._root(jnp.multiply(self.unit, v))

    def solve(self, v) -> Float[Array, " dim"]:
        return self._scaled()(self._root(jnp.divide(v, self.unit)))

    def log_det(self) -> Float[Stored, ""]:
        return self.log_det_root

    def diagonal(self) -> Float[Stored, " dim"]:
        return self.variances

    def dense(self) -> Float[Array, "dim dim"]:
        root = jax.vmap(self.matvec)(jnp.eye(self.dim, dtype=self.unit.dtype))  # row i: S e_i
        return root.T @ root

    def _scaled(self) -> Callable[[Vector], Vector]:
        """v ↦ Ã v."""
        product, d = self.product.linear(), jnp.asarray(self.unit)
        return lambda v: d * product(d * v)

    def _root(self, z) -> Float[Array, " dim"]:
        """Ã^−½ z, linear and symmetric in z: derivatives in z are more of it, and no loop is differentiated."""

        def solve(_, z):
            return _roots(self, z[None])[0]

        z = jnp.asarray(z, self.unit.dtype)
        return jax.lax.custom_linear_solve(
            lambda v: self._scaled()(solve(None, v)), z, solve, transpose_solve=solve, symmetric=True
        )


@custom_vmap
def _roots(scale: MatrixFree, Z: Float[Array, "n dim"]) -> Float[Array, "n dim"]:
    """Ã^−½ of each row, ``at_once`` together: vmap would hold the directions of all of them."""
    apply = scale._scaled()
    shifts, weights = jnp.asarray(scale.shifts), jnp.asarray(scale.weights)

    def one(z):
        found, residual = shifted_sum(apply, z, shifts, weights, scale.tolerance, scale.max_products)
        return jnp.where(residual <= LOOSEST, found, jnp.nan)

    if len(Z) == 1:
        return one(Z[0])[None]
    return canonical(lambda Z: in_batches(one, Z, scale.at_once))(Z)


@_roots.def_vmap
def _roots_of_batch(axis_size: int, in_batched, scale: MatrixFree, Z):
    of_scale, is_batched = in_batched
    if not any(jax.tree.leaves(of_scale)):
        return _roots(scale, Z.reshape(-1, Z.shape[-1])).reshape(Z.shape), True
    changing, fixed = eqx.partition(scale, of_scale)

    def one(pair):
        return _roots(eqx.combine(pair[0], fixed), pair[1])

    Z = Z if is_batched else jnp.broadcast_to(Z, (axis_size, *Z.shape))
    return jax.lax.map(one, (changing, Z)), True


def inverse_root(least: float, most: float, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
    """(σ, w), rising, with |√λ Σ w / (λ + σ) − 1| ≤ ``tolerance`` for λ in [least, most], if 40 nodes can."""
    grid = np.geomspace(least, most, 500)
    K, parameter = scipy.special.ellipkm1(least / most), 1 - least / most
    shifts = weights = np.ones(1)
    for number in range(2, MOST_NODES + 1):
        sn, cn, dn, _ = scipy.special.ellipj((np.arange(number) + 0.5) * K / number, parameter)
        shifts, weights = least * (sn / cn) ** 2, 2 * K * np.sqrt(least) / (np.pi * number) * dn / cn**2
        error = np.sqrt(grid) * np.sum(weights / (grid[:, None] + shifts), axis=1) - 1
        if np.max(np.abs(error)) <= tolerance:
            break
    return shifts, weights
