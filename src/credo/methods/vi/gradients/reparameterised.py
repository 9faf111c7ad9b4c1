"""Reparameterised gradients in which what has a closed form is not sampled (Kucukelbir et al. 2017, eq. 7).

    ∇_ξ ( E_z[log p(T_ξ(z), D)] + H(q_ξ) ),  H the entropy of q, in closed form

Where the prior of u is Gaussian its expectation is known too, and only the likelihood is sampled:

    ∇_ξ ( E_z[log p(D | T_ξ(z))] − KL(q_ξ ‖ prior) )

Where q has no entropy in closed form, or the objective is no average of log weights, the whole derivative of sampled
log weights log p(u, D) − log q_ξ(u) is taken, scores included. Of an objective L that is no average the scores enter
with −L_k, whose sum is a constant s whatever the draws, and Σ_k (s/M − L_k) ∂ log q_ξ(u_k) has the same mean, for far
less noise: none where the weights are alike.
That the prior is Gaussian is checked on its density, not read off its name: log-normal parameters qualify.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from credo.batches import in_batches
from credo.linalg.operator import Stored
from credo.linalg.quadratic import quadratic
from credo.methods.vi.families.family import Family
from credo.methods.vi.gradients.estimator import Estimator, by_scores, linearised
from credo.methods.vi.objectives.fisher import FisherDivergence
from credo.methods.vi.objectives.objective import WeightObjective
from credo.model.target import Target
from credo.posterior.kinds import Gaussian, Kind

MAX_DIM = 2_000  # beyond, the whole curvature of the prior would take minutes and gigabytes to look at
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

    def prepare(self, target: Target, has_rows: bool = True) -> GaussianPrior | None:
        return gaussian_prior(target)

    def surrogate(self, objective, family, q, tangent, log_density, z, known: GaussianPrior | None, draws_at_once):
        if isinstance(objective, FisherDivergence):
            return jnp.mean(objective.on_paths(family, q, tangent, log_density, z, draws_at_once))
        assert isinstance(objective, WeightObjective)
        log_density, moved = linearised(log_density), family.move(q, tangent)
        if not objective.is_derivative:
            return _at_fixed_draws(objective, family, q, moved, log_density, z, draws_at_once)
        entropy = family.entropy(q, tangent) if objective.is_linear else None
        if entropy is None or not isinstance(q, Gaussian):
            known = None
        elif known is not None:
            entropy = entropy + known.expectation(moved)

        def one(z):
            draw = family.draw(q, tangent, z)
            log_p = log_density(draw.u)
            if entropy is None:
                return log_p - moved.log_prob_u(draw.u), draw.log_share
            if known is not None:
                log_p = log_p - known.log_prob(draw.u)
            return log_p + entropy, draw.log_share

        if objective.is_linear:
            return objective(*in_batches(one, z, draws_at_once))

        def with_score(z):
            log_weight, log_share = one(z)
            u = jax.lax.stop_gradient(family.draw(q, family.rest(q), z).u)
            return log_weight, log_share, moved.log_prob_u(u)

        log_weights, log_shares, log_prob = in_batches(with_score, z, draws_at_once)
        scores = jnp.exp(log_shares) * (log_prob - jax.lax.stop_gradient(log_prob))
        return objective(log_weights, log_shares) + objective.shift * jnp.mean(scores)


def _at_fixed_draws(objective: WeightObjective, family: Family, q: Kind, moved: Kind, log_density, z, at_once: int):
    """Draws of q at rest and the scores there, for a gradient that is no derivative of log weights."""

    def one(z):
        draw = jax.lax.stop_gradient(family.draw(q, family.rest(q), z))
        return log_density(draw.u) - draw.path_log_prob, jnp.asarray(draw.log_share), moved.log_prob_u(draw.u)

    log_weights, log_shares, log_prob = in_batches(one, z, at_once)
    groups = objective.grouped(log_weights), objective.grouped(log_shares)
    weights = jax.vmap(objective.score_weights)(*groups)
    return by_scores(objective, objective(log_weights, log_shares), weights.ravel(), log_prob)


def gaussian_prior(target: Target) -> GaussianPrior | None:
    """The prior of u where it is Gaussian; None where it is not, has too many dimensions to tell, or is not apart."""
    if target.model.log_factor is not None or target.dim > MAX_DIM:
        return None
    found = quadratic(target.log_prior, target.dim)
    if found.scale is None or not found.residual <= IS_QUADRATIC:
        return None
    diagonal = np.diagonal(found.precision)
    is_diagonal = not (found.precision - np.diag(diagonal)).any()
    return GaussianPrior(np.asarray(found.value), found.mean, diagonal if is_diagonal else found.precision)
