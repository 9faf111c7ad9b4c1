"""A mixture of Gaussians: q(u) = Σ_c π_c q_c(u), every q_c of one Gaussian family.

Draws are stratified: draw k comes from component c(k), each in turn from a random first one, so that

    E_q[f] = Σ_c π_c E_{q_c}[f] ≈ mean_k (num_components · π_c(k)) f(u_k),   log_share = log(num_components · π_c)

without bias for any number of draws, and differentiable in π although the choice of a component is not (Roeder, Wu &
Duvenaud 2017, section 6; Morningstar et al. 2021, stratified). log q(u) is that of the whole mixture.

Where components stand apart, the information of q_c's coordinates is π_c times its own, and that of log π_c is π_c less
a rank of one. Both are moved in units of s_c = (num_components · π_c)^-½, so that for all it is 1/num_components times
what the component has by itself: a rare component moves as far in a step as a frequent one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from credo.methods.vi.families.family import Draw, Family
from credo.methods.vi.families.mean_field import MeanField
from credo.methods.vi.optimisers.optimiser import Optimiser
from credo.model.structure import Structure
from credo.posterior.kinds import Gaussian, Mixture
from credo.status import CredoError

LEAST = 0.25  # of num_components · π_c, below which a component's steps are lengthened no further
LARGEST_SHIFT = 0.5  # of log π_c in a step
APART = 0.7  # standard deviations that components which begin at one mode are moved apart
SAME_MODE = 0.5  # nats: a mode that lies this near another's is that one
HOPELESS = 20.0  # nats below the best mode: no component begins there


@dataclass(frozen=True)
class MixtureOf(Family):
    """``num_components`` members of a Gaussian ``family``, and their weights: ``MixtureOf(2, FullRank())``.

    Components begin at the modes found from several starts; where there are fewer modes than components, apart from
    each other at the heaviest. A mode that no start leads to stays unseen. The posterior is a ``Mixture``.
    Raises CredoError for a number that is no positive whole number and a family that is not Gaussian.

    >>> import jax.numpy as jnp, numpyro.distributions as dist, credo
    >>> def density(params):
    ...     return jnp.logaddexp(*(dist.Normal(at, 0.5).log_prob(params["x"]) for at in (-4.0, 4.0)))
    >>> target = credo.Model.from_log_density(density, {"x": dist.constraints.real}).given()
    >>> family = credo.vi.MixtureOf(2, credo.MeanField())
    >>> credo.fit(target, credo.ADVI(family=family)).quantile([0.1, 0.9])["x"].round(0)
    array([-4.,  4.])
    """

    num_components: int
    family: Family = field(default_factory=MeanField)
    has_correlations: ClassVar[bool] = True

    def __post_init__(self):
        if not isinstance(self.num_components, int | np.integer) or self.num_components < 1:
            raise CredoError(
                f"MixtureOf({self.num_components!r}, …): the number of components is a whole number from 1."
            )
        if not isinstance(self.family, Family):
            raise CredoError(f"MixtureOf takes a family of its components, such as FullRank(); got {self.family!r}.")

    @property
    def num_strata(self) -> int:
        return self.num_components

    @property
    def num_starts(self) -> int:
        """Searches for a mode that the components' beginning is chosen from."""
        return max(9, 4 * self.num_components + 1) if self.num_components > 1 else 1

    def bound(self, structure: Structure) -> "MixtureOf":
        family = self.family.bound(structure)
        with jax.ensure_compile_time_eval():
            member = jax.eval_shape(lambda: family.start(jnp.zeros(structure.dim), jnp.ones(structure.dim)))
        if not isinstance(member, Gaussian):
            raise CredoError(
                f"The components of a mixture are Gaussian, and {type(self.family).__name__} is not: use MeanField(), "
                "FullRank(), LowRank() or Blocks of them."
            )
        return replace(self, family=family)

    def optimiser(self) -> Optimiser:
        return self.family.optimiser()

    def noise(self, key, num_samples: int, dim: int):
        k_first, k_noise = jax.random.split(key)
        half = jnp.arange(-(-num_samples // 2)) + jax.random.randint(k_first, (), 0, self.num_components)
        chosen = jnp.concatenate([half, half])[:num_samples] % self.num_components
        return chosen, self.family.noise(k_noise, num_samples, dim)

    def num_samples(self, dim: int, size: int) -> int:
        return self.num_components * self.family.num_samples(dim, size)

    def largest_step(self, num_samples: int, dim: int) -> float:
        return self.family.largest_step(max(1, num_samples // self.num_components), dim)

    def start(self, mean, sd) -> Mixture:
        member = self.family.start(mean, sd)
        assert isinstance(member, Gaussian)
        return _mixture(_apart(member, self.num_components), [0.0] * self.num_components)

    def around(self, mean, precision) -> Mixture:
        member = self.family.around(mean, precision)
        assert isinstance(member, Gaussian)
        return _mixture(_apart(member, self.num_components), [0.0] * self.num_components)

    def at_modes(self, members: Sequence[Gaussian], log_weights: Sequence[float]) -> Mixture:
        """Components at the heaviest of distinct modes; what is left over begins beside the heaviest of these."""
        order = sorted(range(len(members)), key=lambda i: -log_weights[i])
        modes: list[int] = []
        for i in order:
            is_new = all(_distance(members[i], members[j]) > SAME_MODE for j in modes)
            if is_new and log_weights[i] > log_weights[order[0]] - HOPELESS and len(modes) < self.num_components:
                modes.append(i)
        counts = [1] * len(modes)
        for _ in range(self.num_components - len(modes)):
            counts[int(np.argmax([log_weights[i] - np.log(n) for i, n in zip(modes, counts, strict=True)]))] += 1
        parts, weights = [], []
        for i, count in zip(modes, counts, strict=True):
            parts += _apart(members[i], count)
            weights += [float(log_weights[i]) - np.log(count)] * count
        return _mixture(parts, weights)

    def center(self, q: Mixture):
        return _average(q, [self.family.center(part) for part in q.components])

    def variances(self, q: Mixture):
        centers = [self.family.center(part) for part in q.components]
        middle = _average(q, centers)
        own = [self.family.variances(part) for part in q.components]
        return _average(q, [v + (center - middle) ** 2 for v, center in zip(own, centers, strict=True)])

    def rest(self, q: Mixture):
        return jnp.zeros_like(q.log_weights), tuple(self.family.rest(part) for part in q.components)

    def draw(self, q: Mixture, tangent, z) -> Draw:
        chosen, z = z
        scales, (w, own) = _units(q), tangent
        each = zip(q.components, own, scales, strict=True)
        draws = jnp.stack([self.family.draw(part, _times(s, xi), z).u for part, xi, s in each])
        u = draws[chosen]
        log_share = jax.nn.log_softmax(q.log_weights + scales * w)[chosen] + np.log(self.num_components)
        return Draw(u, q.log_prob_u(u), log_share)

    def entropy(self, q: Mixture, tangent):
        return None

    def natural(self, gradient, step_size):
        g, own = gradient
        k = self.num_components
        w = jnp.clip(step_size * k * g, -LARGEST_SHIFT, LARGEST_SHIFT)
        return w, tuple(self.family.natural(_times(float(k), each), step_size) for each in own)

    def contract(self, q: Mixture) -> Mixture:
        return Mixture(q.log_weights, tuple(self.family.contract(part) for part in q.components))

    def move(self, q: Mixture, tangent) -> Mixture:
        scales, (w, own) = _units(q), tangent
        each = zip(q.components, own, scales, strict=True)
        parts = tuple(self.family.move(part, _times(s, xi)) for part, xi, s in each)
        return Mixture(jax.nn.log_softmax(q.log_weights + scales * w), parts)


def _units(q: Mixture):
    """s_c = (num_components · π_c)^-½, up to LEAST^-½."""
    share = len(q.components) * jax.nn.softmax(q.log_weights)
    return 1 / jnp.sqrt(jnp.maximum(share, LEAST))


def _times(factor, tangent):
    return jax.tree.map(lambda leaf: factor * leaf, tangent)


def _average(q: Mixture, values):
    weights = np.exp(q.log_weights - np.max(q.log_weights)) if isinstance(q.log_weights, np.ndarray) else None
    if weights is None:
        return sum(w * v for w, v in zip(jax.nn.softmax(q.log_weights), values, strict=True))
    return sum(w * v for w, v in zip(weights / weights.sum(), values, strict=True))


def _apart(member: Gaussian, count: int) -> list[Gaussian]:
    """Copies of ``member``, their means in fixed directions about its own."""
    if count == 1:
        return [member]
    away = np.random.default_rng(count).normal(size=(count, member.scale.dim))
    away = (away - away.mean(axis=0)) * np.sqrt(count / (count - 1))
    return [Gaussian(member.mean + member.scale.matvec(APART * each), member.scale) for each in away]


def _mixture(parts: Sequence[Gaussian], log_weights: Sequence[float]) -> Mixture:
    dtype = jax.eval_shape(lambda: parts[0].mean).dtype
    weights = np.asarray(log_weights) - np.logaddexp.reduce(log_weights)
    return Mixture(weights.astype(dtype), tuple(parts))


def _distance(one: Gaussian, other: Gaussian) -> float:
    """½ zᵀz of the distance of two modes, in the wider of their scales."""
    away = np.asarray(one.mean) - np.asarray(other.mean)
    return min(float(0.5 * np.sum(np.square(q.scale.solve(away)))) for q in (one, other))
