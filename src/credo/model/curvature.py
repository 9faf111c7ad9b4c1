"""The curvature A = Λ + Σᵢ Jᵢᵀ Fᵢ Jᵢ of a target's log density at a position, by products with vectors.

Jᵢ is the Jacobian of the natural outputs of row i and Fᵢ a matrix in these, Λ the curvature of the prior. Neither A nor
a Jacobian is formed: one product takes a derivative forward and one backward through the network at every row, a chunk
of rows at a time.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from credo.linalg.krylov import Vector
from credo.linalg.matrix_free import Product
from credo.linalg.operator import Stored
from credo.linalg.products import second_order
from credo.model.data import Rows
from credo.model.fisher import Fisher
from credo.model.target import Target
from credo.status import CredoError


class Curvature(Product):
    """A over the coordinates ``free`` (ascending; None for all) of the flat ``target`` at ``centre``.

    ``target`` None: of a file read without its model, and nothing can be multiplied.
    ``prior``: the diagonal of Λ, or None for products with the Hessian of the target's own prior. ``fisher``: F, None
    for the Hessian of the log density in the place of all this. ``chunk``: rows at a time; ``size``: of all.
    """

    target: Target | None
    centre: Float[Stored, " dim"]
    prior: Float[Stored, " free"] | None
    free: Int[Stored, " free"] | None
    fisher: Fisher | None = eqx.field(static=True)
    chunk: int = eqx.field(static=True)
    size: int = eqx.field(static=True)

    def linear(self) -> Callable[[Vector], Vector]:
        target, start = self.target, self._start
        if target is None or target.size != self.size:
            raise CredoError(
                "This posterior draws by linear solves with its model and data, which the file does not hold: load it "
                "with the target that was fitted, credo.load(path, model.given(x, y))."
            )
        if self.fisher is None:
            *_, product = second_order(lambda v: target.log_density(self._moved(v)), start)
            return lambda v: -product(v)
        of_rows = self._of_rows(target)
        if self.prior is not None:
            Λ = jnp.asarray(self.prior, start.dtype)
            return lambda v: Λ * v + of_rows(v)
        *_, of_prior = second_order(lambda v: target.log_prior(self._moved(v)), start)
        return lambda v: of_rows(v) - of_prior(v)

    @property
    def _start(self):
        u = jnp.asarray(self.centre)
        return u if self.free is None else u[jnp.asarray(self.free)]

    def _moved(self, v):
        return v if self.free is None else jnp.asarray(self.centre, v.dtype).at[jnp.asarray(self.free)].set(v)

    def _of_rows(self, target: Target) -> Callable[[Vector], Vector]:
        """v ↦ Σᵢ Jᵢᵀ Fᵢ Jᵢ v."""
        size = target.size
        if self.chunk >= size and target.source is None:
            return self._of(target, self._weighted(Rows(target.x, target.y, target.weights), size))
        number = -(-size // self.chunk)
        width = -(-size // number)

        def of_chunk(v, first):
            place = first + jnp.arange(width)
            index = jnp.minimum(place, size - 1)
            if target.source is None:
                everything = Rows(target.x, target.y, target.weights)
                rows = jax.tree.map(lambda leaf: jnp.asarray(leaf)[index], everything)
            else:
                rows = target.rows(index)
            rows = self._weighted(rows, width)
            is_new = place < size  # what fills up the last chunk does not count
            return self._of(target, rows._replace(weights=jnp.where(is_new, rows.weights, 0)))(v)

        def product(v):
            def add(total, first):
                return total + of_chunk(v, first), None

            return jax.lax.scan(add, jnp.zeros_like(v), width * jnp.arange(number))[0]

        return product

    def _weighted(self, rows: Rows, number: int) -> Rows:
        return rows if rows.weights is not None else rows._replace(weights=jnp.ones(number, self._start.dtype))

    def _of(self, target: Target, rows: Rows) -> Callable[[Vector], Vector]:
        head = target.head
        assert head is not None  # checked by who asks for this curvature

        def outputs(v):
            params = target.constrain(self._moved(v))
            return head.natural(target.likelihood_distribution(params, rows.x), params, rows.x)

        _, forward = jax.linearize(outputs, self._start)
        back = jax.linear_transpose(forward, self._start)
        assert self.fisher is not None
        times = self.fisher.times(target, jnp.asarray(self.centre), rows)
        return lambda v: back(times(forward(v)))[0]
