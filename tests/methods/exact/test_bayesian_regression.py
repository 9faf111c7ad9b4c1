"""Bayesian linear regression with known and unknown noise, against the marginal distribution of y."""

import numpy as np
import pytest
from scipy import stats

from credo.methods.exact.information import Information
from credo.methods.exact.linear_regression import LinearRegression, NormalInverseGammaLinearRegression
from credo.precision import double
from credo.status import CredoError

SHAPES = [(30, 4), (4, 9), (1, 1)]  # N > D, N < D, the smallest


def table(num_rows, dim, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(num_rows, dim))
    return x, x @ generator.normal(size=dim) + 0.5 * generator.normal(size=num_rows)


def covariance_of(dim, seed=1):
    root = np.random.default_rng(seed).normal(size=(dim, dim))
    return root @ root.T + 0.3 * np.eye(dim)


def known_noise(dim):
    covariance = covariance_of(dim)
    mean = np.linspace(-1, 1, dim)
    return {
        "one alpha": (LinearRegression(alpha=0.7, beta=3.0), np.zeros(dim), np.eye(dim) / 0.7),
        "an alpha a feature": (
            LinearRegression(np.linspace(0.5, 2.0, dim), 3.0, mean), mean, np.diag(1 / np.linspace(0.5, 2.0, dim)),
        ),
        "precision": (LinearRegression(np.linalg.inv(covariance), 3.0, mean), mean, covariance),
        "covariance": (LinearRegression.from_covariance(mean, covariance, 3.0), mean, covariance),
    }  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("prior", ["one alpha", "an alpha a feature", "precision", "covariance"])
def test_known_noise_equals_the_closed_form(shape, prior):
    x, y = table(*shape)
    model, mean, covariance = known_noise(shape[1])[prior]
    posterior = model.update(x, y)
    marginal = x @ covariance @ x.T + np.eye(len(y)) / 3.0
    gain = covariance @ x.T @ np.linalg.inv(marginal)
    expected_mean, expected = mean + gain @ (y - x @ mean), covariance - gain @ x @ covariance
    assert posterior.log_evidence.value == pytest.approx(
        stats.multivariate_normal.logpdf(y, x @ mean, marginal), rel=1e-10
    )
    np.testing.assert_allclose(posterior.mean()["weights"], expected_mean, rtol=1e-8)
    np.testing.assert_allclose(posterior.sd()["weights"], np.sqrt(np.diag(expected)), rtol=1e-8)
    with double():
        np.testing.assert_allclose(
            posterior.distributions["weights"].covariance_matrix, expected, rtol=1e-8, atol=1e-12
        )


@pytest.mark.parametrize("shape", SHAPES)
def test_unknown_noise_equals_the_closed_form(shape):
    x, y = table(*shape)
    mean, covariance = np.linspace(-1, 1, shape[1]), covariance_of(shape[1])
    model = NormalInverseGammaLinearRegression.from_covariance(mean, covariance, a=1.5, b=0.8)
    posterior = model.update(x, y)
    scale = 0.8 / 1.5 * (x @ covariance @ x.T + np.eye(len(y)))
    expected = stats.multivariate_t.logpdf(y, x @ mean, scale, df=3.0)
    assert posterior.log_evidence.value == pytest.approx(expected, rel=1e-10)
    # the weights' mean does not depend on the noise; their sd follows from E[σ²]
    known = LinearRegression.from_covariance(mean, covariance, 1.0).update(x, y)
    np.testing.assert_allclose(posterior.mean()["weights"], known.mean()["weights"], rtol=1e-9)
    if posterior.a > 1:
        noise = posterior.b / (posterior.a - 1)
        np.testing.assert_allclose(posterior.sd()["weights"], np.sqrt(noise) * known.sd()["weights"], rtol=1e-9)
        assert posterior.mean()["variance"] == pytest.approx(noise)


MODELS = {
    "known noise": LinearRegression(0.7, 3.0),
    "unknown noise": NormalInverseGammaLinearRegression(0.7, 1.5, 0.8),
}
each = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())


@each
@pytest.mark.parametrize("shape", SHAPES[:2])
def test_any_split_of_the_data_gives_the_same_answer(model, shape):
    x, y = table(*shape)
    generator = np.random.default_rng(5)
    batch = model.update(x, y)
    for num_parts in (2, 4):
        cuts = np.sort(generator.choice(np.arange(1, len(y)), num_parts - 1, replace=False))
        parts = model
        for rows in np.split(generator.permutation(len(y)), cuts):
            parts = parts.update(x[rows], y[rows])
        assert parts.log_evidence.value == pytest.approx(batch.log_evidence.value, rel=1e-10)
        for name, mean in batch.mean().items():
            np.testing.assert_allclose(parts.mean()[name], mean, rtol=1e-10)
            np.testing.assert_allclose(parts.sd()[name], batch.sd()[name], rtol=1e-10)


@each
def test_predictive_is_the_ratio_of_evidences(model):
    x, y = table(30, 4)
    before = model.update(x[:25], y[:25])
    after = before.update(x[25:], y[25:])
    ratio = after.log_evidence.value - before.log_evidence.value
    assert before.predictive(x[25:], joint=True).log_prob(y[25:]) == pytest.approx(ratio, rel=1e-10)
    one = before.update(x[25:26], y[25:26]).log_evidence.value - before.log_evidence.value
    assert before.predictive(x[25:]).log_prob(y[25:])[0] == pytest.approx(one, rel=1e-10)


@each
def test_predictive_rows_are_the_margins_of_the_joint(model):
    x, y = table(30, 4)
    posterior = model.update(x, y)
    rows, joint = posterior.predictive(x[:3]), posterior.predictive(x[:3], joint=True)
    np.testing.assert_allclose(rows.mean, joint.mean)
    np.testing.assert_allclose(rows.variance, joint.variance)
    draws = joint.sample(0, 20_000)
    assert np.all(np.abs(draws.mean(axis=0) - joint.mean) < 5 * np.sqrt(joint.variance / 20_000))


def test_unknown_noise_draws_weights_and_variance_together():
    x, y = table(30, 4)
    posterior = NormalInverseGammaLinearRegression(0.7, 1.5, 0.8).update(x, y)
    draws = posterior.sample(0, 20_000)
    for name, mean in posterior.mean().items():
        assert np.all(np.abs(draws[name].mean(axis=0) - mean) < 5 * posterior.sd()[name] / np.sqrt(20_000))
    away = draws["weights"] - posterior.mean()["weights"]
    squares = np.einsum("ni,ij,nj->n", away, 0.7 * np.eye(4) + x.T @ x, away) / draws["variance"]
    assert squares.mean() == pytest.approx(4.0, abs=5 * np.sqrt(2 * 4 / 20_000))  # χ² with four degrees of freedom


def test_the_condition_number_of_x_is_not_squared():
    x, y = table(40, 3)
    x[:, 2] = x[:, 0] + 1e-8 * x[:, 2]  # XᵀX is singular to working precision
    y = x @ np.array([1.0, 2.0, 3.0])
    posterior = LinearRegression(alpha=1e-20, beta=1.0).update(x, y)
    np.testing.assert_allclose(posterior.mean()["weights"], [1.0, 2.0, 3.0], rtol=1e-5)


def test_information_from_precision_and_from_covariance_agree():
    covariance, mean = covariance_of(5), np.arange(5.0)
    of_covariance = Information.of_covariance(mean, covariance)
    of_precision = Information.of_precision(mean, np.linalg.inv(covariance))
    np.testing.assert_allclose(of_covariance.mean, mean, atol=1e-10)
    assert of_covariance.log_det == pytest.approx(of_precision.log_det)
    np.testing.assert_allclose(of_covariance.scale_tril, np.linalg.cholesky(covariance), atol=1e-10)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: LinearRegression(alpha=0.0), "alpha is 0"),
        (lambda: LinearRegression(alpha=[1.0, -1.0]), "row 1 holds -1"),
        (lambda: LinearRegression(beta=-1.0), "beta is -1"),
        (lambda: LinearRegression([[1.0, 2.0], [2.0, 1.0]]), "not positive definite"),
        (lambda: LinearRegression([[1.0, 0.5], [0.0, 1.0]]), "not symmetric"),
        (lambda: LinearRegression.from_covariance([0.0], [[1.0, 0.0], [0.0, 1.0]], 1.0), "2 columns"),
        (lambda: LinearRegression([1.0, 1.0]).update([[1.0]], [1.0]), "1 columns"),
        (lambda: LinearRegression(1.0, 1.0, [0.0, 0.0, 0.0]).update([[1.0]], [1.0]), "1 columns"),
        (lambda: LinearRegression().update([1.0, 2.0], [1.0, 2.0]), "reshape"),
        (lambda: LinearRegression().update(np.zeros((0, 2)), []), "no rows"),
        (lambda: LinearRegression().update(np.zeros((2, 0)), [1.0, 2.0]), "no columns"),
        (lambda: LinearRegression().update([[1.0], [2.0]], [1.0]), "2 rows and y has 1"),
        (lambda: LinearRegression().update([[1.0], [np.nan]], [1.0, 2.0]), "in row 1"),
        (lambda: LinearRegression().update([[1.0]], [np.inf]), "not finite"),
        (lambda: LinearRegression().mean(), "before any data"),
        (lambda: NormalInverseGammaLinearRegression(1.0, 0.0, 1.0), "a is 0"),
        (lambda: NormalInverseGammaLinearRegression(1.0, 1.0, 1.0).predictive([[1.0]]), "before any data"),
    ],
)
def test_bad_input_is_a_sentence(call, words):
    with pytest.raises(CredoError, match=words):
        call()


@pytest.mark.slow
def test_a_large_table_equals_the_normal_equations():
    x, y = table(100_000, 1_000)
    posterior = LinearRegression(1.0, 4.0).update(x, y)
    ridge = np.linalg.solve(x.T @ x + np.eye(1_000) / 4.0, x.T @ y)
    np.testing.assert_allclose(posterior.mean()["weights"], ridge, rtol=1e-8, atol=1e-10)
