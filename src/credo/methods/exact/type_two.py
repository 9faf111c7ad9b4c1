"""Type-II maximum likelihood: the prior and noise precisions of linear regression that maximise its evidence.

    y ~ N(0, A/β),  A = I + X G Xᵀ,  G = diag(g),  g_j = β/α_j

β is maximised out: β = N/Q with Q = yᵀA⁻¹y, which leaves

    L(g) = −(N/2) (log(2πQ/N) + 1) − ½ log |A|.

One alpha: g_j = 1/λ for all j; the singular values of X make L a function of one variable, scanned and polished.
"""

from typing import NamedTuple

import numpy as np
from scipy.linalg import svd

from credo.status import CredoError


class Maximum(NamedTuple):
    """alpha (D,) with inf where a feature is pruned, beta, log p(y | alpha, beta) and the largest |∂/∂ log alpha|."""

    alpha: np.ndarray
    beta: float
    log_evidence: float
    gradient: float


def one_alpha(x: np.ndarray, y: np.ndarray, num_rows: int) -> Maximum:
    """The maximum over one alpha for all features and beta.

    ``x`` (r, D) and ``y`` (r,) are the data, or any rotation of their ``num_rows`` rows.
    Raises CredoError where the evidence has no maximum at a finite beta.
    """
    u, s, _ = svd(x, full_matrices=False)
    is_used = s > s.max() * max(num_rows, x.shape[1]) * np.finfo(float).eps
    s2, t = s[is_used] ** 2, u[:, is_used].T @ y
    outside = residual_outside(y, y - u[:, is_used] @ t, num_rows, num_used=len(s2))
    total = outside + float(t @ t)

    def residual(ratio):
        return outside + np.sum(t**2 / (1 + ratio), axis=-1)

    def evidence(log_lambda):
        ratio = s2 * np.exp(-np.asarray(log_lambda))[..., None]
        return profile(residual(ratio), np.sum(np.log1p(ratio), axis=-1), num_rows)

    def slope(log_lambda):
        ratio = s2 * np.exp(-np.asarray(log_lambda))[..., None]
        share = np.sum(t**2 * ratio / (1 + ratio) ** 2, axis=-1) / residual(ratio)
        return 0.5 * (np.sum(ratio / (1 + ratio), axis=-1) - num_rows * share)

    nothing = Maximum(np.full(x.shape[1], np.inf), num_rows / total, float(profile(total, 0.0, num_rows)), 0.0)
    if len(s2) == 0:
        return nothing
    # L rises with λ below the lower end (unless the fit can be perfect), and is monotone above the upper end
    rises_below = outside * len(s2) / (num_rows * np.sum(t**2 / s2)) if outside > 0 else s2.min()
    grid = np.arange(np.log(min(s2.min(), rises_below)) - 7, np.log(s2.max() * num_rows) + 10, 0.1)
    slopes = slope(grid)
    tops = np.flatnonzero((slopes[:-1] > 0) & (slopes[1:] <= 0))
    if len(tops) == 0:
        if slopes[0] < 0 and evidence(grid[0]) > nothing.log_evidence:
            raise noiseless()
        return nothing
    polished = [_root(slope, grid[top], grid[top + 1]) for top in tops]
    best = max(polished, key=evidence)
    if evidence(best) < nothing.log_evidence:
        return nothing
    beta = float(num_rows / residual(s2 * np.exp(-best)))
    return Maximum(np.full(x.shape[1], beta * np.exp(best)), beta, float(evidence(best)), abs(float(slope(best))))


def profile(q, log_det, num_rows: int):
    """L(g) from Q and log |A|."""
    return -0.5 * num_rows * (np.log(2 * np.pi * q / num_rows) + 1) - 0.5 * log_det


def residual_outside(y: np.ndarray, residual: np.ndarray, num_rows: int, num_used: int) -> float:
    """‖y − its projection on the features‖², 0 where that is rounding error; raises where no noise is left at all."""
    size, total = float(np.sum(residual**2)), float(np.sum(y**2))
    rounding = 100 * np.finfo(float).eps * np.sqrt(max(num_rows, num_used))
    is_rounding = size <= rounding**2 * total
    if num_rows < 2 or total == 0.0 or (is_rounding and num_used < num_rows):
        raise noiseless()
    return 0.0 if is_rounding else size


def noiseless() -> CredoError:
    """The evidence grows, or stays level, as the noise goes to zero."""
    return CredoError(
        "The evidence has no interior maximum: the features fit y exactly (beta would be infinite). Give the noise "
        "precision yourself through LinearRegression(alpha=…, beta=…), drop features or add rows."
    )


def _root(function, low: float, high: float) -> float:
    """The zero of ``function`` in [low, high], where it changes sign, to the last digits."""
    from scipy.optimize import brentq

    return float(brentq(function, low, high, xtol=1e-14, rtol=1e-14))  # type: ignore[arg-type]
