"""MAP and Laplace beside the fits of scikit-learn and statsmodels: the same objective, a covariance from each.

    logistic  breast cancer, 569 × 31:  w ~ N(0, 2.5² I)                      penalty λ = 1/2.5²
    ridge     diabetes, 442 × 11, y standardised:  w ~ N(0, I), σ known      λ = σ²
    flat      the same with a flat prior: ordinary least squares              λ = 0

The peers fit a penalised likelihood; NumPy then inverts its Hessian, which is the covariance that Laplace reports.
``truth`` is Newton's method in NumPy to machine precision. Each fit answers (mean, sd), sd None for a point.
"""

from time import perf_counter
from typing import NamedTuple

import numpy as np
from posteriors import breast_cancer


class Problem(NamedTuple):
    x: np.ndarray  # (N, d) with its column of ones
    y: np.ndarray
    prior_sd: float | None  # None: flat
    noise_sd: float | None  # None: logistic

    @property
    def penalty(self) -> float:
        return 0.0 if self.prior_sd is None else self.prior_sd**-2

    def covariance(self, w) -> np.ndarray:
        """The inverse Hessian of −log p(w, y) at w."""
        if self.noise_sd is None:
            p = 1 / (1 + np.exp(-self.x @ w))
            curvature = self.x.T @ (self.x * (p * (1 - p))[:, None])
        else:
            curvature = self.x.T @ self.x / self.noise_sd**2
        return np.linalg.inv(curvature + self.penalty * np.eye(len(w)))

    def moments(self, w) -> tuple[np.ndarray, np.ndarray]:
        return w, np.sqrt(np.diag(self.covariance(w)))


def logistic() -> Problem:
    data = breast_cancer.data()
    return Problem(data["x"], data["y"], breast_cancer.PRIOR_SD, None)


def diabetes(prior_sd: float | None) -> Problem:
    from sklearn.datasets import load_diabetes

    table = load_diabetes()
    x = (table.data - table.data.mean(axis=0)) / table.data.std(axis=0)
    x = np.column_stack([np.ones(len(x)), x])
    y = (table.target - table.target.mean()) / table.target.std()
    residual = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    return Problem(x, y, prior_sd, float(np.sqrt(residual @ residual / (len(y) - x.shape[1]))))


PROBLEMS = {"logistic": logistic, "ridge": lambda: diabetes(1.0), "flat": lambda: diabetes(None)}


def truth(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    w = np.zeros(problem.x.shape[1])
    for _ in range(50):
        z = problem.x @ w
        mean, scale = (1 / (1 + np.exp(-z)), 1.0) if problem.noise_sd is None else (z, problem.noise_sd**2)
        gradient = problem.x.T @ (problem.y - mean) / scale - problem.penalty * w
        w = w + problem.covariance(w) @ gradient
    return problem.moments(w)


# Credo ------------------------------------------------------------------------------------------------------------


def linear_likelihood(params, x):
    import numpyro.distributions as dist

    return dist.Normal(x["x"] @ params["w"], x["noise_sd"])


class Laplace:
    name = "Laplace"

    def __init__(self, problem: Problem):
        import credo

        self.credo, self.method = credo, getattr(credo, self.name)()
        self.problem, self.target = problem, None
        self.parts: dict[str, float] = {}

    def __call__(self):
        if self.target is None:
            start = perf_counter()
            self.target = self.build()
            self.parts["model"] = perf_counter() - start
        posterior = self.credo.fit(self.target, self.method, key=0, progress=False)
        self.parts.setdefault("compile", posterior.info.get("seconds", {}).get("compile", float("nan")))
        return posterior.mean()["w"], None if self.name == "MAP" else posterior.sd()["w"]

    def build(self):
        import numpyro.distributions as dist

        x, y, prior_sd, noise_sd = self.problem
        d = x.shape[1]
        if prior_sd is None:
            prior = {"w": dist.ImproperUniform(dist.constraints.real, (d,), ())}
        else:
            prior = {"w": dist.Normal(0.0, prior_sd).expand([d])}
        if noise_sd is None:
            return self.credo.Model(prior, breast_cancer.likelihood).given(x, y)
        rows = {"x": x, "noise_sd": np.full(len(y), noise_sd)}
        return self.credo.Model(prior, linear_likelihood).given(rows, y)


class MAP(Laplace):
    name = "MAP"


# peers ------------------------------------------------------------------------------------------------------------


class ScikitLearn:
    """Defaults, but for the penalty and the intercept, which is a column of x."""

    def __init__(self, problem: Problem):
        import sklearn.linear_model

        self.linear_model, self.problem = sklearn.linear_model, problem
        self.parts: dict[str, float] = {}

    def __call__(self):
        x, y, prior_sd, noise_sd = self.problem
        if noise_sd is None:
            model = self.linear_model.LogisticRegression(C=1 / self.problem.penalty, fit_intercept=False)
        elif prior_sd is None:
            model = self.linear_model.LinearRegression(fit_intercept=False)
        else:
            model = self.linear_model.Ridge(alpha=noise_sd**2 / prior_sd**2, fit_intercept=False)
        return self.problem.moments(np.ravel(model.fit(x, y).coef_))


class Statsmodels:
    """Its ridge is ``fit_regularized(L1_wt=0)``, whose penalty is divided by N."""

    def __init__(self, problem: Problem):
        import statsmodels.api

        self.sm, self.problem = statsmodels.api, problem
        self.parts: dict[str, float] = {}

    def __call__(self):
        x, y, prior_sd, noise_sd = self.problem
        if noise_sd is None:
            model = self.sm.GLM(y, x, family=self.sm.families.Binomial())
            return self.problem.moments(model.fit_regularized(alpha=self.problem.penalty / len(y), L1_wt=0.0).params)
        model = self.sm.OLS(y, x)
        if prior_sd is None:
            result = model.fit()
            return result.params, noise_sd * np.sqrt(np.diag(result.normalized_cov_params))
        penalty = noise_sd**2 / prior_sd**2 / len(y)
        return self.problem.moments(model.fit_regularized(alpha=penalty, L1_wt=0.0).params)


FITS = {"credo MAP()": MAP, "credo Laplace()": Laplace, "scikit-learn": ScikitLearn, "statsmodels": Statsmodels}
