"""Jumps of the density, as at a change point that is a real number between two rows: no gradient sees them.

Along one coordinate, from one draw to the value of another, the largest step of the log density on a grid is halved
again and again. That of a continuous density vanishes with its width, that of a jump stays.
"""

import jax
import numpy as np
from jaxtyping import Float

from credo.diagnose.edges import log_densities
from credo.diagnose.endless import may_loop_for_ever
from credo.model.target import Target
from credo.precision import in_double
from credo.storage import gather

MOST_ROWS, MOST_COORDINATES = 100_000, 20  # that are looked at
NUM_LINES, NUM_POINTS, NUM_HALVINGS = 4, 17, 30
LEAST = 0.01  # nats: of less a chain takes no notice


@in_double
def jump_sentence(target: Target, positions: Float[np.ndarray, "chain draw dim"]) -> str | None:
    """What to say where the log density jumps between draws, at the largest jump found; None where it does not."""
    target, dim = target.flat(), positions.shape[-1]
    if target.size > MOST_ROWS or dim > MOST_COORDINATES:
        return None
    flat = positions.reshape(-1, dim)
    if may_loop_for_ever(target, flat[0].astype(float)):
        return None
    ends = gather(flat, np.linspace(0, len(flat) - 1, 2 * NUM_LINES).astype(int)).astype(float)
    u = np.repeat(ends[:NUM_LINES], dim, axis=0)  # (line, dim): at each coordinate in turn
    coordinate = np.tile(np.arange(dim), NUM_LINES)
    last = ends[NUM_LINES:][np.arange(len(u)) // dim, coordinate]

    def heights(values: Float[np.ndarray, "line point"]) -> Float[np.ndarray, "line point"]:
        points = np.repeat(u[:, None], values.shape[1], axis=1)
        points[np.arange(len(u)), :, coordinate] = values
        found = np.asarray(log_densities(target, points.reshape(-1, dim))).reshape(values.shape)
        return np.where(np.isfinite(found), found, np.nan)

    grid = u[np.arange(len(u)), coordinate, None] * (1 - np.linspace(0, 1, NUM_POINTS))
    grid = grid + last[:, None] * np.linspace(0, 1, NUM_POINTS)
    there = heights(grid)
    steps = np.nan_to_num(np.abs(np.diff(there, axis=1)))
    first = np.argmax(steps, axis=1)
    low, high = (np.take_along_axis(grid, (first + i)[:, None], axis=1)[:, 0] for i in (0, 1))
    at_low, at_high = (np.take_along_axis(there, (first + i)[:, None], axis=1)[:, 0] for i in (0, 1))
    for _ in range(NUM_HALVINGS):
        middle = 0.5 * (low + high)
        at_middle = heights(middle[:, None])[:, 0]
        is_below = np.abs(at_middle - at_low) > np.abs(at_high - at_middle)
        low, high = np.where(is_below, low, middle), np.where(is_below, middle, high)
        at_low, at_high = np.where(is_below, at_low, at_middle), np.where(is_below, at_middle, at_high)
    sizes = np.nan_to_num(np.abs(at_high - at_low))
    line = int(np.argmax(sizes))
    if sizes[line] < LEAST:
        return None
    at = np.array(u[line])
    at[coordinate[line]] = high[line]
    place = _place(target, at, int(coordinate[line]))
    return (
        f"The log density jumps by {sizes[line]:.2g} where {place}, and no gradient sees it. Take Slice() or "
        "RandomWalkMetropolis(), or make what jumps a discrete parameter and sum it out, as Enumerated() does within "
        "Gibbs()."
    )


def _place(target: Target, u: Float[np.ndarray, " dim"], coordinate: int) -> str:
    """``tau is 24``; of a parameter whose coordinates are mixed, its name alone."""
    name, start = target.structure.coordinate_name(coordinate), 0
    values = dict(zip(target.structure.tree_names, jax.tree.leaves(target.constrain(u)), strict=True))
    for leaf in target.structure.leaves:
        if start <= coordinate < start + leaf.size:
            inner = coordinate - start
            return f"{name} is {np.ravel(values[leaf.name])[inner]:.4g}" if leaf.is_elementwise else f"{name} moves"
        start += leaf.size
    raise IndexError(f"no coordinate {coordinate}")
