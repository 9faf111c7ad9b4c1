"""The inclusive divergence KL(p ‖ q), by importance weights (Bornschein & Bengio 2015; Tucker et al. 2019).

    KL(p ‖ q) ≈ Σ w̃_k ℓ_k − log (1/M) Σ w_k,   w̃ = w / Σ w
    −∂ KL(p ‖ q_ξ) = E_p[∂ log q_ξ(u)] ≈ Σ w̃_k ∂ log q_ξ(u_k) = E Σ w̃_k (1 − w̃_k) ∂ℓ_k^path

The second form, of path derivatives, has no noise where q is the posterior. Both have the bias of weights that are
normalised by their sum, of order 1/M.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from credo.methods.vi.objectives.objective import WeightObjective, check_inner
from credo.methods.vi.objectives.powers import centred_weights, log_moment


@dataclass(frozen=True)
class InclusiveKL(WeightObjective):
    """−KL(p ‖ q): a Gaussian q gets the posterior's own means and covariances. ``num_inner``: draws that weigh."""

    is_derivative: ClassVar[bool] = False
    shift: ClassVar[float] = 0.0
    num_inner: int = 64

    def __post_init__(self):
        check_inner("InclusiveKL", self.num_inner, 2)

    @property
    def group_size(self) -> int:
        return self.num_inner

    def of_group(self, log_weights, log_shares):
        w = jax.nn.softmax(log_shares + log_weights)
        return log_moment(log_weights, log_shares, 1.0) - jnp.sum(w * log_weights)

    def path_weights(self, log_weights):
        w = jax.nn.softmax(log_weights)
        return w * (1 - w)

    def score_weights(self, log_weights, log_shares):
        return centred_weights(log_weights, log_shares, 1.0)
