"""Is a function quadratic? Checked, not assumed: f(u) = f(m) − ½ (u − m)ᵀ P (u − m), P symmetric and of any sign.

P is minus the Hessian at one point. With S a square root of P⁻¹, a quadratic f has at every u = m + r S z

    Sᵀ ∇f(u) = −r z,    f(u) = f(m) − ½ r² zᵀz,

which is tried in random directions z and −z, so that both sides of each coordinate are seen, at distances r from half a
standard deviation to 64. A residual of these equations is an error in the answer itself: it sees a third derivative, a
kink, and an ill-conditioned P alike.
What f itself loses to rounding, as where y − m is a difference of numbers near 10⁹, is measured next to m and is none.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credo.compiling import TINY, brief
from credo.linalg.dense import Dense
from credo.linalg.products import hessian
from credo.status import CredoError

DISTANCES = np.array([0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])  # in standard deviations
NUM_SETS = 3  # of directions: of up to 500 coordinates, a kink that all miss is 10 standard deviations off
NUM_REFINEMENTS = 3  # of m, by Newton steps with the one factor of P: each gains the digits that the last one left
NEAR = 1e-4  # standard deviations from m at which rounding is measured: what bends f shows 10⁻⁸ of itself there
ROUNDINGS, MOST_ROUNDING = 4.0, 1e-4  # of those of the worst position; in standard deviations that m may be off by
FLAT = 1e-13  # eigenvalues of P in units of its diagonal below this times dim are rounding

Function = Callable[[Array], Array]  # a pytree: compiled code is keyed on its structure and not on its arrays


class Quadratic(NamedTuple):
    """``value`` f(m) at ``mean`` m (dim,), and ``precision`` P (dim, dim).

    ``scale``: S, or None where P is not positive definite; then m is the point of expansion, ``slope`` is ∇f(m), and
    the residual is that of ∇f(m + r z) = ∇f(m) − r P z. ``residual``: relative; above about 1e-6 f is not quadratic.
    """

    value: float
    mean: np.ndarray
    precision: np.ndarray
    slope: np.ndarray
    scale: Dense | None
    residual: float

    def log_integral(self) -> float:
        """log ∫ exp f(u) du; P positive definite."""
        assert self.scale is not None
        return self.value + float(self.scale.log_det()) + 0.5 * self.mean.size * np.log(2 * np.pi)

    def flat_direction(self) -> np.ndarray:
        """The direction (dim,), in units of the diagonal of P, in which f falls least."""
        unit = _unit_diagonal(self.precision)
        return np.linalg.eigh(self.precision / unit / unit[:, None])[1][:, 0]


def quadratic(f: Function, dim: int, *, chunk: int = 32) -> Quadratic:
    """The quadratic that agrees with ``f`` to second order, and how far f is from it.

    ``chunk``: columns of the Hessian at once. The residual is NaN where f or its derivatives are not finite at the
    origin, and infinite where they are not further off.
    """
    origin = jnp.zeros(dim)
    values, slopes = _values_and_slopes(f, np.zeros((1, dim)))
    precision = -np.asarray(_hessian(f, origin, chunk))
    if not (np.isfinite(values).all() and np.isfinite(slopes).all() and np.isfinite(precision).all()):
        return Quadratic(np.nan, np.zeros(dim), precision, slopes[0], None, np.nan)
    scale = _square_root(precision)
    if scale is None:
        return _indefinite(f, Quadratic(float(values[0]), np.zeros(dim), precision, slopes[0], None, np.nan))
    S = np.asarray(scale.lower)
    mean = S @ (S.T @ slopes[0])
    for _ in range(NUM_REFINEMENTS):
        mean = mean + S @ (S.T @ _values_and_slopes(f, mean[None])[1][0])
    positions = mean + _tried(dim) @ S.T
    steps = np.linalg.solve(S, (positions - mean).T).T  # where mean is large, rounded
    values, slopes = _values_and_slopes(f, np.concatenate([mean[None], positions]))
    wanted = -0.5 * np.sum(steps**2, axis=1)
    size = np.abs(values[1:]) + np.abs(values[0]) - wanted
    if not (np.isfinite(values).all() and np.isfinite(slopes).all()):  # further off f is no quadratic
        return Quadratic(float(values[0]), mean, precision, slopes[0], scale, np.inf)
    rounding = _rounding(f, mean, slopes[0], precision, S)
    off = np.linalg.norm(slopes @ S + np.vstack([0 * steps[:1], steps]), axis=1) - rounding
    residual = max(
        0.0,
        np.max(off[1:] / np.linalg.norm(steps, axis=1)),
        off[0] / np.sqrt(dim),
        np.max(np.abs(values[1:] - values[0] - wanted) / size),
    )
    return Quadratic(float(values[0]), mean, precision, slopes[0], scale, float(residual))


def misfit(f: Function, expansion: Quadratic, positions: Float[np.ndarray, "n dim"]) -> float:
    """The largest relative difference of f from a quadratic that has a scale, at positions; 0 where f has no number.

    Another mode, beyond what was tried around m, is where nothing near m tells of it.
    """
    assert expansion.scale is not None
    values, _ = _values_and_slopes(f, positions)
    steps = np.linalg.solve(np.asarray(expansion.scale.lower), (positions - expansion.mean).T)
    wanted = -0.5 * np.sum(steps**2, axis=0)
    off = np.abs(values - expansion.value - wanted) / (np.abs(values) + np.abs(expansion.value) - wanted)
    return float(np.max(off, initial=0.0, where=np.isfinite(off)))


def _rounding(f: Function, mean: np.ndarray, slope: np.ndarray, precision: np.ndarray, S: np.ndarray) -> float:
    """By how much Sᵀ ∇f may miss for the digits that f loses, in standard deviations; 0 where these are too many."""
    near = mean + NEAR * _directions(len(mean)) @ S.T
    slopes = _values_and_slopes(f, near)[1]
    missed = ROUNDINGS * np.max(np.linalg.norm((slopes - slope + (near - mean) @ precision) @ S, axis=1))
    missed += np.linalg.norm(np.linalg.solve(S, np.spacing(np.abs(mean))))  # m itself is a rounded number
    return float(missed) if missed <= MOST_ROUNDING else 0.0


def third_derivatives(f: Function, dim: int, blocks: list[slice]) -> np.ndarray:
    """How far ∇f is from linear along each block of coordinates alone, and along all: (blocks + 1,), relative.

    The second difference over c ± z of the block's own part of ∇f; c and z are random, z zero outside of the block.
    """
    c, z = 0.5 * np.random.default_rng(1).normal(size=(2, dim))  # at a centre of symmetry odd derivatives would hide
    steps = np.stack([np.where(np.isin(np.arange(dim), np.r_[block]), z, 0.0) for block in [*blocks, slice(0, dim)]])
    slopes = [_values_and_slopes(f, c + sign * steps)[1] for sign in (1, -1, 0)]
    ahead, behind, middle = (np.where(steps == 0, 0.0, s) for s in slopes)
    bend = np.linalg.norm(ahead + behind - 2 * middle, axis=1)
    size = np.linalg.norm(ahead, axis=1) + np.linalg.norm(behind, axis=1) + 2 * np.linalg.norm(middle, axis=1)
    return bend / np.maximum(size, np.finfo(float).tiny)


def _indefinite(f: Function, expansion: Quadratic) -> Quadratic:
    """The residual where P has no square root."""
    steps = np.array([0.5, 1.0, 4.0, 32.0])[:, None] * _directions(expansion.mean.size)[:4]
    slopes = _values_and_slopes(f, steps)[1]
    turned = steps @ expansion.precision
    size = np.linalg.norm(expansion.slope) + np.linalg.norm(turned, axis=1)
    residual = np.linalg.norm(slopes - expansion.slope + turned, axis=1) / np.maximum(size, np.finfo(float).tiny)
    return expansion._replace(residual=float(np.max(residual)))


def _square_root(precision: np.ndarray) -> Dense | None:
    """S with S Sᵀ = P⁻¹; None where P is not positive definite beyond rounding."""
    diagonal = np.diagonal(precision)
    if np.any(diagonal <= 0):
        return None
    unit = _unit_diagonal(precision)
    if np.linalg.eigvalsh(precision / unit / unit[:, None])[0] < FLAT * len(unit):
        return None
    try:
        return Dense.from_precision(precision)
    except CredoError:
        return None


def _unit_diagonal(precision: np.ndarray) -> np.ndarray:
    size = np.sqrt(np.abs(np.diagonal(precision)))
    return np.where(size > 0, size, max(np.max(size), 1.0))


def _tried(dim: int) -> Float[np.ndarray, "tried dim"]:
    """r z, on both sides of every coordinate."""
    ahead = np.concatenate([DISTANCES[:, None] * _directions(dim, seed) for seed in range(NUM_SETS)])
    return np.concatenate([ahead, -ahead])


def _directions(dim: int, seed: int = 0) -> Float[np.ndarray, "distance dim"]:
    """Random and fixed: recognition is a property of the function. Each of length √dim at every distance."""
    z = np.random.default_rng(seed).normal(size=(len(DISTANCES), dim))
    return z * np.sqrt(dim) / np.linalg.norm(z, axis=1, keepdims=True)


def _values_and_slopes(f: Function, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values and gradients at positions (n, dim), in calls of one shape, so that one program is compiled."""
    batch = len(DISTANCES) + 1
    values, slopes = [], []
    for start in range(0, len(positions), batch):
        rows = positions[start : start + batch]
        found = _evaluate(f, jnp.asarray(np.concatenate([rows, np.repeat(rows[:1], batch - len(rows), axis=0)])))
        values.append(np.asarray(found[0])[: len(rows)])
        slopes.append(np.asarray(found[1])[: len(rows)])
    return np.concatenate(values), np.concatenate(slopes)


@functools.partial(brief, options=TINY)
def _evaluate(f: Function, positions):
    return jax.lax.map(jax.value_and_grad(f), positions)


@functools.partial(brief, static_argnames="chunk", options=TINY)
def _hessian(f: Function, u, chunk):
    return hessian(f, u, chunk=chunk)
