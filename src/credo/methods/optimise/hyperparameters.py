"""Hyperparameters of a network's prior beside its weights, where a maximum of the density is sought.

The joint density of weights and their prior's precision, p(w, α) ∝ α^{d/2} exp(−½ α |w|²) …, rises without end, or to
far beyond any use, as w → 0 and α → ∞: its mode says nothing of the posterior. So they stay where they are while
weights climb, and a method that does maximise over both says what it did.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from credo.compiling import brief
from credo.model.distributions import unwrapped
from credo.model.target import Target
from credo.model.user_head import UserHead
from credo.traced import by_shapes

INFINITE = (
    "The prior of the weights is infinitely high at zero: such a posterior has no mode. Use a prior that is finite "
    "there, such as credo.nn.Isotropic(1.0), or a sampler."
)


def num_hyperparameters(target: Target) -> int:
    """How many coordinates come before the weights: those of the prior and of the noise.

    Parameters of a head that a user wrote follow them, and count as weights: cutpoints or dispersions are no noise.
    """
    return num_before(target) - num_own(target)


def num_before(target: Target) -> int:
    """How many coordinates are no weights: all that come before them."""
    name = target.model.weights_name
    return sum(leaf.size for leaf in target.structure.leaves if not _is_of(name, leaf.name))


def num_own(target: Target) -> int:
    """How many coordinates are a user's head's own: the last before the weights."""
    own = target.head.parameters if isinstance(target.head, UserHead) else ()
    return sum(leaf.size for leaf in target.structure.leaves if any(_is_of(name, leaf.name) for name in own))


def _is_of(name: str | None, leaf: str) -> bool:
    return name is not None and (leaf == name or leaf.startswith(f"{name}."))


@brief
def look_at(target: Target, u):
    """log p(u, D), and the slope of the likelihood."""
    likelihood, slope = jax.value_and_grad(lambda u: jnp.sum(target.log_likelihood(u)))(u)
    return target.log_prior(u) + likelihood, slope


def of_prior(target: Target, u) -> tuple[int, ...]:
    """The coordinates of the prior's hyperparameters: those before a network's weights without a slope at ``u``."""
    if target.model.weights_name is None or target.y is None or not num_hyperparameters(target):
        return ()
    return among(target, look_at(target, u)[1])


def among(target: Target, slopes) -> tuple[int, ...]:
    """The same, of slopes of the likelihood that are known."""
    return tuple(int(i) for i in np.flatnonzero(np.asarray(slopes) == 0) if i < num_hyperparameters(target))


@functools.lru_cache(maxsize=32)  # a compiled program is keyed on the object
def holding(optimiser: optax.GradientTransformation, held: tuple[int, ...]) -> optax.GradientTransformation:
    """``optimiser`` with some coordinates held."""
    if not held:
        return optimiser
    hold = optax.stateless(lambda updates, _: jnp.asarray(updates).at[jnp.asarray(held)].set(0.0))  # type: ignore[arg-type]
    return optax.chain(optimiser, hold)


@by_shapes
def is_infinite_at_zero(target: Target) -> bool:
    """Whether the prior of a network's weights is: the density rises without end as one of them goes there."""
    found = []
    if target.model.weights_name is not None:
        seen = found.append
        target.prior.survey(lambda _, law, value: seen(getattr(unwrapped(law), "is_infinite_at_zero", False)))
    return any(found)


def without_mode(target: Target, u) -> tuple[str, ...]:
    """What to say of a maximum over weights and their prior's hyperparameters."""
    if is_infinite_at_zero(target):
        return (INFINITE,)
    held = of_prior(target, u)
    if not held:
        return ()
    owner = np.repeat([leaf.name for leaf in target.structure.leaves], [leaf.size for leaf in target.structure.leaves])
    names = ", ".join(dict.fromkeys(owner[list(held)].tolist()))
    return (
        f"{names} and the weights have no useful mode together: the density rises as weights go to zero and their "
        "prior narrows. Give numbers here, such as prior=credo.nn.Isotropic(1.0), or use a method that does not "
        "maximise over both: Laplace() finds them by the evidence, ADVI(), SGHMC() and NUTS() their posterior.",
    )
