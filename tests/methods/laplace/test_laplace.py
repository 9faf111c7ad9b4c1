"""Laplace: exact on Gaussians, evidence error of order 1/N, and nothing hidden where no Gaussian fits."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy import special
from sklearn.datasets import load_breast_cancer

from credo.fitting import fit
from credo.methods.laplace import Dense, Diagonal, Laplace
from credo.methods.optimise import MAP
from credo.methods.optimise.subproblem import _value_gradient_curvature
from credo.model.model import Model
from credo.precision import double
from targets import TARGETS, logistic_likelihood


def covariance(posterior) -> np.ndarray:
    with double():
        return np.asarray(posterior.kind.scale.dense())


@pytest.mark.parametrize("name", ["gaussian", "ill_conditioned"])
def test_exact_on_gaussians(name):
    known = TARGETS[name]()
    posterior = fit(known.target, Laplace(), key=1)
    assert posterior.verdict.status == "pass"
    assert posterior.verdict.figures["pareto_k"] <= 0
    np.testing.assert_allclose(posterior.mean()["w"], known.mean["w"], atol=1e-10)
    np.testing.assert_allclose(posterior.sd()["w"], known.sd["w"], rtol=1e-10)
    assert posterior.log_evidence.kind == "laplace"
    assert np.isnan(posterior.log_evidence.error)
    np.testing.assert_allclose(posterior.log_evidence.value, known.log_evidence, atol=1e-10)


def correlated_likelihood(params, x):
    return dist.Normal(x @ params["w"], 0.3)


def test_exact_on_linear_regression_with_a_gaussian_prior():
    """Prior N(m₀, S₀): mean, covariance and evidence in closed form.

    The prior is a callable so that NumPyro factorises S₀ in float64: outside of Credo it does so in float32.
    """
    rng = np.random.default_rng(40)
    x, m0 = rng.normal(size=(30, 3)), np.array([1.0, -1.0, 0.5])
    S0 = np.array([[2.0, 0.8, 0.0], [0.8, 1.0, -0.2], [0.0, -0.2, 0.5]])
    y = x @ [1.0, 2.0, 3.0] + 0.3 * rng.normal(size=30)
    model = Model({"w": lambda: dist.MultivariateNormal(m0, covariance_matrix=S0)}, correlated_likelihood)
    posterior = fit(model.given(x, y), Laplace())
    precision = np.linalg.inv(S0) + x.T @ x / 0.3**2
    mean = np.linalg.solve(precision, np.linalg.solve(S0, m0) + x.T @ y / 0.3**2)
    marginal = x @ S0 @ x.T + 0.3**2 * np.eye(30)
    log_evidence = -0.5 * (
        (y - x @ m0) @ np.linalg.solve(marginal, y - x @ m0) + np.linalg.slogdet(2 * np.pi * marginal)[1]
    )
    np.testing.assert_allclose(posterior.mean()["w"], mean, rtol=1e-10)
    np.testing.assert_allclose(covariance(posterior), np.linalg.inv(precision), rtol=1e-10)
    np.testing.assert_allclose(posterior.log_evidence.value, log_evidence, rtol=1e-10)


@pytest.mark.parametrize(
    ("prior", "mean", "curvature"),
    [(dist.Gamma(4.0, 2.0), np.log(4 / 2), 4.0), (dist.Beta(2.0, 5.0), np.log(2 / 5), 10 / 7)],
    ids=["gamma", "beta"],
)
def test_mode_is_that_of_unconstrained_space(prior, mean, curvature):
    """log x of a Gamma(a, b) has its mode at log(a/b), curvature a; logit x of a Beta(a, b) at log(a/b), ab/(a + b)."""
    posterior = fit(Model({"x": prior}, None).given(), Laplace())
    np.testing.assert_allclose(posterior.kind.mean, [mean], atol=1e-9)
    np.testing.assert_allclose(covariance(posterior), [[1 / curvature]], rtol=1e-9)
    assert "Jacobian included" in posterior.info["mode"]


# the evidence -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 2])
def test_error_of_evidence_falls_as_one_over_the_data(dim):
    """Logistic regression on twenty rows, each counted w times: log p(D) − Laplace ~ c/(20 w)."""
    rng = np.random.default_rng(41)
    x = rng.normal(size=(20, dim))
    y = (rng.uniform(size=20) < special.expit(x @ np.ones(dim))).astype(int)
    model = Model({"w": dist.Normal(0.0, 1.0).expand([dim])}, logistic_likelihood)
    counts, errors = [16, 32, 64, 128, 256], []
    for count in counts:
        posterior = fit(model.given(x, y, weights=np.full(20, float(count))), Laplace())
        errors.append(abs(posterior.log_evidence.value - quadrature(posterior, x, y, count)))
    slope = np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert -1.1 < slope < -0.9


def quadrature(posterior, x, y, count: int) -> float:
    """log ∫ p(w) p(D | w)^count by the trapezium rule, whose error is below 1e-12 for so smooth a function."""
    dim = x.shape[1]
    axis = np.linspace(-10, 10, 161)
    z = np.stack(np.meshgrid(*[axis] * dim, indexing="ij"), axis=-1).reshape(-1, dim)
    root = np.linalg.cholesky(covariance(posterior))
    w = posterior.kind.mean + z @ root.T
    logits = w @ x.T
    log_density = count * (y * logits - np.logaddexp(0, logits)).sum(axis=1)
    log_density += -0.5 * (w**2).sum(axis=1) - 0.5 * dim * np.log(2 * np.pi)
    return special.logsumexp(log_density) + dim * np.log(axis[1] - axis[0]) + np.linalg.slogdet(root)[1]


def test_no_evidence_under_an_improper_prior():
    model = Model({"w": dist.ImproperUniform(constraints.real, (3,), ())}, correlated_likelihood)
    x = np.random.default_rng(42).normal(size=(30, 3))
    assert fit(model.given(x, x.sum(axis=1)), Laplace()).log_evidence is None


@pytest.mark.parametrize("key", [1, 5, 6])
def test_a_mean_that_is_off_does_not_pass_for_want_of_draws(key):
    """Breast cancer, 31 coefficients: a mean is off by 0.33 sd (NUTS), which 1,000 draws of these keys cannot tell."""
    table = load_breast_cancer()
    x = (table.data - table.data.mean(axis=0)) / table.data.std(axis=0)
    x = np.column_stack([np.ones(len(x)), x])
    target = Model({"w": dist.Normal(0.0, 1.0).expand([31])}, logistic_likelihood).given(x, table.target)
    posterior = fit(target, Laplace(), key=key, progress=False)
    assert posterior.verdict.status == "doubtful"
    assert any("move the worst mean" in sentence for sentence in posterior.verdict.sentences)


# where no Gaussian fits -------------------------------------------------------------------------------------------


def saddle(params):
    return -0.5 * params["a"] ** 2 + 0.5 * params["b"] ** 2 - 0.25 * params["b"] ** 4


SADDLE = Model.from_log_density(saddle, {"a": constraints.real, "b": constraints.real}).given()


def test_saddle_is_reported_where_the_search_is_held_there():
    posterior = fit(SADDLE, Laplace(num_steps=0), start={"a": 0.0, "b": 0.0})
    assert posterior.verdict.status == "failed"
    np.testing.assert_allclose(posterior.verdict.figures["min_curvature"], -1.0)
    assert any("led by b" in sentence for sentence in posterior.verdict.sentences)
    assert posterior.log_evidence is None
    assert np.all(np.isfinite(posterior.sample(1, 3)["b"]))


def test_a_saddle_that_no_diagonal_shows_is_failed():
    """Ones on the diagonal of the curvature, and the eigenvalues 3 and −1."""

    def crossed(params):
        return -0.5 * params["a"] ** 2 - 0.5 * params["b"] ** 2 - 2 * params["a"] * params["b"]

    target = Model.from_log_density(crossed, {"a": constraints.real, "b": constraints.real}).given()
    posterior = fit(target, Laplace(structure=Diagonal(), num_steps=0), start={"a": 0.0, "b": 0.0})
    assert posterior.verdict.status == "failed"
    np.testing.assert_allclose(posterior.verdict.figures["min_curvature"], -1.0)
    assert posterior.log_evidence is None


def test_no_evidence_away_from_the_mode():
    target = TARGETS["gaussian"]().target
    posterior = fit(target, Laplace(num_steps=0), start=np.full(target.dim, 3.0))
    assert posterior.verdict.status == "failed"
    assert posterior.log_evidence is None


def test_saddle_is_left_otherwise():
    posterior = fit(SADDLE, Laplace(), start={"a": 0.0, "b": 0.0})
    np.testing.assert_allclose(np.abs(posterior.kind.mean), [0.0, 1.0], atol=1e-9)
    np.testing.assert_allclose(posterior.verdict.figures["min_curvature"], 1.0, rtol=1e-6)


def test_flat_direction_is_failed_and_named():
    model = Model.from_log_density(
        lambda params: -0.5 * (params["a"] + params["b"]) ** 2, {"a": constraints.real, "b": constraints.real}
    )
    posterior = fit(model.given(), Laplace())
    assert posterior.verdict.status == "failed"
    assert posterior.verdict.figures["min_curvature"] == 0
    assert any("led by" in sentence for sentence in posterior.verdict.sentences)
    assert posterior.log_evidence is None


def heavy_tailed(params):
    return -0.6 * jnp.sum(jnp.log1p(params["x"] ** 2))


def test_heavy_tails_show_in_the_pareto_figure():
    posterior = fit(Model.from_log_density(heavy_tailed, {"x": constraints.real}, {"x": (10,)}).given(), Laplace())
    assert posterior.verdict.figures["pareto_k"] > 0.7
    assert posterior.verdict.status != "pass"


def edge(params):
    return jnp.log(params["x"]) - params["x"] ** 2 + jnp.where(params["x"] > 1.5, jnp.nan, 0.0)


def test_pareto_figure_that_cannot_be_computed_does_not_pass():
    posterior = fit(Model.from_log_density(edge, {"x": constraints.positive}).given(), Laplace())
    assert np.isnan(posterior.verdict.figures["pareto_k"])
    assert posterior.verdict.status != "pass"


# structure, starts ------------------------------------------------------------------------------------------------


def test_diagonal_keeps_conditional_variances():
    known = TARGETS["gaussian"]()
    dense, diagonal = (fit(known.target, Laplace(structure=s)) for s in (Dense(), Diagonal()))
    precision = np.linalg.inv(covariance(dense))
    np.testing.assert_allclose(diagonal.sd()["w"], np.diagonal(precision) ** -0.5, rtol=1e-10)
    np.testing.assert_allclose(
        diagonal.log_evidence.value - dense.log_evidence.value,
        0.5 * (np.linalg.slogdet(precision)[1] - np.log(np.diagonal(precision)).sum()),
        rtol=1e-9,
    )


def test_start_chooses_among_modes():
    target = TARGETS["mixture"]().target
    left, right = (fit(target, Laplace(), start=np.array([x])) for x in (-3.0, 3.0))
    np.testing.assert_allclose([left.mean()["x"], right.mean()["x"]], [-4.0, 4.0], atol=1e-6)
    again = fit(target, Laplace(), start=left)
    np.testing.assert_allclose(again.mean()["x"], left.mean()["x"], atol=1e-9)
    assert again.info["num_gradients"] <= 2


def test_same_key_same_answer():
    target = TARGETS["logistic"]().target
    first, again = (fit(target, Laplace(), key=5) for _ in range(2))
    np.testing.assert_array_equal(first.kind.scale.lower, again.kind.scale.lower)
    assert first.verdict.figures == again.verdict.figures


def test_map_and_laplace_share_a_program():
    target = Model({"x": dist.Gamma(4.0, 2.0), "m": dist.Normal(0.0, 1.0)}, None).given()
    fit(target, MAP())
    compiled = _value_gradient_curvature(True).quick._cache_size()
    fit(target, Laplace())
    assert _value_gradient_curvature(True).quick._cache_size() == compiled


def schools(params, x):
    return dist.Normal(params["theta"][x], 15.0)


@pytest.mark.parametrize("structure", [Dense(), Diagonal()])
def test_a_mode_at_a_scale_of_zero_is_failed_and_finite(structure):
    """Eight schools in its centred form: log tau runs off, and its curvature with it."""
    prior = {
        "mu": dist.Normal(0.0, 5.0),
        "tau": dist.HalfCauchy(5.0),
        "theta": lambda mu, tau: dist.Normal(mu, tau).expand([8]),
    }
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    posterior = fit(Model(prior, schools).given(np.arange(8), y), Laplace(structure=structure), progress=False)
    assert posterior.verdict.status == "failed"
    assert any("tau is" in sentence for sentence in posterior.verdict.sentences)
    predictive = posterior.predict(np.arange(8))
    drawn, mean, sd = posterior.sample(0, 500), posterior.mean(), posterior.sd()
    answers = [
        *drawn.values(),
        *mean.values(),
        *sd.values(),
        predictive.mean,
        predictive.variance,
        predictive.log_prob(y),
    ]
    assert all(np.all(np.isfinite(answer)) for answer in answers)
    assert posterior.log_evidence is None
