"""The evidence lower bound E_q[log p(u, D) − log q(u)] = log p(D) − KL(q ‖ p(· | D))."""

from dataclasses import dataclass

import jax.numpy as jnp

from credo.methods.vi.objectives.objective import Objective


@dataclass(frozen=True)
class ELBO(Objective):
    """Maximised by the member of the family nearest to the posterior in KL(q ‖ p), which seeks a mode."""

    def __call__(self, log_weights):
        return jnp.mean(log_weights)
