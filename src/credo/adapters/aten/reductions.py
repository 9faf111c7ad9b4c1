"""Operators of ATen that sum, average or compare over axes."""

import jax
import jax.numpy as jnp


def axes(dim):
    """None and an empty list stand for all axes."""
    if dim is None or isinstance(dim, int):
        return dim
    return tuple(dim) or None


def over(of):
    """A reduction with torch's arguments: ``(x, dim, keepdim, dtype)``."""

    def reduced(x, dim=None, keepdim=False, *, dtype=None):
        return of(x if dtype is None else x.astype(dtype), axis=axes(dim), keepdims=keepdim)

    return reduced


def variance(x, dim=None, *, correction=1, keepdim=False):
    return jnp.var(x, axis=axes(dim), ddof=1 if correction is None else correction, keepdims=keepdim)


def variance_of_dim(x, dim=None, unbiased=True, keepdim=False):
    return variance(x, dim, correction=int(unbiased), keepdim=keepdim)


def deviation(x, dim=None, *, correction=1, keepdim=False):
    return jnp.sqrt(variance(x, dim, correction=correction, keepdim=keepdim))


def extreme(place, value):
    """(values, indices) along one axis."""

    def found(x, dim, keepdim=False):
        return value(x, axis=dim, keepdims=keepdim), place(x, axis=dim, keepdims=keepdim)

    return found


def position(of):
    return lambda x, dim=None, keepdim=False: of(x, axis=dim, keepdims=keepdim)


def cumulative(of):
    return lambda x, dim, *, dtype=None: of(x, axis=dim, dtype=dtype)


def softmax(x, dim, half_to_float=False):
    return jax.nn.softmax(x, axis=dim)


def log_softmax(x, dim, half_to_float=False):
    return jax.nn.log_softmax(x, axis=dim)


def vector_norm(x, order=2, dim=None, keepdim=False, *, dtype=None):
    """(Σ |x|ᵖ)^(1/p). At zero the gradient of p = 2 is zero, as torch has it."""
    x, along = jnp.abs(x if dtype is None else x.astype(dtype)), axes(dim)
    if order in (float("inf"), float("-inf")):
        return (jnp.max if order > 0 else jnp.min)(x, axis=along, keepdims=keepdim)
    if order == 0:
        return jnp.sum(x != 0, axis=along, keepdims=keepdim).astype(x.dtype)
    if order == 1:
        return jnp.sum(x, axis=along, keepdims=keepdim)
    total = jnp.sum(x**order, axis=along, keepdims=keepdim)
    is_zero = total == 0
    return jnp.where(is_zero, 0.0, jnp.where(is_zero, 1.0, total) ** (1 / order))


def distances(x, y, p, mode=None):
    return vector_norm(x[..., :, None, :] - y[..., None, :, :], p, -1)


REDUCTIONS = {
    **{name: over(getattr(jnp, name)) for name in ("sum", "mean", "prod", "amax", "amin", "any", "all")},
    "logsumexp": over(jax.nn.logsumexp),
    "_cdist_forward": distances,
    "linalg_vector_norm": vector_norm,
    "var": variance,
    "var.dim": variance_of_dim,
    "std": deviation,
    "var_mean": lambda x, dim=None, **given: (
        variance(x, dim, **given),
        jnp.mean(x, axis=axes(dim), keepdims=given.get("keepdim", False)),
    ),
    "max.dim": extreme(jnp.argmax, jnp.max),
    "min.dim": extreme(jnp.argmin, jnp.min),
    "max": over(jnp.max),
    "min": over(jnp.min),
    "argmax": position(jnp.argmax),
    "argmin": position(jnp.argmin),
    "cumsum": cumulative(jnp.cumsum),
    "cumprod": cumulative(jnp.cumprod),
    "_softmax": softmax,
    "_safe_softmax": softmax,
    "_log_softmax": log_softmax,
}
