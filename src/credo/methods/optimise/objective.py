"""What is maximised, from where, and how its curvature is represented.

Each objective is a module-level function of (args, u), so that compiled programs are keyed on it. MAP and Laplace share
one: log p(u, D) − w log |∂params/∂u| with w an argument, 1 for the density in the user's space and 0 for that of u.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from credo.diagnose.startup import explain
from credo.memory import at_once, footprint
from credo.methods.optimise.diagnosis import transformed
from credo.methods.optimise.newton import Optimum, Solver, maximise
from credo.methods.optimise.subproblem import ConjugateGradients, Dense
from credo.model.target import Target
from credo.posterior.kinds import Draws, Gaussian, Kind, Point
from credo.posterior.posterior import Posterior
from credo.precision import abstract
from credo.status import CredoError
from credo.traced import by_shapes

MAX_DENSE = 1_000  # above it A is not formed: at 1,000 its eigenvectors take 0.4 s a step
MAX_CHUNK = 128  # columns: enough for matrix products at full speed
EXPENSIVE = 2e8  # (N + 10 dim)·dim², about what a matrix and its spectrum take: above it products do most of the way
APPROACH_STEPS = 50  # of it; a badly scaled problem is then left to the matrix
NUM_STARTS = 10  # random positions tried where the density is not finite at the first
SPREAD, WIDE_SPREAD = 0.1, 2.0


class Objective(NamedTuple):
    """``function(args, u)``, its part that is no likelihood, and in words the density whose mode its maximum is."""

    function: Callable
    log_prior: Callable
    args: Any
    mode: str


def in_users_space(target: Target) -> Objective:
    """The density of the parameters themselves: no Jacobian."""
    return _density(target, 1.0, "mode of the density in the user's space (no Jacobian)")


def in_unconstrained_space(target: Target) -> Objective:
    """The density of the unconstrained position: Jacobian included."""
    return _density(target, 0.0, "mode of the density in unconstrained space (Jacobian included)")


def _density(target: Target, weight: float, mode: str) -> Objective:
    if not _is_transformed(target):
        return Objective(log_density, log_prior, target, mode)
    return Objective(log_density_less_jacobian, log_prior_less_jacobian, (target, np.float64(weight)), mode)


@by_shapes
def _is_transformed(target: Target) -> bool:
    return bool(transformed(target).any())


def of_likelihood(target: Target) -> Objective:
    """The likelihood alone, whatever the prior."""
    return Objective(log_likelihood, no_prior, target, "maximum of the likelihood (priors ignored)")


def after(earlier: Kind, target: Target) -> Objective:
    """The likelihood of ``target`` with ``earlier``, a density over its positions, in the place of its prior."""
    mode = "mode of the density in unconstrained space (Jacobian included), an earlier posterior as the prior"
    return Objective(log_density_after, log_prior_after, (target, earlier), mode)


def log_density(target: Target, u):
    return target.log_density(u)


def log_prior(target: Target, u):
    return target.log_prior(u)


def log_density_less_jacobian(args, u):
    target, weight = args
    return target.log_density(u) - weight.astype(u.dtype) * target.log_jacobian(u)


def log_prior_less_jacobian(args, u):
    target, weight = args
    return target.log_prior(u) - weight.astype(u.dtype) * target.log_jacobian(u)


def log_likelihood(target: Target, u):
    return target.log_likelihood(u).sum()


def no_prior(target: Target, u):
    return 0.0 * u.sum()


def log_density_after(args, u):
    target, earlier = args
    return earlier.log_prob_u(u) + target.total_log_likelihood(u)


def log_prior_after(args, u):
    return args[1].log_prob_u(u)


def is_differentiable(target: Target) -> bool:
    """Whether the log density has a derivative that JAX can form; nothing is computed."""
    return not target.structure.discrete_names and has_gradient(target.log_density, jax.numpy.zeros(target.dim))


def has_gradient(function: Callable, u) -> bool:
    """Whether JAX can form the gradient of a function at ``u``; nothing is computed."""
    try:
        jax.eval_shape(jax.grad(function), u)
    except (ValueError, TypeError, NotImplementedError):  # a loop of unknown length, or a call out of JAX
        return False
    return True


def solver_for(target: Target, max_memory: int | None = None) -> Solver:
    """Second derivatives in full up to 1,000 dimensions, products with them above."""
    return Dense(chunk_size(target, max_memory)) if target.dim <= MAX_DENSE else ConjugateGradients()


def chunk_size(target: Target, max_memory: int | None = None, *, most: int = MAX_CHUNK) -> int:
    """How many columns of a curvature, or positions, to work on at once.

    Each takes about four numbers a row, and of a network what its density computes.
    """
    needed = 4 * 8 * max(target.rows_held, target.dim, 1)
    if target.dim > MAX_DENSE:  # of a network: a row has as many numbers as the layers have outputs
        needed = max(needed, _density_bytes(target))
    return at_once(needed, most, max_memory)


@by_shapes
def _density_bytes(target: Target) -> int:
    return footprint(log_density, target, abstract((target.dim,)))


def starting_position(target: Target, key, start) -> np.ndarray:
    """(dim,): the centre of a posterior, the position given, or a point near the origin.

    A random one, so that no symmetry holds the optimiser (the origin is a saddle of every neural network). CredoError
    for several positions.
    """
    dtype = np.dtype(jax.numpy.result_type(float))
    if start is None:
        return random_position(target, key, 0, SPREAD).astype(dtype)
    if isinstance(start, Posterior):
        start = centre(start)
    start = np.asarray(start, dtype)
    if start.ndim == 2 and len(start) > 1:
        raise CredoError(
            f"start has shape {start.shape}, and this method begins at one position: give ({target.dim},)."
        )
    return start.reshape(-1)


def first_of(start):
    """The first of several positions, for what begins at one; a posterior, one position or None as they are."""
    return start[0] if isinstance(start, np.ndarray) and start.ndim == 2 else start


def positions_given(start, number: int, dim: int) -> np.ndarray:
    """An array ``start`` as positions, (dim,) or (number, dim)."""
    positions = np.asarray(start)
    if positions.shape not in ((dim,), (number, dim)):
        raise CredoError(
            f"start has shape {positions.shape}: give one position, ({dim},), or {number} of them, ({number}, {dim})."
        )
    return positions


def centre(posterior: Posterior):
    """A position (dim,) in the middle of a posterior."""
    if isinstance(posterior.kind, Point):
        return posterior.kind.position
    if isinstance(posterior.kind, Gaussian):
        return posterior.kind.mean
    return posterior.target.unconstrain(posterior.mean())


def members(posterior: Posterior, number: int) -> np.ndarray | None:
    """``number`` different draws (number, dim) of a posterior that is a set of them, such as an ensemble; else None.

    Evenly spaced; each again where there are fewer.
    """
    kind = posterior.kind
    if not isinstance(kind, Draws) or kind.log_weights is not None:
        return None
    flat = np.asarray(kind.positions).reshape(-1, kind.positions.shape[-1])
    if len(flat) < number:
        return flat[np.arange(number) % len(flat)]
    return flat[(np.arange(number) * len(flat)) // number]


def random_position(target: Target, key, index: int, spread: float) -> np.ndarray:
    """N(0, spread²) in each coordinate, by NumPy: nothing to compile."""
    return spread * generator(key, index).normal(size=target.dim)


def generator(key, *stream: int) -> np.random.Generator:
    """NumPy's random numbers from a JAX key."""
    return np.random.default_rng([*np.asarray(jax.random.key_data(key)).ravel().tolist(), *stream])


def find_mode(
    objective: Objective,
    target: Target,
    start: np.ndarray,
    key,
    solver: Solver,
    *,
    max_steps: int,
    time_limit: float | None = None,
) -> Optimum:
    """The maximum from ``start``, or from random positions where the density is not finite there.

    ``max_steps`` 0: ``start`` itself, and no other. ``time_limit``: seconds of all of it. Raises CredoError, naming
    parameter or row, where it is finite at none of them.
    """
    deadline = np.inf if time_limit is None else time.monotonic() + time_limit
    if isinstance(solver, ConjugateGradients):
        solver = replace(solver, deadline=deadline)
    for attempt in range(NUM_STARTS + 1 if max_steps > 0 else 1):
        position = start if attempt == 0 else random_position(target, key, attempt, WIDE_SPREAD).astype(start.dtype)
        optimum = _climb(objective, target, position, solver, max_steps, deadline)
        if optimum is not None:
            return optimum
    at = solver.evaluate(objective.function, objective.args, start, -np.inf, None)
    if np.isfinite(at.value) and np.all(np.isfinite(at.gradient)):
        raise CredoError(
            "The log density and its gradient are finite at the start but the second derivatives are not: look for a "
            "root, a power or an absolute value at 0 in the model, or start elsewhere (start=)."
        )
    raise CredoError(explain(target, start))


def _climb(objective: Objective, target: Target, start, solver: Solver, max_steps: int, deadline) -> Optimum | None:
    """From one start, by products first where a matrix is dear."""
    function, args = objective.function, objective.args
    approach = None
    if isinstance(solver, Dense) and max_steps > 0 and (target.size + 10.0 * target.dim) * target.dim**2 > EXPENSIVE:
        steps = min(max_steps, APPROACH_STEPS)
        approach = maximise(
            function, args, start, ConjugateGradients(deadline=deadline), max_steps=steps, deadline=deadline
        )
    if approach is None:
        return maximise(function, args, start, solver, max_steps=max_steps, deadline=deadline)
    optimum = maximise(function, args, approach.position, solver, max_steps=max_steps, deadline=deadline)
    return (
        None
        if optimum is None
        else optimum._replace(
            num_gradients=optimum.num_gradients + approach.num_gradients,
            num_products=optimum.num_products + approach.num_products,
        )
    )
