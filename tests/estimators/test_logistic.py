"""Logistic regression: scikit-learn's checks, known modes and integrals, shapes compiled once, wrong inputs."""

import logging
import pickle

import jax
import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils import estimator_checks

import credo
from credo.estimators import BayesianLogisticRegression
from credo.estimators.base import padding
from credo.estimators.logistic import expected_sigmoid
from credo.status import CredoError

RNG = np.random.default_rng(4)
X = RNG.normal([1.0, 50.0], [1.0, 20.0], (60, 2))
Y = np.where(RNG.uniform(size=60) < expit(X @ [1.5, 0.03] - 3.0), "yes", "no")

CORE = (
    "check_estimators_pickle",
    "check_estimators_nan_inf",
    "check_estimators_unfitted",
    "check_classifiers_one_label",
)


@pytest.mark.filterwarnings("ignore:The posterior of this")
@pytest.mark.slow
def test_scikit_learn_checks():
    results = estimator_checks.check_estimator(BayesianLogisticRegression(), on_skip=None)
    assert len(results) > 40
    assert {r["check_name"] for r in results if r["status"] != "passed"} <= {"check_array_api_input"}


@pytest.mark.parametrize("name", CORE)
def test_core_of_scikit_learn_checks(name):
    getattr(estimator_checks, name)("BayesianLogisticRegression", BayesianLogisticRegression())


def test_the_coefficients_are_at_the_mode():
    """The gradient of log posterior in the scaled columns vanishes: Σ (y − p) x = w / prior variance."""
    weights = RNG.integers(0, 3, 60)
    model = BayesianLogisticRegression(prior_scale=1.5).fit(X, Y, sample_weight=weights)
    centre = np.average(X, axis=0, weights=weights)
    sd = np.sqrt(np.average((X - centre) ** 2, axis=0, weights=weights))
    scaled = (X - centre) / sd
    w = model.coef_[0] * sd
    b = model.intercept_[0] + centre @ model.coef_[0]
    rest = weights * ((Y == "yes") - expit(b + scaled @ w))
    np.testing.assert_allclose(scaled.T @ rest, w / 1.5**2, atol=1e-5)
    assert rest.sum() == pytest.approx(b / 5.0**2, abs=1e-5)


@pytest.mark.parametrize("unit", [1e160, 1e-200])
def test_columns_of_any_size_are_scaled(unit):
    """Their squares are no numbers: the coefficients were 0."""
    model = BayesianLogisticRegression().fit(unit * X, Y)
    np.testing.assert_allclose(unit * model.coef_, BayesianLogisticRegression().fit(X, Y).coef_, rtol=1e-6)


def test_probabilities_are_integrals_over_the_gaussian():
    model = BayesianLogisticRegression().fit(X, Y)
    posterior = model.posterior_
    mean, covariance = posterior.kind.mean, posterior.kind.scale.dense()
    new = np.array([[1.0, 50.0], [9.0, 300.0], [-4.0, -80.0]])
    scaled = (new - X.mean(axis=0)) / X.std(axis=0)
    for row, p in zip(scaled, model.predict_proba(new)[:, 1], strict=True):
        design = np.array([1.0, *row])
        m, s = design @ mean, np.sqrt(design @ covariance @ design)
        exact = quad(lambda t, m=m, s=s: expit(m + s * t) * norm.pdf(t), -9, 9, epsabs=1e-12, points=[-m / s])[0]
        assert p == pytest.approx(exact, abs=1e-8)


@pytest.mark.parametrize("method", [None, pytest.param(credo.NUTS(num_draws=250), marks=pytest.mark.slow)])
def test_multiclass_agrees_with_prediction_from_the_posterior(method):
    x, y = load_iris(return_X_y=True)
    x = np.delete(x, 1, axis=1)
    model = BayesianLogisticRegression(method).fit(x[::2], y[::2])
    assert model.coef_.shape == (3, 3)
    ours = model.predict_proba(x[1::30])
    scaled = (x[1::30] - x[::2].mean(axis=0)) / x[::2].std(axis=0)
    np.testing.assert_allclose(model.inputs(x[1::30])["features"], scaled, rtol=1e-12)
    theirs = model.posterior_.predict(model.inputs(x[1::30]), key=1).probs
    with pytest.raises(credo.CredoError, match="inputs.x. of an estimator"):
        model.posterior_.predict(x[1::30])
    # two sets of 1,000 draws of probabilities with sd below 0.25: 4 standard errors
    np.testing.assert_allclose(ours, theirs, atol=4 * 0.25 * np.sqrt(2 / 1_000))
    np.testing.assert_allclose(ours.sum(axis=1), 1.0)
    assert model.score(x[1::2], y[1::2]) > 0.9


def compiled(caplog) -> list[str]:
    return [record.message for record in caplog.records if "Finished XLA compilation" in record.message]


@pytest.mark.parametrize("sd", [1.0, 19.9, 20.1, 300.0, 10_000.0])
def test_the_mean_of_a_sigmoid_is_right_however_wide_the_logit_is(sd):
    """Fixed nodes saw a step at 1,000 sds between two of them, and missed by 0.008."""
    z, h = np.linspace(-9, 9, 2_000_001, retstep=True)
    m = np.array([-1.3, 0.2]) * sd
    with np.errstate(under="ignore"):
        expected = [np.sum(expit(each + sd * z) * norm.pdf(z)) * h for each in m]
    np.testing.assert_allclose(expected_sigmoid(m, np.full(2, sd)), expected, atol=2e-8)


@pytest.mark.slow
def test_a_grid_search_in_a_pipeline_compiles_each_shape_once(caplog):
    """Folds that differ by a row share a shape, and so do all prior scales."""
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "colour": np.tile(["red", "green", "blue"], 20)})
    columns = ColumnTransformer([("n", StandardScaler(), ["a", "b"]), ("c", OneHotEncoder(), ["colour"])])
    pipe = make_pipeline(columns, BayesianLogisticRegression())
    for rows in (slice(0, 45), slice(0, 60)):
        pipe.fit(frame[rows], Y[rows])
    grid = GridSearchCV(
        pipe, {"bayesianlogisticregression__prior_scale": [0.3, 1.0, 3.0]}, cv=4, scoring="neg_log_loss"
    )
    with jax.log_compiles(True), caplog.at_level(logging.WARNING):
        grid.fit(frame, Y)
    assert compiled(caplog) == []
    assert np.all(np.isfinite(grid.cv_results_["mean_test_score"]))


def test_folds_that_differ_by_a_row_are_padded_alike():
    sizes = [n + padding(n) for n in range(1, 3_000)]
    assert all(n <= size for n, size in enumerate(sizes, start=1))
    assert sizes == sorted(sizes)
    assert all(size <= 1.125 * n + 1 for n, size in enumerate(sizes, start=1) if n >= 16)
    assert len({size for size in sizes if size >= 64}) <= 8 * np.log2(3_000 / 64) + 8


def test_padding_changes_nothing():
    model = BayesianLogisticRegression().fit(X[:57], Y[:57])
    target = model.posterior_.target
    assert (target.size, padding(57) > 0) == (57, True)
    direct = credo.fit(target, credo.Laplace(), progress=False)
    np.testing.assert_allclose(model.posterior_.mean()["coefficients"], direct.mean()["coefficients"], atol=1e-6)
    assert float(model.log_evidence_) == pytest.approx(float(direct.log_evidence), abs=1e-6)


def test_scores_in_cross_validation():
    assert cross_val_score(BayesianLogisticRegression(), X, Y, cv=3).mean() > 0.6


def test_survives_a_pickle_with_its_posterior():
    model = BayesianLogisticRegression().fit(X, Y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(again.posterior_.mean()["coefficients"], model.posterior_.mean()["coefficients"])


# wrong and difficult inputs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        (X, np.full(60, "yes"), "one class only .'yes'"),
        (np.where(X[0, 0] == X, np.nan, X), Y, "contains NaN"),
        (np.where(X[0, 0] == X, np.inf, X), Y, "contains infinity"),
        (X, RNG.normal(size=60), "Unknown label type"),
        (X, Y[:-1], "inconsistent numbers of samples"),
        (X[:0], Y[:0], "0 sample"),
        ([["a", "b"], ["c", "d"]], [0, 1], "could not convert"),
    ],
)
def test_what_cannot_be_fitted_is_a_value_error(x, y, sentence):
    with pytest.raises(ValueError, match=sentence):
        BayesianLogisticRegression().fit(x, y)


def test_one_class_among_the_rows_that_count():
    with pytest.raises(CredoError, match="one class only .'no'"):
        BayesianLogisticRegression().fit(X, Y, sample_weight=Y == "no")
    with pytest.raises(ValueError, match="at least one non-zero"):
        BayesianLogisticRegression().fit(X, Y, sample_weight=np.zeros(60))


@pytest.mark.parametrize("prior_scale", [0, -1.0, np.nan, np.inf, True])
def test_a_prior_scale_is_positive(prior_scale):
    with pytest.raises(CredoError, match="is no standard deviation: give a positive number"):
        BayesianLogisticRegression(prior_scale=prior_scale).fit(X, Y)


@pytest.mark.filterwarnings("ignore:The posterior of this")
def test_separable_classes_work_under_the_prior_and_that_is_said():
    x = X[np.abs(X[:, 0] - 1.0) > 0.4]
    y = x[:, 0] > 1.0
    narrow, wide = (BayesianLogisticRegression(prior_scale=s).fit(x, y) for s in (2.5, 10.0))
    for model in (narrow, wide):
        assert model.score(x, y) == 1.0
        assert "separate the classes perfectly" in str(model.posterior_.verdict)
    assert np.abs(narrow.coef_).max() < np.abs(wide.coef_).max()
    assert "separate the classes" not in str(BayesianLogisticRegression().fit(X, Y).posterior_.verdict)


def test_constant_and_repeated_columns_work():
    x = np.column_stack([X, X[:, 0], np.full(60, 3.0)])
    model = BayesianLogisticRegression().fit(x, Y)
    assert model.coef_[0, 3] == pytest.approx(0.0, abs=1e-9)
    assert model.coef_[0, 0] == pytest.approx(model.coef_[0, 2], rel=1e-5)


@pytest.mark.filterwarnings("ignore:The posterior of this")
def test_fewer_rows_than_columns_work_and_that_is_said():
    model = BayesianLogisticRegression().fit(RNG.normal(size=(10, 20)), np.tile([0, 1], 5))
    assert np.all(np.isfinite(model.predict_proba(np.zeros((1, 20)))))
    sentences = [s for s in model.posterior_.verdict.sentences if "fewer rows" in s]
    assert len(sentences) == 1
    assert "fewer rows (10) than parameters (21)" in sentences[0]


@pytest.mark.slow
def test_the_random_state_is_the_key():
    method = credo.NUTS(chains=2, num_draws=100, num_warmup=100)
    first, second, other = (
        BayesianLogisticRegression(method, random_state=s).fit(X, Y).predict_proba(X[:3])
        for s in (1, 1, np.random.RandomState(3))
    )
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


def test_labels_of_two_kinds_are_named():
    labels = np.array(["a", 1, "a", 1], object)
    with pytest.raises(credo.CredoError, match="labels that are text, such as 'a', beside others, such as 1: make"):
        BayesianLogisticRegression().fit(X[:4], labels)


@pytest.mark.parametrize("dtype", [object, "string"])
def test_labels_that_are_missing_are_counted(dtype):
    with pytest.raises(ValueError, match=r"y has 1 labels that are missing \(the first in row 2\)"):
        BayesianLogisticRegression().fit(np.eye(4), pd.Series(["a", "b", None, "b"], dtype=dtype))
