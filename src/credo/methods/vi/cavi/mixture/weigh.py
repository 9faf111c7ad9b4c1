"""How right q is: draws of its parameters weighed against the model, labels summed out.

    log w = Σ_n log Σ_k π_k N(x_n; μ_k, Λ_k⁻¹) + log p(π, μ, Λ) − log q(π, μ, Λ)

The mean of log w exceeds the ELBO by what the responsibilities' independence of the parameters costs; the spread of w
says how far q is from the posterior, around the one of K! orders of the components that it covers.
"""

import numpy as np
from jaxtyping import Float
from scipy.special import gammaln

from credo.methods.vi.cavi.mixture.factors import NormalWishartFactor, log_det_of_root, plain_coefficients
from credo.methods.vi.cavi.mixture.responsibilities import Rows

NUMBERS_AT_ONCE = 2_000_000  # responsibilities of several draws for a part of the rows


def weigh(
    factor: NormalWishartFactor,
    statistics: Float[np.ndarray, "K P"],
    rows: Rows,
    rng: np.random.Generator,
    num_draws: int,
    is_used,
) -> tuple[Float[np.ndarray, "draw dim"], Float[np.ndarray, " draw"]]:
    """Draws as log weights, means and log variances of the components ``is_used`` (K,), and log w."""
    q, features = factor.parameters(statistics), factor.features
    weights, means, half = factor.draw(q, rng, num_draws)
    weights = np.maximum(weights, np.finfo(float).tiny)  # those of empty components underflow
    inverse = np.linalg.inv(half)
    precision = np.swapaxes(inverse, -1, -2) @ inverse
    log_det = -2 * np.linalg.slogdet(half)[1]  # of Λ, a block
    K = len(statistics)
    coefficients = plain_coefficients(
        features,
        np.log(weights).ravel(),
        *(a.reshape(num_draws * K, *a.shape[2:]) for a in (means, precision, log_det)),
    ).reshape(num_draws, K, -1)
    log_weights = log_likelihoods(rows, coefficients) + _log_ratio(factor, q, weights, means, precision, log_det)
    variances = np.einsum("skbij,skbij->skbi", half, half)
    scalars = [np.log(weights)[..., None], means.reshape(num_draws, K, -1), np.log(variances).reshape(num_draws, K, -1)]
    return np.concatenate(scalars, axis=2)[:, is_used].reshape(num_draws, -1), log_weights


def log_likelihoods(rows: Rows, coefficients: Float[np.ndarray, "draw K P"]) -> Float[np.ndarray, " draw"]:
    """Σ_n log Σ_k exp(c_k · φ(x_n)) at each draw's c."""
    num_draws, K, _ = coefficients.shape
    at_once = max(1, NUMBERS_AT_ONCE // (K * min(len(rows), rows.rows_at_once)))
    total = np.zeros(num_draws)
    with rows:
        for i in range(0, num_draws, at_once):
            some = coefficients[i : i + at_once]
            total[i : i + at_once] = rows.log_normalisers(some.reshape(-1, some.shape[2]), K)
    return total


def _log_ratio(factor: NormalWishartFactor, q, weights, means, precision, log_det) -> Float[np.ndarray, " draw"]:
    """log p − log q of the parameters: the prior is q's own family at other numbers."""
    b, K = factor.features.block_size, len(q.alpha)
    dirichlet = (
        gammaln(K * factor.alpha)
        - K * gammaln(factor.alpha)
        - gammaln(np.sum(q.alpha))
        + np.sum(gammaln(q.alpha))
        + np.sum((factor.alpha - q.alpha) * np.log(weights), axis=1)
    )
    prior_root = np.linalg.cholesky(factor.scale)
    nu = q.nu[:, None]
    wishart = (
        0.5 * (factor.nu * log_det_of_root(prior_root) - nu * log_det_of_root(q.root))
        - 0.5 * (factor.nu - nu) * b * np.log(2)
        + factor.log_gamma(nu)
        - factor.log_gamma(factor.nu)
        + 0.5 * (factor.nu - nu) * log_det
        - 0.5 * np.einsum("kbij,skbij->skb", factor.scale - q.scale, precision)
    )
    beta = q.beta[:, None]

    def square(offset):
        return np.einsum("skbi,skbij,skbj->skb", offset, precision, offset)

    normal = 0.5 * b * np.log(factor.beta / beta)
    normal = normal - 0.5 * factor.beta * square(means - factor.m) + 0.5 * beta * square(means - q.m)
    return dirichlet + np.sum(wishart + normal, axis=(1, 2))
