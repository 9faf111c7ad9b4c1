"""The incomplete beta and gamma functions, with as many terms as they need.

JAX's look for a change below half a unit in the last place, which some number of an array never makes: hundreds of
terms each, 3 to 15 µs a number, where a predictive quantile asks for tens of millions of them.

Beta: I_x(a, b) by the continued fraction of Didonato & Morris (1992, BFRAC), for x below (a + 1)/(a + b + 2), and
1 − I_{1−x}(b, a) above. Gamma: P(a, x) by its power series where x is small and Q(a, x) by Legendre's continued
fraction where it is not; for a > 40 the smaller tail is an integral over a range in which it all lies, by a fixed
Gauss–Legendre rule in sds z of t about m = a − 1 (Press et al. 2007, section 6.2.1):

    t = m + √m z,   t^m e^−t / Γ(a) dt = (2π)^−½ exp(m (log(1 + z/√m) − z/√m) − r(m)) dz,   r Stirling's remainder
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import gammaln

MOST_TERMS = 5_000.0  # of the beta fraction, which ends where a term more changes no number by 4 roundings
LARGE = 40.0  # a: of the integral, whose error is 2e-15 from here on
SMALL = 3.0  # x: the other fraction needs 83 terms at one and 34 at three
# Sds: from the midst a tail of a > 40 has 1e-15 of its mass beyond 12, and from further out half as many do.
REACH, REACH_OF_TAILS = 12.0, 6.0
NODES, NODE_WEIGHTS = np.polynomial.legendre.leggauss(32)


def beta_share(a, b, x, rest):
    """I_x(a, b), ``rest`` = 1 − x: given, so that neither end of x rounds to nothing."""
    a, b, x, rest = _floats(a, b, x, rest)
    is_upper = x * (a + b + 2) > a + 1
    a, b, x, rest = (jnp.where(is_upper, *pair) for pair in ((b, a), (a, b), (rest, x), (x, rest)))
    excess = a * rest - b * x + 1

    def term(m):
        before = a + 2 * m - 1
        numerator = (a + m - 1) * (a + b + m - 1) * m * (b - m) * jnp.square(x / before)
        return numerator, m + m * (b - m) * x / before + (a + m) * (excess + m * (2 - x)) / (before + 2)

    share = _beta_scale(a, b, x, rest) / _continued_fraction(a * excess / (a + 1), term)
    share = jnp.clip(share, 0, 1)
    return jnp.where(is_upper, 1 - share, share)


def _beta_scale(a, b, x, rest):
    """x^a (1 − x)^b / B(a, b), as its distance from the value at x = a/(a + b), by Stirling's series of B there: the
    logarithms of gamma functions would lose as many digits as a has."""
    away = b * x - a * rest
    exponent = a * _log_less(x * (a + b) / a, away / a) + b * _log_less(rest * (a + b) / b, -away / b)
    remainders = _remainder(a + b) - _remainder(a) - _remainder(b)
    return jnp.sqrt(a / (a + b) * b / (2 * np.pi)) * jnp.exp(exponent + remainders)


def _log_less(x, t):
    """log x − t, x = 1 + t."""
    return jnp.where(t < -0.5, jnp.log(x), jnp.log1p(jnp.maximum(t, -0.5))) - t


def _remainder(x):
    """Of Stirling's formula: log Γ(x) − ((x − ½) log x − x + ½ log 2π)."""
    series = 1 / (12 * x) - 1 / (360 * x**3) + 1 / (1260 * x**5) - 1 / (1680 * x**7) + 1 / (1188 * x**9)
    near = jnp.minimum(x, 15.0)
    exact = gammaln(near) - ((near - 0.5) * jnp.log(near) - near + 0.5 * np.log(2 * np.pi))
    return jnp.where(x > 15.0, series, exact)


def gamma_shares(a, x):
    """(P(a, x), Q(a, x)), the shares of a gamma variable of shape a below and above x, both exact where small."""
    a, x = _floats(a, x)
    x = jnp.minimum(x, np.finfo(x.dtype).max)
    is_large = a > LARGE
    is_low = ~is_large & (x < jnp.maximum(a + 1, SMALL))
    scale = jnp.exp(a * jnp.log(x) - x - gammaln(a + 1))
    below = scale * _series(*_where(is_low, (a, x), (0.0, 0.0)))
    is_high = ~(is_large | is_low)
    number = jnp.where(jnp.any(is_high), 40.0, 0.0)
    above = scale * a / _legendre(number, *_where(is_high, (a, x), (0.5, SMALL)))
    z, m = _where(is_large, ((x - (a - 1)) / jnp.sqrt(a - 1), a - 1), (0.0, LARGE))
    smaller = jnp.where(is_large, _tail(z, m, jnp.any(is_large)), jnp.where(is_low, below, above))
    is_below = jnp.where(is_large, z <= 0, is_low)
    return jnp.where(is_below, smaller, 1 - smaller), jnp.where(is_below, 1 - smaller, smaller)


def _continued_fraction(first, term: Callable[[Any], tuple]):
    """first + n₁/(d₁ + n₂/(d₂ + …)) with (n_m, d_m) = term(m), from the front (Lentz 1976) until nothing changes."""

    def add(carry):
        m, value, ahead, behind, _ = carry
        numerator, denominator = term(m)
        ahead, behind = denominator + numerator / ahead, 1 / (denominator + numerator * behind)
        change = ahead * behind
        return m + 1, value * change, ahead, behind, jnp.any(jnp.abs(change - 1) > least)

    least = 4 * np.finfo(first.dtype).eps
    start = jnp.ones_like(first, shape=()), first, first, jnp.zeros_like(first), jnp.bool_(True)
    return lax.while_loop(lambda carry: carry[-1] & (carry[0] < MOST_TERMS), add, start)[1]


def _series(a, x):
    """1 + x/(a + 1) + x²/((a + 1)(a + 2)) + …, from the back: x is at most a + 1, or SMALL."""
    most = 22.0 + 6.0 * jnp.sqrt(jnp.max(a, initial=0.0))
    number = jnp.where(jnp.any(x > 0), most, 0.0)
    return _from_the_back(number, lambda n, rest: 1 + x / (a + n) * rest, jnp.ones_like(x))


def _legendre(number, a, x):
    """x + 1 − a + 1 (a − 1)/(x + 3 − a + 2 (a − 2)/(x + 5 − a + …)), from the back, x SMALL at least: 40 terms."""
    return _from_the_back(number, lambda n, rest: x - a + 2 * n - 1 + n * (a - n) / rest, x - a + 81.0)


def _from_the_back(number, with_term: Callable, rest):
    """``rest`` once the terms ``number``, …, 2, 1 have come before it."""

    def add(carry):
        return carry[0] - 1, with_term(*carry)

    number = jnp.floor(jnp.asarray(number, rest.dtype))
    return lax.while_loop(lambda carry: carry[0] > 0, add, (number, rest))[1]


def _tail(z, m, is_needed):
    """The share of a gamma variable of shape m + 1 further out than z, on the side of z."""
    root = jnp.sqrt(m)
    up, down = jnp.maximum(REACH, z + REACH_OF_TAILS), jnp.minimum(-REACH, z - REACH_OF_TAILS)
    length = jnp.where(z > 0, up, jnp.maximum(down, -root)) - z
    nodes, weights = (jnp.asarray(part, z.dtype) for part in ((1 + NODES) / 2, NODE_WEIGHTS / 2))

    def add(k, total):
        u = jnp.maximum((z + length * nodes[k]) / root, -1.0)  # at zero, from which rounding may lead away
        return total + weights[k] * jnp.exp(m * (jnp.log1p(u) - u))

    total = lax.fori_loop(0, jnp.where(is_needed, len(NODES), 0), add, jnp.zeros_like(z))
    return jnp.abs(length) * total * jnp.exp(-_remainder(m)) / np.sqrt(2 * np.pi)


def _where(condition, values: tuple, others: tuple):
    return tuple(jnp.where(condition, value, other) for value, other in zip(values, others, strict=True))


def _floats(*values):
    """In one shape and precision."""
    return jnp.broadcast_arrays(*(jnp.asarray(value, jnp.result_type(float)) for value in values))
