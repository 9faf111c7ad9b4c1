"""Path derivative, "sticking the landing" (Roeder, Wu & Duvenaud 2017, eq. 8).

    ∇_ξ E_q[log p(u, D) − log q_ξ(u)] = E_z[∇_u (log p(u, D) − log q(u)) · ∂u/∂ξ],  u = T_ξ(z)

The score E[∂ log q_ξ/∂ξ] that is left out has mean zero. What remains vanishes for every single z where q is the
posterior, so that no noise is left at the optimum if the family contains the posterior.

Objectives that are not averages are treated alike: the doubly reparameterised gradient (Tucker, Lawson, Gu & Maddison
2019) is Σ_k (L_k − L_kk) ∂ℓ_k^path, in the letters of objectives/objective.py.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from credo.batches import in_batches
from credo.methods.vi.gradients.estimator import Estimator, linearised
from credo.methods.vi.gradients.reparameterised import Reparameterised
from credo.methods.vi.objectives.fisher import FisherDivergence
from credo.methods.vi.objectives.objective import WeightObjective


@dataclass(frozen=True)
class StickingTheLanding(Estimator):
    """The default: the least noise near the optimum, and none on Gaussian targets."""

    def surrogate(self, objective, family, q, tangent, log_density, z, known, draws_at_once):
        if isinstance(objective, FisherDivergence):
            return jnp.mean(objective.on_paths(family, q, tangent, log_density, z, draws_at_once))
        assert isinstance(objective, WeightObjective)
        if not objective.is_linear and family.num_strata > 1:
            # scores of single strata do not vanish within a group: nothing may be left out
            return Reparameterised().surrogate(objective, family, q, tangent, log_density, z, None, draws_at_once)
        log_density = linearised(log_density)

        def one(z):
            draw = family.draw(q, tangent, z)
            return log_density(draw.u) - draw.path_log_prob, draw.log_share

        log_weights, log_shares = in_batches(one, z, draws_at_once)
        if objective.is_linear:
            return objective(log_weights, log_shares)
        here = jax.lax.stop_gradient(log_weights)
        weights = jax.vmap(objective.path_weights)(objective.grouped(here))
        along = jnp.sum(weights * objective.grouped(log_weights - here), axis=1)
        return objective(here, jax.lax.stop_gradient(log_shares)) + jnp.mean(along)
