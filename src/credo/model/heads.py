"""Observation models: from a likelihood's distribution to p(y | z) with z unconstrained, and back.

A head says which natural outputs z a numpyro distribution stands for: the logits of a Bernoulli, the location and
log scale of a normal. Gauss-Newton curvature and linearised prediction need z; both follow from the distribution
that the user's likelihood returns, so nothing else has to be declared.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.distributions import Distribution
from numpyro.distributions.util import clamp_probs


class Head(NamedTuple):
    """``split(d)`` gives z of shape (M, K); ``join(z, d)`` the distribution at z, whatever is not in z taken from d.

    ``fisher(z, d)``: the expected information −E[∂² log p(y | z)] of shape (M, K, K), positive semi-definite.
    """

    name: str
    split: Callable[[Distribution], jax.Array]
    join: Callable[[jax.Array, Distribution], Distribution]
    fisher: Callable[[jax.Array, Distribution], jax.Array]


def _column(value, d: Distribution) -> jax.Array:
    return jnp.broadcast_to(value, d.batch_shape)[..., None]


def _diagonal(*entries) -> jax.Array:
    return jax.vmap(jnp.diag)(jnp.stack(entries, axis=-1))


def _location_scale(d) -> jax.Array:
    return jnp.concatenate([_column(d.loc, d), _column(jnp.log(d.scale), d)], axis=-1)


def _softmax_fisher(z, d) -> jax.Array:
    p = jax.nn.softmax(z)
    return jax.vmap(jnp.diag)(p) - p[:, :, None] * p[:, None, :]


def _normal_fisher(z, d) -> jax.Array:
    return _diagonal(jnp.exp(-2.0 * z[:, 1]), jnp.full_like(z[:, 1], 2.0))


def _student_fisher(z, d) -> jax.Array:
    # Lange, Little & Taylor (1989): information of location and log scale
    df = jnp.broadcast_to(d.df, z[:, 1].shape)
    return _diagonal(jnp.exp(-2.0 * z[:, 1]) * (df + 1) / (df + 3), 2.0 * df / (df + 3))


def _bernoulli_fisher(z, d) -> jax.Array:
    return _diagonal(jax.nn.sigmoid(z[:, 0]) * jax.nn.sigmoid(-z[:, 0]))


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
        lambda z, d: _diagonal(jnp.exp(z[:, 0])),
    ),
    dist.Exponential: Head(
        "exponential",
        lambda d: _column(jnp.log(d.rate), d),
        lambda z, d: dist.Exponential(jnp.exp(z[..., 0])),
        lambda z, d: _diagonal(jnp.ones_like(z[:, 0])),
    ),
}


def _expanded(head: Head) -> Head:
    """The head of a distribution whose arguments are shared by rows: Normal(mu, sigma).expand([N])."""

    def split(d):
        z = head.split(d.base_dist)
        return jnp.broadcast_to(z, (*d.batch_shape, z.shape[-1]))

    return Head(head.name, split, lambda z, d: head.join(z, d.base_dist), lambda z, d: head.fisher(z, d.base_dist))


EXPANDED_HEADS = {kind: _expanded(head) for kind, head in HEADS.items()}


def head_of(distribution: Distribution) -> Head | None:
    """The head of a likelihood's distribution with one scalar (or class) outcome a datum; None where unknown."""
    if len(distribution.batch_shape) != 1 or distribution.event_shape:
        return None
    if isinstance(distribution, dist.ExpandedDistribution):
        return EXPANDED_HEADS.get(type(distribution.base_dist))
    return HEADS.get(type(distribution))
