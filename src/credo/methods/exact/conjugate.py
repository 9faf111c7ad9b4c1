"""Recognise a conjugate model by the shape of its log joint, whatever the likelihood is called.

A family with sufficient statistics T is conjugate to a likelihood if, in the user's space,

    log p(θ, D) = Σ_j η_j · T_j(θ_j) + const                                       (Diaconis and Ylvisaker, 1979).

Then ∇_u [log p(u, D) − log |∂θ/∂u|] = Σ_j (∂T_j/∂u)ᵀ η_j is linear in η: a few gradients give η and so a candidate
posterior q. The candidate is then checked, not assumed: log p(u, D) − log q(u) must be the same number at positions
near and far and wherever the prior lies, where another mode may be, and by Bayes' theorem that number is the log
evidence. Any likelihood of the right shape is recognised:
Bernoulli, binomial, geometric, Poisson with exposures, exponential, categorical, multinomial, normal with known
noise, with or without sample weights, and several independent parameters at once.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.core import Tracer
from numpyro.distributions import Distribution, biject_to, constraints

from credo.compiling import TINY, brief, sound
from credo.model.target import Target
from credo.model.visit import origin
from credo.posterior.product import Product
from credo.precision import double, to_numpy

TOLERANCE = 1e-10  # of the log densities compared: rounding over 10⁵ rows leaves about 1e-13
NEAR, ROUNDINGS = 1e-4, 8.0  # sds apart, where what is not conjugate differs by next to nothing; of those seen there
MOST_ROUNDING = 1e-3  # nats
NUM_POSITIONS = 6  # a batch; every batch has the same shape, so that one program is compiled
NUM_BATCHES = 10  # at which a candidate is checked where it has its mass
NUM_PRIOR = 10  # and from the prior: a mode that holds a twentieth of it is missed by one in twenty
NUM_WIDE, WIDENING = 4, 3.0  # and three times as far out, where a kink of two sds would else be missed by one in four


@dataclass(frozen=True, eq=False)  # hashed by identity: constraints have no hash
class Conjugate:
    """A family: T(θ, center) -> (k,) for one element θ, and the distribution with natural parameters η (…, k).

    Drawing in NumPy spares the compilation of JAX's rejection samplers, most of the time this would take.
    """

    support: constraints.Constraint
    statistics: Callable
    build: Callable[[np.ndarray, np.ndarray], Distribution]
    draw: Callable  # (NumPy generator, distribution, shape) -> values where it has mass, away from its boundary


class Leaf(NamedTuple):
    """A parameter of the model: its family, and the batch and event dimensions of its prior."""

    family: Conjugate
    batch: tuple[int, ...]  # one element of the family each; an event of the prior may hold several
    num_event_dims: int  # of those


def recognise(target: Target) -> tuple[dict[str, Distribution], float] | None:
    """The exact posterior, one independent distribution a leaf of the prior, and log p(D); None if not conjugate.

    The distributions have the supports of the prior's, and float64 NumPy parameters.
    """
    target = target.flat()
    with double():
        leaves = _leaves(target)
        if leaves is None:
            return None
        spread = np.linspace(0.3, 2.0, NUM_POSITIONS)[:, None]
        generator = np.random.default_rng(0)  # fixed: what is recognised is a property of the model
        far = generator.normal(size=(NUM_POSITIONS, target.dim)) * spread
        candidate = _fit(target, leaves, far)
        # a second fit near the candidate, where the terms of the log joint are small and cost fewer digits
        candidate = candidate and _fit(target, leaves, _drawn(candidate, leaves, generator))
        if candidate is None:
            return None
        near = np.concatenate([_drawn(candidate, leaves, generator) for _ in range(NUM_BATCHES)])
        middle = near.mean(axis=0)
        wide = middle + WIDENING * (near[: NUM_WIDE * NUM_POSITIONS] - middle)
        constants, tolerances = _constants(candidate, target, np.concatenate([near, wide, far]))
        rounding = _rounding(candidate, target, near)
        log_evidence = float(np.mean(constants[: len(near)]))
        is_constant = np.all(np.abs(constants - log_evidence) <= tolerances + rounding)  # False where anything is NaN
        if is_constant:  # what has no numbers out there tells nothing
            priors = _priors(target)
            across = np.concatenate([_drawn(priors, leaves, generator) for _ in range(NUM_PRIOR)])
            constants, tolerances = _constants(candidate, target, across)
            is_constant = not np.any(
                np.isfinite(constants) & (np.abs(constants - log_evidence) > tolerances + rounding)
            )
        return (to_numpy(candidate), log_evidence) if is_constant else None


def _leaves(target: Target) -> dict[str, Leaf] | None:
    """The parameters by name; None where one is of no known family. (One that depends on another fails the check.)"""
    found = {}

    def see(name, prior, _):
        base = _base(prior)
        family = BETA if _is_standard_uniform(base) else FAMILIES.get(type(base))
        if family is not None:
            num_own = family.support.event_dim
            shape = prior.shape()
            found[name] = Leaf(family, shape[: len(shape) - num_own], prior.event_dim - num_own)

    target.model.prior.survey(see)
    names = [leaf.name for leaf in target.structure.leaves]
    return {name: found[name] for name in names} if names and set(found) == set(names) else None


def _priors(target: Target) -> dict[str, Distribution]:
    """Those that are of known families, as their families: to be drawn from in NumPy."""
    found = {}

    def see(name, prior, _):
        base: Any = _base(prior)
        if _is_standard_uniform(base):
            base = dist.Beta(1.0, 1.0)
        elif isinstance(base, dist.Exponential):
            base = dist.Gamma(1.0, base.rate)
        found[name] = base.expand(prior.shape()[: len(prior.shape()) - base.event_dim])

    target.model.prior.visit(lambda name, prior, _: origin(name, prior), see)
    return found


def _base(prior: Distribution) -> Distribution:
    while isinstance(prior, dist.Independent | dist.ExpandedDistribution):
        prior = prior.base_dist
    return prior


def _is_standard_uniform(prior: Distribution) -> bool:
    if type(prior) is not dist.Uniform or any(isinstance(end, Tracer) for end in (prior.low, prior.high)):
        return False
    return bool(np.all(np.asarray(prior.low) == 0) and np.all(np.asarray(prior.high) == 1))


def _fit(target: Target, leaves: dict[str, Leaf], positions) -> dict[str, Distribution] | None:
    """The distributions whose natural parameters solve the linear system of the gradients at ``positions``."""
    _, gradients = _values_and_gradients(target, jnp.asarray(positions))
    if not np.all(np.isfinite(gradients)):
        return None
    u, gradient = (jax.vmap(target.structure.unravel)(jnp.asarray(a)) for a in (positions, gradients))
    candidate = {}
    for name, leaf in leaves.items():
        candidate[name] = _fit_leaf(leaf, np.asarray(u[name]), np.asarray(gradient[name]))
        if candidate[name] is None:
            return None
    return candidate


def _fit_leaf(leaf: Leaf, u: np.ndarray, gradient: np.ndarray) -> Distribution | None:
    """One leaf: least squares for the η of each of its elements, from positions and gradients (S, *free shape)."""
    num_elements = int(np.prod(leaf.batch))
    designs, rights, centers = _linear_systems(
        leaf.family, *(a.reshape(len(u), num_elements, -1).swapaxes(0, 1) for a in (u, gradient))
    )
    eta = np.array([np.linalg.lstsq(a, b)[0] for a, b in zip(np.asarray(designs), np.asarray(rights), strict=True)])
    with np.errstate(invalid="ignore", divide="ignore"):
        fitted = leaf.family.build(eta.reshape(*leaf.batch, -1), np.asarray(centers).reshape(leaf.batch))
    # numpyro's own validation, which raises, is off above: what is no distribution here is an answer, not an error
    if not all(np.all(constraint(getattr(fitted, name))) for name, constraint in fitted.arg_constraints.items()):
        return None  # not a distribution: the posterior is improper, or the model is not conjugate
    return fitted.to_event(leaf.num_event_dims)


@functools.partial(brief, static_argnames="family", options=TINY)
def _linear_systems(family: Conjugate, u, gradient):
    """For each element, from its positions and gradients (elements, S, m): (S m, k), (S m,) and its center."""
    transform = biject_to(family.support)

    def value(v):
        return transform(v if family.support.event_dim else v[0])

    def log_jacobian(v):
        v = v if family.support.event_dim else v[0]
        return transform.log_abs_det_jacobian(v, transform(v))

    def of_element(u, gradient):
        center = jnp.mean(jax.vmap(value)(u))
        slopes = jax.vmap(jax.jacfwd(lambda v: family.statistics(value(v), center)))(u)  # (S, k, m)
        right = gradient - jax.vmap(jax.grad(log_jacobian))(u)
        return slopes.swapaxes(1, 2).reshape(-1, slopes.shape[1]), right.ravel(), center

    return jax.vmap(of_element)(u, gradient)


def _drawn(laws: dict[str, Distribution], leaves: dict[str, Leaf], generator: np.random.Generator) -> np.ndarray:
    """Positions (S, dim) where the laws, each of its leaf's family, have their mass."""
    pieces = []
    for name, leaf in leaves.items():
        values = leaf.family.draw(generator, _base(laws[name]), (NUM_POSITIONS, *laws[name].shape()))
        u = biject_to(leaf.family.support)._inverse(jnp.asarray(values))
        pieces.append(np.reshape(u, (NUM_POSITIONS, -1)))
    return np.concatenate(pieces, axis=1)


def _constants(candidate: dict[str, Distribution], target: Target, positions) -> tuple[np.ndarray, np.ndarray]:
    """log p(u, D) − log q(u) at each position, and the rounding error that it may have."""
    batches = [jnp.asarray(batch) for batch in np.split(positions, len(positions) // NUM_POSITIONS)]
    joint = np.concatenate([_values_and_gradients(target, batch)[0] for batch in batches])
    approximate = np.concatenate([_log_prob(Product(candidate, target.structure), batch) for batch in batches])
    return joint - approximate, TOLERANCE * (1 + np.maximum(np.abs(joint), np.abs(approximate)))


def _rounding(candidate: dict[str, Distribution], target: Target, near: np.ndarray) -> float:
    """What log p(u, D) − log q(u) loses to terms that cancel, as in Poisson counts near 10⁷, by its values next to one
    another; 0 where that is so much that nothing could be told."""
    steps = NEAR * (near[:NUM_POSITIONS] - near.mean(axis=0))
    constants, _ = _constants(candidate, target, near[0] + steps)
    rounding = ROUNDINGS * float(np.ptp(constants))
    return rounding if rounding <= MOST_ROUNDING else 0.0


@sound
def _values_and_gradients(target: Target, positions):
    return jax.lax.map(jax.value_and_grad(target.log_density), positions)


@sound
def _log_prob(product: Product, positions):
    return jax.vmap(product.log_prob_u)(positions)


def _shares(values):
    return values / values.sum(axis=-1, keepdims=True)


BETA = Conjugate(
    constraints.unit_interval,
    lambda x, _: jnp.stack([jnp.log(x), jnp.log1p(-x)]),
    lambda eta, _: dist.Beta(eta[..., 0] + 1, eta[..., 1] + 1, validate_args=False),
    lambda generator, d, shape: generator.beta(d.concentration1 + 1, d.concentration0 + 1, shape),
)
GAMMA = Conjugate(
    constraints.positive,
    lambda x, _: jnp.stack([jnp.log(x), -x]),
    lambda eta, _: dist.Gamma(eta[..., 0] + 1, eta[..., 1], validate_args=False),
    lambda generator, d, shape: generator.gamma(d.concentration + 1, 1 / np.asarray(d.rate), shape),
)
INVERSE_GAMMA = Conjugate(
    constraints.positive,
    lambda x, _: jnp.stack([-jnp.log(x), -1 / x]),
    lambda eta, _: dist.InverseGamma(eta[..., 0] - 1, eta[..., 1], validate_args=False),
    lambda generator, d, shape: d.rate / generator.gamma(d.concentration + 1, size=shape),
)
DIRICHLET = Conjugate(
    constraints.simplex,
    lambda x, _: jnp.log(x),
    lambda eta, _: dist.Dirichlet(eta + 1, validate_args=False),
    lambda generator, d, shape: _shares(generator.gamma(d.concentration + 1, size=shape)),
)
NORMAL = Conjugate(
    constraints.real,
    lambda x, center: jnp.stack([x - center, (x - center) ** 2]),  # so that a distant mean costs no digits
    lambda eta, center: dist.Normal(
        center - 0.5 * eta[..., 0] / eta[..., 1], (-2 * eta[..., 1]) ** -0.5, validate_args=False
    ),
    lambda generator, d, shape: generator.normal(d.loc, d.scale, shape),
)

FAMILIES = {
    dist.Beta: BETA,
    dist.Gamma: GAMMA,
    dist.Exponential: GAMMA,  # a Gamma of shape one
    dist.InverseGamma: INVERSE_GAMMA,
    dist.Dirichlet: DIRICHLET,
    dist.Normal: NORMAL,
}
