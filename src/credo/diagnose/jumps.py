"""Jumps of the density, as at a change point that is a real number between two rows: no gradient sees them.

Along one coordinate, from one draw to the value of another, the largest step of the log density on a grid is halved
down to two numbers next to each other. That of a continuous density has vanished by then, that of a jump stays, and to
either side of it the density is what it is there: rounding, which stays too, goes up and down.
"""

import time
from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import Float

from credo.diagnose.edges import log_densities
from credo.diagnose.endless import may_loop_for_ever
from credo.model.target import Target
from credo.precision import in_double
from credo.storage import gather

MOST_ROWS, MOST_COORDINATES = 100_000, 20  # that are looked at
PATIENCE = 10.0  # seconds
NUM_LINES, NUM_POINTS, NUM_HALVINGS = 4, 17, 64
LEAST = 0.01  # nats: of less a chain takes no notice
FARTHEST = 1e6  # from zero: beyond, numbers next to each other are far apart
BESIDE = np.array([-3e-8, -1e-8, -3e-9, 3e-9, 1e-8, 3e-8])  # of the line's length: places to either side of a jump
SAME = 0.1  # of the jump: what the density may change between these


@in_double
def jump_sentence(target: Target, positions: Float[np.ndarray, "chain draw dim"]) -> str | None:
    """What to say where the log density jumps between draws, at the largest jump found; None where it does not.

    No density is asked for after ``PATIENCE``, and none of discrete parameters.
    """
    target, dim = target.flat(), positions.shape[-1]
    if target.size > MOST_ROWS or dim > MOST_COORDINATES or target.structure.discrete_names:
        return None
    flat = positions.reshape(-1, dim)
    ends = gather(flat, np.linspace(0, len(flat) - 1, 2 * NUM_LINES).astype(int)).astype(float)
    if not np.all(np.abs(ends) < FARTHEST) or may_loop_for_ever(target, ends[0]):
        return None
    u = np.repeat(ends[:NUM_LINES], dim, axis=0)  # (line, dim): at each coordinate in turn
    lines, coordinate = np.arange(len(u)), np.tile(np.arange(dim), NUM_LINES)
    deadline = time.monotonic() + PATIENCE

    def heights(values: Float[np.ndarray, " line"]) -> Float[np.ndarray, " line"]:
        points = u.copy()
        points[lines, coordinate] = values
        if time.monotonic() > deadline:
            return np.full(len(u), np.nan)
        found = np.asarray(log_densities(target, points))
        return np.where(np.isfinite(found), found, np.nan)

    values, sizes = _jumps(heights, u[lines, coordinate], ends[NUM_LINES:][lines // dim, coordinate])
    line = int(np.argmax(sizes))
    if sizes[line] < LEAST:
        return None
    u[line, coordinate[line]] = values[line]
    place = _place(target, u[line], int(coordinate[line]))
    return (
        f"The log density jumps by {sizes[line]:.2g} where {place}, and no gradient sees it. Take Slice() or "
        "RandomWalkMetropolis(), or make what jumps a discrete parameter and sum it out, as Enumerated() does within "
        "Gibbs()."
    )


def _jumps(heights: Callable, first: Float[np.ndarray, " line"], last: Float[np.ndarray, " line"]):
    """(where, by how much) the log density jumps between ``first`` and ``last`` on each line; 0 where it does not."""
    grid = np.array([first + share * (last - first) for share in np.linspace(0, 1, NUM_POINTS)])
    there = np.array([heights(values) for values in grid])
    largest = np.argmax(np.nan_to_num(np.abs(np.diff(there, axis=0))), axis=0)
    lines = np.arange(len(first))
    low, high = grid[largest, lines], grid[largest + 1, lines]
    at_low, at_high = there[largest, lines], there[largest + 1, lines]
    for _ in range(NUM_HALVINGS):
        middle = 0.5 * (low + high)
        if np.all((middle == low) | (middle == high)):
            break
        at_middle = heights(middle)
        is_below = np.abs(at_middle - at_low) > np.abs(at_high - at_middle)
        low, high = np.where(is_below, low, middle), np.where(is_below, middle, high)
        at_low, at_high = np.where(is_below, at_low, at_middle), np.where(is_below, at_middle, at_high)
    below, above = np.array([heights(high + share * (last - first)) for share in BESIDE]).reshape(2, -1, len(first))
    off = np.maximum(np.max(np.abs(below - at_low), axis=0), np.max(np.abs(above - at_high), axis=0))
    sizes = np.abs(at_high - at_low)
    return high, np.where(off <= SAME * sizes, sizes, 0.0)


def _place(target: Target, u: Float[np.ndarray, " dim"], coordinate: int) -> str:
    """``tau is 24``; of a parameter whose coordinates are mixed, its name alone."""
    name, (leaf, inner) = target.structure.coordinate_name(coordinate), target.structure.leaf_at(coordinate)
    values = dict(zip(target.structure.tree_names, jax.tree.leaves(target.constrain(u)), strict=True))
    return f"{name} is {np.ravel(values[leaf.name])[inner]:.4g}" if leaf.is_elementwise else f"{name} moves"
