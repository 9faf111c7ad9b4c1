"""Gauss-Newton: the Hessian where the link is canonical, never negative elsewhere; classification with features φ."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy import special

from credo.fitting import fit
from credo.methods.laplace import Diagonal, ExactHessian, GaussNewton, Laplace
from credo.model.model import Model
from credo.precision import double
from credo.status import CredoError

RNG = np.random.default_rng(50)
X = RNG.normal(size=(60, 2))
M0, S0 = np.array([0.2, -0.1, 0.0]), np.array([[1.0, 0.3, 0.0], [0.3, 2.0, 0.0], [0.0, 0.0, 0.5]])


def covariance(posterior) -> np.ndarray:
    with double():
        return np.asarray(posterior.kind.scale.dense())


def phi(x):
    """Features: the inputs and their product."""
    return jnp.column_stack([x, x[:, 0] * x[:, 1]])


def binary(params, x):
    return dist.BernoulliLogits(phi(x) @ params["w"])


def softmax(params, x):
    return dist.CategoricalLogits(phi(x) @ params["w"].reshape(3, 3))


def network(params, x):
    return dist.Normal(jnp.tanh(x @ params["v"]) @ params["a"], 0.5)


BINARY = Model({"w": lambda: dist.MultivariateNormal(M0, covariance_matrix=S0)}, binary).given(
    X, (RNG.uniform(size=60) < special.expit(X[:, 0] + X[:, 0] * X[:, 1])).astype(int), weights=RNG.uniform(size=60)
)
SOFTMAX = Model(
    {"w": lambda: dist.MultivariateNormal(np.tile(M0, 3), covariance_matrix=np.kron(np.eye(3), S0))}, softmax
).given(X, RNG.integers(0, 3, size=60))
NETWORK = Model({"v": dist.Normal(0.0, 1.0).expand([2, 4]), "a": dist.Normal(0.0, 1.0).expand([4])}, network).given(
    X, np.sin(2 * X[:, 0]) + RNG.normal(size=60)
)


@pytest.mark.parametrize("target", [BINARY, SOFTMAX], ids=["binary", "softmax"])
def test_equals_the_hessian_for_canonical_links(target):
    exact, gauss_newton = (fit(target, Laplace(curvature=c)) for c in (ExactHessian(), GaussNewton()))
    np.testing.assert_allclose(covariance(gauss_newton), covariance(exact), rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(gauss_newton.log_evidence.value, exact.log_evidence.value, rtol=1e-12)
    diagonal = fit(target, Laplace(structure=Diagonal(), curvature=GaussNewton()))
    precision = np.linalg.inv(covariance(exact))
    np.testing.assert_allclose(diagonal.kind.scale.scale, np.diagonal(precision) ** -0.5, rtol=1e-8)


def test_binary_regression_by_hand():
    """Newton's method in NumPy (Bishop 2006, section 4.5.1) on Φ, m₀, S₀ and the weights of the rows."""
    posterior = fit(BINARY, Laplace())
    Φ, y, weights = np.column_stack([X, X[:, 0] * X[:, 1]]), BINARY.y, BINARY.weights
    w = np.zeros(3)
    for _ in range(30):
        p = special.expit(Φ @ w)
        precision = np.linalg.inv(S0) + Φ.T @ (Φ * (weights * p * (1 - p))[:, None])
        w = w + np.linalg.solve(precision, Φ.T @ (weights * (y - p)) - np.linalg.solve(S0, w - M0))
    np.testing.assert_allclose(posterior.mean()["w"], w, rtol=1e-8)
    np.testing.assert_allclose(covariance(posterior), np.linalg.inv(precision), rtol=1e-8)


def test_is_never_negative_and_differs_for_a_network():
    """Both at the same mode: the residuals' part, which Gauss-Newton leaves out, is all that differs."""
    exact, gauss_newton = (fit(NETWORK, Laplace(curvature=c)) for c in (ExactHessian(), GaussNewton()))
    np.testing.assert_array_equal(exact.kind.mean, gauss_newton.kind.mean)
    v, a = np.split(exact.kind.mean, [8])
    v, h = v.reshape(2, 4), np.tanh(X @ v.reshape(2, 4))
    J = np.column_stack([(X[:, :, None] * ((1 - h**2) * a)[:, None, :]).reshape(60, 8), h])
    expected = J.T @ J / 0.25 + np.eye(12)
    np.testing.assert_allclose(np.linalg.inv(covariance(gauss_newton)), expected, rtol=1e-6, atol=1e-8)
    assert gauss_newton.verdict.figures["min_curvature"] >= 1.0 - 1e-9  # the prior's
    assert np.any(np.abs(covariance(exact) - covariance(gauss_newton)) > 1e-3)


def joint(params, x):
    return dist.MultivariateNormal(params["m"] * jnp.ones(3), jnp.eye(3))


@pytest.mark.parametrize(
    "target",
    [
        Model({"m": dist.Normal(0.0, 1.0)}, joint).given(None, np.zeros((5, 3))),
        Model.from_log_density(lambda params: -(params["m"] ** 2), {"m": constraints.real}).given(),
    ],
    ids=["unknown head", "no likelihood"],
)
def test_refuses_what_has_no_outputs(target):
    with pytest.raises(CredoError, match="ExactHessian"):
        fit(target, Laplace(curvature=GaussNewton()))
