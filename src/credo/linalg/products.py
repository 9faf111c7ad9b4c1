"""Curvature without matrices: products of Hessians with vectors, and their columns.

A dense result is filled a chunk of columns at a time from one linearisation, so that nothing larger than the result
and ``chunk`` copies of the function's intermediates is ever held.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from credo.batches import in_batches
from credo.equations import equations

CHUNK = 32  # columns at once: enough for matrix products to run at full speed, few enough for 10⁵ rows in memory

Vector = Float[Array, " dim"]


def hvp(f: Callable[[PyTree], Array], x: PyTree, v: PyTree) -> PyTree:
    """∇²f(x) v: a few times the cost of f. x and v: the same pytree."""
    return second_order(f, x)[2](v)


def second_order(f: Callable[[PyTree], Array], x: PyTree) -> tuple[Array, PyTree, Callable[[PyTree], PyTree]]:
    """(f(x), ∇f(x), v ↦ ∇²f(x) v) with the work at x done once, forward over reverse (Pearlmutter 1994).

    Functions with a rule for reverse mode alone (``jax.custom_vjp``: a solver of differential equations, say) are
    differentiated in reverse twice, which gives vᵀ∇²f(x): the same.
    """
    (value, gradient), tangent = jax.linearize(jax.value_and_grad(f), x)
    if not any(each.primitive.name == "custom_lin" for each in equations(jax.make_jaxpr(tangent)(x).jaxpr)):
        return value, gradient, lambda v: tangent(v)[1]
    gradient, transpose, value = jax.vjp(lambda u: jax.value_and_grad(f)(u)[::-1], x, has_aux=True)
    return value, gradient, lambda v: transpose(v)[0]


def hessian(f: Callable[[Vector], Array], x: Vector, *, chunk: int = CHUNK) -> Float[Array, "dim dim"]:
    """∇²f(x) for a vector x, symmetric to the last digit."""
    return _symmetric(columns(second_order(f, x)[2], x, chunk=chunk))


def columns(product: Callable[[Vector], Vector], like: Vector, *, chunk: int = CHUNK) -> Float[Array, "out dim"]:
    """The matrix of the linear map ``product`` on vectors shaped as ``like``, ``chunk`` columns at a time."""
    dim = like.shape[0]

    def column(i):
        return product(jnp.zeros(dim, like.dtype).at[i].set(1))

    return in_batches(column, jnp.arange(dim), chunk).T


def _symmetric(matrix: Float[Array, "dim dim"]) -> Float[Array, "dim dim"]:
    return 0.5 * (matrix + matrix.T)
