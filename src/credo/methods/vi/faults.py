"""What a variational fit says of a density that no q of its family can follow: one without an end, one with an edge."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from credo.compiling import brief
from credo.methods.vi.families.family import Family
from credo.model.target import Target
from credo.posterior.kinds import Gaussian, Kind

FAR, FARTHER = 1e3, 1e6  # from zero along a line
MOST = 2_000  # dimensions of a covariance that is taken apart
LEAST_POWER = 1.2  # of 1/|u|: a density along a line whose tails fall by a power of 1 or less has no integral


def improper_sentence(target: Target, direction: Float[np.ndarray, " dim"]) -> str:
    """What to say of a posterior that does not fall along ``direction``."""
    name = _leaf_at(target, int(np.argmax(np.abs(direction))))
    return f"The density does not fall along {name!r}: the posterior is improper. Give it a proper prior."


def widening_sentence(target: Target, q: Kind, family: Family) -> tuple[str, bool]:
    """What to say where q went or grew without end, and whether the density does not fall on that way."""
    direction = _way_out(q, family)
    if not falls_along(target, direction):
        return improper_sentence(target, direction), True
    name = _leaf_at(target, int(np.argmax(np.abs(direction))))
    return (
        f"q grew without end along {name!r}, where the density does fall: the steps are too noisy for this posterior. "
        "Raise num_samples, lower step_size, or take gradient=StickingTheLanding().",
        False,
    )


def _way_out(q: Kind, family: Family) -> Float[np.ndarray, " dim"]:
    """The unit vector along which q is farthest from zero, or widest."""
    center, variances = (np.asarray(v, float) for v in family.location(q))
    if np.max(np.abs(center)) > np.sqrt(np.max(variances)):
        return center / np.linalg.norm(center)
    if isinstance(q, Gaussian) and len(center) <= MOST:
        return np.linalg.eigh(np.asarray(q.scale.dense(), float))[1][:, -1]
    return np.eye(1, len(center), int(np.argmax(variances)))[0]


def falls_along(target: Target, direction: Float[np.ndarray, " dim"]) -> bool:
    """Whether both tails of the log density along a line through zero fall faster than an integral needs."""
    positions = np.outer([FAR, FARTHER, -FAR, -FARTHER], direction)
    near, far, near_below, far_below = np.asarray(_heights(target.flat(), positions), float)
    with np.errstate(invalid="ignore"):
        powers = np.array([near - far, near_below - far_below]) / np.log(FARTHER / FAR)
    powers[np.isneginf([far, far_below])] = np.inf
    return bool(np.all(powers > LEAST_POWER))


def edge_sentence(is_taken: Bool[np.ndarray, " steps"]) -> str | None:
    """What to say where draws met densities that are no numbers until the end; None where they did not.

    Early on q may be far out, where a density overflows.
    """
    late = is_taken[len(is_taken) // 2 :]
    number = int(np.count_nonzero(~late))
    if not number:
        return None
    return (
        f"In {number:,} of the last {late.size:,} steps a draw met a log density that is −inf or no number: it has an "
        "edge inside the space that q covers, which no member of the family follows, or overflows there. Give the "
        "parameter the support that ends at the edge, such as HalfNormal for one above zero, or use Slice()."
    )


@brief
def _heights(target: Target, positions):
    return jnp.stack([target.log_density(u) for u in positions])


def _leaf_at(target: Target, coordinate: int) -> str:
    """The name of the parameter that a coordinate of the position belongs to."""
    ends = np.cumsum([leaf.size for leaf in target.structure.leaves])
    return target.structure.leaves[int(np.searchsorted(ends, coordinate, side="right"))].name
