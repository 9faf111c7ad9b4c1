"""Perceptrons: scikit-learn's checks, units, densities that integrate to one, weights as counts, wrong settings."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss
from sklearn.utils import estimator_checks

import credo
from credo.estimators import BayesianLinearRegression, BayesianMLPClassifier, BayesianMLPRegressor
from credo.estimators.base import distinct_rows
from credo.estimators.choice import _smallest
from credo.status import CredoError

SMALL = credo.DeepEnsemble(members=2, num_steps=300)
RNG = np.random.default_rng(3)
X = RNG.uniform(-1.0, 1.0, (60, 2))
Y = np.sin(3 * X[:, 0]) + X[:, 1] + RNG.normal(0.0, 0.1, 60)
CORE = (
    "check_estimators_nan_inf",
    "check_estimators_unfitted",
    "check_n_features_in",
    "check_sample_weight_equivalence_on_dense_data",
)


@pytest.fixture(scope="module")
def regressor():
    return BayesianMLPRegressor((8,), SMALL).fit(X, Y)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [BayesianMLPRegressor, BayesianMLPClassifier])
def test_scikit_learn_checks(estimator):
    results = estimator_checks.check_estimator(estimator((8,), SMALL), on_skip=None)
    assert len(results) > 40
    assert {r["check_name"] for r in results if r["status"] != "passed"} <= {"check_array_api_input"}


@pytest.mark.parametrize("name", CORE)
def test_core_of_scikit_learn_checks(name):
    getattr(estimator_checks, name)("BayesianMLPRegressor", BayesianMLPRegressor((8,), SMALL))


@pytest.mark.slow
def test_units_of_columns_and_outcome_do_not_matter(regressor):
    """An affine map of X changes nothing, one of y maps the predictions, and its factor divides the density."""
    other = BayesianMLPRegressor((8,), SMALL).fit(3 * X + 1, 100 * Y - 7)
    mean, sd = regressor.predict(X, return_std=True)
    other_mean, other_sd = other.predict(3 * X + 1, return_std=True)
    np.testing.assert_allclose(other_mean, 100 * mean - 7, atol=1e-4)
    np.testing.assert_allclose(other_sd, 100 * sd, rtol=1e-5)
    density = regressor.log_prob(X, Y)
    np.testing.assert_allclose(other.log_prob(3 * X + 1, 100 * Y - 7), density - np.log(100), atol=1e-5)


@pytest.mark.parametrize("of_y", [1e160, 1e-200])
def test_outcomes_of_any_size_are_scaled(of_y, regressor):
    """Their squares are no numbers: predictions were inf, and y was said to be constant."""
    other = BayesianMLPRegressor((8,), SMALL).fit(1e160 * X, of_y * Y)
    np.testing.assert_allclose(other.predict(1e160 * X) / of_y, regressor.predict(X), atol=1e-6)


@pytest.mark.parametrize("noise", ["constant", "input"])
def test_the_density_integrates_to_one_and_has_the_moments(noise):
    model = BayesianMLPRegressor((8,), SMALL, noise=noise).fit(X, Y)
    grid = np.linspace(-12.0, 12.0, 4_001)
    density = np.exp(model.log_prob(np.tile(X[:1], (len(grid), 1)), grid))
    mean, sd = model.predict(X[:1], return_std=True)
    assert np.trapezoid(density, grid) == pytest.approx(1.0, abs=1e-6)
    assert np.trapezoid(grid * density, grid) == pytest.approx(mean[0], abs=1e-6)
    assert np.trapezoid((grid - mean) ** 2 * density, grid) == pytest.approx(sd[0] ** 2, rel=1e-5)


def test_noise_that_depends_on_the_input_is_found():
    x = np.linspace(-1.0, 1.0, 400)[:, None]
    y = np.where(x[:, 0] < 0, 0.05, 0.5) * RNG.normal(size=400)
    model = BayesianMLPRegressor((8,), SMALL, noise="input").fit(x, y)
    _, sd = model.predict([[-0.6], [0.6]], return_std=True)
    # sds of 200 rows each are known to 5 %; two members of few steps are not calibrated to more than a third
    np.testing.assert_allclose(sd, [0.05, 0.5], rtol=0.33)


def test_samples_have_the_moments(regressor):
    drawn = regressor.sample_y(X[:3], 4_000, random_state=1)
    mean, sd = regressor.predict(X[:3], return_std=True)
    assert drawn.shape == (3, 4_000)
    np.testing.assert_allclose(drawn.mean(axis=1), mean, atol=4 * sd.max() / np.sqrt(4_000))
    np.testing.assert_allclose(drawn.std(axis=1), sd, rtol=4 / np.sqrt(2 * 4_000) * 1.5)


@pytest.mark.slow
def test_laplace_is_linearised_and_knows_less_far_from_the_data():
    method = credo.Laplace(curvature=credo.GaussNewton())
    model = BayesianMLPRegressor((5,), method, activation="tanh").fit(X, Y)
    _, sd = model.predict([[0.0, 0.0], [3.0, -3.0]], return_std=True)
    assert sd[1] > 1.5 * sd[0]
    assert model.log_evidence_.kind == "laplace"
    assert model.score(X, Y) > 0.9


@pytest.mark.slow
def test_evidence_is_that_of_y_in_its_own_units():
    """Twice the unit halves each density; it was the evidence of standardised y."""
    method = credo.Laplace(curvature=credo.GaussNewton(), num_steps=100)
    weights = 1.0 + (np.arange(len(Y)) % 3 == 0)
    one, two = (BayesianMLPRegressor((3,), method).fit(X, s * Y, weights).log_evidence_.value for s in (1.0, 2.0))
    assert two == pytest.approx(one - weights.sum() * np.log(2.0), abs=1e-6)
    scaled = BayesianMLPRegressor((3,), method).fit(X, (Y - np.mean(Y)) / np.std(Y))
    assert scaled.log_evidence_.value == pytest.approx(scaled.posterior_.log_evidence.value, abs=1e-6)


@pytest.mark.slow
def test_the_mode_that_is_found_does_not_hang_on_units():
    """A unit of 10 changed the last bits of the scaled y, these the training, and that the mode it ended in."""
    one, ten = (BayesianMLPRegressor((8,), credo.Laplace()).fit(3.7 * unit * X, unit * Y) for unit in (1.0, 10.0))
    np.testing.assert_allclose(ten.predict(37 * X), 10 * one.predict(3.7 * X), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 3])
def test_classes(classes):
    x, codes = load_iris(return_X_y=True)
    x, codes = x[codes < classes], codes[codes < classes]
    names = np.array(["setosa", "versicolor", "virginica"])[codes]
    model = BayesianMLPClassifier((8,), SMALL).fit(x[::2], names[::2])
    probabilities = model.predict_proba(x[1::2])
    assert list(model.classes_) == list(np.unique(names))
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    assert np.all(model.predict(x[1::2]) == model.classes_[probabilities.argmax(axis=1)])
    assert model.score(x[1::2], names[1::2]) > 0.9


def test_survives_a_pickle_with_its_posterior(regressor):
    again = pickle.loads(pickle.dumps(regressor))
    np.testing.assert_array_equal(again.predict(X), regressor.predict(X))
    assert again.posterior_.verdict == regressor.posterior_.verdict
    fresh = clone(regressor).fit(X, Y)
    np.testing.assert_array_equal(fresh.predict(X), regressor.predict(X))


def test_equal_rows_are_one_row_of_their_weights():
    x, y, weights = distinct_rows(X[[0, 1, 0, 2]], Y[[0, 1, 0, 2]], np.array([1.0, 0.0, 2.0, 0.5]))
    order = np.argsort(weights)
    np.testing.assert_array_equal(x[order], X[[2, 0]])
    np.testing.assert_array_equal(y[order], Y[[2, 0]])
    np.testing.assert_array_equal(weights[order], [0.5, 3.0])


@pytest.mark.slow
def test_the_order_of_rows_and_how_they_are_counted_do_not_matter(regressor):
    """Bit for bit: a mean of y that rounds otherwise grew to 3 nats of evidence where training had not ended."""
    shuffled = np.random.default_rng(5).permutation(60)
    other = BayesianMLPRegressor((8,), SMALL).fit(X[shuffled], Y[shuffled])
    np.testing.assert_array_equal(other.predict(X), regressor.predict(X))
    weights = np.random.default_rng(6).integers(0, 3, 60)
    often = np.repeat(np.arange(60), weights)
    weighed = BayesianMLPRegressor((8,), SMALL).fit(X, Y, sample_weight=weights)
    np.testing.assert_array_equal(
        weighed.predict(X), BayesianMLPRegressor((8,), SMALL).fit(X[often], Y[often]).predict(X)
    )


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"hidden": ()}, "give the width of each hidden layer"),
        ({"hidden": (5, 0)}, "give the width of each hidden layer"),
        ({"activation": "swish"}, "activation='swish' does not exist: say 'relu'"),
        ({"noise": "none"}, "noise='none' does not exist: say 'constant' or 'input'"),
        ({"noise": np.array([1, 2])}, "does not exist: say 'constant' or 'input'"),
        ({"prior_scale": -1.0}, "prior_scale=-1.0 is no standard deviation"),
        ({"inference": credo.DeepEnsemble}, "with its brackets"),
    ],
)
def test_settings_that_are_none(settings, sentence):
    with pytest.raises(CredoError, match=sentence):
        BayesianMLPRegressor(**settings).fit(X, Y)


def test_data_that_cannot_be_fitted(regressor):
    with pytest.raises(CredoError, match="y is constant"):
        BayesianMLPRegressor().fit(X, np.ones(60))
    with pytest.raises(CredoError, match="one class only"):
        BayesianMLPClassifier().fit(X, np.ones(60, int))
    with pytest.raises(CredoError, match="one outcome a row"):
        regressor.log_prob(X, Y[:5])
    with pytest.raises(CredoError, match="in different orders"):
        regressor.log_prob(pd.DataFrame(X), pd.Series(Y)[::-1])
    with pytest.raises(CredoError, match="NaN"):
        regressor.log_prob(X, np.ma.masked_greater(Y, 0.0))
    with pytest.raises(CredoError, match="y holds text"):
        regressor.log_prob(X, ["a"] * 60)


# what is chosen by rows held out --------------------------------------------------------------------------------------


def wave(number: int, seed: int):
    random = np.random.default_rng(seed)
    x = random.uniform(-2.0, 2.0, (number, 1))
    return x, np.sin(5 * x[:, 0]) + random.normal(0.0, 0.1, number)


@pytest.mark.slow
def test_a_narrow_prior_makes_way_for_what_the_data_ask_for():
    """Under prior scale 1 the mode of weights and noise is the constant network, R² 0.04."""
    x_new, y_new = wave(500, 1)
    model = BayesianMLPRegressor().fit(*wave(200, 0))
    assert model.prior_scale_ > 1
    assert model.score(x_new, y_new) > 0.7
    assert BayesianMLPRegressor(prior_scale=1.0).fit(*wave(200, 0)).score(x_new, y_new) < 0.3


@pytest.mark.slow
def test_the_noise_of_few_rows_is_not_that_of_the_rows_that_were_learned():
    """Of 60 rows of a linear law of eight columns, noise 1, the mode has next to none."""

    def linear(number: int, seed: int):
        x = np.random.default_rng(seed).normal(size=(number, 8))
        return x, 2 * x[:, 0] + np.random.default_rng(seed + 1).normal(size=number)

    x_new, y_new = linear(500, 8)
    model = BayesianMLPRegressor().fit(*linear(60, 4))
    mean, sd = model.predict(x_new, return_std=True)
    assert np.mean(np.abs(y_new - mean) < 1.645 * sd) > 0.7
    np.testing.assert_allclose(model.posterior_.mean()["noise"], model._fitted.recipe.noise, rtol=0.05)
    of_mode = BayesianMLPRegressor(prior_scale=1.0).fit(*linear(60, 4))
    assert model.log_prob(x_new, y_new).mean() > of_mode.log_prob(x_new, y_new).mean() + 1


@pytest.mark.slow
def test_classes_are_predicted_with_the_confidence_that_they_deserve():
    x, y = load_iris(return_X_y=True)
    fitted = {scale: BayesianMLPClassifier(prior_scale=scale).fit(x[::2], y[::2]) for scale in (None, 1.0)}
    assert fitted[None].prior_scale_ > 1
    score = {scale: log_loss(y[1::2], model.predict_proba(x[1::2])) for scale, model in fitted.items()}
    assert score[None] < 0.5 * score[1.0]


@pytest.mark.parametrize(
    ("size", "settings"), [(29, {}), (60, {"prior_scale": 1.0}), (60, {"inference": credo.MAP(num_steps=50)})]
)
def test_nothing_is_chosen_of_few_rows_or_where_it_is_given(size, settings):
    model = BayesianMLPRegressor(**{"inference": SMALL, **settings}).fit(X[:size], Y[:size])
    assert model.prior_scale_ == 1.0
    assert model._fitted.recipe.noise is None


@pytest.mark.parametrize(
    ("losses", "place"),
    [
        ([[1.0, 1.2, 1.1], [0.0, 0.1, 0.2], [0.1, 0.0, 0.0]], 1),  # apart, then alike
        ([[np.inf, 1.0], [2.0, 2.0]], 1),
        ([[np.inf, 1.0], [np.inf, 1.0]], 0),
    ],
)
def test_the_smallest_scale_within_a_standard_error(losses, place):
    assert _smallest([np.array(loss) for loss in losses], np.ones(len(losses[0]))) == place


def test_figures_of_predictions_take_no_estimator(regressor):
    for figure in (credo.diagnose.pit, credo.diagnose.interval_coverage):
        with pytest.raises(CredoError, match="takes the predictive that .*; got BayesianMLPRegressor"):
            figure(regressor, Y)
    with pytest.raises(CredoError, match="got BayesianMLPRegressor"):
        credo.diagnose.novelty_scores(regressor)


def test_weights_that_decay_are_no_scale_to_mend(regressor):
    """A constant column's weights have only the prior, and none of them is told to be standardised."""
    constant = BayesianMLPRegressor((8,), SMALL, prior_scale=1.0).fit(np.column_stack([X, np.ones(len(X))]), Y)
    assert not any("differ in scale" in said for said in constant.posterior_.verdict.sentences)


def test_a_failed_posterior_is_warned_of():
    x = np.random.default_rng(0).normal(size=(40, 2))
    method = credo.NUTS(chains=1, num_warmup=0, num_draws=4)
    with pytest.warns(ConvergenceWarning, match="The posterior of this BayesianLinearRegression has failed"):
        model = BayesianLinearRegression(method).fit(x, x[:, 0] + 1e-3 * x[:, 1])
    assert model.posterior_.verdict.status == "failed"
