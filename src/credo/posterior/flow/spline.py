"""Rational-quadratic splines (Durkan, Bekasov, Murray & Papamakarios 2019, equations 4 to 8; Gregory & Delbourgo 1982).

g maps [−c, c] onto itself through knots (x_k, y_k), k = 0 … K, with slopes d_k > 0 there, and is the identity outside
(d_0 = d_K = 1). Between two knots, with ξ = (z − x_k)/(x_{k+1} − x_k), h = y_{k+1} − y_k, s = h/(x_{k+1} − x_k),

    g(z) = y_k + h (s ξ² + d_k ξ(1 − ξ)) / D,   D = s + (d_{k+1} + d_k − 2 s) ξ(1 − ξ)
    g'(z) = s² (d_{k+1} ξ² + 2 s ξ(1 − ξ) + d_k (1 − ξ)²) / D²

The inverse solves a quadratic: with y = u − y_k and e = d_{k+1} + d_k − 2 s,

    a = h (s − d_k) + y e,  b = h d_k − y e,  c = −s y,   ξ = 2c / (−b − (b² − 4ac)^½)
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credo.posterior.flow.layer import Coupling, identity_networks

ONE = math.log(math.expm1(1.0))  # softplus(ONE) = 1
LEAST = 1e-3  # share of a bin, and slope at a knot: neither may vanish


class SplineCoupling(Coupling):
    """Bends half of the coordinates by splines of ``num_bins`` bins on [−``bound``, ``bound``], made by the others."""

    num_bins: int = eqx.field(static=True)
    bound: float = eqx.field(static=True)

    @classmethod
    def identity(cls, dim: int, num_layers: int, width: int, dtype, num_bins: int, bound: float) -> "SplineCoupling":
        """Layers that change nothing yet."""
        return cls(*identity_networks(dim, num_layers, 3 * num_bins - 1, width, dtype), num_bins, bound)

    def bend(self, theta, z):
        knots = self._knots(theta)
        inside = jnp.abs(z) < self.bound
        z_in = jnp.where(inside, z, 0.0)
        bin = _bin(knots, knots.x, z_in)
        xi = (z_in - bin.x) / bin.width
        u = bin.y + bin.height * (bin.s * xi**2 + bin.low * xi * (1 - xi)) / _denominator(bin, xi)
        return jnp.where(inside, u, z), jnp.where(inside, _log_slope(bin, xi), 0.0)

    def unbend(self, theta, u):
        knots = self._knots(theta)
        inside = jnp.abs(u) < self.bound
        u_in = jnp.where(inside, u, 0.0)
        bin = _bin(knots, knots.y, u_in)
        y, e = u_in - bin.y, bin.high + bin.low - 2 * bin.s
        a, b, c = bin.height * (bin.s - bin.low) + y * e, bin.height * bin.low - y * e, -bin.s * y
        xi = 2 * c / (-b - jnp.sqrt(jnp.maximum(b**2 - 4 * a * c, 0.0)))
        return jnp.where(inside, bin.x + xi * bin.width, u), jnp.where(inside, -_log_slope(bin, xi), 0.0)

    def _knots(self, theta) -> "Knots":
        K = self.num_bins
        x, y = (_places(theta[:, i * K : (i + 1) * K], self.bound) for i in (0, 1))
        slopes = LEAST + (1 - LEAST) * jax.nn.softplus(theta[:, 2 * K :] + ONE)
        ends = jnp.ones_like(theta[:, :1])
        return Knots(x, y, jnp.concatenate([ends, slopes, ends], axis=1))


class Knots(NamedTuple):
    """Places and slopes, one row a coordinate."""

    x: Float[Array, "moved knots"]
    y: Float[Array, "moved knots"]
    slope: Float[Array, "moved knots"]


class Bin(NamedTuple):
    """The bin of each coordinate: its corner, its sizes, s, and the slopes at its ends."""

    x: Float[Array, " moved"]
    y: Float[Array, " moved"]
    width: Float[Array, " moved"]
    height: Float[Array, " moved"]
    s: Float[Array, " moved"]
    low: Float[Array, " moved"]
    high: Float[Array, " moved"]


def _places(theta, bound: float):
    """K + 1 knots from −bound to bound, evenly spaced where theta is zero."""
    num_bins = theta.shape[1]
    shares = LEAST + (1 - LEAST * num_bins) * jax.nn.softmax(theta, axis=1)
    running = np.triu(np.ones((num_bins - 1, num_bins - 1), shares.dtype))  # sums by a product: quicker to compile
    inner = 2 * bound * jnp.matmul(shares[:, :-1], running) - bound
    end = jnp.full_like(theta[:, :1], bound)
    return jnp.concatenate([-end, inner, end], axis=1)


def _bin(knots: Knots, places, v) -> Bin:
    """The bin in which v lies, ``places`` being the knots on its side. By masks: their derivative scatters nothing."""
    is_here = (v[:, None] >= places[:, :-1]) & (v[:, None] < places[:, 1:])

    def pick(values):
        return jnp.sum(jnp.where(is_here, values, 0.0), axis=1)

    x, y = pick(knots.x[:, :-1]), pick(knots.y[:, :-1])
    width, height = pick(jnp.diff(knots.x, axis=1)), pick(jnp.diff(knots.y, axis=1))
    return Bin(x, y, width, height, height / width, pick(knots.slope[:, :-1]), pick(knots.slope[:, 1:]))


def _denominator(bin: Bin, xi):
    return bin.s + (bin.high + bin.low - 2 * bin.s) * xi * (1 - xi)


def _log_slope(bin: Bin, xi):
    numerator = bin.high * xi**2 + 2 * bin.s * xi * (1 - xi) + bin.low * (1 - xi) ** 2
    return 2 * jnp.log(bin.s) + jnp.log(numerator) - 2 * jnp.log(_denominator(bin, xi))
