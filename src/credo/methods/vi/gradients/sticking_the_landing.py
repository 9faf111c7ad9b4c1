"""Path derivative, "sticking the landing" (Roeder, Wu & Duvenaud 2017, eq. 8).

    ∇_ξ E_q[log p(u, D) − log q_ξ(u)] = E_z[∇_u (log p(u, D) − log q(u)) · ∂u/∂ξ],  u = T_ξ(z)

The score E[∂ log q_ξ/∂ξ] that is left out has mean zero. What remains vanishes for every single z where q is the
posterior, so that no noise is left at the optimum if the family contains the posterior.
"""

from dataclasses import dataclass

from credo.methods.vi.gradients.estimator import Estimator, in_batches, linearised


@dataclass(frozen=True)
class StickingTheLanding(Estimator):
    """The default: the least noise near the optimum, and none on Gaussian targets."""

    def surrogate(self, objective, family, q, tangent, log_density, z, known, draws_at_once):
        log_density = linearised(log_density)

        def one(z):
            draw = family.draw(q, tangent, z)
            return log_density(draw.u) - draw.path_log_prob, draw.log_share

        return objective(*in_batches(one, z, draws_at_once))
