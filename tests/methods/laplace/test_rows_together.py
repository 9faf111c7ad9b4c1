"""Rows that do not stand alone, and other places at which a quick way through a curvature is not the right one."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy import stats

import credo
from cases import first_of
from credo.laplace import Dense, Diagonal, GaussNewton, Kronecker, LowRank, MatrixFree
from credo.precision import double

N = 120
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=N)
Y = RANDOM.normal(size=N) + 0.5 * X + RANDOM.normal(size=N)


def lag(x):
    return jnp.concatenate([jnp.zeros(1), x[:-1]])


ENTRIES = credo.Model(
    {"w": dist.Normal(0.0, 1.0), "theta": dist.Normal(0.0, 1.0).expand([N])},
    lambda p, x: dist.Normal(p["theta"] + p["w"] * x, 0.5),
)
LAGGED = credo.Model(
    {"w": dist.Normal(0.0, 1.0).expand([110])}, lambda p, x: dist.Normal(p["w"][0] * x + p["w"].sum() * lag(x), 0.5)
)


@pytest.mark.parametrize("model", [ENTRIES, LAGGED], ids=["an entry a row", "lag"])
def test_gauss_newton_of_rows_that_lean_on_others_is_the_hessian(model):
    """Both are linear and normal. Row by row, the first entry had the data of all rows, and the others none."""
    target = model.given(X, Y)
    exact = credo.fit(target, credo.Laplace(), progress=False)
    for structure in (Dense(), MatrixFree()):
        found = credo.fit(target, credo.Laplace(structure=structure, curvature=GaussNewton()), progress=False)
        tolerance = 1e-6 if isinstance(structure, Dense) else 0.1
        for name, sd in exact.sd().items():
            np.testing.assert_allclose(found.sd()[name], sd, rtol=tolerance, err_msg=name)
    marginal = credo.fit(target, credo.Laplace(structure=Diagonal(), curvature=GaussNewton()), progress=False)
    hessian = credo.fit(target, credo.Laplace(structure=Diagonal()), progress=False)
    assert marginal.log_evidence.value == pytest.approx(hessian.log_evidence.value, abs=1e-6)
    if model is ENTRIES:  # each of which the data know
        low = credo.fit(target, credo.Laplace(structure=LowRank(5), curvature=GaussNewton()), progress=False)
        assert np.all(low.sd()["theta"] < 0.9)
    with pytest.raises(credo.CredoError, match=r"Kronecker\(\) goes row by row"):
        credo.fit(target, credo.Laplace(structure=Kronecker(), curvature=GaussNewton()))


def test_linearised_predictions_of_a_lag_have_its_variance():
    model = credo.Model(
        {"a": dist.Normal(0.0, 1.0), "b": dist.Normal(0.0, 1.0)},
        lambda p, x: dist.Normal(p["a"] * x + p["b"] * lag(x), 0.5),
    )
    posterior = credo.fit(model.given(X[:30], Y[:30]), credo.Laplace(), progress=False)
    new = np.array([1.0, 3.0, 0.1, 5.0, 0.2])
    design = np.column_stack([new, np.asarray(lag(new))])
    covariance = np.asarray(posterior.kind.scale.dense())
    expected = np.einsum("ij,jk,ik->i", design, covariance, design)
    for rule in (credo.Linearised(), credo.Quadrature()):
        np.testing.assert_allclose(posterior.predict(new, rule).epistemic, expected, rtol=1e-6)


def test_sds_by_solves_where_the_diagonal_is_an_estimate(monkeypatch):
    """A = I + 11ᵀ: its diagonal by signs is all noise, which once bounded the sds from below."""
    from credo.methods.laplace import matrix_free

    monkeypatch.setattr(matrix_free, "MOST_COLUMNS", 100)
    dim = 400
    model = credo.Model.from_log_density(
        lambda p: -0.5 * jnp.sum(p["x"] ** 2) - 0.5 * jnp.sum(p["x"]) ** 2, {"x": constraints.real}, shape={"x": (dim,)}
    )
    posterior = credo.fit(model.given(), credo.Laplace(structure=MatrixFree()), progress=False)
    np.testing.assert_allclose(posterior.sd()["x"], np.sqrt(1 - 1 / (dim + 1)), rtol=0.1)


@pytest.mark.parametrize("precision", first_of(["float64", "float32"]))
def test_a_narrow_prior_hides_no_correlation_of_the_others(precision):
    narrow = {"float32": 0.1, "float64": 1e-7}[precision]
    covariance = 1e4 * np.array([[1.0, 0.95], [0.95, 1.0]])
    prior = {"a": dist.Normal(0.0, narrow), "w": dist.MultivariateNormal(np.zeros(2), covariance)}
    model = credo.Model(prior, lambda p, x: dist.Normal(x[:, 0] * p["a"] + x[:, 1:] @ p["w"], 100.0))
    x = RANDOM.normal(size=(5, 3))
    method = credo.Laplace(structure=MatrixFree(), curvature=GaussNewton())
    posterior = credo.fit(model.given(x, Y[:5]), method, precision=precision, progress=False)
    prior_precision = np.zeros((3, 3))
    prior_precision[0, 0], prior_precision[1:, 1:] = narrow**-2, np.linalg.inv(covariance)
    exact = np.sqrt(np.diag(np.linalg.inv(prior_precision + x.T @ x / 100.0**2)))
    np.testing.assert_allclose(posterior.sd()["w"], exact[1:], rtol=1e-4)


@pytest.mark.parametrize(
    "prior", first_of([credo.nn.LaplacePrior(1.0), credo.nn.ScaleMixture()]), ids=["Laplace", "mixture"]
)
def test_a_prior_without_curvature_is_no_saddle(prior):
    """The data have it: the smallest eigenvalue is that of both, and not of the prior alone."""
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 2))
    y = np.tanh(x[:, 0] - x[:, 1]) + 0.1 * random.normal(size=300)
    start = {"a": random.normal(size=(2, 3)), "b": np.zeros(3), "c": random.normal(size=(3, 1))}
    network = credo.nn.BayesianNetwork(
        lambda p, x: jnp.tanh(x @ p["a"] + p["b"]) @ p["c"],
        start,
        head=credo.nn.Gaussian(dist.LogNormal(-1.0, 1.0)),
        prior=prior,
    )
    posterior = credo.fit(network.given(x, y), credo.Laplace(), key=0, progress=False)
    assert posterior.verdict.figures["min_curvature"] > 0
    assert posterior.log_evidence is not None


def test_tuning_does_not_hang_on_the_order_of_rows():
    random = np.random.default_rng(0)
    x = random.normal(size=(200, 2))
    x[:70] = 0  # at which this network says 0, whatever its weights
    y = np.tanh(x[:, 0] - x[:, 1]) + 0.1 * random.normal(size=200)
    start = {"a": random.normal(size=(2, 4)), "c": random.normal(size=(4, 1))}
    network = credo.nn.BayesianNetwork(
        lambda p, x: jnp.tanh(x @ p["a"]) @ p["c"],
        start,
        head=credo.nn.Gaussian(dist.LogNormal(-1.0, 1.0)),
        prior=credo.nn.Isotropic(dist.LogNormal(0.0, 3.0)),
    )
    posterior = credo.fit(network.given(x, y), credo.Laplace(), progress=False)
    assert posterior.info["tuned"] == ["noise", "precision"]


def test_quantiles_of_a_million_counts_and_more():
    from credo.predict.outcome import _poisson

    for rate in (2e6, 1e8):
        counts = np.round(rate + np.sqrt(rate) * np.linspace(-6, 6, 25))
        with double():
            found = _poisson(dist.Poisson(rate), counts)
        np.testing.assert_allclose(found, stats.poisson(rate).cdf(counts), atol=3e-8)
    assert _poisson(dist.Poisson(1e7), np.array([-1.0, 0.0, 1e3, 1e9])).tolist() == [0.0, 0.0, 0.0, 1.0]
