"""Probit regression by its latent variables (Albert & Chib 1993), with factors q(w) Π_i q(z_i).

    w ~ N(m₀, A⁻¹),  z_i | w ~ N(x_i w, 1),  y_i = 1 if z_i > 0 else 0:   p(y_i = 1 | w) = Φ(x_i w)

With s_i = 2 y_i − 1 and λ(t) = φ(t)/Φ(t),

    q(w) = N(m, S):  S⁻¹ = A + XᵀX,  m = S (A m₀ + Xᵀ E z)
    q(z_i):          N(ν_i, 1) cut to the side of y_i,  ν_i = x_i m;   E z_i = ν_i + s_i λ(s_i ν_i)
    ELBO = Σ_i [log Φ(s_i ν_i) − ½ d_i² − d_i (E z_i − ν_i)] − ½ Σ_i x_i S x_iᵀ,  d_i = ν_i − x_i m,
           + ½ log |A| + ½ log |S| − ½ [(m − m₀)ᵀ A (m − m₀) + tr(A S)] + D/2

for any q(z), since E[−½ (z − xw)² + ½ (z − ν)²] = −½ d² − d (E z − ν) − ½ x S xᵀ: the entropy of a cut normal and its
second moment cancel, so that no digit is lost far in the tails, where log Φ and λ = √(2/π)/erfcx(−t/√2) keep all.
After the update of z, d = 0 and Σ x S xᵀ + tr(A S) = D: the ELBO is then the log joint of w at m, up to a constant.
So q's mean converges to the mode of p(w | y), and S, which takes z as seen, is too narrow: see the verdict.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpyro.distributions as dist
from numpy.typing import ArrayLike
from scipy.linalg import solve_triangular
from scipy.special import erfcx, log_ndtr, ndtr

from credo.methods.exact import checks
from credo.methods.exact.family import Predictive, distribution, settle
from credo.methods.exact.information import Information
from credo.methods.vi.cavi.ready import ReadyModel, lower_root
from credo.methods.vi.cavi.sweeps import Ascent, Leap, ascend
from credo.model.data import check_order
from credo.status import CredoError

AT_ONCE = 10_000_000  # numbers: 80 MB in float64


class Rows(NamedTuple):
    """``x`` (N, D) and ``side`` (N,): 1 or −1."""

    x: np.ndarray
    side: np.ndarray


class Latent(NamedTuple):
    """q(z): the ``location`` ν (N,) before the cut, and the ``mean`` (N,) E z."""

    location: np.ndarray
    mean: np.ndarray


def mills(t: np.ndarray) -> np.ndarray:
    """φ(t)/Φ(t), to all digits on both sides; 0 where that is below the smallest double."""
    with np.errstate(over="ignore"):
        return np.sqrt(2 / np.pi) / erfcx(-t / np.sqrt(2))


@dataclass(frozen=True, eq=False, repr=False)
class ProbitRegression(ReadyModel):
    """p(y = 1 | x, w) = Φ(x w), w ~ N(prior_mean, 1/alpha), y in {0, 1}. The design matrix is the user's own.

    ``alpha``: the prior precision, a number or one a feature (D,); ``prior_mean`` likewise. Parameter name:
    ``weights``. The mean of the factor is the mode of the posterior; its sds are too small, more so the surer the
    classes are: see the verdict, and ``linear_response()`` for better ones. ``log_evidence`` is a lower bound.
    Raises CredoError for shapes that do not meet, values that are not finite, and labels other than 0 and 1.

    >>> x = np.array([[1.0, -2.0], [1.0, -1.0], [1.0, 0.5], [1.0, 2.0]])
    >>> model = ProbitRegression(alpha=1.0).update(x, [0, 0, 1, 1])
    >>> model.predictive([[1.0, 3.0]]).mean.round(2)
    array([0.97])
    """

    alpha: ArrayLike = 1.0
    prior_mean: ArrayLike = 0.0

    def __post_init__(self):
        super().__post_init__()
        alpha = checks.vector("alpha", self.alpha) if np.ndim(self.alpha) else checks.positive("alpha", self.alpha)
        checks.inside("alpha", np.atleast_1d(alpha), np.atleast_1d(alpha) > 0, "positive")
        is_number = np.ndim(self.prior_mean) == 0
        mean = (
            checks.number("prior_mean", self.prior_mean) if is_number else checks.vector("prior_mean", self.prior_mean)
        )
        settle(self, alpha=alpha, prior_mean=mean)

    def update(self, x: ArrayLike, y: ArrayLike) -> "ProbitRegression":
        """All data so far and rows ``x`` (N, D) with labels ``y`` (N,), each 0 or 1."""
        check_order(x=x, y=y)
        before = self.statistics
        x = checks.matrix("x", x, None if before is None else before.x.shape[1])
        y = checks.vector("y", y)
        checks.same_length("x", x, "y", y)
        checks.inside("y", y, (y == 0) | (y == 1), "a label, 0 or 1")
        for name, value in (("alpha", self.alpha), ("prior_mean", self.prior_mean)):
            if np.ndim(value) and len(value) != x.shape[1]:  # type: ignore[arg-type]
                raise CredoError(f"{name} has shape {np.shape(value)}, but x has {x.shape[1]} columns: give one each.")
        rows = Rows(x.copy(), 2 * y - 1)
        if before is not None:
            rows = Rows(np.concatenate([before.x, rows.x]), np.concatenate([before.side, rows.side]))
        return self._gathered(rows)

    @property
    def _prior(self) -> tuple[np.ndarray, np.ndarray]:
        """m₀ (D,) and the diagonal of A (D,)."""
        size = self.statistics.x.shape[1]
        return np.broadcast_to(self.prior_mean, (size,)), np.broadcast_to(self.alpha, (size,))

    def climb(self, deadline: float = np.inf) -> Ascent:
        rows, (center, alpha) = self.statistics, self._prior
        size = len(center)
        start = Information(np.diag(np.sqrt(alpha)), np.zeros(size))
        root = start.absorb(rows.x, np.zeros(len(rows.x)))[0].root
        half = solve_triangular(root, np.eye(size))  # S = half halfᵀ, the same in every sweep
        spread = 0.5 * (np.sum((rows.x @ half) ** 2) + np.sum(alpha[:, None] * half**2))
        log_dets = 0.5 * np.sum(np.log(alpha)) - np.sum(np.log(np.abs(np.diagonal(root))))

        def latent(q, rows: Rows) -> Latent:
            location = rows.x @ q["weights"]
            return Latent(location, location + rows.side * mills(rows.side * location))

        def weights(q, rows: Rows) -> np.ndarray:
            pull = rows.x.T @ (q["latent"].mean - rows.x @ center)
            return center + half @ (half.T @ pull)

        def elbo(q, rows: Rows) -> float:
            z, m = q["latent"], q["weights"]
            off = z.location - rows.x @ m
            fit = log_ndtr(rows.side * z.location) - off * (0.5 * off + z.mean - z.location)
            return float(np.sum(fit) + log_dets - spread + 0.5 * size - 0.5 * np.sum(alpha * (m - center) ** 2))

        found = ascend(
            {"weights": weights, "latent": latent},
            elbo,
            {"latent": latent({"weights": center}, rows)},
            rows,
            tolerance=self.tolerance,
            relative_tolerance=1e-13,
            max_sweeps=self.max_sweeps,
            deadline=deadline,
            leap=Leap(lambda q: q["weights"], lambda q, m: {**q, "latent": latent({"weights": m}, rows)}),
        )
        return found._replace(factors={**found.factors, "half": half})

    @property
    def work(self) -> int:
        return 2 * self.statistics.x.size

    def weigh(self, generator, n):
        rows, (center, alpha), half = self.statistics, self._prior, self.ascent.factors["half"]
        z = generator.normal(size=(n, len(center)))
        w = self.ascent.factors["weights"] + z @ half.T
        each = max(1, AT_ONCE // len(rows.x))
        log_likelihood = np.concatenate(
            [np.sum(log_ndtr(w[i : i + each] @ rows.x.T * rows.side), axis=1) for i in range(0, n, each)]
        )
        log_prior = 0.5 * np.sum(np.log(alpha) - alpha * (w - center) ** 2, axis=1)
        log_q = -0.5 * np.sum(z**2, axis=1) - np.linalg.slogdet(half)[1]
        return w, log_likelihood + log_prior - log_q

    def linear_response(self) -> dict[str, np.ndarray]:
        """The covariance of the weights when z's factors move along: (A + Xᵀ diag(h) X)⁻¹, h_i = 1 − Var z_i.

        Since dm = S (dt + Xᵀ dE z) and dE z_i = Var z_i x_i dm, with Var z_i = 1 − λ (λ + s_i ν_i). As −log Φ has the
        curvature h, it is the covariance of Laplace's approximation as well.
        """
        rows, (_, alpha) = self.statistics, self._prior
        t = rows.side * self.ascent.factors["latent"].location
        h = np.clip(mills(t) * (mills(t) + t), 0.0, 1.0)
        prior = Information(np.diag(np.sqrt(alpha)), np.zeros(len(alpha)))
        root = prior.absorb(np.sqrt(h)[:, None] * rows.x, np.zeros(len(h)))[0].root
        half = solve_triangular(root, np.eye(len(alpha)))
        return {"weights": half @ half.T}

    @property
    def distributions(self) -> dict[str, dist.Distribution]:  # type: ignore[override]
        factors = self.ascent.factors
        lower = lower_root(factors["half"])
        return {"weights": distribution(dist.MultivariateNormal, factors["weights"], scale_tril=lower)}

    def predictive(self, x: ArrayLike) -> Predictive:
        """Labels at rows ``x`` (M, D): Bernoulli with ∫ Φ(x w) q(w) dw = Φ(x m/√(1 + x S xᵀ))."""
        factors = self.ascent.factors
        x = checks.matrix("x", x, len(factors["weights"]))
        t = (x @ factors["weights"]) / np.sqrt(1 + np.sum((x @ factors["half"]) ** 2, axis=1))
        return Predictive(distribution(dist.Bernoulli, ndtr(t)), lambda y: log_ndtr((2 * y - 1) * t))
