"""Quantiles from a distribution function, for every element of an array at once.

The first bracket comes from Cantelli's inequality: a distribution with mean μ and sd σ has its p-quantile in
[μ − σ √((1 − p) / p), μ + σ √(p / (1 − p))]; the part of it about a normal's quantile is tried first. Where that
misses, μ or σ is unknown or infinite, and against rounding, it grows until it holds the quantile.
Counts are then bisected; continuous outcomes use Chandrupatla's (1997) mixture of bisection and inverse quadratic
interpolation, which takes about half a dozen evaluations where the outcome is nearly normal.

One loop does all of it, so that the program holds the distribution function once: compiling it is most of the cost.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri
from jaxtyping import Array, Bool, Float

NEAR = 0.05  # standard deviations about a normal's quantile, where that of most predictives lies
RESOLUTION = 1e-12  # of a continuous quantile, relative to its bracket
GAP = 1e-9  # of p or 1 − p between the ends: a bracket that wide in sds can hold most of a heavy tail
LEAST = 1e-60  # of the bracket, or of one where that is wider: ends the search at an atom, where the gap stays
TIE = 1e-13  # of p, how far below it that of a count may fall by rounding and still have reached it
MAX_STEPS = 1_200  # doublings from 1 past the largest float64, and the bisections

Values = Float[Array, "..."]


class _State(NamedTuple):
    """``x``, ``opposite``, ``previous`` are the paper's x1, x2, x3 and ``f``… the values of cdf − p there.

    Until the bracket holds, ``x`` is its lower and ``opposite`` its upper end: f < 0 at the lower, f ≥ 0 at the upper.
    """

    x: Values
    opposite: Values
    previous: Values
    f: Values
    f_opposite: Values
    f_previous: Values
    holds_lower: Bool[Array, "..."]
    holds_upper: Bool[Array, "..."]
    step: Values  # by which an end that does not hold moves next
    is_known: Bool[Array, "..."]  # whether cdf was a number wherever it was asked


def invert(cdf: Callable[[Array], Array], p, mean: Values, sd: Values, *, is_discrete: bool) -> Values:
    """The smallest value at which ``cdf`` reaches p, 0 < p < 1: exact for counts, by root finding otherwise.

    NaN where it reaches p nowhere, or is no number on the way. ``mean`` and ``sd`` of the distributions, NaN where
    unknown, only start the search.
    """
    known = jnp.isfinite(mean) & jnp.isfinite(sd)
    mean, sd = jnp.where(known, mean, 0.0), jnp.where(known, sd, 1.0)
    slack = 1e-9 * sd + 1e-15 * jnp.abs(mean) + 1e-300
    lower = mean - sd * jnp.sqrt((1.0 - p) / p) - slack
    upper = mean + sd * jnp.sqrt(p / (1.0 - p)) + slack
    resolution = RESOLUTION * (upper - lower)
    normal, away = mean + ndtri(p) * sd, NEAR * sd + (1.0 if is_discrete else slack)
    away = jnp.where(known, away, jnp.inf)
    lower, upper = jnp.maximum(lower, normal - away), jnp.minimum(upper, normal + away)
    if is_discrete:
        lower, upper = jnp.floor(lower), jnp.ceil(upper)
    no, zero = jnp.zeros(lower.shape, bool), jnp.zeros(lower.shape)
    start = _State(lower, upper, lower, zero, zero, zero, no, no, upper - lower, ~no)
    gap = GAP * jnp.minimum(p, 1.0 - p)
    tolerance = _Tolerance(jnp.ones_like(lower) if is_discrete else resolution, gap, is_discrete)

    def advance(s: _State) -> _State:
        inside = jnp.floor(0.5 * (s.x + s.opposite)) if is_discrete else s.x + _fraction(s, tolerance) * _width(s)
        at = jnp.where(~s.holds_lower, s.x, jnp.where(~s.holds_upper, s.opposite, inside))
        f = cdf(at) - (p * (1.0 - TIE) if is_discrete else p)
        is_bracket = s.holds_lower & s.holds_upper
        moved = jax.tree.map(lambda new, old: jnp.where(is_bracket, new, old), _narrowed(s, at, f), _widened(s, at, f))
        go = tolerance.is_open(s)
        s = jax.tree.map(lambda old, new: jnp.where(go, new, old), s, moved)
        return s._replace(is_known=s.is_known & ~(go & jnp.isnan(f)))

    def is_unfinished(state):
        return jnp.any(tolerance.is_open(state[0])) & (state[1] < MAX_STEPS)

    end, _ = jax.lax.while_loop(is_unfinished, lambda state: (advance(state[0]), state[1] + 1), (start, 0))
    is_found = end.is_known & ~tolerance.is_open(end)
    if is_discrete:
        found = jnp.maximum(end.x, end.opposite)
    else:
        found = jnp.where(jnp.abs(end.f) < jnp.abs(end.f_opposite), end.x, end.opposite)
    return jnp.where(is_found, found, jnp.nan)


class _Tolerance(NamedTuple):
    """How near the ends must come; for a continuous outcome at least a few units in the last place.

    There the ends must be near in probability too: of an outcome with a heavy tail, or of no known sd, the first
    bracket says nothing of where most of it lies.
    """

    absolute: Values
    gap: Values
    is_discrete: bool

    def at(self, s: _State) -> Values:
        if self.is_discrete:
            return self.absolute
        return self.absolute + 4e-16 * jnp.maximum(jnp.abs(s.x), jnp.abs(s.opposite))

    def is_open(self, s: _State) -> Bool[Array, "..."]:
        is_apart = jnp.abs(_width(s)) > self.at(s)
        if not self.is_discrete:
            rounding = 4e-16 * jnp.maximum(jnp.abs(s.x), jnp.abs(s.opposite))
            least = LEAST * jnp.minimum(self.absolute / RESOLUTION, 1.0) + rounding
            is_apart |= (jnp.abs(_width(s)) > least) & (jnp.abs(s.f_opposite - s.f) > self.gap)
            is_apart &= (s.f != 0) & (s.f_opposite != 0)
        return s.is_known & (~(s.holds_lower & s.holds_upper) | is_apart)


def _width(s: _State) -> Values:
    return s.opposite - s.x


def _widened(s: _State, at, f) -> _State:
    """f is known at an end. If it does not hold there it is the other end, and the one sought moves on."""
    below = f < 0
    holds_lower, holds_upper = s.holds_lower | below, s.holds_upper | ~below
    return _State(
        x=jnp.where(below, at, jnp.where(holds_lower, s.x, s.x - s.step)),
        opposite=jnp.where(below, jnp.where(s.holds_lower & ~holds_upper, s.opposite + s.step, s.opposite), at),
        previous=jnp.where(below, at, s.x),
        f=jnp.where(below, f, s.f),
        f_opposite=jnp.where(below, s.f_opposite, f),
        f_previous=jnp.where(below, f, s.f),
        holds_lower=holds_lower,
        holds_upper=holds_upper,
        step=2.0 * s.step,
        is_known=s.is_known,
    )


def _narrowed(s: _State, at, f) -> _State:
    """The new point becomes x; the old one is kept on the other side if the sign has changed."""
    same = (f < 0) == (s.f < 0)
    return s._replace(
        x=at,
        f=f,
        previous=jnp.where(same, s.x, s.opposite),
        f_previous=jnp.where(same, s.f, s.f_opposite),
        opposite=jnp.where(same, s.opposite, s.x),
        f_opposite=jnp.where(same, s.f_opposite, s.f),
    )


def _fraction(s: _State, tolerance: _Tolerance) -> Values:
    """How far from x to the opposite end the next point lies: by interpolation where the paper's test trusts it."""
    xi = _ratio(s.x - s.opposite, s.previous - s.opposite)
    phi = _ratio(s.f - s.f_opposite, s.f_previous - s.f_opposite)
    is_trusted = (phi**2 < xi) & ((1.0 - phi) ** 2 < 1.0 - xi)
    first = _ratio(s.f, s.f_opposite - s.f) * _ratio(s.f_previous, s.f_opposite - s.f_previous)
    second = _ratio(s.previous - s.x, s.opposite - s.x) * _ratio(s.f, s.f_previous - s.f)
    second = second * _ratio(s.f_opposite, s.f_previous - s.f_opposite)
    nearest = jnp.minimum(0.5, 0.5 * tolerance.at(s) / jnp.maximum(jnp.abs(_width(s)), 1e-300))
    return jnp.clip(jnp.where(is_trusted, first + second, 0.5), nearest, 1.0 - nearest)


def _ratio(a, b) -> Values:
    return jnp.where(b == 0, 0.0, a / jnp.where(b == 0, 1.0, b))
