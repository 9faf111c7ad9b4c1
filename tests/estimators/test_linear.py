"""Linear regression by evidence against its definition, and by methods against the closed form."""

import pickle

import numpy as np
import pandas as pd
import pytest
from scipy.linalg import helmert
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.linear_model import BayesianRidge
from sklearn.utils.estimator_checks import check_estimator

import credo
from credo.estimators import BayesianLinearRegression, BayesianLogisticRegression, BayesianMLPRegressor
from credo.precision import double
from credo.status import CredoError

RNG = np.random.default_rng(8)
X = RNG.normal([1.0, 200.0, 0.0], [1.0, 50.0, 0.01], (30, 3))
Y = 4.0 + X @ [1.0, -0.02, 30.0] + RNG.normal(0.0, 0.5, 30)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (pd.Categorical(["u", "v"] * 15), "u"),
        (pd.Series([None, "w"] * 15, dtype="string"), "w"),
        (pd.date_range("2020-01-01", periods=30), "2020-01-01 00:00:00"),
    ],
    ids=["categories", "text", "dates"],
)
@pytest.mark.parametrize("estimator", [BayesianLinearRegression, BayesianLogisticRegression, BayesianMLPRegressor])
def test_columns_that_hold_no_numbers_are_named(estimator, column, value):
    """These were NumPy's errors, which named no column."""
    table = pd.DataFrame({"a": X[:, 0], "g": column})
    y = (Y.mean() < Y).astype(int)
    with pytest.raises(CredoError, match=f"Column 'g' of X holds '{value}', and an estimator takes numbers"):
        estimator().fit(table, y)
    fitted = BayesianLinearRegression().fit(table.assign(g=X[:, 1]), y)
    with pytest.raises(CredoError, match=f"Column 'g' of X holds '{value}'"):
        fitted.predict(table)


def scaled(x=X):
    return (x - X.mean(axis=0)) / X.std(axis=0)


def test_scikit_learn_checks():
    results = check_estimator(BayesianLinearRegression(), on_skip=None)
    assert len(results) > 40
    assert {r["check_name"] for r in results if r["status"] != "passed"} <= {"check_array_api_input"}


def test_the_evidence_is_that_of_the_contrasts_and_at_its_maximum():
    """A contrast is orthogonal to the constant: H y ~ N(0, H X Xᵀ Hᵀ/α + I/β), whatever the intercept."""
    model = BayesianLinearRegression().fit(X, Y)
    h = helmert(30)
    spread = h @ scaled() @ scaled().T @ h.T

    def evidence(alpha, noise_sd):
        return multivariate_normal(np.zeros(29), spread / alpha + noise_sd**2 * np.eye(29)).logpdf(h @ Y)

    best = evidence(model.alpha_, model.noise_sd_)
    assert float(model.log_evidence_) == pytest.approx(best, abs=1e-8)
    for step in (0.99, 1.01):
        assert evidence(step * model.alpha_, model.noise_sd_) < best
        assert evidence(model.alpha_, step * model.noise_sd_) < best


def test_prediction_is_gaussian_conditioning_under_a_flat_intercept():
    model = BayesianLinearRegression().fit(X, Y)
    new = X[:4] + 1.0
    every = np.vstack([scaled(), scaled(new)])
    # a flat prior as the limit of a wide one: 1e6 against a posterior sd of 0.1 leaves an error of 1e-10
    prior = 1e6 + every @ every.T / model.alpha_ + model.noise_sd_**2 * np.eye(34)
    gain = np.linalg.solve(prior[:30, :30], prior[:30, 30:])
    mean, sd = model.predict(new, return_std=True)
    np.testing.assert_allclose(mean, Y.mean() + gain.T @ (Y - Y.mean()), rtol=1e-5)
    np.testing.assert_allclose(sd**2, np.diag(prior[30:, 30:] - prior[30:, :30] @ gain), rtol=1e-4)
    np.testing.assert_allclose(new @ model.coef_ + model.intercept_, mean, rtol=1e-12)


def test_the_posterior_is_the_one_of_its_target():
    """log p(u, D) − log q(u) is the same constant everywhere, and ``predict`` says what the estimator says."""
    posterior = BayesianLinearRegression().fit(X, Y).posterior_
    with double():
        gaps = [
            float(posterior.target.log_density(u) - posterior.kind.log_prob_u(u))
            for u in np.random.default_rng(0).normal([4.0, 0, 0, 0], 0.5, (4, 4))
        ]
    np.testing.assert_allclose(gaps, gaps[0], rtol=1e-9)
    model = BayesianLinearRegression().fit(X, Y)
    predictive = posterior.predict(model.inputs(X[:3]), credo.Linearised())
    mean, sd = model.predict(X[:3], return_std=True)
    np.testing.assert_allclose(predictive.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(np.sqrt(predictive.variance), sd, rtol=1e-9)


def test_agrees_with_bayesian_ridge_where_the_intercept_costs_little():
    x, y = load_diabetes(return_X_y=True)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    ours = BayesianLinearRegression().fit(x, y)
    theirs = BayesianRidge(alpha_1=0, alpha_2=0, lambda_1=0, lambda_2=0, tol=1e-10, max_iter=10_000).fit(x, y)
    # they count N for N − 1; column 1 has two values and is scaled by their difference here
    ours.fit(np.delete(x, 1, axis=1), y)
    theirs.fit(np.delete(x, 1, axis=1), y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=0.05 * np.abs(theirs.coef_).max())
    assert ours.noise_sd_ == pytest.approx(theirs.alpha_**-0.5, rel=2 / 442)


@pytest.mark.filterwarnings("ignore:The posterior of this")
@pytest.mark.parametrize("method", [credo.Laplace(), credo.NUTS(num_draws=500)])
def test_methods_agree_with_the_evidence(method):
    by_evidence, model = BayesianLinearRegression().fit(X, Y), BayesianLinearRegression(method).fit(X, Y)
    mean, sd = by_evidence.predict(X, return_std=True)
    other, other_sd = model.predict(X, return_std=True)
    np.testing.assert_allclose(other, mean, atol=0.15)  # posterior sd of the mean: 0.1 to 0.2
    np.testing.assert_allclose(other_sd, sd, rtol=0.15)  # the noise is estimated too: 1 / √(2 · 26) = 0.14
    assert model.log_evidence_ is None or model.log_evidence_.kind == "laplace"
    assert model.posterior_.target.size == 30  # without the rows that fill up


def test_features_that_say_nothing_are_pruned_and_that_is_said():
    rng = np.random.default_rng(0)
    y = np.tile([1.0, -1.0], 20)
    x = rng.normal(size=(40, 3))
    x -= x.mean(axis=0)
    x -= np.outer(y, y @ x) / 40  # orthogonal to y
    model = BayesianLinearRegression().fit(x, y)
    assert model.alpha_ == np.inf
    np.testing.assert_allclose(model.predict(rng.normal(size=(2, 3))), 0.0, atol=1e-12)
    assert "do not support any feature" in str(model.posterior_.verdict)


def test_survives_a_pickle_with_its_posterior():
    model = BayesianLinearRegression().fit(X, Y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_allclose(again.posterior_.mean()["coefficients"], model.posterior_.mean()["coefficients"])
    assert again.posterior_.verdict == model.posterior_.verdict
    assert clone(model).get_params() == model.get_params()


@pytest.mark.parametrize("estimator", [BayesianLinearRegression(), BayesianMLPRegressor()], ids=["linear", "mlp"])
def test_what_a_mask_hides_is_missing(estimator):
    """scikit-learn's own checks read the numbers under it."""
    hidden = np.ma.masked_greater(X, X.max() - 1e-9)
    with pytest.raises(ValueError, match="X contains NaN"):
        estimator.fit(hidden, Y)
    with pytest.raises(ValueError, match="y contains NaN"):
        estimator.fit(X, np.ma.masked_greater(Y, Y.max() - 1e-9))
    with pytest.raises(ValueError, match="weight.*NaN"):
        estimator.fit(X, Y, sample_weight=np.ma.masked_array(np.ones(30), np.arange(30) == 3))


@pytest.mark.filterwarnings("ignore:The posterior of this")
@pytest.mark.parametrize("estimator", [BayesianLinearRegression(), BayesianLogisticRegression()])
def test_scores_are_of_pairs_that_belong_together(estimator):
    y = Y if isinstance(estimator, BayesianLinearRegression) else (np.median(Y) < Y).astype(int)
    fitted = estimator.fit(X, y)
    assert fitted.score(pd.DataFrame(X), pd.Series(y)) == fitted.score(X, y)
    with pytest.raises(ValueError, match="in different orders"):
        fitted.score(pd.DataFrame(X), pd.Series(y)[::-1])
    with pytest.raises(ValueError, match="A mask hides 1 of y"):
        fitted.score(X, np.ma.masked_array(y, np.arange(30) == 3))


def test_what_a_mask_hides_is_not_predicted_for():
    with pytest.raises(ValueError, match="X contains NaN"):
        BayesianLinearRegression().fit(X, Y).predict(np.ma.masked_greater(X, X.max() - 1e-9))


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        (X, np.full(30, 3.0), "y is constant .3 in every row"),
        (X, np.where(np.arange(30) == 3, np.nan, Y), "contains NaN"),
        (np.where(X[0, 0] == X, np.inf, X), Y, "contains infinity"),
        (X, Y[:-1], "inconsistent numbers of samples"),
        (X[:1], Y[:1], "minimum of 2 is required"),
        (X[:0], Y[:0], "0 sample"),
    ],
)
def test_what_cannot_be_fitted_is_a_value_error(x, y, sentence):
    with pytest.raises(ValueError, match=sentence):
        BayesianLinearRegression().fit(x, y)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"prior_scale": 0.0}, "prior_scale=0.0 is no standard deviation"),
        ({"prior_scale": "wide"}, "prior_scale='wide' is no"),
        ({"inference": credo.NUTS}, "with its brackets"),
        ({"inference": "nuts"}, "takes a method such as"),
        ({"inference": credo.Laplace(), "random_state": -1}, "random_state=-1 is no seed"),
        ({"inference": credo.Laplace(), "random_state": "day"}, "random_state='day' is no seed"),
    ],
)
def test_settings_that_are_none(settings, sentence):
    with pytest.raises(CredoError, match=sentence):
        BayesianLinearRegression(**settings).fit(X, Y)


def test_constant_and_repeated_columns_and_fewer_rows_than_columns_work():
    x = np.column_stack([X, X[:, 0], np.ones(30)])
    model = BayesianLinearRegression().fit(x, Y)
    assert model.coef_[4] == 0.0
    assert model.coef_[0] == pytest.approx(model.coef_[3])
    few = BayesianLinearRegression().fit(RNG.normal(size=(5, 12)), RNG.normal(size=5))
    assert np.all(np.isfinite(few.predict(np.zeros((2, 12)), return_std=True)))


def test_columns_that_fit_exactly_are_named():
    x = np.arange(12.0).reshape(6, 2) ** 1.5
    model = BayesianLinearRegression().fit(x, 1.0 + x @ [2.0, 3.0])
    np.testing.assert_allclose(model.coef_, [2.0, 3.0], rtol=1e-2)
    assert model.posterior_.verdict.status == "doubtful"
    assert "fit y exactly" in str(model.posterior_.verdict)


def test_weights_are_counts():
    with pytest.raises(CredoError, match="sum to 1, less than two rows.*Multiply them to sum to 30"):
        BayesianLinearRegression().fit(X, Y, sample_weight=np.full(30, 1 / 30))
    with pytest.raises(ValueError, match=r"[Nn]egative"):
        BayesianLinearRegression().fit(X, Y, sample_weight=-np.ones(30))


@pytest.mark.slow
def test_few_rows_leave_the_noise_in_doubt():
    """One value of it is taken for certain: 90 % intervals hold 0.65 of new outcomes at five rows, and more at many."""

    def covered(num_rows: int) -> tuple[float, set[str]]:
        held, said = [], set()
        for seed in range(60):
            random = np.random.default_rng(seed)
            x, new, w = random.normal(size=(num_rows, 3)), random.normal(size=(20, 3)), random.normal(size=3)
            model = BayesianLinearRegression().fit(x, x @ w + random.normal(size=num_rows))
            mean, sd = model.predict(new, return_std=True)
            held.append(np.mean(np.abs(new @ w + random.normal(size=20) - mean) < 1.645 * sd))
            said.add(model.posterior_.verdict.status)
        return float(np.mean(held)), said

    few, many = covered(6), covered(40)
    assert few[0] < 0.8
    assert few[1] == {"doubtful"}
    assert 0.86 < many[0] < 0.92
    assert many[1] == {"pass"}


def test_a_constant_column_of_two_roundings_is_constant():
    random = np.random.default_rng(0)
    a, c = random.normal(size=100), np.where(random.random(100) < 0.5, 0.3, 0.1 + 0.2)
    model = BayesianLinearRegression().fit(np.c_[a, c], a + 0.1 * random.normal(size=100))
    mean, sd = model.predict([[0.0, 0.3], [0.0, 0.31]], return_std=True)
    assert abs(mean[1] - mean[0]) < 1e-6
    assert abs(sd[1] / sd[0] - 1) < 0.1


@pytest.mark.parametrize(("of_x", "of_y"), [(1e155, 1), (1e-170, 1), (1e-200, 1), (1, 1e160), (1, 1e-200)])
def test_units_of_any_size_are_units(of_x, of_y):
    """Squares of 1e155 overflow and of 1e-170 vanish: coefficients were 0, or there was an error of NumPy's."""
    x = np.random.default_rng(0).normal(size=(40, 2)) + 1
    y = x @ [1.0, -2.0] + np.random.default_rng(1).normal(size=40)
    plain, model = BayesianLinearRegression().fit(x, y), BayesianLinearRegression().fit(x * of_x, y * of_y)
    np.testing.assert_allclose(model.coef_ * of_x / of_y, plain.coef_, rtol=1e-9)
    for own, other in zip(model.predict(x * of_x, return_std=True), plain.predict(x, return_std=True), strict=True):
        np.testing.assert_allclose(own / of_y, other, rtol=1e-9)
    assert model.log_evidence_.value == pytest.approx(plain.log_evidence_.value - 39 * np.log(of_y))


def test_rows_of_no_weight_have_no_say_in_what_is_constant():
    weights, y = np.ones(30), Y.copy()
    weights[0], y[0] = 0.0, 1e13
    found = BayesianLinearRegression().fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(found.coef_, BayesianLinearRegression().fit(X[1:], Y[1:]).coef_, rtol=1e-6)
