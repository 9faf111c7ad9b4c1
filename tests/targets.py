"""The table of targets: models whose posterior is known, for every method that claims them.

Each entry gives exact means and sds (by closed form or by a quadrature that uses none of Credo) and log evidence.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import jax.scipy.stats as jstats
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints
from scipy import special
from sklearn.datasets import load_breast_cancer

import credo
from credo.model.target import Target


class Known(NamedTuple):
    """A target with the truth about it; None where it is not known or does not exist."""

    target: Target
    mean: dict[str, np.ndarray]
    sd: dict[str, np.ndarray]
    log_evidence: float | None


# a Gaussian -----------------------------------------------------------------------------------------------------

GAUSSIAN_MEAN = np.array([1.0, -2.0, 0.5])
GAUSSIAN_COV = np.array([[1.0, 0.6, 0.0], [0.6, 2.0, -0.3], [0.0, -0.3, 0.5]])


def gaussian_density(params):
    return jstats.multivariate_normal.logpdf(params["w"], GAUSSIAN_MEAN, GAUSSIAN_COV)


def gaussian() -> Known:
    """Correlated, three dimensions, normalised."""
    model = credo.Model.from_log_density(gaussian_density, {"w": constraints.real_vector}, {"w": (3,)})
    return Known(model.given(), {"w": GAUSSIAN_MEAN}, {"w": np.sqrt(np.diag(GAUSSIAN_COV))}, 0.0)


# an ill-conditioned Gaussian --------------------------------------------------------------------------------------

ROTATION = np.linalg.qr(np.random.default_rng(0).normal(size=(10, 10)))[0]
VARIANCES = np.logspace(0, -3, 10)


def ill_conditioned_density(params):
    z = (ROTATION.T @ params["w"]) / np.sqrt(VARIANCES)
    return -0.5 * jnp.dot(z, z)


def ill_conditioned() -> Known:
    """Rotated, ten dimensions, condition number 1,000."""
    model = credo.Model.from_log_density(ill_conditioned_density, {"w": constraints.real_vector}, {"w": (10,)})
    sd = np.sqrt(np.diag(ROTATION @ np.diag(VARIANCES) @ ROTATION.T))
    log_evidence = 0.5 * (10 * np.log(2 * np.pi) + np.log(VARIANCES).sum())
    return Known(model.given(), {"w": np.zeros(10)}, {"w": sd}, log_evidence)


# skewed: reversed signs of a gradient show here -------------------------------------------------------------------


def gumbel_density(params):
    return -params["x"] - jnp.exp(-params["x"])


def skewed() -> Known:
    """A Gumbel variable on the whole line."""
    model = credo.Model.from_log_density(gumbel_density, {"x": constraints.real})
    return Known(model.given(), {"x": np.float64(np.euler_gamma)}, {"x": np.float64(np.pi / np.sqrt(6))}, 0.0)


# a funnel ---------------------------------------------------------------------------------------------------------


def funnel() -> Known:
    """Neal's (2003), in its hierarchical form: the prior alone."""
    model = credo.Model({"v": dist.Normal(0.0, 3.0), "x": lambda v: dist.Normal(0.0, jnp.exp(v / 2)).expand([5])}, None)
    return Known(model.given(), {"v": np.float64(0.0)}, {"v": np.float64(3.0)}, 0.0)


# two modes --------------------------------------------------------------------------------------------------------


def mixture_density(params):
    return jnp.logaddexp(
        jnp.log(0.3) + jstats.norm.logpdf(params["x"], -4.0, 0.5),
        jnp.log(0.7) + jstats.norm.logpdf(params["x"], 4.0, 0.5),
    )


def mixture() -> Known:
    """0.3 N(−4, ½²) + 0.7 N(4, ½²)."""
    model = credo.Model.from_log_density(mixture_density, {"x": constraints.real})
    sd = np.sqrt(0.25 + 0.3 * 0.7 * 64.0)
    return Known(model.given(), {"x": np.float64(1.6)}, {"x": np.float64(sd)}, 0.0)


# constrained ------------------------------------------------------------------------------------------------------


def constrained() -> Known:
    """A simplex, a positive number and an interval whose upper end is that number: the prior alone."""
    model = credo.Model(
        {
            "weights": dist.Dirichlet(np.array([2.0, 3.0, 5.0])),
            "scale": dist.Gamma(4.0, 2.0),
            "share": lambda scale: dist.Uniform(0.0, scale),
        },
        None,
    )
    alpha = np.array([2.0, 3.0, 5.0]) / 10
    mean = {"weights": alpha, "scale": np.float64(2.0), "share": np.float64(1.0)}
    # E[scale²] = 4·5/2² = 5; the share is uniform on (0, scale): E[share²] = E[scale²]/3
    sd = {"weights": np.sqrt(alpha * (1 - alpha) / 11), "scale": np.float64(1.0), "share": np.sqrt(5 / 3 - 1)}
    return Known(model.given(), mean, sd, 0.0)


# a real logistic regression ---------------------------------------------------------------------------------------


def logistic_likelihood(params, x):
    return dist.BernoulliLogits(x @ params["w"])


@functools.cache
def logistic() -> Known:
    """Malignancy by intercept, mean radius and mean texture (569 rows); the truth by product quadrature."""
    table = load_breast_cancer()
    x = table.data[:, :2]
    x = np.column_stack([np.ones(len(x)), (x - x.mean(axis=0)) / x.std(axis=0)])
    y = 1 - table.target
    model = credo.Model({"w": dist.Normal(0.0, 2.5).expand([3])}, logistic_likelihood)
    mean, sd, log_evidence = _logistic_truth(x, y, 2.5)
    return Known(model.given(x, y), {"w": mean}, {"w": sd}, log_evidence)


def _logistic_truth(x, y, prior_sd: float):
    """Moments and evidence by a Gauss-Hermite product rule in the whitened coordinates of the mode."""
    w = np.zeros(x.shape[1])
    for _ in range(50):  # Newton's method
        p = special.expit(x @ w)
        precision = x.T @ (x * (p * (1 - p))[:, None]) + np.eye(len(w)) / prior_sd**2
        w = w + np.linalg.solve(precision, x.T @ (y - p) - w / prior_sd**2)
    root = np.linalg.inv(np.linalg.cholesky(precision)).T
    nodes, weights = np.polynomial.hermite_e.hermegauss(30)
    grid = np.stack(np.meshgrid(nodes, nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 3)
    log_weights = np.log(np.einsum("i,j,k->ijk", weights, weights, weights)).ravel() + 0.5 * (grid**2).sum(axis=1)
    points = w + grid @ root.T
    logits = points @ x.T
    log_density = (y * logits - np.logaddexp(0, logits)).sum(axis=1)
    log_density += (-0.5 * (points / prior_sd) ** 2 - np.log(prior_sd) - 0.5 * np.log(2 * np.pi)).sum(axis=1)
    terms = log_weights + log_density + np.linalg.slogdet(root)[1]
    log_evidence = special.logsumexp(terms)
    p = np.exp(terms - log_evidence)
    mean = p @ points
    return mean, np.sqrt(p @ (points - mean) ** 2), float(log_evidence)


TARGETS: dict[str, Callable[[], Known]] = {
    f.__name__: f for f in (gaussian, ill_conditioned, skewed, funnel, mixture, constrained, logistic)
}
