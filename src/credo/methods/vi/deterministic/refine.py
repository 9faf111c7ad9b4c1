"""The optimum of more draws, from that of fewer: gradients alone, and one curvature at the end.

A gradient at a draw costs one dim-th of a Hessian there. The curvature of the first draws serves as that of F at first,
and is corrected by each step s and the change y of −∇F along it (BFGS): A ← A − A s sᵀA / sᵀAs + y yᵀ / yᵀs.
"""

from dataclasses import dataclass, field

import numpy as np

from credo.methods.optimise.newton import Evaluation, Optimum, Proposal, Status, maximise
from credo.methods.optimise.subproblem import Dense
from credo.methods.vi.deterministic.gaussian import FixedDraws

TOLERANCE = 1e-3  # decrement: F lacks half its square in nats
MAX_STEPS = 40
LEAST = 1e-8  # yᵀs over |y||s|: below it y is rounding, or the curvature is not positive


@dataclass(frozen=True)
class ByGradients:
    """F of ``draws`` as ``newton.maximise`` sees it. ``known``: A, and the last point with its gradient."""

    draws: FixedDraws
    known: list = field(default_factory=list)

    def evaluate(self, objective, args, u: np.ndarray, minimum: float, last: Proposal | None) -> Evaluation:
        at = self.draws.evaluate(objective, args, u, minimum, last, with_curvature=False)
        A, *before = self.known
        if np.isfinite(at.value) and np.all(np.isfinite(at.gradient)):
            if before:
                A = _corrected(A, u - before[0], before[1] - at.gradient)
            self.known[:] = [A, u, at.gradient]
        return at._replace(curvature=A)

    def propose(self, at: Evaluation, radius, scale) -> Proposal:
        return Dense(1).propose(at, radius, scale)


def refine(draws: FixedDraws, objective, args, optimum: Optimum, deadline: float) -> Optimum | None:
    """The maximum of F of ``draws``, from the ``optimum`` of others in the same coordinates, curvature included.

    None where gradients alone do not find it in a few steps."""
    solver = ByGradients(draws, [optimum.curvature])
    found = maximise(
        objective, args, optimum.position, solver, tolerance=TOLERANCE, max_steps=MAX_STEPS, deadline=deadline
    )
    if found is None or found.status is not Status.CONVERGED:
        return None
    draws.path.pop()  # the same point once more
    there = draws.evaluate(objective, args, found.position, -np.inf, None)
    step = Dense(1).propose(there, np.inf, 0.0)
    return found._replace(
        curvature=there.curvature,
        gradient=there.gradient,
        gradient_norm=step.decrement,
        newton=step.newton,
        num_hessians=1,
        num_products=there.num_products,
    )


def _corrected(A: np.ndarray, s: np.ndarray, y: np.ndarray) -> np.ndarray:
    along, As = float(y @ s), A @ s
    if not (along > LEAST * np.linalg.norm(y) * np.linalg.norm(s) and s @ As > 0):
        return A
    return A - np.outer(As, As) / (s @ As) + np.outer(y, y) / along
