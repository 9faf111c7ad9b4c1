"""Where chains begin, the scales of their coordinates and the step size: by what is measured where they are.

With L the largest curvature of the scaled log density and V the largest variance of its stochastic gradient along any
direction (of a network's weights the mean of a coordinate's), a step of Langevin dynamics makes the stationary variance
there wrong by a share of about ε (L + V) / 4, one of Hamiltonian dynamics by h² L / 4 + h V / (2 γ). Steps are set so
that each of these terms is about a twentieth.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credo.algorithm import Options, as_key, stream
from credo.compiling import NATIVE, brief
from credo.diagnose.function_space import weights_of
from credo.linalg.operator import Stored
from credo.linalg.products import hvp
from credo.methods.optimise.hyperparameters import holding, of_prior
from credo.methods.optimise.minibatch import ascend, default_num_steps, default_optimiser
from credo.methods.optimise.objective import (
    MAX_DENSE,
    find_mode,
    first_of,
    in_unconstrained_space,
    members,
    solver_for,
    starting_position,
)
from credo.methods.sgmcmc.gradient import Anchor, stochastic_gradient
from credo.methods.sgmcmc.moments import variance_of
from credo.methods.sgmcmc.preconditioner import NUM_GRADIENTS, Preconditioner
from credo.model.target import Target
from credo.model.windows import all_rows, window
from credo.posterior.posterior import Posterior
from credo.status import CredoError

NUM_PRODUCTS = 20  # of the power method: L to a few percent
MOST_ROWS = 8_192  # of each product: of more data the first of the shuffled rows, from which L is too large by a little
MAX_STEPS = 200  # on the way to a mode
MOST_DIRECTED = 100_000  # dimensions: 64 gradients are held to know the direction of their noise
SMALL = 5e7  # rows times coordinates
SIZES = "largest", "mean", "least"  # of the noise


class Noise(NamedTuple):
    """Of stochastic gradients in the scale: the variance along the ``direction`` where it is ``largest``, the ``mean``
    of the coordinates' variances and the ``least`` of them. Where no direction is kept the first two are one number, of
    a network's weights that mean, in very many dimensions the largest of a coordinate, and the least is zero."""

    largest: Any
    mean: Any
    least: Any
    direction: Any


class Tuning(NamedTuple):
    """Arguments of the compiled chain. ``most``: √ε times a force, ∞ in warm-up, where chains that run away are seen.

    ``caution``: what the best step is multiplied by, since chains ran away from it. ``directions`` (0 or 2, dim), of
    length one in the scale, or none where there is no curvature: where the noise is largest and where the curvature is,
    of which a thermometer is kept.
    """

    scale: Any
    step_size: Any
    center: Any
    anchor: Anchor | None
    most: Any
    caution: Any
    directions: Any


class Measured(NamedTuple):
    """In the scale: ``gradient`` on all data at the anchor; L and its direction; V without and with a control variate.

    Directions have no entry of a network, and in more dimensions than gradients are held of.
    """

    scale: Float[Stored, " dim"]
    gradient: Float[Stored, " dim"]
    curvature: Float[Stored, ""]
    steepest: Float[Stored, " some"]
    noise: Noise
    anchored_noise: Noise

    def noise_of(self, anchor: Anchor | None) -> Noise:
        return self.noise if anchor is None else self.anchored_noise

    def directions(self, anchor: Anchor | None) -> Float[np.ndarray, "n dim"]:
        found = np.stack([self.noise_of(anchor).direction, self.steepest])
        return found if found.size else np.zeros((0, self.scale.size), found.dtype)


def first_position(target: Target, batch_size: int | None, key, start, options: Options) -> np.ndarray:
    """The centre of a posterior; else a mode that is reached from the position given, or from near the origin.

    What is measured there must hold where the chains will be. Up to 1,000 dimensions the mode is found by second
    derivatives on all data; above, and of a network, by Adam on minibatches, hyperparameters of its prior where they
    are.
    """
    position = starting_position(target, key, first_of(start))
    if isinstance(start, Posterior):
        first = members(start, 1)  # the mean of an ensemble is no mode
        return position if first is None else first[0].astype(position.dtype)
    held = of_prior(target, position)
    if weights_of(target) is not None or target.dim > MAX_DENSE:
        num_steps = default_num_steps(target, batch_size)
        optimiser = holding(default_optimiser(target, num_steps), held)
        found = ascend(target, optimiser, batch_size, num_steps, key, position, options)
        return found.of_finite_density(target)
    solver, objective = solver_for(target, options.max_memory), in_unconstrained_space(target)
    mode = find_mode(objective, target, position, key, solver, max_steps=MAX_STEPS, time_limit=options.time_limit)
    is_known = start is not None or target.model.start is not None  # else the search may be on its way to infinity
    return mode.position if is_known or mode.status.is_converged else position


def measure(
    target: Target, batch_size: int | None, preconditioner: Preconditioner, key, u: Float[np.ndarray, " dim"]
) -> Measured:
    """At a start ``u``, which is the anchor; V one sd from there. ``target``: flat and shuffled.

    CredoError where the log density has no finite gradient at ``u``.
    """
    scale = _scale(target, stream(key, 0), u, batch_size, preconditioner)
    found = jax.tree.map(np.asarray, _measure(target, stream(key, 1), u, u, scale, 1.0, batch_size))
    if not np.all(np.isfinite(found.gradient)):
        raise CredoError(
            "The gradient of the log density is not finite where the chains begin: give another start=, such as "
            "credo.fit(target, credo.MAP())."
        )
    if not (np.all(np.isfinite(found.scale)) and np.isfinite(found.curvature)):
        raise CredoError(
            "The curvature of the log density is not finite where the chains begin: give step_size= and "
            "preconditioner=UnitScale(), or start elsewhere."
        )
    return found


def measure_among(
    target: Target, batch_size: int | None, preconditioner: Preconditioner, key, positions: list, center
) -> Measured:
    """At the ``positions`` of chains: scale, L and V, geometric means over them. ``center``: the anchor.

    What holds at a mode of a network, where units that are off have no curvature at all, need not among its draws.
    """
    numbered = list(enumerate(positions))
    scales = [_scale(target, stream(key, 0, i), u, batch_size, preconditioner) for i, u in numbered]
    scale = _middle(scales).astype(center.dtype)
    found = [_measure(target, stream(key, 1, i), u, center, scale, 0.0, batch_size) for i, u in numbered]
    noise, anchored_noise = (
        noises[0]._replace(**{name: _middle([getattr(each, name) for each in noises]) for name in SIZES})
        for noises in ([each.noise for each in found], [each.anchored_noise for each in found])
    )
    curvature = _middle([each.curvature for each in found])
    return Measured(scale, found[0].gradient, curvature, found[0].steepest, noise, anchored_noise)


def _middle(values) -> np.ndarray:
    """The geometric mean: curvatures may differ by orders of magnitude, and a single one is not to rule."""
    values = np.asarray([np.asarray(value) for value in values], np.float64)
    return np.exp(np.mean(np.log(np.maximum(values, np.finfo(np.float64).tiny)), axis=0))


def ran_away(tuning: Tuning) -> CredoError:
    return CredoError(
        f"The chains ran away to infinity with step size {float(tuning.step_size):.2g}: give a smaller step_size, or "
        "start nearer to a mode (start=)."
    )


def _is_small(target: Target, *_) -> bool:
    """At most half a second more of running for two seconds less of compiling."""
    return target.size * target.dim <= SMALL


@functools.partial(brief, static_argnames=("batch_size", "preconditioner"), options=NATIVE, is_small=_is_small)
def _scale(target: Target, key, u, batch_size: int | None, preconditioner: Preconditioner) -> Float[Array, " dim"]:
    return preconditioner.scale(target, batch_size, stochastic_gradient(target, batch_size, None), as_key(key), u)


@functools.partial(brief, static_argnames="batch_size", options=NATIVE, is_small=_is_small)
def _measure(target: Target, key, u, center, scale, distance, batch_size: int | None) -> Measured:
    """``distance``, in sds from ``u``: where V is measured."""
    k_power, k_noise, k_away = jax.random.split(as_key(key), 3)
    everything = None if batch_size is None else all_rows(target)
    gradient = jax.grad(lambda u: target.log_density(u, everything))(center)
    some = everything if target.size <= MOST_ROWS or batch_size is None else window(target, MOST_ROWS, 0)

    def scaled_product(v):
        return -scale * hvp(lambda u: target.log_density(u, some), u, scale * v)

    def iterate(_, v):
        v = scaled_product(v)
        return v / jnp.maximum(jnp.linalg.norm(v), jnp.finfo(v.dtype).tiny)

    v = jax.lax.fori_loop(0, NUM_PRODUCTS, iterate, jax.random.normal(k_power, u.shape, u.dtype))
    curvature = jnp.abs(jnp.dot(v, scaled_product(v)) / jnp.maximum(jnp.dot(v, v), jnp.finfo(v.dtype).tiny))

    step = scale * jax.random.normal(k_away, u.shape, u.dtype) / jnp.sqrt(jnp.maximum(curvature, 1.0))
    away, keys = u + distance * step, jax.random.split(k_noise, NUM_GRADIENTS)

    is_weight = weights_of(target)
    has_directions = is_weight is None and target.dim <= MOST_DIRECTED
    v = v / jnp.maximum(jnp.linalg.norm(v), jnp.finfo(v.dtype).tiny) if has_directions else jnp.zeros(0, v.dtype)

    def noise(anchor) -> Noise:
        if batch_size is None:
            return Noise(jnp.zeros(()), jnp.zeros(()), jnp.zeros(()), v)
        estimate = stochastic_gradient(target, batch_size, anchor)

        def one(key):
            return scale * estimate(key, away)

        if has_directions:
            return _of_gradients(jax.lax.map(one, keys))
        largest = _of_coordinates(variance_of(one, keys), is_weight)
        return Noise(largest, largest, jnp.zeros(()), v)

    return Measured(scale, gradient, curvature, v, noise(None), noise(Anchor(center, gradient)))


def _of_coordinates(variances: Float[Array, " dim"], is_weight: np.ndarray | None) -> Float[Array, ""]:
    """The weights of a network count together: it is judged by its predictions, in which all of them take part."""
    if is_weight is None:
        return jnp.max(variances)
    return jnp.max(jnp.concatenate([jnp.mean(variances[is_weight])[None], variances[~is_weight]]))


def _of_gradients(drawn: Float[Array, "n dim"]) -> Noise:
    """The direction of half of them is measured by the other half: by the same its variance would be far too large."""
    away = drawn - jnp.mean(drawn, axis=0)
    variances = jnp.sum(away**2, axis=0) / (len(drawn) - 1)
    first, second = (half - jnp.mean(half, axis=0) for half in jnp.split(drawn, 2))
    across = [jnp.var(there @ _principal(here), ddof=1) for here, there in ((first, second), (second, first))]
    largest = jnp.maximum(jnp.max(variances), sum(across) / 2)
    return Noise(largest, jnp.mean(variances), jnp.min(variances), _principal(away))


def _principal(rows: Float[Array, "n dim"]) -> Float[Array, " dim"]:
    """The direction of most variance, by the eigenvectors of an (n, n) matrix."""
    direction = jnp.linalg.eigh(rows @ rows.T)[1][:, -1] @ rows
    return direction / jnp.maximum(jnp.linalg.norm(direction), jnp.finfo(rows.dtype).tiny)
