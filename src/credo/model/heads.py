"""Observation models: from a likelihood's distribution to p(y | z) with z unconstrained, and back.

A head says which natural outputs z a numpyro distribution stands for: the logits of a Bernoulli, the location and
log scale of a normal. Gauss-Newton curvature and linearised prediction need z; both follow from the distribution
that the user's likelihood returns, so nothing else has to be declared.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.distributions import Distribution
from numpyro.distributions.util import clamp_probs


class Head(NamedTuple):
    """``split(d)`` gives z of shape (M, K); ``join(z, d)`` the distribution at z, whatever is not in z taken from d.

    ``fisher(z, d)``: the expected information −E[∂² log p(y | z)] of shape (M, K, K), positive semi-definite, and
    diagonal except between classes. ``column``: the name of the head of one column, where outcomes have several.
    """

    name: str
    split: Callable[[Distribution], jax.Array]
    join: Callable[[jax.Array, Distribution], Distribution]
    fisher: Callable[[jax.Array, Distribution], jax.Array]
    column: str | None = None

    def natural(self, distribution: Distribution, params: Any, x: Any) -> jax.Array:
        """z (M, K) of the likelihood's distribution at ``params`` and ``x``."""
        return self.split(distribution)

    def __reduce__(self):
        """By its place in the tables below: functions without a name are no part of a pickle."""
        for name, table in TABLES.items():
            kind = next((kind for kind, head in table.items() if head is self), None)
            if kind is not None:
                return _in_table, (name, kind)
        return type(self), tuple(self)


def _column(value, d: Distribution) -> jax.Array:
    return jnp.broadcast_to(value, d.batch_shape)[..., None]


def _diagonal(*entries) -> jax.Array:
    stacked = jnp.stack(entries, axis=-1)
    return stacked[..., None] * jnp.eye(len(entries), dtype=stacked.dtype)


def _location_scale(d) -> jax.Array:
    return jnp.concatenate([_column(d.loc, d), _column(jnp.log(d.scale), d)], axis=-1)


def _softmax_fisher(z, d) -> jax.Array:
    p = jax.nn.softmax(z)
    return jax.vmap(jnp.diag)(p) - p[:, :, None] * p[:, None, :]


def _normal_fisher(z, d) -> jax.Array:
    return _diagonal(jnp.exp(-2.0 * z[..., 1]), jnp.full_like(z[..., 1], 2.0))


def _student_fisher(z, d) -> jax.Array:
    # Lange, Little & Taylor (1989): information of location and log scale
    df = jnp.broadcast_to(d.df, z[..., 1].shape)
    return _diagonal(jnp.exp(-2.0 * z[..., 1]) * (df + 1) / (df + 3), 2.0 * df / (df + 3))


def _bernoulli_fisher(z, d) -> jax.Array:
    return _diagonal(jax.nn.sigmoid(z[..., 0]) * jax.nn.sigmoid(-z[..., 0]))


def _logit(p) -> jax.Array:
    p = clamp_probs(p)
    return jnp.log(p) - jnp.log1p(-p)


HEADS: dict[type[Distribution], Head] = {
    dist.Normal: Head(
        "normal", _location_scale, lambda z, d: dist.Normal(z[..., 0], jnp.exp(z[..., 1])), _normal_fisher
    ),
    dist.StudentT: Head(
        "student_t", _location_scale, lambda z, d: dist.StudentT(d.df, z[..., 0], jnp.exp(z[..., 1])), _student_fisher
    ),
    dist.BernoulliLogits: Head(
        "bernoulli",
        lambda d: _column(d.logits, d),
        lambda z, d: dist.BernoulliLogits(z[..., 0]),
        _bernoulli_fisher,
    ),
    dist.BernoulliProbs: Head(
        "bernoulli",
        lambda d: _column(_logit(d.probs), d),
        lambda z, d: dist.BernoulliLogits(z[..., 0]),
        _bernoulli_fisher,
    ),
    dist.BinomialLogits: Head(
        "binomial",
        lambda d: _column(d.logits, d),
        lambda z, d: dist.BinomialLogits(z[..., 0], d.total_count),
        lambda z, d: _bernoulli_fisher(z, d) * _column(d.total_count, d)[..., None],
    ),
    dist.BinomialProbs: Head(
        "binomial",
        lambda d: _column(_logit(d.probs), d),
        lambda z, d: dist.BinomialLogits(z[..., 0], d.total_count),
        lambda z, d: _bernoulli_fisher(z, d) * _column(d.total_count, d)[..., None],
    ),
    dist.CategoricalLogits: Head(
        "categorical", lambda d: d.logits, lambda z, d: dist.CategoricalLogits(z), _softmax_fisher
    ),
    dist.CategoricalProbs: Head(
        "categorical",
        lambda d: jnp.log(clamp_probs(d.probs)),
        lambda z, d: dist.CategoricalLogits(z),
        _softmax_fisher,
    ),
    dist.Poisson: Head(
        "poisson",
        lambda d: _column(jnp.log(d.rate), d),
        lambda z, d: dist.Poisson(jnp.exp(z[..., 0])),
        lambda z, d: _diagonal(jnp.exp(z[..., 0])),
    ),
    dist.Exponential: Head(
        "exponential",
        lambda d: _column(jnp.log(d.rate), d),
        lambda z, d: dist.Exponential(jnp.exp(z[..., 0])),
        lambda z, d: _diagonal(jnp.ones_like(z[..., 0])),
    ),
}


def _expanded(head: Head) -> Head:
    """The head of a distribution whose arguments are shared by rows: Normal(mu, sigma).expand([N])."""

    def split(d):
        z = head.split(d.base_dist)
        return jnp.broadcast_to(z, (*d.batch_shape, z.shape[-1]))

    return Head(head.name, split, lambda z, d: head.join(z, d.base_dist), lambda z, d: head.fisher(z, d.base_dist))


EXPANDED_HEADS = {kind: _expanded(head) for kind, head in HEADS.items()}


def _columns(head: Head) -> Head:
    """The head of outcomes (M, C): the outputs of the first column, then those of the second, and so on."""

    def apart(z, d):
        return jnp.reshape(z, (*z.shape[:-1], d.shape()[-1], -1))

    def split(d):
        z = head.split(_without_event(d))
        return jnp.reshape(z, (*z.shape[:-2], -1))

    def join(z, d):
        found = head.join(apart(z, d), _without_event(d))
        return found.to_event(1) if d.event_shape else found

    def fisher(z, d):
        blocks = head.fisher(apart(z, d), _without_event(d))  # (M, C, k, k)
        cube = jnp.eye(blocks.shape[1], dtype=blocks.dtype)[:, None, :, None] * blocks[:, :, :, None, :]
        return jnp.reshape(cube, (*z.shape, z.shape[-1]))

    return Head(f"columns of {head.name}", split, join, fisher, head.name)


def _without_event(d):
    return d.base_dist if d.event_shape else d


def _of_columns(heads: dict[type[Distribution], Head]) -> dict[type[Distribution], Head]:
    return {kind: _columns(head) for kind, head in heads.items() if head.name != "categorical"}


COLUMN_HEADS, EXPANDED_COLUMN_HEADS = _of_columns(HEADS), _of_columns(EXPANDED_HEADS)


TABLES = {
    "rows": HEADS,
    "expanded rows": EXPANDED_HEADS,
    "columns": COLUMN_HEADS,
    "expanded columns": EXPANDED_COLUMN_HEADS,
}


def _in_table(name: str, kind: type[Distribution]) -> Head:
    return TABLES[name][kind]


def column_rows(z: jax.Array, distribution: Distribution) -> tuple[jax.Array, Distribution]:
    """Each column of each row as a row of its own: (M · C, k), and the distribution with arguments likewise."""
    inner: Any = distribution
    while isinstance(inner, dist.ExpandedDistribution | dist.Independent):
        inner = inner.base_dist
    shape = distribution.shape()
    rows = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, shape).ravel(), inner)
    return jnp.reshape(z, (shape[0] * shape[1], -1)), rows


def information(head: Head, z: jax.Array, distribution: Distribution) -> jax.Array:
    """The diagonal (M, K) of the Fisher information: all of it, but for classes. Of columns without their pairs."""
    if head.column is None:
        return jnp.diagonal(head.fisher(z, distribution), axis1=1, axis2=2)
    inner: Any = distribution
    while isinstance(inner, dist.ExpandedDistribution | dist.Independent):
        inner = inner.base_dist
    of_one = next(each for each in HEADS.values() if each.name == head.column)
    blocks = of_one.fisher(jnp.reshape(z, (*distribution.shape(), -1)), inner)  # (M, C, k, k)
    return jnp.reshape(jnp.diagonal(blocks, axis1=2, axis2=3), z.shape)


def head_of(distribution: Distribution | Mapping[str, Distribution]) -> Head | None:
    """The head of a likelihood's distribution, None where unknown.

    Known are scalar outcomes and classes, one a datum, and several columns of scalars that are independent given z.
    """
    if isinstance(distribution, Mapping):
        return None
    batch, event = distribution.batch_shape, distribution.event_shape
    inner: Any = distribution
    if isinstance(distribution, dist.Independent) and len(batch) == len(event) == 1:
        inner = distribution.base_dist
    elif event or len(batch) not in (1, 2):
        return None
    heads, expanded = (HEADS, EXPANDED_HEADS) if len(inner.batch_shape) == 1 else (COLUMN_HEADS, EXPANDED_COLUMN_HEADS)
    if isinstance(inner, dist.ExpandedDistribution):
        return expanded.get(type(inner.base_dist))
    return heads.get(type(inner))
