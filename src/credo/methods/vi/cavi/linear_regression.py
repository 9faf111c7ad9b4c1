"""Linear regression with unknown noise and prior precisions, by factors q(w) q(β) q(α) (Bishop 2006, section 10.3).

    y | w, β ~ N(X w, I/β),  w_j | α ~ N(0, 1/α_j),  β ~ Gamma(a, b),  α_j ~ Gamma(c, d)
    (``ard``: one α a feature; otherwise one α for all, and Σ_j over α below is that one)

    q(w) = N(m, S):          S⁻¹ = diag(E α) + E β XᵀX,  m = E β S Xᵀy
    q(β) = Gamma(a', b'):    a' = a + N/2,  b' = b + ½ E‖y − X w‖²,  E‖y − X w‖² = ‖y − X m‖² + tr(X S Xᵀ)
    q(α_j) = Gamma(c', d'):  c' = c + n_j/2,  d'_j = d + ½ E w_j²,  E w_j² = m_j² + S_jj     (n_j = 1)
                             c' = c + D/2,    d' = d + ½ Σ_j E w_j²                          (one α)
    ELBO = (N/2) (E log β − log 2π) − ½ E β E‖y − X w‖² + ½ Σ_j (E log α_j − E α_j E w_j²) + ½ log |S| + D/2
           − KL(q(β) ‖ p(β)) − Σ_j KL(q(α_j) ‖ p(α_j))

The data enter through the triangle T of an orthogonal triangularisation of [X y], which has D + 1 rows whatever N is
and loses no digits, as XᵀX would. Rᵀ R = S⁻¹ comes from that of [√(E β) T; √(E α) 0] likewise.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpyro.distributions as dist
from numpy.typing import ArrayLike
from scipy.linalg import solve_triangular
from scipy.special import gammaln

from credo.methods.exact import checks
from credo.methods.exact.family import Predictive, distribution, settle
from credo.methods.exact.information import Information, triangularise
from credo.methods.vi.cavi.gamma import Gamma, gamma_prior, normal_predictive
from credo.methods.vi.cavi.ready import ReadyModel, lower_root
from credo.methods.vi.cavi.response import linear_response
from credo.methods.vi.cavi.sweeps import Ascent, Leap, ascend
from credo.model.data import check_order

LOG_2PI = float(np.log(2 * np.pi))
NAMES = "weights", "noise_precision", "weight_precision"


class Rows(NamedTuple):
    """``size`` N and the triangle T of [X y], apart: ``x`` (k, D) and ``y`` (k,), k ≤ D + 1."""

    size: int
    x: np.ndarray
    y: np.ndarray


class Weights(NamedTuple):
    """q(w): ``mean`` (D,) and ``half`` (D, D), R⁻¹, so that S = half halfᵀ; ``log_det``: ½ log |S|."""

    mean: np.ndarray
    half: np.ndarray
    log_det: float

    @property
    def squares(self) -> np.ndarray:
        """E w_j² (D,)."""
        return self.mean**2 + np.sum(self.half**2, axis=1)

    def residual(self, rows: Rows) -> float:
        """E‖y − X w‖²."""
        return float(np.sum((rows.y - rows.x @ self.mean) ** 2) + np.sum((rows.x @ self.half) ** 2))


@dataclass(frozen=True, eq=False, repr=False)
class LinearRegression(ReadyModel):
    """y = X w + ε with the precisions of weights and noise unknown. The design matrix is the user's own.

    ``ard``: a prior precision for each feature, which shrinks those that the data do not support (automatic relevance
    determination), in place of one for all. ``noise_prior``, ``weight_prior``: (shape, rate) of the Gamma priors of the
    precisions of the noise and of the weights; the defaults are weak where y and the features have spreads near one.
    Parameter names: ``weights``, ``noise_precision``, ``weight_precision``. ``log_evidence`` is a lower bound. The
    verdict weighs weights and noise with the prior precisions integrated out. ``credo.fit(target, LinearRegression())``
    gives a ``Posterior`` where a ``Model`` has these names, priors and this likelihood, and checks that it has.
    Raises CredoError for shapes that do not meet, values that are not finite and priors that are not positive.

    >>> x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, -1.0]])
    >>> model = LinearRegression().update(x, [1.1, 2.1, 2.9, -1.2])
    >>> model.mean()["weights"].round(2)
    array([0.93, 2.06])
    """

    ard: bool = False
    noise_prior: tuple[float, float] = (1e-3, 1e-3)
    weight_prior: tuple[float, float] = (1e-3, 1e-3)

    def __post_init__(self):
        super().__post_init__()
        settle(
            self,
            noise_prior=tuple(gamma_prior("noise_prior", self.noise_prior)),
            weight_prior=tuple(gamma_prior("weight_prior", self.weight_prior)),
        )

    def update(self, x: ArrayLike, y: ArrayLike) -> "LinearRegression":
        """All data so far and rows ``x`` (N, D) with responses ``y`` (N,)."""
        check_order(x=x, y=y)
        before = self.statistics
        x = checks.matrix("x", x, None if before is None else before.x.shape[1])
        y = checks.vector("y", y)
        checks.same_length("x", x, "y", y)
        start = np.zeros((0, x.shape[1] + 1)) if before is None else np.column_stack([before.x, before.y])
        triangle = triangularise(start, x, y)
        size = len(y) + (0 if before is None else before.size)
        return self._gathered(Rows(size, triangle[:, :-1], triangle[:, -1]))

    def climb(self, deadline: float = np.inf) -> Ascent:
        rows, (c, d) = self.statistics, self.weight_prior
        # half of y is noise, and each weight alone explains y: from such wide priors no feature starts out dead
        spread = np.sum(rows.y**2) / rows.size + self.noise_prior[1]
        alpha = np.sum(rows.x**2, axis=0) / (rows.size * spread)
        alpha = np.where(alpha > 0, alpha, c / d)
        start = {
            "noise_precision": Gamma(1.0, spread / 2),
            "weight_precision": Gamma(np.ones(len(alpha)), 1 / alpha) if self.ard else Gamma(1.0, 1 / alpha.mean()),
        }
        return ascend(
            {"weights": self._weights, "noise_precision": self._noise, "weight_precision": self._relevance},
            self._bound,
            start,
            rows,
            tolerance=self.tolerance,
            relative_tolerance=1e-13,
            max_sweeps=self.max_sweeps,
            deadline=deadline,
            leap=Leap(_log_precisions, _with_log_precisions),
        )

    def _weights(self, q, rows: Rows) -> Weights:
        num_weights = rows.x.shape[1]
        alpha = np.broadcast_to(q["weight_precision"].mean, (num_weights,))
        prior = Information(np.diag(np.sqrt(alpha)), np.zeros(num_weights))
        now, _ = prior.absorb(rows.x, rows.y, scale=float(np.sqrt(q["noise_precision"].mean)))
        half = solve_triangular(now.root, np.eye(num_weights))
        return Weights(now.mean, half, -now.log_det)

    def _noise(self, q, rows: Rows) -> Gamma:
        a, b = self.noise_prior
        return Gamma(a + rows.size / 2, b + 0.5 * q["weights"].residual(rows))

    def _relevance(self, q, rows: Rows) -> Gamma:
        (c, d), squares = self.weight_prior, q["weights"].squares
        if self.ard:
            return Gamma(np.full(len(squares), c + 0.5), d + 0.5 * squares)
        return Gamma(c + 0.5 * len(squares), d + 0.5 * np.sum(squares))

    def _bound(self, q, rows: Rows) -> float:
        w, beta, alpha = q["weights"], q["noise_precision"], q["weight_precision"]
        num_weights = len(w.mean)
        likelihood = 0.5 * rows.size * (beta.mean_log - LOG_2PI) - 0.5 * beta.mean * w.residual(rows)
        # the 2π of the prior of w and of its entropy cancel
        fits = 0.5 * np.sum(np.broadcast_to(alpha.mean_log, (num_weights,)) - alpha.mean * w.squares)
        divergence = beta.divergence(Gamma(*self.noise_prior)) + alpha.divergence(Gamma(*self.weight_prior))
        return float(likelihood + fits + w.log_det + num_weights / 2 - divergence)

    @property
    def work(self) -> int:
        return 2 * self.statistics.x.size

    def weigh(self, generator, n):
        q, rows, beta_prior = self.ascent.factors, self.statistics, Gamma(*self.noise_prior)
        mean, half, log_det = q["weights"]
        z = generator.normal(size=(n, len(mean)))
        w, beta = mean + z @ half.T, q["noise_precision"].sample(generator, n)
        squares = np.sum((rows.y - w @ rows.x.T) ** 2, axis=1)
        log_joint = 0.5 * (rows.size * (np.log(beta) - LOG_2PI) - beta * squares) + beta_prior.log_prob(beta)
        log_joint += self._log_prior(w)
        log_q = -0.5 * np.sum(z**2 + LOG_2PI, axis=1) - log_det + q["noise_precision"].log_prob(beta)
        return np.column_stack([w, beta]), log_joint - log_q

    def linear_response(self) -> dict[str, np.ndarray]:
        """Covariances of the weights (D, D), of the noise precision, and of the prior precisions (D, D), or of one."""
        return linear_response(self.statistics, *(self.ascent.factors[name] for name in NAMES))

    def _log_prior(self, w: np.ndarray) -> np.ndarray:
        """log ∫ p(w | α) p(α) dα of rows ``w`` (n, D): Student's t, a feature each or all together."""
        c, d = self.weight_prior
        size = 1 if self.ard else w.shape[1]
        squares = w**2 if self.ard else np.sum(w**2, axis=1, keepdims=True)
        normaliser = gammaln(c + size / 2) - gammaln(c) + c * np.log(d) - 0.5 * size * LOG_2PI
        return np.sum(normaliser - (c + size / 2) * np.log(d + 0.5 * squares), axis=1)

    @property
    def distributions(self) -> dict[str, dist.Distribution]:  # type: ignore[override]
        q = self.ascent.factors
        return {
            "weights": distribution(
                dist.MultivariateNormal, q["weights"].mean, scale_tril=lower_root(q["weights"].half)
            ),
            "noise_precision": q["noise_precision"].distribution,
            "weight_precision": q["weight_precision"].distribution,
        }

    def predictive(self, x: ArrayLike) -> Predictive:
        """Responses at rows ``x`` (M, D), each by itself: ∫ N(x m, x S xᵀ + 1/β) q(β) dβ, by quadrature."""
        w = self.ascent.factors["weights"]
        x = checks.matrix("x", x, len(w.mean))
        return normal_predictive(x @ w.mean, np.sum((x @ w.half) ** 2, axis=1), self.ascent.factors["noise_precision"])


def _log_precisions(q) -> np.ndarray:
    """What q(w) is computed from."""
    return np.log(np.append(q["noise_precision"].mean, q["weight_precision"].mean))


def _with_log_precisions(q, logs: np.ndarray):
    beta, *alpha = np.exp(np.clip(logs, -300, 300))
    weights = np.array(alpha) if np.ndim(q["weight_precision"].mean) else alpha[0]
    return {**q, "noise_precision": Gamma(1.0, 1 / beta), "weight_precision": Gamma(np.ones_like(weights), 1 / weights)}
