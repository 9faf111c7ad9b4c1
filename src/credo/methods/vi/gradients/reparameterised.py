"""Reparameterised gradients in which what has a closed form is not sampled (Kucukelbir et al. 2017, eq. 7).

    ∇_ξ ( E_z[log p(T_ξ(z), D)] + H(q_ξ) ),  H the entropy of q, in closed form

Where the prior of u is Gaussian its expectation is known too, and only the likelihood is sampled:

    ∇_ξ ( E_z[log p(D | T_ξ(z))] − KL(q_ξ ‖ prior) )

That the prior is Gaussian is checked on its density, not read off its name: log-normal parameters qualify.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from credo.linalg.operator import Stored
from credo.linalg.quadratic import quadratic
from credo.methods.vi.gradients.estimator import Estimator, in_batches, linearised
from credo.model.target import Target
from credo.posterior.kinds import Gaussian, Kind

IS_QUADRATIC = 1e-8  # relative residual of the log prior: what rounding leaves


class GaussianPrior(NamedTuple):
    """log p(u) = value − ½ (u − mean)ᵀ P (u − mean); ``precision`` P (dim, dim), or its diagonal (dim,)."""

    value: Float[Stored, ""]
    mean: Float[Stored, " dim"]
    precision: Float[Stored, "..."]

    def log_prob(self, u):
        deviation = u - self.mean
        pulled = self.precision * deviation if self.precision.ndim == 1 else jnp.matmul(self.precision, deviation)
        return self.value - 0.5 * jnp.dot(deviation, pulled)

    def expectation(self, q: Kind):
        """E_q[log p(u)] of a Gaussian q."""
        assert isinstance(q, Gaussian)
        P, Σ = self.precision, q.scale
        return self.log_prob(q.mean) - 0.5 * jnp.sum(P * (Σ.diagonal() if P.ndim == 1 else Σ.dense()))


@dataclass(frozen=True)
class Reparameterised(Estimator):
    """Closed-form entropy, and closed-form KL where the prior of u is Gaussian."""

    def prepare(self, target: Target) -> GaussianPrior | None:
        return gaussian_prior(target)

    def surrogate(self, objective, family, q, tangent, log_density, z, known: GaussianPrior | None, draws_at_once):
        log_density, moved = linearised(log_density), family.move(q, tangent)
        entropy = family.entropy(q, tangent) if objective.is_linear else None
        if entropy is None:
            known = None
        elif known is not None and isinstance(q, Gaussian):
            entropy = entropy + known.expectation(moved)

        def one(z):
            draw = family.draw(q, tangent, z)
            log_p = log_density(draw.u)
            if entropy is None:
                return log_p - moved.log_prob_u(draw.u), draw.log_share
            if known is not None and isinstance(q, Gaussian):
                log_p = log_p - known.log_prob(draw.u)
            return log_p + entropy, draw.log_share

        return objective(*in_batches(one, z, draws_at_once))


def gaussian_prior(target: Target) -> GaussianPrior | None:
    """The prior of u where it is Gaussian; None where it is not, or where the target has no prior of its own."""
    if target.model.log_factor is not None:
        return None
    found = quadratic(target.log_prior, target.dim)
    if found.scale is None or not found.residual <= IS_QUADRATIC:
        return None
    diagonal = np.diagonal(found.precision)
    is_diagonal = not (found.precision - np.diag(diagonal)).any()
    return GaussianPrior(np.asarray(found.value), found.mean, diagonal if is_diagonal else found.precision)
