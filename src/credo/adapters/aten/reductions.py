"""Operators of ATen that sum, average or compare over axes."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from credo.adapters.aten.pointwise import absolute


def axes(dim):
    """None and an empty list stand for all axes."""
    if dim is None or isinstance(dim, int):
        return dim
    return tuple(dim) or None


def whole(of):
    """A sum or product: of whole numbers and truth values torch's has 64 bits, NumPy's those of its arguments."""
    return lambda x, **given: of(x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(int), **given)


def over(of):
    """A reduction with torch's arguments: ``(x, dim, keepdim, dtype)``."""

    def reduced(x, dim=None, keepdim=False, *, dtype=None):
        return of(x if dtype is None else x.astype(dtype), axis=axes(dim), keepdims=keepdim)

    return reduced


def variance(x, dim=None, *, correction=1, keepdim=False):
    return jnp.var(x, axis=axes(dim), ddof=1 if correction is None else correction, keepdims=keepdim)


def of_dim(of):
    """In torch's older form of the arguments."""
    return lambda x, dim=None, unbiased=True, keepdim=False: of(x, dim, correction=int(unbiased), keepdim=keepdim)


def of_all(of):
    return lambda x, unbiased=True: of(x, correction=int(unbiased))


def deviation(x, dim=None, *, correction=1, keepdim=False):
    """Of equal entries the gradient is zero, as torch has it."""
    found = variance(x, dim, correction=correction, keepdim=keepdim)
    is_zero = found == 0
    return jnp.where(is_zero, 0.0, jnp.sqrt(jnp.where(is_zero, 1.0, found)))


def extreme(place):
    """(values, indices) along one axis; of ties the gradient goes to one, as torch has it."""

    def found(x, dim, keepdim=False):
        index = place(x, axis=dim, keepdims=True)
        values = jnp.take_along_axis(x, index, axis=dim)
        return (values, index) if keepdim else (jnp.squeeze(values, dim), jnp.squeeze(index, dim))

    return found


def ordered(x, rank: int, dim, keepdim=False):
    """(value, index) of this place in rising order along ``dim``; the gradient goes to that entry."""
    index = jnp.take(jnp.argsort(x, axis=dim), jnp.array([rank]), axis=dim)
    values = jnp.take_along_axis(x, index, axis=dim)
    return (values, index) if keepdim else (jnp.squeeze(values, dim), jnp.squeeze(index, dim))


def median(x, dim, keepdim=False):
    """The lower one of an even number, and NaN of any NaN, as torch has them."""
    values, index = ordered(x, (x.shape[dim] - 1) // 2, dim, keepdim)
    return jnp.where(jnp.any(jnp.isnan(x), axis=dim, keepdims=keepdim), jnp.nan, values), index


def running_extreme(of):
    """(values, indices) of the largest or smallest so far; of ties the last."""

    def found(x, dim):
        axis = dim % x.ndim
        place = jnp.arange(x.shape[axis]).reshape(-1, *(1,) * (x.ndim - axis - 1))
        index = lax.cummax(jnp.where(x == of(x, axis=axis), place, 0), axis=axis)
        return jnp.take_along_axis(x, index, axis=axis), index

    return found


def position(of):
    return lambda x, dim=None, keepdim=False: of(x, axis=dim, keepdims=keepdim)


def cumulative(of):
    return lambda x, dim, *, dtype=None: of(x, axis=dim, dtype=dtype)


def softmax(x, dim, half_to_float=False):
    return jax.nn.softmax(x, axis=dim)


def safe_softmax(x, dim, dtype=None):
    """Zeros where all is masked."""
    is_empty = jnp.all(x == -jnp.inf, axis=dim, keepdims=True)
    return jnp.where(is_empty, 0.0, jax.nn.softmax(jnp.where(is_empty, 0.0, x), axis=dim))


def log_softmax(x, dim, half_to_float=False):
    return jax.nn.log_softmax(x, axis=dim)


def vector_norm(x, order=2, dim=None, keepdim=False, *, dtype=None):
    """(Σ |x|ᵖ)^(1/p). By entries of zero, and of a norm of zero, the gradient is zero, as torch has it."""
    size = absolute if order in (1, float("inf"), float("-inf")) else jnp.abs  # whose square has a curvature at zero
    x, along = size(x if dtype is None else x.astype(dtype)), axes(dim)
    if order in (float("inf"), float("-inf")):
        return (jnp.max if order > 0 else jnp.min)(x, axis=along, keepdims=keepdim)
    if order == 0:
        return jnp.sum(x != 0, axis=along, keepdims=keepdim).astype(x.dtype)
    if order == 1:
        return jnp.sum(x, axis=along, keepdims=keepdim)
    powers = x**order
    if order < 1:  # no finite slope at zero
        powers = jnp.where(x == 0, 0.0 if order > 0 else jnp.inf, jnp.where(x == 0, 1.0, x) ** order)
    total = jnp.sum(powers, axis=along, keepdims=keepdim)
    is_zero = total == 0
    return jnp.where(is_zero, 0.0, jnp.where(is_zero, 1.0, total) ** (1 / order))


def distances_within(x, p=2):
    """Of all pairs of rows, each once."""
    first, second = np.triu_indices(len(x), 1)
    return vector_norm(x[first] - x[second], p, -1)


def distances(x, y, p, mode=None):
    return vector_norm(x[..., :, None, :] - y[..., None, :, :], p, -1)


REDUCTIONS = {
    **{name: over(getattr(jnp, name)) for name in ("mean", "amax", "amin", "any", "all")},
    **{name: over(whole(getattr(jnp, name))) for name in ("sum", "prod")},
    "logsumexp": over(jax.nn.logsumexp),
    "_cdist_forward": distances,
    "_pdist_forward": distances_within,
    "linalg_vector_norm": vector_norm,
    "var": variance,
    "var.dim": of_dim(variance),
    "std": deviation,
    "std.dim": of_dim(deviation),
    "std.default": of_all(deviation),
    "var_mean": lambda x, dim=None, **given: (
        variance(x, dim, **given),
        jnp.mean(x, axis=axes(dim), keepdims=given.get("keepdim", False)),
    ),
    "max.dim": extreme(jnp.argmax),
    "min.dim": extreme(jnp.argmin),
    "median.dim": median,
    "kthvalue": lambda x, k, dim=-1, keepdim=False: ordered(x, k - 1, dim, keepdim),
    "cummax": running_extreme(lax.cummax),
    "cummin": running_extreme(lax.cummin),
    "logcumsumexp": lambda x, dim: lax.cumlogsumexp(x, axis=dim % x.ndim),
    "max": over(jnp.max),
    "min": over(jnp.min),
    "argmax": position(jnp.argmax),
    "argmin": position(jnp.argmin),
    "cumsum": cumulative(whole(jnp.cumsum)),
    "cumprod": cumulative(whole(jnp.cumprod)),
    "_softmax": softmax,
    "_safe_softmax": safe_softmax,
    "_log_softmax": log_softmax,
}
