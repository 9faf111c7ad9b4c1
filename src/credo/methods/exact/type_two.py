"""Type-II maximum likelihood: the prior and noise precisions of linear regression that maximise its evidence.

    y ~ N(0, A/β),  A = I + X G Xᵀ,  G = diag(g),  g_j = β/α_j,  Q = yᵀA⁻¹y
    L(g, β) = (N/2) log(β/2π) − ½ β Q − ½ log |A|

Where β is not given, it is maximised out: β = N/Q, and L(g) = −(N/2) (log(2πQ/N) + 1) − ½ log |A|.

One alpha: g_j = 1/λ for all j; the singular values of X make L a function of one variable, scanned and polished.
"""

from typing import NamedTuple

import numpy as np
from scipy.linalg import svd

from credo.status import CredoError


class Maximum(NamedTuple):
    """alpha (D,) with inf where a feature is pruned, beta, log p(y | alpha, beta) and the largest |∂/∂ log alpha|.

    ``is_noiseless``: L has no maximum but a finite limit at beta = inf, where N ≤ D features fit y exactly; this is a
    point within 1e-6 of the limit.
    """

    alpha: np.ndarray
    beta: float
    log_evidence: float
    gradient: float
    is_noiseless: bool = False


class Data(NamedTuple):
    """``x`` (r, D) and ``y`` (r,), the data or any rotation of their ``num_rows`` rows; beta where it is given."""

    x: np.ndarray
    y: np.ndarray
    num_rows: int
    beta: float | None = None

    def noise(self, q):
        """1/β at Q = ``q``."""
        return q / self.num_rows if self.beta is None else np.full_like(q, 1 / self.beta)

    def objective(self, q, log_det):
        """L from Q and log |A|."""
        noise = self.noise(q)
        return -0.5 * (self.num_rows * np.log(2 * np.pi * noise) + q / noise + log_det)


def one_alpha(data: Data) -> Maximum:
    """The maximum over one alpha for all features, and beta.

    Raises CredoError where the evidence is unbounded as beta grows.
    """
    u, s, _ = svd(data.x, full_matrices=False)
    num_rows, dim = data.num_rows, data.x.shape[1]
    is_used = s > s.max() * max(num_rows, dim) * np.finfo(float).eps
    s2, t = s[is_used] ** 2, u[:, is_used].T @ data.y
    outside = residual_outside(data, data.y - u[:, is_used] @ t, num_used=len(s2))

    def residual(ratio):
        return outside + np.sum(t**2 / (1 + ratio), axis=-1)

    def evidence(log_lambda):
        ratio = s2 * np.exp(-np.asarray(log_lambda))[..., None]
        return data.objective(residual(ratio), np.sum(np.log1p(ratio), axis=-1))

    def slope(log_lambda):
        ratio = s2 * np.exp(-np.asarray(log_lambda))[..., None]
        explained = np.sum(t**2 * ratio / (1 + ratio) ** 2, axis=-1) / data.noise(residual(ratio))
        return 0.5 * (np.sum(ratio / (1 + ratio), axis=-1) - explained)

    def answer(log_lambda, is_noiseless=False):
        beta = 1 / float(data.noise(residual(s2 * np.exp(-log_lambda))))
        alpha = np.full(dim, beta * np.exp(log_lambda))
        return Maximum(alpha, beta, float(evidence(log_lambda)), abs(float(slope(log_lambda))), is_noiseless)

    nothing = answer(np.inf)
    if len(s2) == 0:
        return nothing
    # L rises with λ below the lower end (unless the fit can be perfect), and is monotone above the upper end
    least_noise = float(data.noise(np.asarray(outside)))
    explained = np.sum(t**2 / s2)
    rises_below = least_noise * len(s2) / explained if least_noise > 0 < explained else np.inf
    grid = np.arange(np.log(min(s2.min(), rises_below)) - 7, np.log(s2.max() * num_rows) + 10, 0.1)
    slopes = slope(grid)
    tops = np.flatnonzero((slopes[:-1] > 0) & (slopes[1:] <= 0))
    if len(tops):
        best = answer(max((_root(slope, grid[top], grid[top + 1]) for top in tops), key=evidence))
    elif least_noise == 0:
        best = answer(np.log(1e-8 * s2.min() / num_rows), is_noiseless=True)
    else:
        best = nothing
    return best if best.log_evidence > nothing.log_evidence else nothing


def residual_outside(data: Data, residual: np.ndarray, num_used: int) -> float:
    """‖y − its projection on the features‖², 0 where that is rounding error; raises where L is unbounded."""
    size, total = float(np.sum(residual**2)), float(np.sum(data.y**2))
    rounding = 100 * np.finfo(float).eps * np.sqrt(max(data.num_rows, num_used))
    is_rounding = size <= rounding**2 * total
    if data.beta is None and (data.num_rows < 2 or total == 0.0 or (is_rounding and num_used < data.num_rows)):
        raise noiseless()
    return 0.0 if is_rounding else size


def noiseless() -> CredoError:
    """The evidence grows, or stays level, as the noise goes to zero."""
    return CredoError(
        "The evidence has no interior maximum: it is highest where the features fit y exactly (beta = inf). Give "
        "noise_precision, add rows or drop features."
    )


def _root(function, low: float, high: float) -> float:
    """The zero of ``function`` in [low, high], where it changes sign, to the last digits."""
    from scipy.optimize import brentq

    return float(brentq(function, low, high, xtol=1e-14, rtol=1e-14))  # type: ignore[arg-type]
