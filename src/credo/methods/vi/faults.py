"""What a variational fit says of a density that no q of its family can follow: one without an end, one with an edge."""

from collections.abc import Callable

import numpy as np
import scipy.linalg
from jaxtyping import Bool, Float

from credo.diagnose.endless import NUM_DECADES, falls_along, improper_sentence, leaf_along, without_small_parts
from credo.linalg.diagonal import Diagonal
from credo.methods.vi.families.family import Family
from credo.model.target import Target
from credo.posterior.kinds import Gaussian, Kind
from credo.status import Verdict
from credo.timing import counted

LEAST_SD, MOST_SD = 1e-2, 1e12  # q may have shrunk, or grown, for other reasons
FAR = 3e5  # how far is looked at where q is no wider than a hundredth of it
LARGE_SHIFT = 100.0  # sds of q from zero, at which its way is that of its middle
MOST = 2_000  # dimensions of a covariance that is taken apart


def verdict_of(
    verdict: Callable[[str | None], Verdict],
    target: Target,
    q: Kind,
    family: Family,
    free: Float[np.ndarray, " dim"] | None = None,
    is_escaping: bool = False,
) -> tuple[Verdict, bool]:
    """``verdict(fault)`` with what keeps q from an end, and whether that is an improper posterior.

    ``free``: a direction along which the density was seen not to fall. ``is_escaping``: q grew without end. Elsewhere
    the density is looked at where the fit does not pass.
    """
    if free is not None:
        return verdict(improper_sentence(target, free)), True
    if is_escaping:
        fault, is_improper = widening_sentence(target, q, family)
        return verdict(fault), is_improper
    found = verdict(None)
    fault = None if found.status == "pass" else endless_sentence(target, q, family)
    return (found, False) if fault is None else (verdict(fault), True)


@counted("verdict")
def endless_sentence(target: Target, q: Kind, family: Family) -> str | None:
    """What to say where the density does not fall on the way on which q is widest or farthest out; else None."""
    direction, center, sd = _way_out(q, family)
    distances = 30 * sd * 10.0 ** np.arange(NUM_DECADES + 1)
    distances = distances[distances <= max(FAR, 3e3 * sd)]
    return None if falls_along(target, direction, center, distances) else improper_sentence(target, direction)


def widening_sentence(target: Target, q: Kind, family: Family) -> tuple[str, bool]:
    """What to say where q went or grew without end, and whether the density does not fall on that way."""
    direction, center, sd = _way_out(q, family)
    within = sd * 10.0 ** np.arange(-3, 1)  # q knows its direction to as many digits
    if not falls_along(target, direction, center, within) or endless_sentence(target, q, family) is not None:
        return improper_sentence(target, direction), True
    name = leaf_along(target, direction)
    return (
        f"q grew without end along {name!r}, where the density does fall: the steps are too noisy for this posterior. "
        "Raise num_samples, lower step_size, or take gradient=StickingTheLanding().",
        False,
    )


def _way_out(q: Kind, family: Family) -> tuple[Float[np.ndarray, " dim"], Float[np.ndarray, " dim"], float]:
    """The unit vector along which q is farthest from zero, or widest; its middle; its sd."""
    center, variances = (np.asarray(v, float) for v in family.location(q))
    variances = np.nan_to_num(variances, nan=np.inf)
    widest, sd = int(np.argmax(variances)), float(np.clip(np.sqrt(np.max(variances)), LEAST_SD, MOST_SD))
    if not np.all(np.isfinite(center)):
        return np.eye(1, len(center), int(np.argmax(~np.isfinite(center))))[0], np.zeros(len(center)), 1.0
    if np.max(np.abs(center)) > LARGE_SHIFT * max(sd, 1.0):
        toward = center / np.max(np.abs(center))  # a square of 1e158 overflows
        return toward / np.linalg.norm(toward), center, sd
    is_known = len(center) <= MOST and np.all(np.isfinite(variances))
    if is_known and isinstance(q, Gaussian) and not isinstance(q.scale, Diagonal):
        last = len(center) - 1
        _, vectors = scipy.linalg.eigh(np.asarray(q.scale.dense(), float), subset_by_index=(last, last))
        direction = without_small_parts(vectors[:, 0])
        return direction / np.linalg.norm(direction), center, sd
    return np.eye(1, len(center), widest)[0], center, sd


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
