"""The last way to the mode: L-BFGS on all data in coordinates z in which the Gaussian is white, u = û + S z.

There the curvature is near the identity, whatever the network, and the length of the gradient is the distance to the
mode in posterior standard deviations.
"""

import contextlib
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np

from credo.compiling import TINY, brief, has_many_rows
from credo.linalg.blas import ONE_THREAD
from credo.linalg.operator import ScaleOperator
from credo.methods.optimise.objective import Objective
from credo.status import CredoError

WORK, FEWEST, MOST = 2e8, 100, 3_000  # of L-BFGS a turn: gradients times rows times coordinates, and gradients
PAIRS, FEW_PAIRS, HISTORY = 30, 4, 2**28  # of L-BFGS, and the bytes that they may take above the fewest
LARGE, LEAST = 2e10, 30  # and no more where a gradient takes a second
NEAR = 1e-9  # its end: a gradient in white coordinates
PATIENT, ENOUGH = 100, 0.05  # after so many gradients a mode this near, in posterior sds, is taken


def polish(
    objective: Objective, u: np.ndarray, scale: ScaleOperator, num_fixed: int, num_rows: int, deadline: float
) -> tuple[np.ndarray, float, int]:
    """(position, distance to the mode in the metric of ``scale``, gradients). The first ``num_fixed`` stay."""
    from scipy.optimize import minimize

    white = White(objective, u, scale, num_fixed, deadline)
    size = max(num_rows, 1) * len(u)
    number = int(min(np.clip(WORK / size, FEWEST, MOST), max(LARGE / size, LEAST)))
    pairs = int(np.clip(HISTORY // (16 * len(u)), FEW_PAIRS, PAIRS))
    options = {"maxfun": number, "maxiter": number, "gtol": NEAR, "ftol": 1e-15, "maxcor": pairs}
    with contextlib.suppress(_EnoughError), ONE_THREAD:
        minimize(white, np.zeros(len(u)), jac=True, method="L-BFGS-B", options=options)
    if white.best is None:
        raise CredoError("The log density of the trained network is not finite: start from other weights (start=).")
    return white.position(), white.best[2], white.count


class White:
    """−log p along z, u = centre + S z, and the best place so far: (z, value, length of the gradient)."""

    def __init__(self, objective: Objective, u: np.ndarray, scale: ScaleOperator, num_fixed: int, deadline: float):
        self.function, self.args = objective.function, jax.device_put(objective.args)
        self.u, self.scale, self.deadline = u, jax.device_put(scale), deadline
        self.is_free = np.arange(len(u)) >= num_fixed
        self.count, self.best = 0, None

    def __call__(self, z):
        self.count += 1
        value, slope, _ = self.at(z)
        if not (np.isfinite(value) and np.all(np.isfinite(slope))):
            return 1e300, np.zeros_like(z)
        if self.best is None or value > self.best[1]:
            self.best = z.copy(), value, float(np.linalg.norm(slope))
        is_near = self.best is not None and self.best[2] <= ENOUGH
        if (is_near and self.count >= PATIENT) or time.monotonic() > self.deadline:
            raise _EnoughError
        return -value, -slope

    def position(self) -> np.ndarray:
        assert self.best is not None
        return self.at(self.best[0])[2]

    def distance(self) -> float:
        """Of the centre from the mode, in posterior sds."""
        return float(np.linalg.norm(self.at(np.zeros(len(self.u)))[1]))

    def at(self, z) -> tuple[float, np.ndarray, np.ndarray]:
        z = z.astype(self.u.dtype)
        value, slope, u = _white(self.function, self.args, self.u, self.scale, self.is_free, z)
        return float(value), np.asarray(slope, np.float64), np.asarray(u)


class _EnoughError(Exception):
    """Between two gradients."""


def _is_large(_, args, *__) -> bool:
    return has_many_rows(args)


@functools.partial(brief, static_argnames="function", options=TINY, is_large=_is_large)
def _white(function, args, centre, scale, is_free, z):
    """Value, gradient in z, and u."""

    def density(z):
        u = centre + jnp.where(is_free, scale.matvec(z), 0.0)
        return function(args, u), u

    (value, u), slope = jax.value_and_grad(density, has_aux=True)(z)
    return value, slope, u
