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
from jaxtyping import Array, Float

from credo.model.data import Rows
from credo.model.distributions import Scaled
from credo.model.heads import Head, information
from credo.model.target import Target


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

    def roots(self, target: Target, u, rows: Rows) -> Float[Array, "M K columns"]:
        head, distribution, weights = observed(target, u, rows)
        z = head.split(distribution)
        if head.name == "categorical":
            return _softmax_roots(z, weights)
        return jnp.sqrt(weights[:, None, None] * head.fisher(z, distribution))  # diagonal, but for classes

    def times(self, target: Target, u, rows: Rows) -> Callable:
        head, distribution, weights = observed(target, u, rows)
        product = fisher_product(head, head.split(distribution), distribution)
        return lambda v: weights[:, None] * product(v)


class Seen(eqx.Module):
    """The outer product of the gradient at the outcome that was seen: one column."""

    def roots(self, target: Target, u, rows: Rows) -> Float[Array, "M K one"]:
        head, distribution, weights = observed(target, u, rows)
        z = head.split(distribution)
        slope = jax.grad(lambda z: jnp.sum(head.join(z, distribution).log_prob(rows.y)))(z)
        return (jnp.sqrt(weights)[:, None] * slope)[:, :, None]

    def times(self, target: Target, u, rows: Rows) -> Callable:
        return _squared(self.roots(target, u, rows))


class Sampled(eqx.Module):
    """``num_columns`` random combinations of the columns of a root of ``Expected()``: that on average."""

    num_columns: int = eqx.field(static=True)
    seed: int = eqx.field(static=True)

    def roots(self, target: Target, u, rows: Rows) -> Float[Array, "M K columns"]:
        head, distribution, weights = observed(target, u, rows)
        z = head.split(distribution)
        # of the row itself, so that chunks of rows, whatever their size, have independent signs
        key = jax.random.key(self.seed)
        seeds = jax.lax.bitcast_convert_type(_numbers(rows, len(z)), jnp.uint32)
        shape = (z.shape[1], self.num_columns)
        E = jax.vmap(lambda s: jax.random.rademacher(jax.random.fold_in(key, s), shape, z.dtype))(seeds)
        E = E / np.sqrt(self.num_columns).astype(z.dtype)
        if head.name != "categorical":
            return jnp.sqrt(weights[:, None] * information(head, z, distribution))[:, :, None] * E
        p = jax.nn.softmax(z)  # of many classes: no matrix of all pairs
        r = jnp.sqrt(p)
        along = jnp.einsum("mk,mkc->mc", r, E)
        return jnp.sqrt(weights)[:, None, None] * (r[:, :, None] * E - p[:, :, None] * along[:, None, :])

    def times(self, target: Target, u, rows: Rows) -> Callable:
        return _squared(self.roots(target, u, rows))


def observed(target: Target, u, rows: Rows) -> tuple[Head, Any, Float[Array, " M"]]:
    """The head, the distribution of the outcomes, and the weights of the rows, a power of the likelihood included."""
    head, likelihood = target.head, target.model.likelihood
    assert head is not None  # checked by who asks
    assert likelihood is not None
    distribution: Any = likelihood(target.constrain(u), rows.x)
    weights: Any = rows.weights
    if isinstance(distribution, Scaled):
        weights, distribution = weights * distribution.scale, distribution.base_dist
    return head, distribution, weights


def fisher_product(head: Head, z: Float[Array, "M K"], distribution) -> Callable[[Any], Any]:
    """v (M, K) ↦ F v of each row, of weight one, without the K² numbers of F."""
    if head.name == "categorical":
        p = jax.nn.softmax(z)
        return lambda v: p * (v - jnp.sum(p * v, axis=1, keepdims=True))
    diagonal = information(head, z, distribution)
    return lambda v: diagonal * v


def _squared(L: Float[Array, "M K columns"]) -> Callable:
    return lambda v: jnp.einsum("mkc,mc->mk", L, jnp.einsum("mkc,mk->mc", L, v))


def _softmax_roots(z: Float[Array, "M K"], weights) -> Float[Array, "M K K"]:
    """diag(√p) − p √pᵀ, whose square is diag(p) − p pᵀ: no eigenvectors of each row."""
    p = jax.nn.softmax(z)
    r = jnp.sqrt(p)
    return jnp.sqrt(weights)[:, None, None] * (jax.vmap(jnp.diag)(r) - p[:, :, None] * r[:, None, :])


def _numbers(rows: Rows, size: int) -> Float[Array, " M"]:
    """A number of each row, by which its random signs are drawn: whatever the chunk, the same."""
    total = jnp.zeros(size, jnp.float32)
    for leaf in jax.tree.leaves((rows.x, rows.y)):
        flat = jnp.asarray(leaf, jnp.float32).reshape(size, -1)
        total = total + flat @ jnp.cos(jnp.arange(1, flat.shape[1] + 1, dtype=jnp.float32))
    return total
