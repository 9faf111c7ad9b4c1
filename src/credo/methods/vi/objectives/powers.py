"""Bounds of the evidence by moments of the weights w = p(u, D)/q(u).

    L_r = (1/r) log (1/M) Σ_k w_k^r,   w̃_k = w_k^r / Σ w^r:   ∂L/∂ℓ_k = w̃_k,   L_k − L_kk = (1 − r) w̃_k + r w̃_k²

r = 1: the importance-weighted bound (Burda, Grosse & Salakhutdinov 2016), with the doubly reparameterised gradient
w̃² (Tucker et al. 2019). r = 1 − α: Rényi's (Li & Turner 2016). r = 2: χ², from above (Dieng et al. 2017).
For M → ∞, L_r rises with r: to the ELBO at r = 0, log p(D) at r = 1, an upper bound beyond.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from credo.methods.vi.objectives.objective import WeightObjective, check_inner
from credo.status import CredoError


@dataclass(frozen=True)
class ImportanceWeighted(WeightObjective):
    """E[log (1/M) Σ w_k] over groups of M = ``num_inner`` draws: a lower bound of log p(D) that rises with M.

    What it maximises is the bound, by a q that covers the posterior; q alone can be a poorer approximation than the
    ELBO's. CredoError for groups of less than one draw.
    """

    num_inner: int = 8

    def __post_init__(self):
        check_inner("ImportanceWeighted", self.num_inner, 1)

    @property
    def group_size(self) -> int:
        return self.num_inner

    def of_group(self, log_weights, log_shares):
        return log_moment(log_weights, log_shares, 1.0)

    def path_weights(self, log_weights):
        return path_weights(log_weights, 1.0)

    def score_weights(self, log_weights, log_shares):
        return -centred_weights(log_weights, log_shares, 1.0)


@dataclass(frozen=True)
class Renyi(WeightObjective):
    """log p(D) − D_α(q ‖ p) up to the bias of M = ``num_inner`` draws, with D_α Rényi's divergence.

    ``alpha``: 1 is the ELBO, 0 the importance-weighted bound; between them q grows from covering a mode to covering
    the posterior; above 1 it keeps within a mode. CredoError for an α that is negative or not finite.
    """

    alpha: float = 0.5
    num_inner: int = 32

    def __post_init__(self):
        check_inner("Renyi", self.num_inner, 1)
        if not np.isfinite(self.alpha):
            raise CredoError(f"Renyi(alpha={self.alpha}): give a finite order, such as 0.5.")
        if self.alpha < 0:
            raise CredoError(
                f"Renyi(alpha={self.alpha}): below 0 it bounds the evidence from above, and what maximises an upper "
                "bound diverges. Give an order from 0, or ChiUpper(), whose upper bound is minimised."
            )

    @property
    def group_size(self) -> int:
        return self.num_inner

    def of_group(self, log_weights, log_shares):
        return log_moment(log_weights, log_shares, 1.0 - self.alpha)

    def path_weights(self, log_weights):
        return path_weights(log_weights, 1.0 - self.alpha)

    def score_weights(self, log_weights, log_shares):
        return -centred_weights(log_weights, log_shares, 1.0 - self.alpha)


@dataclass(frozen=True)
class ChiUpper(WeightObjective):
    """−½ log E_q[w²]: q that minimises χ²(p ‖ q) covers the posterior, and ½ log E_q[w²] ≥ log p(D).

    M = ``num_inner`` draws estimate it with a bias downwards: it is a bound in use only where w² has a mean with an
    error, which asks for a Pareto k̂ below 0.5. A q that misses the posterior sees small weights alone, and looks good:
    the fewer draws in how many dimensions, the nearer to the posterior must it begin.
    """

    shift: ClassVar[float] = -1.0
    num_inner: int = 64

    def __post_init__(self):
        check_inner("ChiUpper", self.num_inner, 2)

    @property
    def group_size(self) -> int:
        return self.num_inner

    def of_group(self, log_weights, log_shares):
        return -log_moment(log_weights, log_shares, 2.0)

    def path_weights(self, log_weights):
        return -path_weights(log_weights, 2.0)

    def score_weights(self, log_weights, log_shares):
        return centred_weights(log_weights, log_shares, 2.0)


def log_moment(log_weights, log_shares, power: float):
    """L_r; its limit for r → 0 is the mean of the log weights."""
    if power == 0:
        return jnp.mean(jnp.exp(log_shares) * log_weights)
    return (jax.nn.logsumexp(log_shares + power * log_weights) - jnp.log(float(log_weights.size))) / power


def path_weights(log_weights, power: float):
    """L_k − L_kk."""
    w = jax.nn.softmax(power * log_weights)
    return (1 - power) * w + power * w**2


def centred_weights(log_weights, log_shares, power: float):
    """L_k less its mean: what multiplies scores, of which Σ_k share_k E[score_k] is zero."""
    return jax.nn.softmax(log_shares + power * log_weights) - jnp.exp(log_shares) / log_weights.size
