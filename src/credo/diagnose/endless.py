"""Densities that do not fall on some way out: posteriors without an integral."""

import jax
import numpy as np
from jaxtyping import Float

from credo.compiling import brief
from credo.equations import equations
from credo.model.target import Target
from credo.precision import in_double
from credo.storage import gather

NUM_DECADES = 6  # of distance
LEAST_POWER = 1.2  # of 1/|u|: a density along a line whose tails fall by a power of 1 or less has no integral
SMALL_PART, HALF = 0.05, 0.5  # of a direction
LARGEST = 200  # dimensions in which gradients are looked at, at about twice as many draws
LEVEL, NEARLY = 1e-10, 0.9  # part of gradients that is none, and of a direction that is nearly all
FARTHEST = 1e12  # that a direction which is known to rounding leads to
TINY = np.finfo(float).tiny
MOST_DRAWS = 1_000  # among which the farthest is looked for


def improper_sentence(target: Target, direction: Float[np.ndarray, " dim"]) -> str:
    """What to say of a posterior that does not fall along ``direction``."""
    sizes = [np.max(np.abs(part), initial=0.0) for part in target.structure.unravel(np.asarray(direction)).values()]
    moving = [leaf.name for leaf, size in zip(target.structure.leaves, sizes, strict=True) if size > HALF * max(sizes)]
    several = len(moving) > 1
    where = f"{', '.join(map(repr, moving[:-1]))} and {moving[-1]!r} together" if several else repr(moving[0])
    remedy = "one of them" if several else "it"
    return f"The density does not fall along {where}: the posterior is improper. Give {remedy} a proper prior."


def without_small_parts(direction: Float[np.ndarray, " dim"]) -> Float[np.ndarray, " dim"]:
    """``direction`` without what it holds of coordinates that hardly move, known with noise."""
    return np.where(np.abs(direction) < SMALL_PART * np.max(np.abs(direction)), 0.0, direction)


def falls_along(target: Target, direction, center: Float[np.ndarray, " dim"], distances) -> bool:
    """Whether both tails of the log density along a line fall faster than an integral needs, as far as numbers reach.

    By powers of the ``distances`` from the middle, decades apart; what is no number tells nothing, as where a scale
    overflows, and two decades are the least to go by. Nothing is looked at of a density that loops until something is
    precise enough, as one of differential equations does: so far out it may loop for hours.
    """
    target = target.flat()
    if may_loop_for_ever(target, center):
        return True
    positions = center + np.concatenate([distances, -distances])[:, None] * direction
    padded = np.resize(positions, (2 * (NUM_DECADES + 1), len(direction)))  # one program for all
    heights = np.asarray(_heights(target, padded), float)[: len(positions)].reshape(2, -1)
    with np.errstate(invalid="ignore"):
        powers = -np.diff(heights, axis=1) / np.log(10.0)
    powers = np.where(np.isneginf(heights[:, 1:]) & (heights[:, :-1] < np.inf), np.inf, powers)
    known = [tail[~np.isnan(tail)] for tail in powers]
    return not any(len(tail) > 1 and np.max(tail) < LEAST_POWER for tail in known)


def may_loop_for_ever(target: Target, u: Float[np.ndarray, " dim"]) -> bool:
    """Whether the density has a loop whose end is not known before."""
    # the target is given to it: beside a bound that is traced, numpyro takes NumPy's data for a case without any
    program = jax.make_jaxpr(lambda target, u: target.log_density(u))(target, u)
    return any(equation.primitive.name == "while" for equation in equations(program.jaxpr))


@in_double
def endless_draws_sentence(target: Target, positions: Float[np.ndarray, "chain draw dim"]) -> str | None:
    """What to say where the density does not fall beyond the draw farthest from the middle of all; else None."""
    chains, draws, dim = positions.shape
    few = gather(positions, (slice(None), slice(None, None, max(1, chains * draws // MOST_DRAWS)))).reshape(-1, dim)
    center = np.median(np.asarray(few, float), axis=0)
    ways = few - center
    way = without_small_parts(ways[np.argmax(np.max(np.abs(ways), axis=1))])
    longest = np.max(np.abs(way))
    length = float(longest * np.linalg.norm(way / longest)) if longest > 0 else 0.0  # of 1e200 too
    if not 0 < length < np.inf:
        return None
    distances = length * 10.0 ** np.arange(NUM_DECADES + 1)
    direction = way / length
    if not falls_along(target, direction, center, distances):
        return improper_sentence(target, direction)
    level = _level(target, direction, few)
    if level is None or falls_along(target, level, center, distances[distances <= FARTHEST]):
        return None
    return improper_sentence(target, level)


def _level(target: Target, direction: Float[np.ndarray, " dim"], positions: Float[np.ndarray, "n dim"]):
    """What of ``direction`` no gradient at the positions has a part in; None where little is left, or none is known.

    Draws know the direction a − b, where the data know a + b alone, to so few digits that far out the rest of it leads
    down; the gradients, all of them along a + b, know it to rounding.
    """
    if len(direction) > LARGEST:
        return None
    try:
        evenly = positions[:: max(1, len(positions) // (2 * len(direction)))]
        gradients = np.asarray(_gradients(target.flat(), evenly), float)
    except (TypeError, ValueError, NotImplementedError):  # of a density without a derivative
        return None
    gradients = gradients[np.all(np.isfinite(gradients), axis=1)]
    _, sizes, ways = np.linalg.svd(gradients / np.maximum(np.linalg.norm(gradients, axis=1, keepdims=True), TINY))
    seen = ways[: np.sum(sizes > LEVEL * np.max(sizes, initial=0.0))]
    left = direction - seen.T @ (seen @ direction)
    length = np.linalg.norm(left)
    return left / length if length > NEARLY else None


@brief
def _gradients(target: Target, positions):
    return jax.lax.map(jax.grad(target.log_density), positions)


@brief
def _heights(target: Target, positions):
    return jax.lax.map(target.log_density, positions)


def leaf_along(target: Target, direction: Float[np.ndarray, " dim"]) -> str:
    """The name of the parameter that moves most along ``direction``."""
    coordinate = int(np.argmax(np.abs(direction)))
    ends = np.cumsum([leaf.size for leaf in target.structure.leaves])
    return target.structure.leaves[int(np.searchsorted(ends, coordinate, side="right"))].name
