"""Predictive checks: p-values that are uniform where theory says so, and extreme where the model is wrong."""

import dataclasses
import functools

import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo import CredoError, Model, memory
from credo.diagnose.checks import Check, check_prior, make_check

N, NUM_DRAWS = 30, 1_000
X = np.linspace(-1.0, 1.0, N)


def line(params, x):
    return dist.Normal(params["a"] + params["b"] * x, 1.0)


MODEL = Model({"a": dist.Normal(0.0, 1.0), "b": dist.Normal(0.0, 1.0)}, line)
Y = 0.5 - X + np.sqrt(2.0) * np.sin(2.4 * np.arange(N) ** 2)  # variance of 1, nearly


def fitted(y):
    return credo.fit(MODEL.given(X, y), credo.Laplace())


def test_prior_p_values_are_uniform():
    """Data drawn from prior and likelihood: T(y) is one more draw beside the replicated ones (Box, 1980)."""
    data = MODEL.sample_prior_predictive(5, X, 400)
    replicated, target = MODEL.sample_prior_predictive(6, X, NUM_DRAWS), MODEL.given(X, Y)
    p = np.sort([make_check(np.mean, dataclasses.replace(target, y=y), replicated).p_value for y in data])
    distance = np.max(np.abs(p - (np.arange(400) + 0.5) / 400))
    assert distance < 1.95 * np.sqrt(1 / 400 + 1 / NUM_DRAWS)  # Kolmogorov-Smirnov of two samples, at 1e-3


def test_a_posterior_check_of_a_sum_has_its_closed_form():
    """ȳ_rep | D ~ N(m, v + 1/N): the p-value is a normal tail."""
    posterior = fitted(Y)
    check = posterior.check(np.mean, num_draws=4_000, key=3)
    x = np.stack([np.ones(N), X], axis=1)
    covariance = np.linalg.inv(np.eye(2) + x.T @ x)
    mean = x.mean(axis=0) @ covariance @ x.T @ Y
    sd = np.sqrt(x.mean(axis=0) @ covariance @ x.mean(axis=0) + 1 / N)
    from scipy import stats

    expected = stats.norm.sf(Y.mean(), mean, sd)
    assert abs(check.p_value - expected) < 4.5 * np.sqrt(expected * (1 - expected) / 4_000)
    assert abs(check.replicated.mean() - mean) < 4.5 * sd / np.sqrt(4_000)
    assert check.observed == Y.mean()
    assert check.replicated.shape == (4_000,)
    assert check.sentence.startswith("The data are like those of the model")


@pytest.mark.parametrize(("outlier", "side", "p"), [(15.0, "above", 0.0), (-15.0, "below", 1.0)])
def test_what_the_model_does_not_reproduce(outlier, side, p):
    y = np.where(np.arange(N) == 4, outlier, Y)
    check = fitted(y).check(np.max if outlier > 0 else np.min)
    assert check.p_value == p
    assert check.sentence.startswith("The model does not reproduce this aspect of the data (observed")
    assert f"lies {side} it" in check.sentence
    assert repr(check) == f"<Check: {check.sentence}>"


def test_the_statistic_may_take_the_inputs():
    """A slope left out of the model shows in the correlation with x, which y alone does not."""
    level = Model({"a": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["a"] + 0.0 * x, 1.0))
    posterior = credo.fit(level.given(X, Y - 2 * X), credo.Laplace())
    check = posterior.check(lambda y, x: np.corrcoef(y, x)[0, 1])
    assert check.p_value > 0.999
    assert check.observed < 0
    assert 0.05 < posterior.check(lambda y, scale=2.0: scale * y.mean()).p_value < 0.95


def test_ties_count_half_and_builtins_have_no_signature():
    coin = Model({"p": dist.Beta(1.0, 1.0)}, lambda params, x: dist.Bernoulli(params["p"]).expand([4]))
    target = coin.given(y=np.array([0, 1, 0, 1]))
    check = make_check(max, target, np.array([[0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 1]]))
    assert check.p_value == 0.5 * 0.75


def test_prior_checks():
    wide = 1e3 * Y
    assert check_prior(MODEL.given(X, wide), np.std).p_value == 0.0
    assert 0.01 < check_prior(MODEL.given(X, Y), np.std, num_draws=200, key=1).p_value < 0.99
    flat = Model({"a": dist.ImproperUniform(dist.constraints.real, (), ())}, lambda p, x: dist.Normal(p["a"] + x, 1.0))
    with pytest.raises(CredoError, match="'a' has an improper prior"):
        check_prior(flat.given(X, Y), np.mean)


def test_rows_count_as_often_as_their_weights():
    """Rows of weight 0, as of a fold left out, and rows that stand for several."""
    y, weights = Y.copy(), np.ones(N)
    y[:6], weights[:6] = 50.0, 0.0
    weights[6:9] = [2.0, 3.0, 2.0]
    often = np.repeat(np.arange(N), weights.astype(int))
    target, same = MODEL.given(X, y, weights=weights), MODEL.given(X[often], y[often])
    for statistic in (np.mean, np.size, lambda y, x: float(np.dot(y, x))):
        checks = [credo.fit(each, credo.Exact()).check(statistic, num_draws=500, key=1) for each in (target, same)]
        checks += [check_prior(each, statistic, num_draws=500, key=1) for each in (target, same)]
        for one, other in (checks[:2], checks[2:]):
            np.testing.assert_allclose(one.observed, other.observed)
            np.testing.assert_allclose(one.replicated, other.replicated, rtol=1e-6)
    for unusable, sentence in ((0.5 * weights, "parts of rows .1.5 of one"), (0.0 * weights, "All weights are 0")):
        with pytest.raises(CredoError, match=sentence):
            check_prior(MODEL.given(X, y, weights=unusable), np.mean)


def test_replicates_that_memory_does_not_hold_are_refused(monkeypatch):
    """Weights may count rows that the data do not hold."""
    monkeypatch.setattr(memory, "available_memory", lambda: 2_000_000)  # of which a task takes half
    sentence = r"num_draws=1000 needs 4.8 MB for 300 rows.*num_draws=200 needs"
    with pytest.raises(CredoError, match=sentence):
        check_prior(MODEL.given(X, Y, weights=np.full(N, 10.0)), np.mean)
    assert len(check_prior(MODEL.given(X, Y), np.mean).replicated) == NUM_DRAWS


def test_refused():
    target = MODEL.given(X, Y)
    replicated = np.zeros((3, N))
    with pytest.raises(CredoError, match=r"returned shape \(30,\): it must reduce y to one number"):
        make_check(lambda y: y, target, replicated)
    with pytest.raises(CredoError, match="not finite for the data"):
        make_check(lambda y: np.nan, target, replicated)
    with pytest.raises(CredoError, match="not finite for 3 of 3 replicated data sets"):
        make_check(lambda y: y.mean() if y.any() else np.nan, target, replicated)
    with pytest.raises(CredoError, match="function of y that returns a number"):
        check_prior(target, "mean")  # type: ignore[arg-type]
    with pytest.raises(CredoError, match="needs the model.s likelihood and observed y"):
        check_prior(MODEL.given(X), np.mean)


def test_a_plot_shows_both():
    from matplotlib.figure import Figure

    ax = Check(2.0, np.random.default_rng(0).normal(size=50), 0.01).plot(Figure().subplots())
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["replicated", "observed"]
    assert sum(patch.get_height() for patch in ax.patches) == 50
    assert list(ax.lines[0].get_xdata()) == [2.0, 2.0]
    assert Check(2.0, np.full(5, 1.0), 0.0).plot(Figure().subplots()).patches


@pytest.mark.parametrize(
    ("statistic", "settings", "sentence"),
    [
        (lambda y: np.inf, {}, "statistic is not finite for the data"),
        (lambda y: None, {}, "statistic cannot be computed|statistic is not finite"),
        (lambda y: "high", {}, "statistic cannot be computed"),
        (lambda y: y[99], {}, "statistic cannot be computed .IndexError"),
        (np.mean, {"num_draws": 0}, "num_draws is a whole number from 1; got 0"),
        (np.mean, {"num_draws": 1.5}, "num_draws is a whole number from 1; got 1.5"),
    ],
)
def test_what_cannot_be_checked_is_said(statistic, settings, sentence):
    model = credo.Model({"a": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["a"], 1.0).expand([4]))
    target = model.given(y=np.arange(4.0))
    posterior = credo.fit(target, credo.Exact())
    for check in (posterior.check, functools.partial(check_prior, target)):
        with pytest.raises(credo.CredoError, match=sentence):
            check(statistic, **settings)


ONE_ROW = Model({"b": dist.Normal(0.0, 2.0)}, lambda params, x: dist.Normal(params["b"], 1.0))
ROWS = np.random.default_rng(0).normal(1.0, 1.0, 50)


@pytest.mark.parametrize("x", [None, np.zeros(50)])
def test_a_likelihood_of_one_row_is_that_of_each(x):
    """One number was drawn in place of 50, so that sums and sds of right models came out impossible."""
    target = ONE_ROW.given(x, ROWS)
    posterior = credo.fit(target, credo.Exact())
    assert posterior.check(np.size).observed == 50
    for check in (posterior.check, lambda statistic: check_prior(target, statistic)):
        np.testing.assert_array_equal(check(np.size).replicated, 50)
    assert 0.05 < posterior.check(np.std).p_value < 0.95
    of_mean = posterior.check(np.mean).replicated
    assert np.std(of_mean) == pytest.approx(np.sqrt(2 / 50), rel=0.1)


def test_a_likelihood_of_one_row_fills_rows_columns_and_joint_draws():
    from credo.model.distributions import broadcast

    y = np.zeros((7, 3))
    assert broadcast(dist.Normal(0.0, 1.0), y).batch_shape == (7, 3)
    assert broadcast(dist.Normal(np.zeros(3), 1.0), y).batch_shape == (7, 3)
    assert broadcast(dist.Normal(np.zeros((1, 3)), 1.0), 7).batch_shape == (7, 3)
    joint = dist.MultivariateNormal(np.zeros(3), np.eye(3))
    assert broadcast(joint, y).batch_shape == (7,)
    assert broadcast(joint, y[:, 0][:3]) is joint
    assert broadcast(joint, 3) is joint
    assert broadcast(joint, 7).batch_shape == (7,)
    whole = dist.Normal(np.zeros(7), 1.0)
    assert broadcast(whole, 7) is broadcast(whole, y[:, 0]) is whole
    drawn = ONE_ROW.sample_prior_predictive(0, np.zeros(5), 4)
    assert drawn.shape == (4, 5)
    assert np.all(np.std(drawn, axis=1) > 0)


THREE = {"b": dist.Normal(0.0, 2.0).expand([3])}


def test_prior_predictive_draws_have_the_rows_of_x():
    columns = Model(THREE, lambda params, x: dist.Normal(params["b"], 1.0).to_event(1))
    assert columns.sample_prior_predictive(0, np.zeros(7), 4).shape == (4, 7, 3)
    assert columns.sample_prior_predictive(0, None, 4).shape == (4, 3)
    entries = Model(THREE, lambda params, x: dist.Normal(params["b"], 1.0))
    with pytest.raises(credo.CredoError, match=r"shape \(3,\) for 7 rows of x.*to_event"):
        entries.sample_prior_predictive(0, np.zeros(7), 4)


def test_a_likelihood_of_a_batch_of_one_predicts_each_row():
    model = Model({"b": dist.Normal(0.0, 2.0)}, lambda params, x: dist.Normal(params["b"] * np.ones(1), 1.0))
    posterior = credo.fit(model.given(np.zeros(50), ROWS), credo.Laplace())
    assert posterior.predict(np.zeros(4)).mean.shape == (4,)
    np.testing.assert_array_equal(posterior.check(np.size, num_draws=5).replicated, 50)


def test_outcomes_in_two_columns_are_drawn_for_each_row():
    model = Model(
        {"m": dist.Normal(0.0, 2.0), "rate": dist.Gamma(2.0, 1.0)},
        lambda params, x: {"size": dist.Normal(params["m"], 1.0), "count": dist.Poisson(params["rate"])},
    )
    target = model.given(y={"size": ROWS[:9], "count": np.arange(9)})
    check = check_prior(target, lambda y: float(np.size(y["size"]) + np.size(y["count"])), num_draws=5)
    np.testing.assert_array_equal(check.replicated, 18)


@pytest.mark.parametrize("y", [[1, 1, 1, 1, 0, 0, 0, 0, 0, 0], [0, 0, 1, 0, 1, 0, 0, 1, 0, 1]])
def test_ties_of_sums_in_another_order_are_ties(y):
    """The sd of the same outcomes differs in its last digit."""
    model = Model({"q": dist.Beta(8.0, 8.0)}, lambda params, x: dist.Bernoulli(params["q"]))
    check = check_prior(model.given(y=np.array(y)), np.std, num_draws=2_000)
    beyond = check.replicated - check.observed
    assert check.p_value == np.mean(beyond > 1e-9) + 0.5 * np.mean(np.abs(beyond) < 1e-9)


def test_a_statistic_across_rows_is_no_check_where_an_input_is_a_lag():
    """Replicated outcomes keep the lags that were seen: the right model had p = 0 for its autocorrelation."""
    rng = np.random.default_rng(0)
    y = np.zeros(200)
    for t in range(1, 200):
        y[t] = 0.8 * y[t - 1] + rng.normal()
    model = Model(
        {"a": dist.Normal(0.0, 1.0), "s": dist.HalfNormal(2.0)}, lambda p, x: dist.Normal(p["a"] * x["lag"], p["s"])
    )
    posterior = credo.fit(model.given({"lag": y[:-1]}, y[1:]), credo.Laplace(), key=0, progress=False)
    across = posterior.check(lambda values: np.corrcoef(values[1:], values[:-1])[0, 1])
    assert across.lag == 1
    assert "holds the outcome 1 row before" in across.sentence
    for statistic in (np.std, lambda values, x: np.mean(values - x["lag"])):
        assert posterior.check(statistic).lag == 0
    other = credo.fit(model.given({"lag": rng.permutation(y[:-1])}, y[1:]), credo.Laplace(), key=0, progress=False)
    assert other.check(lambda values: np.corrcoef(values[1:], values[:-1])[0, 1]).lag == 0
