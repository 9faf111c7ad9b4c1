"""Independent normals: q(u) = Π N(m_i, s_i²).

    T(z) = m + s ∘ z;  tangent (a, b): m ← m + s ∘ a,  s ← s ∘ g(b),  g(b) = eᵇ or a softplus (scales.py)

The Fisher information in (a, b) at zero is diag(1, 2), since g(0) = g′(0) = 1.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from credo.linalg.diagonal import Diagonal
from credo.methods.vi.families.family import Draw, Family
from credo.methods.vi.families.scales import Exp, Scale
from credo.posterior.kinds import Gaussian

LONGEST_STEP = 5.0  # of the mean in any coordinate, in standard deviations of q
LARGEST_GROWTH = 0.7  # of a standard deviation in one step: a factor of two
CONTRACTION = 0.7
FLAT = 1e-6  # precisions below this share of the median one carry no scale of their own


@dataclass(frozen=True)
class MeanField(Family):
    """A normal with diagonal covariance. On a Gaussian target its optimum has variances 1/Λ_ii: never too wide.

    ``scale``: how steps move standard deviations, ``vi.Exp()`` or ``vi.Softplus()``; the optimum is the same.
    """

    scale: Scale = field(default_factory=Exp)
    has_correlations: ClassVar[bool] = False

    def start(self, mean, sd) -> Gaussian:
        return Gaussian(mean, Diagonal(sd))

    def around(self, mean, precision) -> Gaussian:
        precision = np.asarray(precision)
        return self.start(mean, 1 / np.sqrt(positive(np.diagonal(precision) if precision.ndim == 2 else precision)))

    def center(self, q: Gaussian):
        return q.mean

    def variances(self, q: Gaussian):
        return q.scale.diagonal()

    def rest(self, q: Gaussian):
        return jnp.zeros_like(q.mean), jnp.zeros_like(q.mean)

    def draw(self, q: Gaussian, tangent, z) -> Draw:
        a, b = tangent
        return gaussian_draw(q, a + self.scale.factor(b) * z)

    def entropy(self, q: Gaussian, tangent):
        return gaussian_entropy(q) + jnp.sum(self.scale.log_factor(tangent[1]))

    def log_probs(self, q: Gaussian, u):
        z = q.scale.solve(u - q.mean)
        return -0.5 * (jnp.square(z) + jnp.log(2 * jnp.pi) + jnp.log(q.scale.diagonal()))

    def natural(self, gradient, step_size):
        g_a, g_b = gradient
        return shortened(step_size * g_a), jnp.clip(0.5 * step_size * g_b, -LARGEST_GROWTH, LARGEST_GROWTH)

    def careful(self, step, share, longest):
        slow = step[0], *(share * part for part in step[1:])
        return tuple(jnp.clip(part, -longest, longest) for part in slow)

    def contract(self, q: Gaussian) -> Gaussian:
        return Gaussian(q.mean, Diagonal(q.scale.matvec(jnp.full_like(q.mean, CONTRACTION))))

    def move(self, q: Gaussian, tangent) -> Gaussian:
        a, b = tangent
        return Gaussian(q.mean + q.scale.matvec(a), Diagonal(q.scale.matvec(self.scale.factor(b))))


def gaussian_draw(q: Gaussian, v) -> Draw:
    """The draw u = T(v); log q(u) = log N(v; 0, I) − log |S| needs no solve."""
    log_prob = -0.5 * jnp.dot(v, v) - 0.5 * v.size * jnp.log(2 * jnp.pi) - q.scale.log_det()
    return Draw(jnp.asarray(q.mean) + q.scale.matvec(v), log_prob)


def gaussian_entropy(q: Gaussian):
    """½ d log 2πe + log |S|."""
    return q.scale.log_det() + 0.5 * q.mean.size * (1.0 + jnp.log(2 * jnp.pi))


def shortened(a):
    """A step of the mean in standard deviations, brought to the longest that is taken at once."""
    length = jnp.max(jnp.abs(a), initial=0.0)  # one coordinate alone may be thrown to where nothing leads back
    return a * jnp.minimum(1.0, LONGEST_STEP / jnp.maximum(length, jnp.finfo(a.dtype).tiny))


def positive(precision: np.ndarray) -> np.ndarray:
    """Absolute values, kept from vanishing: a start needs a finite scale in every direction."""
    size = np.abs(np.where(np.isfinite(precision), precision, 0.0))
    middle = np.median(size[size > 0]) if np.any(size > 0) else 1.0
    return np.where(size > FLAT * middle, size, middle)
