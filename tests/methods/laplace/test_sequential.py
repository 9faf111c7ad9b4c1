"""Data that come batch by batch: the posterior of one is the prior of the next."""

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import multivariate_normal

from credo import nn
from credo.fitting import fit
from credo.laplace import Dense, Diagonal, Kronecker, LowRank, MatrixFree
from credo.methods.laplace import GaussNewton, Laplace
from credo.methods.optimise import MAP
from credo.model.model import Model
from credo.nn import BayesianNetwork
from credo.precision import double
from credo.status import CredoError

RNG = np.random.default_rng(60)
X = RNG.normal(size=(24, 3))
Y = X @ [1.0, -2.0, 0.5] + 0.3 * RNG.normal(size=24)


def covariance(posterior) -> np.ndarray:
    with double():
        return np.asarray(posterior.kind.scale.dense())


def linear(params, x):
    return dist.Normal(x @ params["w"], 0.3)


def logistic(params, x):
    return dist.BernoulliLogits(x @ params["w"])


PRIOR = {"w": lambda: dist.MultivariateNormal(np.ones(3), covariance_matrix=np.eye(3) + 0.5)}
LINEAR = Model(PRIOR, linear)


@pytest.mark.parametrize("sizes", [(12, 12), (6, 18), (8, 8, 8), (1, 23)], ids=str)
def test_exact_for_any_split_of_a_linear_model(sizes):
    whole = fit(LINEAR.given(X, Y), Laplace())
    posterior, increments = None, []
    for x, y in zip(np.split(X, np.cumsum(sizes)[:-1]), np.split(Y, np.cumsum(sizes)[:-1]), strict=True):
        posterior = fit(LINEAR.given(x, y), Laplace(prior=posterior))
        increments.append(posterior.info.get("log_evidence_increment", posterior.log_evidence.value))
    np.testing.assert_allclose(posterior.kind.mean, whole.kind.mean, rtol=1e-10)
    np.testing.assert_allclose(covariance(posterior), covariance(whole), rtol=1e-10)
    np.testing.assert_allclose(posterior.log_evidence.value, whole.log_evidence.value, rtol=1e-10)
    np.testing.assert_allclose(sum(increments), posterior.log_evidence.value, rtol=1e-12)
    assert posterior.verdict.figures["pareto_k"] <= 0


def test_an_improper_prior_leaves_no_evidence_of_later_data():
    """And that of the last, given the earlier, is known."""
    flat = Model({"w": dist.ImproperUniform(dist.constraints.real, (), (3,))}, linear)
    first = fit(flat.given(X[:12], Y[:12]), Laplace())
    posterior = fit(flat.given(X[12:], Y[12:]), Laplace(prior=first))
    assert posterior.log_evidence is None
    marginal = X[12:] @ covariance(first) @ X[12:].T + 0.3**2 * np.eye(12)
    expected = multivariate_normal(X[12:] @ first.kind.mean, marginal).logpdf(Y[12:])
    assert posterior.info["log_evidence_increment"] == pytest.approx(expected, rel=1e-9)


def test_close_for_a_logistic_model_and_gauss_newton_is_the_same():
    y = (Y > 0).astype(int)
    model = Model(PRIOR, logistic)
    whole = fit(model.given(X, y), Laplace())
    first = fit(model.given(X[:12], y[:12]), Laplace())
    second, gauss_newton = (
        fit(model.given(X[12:], y[12:]), method)
        for method in (Laplace(prior=first), Laplace(prior=first, curvature=GaussNewton()))
    )
    np.testing.assert_allclose(covariance(gauss_newton), covariance(second), rtol=1e-8)
    assert np.all(np.abs(second.kind.mean - whole.kind.mean) < 0.5 * whole.sd()["w"])
    assert abs(second.log_evidence.value - whole.log_evidence.value) < 0.5


def test_refuses_what_cannot_be_a_prior():
    target = LINEAR.given(X, Y)
    posterior = fit(target, Laplace())
    other = Model({"v": dist.Normal(0.0, 1.0).expand([3])}, lambda p, x: dist.Normal(x @ p["v"], 0.3)).given(X, Y)
    with pytest.raises(CredoError, match="has a density"):
        fit(target, Laplace(prior=fit(target, MAP())))
    with pytest.raises(CredoError, match="other parameters"):
        fit(other, Laplace(prior=posterior))
    with pytest.raises(CredoError, match="one whose coordinates are independent"):
        fit(target, Laplace(structure=MatrixFree(), curvature=GaussNewton(), prior=posterior))
    with pytest.raises(CredoError, match="bare log density"):
        fit(LINEAR.given(), Laplace(prior=posterior))


def network(x, y):
    weights = {"w": np.zeros((3, 1)), "b": np.zeros(1)}
    model = BayesianNetwork(lambda p, x: x @ p["w"] + p["b"], weights, head=nn.Gaussian(0.3))
    return model.given(x, y)


@pytest.mark.parametrize("structure", [Diagonal(), LowRank(4), Kronecker()], ids=str)
@pytest.mark.parametrize("first", [Dense(), Diagonal(), Kronecker()], ids=str)
def test_a_structure_that_leaves_out_the_correlations_of_the_earlier_posterior_is_refused(first, structure):
    """Or takes the exact diagonal of the precision."""
    prior = fit(network(X[:12], Y[:12]), Laplace(structure=first))
    method, later = Laplace(structure=structure, prior=prior), network(X[12:], Y[12:])
    if not isinstance(first, Diagonal) and not isinstance(structure, Diagonal):
        with pytest.raises(CredoError, match=r"the posterior given as prior has correlations: say structure=Dense\(\)"):
            fit(later, method)
        return
    inputs = np.column_stack([np.ones(12), X[12:]])
    precision = np.linalg.inv(covariance(prior)) + inputs.T @ inputs / 0.3**2
    found = np.linalg.inv(covariance(fit(later, method)))
    expected = {Diagonal: np.diag(np.diag(precision)), LowRank: precision}.get(type(structure))
    if expected is not None:
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_low_rank_says_that_it_leaves_out_the_correlations_of_the_prior():
    posterior = fit(LINEAR.given(X, Y), Laplace(structure=LowRank(2), curvature=GaussNewton()))
    assert any("leaves its correlations out" in sentence for sentence in posterior.verdict.sentences)
    np.testing.assert_allclose(
        np.diag(np.linalg.inv(covariance(posterior))),
        np.diag(np.linalg.inv(covariance(fit(LINEAR.given(X, Y), Laplace())))),
        rtol=1e-6,
    )


@pytest.mark.parametrize("is_network", [False, True])
def test_doubts_of_earlier_data_stay(is_network):
    """Without the correlations of the batches before it, the last posterior is off by its sds, and alone looks well."""
    random = np.random.default_rng(1)
    x = np.sqrt(0.2) * random.normal(size=(200, 3)) + np.sqrt(0.8) * random.normal(size=(200, 1))
    y = x @ [1.0, -2.0, 0.5] + 0.3 * random.normal(size=200)
    model = LINEAR
    if is_network:
        model = BayesianNetwork(lambda p, x: x @ p["w"], {"w": np.zeros((3, 1))}, head=nn.Gaussian(0.3))
    posterior = None
    for rows in np.split(np.arange(200), 10):
        posterior = fit(model.given(x[rows], y[rows]), Laplace(structure=Diagonal(), prior=posterior))
    exact = fit(model.given(x, y), Laplace(structure=Dense()))
    assert np.max(np.abs(posterior.kind.mean - exact.kind.mean) / np.sqrt(np.diag(covariance(exact)))) > 1
    assert posterior.verdict.status != "pass"
    assert "stands for these data: where it is wrong, so is this one" in posterior.verdict.sentences[-1]
