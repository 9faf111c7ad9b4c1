"""The evidence lower bound E_q[log p(u, D) − log q(u)] = log p(D) − KL(q ‖ p(· | D))."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float


@dataclass(frozen=True)
class ELBO:
    """Maximised by the member of the family nearest to the posterior in KL(q ‖ p), which seeks a mode."""

    def __call__(self, log_weights: Float[Array, " K"]) -> Float[Array, ""]:
        """The estimate that K log weights log p(u_k, D) − log q(u_k) give: their mean."""
        return jnp.mean(log_weights)
