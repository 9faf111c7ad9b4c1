"""The curvature Fᵢ of a row's log likelihood in its natural outputs z, and roots of it: Lᵢ Lᵢᵀ = Fᵢ.

Expected, −E[∂² log p(y | z)]; of the outcome seen, rᵢ rᵢᵀ with rᵢ = ∂ log p(yᵢ | z); or of a few random columns,
Lᵢ E Eᵀ Lᵢᵀ / m with random signs E. All are positive semi-definite and hold the weight of the row.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt32

from credo.linalg.dense import root
from credo.model.data import Rows
from credo.model.distributions import Scaled
from credo.model.heads import Head, information
from credo.model.target import Target
from credo.model.user_head import AnyHead, UserHead


@runtime_checkable
class Fisher(Protocol):
    """Fᵢ of each row, weights included. Hashable: compiled programs are keyed on it."""

    def roots(self, target: Target, u: Any, rows: Rows) -> Float[Array, "M K columns"]:
        """Lᵢ of each row."""
        ...

    def times(self, target: Target, u: Any, rows: Rows) -> Callable[[Any], Any]:
        """v (M, K) ↦ Fᵢ vᵢ of each row."""
        ...


class Expected(eqx.Module):
    """The Fisher information of the outcome."""

    @staticmethod
    def is_diagonal(head: AnyHead | None) -> bool:
        """Whether the outputs of a row tell of nothing together, so that the roots are diagonal too."""
        return isinstance(head, Head) and head.name != "categorical"

    def roots(self, target: Target, u, rows: Rows) -> Float[Array, "M K columns"]:
        head, z, distribution, weights = observed(target, u, rows)
        if isinstance(head, UserHead):
            g, w = _scores(head, z, rows, target.size)
            return jnp.sqrt(weights)[:, None, None] * root(jnp.einsum("ms,msk,msl->mkl", w, g, g))
        if not self.is_diagonal(head):
            return _softmax_roots(z, weights)
        return jnp.sqrt(weights[:, None, None] * head.fisher(z, distribution))

    def times(self, target: Target, u, rows: Rows) -> Callable:
        head, z, distribution, weights = observed(target, u, rows)
        if isinstance(head, UserHead):
            g, w = _scores(head, z, rows, target.size)
            w = w * weights[:, None]
            return lambda v: jnp.einsum("msk,ms->mk", g, w * jnp.einsum("msk,mk->ms", g, v))
        product = fisher_product(head, z, distribution)
        return lambda v: weights[:, None] * product(v)


class Seen(eqx.Module):
    """The outer product of the gradient at the outcome that was seen: one column."""

    def roots(self, target: Target, u, rows: Rows) -> Float[Array, "M K one"]:
        head, z, distribution, weights = observed(target, u, rows)

        def log_prob(z):
            if isinstance(head, UserHead):
                return jnp.sum(head.log_prob(z, rows.y))
            return jnp.sum(head.join(z, distribution).log_prob(rows.y))

        slope = jax.grad(log_prob)(z)
        return (jnp.sqrt(weights)[:, None] * slope)[:, :, None]

    def times(self, target: Target, u, rows: Rows) -> Callable:
        return _squared(self.roots(target, u, rows))


class Sampled(eqx.Module):
    """``num_columns`` random combinations of the columns of a root of ``Expected()``: that on average."""

    num_columns: int = eqx.field(static=True)
    seed: int = eqx.field(static=True)

    def roots(self, target: Target, u, rows: Rows) -> Float[Array, "M K columns"]:
        head, z, distribution, weights = observed(target, u, rows)
        if isinstance(head, UserHead):
            g, w = _scores(head, z, rows, target.size)
            E = self._signs(rows, len(z), w.shape[1], z.dtype)
            return jnp.einsum("msk,ms,msc->mkc", g, jnp.sqrt(w * weights[:, None]), E)
        # of the row itself, so that chunks of rows, whatever their size, have independent signs
        E = self._signs(rows, len(z), z.shape[1], z.dtype)
        if head.name != "categorical":
            return jnp.sqrt(weights[:, None] * information(head, z, distribution))[:, :, None] * E
        p = jax.nn.softmax(z)  # of many classes: no matrix of all pairs
        r = jnp.sqrt(p)
        along = jnp.einsum("mk,mkc->mc", r, E)
        return jnp.sqrt(weights)[:, None, None] * (r[:, :, None] * E - p[:, :, None] * along[:, None, :])

    def times(self, target: Target, u, rows: Rows) -> Callable:
        return _squared(self.roots(target, u, rows))

    def _signs(self, rows: Rows, size: int, number: int, dtype) -> Float[Array, "M number columns"]:
        key, shape = jax.random.key(self.seed), (number, self.num_columns)
        seeds = _apart(_seeds(rows, size))
        E = jax.vmap(lambda s: jax.random.rademacher(jax.random.fold_in(key, s), shape, dtype))(seeds)
        return E / np.sqrt(self.num_columns).astype(dtype)


def observed(target: Target, u, rows: Rows) -> tuple[AnyHead, Float[Array, "M K"], Any, Float[Array, " M"]]:
    """(head, z, distribution of the outcomes, weights of the rows with a power of the likelihood)."""
    head, likelihood, params = target.head, target.model.likelihood, target.constrain(u)
    assert head is not None  # checked by who asks
    assert likelihood is not None
    distribution: Any = likelihood(params, rows.x)
    weights: Any = rows.weights
    if isinstance(distribution, Scaled):
        weights, distribution = weights * distribution.scale, distribution.base_dist
    return head, head.natural(distribution, params, rows.x), distribution, weights


def fisher_product(head: Head, z: Float[Array, "M K"], distribution) -> Callable[[Any], Any]:
    """v (M, K) ↦ F v of each row, of weight one, without the K² numbers of F."""
    if head.name == "categorical":
        p = jax.nn.softmax(z)
        return lambda v: p * (v - jnp.sum(p * v, axis=1, keepdims=True))
    diagonal = information(head, z, distribution)
    return lambda v: diagonal * v


def _scores(head: UserHead, z, rows: Rows, size: int) -> tuple[Array, Array]:
    return head.scores(z, _apart(_seeds(rows, len(z))), size)


def _squared(L: Float[Array, "M K columns"]) -> Callable:
    return lambda v: jnp.einsum("mkc,mc->mk", L, jnp.einsum("mkc,mk->mc", L, v))


def _softmax_roots(z: Float[Array, "M K"], weights) -> Float[Array, "M K K"]:
    """diag(√p) − p √pᵀ, whose square is diag(p) − p pᵀ: no eigenvectors of each row."""
    p = jax.nn.softmax(z)
    r = jnp.sqrt(p)
    return jnp.sqrt(weights)[:, None, None] * (jax.vmap(jnp.diag)(r) - p[:, :, None] * r[:, None, :])


def _seeds(rows: Rows, size: int) -> UInt32[Array, " M"]:
    """A number of each row, by which what is random of it is drawn: whatever the chunk, the same."""
    total, first = jnp.zeros(size, jnp.float32), 1
    for leaf in jax.tree.leaves((rows.x, rows.y)):
        flat = jnp.asarray(leaf, jnp.float32).reshape(size, -1)
        total = total + flat @ jnp.cos(jnp.arange(first, first + flat.shape[1], dtype=jnp.float32))
        first = first + flat.shape[1]
    return jax.lax.bitcast_convert_type(total, jnp.uint32)


def _apart(seeds: UInt32[Array, " M"]) -> UInt32[Array, " M"]:
    """Those of rows that are alike, as of a design with few levels, told apart by how many came before them."""
    order = jnp.argsort(seeds, stable=True)
    place = jnp.arange(len(seeds), dtype=seeds.dtype)
    is_new = jnp.append(True, jnp.diff(seeds[order]) != 0)
    first = jax.lax.cummax(jnp.where(is_new, place, 0))
    return seeds + jnp.zeros_like(seeds).at[order].set(place - first)
