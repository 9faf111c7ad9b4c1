"""Draws of a proposal, and the logs of their importance weights."""

import functools
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from credo.algorithm import as_key, stream
from credo.compiling import brief, has_many_rows
from credo.methods.particles.wide_mixture import WideMixture
from credo.model.target import Target
from credo.posterior.kinds import Flow, Gaussian, Kind

Weighed = tuple[Float[np.ndarray, "S dim"], Float[np.ndarray, " S"]]


class Drawn(NamedTuple):
    """Draws with the logs of their weights p/r, and of q/r where some of them reach far by another r than q.

    ``num_groups``: how many independent groups they are, one after the other; 1 where each draw is independent.
    """

    u: Float[np.ndarray, "S dim"]
    log_weights: Float[np.ndarray, " S"]
    log_own: Float[np.ndarray, " S"] | None = None
    num_groups: int = 1


def _is_large(_, target: Target, *__) -> bool:
    return has_many_rows(target)


@functools.partial(brief, is_large=_is_large)
def map_and_weigh(kind: Gaussian, target: Target, z):
    """u = m + S z; log q(u) = log N(z; 0, I) − log |S| needs no solve."""
    log_scale = kind.scale.log_det() + 0.5 * kind.mean.size * jnp.log(2.0 * jnp.pi)

    def one(z):
        u: Any = kind.mean + kind.scale.matvec(z)
        return u, target.log_density(u) + 0.5 * jnp.dot(z, z) + log_scale

    return jax.vmap(one)(z)


def draw_and_weigh(kind: Kind, target: Target, key, num_draws: int, batch: int, deadline: float = np.inf) -> Weighed:
    """Independent draws of ``kind`` and the logs of their importance weights: the same in any ``batch``.

    ``deadline``, by ``time.monotonic()``: no batch begins after it, but the first.
    """
    if isinstance(kind, Gaussian | Flow):  # random numbers of the host: to compile JAX's takes longer than densities
        noise = np.random.default_rng(stream(key).tolist())
        return weigh_at(kind, target, noise.normal(size=(num_draws, target.dim)), batch, deadline)
    batch = _equal(num_draws, batch)
    parts = []
    for first in range(0, num_draws, batch):
        if parts and time.monotonic() > deadline:
            break
        parts.append(jax.tree.map(np.asarray, _draw_and_weigh(kind, target, stream(key), np.int32(first), batch)))
    u, log_weights = (np.concatenate(column)[:num_draws] for column in zip(*parts, strict=True))
    return u, log_weights


def _equal(num_draws: int, batch: int) -> int:
    """Of equal batches, ``batch`` at most: one program, and little drawn in vain."""
    return -(-num_draws // -(-num_draws // batch))


def weigh_at(
    kind: Gaussian | Flow, target: Target, z: Float[np.ndarray, "S dim"], batch: int, deadline: float = np.inf
) -> Weighed:
    """The images of white coordinates z, and the logs of p/q there, ``batch`` at a time; of fewer rows after the
    ``deadline``."""
    batch = _equal(len(z), batch)
    program = map_and_weigh if isinstance(kind, Gaussian) else _push_and_weigh
    dtype = kind.mean.dtype if isinstance(kind, Gaussian) else kind.affine.mean.dtype
    padded = np.resize(z, (-(-len(z) // batch) * batch, z.shape[1])).astype(dtype)
    parts = []
    for part in padded.reshape(-1, batch, z.shape[1]):
        if parts and time.monotonic() > deadline:
            break
        parts.append(jax.tree.map(np.asarray, program(kind, target, part)))
    u, log_weights = (np.concatenate(column)[: len(z)] for column in zip(*parts, strict=True))
    return u, log_weights


@functools.partial(brief, is_large=_is_large)
def _push_and_weigh(kind: Flow, target: Target, z):
    def one(z):
        u, log_q = kind.push(z)
        return u, target.log_density(u) - log_q

    return jax.vmap(one)(z)


def reach_and_weigh(
    wide: WideMixture, target: Target, key, num_draws: int, batch: int, deadline: float = np.inf
) -> Drawn:
    """Draws of r; one that reached far, and has no density, has no weight."""
    u, log_weights = draw_and_weigh(wide, target, key, num_draws, batch, deadline)
    log_r, log_q = (np.asarray(part) for part in _log_probs(wide, u))
    is_lost = (log_q - log_r < np.log(0.5)) & (np.isnan(log_weights) | (log_weights == np.inf))
    return Drawn(u, np.where(is_lost, -np.inf, log_weights), log_q - log_r)


@brief
def _log_probs(wide: WideMixture, u):
    return jax.vmap(wide.log_probs)(u)


@functools.partial(brief, static_argnames=("batch",), is_large=_is_large)
def _draw_and_weigh(kind: Kind, target: Target, key, first, batch: int):
    def one(index):
        u = kind.sample_u(jax.random.fold_in(as_key(key), index))
        return u, target.log_density(u) - kind.log_prob_u(u)

    return jax.vmap(one)(first + jnp.arange(batch, dtype=jnp.int32))
