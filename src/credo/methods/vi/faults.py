"""What a variational fit says of a density that no q of its family can follow: one without an end, one with an edge."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from credo.compiling import brief
from credo.model.target import Target

FAR, FARTHER = 1e3, 1e6  # from zero along a coordinate
LEAST_POWER = 1.2  # of 1/|u|: a density along a line whose tails fall by a power of 1 or less has no integral


def improper_sentence(target: Target, direction: Float[np.ndarray, " dim"]) -> str:
    """What to say of a posterior that does not fall along ``direction``."""
    name = _leaf_at(target, int(np.argmax(np.abs(direction))))
    return f"The density does not fall along {name!r}: the posterior is improper. Give it a proper prior."


def widening_sentence(target: Target, variances: Float[np.ndarray, " dim"]) -> tuple[str, bool]:
    """What to say where q grew without end, most along its widest coordinate; and whether the density does not fall."""
    coordinate = int(np.argmax(variances))
    is_improper = not falls_along(target, coordinate)
    if is_improper:
        return improper_sentence(target, variances), True
    return (
        f"q grew without end along {_leaf_at(target, coordinate)!r}, where the density does fall: the steps are too "
        "noisy for this posterior. Raise num_samples, lower step_size, or take gradient=StickingTheLanding().",
        False,
    )


def falls_along(target: Target, coordinate: int) -> bool:
    """Whether tails of the log density along a coordinate, the others at zero, fall faster than an integral needs."""
    axis = np.zeros((4, target.dim))
    axis[:, coordinate] = FAR, FARTHER, -FAR, -FARTHER
    near, far, near_below, far_below = np.asarray(_heights(target.flat(), axis), float)
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
