"""Quantiles from a distribution function, for every element of an array at once.

The first bracket comes from Cantelli's inequality: a distribution with mean μ and sd σ has its p-quantile in
[μ − σ √((1 − p) / p), μ + σ √(p / (1 − p))]. Where μ or σ is unknown or infinite, and against rounding, the bracket
grows until it holds the quantile. Counts are then bisected; continuous outcomes use the ITP method (Oliveira &
Takahashi 2021, algorithm 1), which needs at most one evaluation more than bisection and about a third in practice.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

RESOLUTION = 1e-12  # of a continuous quantile, relative to its bracket
TIE = 1e-12  # how far below p a distribution function may fall by rounding and still count as having reached it
MAX_DOUBLINGS = 1_100  # from 1 past the largest float64

Cdf = Callable[[Array], Array]


def invert(
    cdf: Cdf, p, mean: Float[Array, "..."], sd: Float[Array, "..."], *, is_discrete: bool
) -> Float[Array, "..."]:
    """The smallest value at which ``cdf`` reaches p, 0 < p < 1: exact for counts, by root finding otherwise.

    ``mean`` and ``sd`` of the distributions, NaN where unknown, only start the search.
    """
    lower, upper = _bracket(cdf, p, mean, sd)
    return _bisect(cdf, p, lower, upper) if is_discrete else _itp(cdf, p, lower, upper)


def _bracket(cdf: Cdf, p, mean, sd):
    known = jnp.isfinite(mean) & jnp.isfinite(sd)
    mean, sd = jnp.where(known, mean, 0.0), jnp.where(known, sd, 1.0)
    slack = 1e-6 * (sd + jnp.abs(mean)) + 1e-300
    lower = mean - sd * jnp.sqrt((1.0 - p) / p) - slack
    upper = mean + sd * jnp.sqrt(p / (1.0 - p)) + slack
    step = upper - lower
    lower = _widen(lower, -step, lambda end: cdf(end) < p - TIE)
    return lower, _widen(upper, step, lambda end: cdf(end) >= p - TIE)


def _widen(end, step, holds):
    def grow(state):
        end, step, count = state
        return jnp.where(holds(end), end, end + step), 2.0 * step, count + 1

    def is_unfinished(state):
        return jnp.any(~holds(state[0])) & (state[2] < MAX_DOUBLINGS)

    return jax.lax.while_loop(is_unfinished, grow, (end, step, 0))[0]


def _bisect(cdf: Cdf, p, lower, upper):
    def halve(ends):
        a, b = ends
        middle = jnp.floor(0.5 * (a + b))
        reached = cdf(middle) >= p - TIE
        return jnp.where(reached, a, middle), jnp.where(reached, middle, b)

    def is_unfinished(ends):
        return jnp.any(ends[1] - ends[0] > 1.0)

    return jax.lax.while_loop(is_unfinished, halve, (jnp.floor(lower), jnp.ceil(upper)))[1]


def _itp(cdf: Cdf, p, lower, upper):
    tolerance = RESOLUTION * (upper - lower)
    num_bisections = 40  # log2(1 / (2 · RESOLUTION)) rounded up, then one of slack (n0 of the paper)
    k1, k2 = 0.2 / (upper - lower), 2.0

    def narrow(state):
        a, b, f_a, f_b, j = state
        middle = 0.5 * (a + b)
        radius = tolerance * 2.0 ** (num_bisections - j) - 0.5 * (b - a)
        difference = f_b - f_a
        false_position = jnp.where(
            difference > 0, (f_b * a - f_a * b) / jnp.where(difference > 0, difference, 1.0), middle
        )
        sign = jnp.sign(middle - false_position)
        shift = k1 * (b - a) ** k2
        truncated = jnp.where(shift <= jnp.abs(middle - false_position), false_position + sign * shift, middle)
        x = jnp.where(jnp.abs(truncated - middle) <= radius, truncated, middle - sign * radius)
        f = cdf(x) - p
        done = b - a <= 2.0 * tolerance
        a, f_a, b, f_b = (
            jnp.where(done | (f >= 0), a, x),
            jnp.where(done | (f >= 0), f_a, f),
            jnp.where(done | (f < 0), b, x),
            jnp.where(done | (f < 0), f_b, f),
        )
        return a, b, f_a, f_b, j + 1

    def is_unfinished(state):
        a, b, _, _, j = state
        return jnp.any(b - a > 2.0 * tolerance) & (j <= num_bisections)

    start = (lower, upper, cdf(lower) - p, cdf(upper) - p, 0)
    a, b, *_ = jax.lax.while_loop(is_unfinished, narrow, start)
    return 0.5 * (a + b)
