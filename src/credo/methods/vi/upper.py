"""The χ² upper bound of the evidence (Dieng, Tran, Ranganath, Paisley & Blei 2017, eq. 4).

    CUBO_2 = ½ log E_q[w²] ≥ log E_q[w] = log p(D),   w = p(u, D)/q(u);   estimated by ½ log (1/S) Σ w_s²

The estimate is biased downwards (Jensen). It is a bound in use only where w² has a mean that draws can find: where the
tail of w has a Pareto k̂ below ½ (moments of w exist below the order 1/k). Its error by the delta method takes the
fourth moment, k̂ < ¼; between the two it is unknown.
"""

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from credo.status import Estimate

LARGEST_K = 0.5  # moments of order two
LARGEST_K_OF_ERROR = 0.25  # moments of order four


def evidence_upper(log_weights: Float[np.ndarray, " S"], k_hat: float) -> Estimate | None:
    """The bound with its standard error in nats (NaN where that is unknown); None where it would be none in use."""
    if not k_hat < LARGEST_K or not np.all(log_weights < np.inf):
        return None
    num_draws = len(log_weights)
    log_mean = logsumexp(2 * log_weights) - np.log(num_draws)
    relative = np.exp(2 * log_weights - log_mean)  # w² over its mean
    error = 0.5 * np.std(relative, ddof=1) / np.sqrt(num_draws) if k_hat < LARGEST_K_OF_ERROR else np.nan
    return Estimate(float(0.5 * log_mean), float(error), "upper bound")
