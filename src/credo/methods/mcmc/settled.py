"""Discrete coordinates that took one value in all draws: whether another value has mass that no chain met.

Where each value of z has a place of its own for the continuous parameters v, a sweep that draws z given v never
leaves the value it fell to first, in any chain, and no R-hat shows it. So for a few such coordinates v is climbed again
at each of the other values next to it, at the other discrete coordinates of a draw, and masses are compared by
Laplace's method:

    log m(z) = max_v log p(v, z) − ½ log |A| + a constant,   A: the curvature there
    share = Σ_z' m(z') / Σ_z' m(z'), z' ≠ z on top
"""

import time
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from credo.methods.mcmc.enumerated import Enumerating
from credo.methods.optimise.newton import maximise
from credo.methods.optimise.objective import chunk_size, has_gradient
from credo.methods.optimise.subproblem import Dense
from credo.methods.particles.modes import MOST_DIMENSIONS, PATIENCE
from credo.model.target import Target

MOST_COORDINATES = 8
MOST_VALUES = 8  # the nearest ones
NUM_STARTS = 3  # draws from which v is climbed
MAX_STEPS = 50
STEP = 0.5  # of a climb's start beside a draw, so that no saddle holds it


def settled_share(
    target: Target,
    positions: Float[np.ndarray, "chain draw dim"],
    is_settled: Bool[np.ndarray, " dim"],
    bound: Sequence[tuple[Any, Any]],
) -> float | None:
    """The largest share of other values of a settled coordinate; None where that is not looked for.

    ``bound``: pairs of a block's update and, of an ``Enumerating`` one, the values. Elements with terms of their own,
    such as labels of rows, are drawn by all their values in each sweep, and are left out.
    """
    is_discrete = np.concatenate([np.full(leaf.size, leaf.is_discrete) for leaf in target.structure.leaves])
    free = np.flatnonzero(~is_discrete)
    own = [
        (int(coordinate), np.asarray(values, float))
        for update, values in bound
        if isinstance(update, Enumerating) and not update.is_apart
        for coordinate in np.arange(target.dim)[update.block.index()]
        if is_settled[coordinate]
    ]
    if not own or len(own) > MOST_COORDINATES or len(free) > MOST_DIMENSIONS:
        return None
    deadline, shares = time.monotonic() + PATIENCE, []
    draws = positions.reshape(-1, target.dim)
    if not has_gradient(lambda v: _density((target.flat(), draws[0], free), v), draws[0, free]):
        return None
    starts = draws[np.linspace(0, len(draws) - 1, NUM_STARTS).astype(int)]
    for coordinate, values in own:
        value = float(starts[0, coordinate])
        others = values[values != value]
        others = others[np.argsort(np.abs(others - value), kind="stable")][:MOST_VALUES]
        masses = [_log_mass(target.flat(), starts, coordinate, v, free, deadline) for v in (value, *others)]
        if np.isfinite(masses[0]) and len(others):
            shares.append(float(np.exp(np.logaddexp.reduce(masses[1:]) - np.logaddexp.reduce(masses))))
    return max(shares, default=None)


def _log_mass(target: Target, starts, coordinate: int, value, free: np.ndarray, deadline: float) -> float:
    """Up to a constant, by the highest of the climbs from ``starts``; −inf where none ends at a maximum."""
    found = [-np.inf]
    for start in starts:
        u = np.array(start)
        u[coordinate] = value
        if not free.size:
            found.append(float(_density((target, u, free), u[free])))
            continue
        away = STEP * np.random.default_rng(0).choice([-1.0, 1.0], free.size).astype(u.dtype)
        for way in (u[free], u[free] + away):
            end = maximise(
                _density, (target, u, free), way, Dense(chunk_size(target)), max_steps=MAX_STEPS, deadline=deadline
            )
            if end is None or end.curvature is None:
                continue
            sign, log_det = np.linalg.slogdet(np.asarray(end.curvature, float))
            if sign > 0:
                found.append(float(end.value) - 0.5 * log_det)
    return max(found)


def _density(args, v):
    target, u, free = args
    return target.log_density(jnp.asarray(u).at[free].set(v))
