"""Networks of several outputs: linear ones are a linear regression of each column, whatever the structure."""

import numpy as np
import pytest

import credo
from credo.laplace import Dense, Diagonal, Kronecker, LastLayer
from credo.nn import BayesianNetwork, Gaussian, Isotropic
from credo.precision import double

RNG = np.random.default_rng(0)
N, NOISE = 40, 0.4
X = RNG.normal(size=(N, 3))
Y = X @ RNG.normal(size=(3, 2)) + NOISE * RNG.normal(size=(N, 2))


@pytest.fixture(scope="module")
def target():
    def linear(params, x):
        return x @ params["w"]

    return BayesianNetwork(linear, {"w": np.zeros((3, 2))}, head=Gaussian(NOISE), prior=Isotropic(1.0)).given(X, Y)


METHODS = {
    "dense": credo.Laplace(structure=Dense(), num_steps=100),
    "kronecker": credo.Laplace(structure=Kronecker(), num_steps=100),
    "last layer": credo.Laplace(subset=LastLayer(), num_steps=100),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_columns_are_a_regression_each(target, method):
    posterior = credo.fit(target, method, progress=False)
    A = X.T @ X / NOISE**2 + np.eye(3)
    mean = np.linalg.solve(A, X.T @ Y / NOISE**2)
    np.testing.assert_allclose(posterior.mean()["weights"]["w"], mean, atol=1e-6)
    predictive = posterior.predict(X[:5])
    variance = np.einsum("ni,ij,nj->n", X[:5], np.linalg.inv(A), X[:5])
    np.testing.assert_allclose(predictive.epistemic, np.stack([variance, variance], axis=1), rtol=1e-5)
    np.testing.assert_allclose(predictive.mean, X[:5] @ mean, atol=1e-5)


def test_the_diagonal_is_that_of_the_precision(target):
    posterior = credo.fit(target, credo.Laplace(structure=Diagonal(), num_steps=100), progress=False)
    with double():
        precision = 1 / np.asarray(posterior.sd()["weights"]["w"]) ** 2
    expected = np.diag(X.T @ X) / NOISE**2 + 1
    np.testing.assert_allclose(precision, np.stack([expected, expected], axis=1), rtol=1e-5)


def test_vbll_of_columns_is_a_regression_each(target):
    posterior = credo.fit(target, credo.VBLL(num_steps=20), progress=False)
    A = X.T @ X / NOISE**2 + np.eye(3)
    np.testing.assert_allclose(posterior.mean()["weights"]["w"], np.linalg.solve(A, X.T @ Y / NOISE**2), rtol=1e-5)
    variance = np.einsum("ni,ij,nj->n", X[:5], np.linalg.inv(A), X[:5])
    predictive = posterior.predict(X[:5], rule=credo.Linearised())
    np.testing.assert_allclose(predictive.epistemic, np.stack([variance, variance], axis=1), rtol=1e-5)
    np.testing.assert_allclose(predictive.aleatoric, NOISE**2, rtol=1e-6)
