"""Newton's method on F from a member of the family, which contracts where its draws leave the support."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from credo.diagnose.startup import explain
from credo.methods.optimise.newton import Optimum, Solver, maximise
from credo.methods.vi.families.family import Family
from credo.methods.vi.start import height
from credo.model.target import Target
from credo.posterior.kinds import Kind
from credo.status import CredoError

TOLERANCE = {np.dtype(np.float64): 1e-7, np.dtype(np.float32): 1e-3}  # decrement: F lacks half its square in nats
NUM_CONTRACTIONS = 20


class Problem(NamedTuple):
    """``function(args, point)`` from ``point`` on, as ``solver`` sees it."""

    function: Callable
    args: Any
    point: np.ndarray
    solver: Solver


def climb(
    problem: Callable[[Kind], Problem], family: Family, q: Kind, target: Target, *, max_steps: int, deadline: float
) -> tuple[Kind, Problem, Optimum]:
    """``problem(q)``: F in coordinates about q. The q that it began from, which may have contracted, comes back."""
    for _ in range(NUM_CONTRACTIONS):
        each = problem(q)
        tolerance = TOLERANCE[np.dtype(jnp.result_type(float))]
        optimum = maximise(
            each.function,
            each.args,
            each.point,
            each.solver,
            tolerance=tolerance,
            max_steps=max_steps,
            deadline=deadline,
        )
        if optimum is not None:
            return q, each, optimum
        q = family.contract(q)
    center = np.asarray(family.center(q))
    middle = float(height(target, jnp.asarray(center)))
    if not np.isfinite(middle):
        raise CredoError(explain(target, center))
    widest = int(np.argmax(np.asarray(family.variances(q))))
    raise CredoError(
        f"The log density is {middle:.5g} in the middle of the approximation, and no number, or infinite, at draws "
        f"about it, however narrow: along {target.structure.scalar_names()[widest]!r} it may not fall (an improper "
        "posterior) or overflow. Give proper priors, or keep the parameter away from where it overflows."
    )
