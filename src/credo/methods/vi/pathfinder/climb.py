"""Quasi-Newton ascent of log p that shows every point it passes (L-BFGS: Liu & Nocedal 1989), many paths side by side.

    d = H g;  t by bracketing and bisection until both conditions of Wolfe hold (Lewis & Overton 2013, algorithm 2.6):
    log p(u + t d) ≥ log p(u) + 10⁻⁴ t gᵀd,   ∇log p(u + t d)ᵀd ≤ 0.9 gᵀd

The second makes s·y positive, so that H stays positive definite. A trial at which log p or its gradient is no number
counts as too far. A path ends where ½ gᵀHg, the gain that is left by its own account, is a hundred-millionth of a nat,
where a line shows no ascent any more, or at ``max_steps``. The densities of all paths are evaluated in one program.

H knows nothing of coordinates along which no step went, as in units of 10⁶. So at such an end, where it is not dear, H
begins again as 1 / |diag ∇² log p| if by that more than ``LEFT`` nats are left.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from credo.methods.vi.pathfinder.inverse_hessian import InverseHessian

ASCENT, CURVATURE = 1e-4, 0.9  # of Wolfe's conditions
MAX_TRIALS = 40  # a line
GAIN, LEFT = 1e-8, 1e-4  # nats


class Point(NamedTuple):
    """A point passed, what was known of H there, and ``direction`` H ∇log p."""

    position: Float[np.ndarray, " dim"]
    value: float
    gradient: Float[np.ndarray, " dim"]
    inverse_hessian: InverseHessian
    direction: Float[np.ndarray, " dim"]


class Path:
    """The points passed so far, and the line that is being searched from the last."""

    def __init__(self, position, history: int, max_steps: int, curvature: Callable[[np.ndarray], np.ndarray]):
        """``curvature(u)``: diag ∇² log p, of either sign; NaN where it is dear."""
        self.history, self.max_steps, self.curvature = history, max_steps, curvature
        self.points: list[Point] = []
        self.trial, self.is_over = position, False
        self.low, self.high, self.length, self.trials = 0.0, np.inf, 0.0, 0
        self.direction = np.zeros_like(position)

    def tell(self, value: float, gradient) -> None:
        """What log p and its gradient are at ``trial``; the next trial is then set, or the path is over."""
        is_finite = np.isfinite(value) and np.all(np.isfinite(gradient))
        if not self.points:
            self.is_over = not is_finite
            if is_finite:
                self._pass(value, gradient, InverseHessian.identity(gradient.size))
            return
        here = self.points[-1]
        slope = here.gradient @ self.direction
        if not (is_finite and value >= here.value + ASCENT * self.length * slope):
            self.high = self.length
        elif gradient @ self.direction > CURVATURE * slope:
            self.low = self.length
        else:
            step, change = self.trial - here.position, here.gradient - gradient
            self._pass(value, gradient, here.inverse_hessian.after(step, change, self.history))
            return
        self.trials += 1
        self.is_over = self.trials >= MAX_TRIALS
        self._set(2 * self.low if self.high == np.inf else 0.5 * (self.low + self.high))

    def _pass(self, value: float, gradient, known: InverseHessian) -> None:
        if not known.gain(gradient) > GAIN:
            own = known.begun_again(self.curvature(self.trial))
            known = own if own.gain(gradient) > LEFT else known
        self.direction = known.product(gradient)
        self.points.append(Point(self.trial, value, gradient, known, self.direction))
        self.is_over = not known.gain(gradient) > GAIN or len(self.points) > self.max_steps
        self.low, self.high, self.trials = 0.0, np.inf, 0
        is_first = not len(known.steps)
        self._set(min(1.0, 1 / max(float(np.linalg.norm(gradient)), 1e-300)) if is_first else 1.0)

    def _set(self, length: float) -> None:
        self.length, self.trial = length, self.points[-1].position + length * self.direction


def climb(
    evaluate: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], paths: list[Path], deadline: float
) -> tuple[int, bool]:
    """Lead all ``paths`` to their ends -> (gradients taken, whether the deadline left them the time)."""
    num_gradients = 0
    while not all(path.is_over for path in paths):
        if num_gradients and time.monotonic() > deadline:
            return num_gradients, False
        values, gradients = evaluate(np.stack([path.trial for path in paths]))
        for path, value, gradient in zip(paths, values, gradients, strict=True):
            if not path.is_over:
                with np.errstate(all="ignore"):  # far out slopes overflow: a gain that is no number ends the path
                    path.tell(float(value), gradient)
                num_gradients += 1
    return num_gradients, True
