"""Where chains begin, the scales of their coordinates and the step size: by what is measured where they are.

With L the largest curvature of the scaled log density and V the largest variance of a coordinate of its stochastic
gradient (of a network's weights the mean), a step of Langevin dynamics makes the stationary variance wrong by a share
of about ε (L + V) / 4, one of Hamiltonian dynamics by h² L / 4 + h V / (2 γ). Steps are set so that each of these terms
is about a twentieth.
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
SMALL = 5e7  # rows times coordinates


class Tuning(NamedTuple):
    """Arguments of the compiled chain. ``most``: √ε times a force, ∞ in warm-up, where chains that run away are seen.

    ``caution``: what the best step is multiplied by, since chains ran away from it.
    """

    scale: Any
    step_size: Any
    center: Any
    anchor: Anchor | None
    most: Any
    caution: Any


class Measured(NamedTuple):
    """In the scale: ``gradient`` on all data at the anchor; L; V without and with a control variate."""

    scale: Float[Stored, " dim"]
    gradient: Float[Stored, " dim"]
    curvature: Float[Stored, ""]
    noise: Float[Stored, ""]
    anchored_noise: Float[Stored, ""]


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
        optimiser = holding(default_optimiser(num_steps), held)
        return ascend(target, optimiser, batch_size, num_steps, key, position, options)[0]
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
    middle = [_middle(each) for each in zip(*(each[2:] for each in found), strict=True)]
    return Measured(scale, found[0].gradient, *middle)


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

    def noise(anchor):
        if batch_size is None:
            return jnp.zeros(())
        estimate = stochastic_gradient(target, batch_size, anchor)
        return _largest(variance_of(lambda key: scale * estimate(key, away), keys), weights_of(target))

    return Measured(scale, gradient, curvature, noise(None), noise(Anchor(center, gradient)))


def _largest(variances: Float[Array, " dim"], is_weight: np.ndarray | None) -> Float[Array, ""]:
    """The weights of a network count together: it is judged by its predictions, in which all of them take part."""
    if is_weight is None:
        return jnp.max(variances)
    return jnp.max(jnp.concatenate([jnp.mean(variances[is_weight])[None], variances[~is_weight]]))
