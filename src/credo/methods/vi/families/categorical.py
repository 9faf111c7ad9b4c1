"""Discrete parameters beside continuous ones: q(u, z) = q_c(u) Π_i p_i(z_i), a probability for every value of each z_i.

    p_i = softmax(η_i);  tangent d: η_i ← η_i + d_i / p_i^½

The Fisher information of η_i is diag(p_i) − p_i p_iᵀ, whose inverse on what softmax sees is diag(p_i)⁻¹: in d it is 1.

Draws do not move with q, so that only ``ScoreFunction`` finds its way here. A family of continuous parameters becomes
this one where the target has discrete parameters (``with_discrete``).
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from credo.methods.vi.families.family import Family
from credo.methods.vi.families.supports import finite_supports
from credo.model.target import Target
from credo.posterior.factored import Factored, merged, others
from credo.posterior.kinds import Gaussian
from credo.status import CredoError

NOT_A_VALUE = -1e4  # logit beyond the values that a coordinate has: probability zero
LARGEST_SHIFT = 0.3  # of d in one step
RARE = 0.05  # probability below which a value's own steps are lengthened no further


@dataclass(frozen=True)
class WithDiscrete(Family):
    """``family`` of the continuous coordinates, and probabilities for those at ``discrete``.

    ``supports``: (lowest value, how many) of each of these.
    """

    family: Family
    discrete: tuple[int, ...]
    supports: tuple[tuple[int, int], ...]
    has_correlations: ClassVar[bool] = False

    def num_samples(self, dim: int, size: int) -> int:
        """Score functions are noisy: four times as many."""
        return 4 * self.family.num_samples(dim, size)

    def largest_step(self, num_samples: int, dim: int) -> float:
        return self.family.largest_step(num_samples, dim)

    def start(self, mean, sd) -> Factored:
        places = others(np.shape(mean)[0], self.discrete)
        return self._member(self.family.start(mean[places], sd[places]), mean.dtype)

    def around(self, mean, precision) -> Factored:
        places = others(np.shape(mean)[0], self.discrete)
        precision = np.asarray(precision)
        inner = precision[places] if precision.ndim == 1 else precision[np.ix_(places, places)]
        return self._member(self.family.around(mean[places], inner), np.asarray(mean).dtype)

    def _member(self, continuous, dtype) -> Factored:
        counts = np.array([count for _, count in self.supports])
        logits = np.where(np.arange(counts.max()) < counts[:, None], -np.log(counts)[:, None], NOT_A_VALUE)
        return Factored(
            _gaussian(continuous), logits.astype(dtype), self.discrete, tuple(low for low, _ in self.supports)
        )

    def center(self, q: Factored):
        mean, _ = _moments(q)
        return merged(jnp.asarray(self.family.center(q.continuous)), mean, q.discrete)

    def variances(self, q: Factored):
        _, variance = _moments(q)
        return merged(jnp.asarray(self.family.variances(q.continuous)), variance, q.discrete)

    def rest(self, q: Factored):
        return self.family.rest(q.continuous), jnp.zeros_like(q.logits)

    def draw(self, q: Factored, tangent, z):
        raise CredoError("Draws of discrete parameters do not move with q: take gradient=ScoreFunction().")

    def entropy(self, q: Factored, tangent):
        log_p = jax.nn.log_softmax(q.logits + tangent[1], axis=-1)
        inner = self.family.entropy(q.continuous, tangent[0])
        return None if inner is None else inner - jnp.sum(jnp.exp(log_p) * log_p)

    def log_probs(self, q: Factored, u):
        places, _ = q.places()
        inner = self.family.log_probs(q.continuous, u[places])
        return None if inner is None else merged(inner, q.log_probabilities(u), q.discrete)

    def natural(self, gradient, step_size):
        inner, g = gradient
        return self.family.natural(inner, step_size), jnp.clip(step_size * g, -LARGEST_SHIFT, LARGEST_SHIFT)

    def contract(self, q: Factored) -> Factored:
        return Factored(_gaussian(self.family.contract(q.continuous)), q.logits, q.discrete, q.lowest)

    def move(self, q: Factored, tangent) -> Factored:
        inner, d = tangent
        logits = jax.nn.log_softmax(q.logits + _units(q) * d, axis=-1)
        return Factored(_gaussian(self.family.move(q.continuous, inner)), logits, q.discrete, q.lowest)


def with_discrete(family: Family, target: Target) -> Family:
    """``family``, beside probabilities of the discrete parameters where the target has some.

    CredoError for a family that is not Gaussian and values that are not finitely many.
    """
    structure = target.structure
    if not structure.discrete_names:
        return family
    with jax.ensure_compile_time_eval():
        member = jax.eval_shape(lambda: family.start(jnp.zeros(structure.dim), jnp.ones(structure.dim)))
    if not isinstance(member, Gaussian):
        raise CredoError(
            f"{type(family).__name__}() does not stand beside discrete parameters such as "
            f"{structure.discrete_names[0]!r}: take family=MeanField(), or fit Gibbs()."
        )
    found, places, supports, first = finite_supports(target), [], [], 0
    for leaf in structure.leaves:
        if leaf.is_discrete:
            places += range(first, first + leaf.size)
            supports += [found[leaf.name]] * leaf.size
        first += leaf.size
    return WithDiscrete(family, tuple(places), tuple(supports))


def _gaussian(member) -> Gaussian:
    assert isinstance(member, Gaussian)  # with_discrete has seen to it
    return member


def _units(q: Factored):
    """p^-½, but for values that are rare."""
    return 1 / jnp.sqrt(jax.nn.softmax(jnp.asarray(q.logits), axis=-1) + RARE)


def _moments(q: Factored):
    """(mean, variance) of the discrete coordinates."""
    p = jax.nn.softmax(jnp.asarray(q.logits), axis=-1)
    values = np.asarray(q.lowest)[:, None] + np.arange(p.shape[1])
    mean = jnp.sum(p * values, axis=-1)
    return mean, jnp.sum(p * (values - mean[:, None]) ** 2, axis=-1)
