"""Prediction through linearised outputs: the head integrated over the N(z(μ), J Σ Jᵀ) of each row (projection.py)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from credo.algorithm import as_key
from credo.arguments import check_at_least
from credo.model.user_head import AnyHead, UserHead
from credo.normals import normal
from credo.posterior.kinds import Gaussian, Kind
from credo.posterior.product import as_gaussian
from credo.predict import layer_draws
from credo.predict.inputs import Table, widened
from credo.predict.links import LINKS, by_column
from credo.predict.monte_carlo import MixtureLaw, MonteCarlo, likelihood_at, outputs_at
from credo.predict.outcome import cdf
from credo.predict.projection import MANY_OUTPUTS, Outlook, Projection, centre_of, outlook, row_outputs
from credo.predict.stream import Law
from credo.predict.undefined import drawn

if TYPE_CHECKING:
    from credo.posterior.posterior import Posterior

NUM_NODES = 256
DRAWS_A_NODE = 1  # of the rule: 256 by default


@dataclass(frozen=True)
class Linearised:
    """Outputs linearised around the mean of a Gaussian posterior, and the head integrated over them.

    Regression has closed forms: mean z(μ), epistemic variance J Σ Jᵀ, aleatoric variance E[σ²] with log σ normal.
    Other heads are integrated as ``Quadrature()`` does; of more than 64 outputs a row 256 draws of them are averaged,
    so that no covariance of all pairs is formed (error of a probability: its epistemic sd / 16; logs of small ones are
    too small where logits vary by several units: ``Quadrature(8_000)`` takes more draws), and likewise of a head that a
    user wrote (``credo.nn.Custom``). Columns of a row share the
    parameters: ``log_prob`` is that of all together. A ``Point`` posterior gives its plug-in prediction. A covariance
    without a matrix (Laplace with ``MatrixFree()``) takes a linear solve for each output of each row up to 128 (a mean
    and a log scale count as two); more of them are predicted by the covariances of their outputs at 128 draws, each
    variance to 13 % (of fewer draws, 2²⁵ / dim but 16 at least, above 260,000 parameters; exactly below 129).
    """

    def law(self, posterior: "Posterior", table: Table, key):
        return _projected(posterior, table, key, "Linearised", NUM_NODES)


@dataclass(frozen=True)
class Quadrature:
    """p(y) = ∫ p(y | z) N(z; m, s²) dz on the line of each row's output: to about 1e-10 where z is linear in u.

    ``num_nodes`` on a line, for binary, binomial, count, waiting-time and regression outcomes and two classes; a grid
    (num_nodes / 3)² for three classes, 8 · num_nodes quasi-random points for more (off by about 1e-4 where logits have
    sds near one, by up to 1e-2 where these are 5 and more, as far from the data; more nodes bring it down), and
    num_nodes draws above 64 outputs. Several columns are integrated over together in ``log_prob``, each by itself else.
    """

    num_nodes: int = NUM_NODES

    def __post_init__(self):
        check_at_least("Quadrature(num_nodes=…)", self.num_nodes, 8)

    def law(self, posterior: "Posterior", table: Table, key):
        return _projected(posterior, table, key, "Quadrature", self.num_nodes)


class ProjectedLaw(eqx.Module):
    """∫ p(y | z) N(z; mean, covariance) dz in each row.

    ``whole``: the posterior, for draws of u that all rows share, where ``how`` does not have all of it.
    """

    how: Outlook
    num_nodes: int = eqx.field(static=True)
    whole: Kind | None = None
    batch: int = eqx.field(static=True, default=1)

    @property
    def head(self) -> AnyHead:
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
        target, kind, rows = self.how.target, self.whole or self.how.kind, self.full(rows)
        centre = centre_of(kind)

        def outputs(u):
            return outputs_at(target, self.head, u, rows.x)

        def one(pair):
            own, data = pair
            z = rows.mean
            if isinstance(kind, Gaussian):
                noise = normal(as_key(own), centre.shape, centre.dtype)
                z = z + jax.jvp(outputs, (centre,), (kind.scale.matvec(noise),))[1]
            return drawn(self.head.join(z, self._beside(rows)), as_key(data))

        return jax.lax.map(one, (shared, keys))

    def _components(self, rows: Projection, beside, y):
        return LINKS[self.head.name].components(rows.mean, rows.covariance, beside, y, self.num_nodes)

    def _beside(self, rows: Projection):
        """The likelihood at the centre, for what is not in z."""
        target = self.how.target
        return likelihood_at(target, target.constrain(centre_of(self.how.kind)), rows.x)


def _projected(posterior: "Posterior", table: Table, key, rule: str, number: int) -> tuple[Law, Any]:
    how, kind = outlook(posterior, table, rule, key), as_gaussian(posterior.kind)
    if how.num_outputs > MANY_OUTPUTS or isinstance(how.head, UserHead):
        return _drawn(how, widened(kind), key, DRAWS_A_NODE * number), table.x
    rows = how.rows(table)
    # locations of a t in several columns are no closed form: its columns share no mixing variable
    is_closed = how.head.name in ("normal", "student_t") or how.head.column == "normal"
    if is_closed and rows.mean is not None and not np.diagonal(rows.covariance, axis1=1, axis2=2)[:, 1::2].any():
        number = 1  # a known scale is no integral
    return ProjectedLaw(how, number, None if how.prepared is None else widened(kind)), rows


class LayeredLaw(MixtureLaw):
    """Draws that are made anew; for rows by themselves, of the layers' outputs in the place of the weights."""

    def by_row(self, rows):
        assert self.head is not None
        assert isinstance(self.kind, Gaussian)
        head, centre = self.head, jnp.asarray(self.centre)
        z, move = layer_draws.moves(row_outputs(self.target, head), self.kind.scale, centre, rows)
        beside = likelihood_at(self.target, self.target.constrain(centre), rows)
        return lambda index: head.join(z + move(as_key(self.keys[index])), beside)


def _drawn(how: Outlook, kind: Kind, key, number: int) -> MixtureLaw:
    """The linearised outputs at draws of the parameters from ``kind``: their covariances are never formed."""
    positions, keys, log_weights = MonteCarlo(number)._draws(kind, how.target.dim, key, False)
    remade = None if positions is not None else kind
    is_rotated = how.is_layered and isinstance(remade, Gaussian) and layer_draws.is_rotated(remade.scale)
    law = LayeredLaw if is_rotated else MixtureLaw
    return law(how.target, remade, positions, keys, log_weights, (), head=how.head, centre=centre_of(how.kind))
