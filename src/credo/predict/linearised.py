"""Prediction through Gaussian outputs: z(u) ≈ z(μ) + J (u − μ), so that z ~ N(z(μ), J Σ Jᵀ) at each row.

μ and Σ = S Sᵀ are those of a Gaussian posterior, J (K, dim) the Jacobian of a row's outputs in the unconstrained
parameters (MacKay 1992; Immer, Korzepa & Bauer 2021 for networks). Exact where z is linear in them. What the head has
beside z (degrees of freedom, trials) stands at μ.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credo.algorithm import as_key, stream
from credo.compiling import brief
from credo.model.heads import Head, head_of
from credo.model.layers import Layers, find_layers
from credo.model.target import Target
from credo.posterior.kinds import Gaussian, Kind, Point
from credo.predict import by_draws, by_layers
from credo.predict.inputs import Table, widened
from credo.predict.links import LINKS, by_column, mackay
from credo.predict.monte_carlo import MixtureLaw, MonteCarlo, likelihood_at, without_data
from credo.predict.outcome import cdf, log_prob, moments
from credo.predict.stream import MEMORY, Law, Stream
from credo.status import CredoError
from credo.traced import by_shapes

if TYPE_CHECKING:
    from credo.posterior.posterior import Posterior

NUM_NODES = 256
MANY_OUTPUTS = 64  # of a row: above it they are drawn: covariances of all pairs would be formed and factored row by row
DRAWS_A_NODE = 1  # of the rule: 256 by default, as many as MonteCarlo() takes
MAX_HELD = 2**28  # bytes of covariances; of more rows they are found again chunk by chunk


@dataclass(frozen=True)
class Linearised:
    """Outputs linearised around the mean of a Gaussian posterior, and the head integrated over them.

    Regression has closed forms: mean z(μ), epistemic variance J Σ Jᵀ, aleatoric variance E[σ²] with log σ normal.
    Other heads are integrated as ``Quadrature()`` does; of more than 64 outputs a row 256 draws of them are averaged,
    so that no covariance of all pairs is formed (error: the epistemic sd / 16). Columns of a row share the parameters:
    ``log_prob`` is that of all together. A ``Point`` posterior gives its plug-in prediction. A covariance without a
    matrix (Laplace with ``MatrixFree()``) takes a linear solve for each output of each row up to 128; more of them are
    predicted by the covariances of their outputs at 128 draws, each variance to 13 % (of fewer draws, 2²⁵ / dim but 16
    at least, above 260,000 parameters).
    """

    def law(self, posterior: "Posterior", table: Table, key):
        return _projected(posterior, table, key, "Linearised", NUM_NODES)


@dataclass(frozen=True)
class Quadrature:
    """p(y) = ∫ p(y | z) N(z; m, s²) dz on the line of each row's output: to about 1e-10 where z is linear in u.

    ``num_nodes`` on a line, for binary, binomial, count, waiting-time and regression outcomes and two classes; a grid
    (num_nodes / 3)² for three classes, 8 · num_nodes quasi-random points for more (error about 1e-4 there), and
    num_nodes draws above 64 outputs. Several columns are integrated over together in ``log_prob``, each by itself else.
    """

    num_nodes: int = NUM_NODES

    def __post_init__(self):
        if self.num_nodes < 8:
            raise CredoError(f"Quadrature needs eight nodes at least; got num_nodes={self.num_nodes}.")

    def law(self, posterior: "Posterior", table: Table, key):
        return _projected(posterior, table, key, "Quadrature", self.num_nodes)


@dataclass(frozen=True)
class Probit:
    """MacKay's (1992) approximation σ(m / √(1 + π s² / 8)) of a class probability, and its form for several classes.

    Within 0.02 of the integral for two classes; for more, softmax of m_k / √(1 + π s_k² / 8) (Gibbs 1998), which looks
    at each logit alone and may be further off. The epistemic share of the variance is that of the linearised outputs.
    """

    def law(self, posterior: "Posterior", table: Table, key) -> tuple["ProbitLaw", "Projection"]:
        how = _outlook(posterior, table, "Probit", key)
        head = how.head
        if head.name == "categorical" and how.num_outputs > MANY_OUTPUTS:
            raise CredoError(
                f"Probit() of {how.num_outputs} classes would form their covariances row by row: use Linearised(), "
                f"which draws the logits above {MANY_OUTPUTS} classes, or MonteCarlo()."
            )
        rows = how.rows(table)
        if head.name not in ("bernoulli", "categorical"):
            raise CredoError(
                f"Probit() is for classes, and the outcome is {head.name}: use Linearised() or MonteCarlo()."
            )
        return ProbitLaw(how, head, how.num_outputs), rows


class Projection(NamedTuple):
    """The rows, each with the mean (M, K) and covariance (M, K, K) of its outputs; None where they are yet to find."""

    x: Any
    mean: Any
    covariance: Any


class Outlook(eqx.Module):
    """How the outputs of rows are found. ``chunk``: rows at a time; None where they cannot be cut."""

    target: Target
    kind: Kind
    head: Head = eqx.field(static=True)
    num_outputs: int = eqx.field(static=True)
    is_cut: bool = eqx.field(static=True)
    is_layered: bool = eqx.field(static=True)
    chunk: int | None = eqx.field(static=True)
    prepared: Any = None  # of the covariance, where it is taken by layers; deviations of u, where by draws
    is_drawn: bool = eqx.field(static=True, default=False)

    def rows(self, table: Table) -> Projection:
        """All rows projected, or left to be where that would take too much memory."""
        num_rows = table.size or 1
        if self.chunk is not None and 8 * num_rows * self.num_outputs**2 > MAX_HELD:
            return Projection(table.x, None, None)
        return Projection(table.x, *Stream(self, table.x, table.size, self.chunk)(Outlook.project))

    def project(self, x):
        if self.is_drawn:
            return by_draws.outputs(self.target, centre_of(self.kind), self.prepared, x, self.head)
        return _outputs((self.target, self.kind, self.prepared), x, self.head, self.is_cut, self.is_layered)

    def full(self, rows: Projection) -> Projection:
        return rows if rows.mean is not None else Projection(rows.x, *self.project(rows.x))


class ProjectedLaw(eqx.Module):
    """∫ p(y | z) N(z; mean, covariance) dz in each row."""

    how: Outlook
    num_nodes: int = eqx.field(static=True)
    batch: int = eqx.field(static=True, default=1)

    @property
    def head(self) -> Head:
        return self.how.head

    @property
    def width(self) -> int:
        return LINKS[self.head.name].width(self.num_nodes, self.how.num_outputs)

    def full(self, rows: Projection) -> Projection:
        return self.how.full(rows)

    def likelihood(self, rows: Projection, index):
        rows = self.full(rows)
        return self.head.join(rows.mean, self._beside(rows))

    def moments(self, rows: Projection):
        rows = self.full(rows)
        return LINKS[self.head.name].moments(rows.mean, rows.covariance, self._beside(rows), self.num_nodes)

    def log_prob(self, rows: Projection, y):
        rows = self.full(rows)
        mixture, log_weights = self._components(rows, self._beside(rows), y)
        terms = jnp.where(mixture.support(y), mixture.log_prob(y), -jnp.inf)
        return jax.nn.logsumexp(terms + log_weights, axis=0)

    def cdf(self, rows: Projection, part: str | None) -> Callable[[Array], Array]:
        rows = self.full(rows)
        beside = self._beside(rows)

        link, given = LINKS[self.head.name], (rows.mean, rows.covariance, beside)
        link, given = (link, given) if link.column is None else (link.column, by_column(*given))

        def evaluate(y):
            at = jnp.broadcast_to(y, beside.shape()).ravel()
            mixture, log_weights = link.components(*given, at, self.num_nodes)
            return jnp.reshape(jnp.sum(jnp.exp(log_weights) * cdf(mixture, at), axis=0), beside.shape())

        return evaluate

    def shared(self, generator: np.random.Generator, n: int) -> np.ndarray:
        """Key data (n, 2) of the white noise behind one u for all rows: n times dim numbers are never held."""
        return generator.integers(2**32, size=(n, 2), dtype=np.uint32)

    def sample(self, rows: Projection, shared, keys):
        """(n, M): in each of the n one u for all rows, moved along the linearised outputs."""
        target, kind, rows = self.how.target, self.how.kind, self.full(rows)
        centre = centre_of(kind)

        def outputs(u):
            return self.head.split(likelihood_at(target, target.constrain(u), rows.x))

        def one(pair):
            own, data = pair
            z = rows.mean
            if isinstance(kind, Gaussian):
                noise = jax.random.normal(as_key(own), centre.shape, centre.dtype)
                z = z + jax.jvp(outputs, (centre,), (kind.scale.matvec(noise),))[1]
            return self.head.join(z, self._beside(rows)).sample(as_key(data))

        return jax.lax.map(one, (shared, keys))

    def _components(self, rows: Projection, beside, y):
        return LINKS[self.head.name].components(rows.mean, rows.covariance, beside, y, self.num_nodes)

    def _beside(self, rows: Projection):
        """The likelihood at the centre, for what is not in z."""
        target = self.how.target
        return likelihood_at(target, target.constrain(centre_of(self.how.kind)), rows.x)


class ProbitLaw(eqx.Module):
    """One class distribution a row by MacKay's formula."""

    how: Outlook
    head: Head = eqx.field(static=True)
    num_outputs: int = eqx.field(static=True)
    batch: int = eqx.field(static=True, default=1)

    @property
    def width(self) -> int:
        return LINKS[self.head.name].width(NUM_NODES, self.num_outputs)

    @property
    def width_of_mean(self) -> int:
        """Of ``mean``, which takes no nodes."""
        return 1

    def full(self, rows: Projection) -> Projection:
        return self.how.full(rows)

    def likelihood(self, rows: Projection, index):
        rows = self.full(rows)
        return mackay(rows.mean, rows.covariance, self.head.name)

    def mean(self, rows: Projection):
        """By the formula alone, without the integral that the epistemic share takes."""
        return moments(self.likelihood(rows, 0))[0]

    def moments(self, rows: Projection):
        rows = self.full(rows)
        mean, total = moments(self.likelihood(rows, 0))
        *_, between = LINKS[self.head.name].moments(rows.mean, rows.covariance, None, NUM_NODES)
        epistemic = jnp.minimum(between, total)  # the formula's total may fall below the integral's share
        return mean, total - epistemic, epistemic

    def log_prob(self, rows: Projection, y):
        return log_prob(self.likelihood(rows, 0), y)

    def cdf(self, rows: Projection, part: str | None):
        return lambda y: cdf(self.likelihood(rows, 0), y)

    def shared(self, generator: np.random.Generator, n: int) -> np.ndarray:
        return np.zeros((n, 0))

    def sample(self, rows: Projection, shared, keys):
        return self.likelihood(rows, 0).sample(as_key(keys[0]), (len(keys),))


def _projected(posterior: "Posterior", table: Table, key, rule: str, number: int) -> tuple[Law, Any]:
    how = _outlook(posterior, table, rule, key)
    if how.num_outputs > MANY_OUTPUTS:
        return _drawn(how, key, DRAWS_A_NODE * number), table.x
    rows = how.rows(table)
    is_regression = (how.head.column or how.head.name) in ("normal", "student_t")
    if is_regression and rows.mean is not None and not np.diagonal(rows.covariance, axis1=1, axis2=2)[:, 1::2].any():
        number = 1  # a known scale is no integral
    return ProjectedLaw(how, number), rows


def _drawn(how: Outlook, key, number: int) -> MixtureLaw:
    """The linearised outputs at draws of the parameters: their covariances are never formed."""
    positions, keys, log_weights = MonteCarlo(number)._draws(how.kind, how.target.dim, key, False)
    kind = None if positions is not None else how.kind
    return MixtureLaw(how.target, kind, positions, keys, log_weights, (), head=how.head, centre=centre_of(how.kind))


def centre_of(kind: Kind) -> Float[Array, " dim"]:
    """Where the outputs are linearised."""
    return kind.mean if isinstance(kind, Gaussian) else kind.position  # type: ignore[attr-defined]


# the outputs of a Gaussian posterior --------------------------------------------------------------------------------


def _outlook(posterior: "Posterior", table: Table, rule: str, key) -> Outlook:
    kind, target = widened(posterior.kind), without_data(posterior.target)
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
    if head is None or head.name not in LINKS:
        known = ", ".join(name for name, link in LINKS.items() if link.column is None)
        raise CredoError(f"{rule}() knows outcomes that are {known}; this one is not: use MonteCarlo().")
    chunk = max(1, MEMORY // (8 * 8 * num_outputs * target.dim)) if is_cut else None
    plan = None
    if is_cut and isinstance(posterior.kind, Gaussian):
        row = jax.tree.map(lambda leaf: leaf[0], table.x)
        layers = _layers(target, widened(posterior.kind.mean), row, head=head)
        plan = None if layers is None else by_layers.plan(layers, posterior.kind.scale, table.size or 1)
    is_many = num_outputs <= MANY_OUTPUTS and (not is_cut or (table.size or 1) * num_outputs > by_draws.NUM_SOLVES)
    if is_many and isinstance(kind, Gaussian) and by_draws.takes_solves(kind.scale):
        steps = by_draws.deviations(kind, stream(key, 7))
        chunk = by_draws.rows_at_once(target, head, table.x) if is_cut else None
        return Outlook(target, kind, head, num_outputs, is_cut, False, chunk, steps, True)
    if plan is None:
        return Outlook(target, kind, head, num_outputs, is_cut, False, chunk)
    chunk = max(1, MEMORY // (8 * plan.width))  # inputs and derivatives are far fewer than weights
    return Outlook(target, kind, head, num_outputs, is_cut, True, chunk, plan.prepared)


@by_shapes
def _head(target: Target, x, *, size: int | None) -> tuple[Head | None, int, bool]:
    """(head, number of outputs, whether a row can be evaluated alone), by an abstract evaluation."""

    def look(x):
        found: list = []

        def evaluate(target, x):
            d = likelihood_at(target, target.constrain(jnp.zeros(target.dim)), x)
            found.append(head_of(d) if not isinstance(d, dict) else None)
            return jnp.zeros(()) if found[0] is None else found[0].split(d)

        return jax.eval_shape(evaluate, target, x).shape, found[0]

    try:
        shape, head = look(x)
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
def _layers(target: Target, centre, row, *, head: Head) -> Layers | None:
    """Those of one row's outputs, for their shapes alone; None where a row cannot be seen alone."""
    try:
        return find_layers(_row_outputs(target, head), jnp.asarray(centre), row)
    except (TypeError, ValueError, IndexError):
        return None


def _row_outputs(target: Target, head: Head) -> Callable:
    """(u, row) -> the outputs (K,) of one row."""

    def outputs(u, row):
        one = jax.tree.map(lambda leaf: leaf[None], row)
        return head.split(likelihood_at(target, target.constrain(u), one))[0]

    return outputs


@functools.partial(brief, static_argnames=("head", "is_cut", "is_layered"))
def _outputs(given: tuple[Target, Kind, Any], x, head: Head, is_cut: bool, is_layered: bool = False):
    """Mean (M, K) and covariance (M, K, K) of the outputs: J Σ Jᵀ = (J S)(J S)ᵀ, row by row where rows part."""
    target, kind, prepared = given
    centre = centre_of(kind)
    if is_layered and isinstance(kind, Gaussian):
        return by_layers.covariances(_row_outputs(target, head), kind.scale, prepared, centre, x)

    def outputs(u, x):
        return head.split(likelihood_at(target, target.constrain(u), x))

    mean = outputs(centre, x)
    if not isinstance(kind, Gaussian):
        return mean, jnp.zeros((*mean.shape, mean.shape[-1]))
    scale = kind.scale

    def row_covariance(row):
        one = jax.tree.map(lambda leaf: leaf[None], row)
        jacobian = jax.jacrev(lambda u: outputs(u, one)[0])(centre)
        root = jax.vmap(scale.transpose_matvec)(jacobian)
        return root @ root.T

    if is_cut:
        return mean, jax.vmap(row_covariance)(x)

    def add_column(total, index):
        column = scale.matvec(jnp.zeros_like(centre).at[index].set(1.0))
        moved = jax.jvp(lambda u: outputs(u, x), (centre,), (column,))[1]
        return total + moved[:, :, None] * moved[:, None, :], None

    start = jnp.zeros((*mean.shape, mean.shape[-1]), mean.dtype)
    return mean, jax.lax.scan(add_column, start, jnp.arange(scale.dim))[0]
