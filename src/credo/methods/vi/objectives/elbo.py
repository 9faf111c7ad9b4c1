"""The evidence lower bound E_q[log p(u, D) − log q(u)] = log p(D) − KL(q ‖ p(· | D))."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from credo.methods.vi.objectives.objective import WeightObjective


@dataclass(frozen=True)
class ELBO(WeightObjective):
    """Maximised by the member of the family nearest to the posterior in KL(q ‖ p), which seeks a mode."""

    is_linear: ClassVar[bool] = True

    def of_group(self, log_weights, log_shares):
        return jnp.mean(jnp.exp(log_shares) * log_weights)

    def path_weights(self, log_weights):
        return jnp.full_like(log_weights, 1 / log_weights.size)

    def score_weights(self, log_weights, log_shares):
        return jnp.zeros_like(log_weights)
