"""Newton's method in a trust region (Conn, Gould & Toint 2000, algorithm 6.1.1), to float64's last digits.

Maximise f with gradient g and curvature A = −∇²f, which need not be positive definite:
    s = argmax m(s) = gᵀs − ½ sᵀAs  over ‖D s‖ ≤ Δ     (subproblem.py)
    ρ = (f(u + s) − f(u) + δ) / (m(s) + δ),  δ = 10 ε max(1, |f|) against rounding (section 17.4.2)
    ρ ≥ η: move to u + s; Δ grows if the model was good at the edge. Otherwise Δ and s shrink to a quarter.
Stops where the Newton decrement (gᵀ|A|⁻¹g)^½, the distance to the mode in posterior standard deviations, is below
``tolerance`` and A is positive semi-definite, or where rounding hides any further ascent, or where Δ shrank over many
steps which gained next to nothing of what the decrement promises (½ of its square): at kinks, which A does not see, Δ
halves and halves. Where the gain that m promises is too small for f to show it, a step counts as good if it halves the
decrement.

f, g and A come from one compiled program with one gradient in it. The loop and its linear algebra run on the host:
compiled into the program they tripled its compile time (0.3 to 0.8 s for a logistic regression, whose ten steps take
3 ms) and gained nothing.
"""

import enum
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

MAX_STEPS = 300  # logistic regression takes about 8; the rest is for curved valleys and for modes at infinity
TOLERANCE = 1e-10  # convergence is quadratic, so asking for two digits more than promised costs at most one step
ACCEPT = 1e-4  # η: any true ascent
BLIND = 1e3  # gains below this many δ are left to the decrement
MANY = 20  # accepted steps, which creep where Δ shrank,
NOTHING, LITTLE = 0.05, 1e-2  # and all of them gained as little: nats, and of the least that was promised meanwhile
SHRINK, GROW = 0.25, 3.0

Vector = Float[np.ndarray, " dim"]


class Status(enum.Enum):
    """Why the loop stopped."""

    CONVERGED = "converged"
    STALLED = "no ascent that floating point can see"
    CREEPING = "steps that gain next to nothing of what second derivatives promise"
    MAX_STEPS = "max_steps reached"
    TIME = "time_limit reached"

    @property
    def is_converged(self) -> bool:
        """As far as floating point can see."""
        return self in (Status.CONVERGED, Status.STALLED)


class Evaluation(NamedTuple):
    """f, g and what the solver needs of A at one point. ``resolution``: ε of the precision it was computed in."""

    value: float
    gradient: Vector
    curvature: np.ndarray | None
    extra: tuple
    resolution: float
    num_products: int


class Proposal(NamedTuple):
    """The step s at one point, with slope gᵀs, bend sᵀAs and length ‖D s‖.

    ``newton``: |A|⁻¹g, not held in the region. ``scale``: D.
    """

    step: Vector
    slope: float
    bend: float
    length: float
    radius: float
    newton: Vector
    decrement: float
    is_indefinite: bool
    scale: Vector | float

    @property
    def gain(self) -> float:
        return self.slope - 0.5 * self.bend

    def times(self, factor: float) -> "Proposal":
        """A shorter step along the same line, in a region that just holds it."""
        length = factor * self.length
        return self._replace(
            step=factor * self.step,
            slope=factor * self.slope,
            bend=factor**2 * self.bend,
            length=length,
            radius=length,
        )


class Lately(NamedTuple):
    """Of one of the last points: its height, what its decrement promises (∞: unknown), and how far its step leads."""

    value: float
    promised: float
    length: float

    @classmethod
    def of(cls, at: Evaluation, step: Proposal) -> "Lately":
        return cls(at.value, 0.5 * step.decrement**2, step.length)


@runtime_checkable
class Solver(Protocol):
    """How A is represented, and the subproblem solved."""

    def evaluate(self, objective: Callable, args, u: Vector, minimum: float, last: Proposal | None) -> Evaluation:
        """Work on A may be left out where f(u) < ``minimum``: the point will not be accepted."""
        ...

    def propose(self, at: Evaluation, radius: float, scale: Vector | float) -> Proposal: ...


class Optimum(NamedTuple):
    """Where the loop stopped.

    ``curvature``: −∇²f (dim, dim), None where only products with it were formed. ``gradient_norm``: the decrement.
    ``newton``, ``previous``: the last two Newton steps, by which a mode at infinity is told from one at hand.
    """

    position: Vector
    value: float
    gradient: Vector
    gradient_norm: float
    curvature: np.ndarray | None
    newton: Vector
    previous: Vector
    status: Status
    num_gradients: int
    num_hessians: int
    num_products: int


def maximise(
    objective: Callable,
    args,
    start: Vector,
    solver: Solver,
    *,
    tolerance: float = TOLERANCE,
    max_steps: int = MAX_STEPS,
    deadline: float = np.inf,
    longest: float = np.inf,
) -> Optimum | None:
    """The maximum of ``objective(args, u)`` over u in R^dim, from ``start`` (dim,); None if f or g is not finite there.

    ``objective``: a module-level function, which the compiled program is keyed on; ``args``: a pytree, which it is
    not. ``max_steps`` counts evaluations; 0 looks at the start alone. ``deadline``: by ``time.monotonic()``.
    ``longest``: how far a step may lead along any coordinate.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what is not finite is looked at as such
        return _maximise(objective, args, start, solver, tolerance, max_steps, deadline, longest)


def _maximise(objective, args, start, solver: Solver, tolerance, max_steps, deadline, longest) -> Optimum | None:
    u = np.asarray(start)
    now = solver.evaluate(objective, args, u, -np.inf, None)
    if not _is_finite(now):
        return None
    step = _within(longest, solver.propose(now, np.inf, 0.0))
    previous = np.zeros_like(u)
    lately: deque[Lately] = deque([Lately.of(now, step)], maxlen=MANY + 1)
    num_gradients, num_hessians, num_products = 1, 1, now.num_products
    while (status := _status(step, tolerance, num_gradients > max_steps, deadline)) is None:
        slack = 10 * now.resolution * max(1.0, abs(now.value))
        is_blind = step.gain <= BLIND * slack
        trial = u + step.step.astype(u.dtype)
        there = solver.evaluate(objective, args, trial, -np.inf if is_blind else now.value - slack, step)
        num_gradients += 1
        num_products += there.num_products
        ratio = (there.value - now.value + slack) / (step.gain + slack)
        if not _is_finite(there):
            ratio = -np.inf
        if is_blind and ratio > -np.inf:
            decrement = solver.propose(there, step.radius, step.scale).decrement
            ratio = 1.0 if decrement < 0.5 * step.decrement else ratio if there.value > now.value + slack else -np.inf
        if ratio > ACCEPT:
            num_hessians += 1
            u, now, previous = trial, there, step.newton
            step = _within(longest, solver.propose(now, _new_radius(step, ratio), step.scale))
            lately.append(Lately.of(now, step))
            if not is_blind and _is_creeping(lately):
                status = Status.CREEPING
                break
        elif step.gain <= 0.1 * slack or (is_blind and ratio > -np.inf):
            status = Status.STALLED
            break
        else:
            step = step.times(SHRINK)
    return Optimum(
        position=u,
        value=now.value,
        gradient=now.gradient,
        gradient_norm=step.decrement,
        curvature=now.curvature,
        newton=step.newton,
        previous=previous,
        status=status,
        num_gradients=num_gradients,
        num_hessians=num_hessians,
        num_products=num_products,
    )


def _status(step: Proposal, tolerance: float, is_last: bool, deadline: float) -> Status | None:
    if step.decrement <= tolerance and not step.is_indefinite:
        return Status.CONVERGED
    if is_last:
        return Status.MAX_STEPS
    return Status.TIME if time.monotonic() > deadline else None


def _is_creeping(lately: deque[Lately]) -> bool:
    if len(lately) <= MANY:
        return False
    gained, promised = lately[-1].value - lately[0].value, min(each.promised for each in lately)
    is_little = gained < min(NOTHING, LITTLE * promised) and promised < np.inf
    return is_little and lately[-1].length < lately[0].length


def _within(longest: float, step: Proposal) -> Proposal:
    length = float(np.max(np.abs(step.step), initial=0.0))
    return step.times(longest / length) if length > longest else step


def _new_radius(step: Proposal, ratio: float) -> float:
    if ratio < 0.25:
        return 0.5 * step.length
    return GROW * step.radius if ratio > 0.75 and step.length > 0.9 * step.radius else step.radius


def _is_finite(at: Evaluation) -> bool:
    parts = (at.value, at.gradient, *(() if at.curvature is None else (at.curvature,)), *at.extra[:1])
    return all(bool(np.all(np.isfinite(part))) for part in parts)
