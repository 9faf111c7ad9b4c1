"""Where the ascent begins: the member of the family nearest to the Gaussian at the mode.

From there stochastic steps have little way to go: in high dimensions noisy steps find a covariance slowly, while
curvature at the mode gives it for the price of a few gradients a dimension. Where no mode is found (hierarchical
models without one) the ascent begins near the origin, narrow, and natural gradients do the rest: draws of a wide start
would meet densities of −10⁵, whose gradients throw q far out.
"""

import functools
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from credo.algorithm import Options, as_key, stream
from credo.batches import in_batches
from credo.compiling import brief
from credo.diagnose.startup import explain
from credo.linalg.operator import Stored
from credo.linalg.products import columns, hvp
from credo.methods.optimise.newton import Optimum, Solver, Status
from credo.methods.optimise.objective import (
    Objective,
    chunk_size,
    find_mode,
    log_density,
    log_prior,
    random_position,
    starting_position,
)
from credo.methods.optimise.spectrum import Spectrum
from credo.methods.optimise.subproblem import ConjugateGradients, Dense
from credo.methods.vi.families.family import Family
from credo.methods.vi.families.mixture import MixtureOf
from credo.model.target import Target
from credo.posterior.kinds import Gaussian, Kind
from credo.posterior.posterior import Posterior
from credo.status import CredoError

MAX_STEPS = 60  # of the mode's search: those that need more have a mode at infinity, or none worth starting from
MAX_DENSE = 200  # dimensions up to which the search forms second derivatives at every step
MAX_CURVATURE = 2_000  # dimensions up to which a family with a full covariance is given the curvature in full
FLAT = 1e-10  # curvature, in units of the coordinates' own, that may be rounding
FAR = 1e3  # standard deviations of a coordinate: a proper density has long fallen there
NARROW = 0.1  # sd of a start without a mode
SPREADS = 2.0, 4.0, 8.0  # of the starts that a mixture looks for modes from, where there is no prior to draw them
NUM_PROBES = 64  # random products that estimate a diagonal: to about 15 %


class Start(NamedTuple):
    """``q``, and how many gradients finding it took (a product with a Hessian counts as one).

    ``free``: a direction (dim,) along which the density does not fall, so that it is improper; else None.
    """

    q: Kind
    num_gradients: int
    free: np.ndarray | None = None


class Begun(NamedTuple):
    """What the end of a fit asks of its start, in arrays that a checkpoint keeps. ``free``: zero for None."""

    num_gradients: Int[Stored, ""]
    free: Float[Stored, " dim"]

    @classmethod
    def of(cls, start: Start, dim: int) -> "Begun":
        free = np.zeros(dim) if start.free is None else start.free
        return cls(np.asarray(start.num_gradients, np.int32), np.asarray(free, jnp.result_type(float)))

    @property
    def direction(self) -> np.ndarray | None:
        """``Start.free``."""
        return np.asarray(self.free, float) if np.any(self.free) else None


def find_start(
    target: Target,
    family: Family,
    key,
    start,
    options: Options,
    *,
    solver: Solver | None = None,
    sd: float = NARROW,
) -> Start:
    """From a Gaussian posterior: its nearest member. From a position, a part of the parameters, or nothing: by way of a
    mode.

    A mixture begins at several. ``solver``: of the mode's search, where the caller has compiled one. ``sd``: in every
    coordinate where there is no mode.
    """
    if isinstance(family, MixtureOf) and family.num_starts > 1:
        return _find_modes(target, family, key, start, options, solver)
    if isinstance(start, Posterior) and isinstance(start.kind, Gaussian) and np.all(start.kind.scale.diagonal() > 0):
        scale, mean = start.kind.scale, np.asarray(start.kind.mean)
        if target.dim > MAX_CURVATURE:
            return Start(family.around(mean, 1 / np.asarray(scale.diagonal())), 0)
        return Start(family.around(mean, np.linalg.inv(np.asarray(scale.dense()))), 0)
    position = starting_position(target, key, start)
    if solver is None:
        solver = Dense(chunk_size(target, options.max_memory)) if target.dim <= MAX_DENSE else ConjugateGradients()
    objective, time_limit = density_of(target), options.time_limit
    mode = find_mode(objective, target, position, key, solver, max_steps=MAX_STEPS, time_limit=time_limit)
    num_gradients = mode.num_gradients + mode.num_products
    if mode.status is Status.TIME:  # as near as it came, with what curvature there is
        at_hand = np.ones_like(position) if mode.curvature is None else mode.curvature
        return Start(family.around(mode.position, at_hand), num_gradients)
    if not mode.status.is_converged:
        if not np.isfinite(float(height(target, jnp.asarray(position)))):
            raise CredoError(explain(target, position))
        return Start(family.start(position, np.full_like(position, sd)), num_gradients)
    precision, num_products = _precision(target, family, mode, key, options)
    free = _free_direction(target, mode.position, precision) if precision.ndim == 2 else None
    return Start(family.around(mode.position, precision), num_gradients + num_products, free)


def _find_modes(target: Target, family: MixtureOf, key, start, options: Options, solver: Solver | None) -> Start:
    """A component near each mode that a start leads to: the usual one, and others drawn from the prior or far apart.

    A mode's weight is Laplace's evidence of it, log p(m, D) − log q(m).
    """
    if solver is None:
        solver = Dense(chunk_size(target, options.max_memory)) if target.dim <= MAX_DENSE else ConjugateGradients()
    deadline, found = options.deadline(), []
    for i in range(family.num_starts):
        if found and time.monotonic() > deadline:
            break
        own = as_key(stream(key, i))
        at = start if i == 0 else _elsewhere(target, key, i)
        try:
            one = find_start(target, family.family, own, at, options.until(deadline), solver=solver)
        except CredoError:
            if i == 0:
                raise
            continue  # nothing finite there
        found.append(one)
    members = [one.q for one in found if isinstance(one.q, Gaussian)]
    centers = [jnp.asarray(family.family.center(q)) for q in members]
    evidence = [float(height(target, at)) - float(_height_of(q, at)) for q, at in zip(members, centers, strict=True)]
    q = family.at_modes(members, [e if np.isfinite(e) else -np.inf for e in evidence])
    return Start(q, sum(one.num_gradients for one in found), next((s.free for s in found if s.free is not None), None))


def _elsewhere(target: Target, key, index: int) -> np.ndarray:
    """A draw of the prior where it is proper, else a draw of N(0, s²), s growing, and the next its mirror image."""
    if target.model.log_factor is None and not target.model.prior.improper_names():
        u = np.asarray(target.sample_prior(as_key(stream(key, index, 1))), float)
        if np.all(np.isfinite(u)):
            return u
    pair, sign = (index - 1) // 2, 1 - 2 * (index % 2)
    return sign * random_position(target, key, pair, SPREADS[pair % len(SPREADS)])


@brief
def height(target: Target, u):
    """log p(u), of whatever numbers: by itself numpyro refuses a scale that has become 0."""
    return target.log_density(u)


@brief
def _height_of(q: Kind, u):
    return q.log_prob_u(u)


def density_of(target: Target) -> Objective:
    """The log density over positions as it stands."""
    return Objective(log_density, log_prior, target, "mode of the density in unconstrained space (Jacobian included)")


def _free_direction(target: Target, position: np.ndarray, precision: np.ndarray) -> np.ndarray | None:
    """A direction of no curvature along which the density is as high far away as at the mode."""
    if Spectrum(precision, float(np.finfo(float).eps)).factor is not None:  # a thirtieth of the price of eigenvectors
        return None
    unit = np.sqrt(np.maximum(np.abs(np.diagonal(precision)), np.finfo(float).tiny))
    values, vectors = np.linalg.eigh(precision / unit / unit[:, None])
    if not values[0] < FLAT:
        return None
    direction = vectors[:, 0] / unit
    far = [float(height(target, jnp.asarray(position + sign * FAR * direction))) for sign in (-1, 0, 1)]
    return direction if max(far[0], far[2]) > far[1] - 1.0 else None


def _precision(target: Target, family: Family, mode: Optimum, key, options: Options) -> tuple[np.ndarray, int]:
    """The curvature at the mode, in full or its diagonal, and how many products it took."""
    if mode.curvature is not None:
        return mode.curvature, 0
    chunk = chunk_size(target, options.max_memory)
    u = jnp.asarray(mode.position)
    if family.has_correlations and target.dim <= MAX_CURVATURE:
        return np.asarray(_curvature(target, u, chunk)), target.dim
    return np.asarray(_diagonal(target, u, stream(key), min(chunk, NUM_PROBES))), NUM_PROBES


@functools.partial(brief, static_argnames="chunk")
def _curvature(target: Target, u, chunk: int):
    return -columns(lambda v: hvp(target.log_density, u, v), u, chunk=chunk)


@functools.partial(brief, static_argnames="chunk")
def _diagonal(target: Target, u, key, chunk: int):
    """E[v ∘ A v] = diag A for random signs v (Bekas, Kokiopoulou & Saad 2007)."""

    def probe(key):
        v = jax.random.rademacher(key, u.shape, u.dtype)
        return -v * hvp(target.log_density, u, v)

    return jnp.mean(in_batches(probe, jax.random.split(as_key(key), NUM_PROBES), chunk), axis=0)
