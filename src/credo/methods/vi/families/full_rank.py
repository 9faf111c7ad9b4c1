"""A normal with any covariance: q(u) = N(m, L Lᵀ), L lower triangular with a positive diagonal.

    T(z) = m + L z;  tangent (a, B), B lower triangular:  m ← m + L a,  L ← L (B₋ + diag g(B_ii))
    where B₋ is B below its diagonal and g the exponential or a softplus (scales.py)
    Fisher information: 1 below the diagonal and for a, 2 on the diagonal

These are the local coordinates of Lin, Nielsen, Khan & Schmidt (2021): the natural gradient at q needs no inverse.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from credo.linalg.dense import Dense
from credo.methods.vi.families.family import Draw, Family
from credo.methods.vi.families.mean_field import (
    CONTRACTION,
    gaussian_draw,
    gaussian_entropy,
    positive,
    shortened,
)
from credo.methods.vi.families.scales import Exp, Scale
from credo.posterior.kinds import Gaussian
from credo.status import CredoError

LARGEST_GROWTH = 0.7  # spectral norm of B in one step


@dataclass(frozen=True)
class FullRank(Family):
    """A normal with dense covariance: d (d + 3)/2 numbers. Exact on Gaussian targets.

    A step takes d³ operations, and the noise of its gradient asks for more steps as d grows: for up to some 200
    parameters. Beyond, ``LowRank(k)`` or ``Blocks(…)``, or ``NUTS()``, which may well be faster.

    ``scale``: how steps move the diagonal of the factor, ``vi.Exp()`` or ``vi.Softplus()``; the optimum is the same.
    """

    scale: Scale = field(default_factory=Exp)
    has_correlations: ClassVar[bool] = True

    def num_samples(self, dim: int, size: int) -> int:
        """As many as cost no more than the update of L, d³ against 2 K N d."""
        return int(np.clip(dim**2 // (2 * max(size, 1)), 16, 256))

    def largest_step(self, num_samples: int, dim: int) -> float:
        """The noise of the gradient in B is the error of L times (d/K)^½: ρ d/K < 1 keeps it from feeding itself."""
        return min(1.0, 0.5 * num_samples / dim)

    def start(self, mean, sd) -> Gaussian:
        return Gaussian(mean, Dense(jnp.diag(sd)))

    def around(self, mean, precision) -> Gaussian:
        precision = np.asarray(precision)
        if precision.ndim == 1:
            return self.start(mean, 1 / np.sqrt(positive(precision)))
        try:
            return Gaussian(mean, Dense.from_precision(precision))
        except CredoError:  # a saddle, or a flat direction
            values, Q = np.linalg.eigh(precision)
            return Gaussian(mean, Dense.from_covariance((Q / positive(values)) @ Q.T))

    def center(self, q: Gaussian):
        return q.mean

    def variances(self, q: Gaussian):
        return q.scale.diagonal()

    def rest(self, q: Gaussian):
        return jnp.zeros_like(q.mean), jnp.zeros((q.mean.size, q.mean.size), q.mean.dtype)

    def draw(self, q: Gaussian, tangent, z) -> Draw:
        a, B = tangent
        return gaussian_draw(q, a + jnp.matmul(jnp.tril(B, -1), z) + self.scale.factor(jnp.diagonal(B)) * z)

    def entropy(self, q: Gaussian, tangent):
        return gaussian_entropy(q) + jnp.sum(self.scale.log_factor(jnp.diagonal(tangent[1])))

    def natural(self, gradient, step_size):
        g, G = gradient
        B = step_size * (jnp.tril(G, -1) + 0.5 * jnp.diag(jnp.diagonal(G)))
        B = B * jnp.minimum(1.0, LARGEST_GROWTH / jnp.maximum(_spectral_norm(B), jnp.finfo(B.dtype).tiny))
        return shortened(step_size * g), B

    def careful(self, step, share, longest):
        slow = step[0], *(share * part for part in step[1:])
        return tuple(jnp.clip(part, -longest, longest) for part in slow)

    def contract(self, q: Gaussian) -> Gaussian:
        return Gaussian(q.mean, Dense(CONTRACTION * _root(q)))

    def move(self, q: Gaussian, tangent) -> Gaussian:
        a, B = tangent
        step = jnp.tril(B, -1) + jnp.diag(self.scale.factor(jnp.diagonal(B)))
        return Gaussian(q.mean + q.scale.matvec(a), Dense(jnp.tril(jnp.matmul(_root(q), step))))


def _root(q: Gaussian):
    return q.scale.lower  # type: ignore[attr-defined]  # members of this family have a Dense scale


def _spectral_norm(B):
    """An upper bound: (‖B‖₁ ‖B‖_∞)^½."""
    size = jnp.abs(B)
    return jnp.sqrt(jnp.max(jnp.sum(size, axis=0), initial=0.0) * jnp.max(jnp.sum(size, axis=1), initial=0.0))
