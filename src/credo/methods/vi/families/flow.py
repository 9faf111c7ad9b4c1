"""Normalising flows: a Gaussian bent by coupling layers (posterior/flow/), which begin as the identity.

    T(z) = m + S f_L(… f_1(z)),  z ~ N(0, I);  a tangent is that of the Gaussian (m, S), and one number for each of the
    networks' weights, which are added to them

so that a fit begins at the best Gaussian and can only gain.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from credo.compiling import brief
from credo.methods.vi.families.family import Draw, Family
from credo.methods.vi.families.full_rank import FullRank
from credo.methods.vi.optimisers.flow_adam import FlowAdam, FlowTangent
from credo.methods.vi.optimisers.optimiser import Optimiser
from credo.model.structure import Structure
from credo.normals import normal
from credo.posterior.flow.affine import AffineCoupling
from credo.posterior.flow.layer import Layer
from credo.posterior.flow.spline import SplineCoupling
from credo.posterior.kinds import Flow as FlowKind
from credo.posterior.kinds import Gaussian
from credo.status import CredoError

LARGEST_STEP = 0.03  # ρ: of the Gaussian, which begins at its best; FlowAdam's learning rate is in units of it
MOST_DRAWS, NUMBERS = 4_096, 4_000_000  # of the draws that a flow's moments are taken from


@dataclass(frozen=True)
class RealNVP:
    """Affine coupling layers (Dinh, Sohl-Dickstein & Bengio 2017): quick, and Gaussian in each coordinate given others.

    In one dimension they are a normal.
    """

    num_layers: ClassVar[int] = 8
    optimiser: ClassVar[FlowAdam] = FlowAdam(affine_rate=0.1)

    def layers(self, dim: int, num_layers: int, width: int, dtype) -> Layer:
        """The identity."""
        return AffineCoupling.identity(dim, num_layers, width, dtype)


@dataclass(frozen=True)
class NeuralSpline:
    """Rational-quadratic splines (Durkan et al. 2019): any shape within ``bound`` sds of the Gaussian, normal beyond.

    ``num_bins``: pieces of a spline. CredoError below two, or beyond 500, and for a bound that is not positive.
    """

    num_bins: int = 8
    bound: float = 5.0
    num_layers: ClassVar[int] = 4
    optimiser: ClassVar[FlowAdam] = FlowAdam()

    def __post_init__(self):
        if not 2 <= self.num_bins <= 500:
            raise CredoError(f"NeuralSpline(num_bins={self.num_bins!r}): give a whole number from 2 to 500.")
        if not self.bound > 0:
            raise CredoError(f"NeuralSpline(bound={self.bound!r}): give a positive number of standard deviations.")

    def layers(self, dim: int, num_layers: int, width: int, dtype) -> Layer:
        """The identity."""
        return SplineCoupling.identity(dim, num_layers, width, dtype, int(self.num_bins), float(self.bound))


@dataclass(frozen=True)
class Flow(Family):
    """``Flow(RealNVP())`` or ``Flow(NeuralSpline())``: ``num_layers`` coupling layers on the Gaussian ``base``.

    ``kind``: None for ``RealNVP()``, which is several times quicker and follows funnels, and in one dimension, where it
    would be a normal, for ``NeuralSpline()``, which bends marginals and separates modes. ``num_layers``: None for 8
    affine layers and 4 of splines. ``width``: hidden units of each layer's network. ``base``: the family of the
    Gaussian that is bent, in which the fit begins. The posterior is of kind ``Flow``; it has a density, saves and
    loads. Raises CredoError for numbers that are not positive and a base that is not Gaussian.

    >>> import jax.numpy as jnp, numpyro.distributions as dist, credo
    >>> target = credo.Model.from_log_density(lambda params: -params["x"] - jnp.exp(-params["x"]),
    ...                                       {"x": dist.constraints.real}).given()
    >>> posterior = credo.fit(target, credo.ADVI(family=credo.vi.Flow(credo.vi.NeuralSpline(), num_layers=2)))
    >>> abs(posterior.log_evidence.value) < 0.05
    True
    """

    kind: RealNVP | NeuralSpline | None = None
    num_layers: int | None = None
    width: int = 16
    base: Family = field(default_factory=FullRank)
    has_correlations: ClassVar[bool] = True

    def __post_init__(self):
        for name, value in (("num_layers", self.num_layers), ("width", self.width)):
            if value is not None and not value >= 1:
                raise CredoError(f"Flow({name}={value!r}): {name} is a whole number from 1.")
        if not isinstance(self.base, Family):
            raise CredoError(f"Flow(base={self.base!r}): base is a Gaussian family, such as FullRank() or MeanField().")

    def bound(self, structure: Structure) -> "Flow":
        base = self.base.bound(structure)
        member = jax.eval_shape(lambda: base.start(jnp.zeros(structure.dim), jnp.ones(structure.dim)))
        if not isinstance(member, Gaussian):
            raise CredoError(f"A flow bends a Gaussian, and {type(self.base).__name__} is none: use FullRank().")
        return replace(self, base=base, kind=self._kind(structure.dim))

    def _kind(self, dim: int) -> RealNVP | NeuralSpline:
        return self.kind or (NeuralSpline() if dim == 1 else RealNVP())

    def optimiser(self) -> Optimiser:
        """Of the family that is bound to its parameters."""
        return (self.kind or RealNVP()).optimiser

    def num_samples(self, dim: int, size: int) -> int:
        return max(32, self.base.num_samples(dim, size))

    def largest_step(self, num_samples: int, dim: int) -> float:
        """Short, so that a stretch of the ascent is long enough to tell whether the weights have come to rest."""
        return min(LARGEST_STEP, self.base.largest_step(num_samples, dim))

    def start(self, mean, sd) -> FlowKind:
        return self._straight(self.base.start(mean, sd))

    def around(self, mean, precision) -> FlowKind:
        return self._straight(self.base.around(mean, precision))

    def _straight(self, affine) -> FlowKind:
        dim, dtype = affine.mean.shape[0], affine.mean.dtype
        kind = self._kind(dim)
        return FlowKind((kind.layers(dim, self.num_layers or kind.num_layers, self.width, dtype),), affine)

    def location(self, q: FlowKind):
        return _moments(q)

    def center(self, q: FlowKind):
        return _moments(q)[0]

    def variances(self, q: FlowKind):
        return _moments(q)[1]

    def rest(self, q: FlowKind) -> FlowTangent:
        return FlowTangent(self.base.rest(q.affine), jax.tree.map(jnp.zeros_like, q.layers))

    def draw(self, q: FlowKind, tangent: FlowTangent, z) -> Draw:
        u = self.move(q, tangent).forward(z)[0]
        return Draw(u, q.log_prob_u(u))

    def settled(self, q: FlowKind, z) -> Draw:
        return Draw(*q.push(z))

    def entropy(self, q: FlowKind, tangent: FlowTangent):
        return None

    def natural(self, gradient: FlowTangent, step_size) -> FlowTangent:
        affine = self.base.natural(gradient.affine, step_size)
        squares = [jnp.sum(jnp.square(g)) for g in jax.tree.leaves(gradient.layers)]
        factor = step_size / jnp.sqrt(1 + sum(squares, start=jnp.zeros_like(step_size)))
        return FlowTangent(affine, jax.tree.map(lambda g: factor * g, gradient.layers))

    def contract(self, q: FlowKind) -> FlowKind:
        return FlowKind(q.layers, self._gaussian(self.base.contract(q.affine)))

    def move(self, q: FlowKind, tangent: FlowTangent) -> FlowKind:
        layers = jax.tree.map(jnp.add, q.layers, tangent.layers)
        return FlowKind(layers, self._gaussian(self.base.move(q.affine, tangent.affine)))

    def _gaussian(self, q) -> Gaussian:
        assert isinstance(q, Gaussian)
        return q


@brief
def _moments(q: FlowKind):
    """Means and variances of fixed mirrored draws: to 2 % of an sd."""
    dim, dtype = q.affine.mean.shape[0], jnp.asarray(q.affine.mean).dtype
    num_pairs = int(np.clip(NUMBERS // dim, 128, MOST_DRAWS)) // 2
    z = normal(jax.random.key(0), (num_pairs, dim), dtype)
    u = jax.vmap(lambda z: q.forward(z)[0])(jnp.concatenate([z, -z]))
    return jnp.mean(u, axis=0), jnp.var(u, axis=0)
