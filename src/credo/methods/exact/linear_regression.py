"""Bayesian linear regression with the noise known, and with it unknown. The design matrix is the user's own.

Known noise precision β (Bishop, 2006, eq. 3.49–3.58), R and ρ² as in information.py with rows scaled by √β:
    w ~ N(m₀, Λ₀⁻¹),  y | w ~ N(X w, I/β);   Λ = Λ₀ + β XᵀX
    log p(y) = (N/2) log(β/2π) + ½ log |Λ₀| − ½ log |Λ| − ½ ρ²
Λ₀ = αI is ridge regression with λ = α/β.

Unknown noise variance (Murphy, 2012, section 7.6.3):
    σ² ~ InverseGamma(a, b),  w | σ² ~ N(m₀, σ² Λ₀⁻¹),  y | w, σ² ~ N(X w, σ² I)
    Λ = Λ₀ + XᵀX,  a' = a + N/2,  b' = b + ½ ρ²
    log p(y) = log Γ(a') − log Γ(a) + a log b − a' log b' + ½ log |Λ₀| − ½ log |Λ| − (N/2) log 2π
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpyro.distributions as dist
from numpy.typing import ArrayLike

from credo.methods.exact import checks
from credo.methods.exact.family import NO_DATA, Family, Predictive, distribution, extend, settle
from credo.methods.exact.information import Information
from credo.methods.exact.normal import LOG_2PI, inverse_gamma_evidence
from credo.model.data import check_order
from credo.status import CredoError, Estimate


@dataclass(frozen=True, eq=False)
class LinearRegression(Family):
    """Weights with a Gaussian prior and Gaussian noise of known precision ``beta``.

    ``alpha`` is the prior precision: a number, one a feature (D,), or a matrix (D, D); ``prior_mean`` is a number
    or (D,). ``from_covariance`` takes N(m₀, S₀) instead. Parameter name: ``weights``.
    Raises CredoError where a precision is not positive (definite).

    >>> model = LinearRegression(alpha=1.0, beta=1.0).update([[1.0], [2.0]], [1.0, 2.0])
    >>> model.mean()["weights"].round(4)
    array([0.8333])
    """

    alpha: ArrayLike = 1.0
    beta: float = 1.0
    prior_mean: ArrayLike = 0.0
    log_evidence: Estimate = field(default=NO_DATA, kw_only=True)
    information: Information | None = field(default=None, kw_only=True, repr=False)

    def __post_init__(self):
        settle(self, beta=checks.positive("beta", self.beta), **_prior_fields(self))

    @classmethod
    def from_covariance(cls, mean: ArrayLike, covariance: ArrayLike, beta: float) -> "LinearRegression":
        """The prior N(mean, covariance), (D,) and (D, D)."""
        information = _information_of_covariance(mean, covariance)
        return cls(_precision(information), beta, information.mean, information=information)

    def update(self, x: ArrayLike, y: ArrayLike) -> "LinearRegression":
        """The posterior after rows ``x`` (N, D) with responses ``y`` (N,)."""
        x, y = design_and_response(x, y, self.information)
        before = self.information or initial_information(self.alpha, self.prior_mean, x.shape[1])
        after, residual = before.absorb(x, y, scale=np.sqrt(self.beta))
        increment = 0.5 * (len(y) * (np.log(self.beta) - LOG_2PI) - residual) + before.log_det - after.log_det
        evidence = extend(self.log_evidence, increment)
        return LinearRegression(self.alpha, self.beta, self.prior_mean, log_evidence=evidence, information=after)

    @property
    def distributions(self) -> dict[str, dist.Distribution]:  # type: ignore[override]
        now = known(self.information)
        return {"weights": distribution(dist.MultivariateNormal, now.mean, scale_tril=now.scale_tril)}

    def predictive(self, x: ArrayLike, *, joint: bool = False) -> Predictive:
        """Responses at rows ``x`` (M, D): normal, independent a row, or ``joint`` with their shared uncertainty."""
        now = known(self.information)
        x = checks.matrix("x", x, len(now.target))
        return gaussian_predictive(now, x, self.beta, joint)


@dataclass(frozen=True, eq=False)
class NormalInverseGammaLinearRegression(Family):
    """Weights and noise variance unknown: σ² ~ InverseGamma(a, b), w | σ² ~ N(prior_mean, σ²/alpha).

    ``alpha`` is the prior precision of the weights in units of 1/σ²: a number, (D,) or (D, D).
    Parameter names: ``variance``, ``weights``; they are dependent, so ``distributions["weights"]`` is a callable
    of ``variance``, and ``marginals["weights"]`` is a multivariate Student t.

    >>> model = NormalInverseGammaLinearRegression(alpha=1.0, a=2.0, b=2.0).update([[1.0], [2.0]], [1.0, 2.0])
    >>> round(model.b, 4)
    2.4167
    """

    alpha: ArrayLike
    a: float
    b: float
    prior_mean: ArrayLike = 0.0
    log_evidence: Estimate = field(default=NO_DATA, kw_only=True)
    information: Information | None = field(default=None, kw_only=True, repr=False)

    def __post_init__(self):
        settle(self, a=checks.positive("a", self.a), b=checks.positive("b", self.b), **_prior_fields(self))

    @classmethod
    def from_covariance(
        cls, mean: ArrayLike, covariance: ArrayLike, *, a: float, b: float
    ) -> "NormalInverseGammaLinearRegression":
        """The prior w | σ² ~ N(mean, σ² covariance), (D,) and (D, D)."""
        information = _information_of_covariance(mean, covariance)
        return cls(_precision(information), a, b, information.mean, information=information)

    def update(self, x: ArrayLike, y: ArrayLike) -> "NormalInverseGammaLinearRegression":
        """The posterior after rows ``x`` (N, D) with responses ``y`` (N,)."""
        x, y = design_and_response(x, y, self.information)
        before = self.information or initial_information(self.alpha, self.prior_mean, x.shape[1])
        after, residual = before.absorb(x, y)
        a, b = self.a + len(y) / 2, self.b + residual / 2
        increment = inverse_gamma_evidence(self.a, self.b, a, b) - len(y) / 2 * LOG_2PI
        evidence = extend(self.log_evidence, increment + before.log_det - after.log_det)
        return NormalInverseGammaLinearRegression(
            self.alpha, a, b, self.prior_mean, log_evidence=evidence, information=after
        )

    @property
    def distributions(self) -> dict[str, dist.Distribution | Callable[..., dist.Distribution]]:
        now = known(self.information)
        mean, scale_tril = now.mean, now.scale_tril
        return {
            "variance": distribution(dist.InverseGamma, self.a, self.b),
            "weights": lambda variance: dist.MultivariateNormal(mean, scale_tril=variance**0.5 * scale_tril),
        }

    @property
    def marginals(self) -> dict[str, dist.Distribution]:
        now = known(self.information)
        scale_tril = np.sqrt(self.b / self.a) * now.scale_tril
        return {
            "variance": distribution(dist.InverseGamma, self.a, self.b),
            "weights": distribution(dist.MultivariateStudentT, 2 * self.a, now.mean, scale_tril),
        }

    def predictive(self, x: ArrayLike, *, joint: bool = False) -> Predictive:
        """Responses at rows ``x`` (M, D): Student t with 2a degrees of freedom, a row each, or ``joint``."""
        now = known(self.information)
        x = checks.matrix("x", x, len(now.target))
        mean, half = x @ now.mean, now.half_solve(x)
        unit = self.b / self.a
        if joint:
            scale_tril = np.linalg.cholesky(unit * (np.eye(len(x)) + half.T @ half))
            return Predictive(distribution(dist.MultivariateStudentT, 2 * self.a, mean, scale_tril))
        scale = np.sqrt(unit * (1 + np.sum(half**2, axis=0)))
        return Predictive(distribution(dist.StudentT, 2 * self.a, mean, scale))


def gaussian_predictive(now: Information, x: np.ndarray, beta: float, joint: bool) -> Predictive:
    """N(x m, 1/β + x Λ⁻¹ xᵀ): Bishop, 2006, eq. 3.58."""
    mean, half = x @ now.mean, now.half_solve(x)
    if joint:
        scale_tril = np.linalg.cholesky(np.eye(len(x)) / beta + half.T @ half)
        return Predictive(distribution(dist.MultivariateNormal, mean, scale_tril=scale_tril))
    return Predictive(distribution(dist.Normal, mean, np.sqrt(1 / beta + np.sum(half**2, axis=0))))


def design_and_response(x: ArrayLike, y: ArrayLike, now: Information | None) -> tuple[np.ndarray, np.ndarray]:
    """Checked ``x`` (N, D) and ``y`` (N,)."""
    check_order(x=x, y=y)
    x = checks.matrix("x", x, None if now is None else len(now.target))
    y = checks.vector("y", y)
    checks.same_length("x", x, "y", y)
    return x, y


def initial_information(alpha: ArrayLike, prior_mean: ArrayLike, dim: int) -> Information:
    """The prior N(prior_mean, alpha⁻¹) in ``dim`` dimensions, broadcasting numbers."""
    alpha, mean = np.asarray(alpha), np.asarray(prior_mean)
    for name, array in (("alpha", alpha), ("prior_mean", mean)):
        if array.ndim and len(array) != dim:
            raise CredoError(f"{name} is for {len(array)} features, but x has {dim} columns: give one a column.")
    mean = np.broadcast_to(mean, (dim,))
    if alpha.ndim == 2:
        return Information.of_precision(mean, alpha)
    root = np.sqrt(np.broadcast_to(alpha, (dim,)))
    return Information(np.diag(root), root * mean)


def known(information: Information | None) -> Information:
    """``information``, or a sentence where there is none yet."""
    if information is None:
        raise CredoError(
            "The number of weights is not known before any data: call update(x, y) first, or give alpha for each "
            "feature."
        )
    return information


def _prior_fields(model: LinearRegression | NormalInverseGammaLinearRegression) -> dict[str, object]:
    """alpha, prior_mean and, once the number of features is known, the information, checked."""
    if np.ndim(model.alpha) == 2:
        alpha = checks.matrix("alpha", model.alpha, np.shape(model.alpha)[0])
    elif np.ndim(model.alpha) == 1:
        alpha = checks.vector("alpha", model.alpha)
        checks.inside("alpha", alpha, alpha > 0, "positive")
    else:
        alpha = checks.positive("alpha", model.alpha)
    is_number = np.ndim(model.prior_mean) == 0
    mean = checks.number("prior_mean", model.prior_mean) if is_number else checks.vector("prior_mean", model.prior_mean)
    fields: dict[str, object] = {"alpha": alpha, "prior_mean": mean}
    sizes = [len(v) for v in (alpha, mean) if isinstance(v, np.ndarray)]
    if sizes and model.information is None:
        fields["information"] = initial_information(alpha, mean, sizes[0])
    return fields


def _information_of_covariance(mean: ArrayLike, covariance: ArrayLike) -> Information:
    mean = checks.vector("mean", mean)
    covariance = checks.matrix("covariance", covariance, len(mean))
    checks.same_length("covariance", covariance, "mean", mean)
    return Information.of_covariance(mean, covariance)


def _precision(information: Information) -> np.ndarray:
    return information.root.T @ information.root
