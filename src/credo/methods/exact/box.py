"""Where the mass of a density of up to three dimensions lies: a box, in coordinates in which it is about round.

From the modes, reached from several sides, and their curvatures; then from the moments of what a coarse grid sees,
each face widened until the cells at it hold next to nothing.
"""

import functools
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float
from scipy.special import logsumexp

from credo.algorithm import Options
from credo.batches import in_batches
from credo.compiling import sound
from credo.linalg.dense import Dense
from credo.methods.from_prior import from_prior
from credo.methods.optimise.newton import maximise
from credo.methods.optimise.objective import in_unconstrained_space, solver_for, starting_position
from credo.methods.particles.importance import evaluations_at_once
from credo.model.target import Target
from credo.status import CredoError

SIDE = {1: 257, 2: 65, 3: 33}  # nodes a side of the coarse grid
REACH = 8.5  # sds round each mode that the first box holds: beyond 7 lie 3e-7 of E exp(u)², beyond 8.5 4e-11
CUT = 1e-12  # mass at a face that widens it: what lies beyond must not show in sds either
DEPTH = -45.0  # log density below the largest that the box need not hold
ROUND = 2.0  # variances along the box's axes, in units of its own, that need no new axes
NUM_CANDIDATES, NUM_BEST, NUM_STARTS, MAX_ROUNDS = 512, 6, 18, 40
APART = 0.3  # of the candidates' sd, between two starts
BATCHES = 16  # of densities at once in a call, 4,096 nodes of a small model: one program for grids of any size


class TimeIsUpError(CredoError):
    """The time limit came while a grid was evaluated."""


class Density:
    """log p(u, D) at many positions; −inf where it is no number, or overflows. ``count``: evaluations so far.

    TimeIsUpError where the time limit comes before all of them are done.
    """

    def __init__(self, target: Target, options: Options):
        self.target, self.options = target, options
        self.deadline = options.deadline()
        self.at_once = evaluations_at_once(target, options.max_memory)
        self.count = 0

    def __call__(self, u: Float[np.ndarray, "nodes dim"]) -> Float[np.ndarray, " nodes"]:
        size = BATCHES * self.at_once
        padded = np.concatenate([u, np.repeat(u[:1], -len(u) % size, axis=0)])
        parts = []
        for part in np.split(padded, len(padded) // size):
            if time.monotonic() > self.deadline:
                raise TimeIsUpError(
                    f"The time limit of {self.options.limit:g} s came after {self.count:,} evaluations of the log "
                    "density, before the coarsest grid was complete: raise time_limit, or use Laplace()."
                )
            parts.append(np.asarray(_log_density(self.target, part, self.at_once)))
            self.count += min(size, len(u) - size * (len(parts) - 1))
        found = np.concatenate(parts)[: len(u)].astype(np.float64)
        return np.where(found < np.inf, found, -np.inf)


@functools.partial(sound, static_argnames="at_once")
def _log_density(target: Target, u, at_once: int):
    return in_batches(target.log_density, u, at_once)


class Box(NamedTuple):
    """Positions u = center + A v with v between ``low`` and ``high`` (dim,)."""

    center: np.ndarray
    A: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def nodes(self, side: int, places=None) -> Float[np.ndarray, "nodes dim"]:
        """Those of ``places`` (dim, nodes), whole numbers along each axis; None for all."""
        places = self._places(side) if places is None else places
        axes = [np.linspace(low, high, side) for low, high in zip(self.low, self.high, strict=True)]
        v = np.stack([axis[own] for axis, own in zip(axes, places, strict=True)], axis=1)
        return self.center + v @ self.A.T

    def faces(self, side: int, depth: int = 0, places=None) -> Bool[np.ndarray, "ends dim nodes"]:
        """Which nodes lie within ``depth`` cells of the lower and the upper face along each axis."""
        places = self._places(side) if places is None else places
        return np.stack([places <= depth, places >= side - 1 - depth])

    def _places(self, side: int) -> np.ndarray:
        return np.indices((side,) * len(self.low)).reshape(len(self.low), -1)

    def log_cell(self, side: int) -> float:
        """The log volume of a cell."""
        return float(np.linalg.slogdet(self.A)[1] + np.sum(np.log((self.high - self.low) / (side - 1))))

    def trimmed(self, u: Float[np.ndarray, "nodes dim"], margin) -> "Box":
        """The same axes, no wider than to hold ``u`` and a margin."""
        v = np.linalg.solve(self.A, (u - self.center).T).T
        return self._replace(low=v.min(axis=0) - margin, high=v.max(axis=0) + margin)


def find_box(density: Density, target: Target, key, start) -> Box:
    """A box outside of which the density is negligible."""
    box = _first_box(_modes(density, target, key, start))
    side = SIDE[target.dim]
    for _ in range(MAX_ROUNDS):
        u = box.nodes(side)
        log_p = density(u)
        if not np.max(log_p) > -np.inf:
            raise CredoError("The log density is finite nowhere on the grid: give a start where it is (start=).")
        p = np.exp(log_p - logsumexp(log_p))
        is_cut = (box.faces(side) * p).sum(axis=2) > CUT
        if is_cut.any():
            widening = 0.5 * (box.high - box.low)
            box = box._replace(low=box.low - widening * is_cut[0], high=box.high + widening * is_cut[1])
            continue
        seen = u[log_p > np.max(log_p) + DEPTH]
        mean = p @ u
        covariance = (u - mean).T @ (p[:, None] * (u - mean))
        own = np.linalg.solve(box.A, np.linalg.solve(box.A, covariance).T)  # in the box's coordinates
        variances = np.linalg.eigvalsh(0.5 * (own + own.T))
        spacing = (box.high - box.low) / (side - 1)
        is_resolved = variances[0] > np.max(spacing) ** 2  # else the grid is too coarse to tell the shape
        if not is_resolved or (variances[0] > 1 / ROUND and variances[-1] < ROUND):
            return box.trimmed(seen, spacing)
        box = Box(mean, _axes(covariance), box.low, box.high).trimmed(seen, 1.0)
    return box


def between(bounds: Mapping[str, tuple[Any, Any]], found: Box, target: Target) -> Box:
    """The box along the coordinate axes that has ``bounds`` for the parameters they name and holds ``found``."""
    corners = found.nodes(2)
    low, high = corners.min(axis=0), corners.max(axis=0)
    params = target.model.prior.leaves(target.constrain(jnp.asarray(found.center)))
    offset, leaves = 0, {leaf.name: leaf for leaf in target.structure.leaves}
    unknown = [name for name in bounds if name not in leaves]
    if unknown:
        raise CredoError(f"bounds names {unknown[0]!r}, which is no parameter: the model has {', '.join(leaves)}.")
    for name, leaf in leaves.items():
        block, offset = slice(offset, offset + leaf.size), offset + leaf.size
        if name not in bounds:
            continue
        if not leaf.is_elementwise:
            raise CredoError(f"{name!r} cannot have bounds, since its entries depend on each other: leave it out.")
        ends = [_unconstrained(target, {**params, name: np.broadcast_to(v, leaf.shape)})[block] for v in bounds[name]]
        lower, upper = np.sort(ends, axis=0)
        if not np.all(lower < upper):  # False for NaN: outside of the support
            raise CredoError(f"The bounds of {name!r} are {bounds[name]}: give two different numbers in its support.")
        low[block] = np.where(np.isfinite(lower), lower, low[block])  # an end of the support itself bounds nothing
        high[block] = np.where(np.isfinite(upper), upper, high[block])
    return Box(np.zeros_like(low), np.eye(len(low)), low, high)


def _unconstrained(target: Target, leaves: Mapping[str, Any]) -> np.ndarray:
    return np.asarray(target.unconstrain(target.structure.assemble({n: jnp.asarray(v) for n, v in leaves.items()})))


class Mode(NamedTuple):
    """``root``: a square root of the covariance there. ``log_mass``: that of the Gaussian at the mode."""

    position: np.ndarray
    root: np.ndarray
    log_mass: float


def _modes(density: Density, target: Target, key, start) -> list[Mode]:
    """The modes reached from the start, from the best of many candidates and from any of them, all apart."""
    first = np.asarray(starting_position(target, key, start), np.float64)
    candidates = np.concatenate([first[None], _candidates(target, key)])
    log_p = density(candidates)
    usable = np.flatnonzero(np.isfinite(log_p))
    spread = np.std(candidates[usable], axis=0) if usable.size else np.ones(target.dim)
    starts: list[np.ndarray] = []
    # the first, then the best, then any: modes that lie far off draw only what is near them
    for order, limit in (([0], 1), (np.argsort(-log_p), NUM_BEST), (np.arange(len(candidates)), NUM_STARTS)):
        for index in order:
            is_new = all(np.max(np.abs(candidates[index] - other) / spread) > APART for other in starts)
            if len(starts) < limit and np.isfinite(log_p[index]) and is_new:
                starts.append(candidates[index])
    if not starts:
        raise CredoError(
            f"The log density is finite at none of {len(candidates)} positions: give a start where it is (start=)."
        )
    objective, solver = in_unconstrained_space(target), solver_for(target)
    modes: list[Mode] = []
    for position in starts:
        optimum = maximise(objective.function, objective.args, position, solver, deadline=density.deadline)
        if optimum is None or not optimum.status.is_converged:
            continue
        try:
            root = np.asarray(Dense.from_precision(np.asarray(optimum.curvature)).lower)
        except CredoError:  # a saddle
            continue
        if all(np.linalg.norm(np.linalg.solve(root, optimum.position - m.position)) > 0.1 for m in modes):
            modes.append(Mode(optimum.position, root, optimum.value + np.linalg.slogdet(root)[1]))
    best = int(np.argmax(log_p))
    return modes or [Mode(candidates[best], np.diag(np.maximum(spread, 1e-3)), 0.0)]


def _candidates(target: Target, key) -> np.ndarray:
    """Draws from the prior, where it has any, and from wide normals."""
    generator = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())
    scales = np.array([0.5, 2.0, 8.0])[np.arange(NUM_CANDIDATES) % 3]
    wide = scales[:, None] * generator.normal(size=(NUM_CANDIDATES, target.dim))
    return np.concatenate([wide, from_prior(target, NUM_CANDIDATES, key)])


def _first_box(modes: list[Mode]) -> Box:
    """Round the Gaussians at the modes, each with its share of the mass."""
    log_mass = np.array([mode.log_mass for mode in modes])
    share = np.exp(log_mass - logsumexp(log_mass))
    modes = [mode for mode, w in zip(modes, share, strict=True) if w > 1e-12]
    share = share[share > 1e-12]
    positions, roots = np.array([mode.position for mode in modes]), np.array([mode.root for mode in modes])
    mean = share @ positions
    away = positions - mean
    covariance = np.einsum("k,kij,klj->il", share, roots, roots) + away.T @ (share[:, None] * away)
    unit = np.eye(len(mean))
    corners = np.array([mode.position + REACH * mode.root @ v for mode in modes for v in (*unit, *-unit)])
    box = Box(mean, _axes(covariance), np.zeros(len(mean)), np.zeros(len(mean)))
    return box.trimmed(corners, 1.0)


def _axes(covariance: np.ndarray) -> np.ndarray:
    """A = S R: a square root of the covariance, rotated so that no two nodes of a grid share a coordinate."""
    return np.linalg.cholesky(covariance) @ _rotation(len(covariance))


def _rotation(dim: int) -> np.ndarray:
    """R_jk = (2/√p) sin(2π j k/p), p = 2 dim + 1, prime for dim ≤ 3: orthogonal.

    R k has no zero entry for any integer k ≠ 0: the product of the entries is, up to a factor, the norm of a nonzero
    algebraic integer (Bayer-Fluckiger, Oggier & Viterbo 2004).
    """
    p = 2 * dim + 1
    j = np.arange(1, dim + 1)
    return 2 / np.sqrt(p) * np.sin(2 * np.pi * np.outer(j, j) / p)
