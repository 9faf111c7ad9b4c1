"""The outputs of a Gaussian posterior at rows of inputs: z(u) ≈ z(μ) + J (u − μ), so that z ~ N(z(μ), J Σ Jᵀ) at each.

μ and Σ = S Sᵀ are those of the posterior, J (K, dim) the Jacobian of a row's outputs in the unconstrained parameters
(MacKay 1992; Immer, Korzepa & Bauer 2021 for networks). Exact where z is linear in them. What the head has beside z
(degrees of freedom, trials) stands at μ.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from credo.algorithm import stream
from credo.compiling import brief
from credo.cores import num_cores
from credo.linalg.operator import Stored
from credo.model.layers import Layers, find_layers
from credo.model.target import Target
from credo.model.user_head import AnyHead, UserHead
from credo.posterior.kinds import Gaussian, Kind, Point
from credo.posterior.product import as_gaussian
from credo.predict import by_draws, by_layers
from credo.predict.inputs import Table, widened
from credo.predict.links import LINKS
from credo.predict.monte_carlo import likelihood_at, outputs_at, without_data
from credo.predict.own import stands_alone
from credo.predict.stream import MEMORY, Stream, even
from credo.status import CredoError
from credo.traced import by_shapes

if TYPE_CHECKING:
    from credo.posterior.posterior import Posterior

MANY_OUTPUTS = 64  # of a row: above it they are drawn: covariances of all pairs would be formed and factored row by row
CACHED = 2**25  # bytes of the work on one chunk of rows by layers: larger arrays wait for memory half of the time
MAX_HELD = 2**28  # bytes of covariances; of more rows they are found again chunk by chunk


class Projection(NamedTuple):
    """The rows, each with the mean (M, K) and covariance (M, K, K) of its outputs; None where they are yet to find.

    Of a rule that looks at each output by itself ``covariance`` is the variances (M, K), until someone asks for more.
    """

    x: Any
    mean: Any
    covariance: Any


class Outlook(eqx.Module):
    """How the outputs of rows are found. ``chunk``: rows at a time; None where they cannot be cut.

    ``kind``: the posterior in float64, but for a dense root of its covariance where ``prepared`` stands for that.
    """

    target: Target
    kind: Kind
    head: AnyHead = eqx.field(static=True)
    num_outputs: int = eqx.field(static=True)
    is_cut: bool = eqx.field(static=True)
    is_layered: bool = eqx.field(static=True)
    chunk: int | None = eqx.field(static=True)
    prepared: Any = None  # of the covariance, where it is taken by layers; deviations of u, where by draws
    reached: tuple[int, ...] | None = eqx.field(static=True, default=None)  # the outputs that u changes; None for all
    is_drawn: bool = eqx.field(static=True, default=False)

    def rows(self, table: Table, is_alone: bool = False) -> Projection:
        """All rows projected, or left to be where that would take too much memory.

        ``is_alone``: the variance of each output alone, where rows can be asked again for their covariances.
        """
        is_alone, num_rows = is_alone and self.is_cut, table.size or 1
        size = self.num_outputs if is_alone else self.num_outputs**2
        if self.chunk is not None and 8 * num_rows * size > MAX_HELD:
            return Projection(table.x, None, None)
        project = Outlook.variances if is_alone else Outlook.project
        return Projection(table.x, *Stream(self, table.x, table.size, self.chunk, at_once=self.at_once)(project))

    @property
    def at_once(self) -> int:
        """How many chunks, of the size that a core's cache holds."""
        return min(num_cores(), MEMORY // CACHED) if self.is_layered else 1

    def project(self, x):
        """Means (M, K) and covariances (M, K, K)."""
        return self._outputs(x, by_layers.joint)

    def variances(self, x):
        """Means and variances, (M, K) both."""
        return self._outputs(x, by_layers.alone)

    def _outputs(self, x, product: Callable):
        if self.is_drawn:
            return by_draws.outputs(self.target, centre_of(self.kind), self.prepared, x, self.head, product)
        given = self.target, self.kind, self.prepared
        return _outputs(given, x, self.head, self.is_cut, self.is_layered, product, self.reached)

    def full(self, rows: Projection) -> Projection:
        """With covariances."""
        is_full = rows.mean is not None and rows.covariance.ndim == 3
        return rows if is_full else Projection(rows.x, *self.project(rows.x))

    def marginal(self, rows: Projection) -> Projection:
        """With variances at least."""
        return rows if rows.mean is not None else Projection(rows.x, *self.variances(rows.x))


def centre_of(kind: Kind) -> Float[Stored, " dim"]:
    """Where the outputs are linearised."""
    assert isinstance(kind, Gaussian | Point)  # as ``outlook`` has checked
    return kind.mean if isinstance(kind, Gaussian) else kind.position


def outlook(posterior: "Posterior", table: Table, rule: str, key) -> Outlook:
    kind, target = as_gaussian(posterior.kind), without_data(posterior.target)
    if not isinstance(kind, Gaussian | Point):
        raise CredoError(
            f"{rule}() needs a Gaussian posterior, and this one is {type(kind).__name__}: use MonteCarlo(), or "
            "fit Laplace()."
        )
    if table.new_rows:
        names = ", ".join(name for name, _ in table.new_rows)
        raise CredoError(
            f"x has unseen levels of {names}, drawn from their prior given each draw: use MonteCarlo() for them."
        )
    head, num_outputs, is_cut = _head(target, table.x, size=table.size)
    is_cut = is_cut and stands_alone(target, table.x, table.size or 1)
    if head is None or (isinstance(head, UserHead) and rule != "Linearised"):
        known = ", ".join(name for name, link in LINKS.items() if link.column is None)
        instead = "MonteCarlo()" if head is None else "Linearised()"
        raise CredoError(f"{rule}() knows outcomes that are {known}; this one is not: use {instead}.")
    num_rows = table.size or 1
    chunk = even(num_rows, MEMORY // (8 * 8 * num_outputs * target.dim)) if is_cut else None
    plan, reached = None, None
    if is_cut and isinstance(kind, Gaussian):
        row = jax.tree.map(lambda leaf: leaf[0], table.x)
        _, index = by_layers.inner_of(kind.scale)
        free = None if index is None else np.asarray(index).tobytes()
        found = _layers(target, widened(kind.mean), row, head=head, free=free)
        if found is not None:
            layers, reached = found
            plan = by_layers.plan(layers, reached, kind.scale, num_rows)
        if plan is not None and plan.prepared is not None:
            kind = Gaussian(kind.mean, by_layers.without_root(kind.scale))
    kind = widened(kind)
    is_many = num_outputs <= MANY_OUTPUTS and (not is_cut or num_rows * num_outputs > by_draws.NUM_SOLVES)
    if is_many and isinstance(kind, Gaussian) and by_draws.takes_solves(kind.scale):
        steps = by_draws.deviations(kind, stream(key, 7))
        chunk = by_draws.rows_at_once(target, head, table.x) if is_cut else None
        return Outlook(target, kind, head, num_outputs, is_cut, False, chunk, steps, is_drawn=True)
    if plan is None:
        return Outlook(target, kind, head, num_outputs, is_cut, False, chunk, reached=reached)
    chunk = even(num_rows, CACHED // (centre_of(kind).dtype.itemsize * plan.width))  # far fewer numbers than weights
    return Outlook(target, kind, head, num_outputs, is_cut, True, chunk, plan.prepared)


@by_shapes
def _head(target: Target, x, *, size: int | None) -> tuple[AnyHead | None, int, bool]:
    """(head, number of outputs, whether a row can be evaluated alone), by an abstract evaluation."""

    def look(x):
        found: list = []

        def evaluate(target, x):
            params = target.constrain(jnp.zeros(target.dim))
            d = likelihood_at(target, params, x)
            found.append(target.model.head_of(d, x))
            return jnp.zeros(()) if found[0] is None else found[0].natural(d, params, x)

        return jax.eval_shape(evaluate, target, x).shape, found[0]

    try:
        shape, head = look(x)
    except CredoError:
        raise
    except (TypeError, ValueError) as error:
        raise CredoError(f"The likelihood cannot be evaluated at these inputs: {str(error)[:120]}.") from error
    if head is None or size is None:
        return head, shape[-1] if shape else 1, False
    try:
        alone, _ = look(jax.tree.map(lambda leaf: leaf[:1], x))
    except (TypeError, ValueError):
        return head, shape[-1], False
    return head, shape[-1], alone == (1, shape[-1])


@by_shapes
def _layers(target: Target, centre, row, *, head: AnyHead, free: bytes | None) -> tuple[Layers, tuple[int, ...]] | None:
    """Those of one row's outputs among the coordinates ``free``, for their shapes alone, and the outputs that these
    reach; None where a row cannot be seen alone."""
    try:
        layers = find_layers(row_outputs(target, head), jnp.asarray(centre), row)
    except (TypeError, ValueError, IndexError):
        return None
    layers = layers if free is None else layers.within(np.frombuffer(free, np.intp))
    return layers, tuple(layers.reached.tolist())


def row_outputs(target: Target, head: AnyHead) -> Callable:
    """(u, row) -> the outputs (K,) of one row."""

    def outputs(u, row):
        one = jax.tree.map(lambda leaf: leaf[None], row)
        return outputs_at(target, head, u, one)[0]

    return outputs


@functools.partial(brief, static_argnames=("head", "is_cut", "is_layered", "product", "reached"))
def _outputs(
    given: tuple[Target, Kind, Any],
    x,
    head: AnyHead,
    is_cut: bool,
    is_layered: bool,
    product: Callable,
    reached: tuple[int, ...] | None,
):
    """Mean (M, K) and covariance of the outputs: J Σ Jᵀ = (J S)(J S)ᵀ, row by row where rows part.

    ``product``: ``by_layers.joint`` for covariances (M, K, K), ``by_layers.alone`` for variances (M, K).
    """
    target, kind, prepared = given
    centre = centre_of(kind)
    if is_layered and isinstance(kind, Gaussian):
        return by_layers.covariances(row_outputs(target, head), kind.scale, prepared, centre, x, product)

    def outputs(u, x):
        return outputs_at(target, head, u, x)

    mean = outputs(centre, x)
    nothing = jnp.zeros_like(product(mean[..., None], mean[..., None]))
    if not isinstance(kind, Gaussian):
        return mean, nothing
    scale = kind.scale

    if is_cut:
        at = np.arange(mean.shape[1]) if reached is None else np.asarray(reached)

        def row_covariance(row):
            one = jax.tree.map(lambda leaf: leaf[None], row)
            jacobian = jax.jacrev(lambda u: outputs(u, one)[0, at])(centre)
            root = scale.transpose_matvecs(jacobian)[None]
            return product(root, root)[0]

        return mean, by_layers.among_all(jax.vmap(row_covariance)(x), at, mean.shape[1])

    def add_column(total, index):
        column = scale.matvec(jnp.zeros_like(centre).at[index].set(1.0))
        moved = jax.jvp(lambda u: outputs(u, x), (centre,), (column,))[1]
        return total + product(moved[:, :, None], moved[:, :, None]), None

    return mean, jax.lax.scan(add_column, nothing, jnp.arange(scale.dim))[0]
