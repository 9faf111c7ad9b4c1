"""Operators of ATen that act entry by entry, make arrays, or change their type."""

import math
import operator
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.scipy import special

from credo.status import CredoError


def same(x, *args, **kwargs):
    """Copies, aliases and changes of layout: JAX arrays have neither."""
    return x


def scaled(of: Callable) -> Callable:
    """``of(x, alpha · y)``: addition and subtraction."""
    return lambda x, y, *, alpha=1: of(x, y if alpha == 1 else alpha * y)


def divide(x, y, *, rounding_mode=None):
    if rounding_mode == "floor":
        return jnp.floor_divide(x, y)
    return x / y if rounding_mode is None else jnp.trunc(x / y).astype(jnp.result_type(x, y))


def clamp(x, min=None, max=None):
    """At a bound the derivative is that of x, as torch has it; JAX halves it."""
    x = x if min is None else jnp.where(x < min, min, x)
    return x if max is None else jnp.where(x > max, max, x)


def hardtanh(x, min_val=-1.0, max_val=1.0):
    """At a bound the derivative is zero."""
    return jnp.where((x > min_val) & (x < max_val), x, jax.lax.stop_gradient(jnp.clip(x, min_val, max_val)))


def atan2(y, x):
    """At (0, 0) the gradient is zero, as torch has it."""
    is_origin = (y == 0) & (x == 0)
    return jnp.where(is_origin, jax.lax.stop_gradient(jnp.arctan2(y, x)), jnp.arctan2(y, jnp.where(is_origin, 1.0, x)))


def celu(x, alpha=1.0):
    return elu(x, alpha, 1.0, 1.0 / alpha)


def elu(x, alpha=1.0, scale=1.0, input_scale=1.0):
    below = jnp.expm1(input_scale * jnp.where(x > 0, 0.0, x))  # no overflow, nor NaN in the gradient of the other
    return scale * jnp.where(x > 0, x, alpha * below)


def power(x, y):
    """At an exponent of 0 the gradient by x is zero, at x = 0 too."""
    if not jnp.issubdtype(jnp.result_type(y), jnp.floating) or not jnp.ndim(y):
        return jnp.power(x, y)
    is_one = y == 0
    return jnp.where(is_one, jnp.ones_like(x), jnp.power(jnp.where(is_one, 1, x), y))


@partial(jax.jit, static_argnames=("beta", "threshold"))  # keeps its name in programs, as jax.nn's does
def softplus(x, beta=1.0, threshold=20.0):
    return jnp.where(beta * x > threshold, x, jax.nn.softplus(beta * x) / beta)


def leaky_relu(x, negative_slope=0.01):
    return jnp.where(x > 0, x, negative_slope * x)


def rrelu(x, noise, lower=1 / 8, upper=1 / 3, training=False):
    """In evaluation the slope is in the middle."""
    if training:
        raise CredoError("The module draws random numbers (rrelu): say training=self.training, which evaluation ends.")
    return leaky_relu(x, 0.5 * (lower + upper)), noise


def round_(x, *, decimals=0):
    return jnp.round(x, decimals)


def converted(x, *, dtype=None):
    return x if dtype is None else jnp.asarray(x, dtype)


def full_like(x, value, *, dtype=None):
    return jnp.full_like(x, value, dtype=dtype)


def arange(start, end=None, step=1, *, dtype=None):
    return jnp.arange(start, end, step, dtype=dtype)


def erfcx(x):
    """exp(x²) erfc(x), by log Φ, which does not underflow; beyond 50 by the first terms of its series."""
    far = jnp.maximum(x, 50.0)
    near = 2 * jnp.exp(jnp.minimum(x, 50.0) ** 2 + special.log_ndtr(-math.sqrt(2) * jnp.minimum(x, 50.0)))
    series = (1 - (0.5 - 0.75 / far**2) / far**2) / (far * math.sqrt(math.pi))
    return jnp.where(x > 50.0, series, near)


def absolute(x):
    """At zero the derivative is zero, as torch has it."""
    return jnp.abs(x) if jnp.iscomplexobj(x) else x * jnp.sign(x)


def sinc(x):
    """Next to zero by its series: there the derivatives of a quotient are lost in rounding."""
    is_near = jnp.abs(x) < 0.01
    y = jnp.square(math.pi * jnp.where(is_near, x, 0.0))
    series = 1 - y / 6 * (1 - y / 20 * (1 - y / 42 * (1 - y / 72)))
    return jnp.where(is_near, series, jnp.sinc(jnp.where(is_near, 1.0, x)))


def hypot(x, y):
    """At zero the gradient is zero, as torch has it."""
    is_zero = (x == 0) & (y == 0)
    return jnp.where(is_zero, 0.0, jnp.hypot(jnp.where(is_zero, 1.0, x), y))


NAMES = (  # of one array, the same in torch and NumPy
    "ceil", "cos", "cosh", "exp", "expm1", "floor", "log", "log10", "log1p", "log2", "reciprocal", "sign",
    "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "isinf", "isnan", "logical_not", "bitwise_not",
)  # fmt: skip
UNARY = {name: getattr(jnp, name) for name in NAMES}
UNARY |= {name: getattr(jnp, "arc" + name[1:]) for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh")}
UNARY |= {
    "abs": absolute,
    "exp2": jnp.exp2,
    "i0": lambda x: special.i0e(x) * jnp.exp(absolute(x)),
    "polygamma": lambda n, x: special.polygamma(n, x),
    "special_erfcx": erfcx,
    "special_ndtri": special.ndtri,
    **{f"special_{name}": getattr(special, name) for name in ("i0e", "i1", "i1e", "log_ndtr")},
    "neg": jnp.negative,
    "square": jnp.square,
    "rsqrt": jax.lax.rsqrt,
    "round": round_,
    "sinc": sinc,
    "erf": special.erf,
    "erfc": special.erfc,
    "erfinv": special.erfinv,
    "lgamma": special.gammaln,
    "digamma": special.digamma,
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "log_sigmoid_forward": lambda x: (jax.nn.log_sigmoid(x), None),
    "silu": jax.nn.silu,
    "mish": jax.nn.mish,
    "hardswish": jax.nn.hard_swish,
    "hardsigmoid": jax.nn.hard_sigmoid,
    "gelu": lambda x, *, approximate="none": jax.nn.gelu(x, approximate=approximate == "tanh"),
}
NAMES_OF_TWO = (
    "fmod", "remainder", "maximum", "minimum", "logical_and", "logical_or", "logical_xor", "bitwise_and",
    "bitwise_or", "bitwise_xor",
)  # fmt: skip
BINARY = {name: getattr(jnp, name) for name in NAMES_OF_TWO}
BINARY |= {name: getattr(operator, name) for name in ("mul", "eq", "ne", "lt", "le", "gt", "ge")}
BINARY |= {
    "add": scaled(operator.add),
    "sub": scaled(operator.sub),
    "rsub": scaled(lambda x, y: y - x),
    "div": divide,
    "pow": power,
    "atan2": atan2,
    "hypot": hypot,
    "copysign": lambda x, y: jnp.copysign(absolute(x), y),
    "fmax": lambda x, y: jnp.where((x >= y) | jnp.isnan(y), x, y),  # of equals the gradient goes to x, as in torch
    "fmin": lambda x, y: jnp.where((x <= y) | jnp.isnan(y), x, y),
    **dict.fromkeys(("__lshift__", "bitwise_left_shift"), jnp.left_shift),
    **dict.fromkeys(("__rshift__", "bitwise_right_shift"), jnp.right_shift),
    "igamma": special.gammainc,
    "igammac": special.gammaincc,
}
POINTWISE = {
    **UNARY,
    **BINARY,
    **dict.fromkeys(("clone", "alias", "lift_fresh_copy", "contiguous"), same),
    **dict.fromkeys(("detach", "detach_copy"), jax.lax.stop_gradient),
    "copy": lambda x, source, *args: jnp.broadcast_to(source, x.shape).astype(x.dtype),
    "_to_copy": converted,
    "where": jnp.where,
    "clamp": clamp,
    "hardtanh": hardtanh,
    "elu": elu,
    "celu": celu,
    "softplus": softplus,
    "leaky_relu": leaky_relu,
    "rrelu_with_noise_functional": rrelu,
    "full": lambda size, value, *, dtype=None: jnp.full(size, value, dtype),
    "full_like": full_like,
    "fill": full_like,
    "scalar_tensor": lambda value, *, dtype=None: jnp.asarray(value, dtype),
    "empty": lambda size, *, dtype=None: jnp.zeros(size, dtype),
    "arange": arange,
}
