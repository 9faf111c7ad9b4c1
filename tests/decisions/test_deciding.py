"""Searches, lists of actions, rows in chunks, wrong requests: what a user's own loss meets."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo.decisions import Absolute, CostMatrix, Interval, Pinball, Reject, Squared, ZeroOne
from credo.decisions.belief import OfPredictive, Outcomes
from credo.decisions.interval import highest_density
from credo.decisions.search import by_coordinates
from credo.precision import double

RNG = np.random.default_rng(3)
X = RNG.normal(size=(40, 2))
CLASSES = (RNG.uniform(size=40) < 1 / (1 + np.exp(-X[:, 0]))).astype(int)


def logistic(params, x):
    return dist.Bernoulli(logits=x @ params["w"])


def softmax(params, x):
    return dist.Categorical(logits=x @ params["w"])


def line(params, x):
    return dist.Normal(x @ params["w"], 1.0)


def several(params, x):
    return {"size": dist.Normal(x @ params["w"], 1.0), "class": dist.Bernoulli(logits=x @ params["w"])}


def columns(params, x):
    return dist.Normal(x @ params["w"], 1.0).to_event(1)


@functools.cache
def posterior() -> credo.Posterior:
    model = credo.Model({"w": dist.Normal(0.0, 1.0).expand([2])}, logistic)
    return credo.fit(model.given(X, CLASSES), credo.Laplace(), progress=False)


@functools.cache
def binary() -> credo.Predictive:
    return posterior().predict(X, credo.Quadrature())


@functools.cache
def continuous() -> credo.Predictive:
    model = credo.Model({"w": dist.Normal(0.0, 1.0).expand([2, 3])}, columns)
    return credo.fit(model.given(X, X @ np.ones((2, 3))), credo.MAP(), progress=False).predict(X[:4])


@functools.cache
def joint() -> credo.Predictive:
    model = credo.Model({"w": dist.Normal(0.0, 1.0).expand([2])}, several)
    target = model.given(X, {"size": X[:, 0], "class": CLASSES})
    return credo.fit(target, credo.MAP(), progress=False).predict(X[:3])


def draws(*shape: int) -> Outcomes:
    values = RNG.gamma(2.0, size=shape)
    return Outcomes(jnp.asarray(values), jnp.full(shape[:2], 1 / shape[0]), shape[0])


# searching --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "best"),
    [
        (lambda a, y: jnp.sum((a - y) ** 2), lambda y: np.mean(y, axis=0)),
        (lambda a, y: jnp.sum(jnp.abs(a - y)), lambda y: np.median(y, axis=0)),
        (lambda a, y: jnp.sum(jnp.maximum(0.9 * (y - a), 0.1 * (a - y))), lambda y: np.quantile(y, 0.9, axis=0)),
        # coupled columns: the mean again, at the end of a valley that lies across the coordinates
        (lambda a, y: jnp.sum((a - y) ** 2) + 5 * jnp.sum(a - y) ** 2, lambda y: np.mean(y, axis=0)),
    ],
    ids=["squared", "absolute", "pinball", "coupled"],
)
def test_the_search_finds_the_best_action_on_its_draws(loss, best):
    with double():
        drawn = draws(501, 3, 2)
        found = by_coordinates(loss, jnp.zeros((3, 2)), drawn)
        np.testing.assert_allclose(found, best(np.asarray(drawn.values)), atol=1e-5)


def test_the_interval_on_draws_is_the_best_of_all_pairs():
    """Against all pairs of ends, of weighted draws with two modes."""
    y = np.concatenate([RNG.normal(size=(30, 4)), 5 + RNG.normal(size=(20, 4))])
    weights = RNG.dirichlet(np.ones(50), size=4).T
    low, high = highest_density(y, weights, 0.15)

    def risk(low, high, row):
        inside = (low <= y[:, row]) & (y[:, row] <= high)
        return 1 - weights[inside, row].sum() + 0.15 * (high - low)

    for row in range(4):
        best = min(risk(a, b, row) for a in y[:, row] for b in y[:, row] if a <= b)
        np.testing.assert_allclose(risk(low[row], high[row], row), best)


def test_a_parameter_by_itself_starts_from_a_number():
    decision = credo.decide(posterior(), lambda a, params: (a - params["w"][0]) ** 2, start=0.0)
    sd = posterior().sd()["w"][0]
    np.testing.assert_allclose(decision.action, posterior().mean()["w"][0], atol=4.5 * sd / np.sqrt(4_096))
    assert isinstance(decision.expected_loss, float)
    assert abs(decision.expected_loss - sd**2) < 4.5 * decision.error


def test_parameters_are_decided_together_in_the_structure_of_the_prior():
    for loss, action in ((Squared(), posterior().mean()), (Pinball(0.2), posterior().quantile(0.2))):
        np.testing.assert_array_equal(credo.decide(posterior(), loss).action["w"], action["w"])


def test_several_columns_are_decided_entry_by_entry_and_priced_as_a_row():
    decision = credo.decide(continuous(), Absolute())
    np.testing.assert_allclose(decision.action, continuous().mean, atol=1e-6)
    assert decision.expected_loss.shape == (4,)
    truth = 3 * np.sqrt(2 / np.pi)  # E|N(0, 1)| for each of three columns
    assert np.all(np.abs(decision.expected_loss - truth) < 4.5 * decision.error)
    low, high = credo.decide(continuous(), Interval(0.1)).action
    assert low.shape == high.shape == (4, 3)
    assert np.all(low < high)


def test_several_outcomes_are_decided_by_name_and_priced_together():
    decision = credo.decide(joint(), Squared())
    np.testing.assert_array_equal(decision.action["size"], joint().mean["size"])
    np.testing.assert_allclose(decision.expected_loss, 1.0 + joint().variance["class"], rtol=1e-12)  # of a point
    own = credo.decide(
        joint(), lambda action, y: (y["size"] - 3) ** 2 if action == "size" else y["class"], ["size", "class"]
    )
    np.testing.assert_array_equal(own.action, "class")
    assert np.all(np.abs(own.expected_loss - joint().mean["class"]) < 4.5 * own.error)


# choosing ---------------------------------------------------------------------------------------------------------


def test_actions_may_be_names():
    costs = {"treat": lambda y: 1.0 - 0.5 * y, "wait": lambda y: 3.0 * y}
    decision = credo.decide(binary(), lambda action, y: costs[action](y), ["treat", "wait"])
    p = binary().probs
    expected = np.stack([1 - 0.5 * p, 3 * p])
    np.testing.assert_array_equal(decision.action, np.array(["treat", "wait"])[np.argmin(expected, axis=0)])
    np.testing.assert_allclose(decision.expected_loss, expected.min(axis=0))
    assert not decision.error.any()
    rejected = credo.decide(binary(), Reject(0.5, lambda action, y: costs[action](y)), iter(["treat", "wait"])).action
    np.testing.assert_array_equal(rejected == None, expected.min(axis=0) > 0.5)  # noqa: E711, entry by entry


def test_a_list_of_numbers_is_searched_whole():
    grid = np.linspace(0.0, 1.0, 101)
    decision = credo.decide(binary(), Squared(), grid)  # Brier's score: the best forecast is the probability
    assert np.all(np.abs(decision.action - binary().probs) <= 0.005 + 1e-9)


def test_three_classes_and_four_actions():
    model = credo.Model({"w": dist.Normal(0.0, 1.0).expand([2, 3])}, softmax)
    fit = credo.fit(model.given(X, RNG.integers(0, 3, 40)), credo.MAP(), progress=False)
    predictive = fit.predict(X)
    costs = np.array([[0, 1, 5], [1, 0, 1], [2, 2, 0], [0.6, 0.6, 0.6]])
    decision = credo.decide(predictive, CostMatrix(costs))
    expected = predictive.probs @ costs.T
    np.testing.assert_array_equal(decision.action, expected.argmin(axis=1))
    np.testing.assert_allclose(decision.expected_loss, expected.min(axis=1))
    matrix = jnp.asarray(costs)
    own = credo.decide(predictive, lambda action, y: matrix[action, y], range(4))
    np.testing.assert_array_equal(own.action, decision.action)
    with pytest.raises(credo.CredoError, match="no order"):
        credo.decide(predictive, Squared())


def test_the_same_key_decides_alike_whatever_the_chunks(monkeypatch):
    """Rows in chunks: classes need no draws, so that the answers are the same to rounding."""
    predictive = posterior().predict(X)
    whole = credo.decide(predictive, CostMatrix.binary(false_positive=1.0, false_negative=3.0))
    again = credo.decide(predictive, CostMatrix.binary(false_positive=1.0, false_negative=3.0))
    np.testing.assert_array_equal(whole.expected_loss, again.expected_loss)
    monkeypatch.setattr("credo.decisions.belief.MEMORY", 2**18)
    rows = OfPredictive(predictive, jax.random.key(0), 100).each(
        lambda drawn: np.full(drawn.weights.shape[1], drawn.weights.shape[1])
    )
    assert len(rows) == 40
    assert rows.max() < 40
    cut = credo.decide(predictive, CostMatrix.binary(false_positive=1.0, false_negative=3.0))
    np.testing.assert_allclose(cut.expected_loss, whole.expected_loss, rtol=1e-12)
    np.testing.assert_allclose(cut.error, whole.error, rtol=1e-9)


@pytest.mark.parametrize("rule", [credo.MonteCarlo(64), credo.Linearised()], ids=repr)
def test_rows_in_chunks_keep_their_order(rule, monkeypatch):
    """Priced in chunks of 7 of 40 rows, whose variances reach from 1 to 7, each row has its own price."""
    model = credo.Model({"w": dist.Normal(0.0, 1.0).expand([2])}, line)
    x = np.linspace(0.0, 1.7, 40)[:, None] * np.ones(2)
    fit = credo.fit(model.given(np.zeros((1, 2)), np.zeros(1)), credo.Laplace(), progress=False)
    predictive = fit.predict(x, rule)
    monkeypatch.setattr("credo.decisions.belief.MEMORY", 7 * 80 * 4_096)
    np.testing.assert_array_equal(credo.decide(predictive, Squared()).action, predictive.mean)
    searched = credo.decide(predictive, lambda action, y: (action - y) ** 2)
    np.testing.assert_allclose(searched.action, predictive.mean, atol=4.5 * np.sqrt(7.0 / 4_096))
    assert np.all(np.abs(searched.expected_loss - predictive.variance) < 4.5 * searched.error)


# wrong requests ---------------------------------------------------------------------------------------------------


def angle():
    model = credo.Model({"m": dist.Normal(3.0, 0.3)}, lambda params, x: dist.VonMises(params["m"], 4.0))
    return credo.fit(model.given(y=np.array([3.0, -3.1, 3.1])), credo.Laplace(), progress=False).predict()


def branching(action, y):
    return 1.0 if y > 0 else 0.0


@pytest.mark.parametrize(
    ("belief", "loss", "options", "sentence"),
    [
        (binary, lambda a, y: jnp.nan * y, {}, "is NaN at some outcome"),
        (binary, lambda a, y: jnp.inf, {}, "must be finite"),
        (binary, lambda a, y: jnp.ones(3), {}, r"returned shape \(3,\)"),
        (binary, lambda a, y: None, {}, "returned shape nothing"),
        (binary, branching, {}, "jnp.where"),
        (binary, lambda a, y: [0.0, 1.0][y], {}, "nor index a list"),
        (binary, lambda a, y: np.maximum(float(a), y), {}, r"^The loss is run .* float\(\) or NumPy.*jnp.maximum"),
        (continuous, lambda a, y: jnp.maximum(a, np.exp(y)), {}, r"float\(\) or NumPy"),
        (
            posterior,
            lambda a, p: jnp.sum((a - p["w"]) ** 2),
            {},
            "^The action has the shape of the parameters, a dict, ",
        ),
        (binary, lambda a, y: 1 / 0, {}, "^The loss cannot be evaluated .ZeroDivisionError"),
        (binary, Squared, {}, "loss is a function"),
        (binary, None, {}, "loss is a function"),
        (binary, ZeroOne(), {"actions": []}, "actions is empty"),
        (binary, ZeroOne(), {"actions": "01"}, "actions is a sequence"),
        (binary, CostMatrix(np.eye(3)), {}, r"shape \(3, 3\) and the outcome 2 classes"),
        (binary, CostMatrix(np.eye(2)), {"actions": [0, 7]}, "action 7 is NaN"),
        (binary, Interval(0.1), {}, "use ZeroOne"),
        (angle, Interval(0.1), {}, "this outcome is an angle"),
        (binary, Squared(), {"num_draws": 1}, "num_draws is a whole number from 2"),
        (continuous, CostMatrix(np.eye(2)), {}, "this one is no class"),
        (joint, ZeroOne(), {}, "this predictive has several"),
        (joint, CostMatrix(np.eye(2)), {}, "this predictive has several"),
        (continuous, ZeroOne(), {}, "no action hits a continuous outcome"),
        (posterior, ZeroOne(), {}, "no action hits a continuous outcome"),
        (posterior, lambda a, params: (a - params["w"][0]) ** 2, {}, "Give start="),
        (posterior, lambda a, params: a * params["w"][0], {"start": 0.0}, "no minimum"),
        (posterior, Squared(), {"start": "here"}, "start is a number"),
        (lambda: 3, Squared(), {}, "decide takes a predictive"),
    ],
)
def test_a_wrong_request_ends_in_a_sentence(belief, loss, options, sentence):
    with pytest.raises(credo.CredoError, match=sentence):
        credo.decide(belief(), loss, **options)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: CostMatrix([[0, 1], [1]]), "matrix of numbers"),
        (lambda: CostMatrix([0, 1]), "a row for each action"),
        (lambda: CostMatrix([[0, np.nan]]), "finite numbers"),
        (lambda: Pinball(1.0), "strictly between 0 and 1"),
        (lambda: Interval(0.0), "positive number"),
        (lambda: Reject(np.nan), "finite number"),
        (lambda: Pinball("0.9"), "strictly between 0 and 1; got '0.9'"),
        (lambda: Interval("1"), "positive number; got '1'"),
        (lambda: Reject("0.1"), "finite number; got '0.1'"),
        (lambda: Reject(-1.0), "ZeroOne is never below 0"),
        (lambda: Reject(0.1, Reject(0.2)), "wraps a loss"),
    ],
)
def test_a_loss_that_is_none_says_so(make, sentence):
    with pytest.raises(credo.CredoError, match=sentence):
        make()


@pytest.mark.parametrize(("loss", "up", "down"), [(Absolute(), 1.0, 1.0), (Pinball(0.8), 0.8, 0.2)])
def test_classes_with_an_order_have_quantiles_to_choose(loss, up, down):
    def ordered(params, x):
        return dist.OrderedLogistic(x @ params["w"], jnp.array([-1.0, 0.0, 1.5]))

    y = np.digitize(X[:, 0] + RNG.logistic(size=40), [-1.0, 0.0, 1.5])
    target = credo.Model({"w": dist.Normal(0.0, 2.0).expand([2])}, ordered).given(X, y)
    predictive = credo.fit(target, credo.Laplace()).predict(X[:5])
    made = credo.decide(predictive, loss)
    gap = np.arange(4.0) - np.arange(4.0)[:, None]  # (action, class)
    losses = np.asarray(predictive.probs) @ np.where(gap > 0, up * gap, -down * gap).T
    np.testing.assert_array_equal(made.action, losses.argmin(axis=1))
    np.testing.assert_allclose(made.expected_loss, losses.min(axis=1), rtol=0.01)
    with pytest.raises(credo.CredoError, match="classes of this outcome have no distances: use Absolute"):
        credo.decide(predictive, Squared())


def test_an_infinite_loss_is_said_and_can_be_rejected():
    """Draws give a finite mean of anything."""
    model = credo.Model({"a": dist.Normal(0.0, 1.0)}, lambda params, df: dist.StudentT(df, params["a"], 1.0))
    fitted = credo.fit(model.given(np.full(3, 4.0), np.array([1.0, 2.0, 0.0])), credo.Laplace(), progress=False)
    predictive = fitted.predict(np.array([1.5, 40.0]))
    for ask in ({}, {"actions": [0.0, 1.0]}):
        with pytest.raises(credo.CredoError, match=r"expected loss of the best action is inf \(row 0\)"):
            credo.decide(predictive, Squared(), **ask)
    decision = credo.decide(predictive, Reject(50.0, Squared()))
    np.testing.assert_array_equal(np.isnan(decision.action), [True, False])
    assert decision.expected_loss[0] == 50.0
    assert np.all(np.isfinite(credo.decide(predictive, Absolute()).expected_loss))
    with pytest.raises(credo.CredoError, match="is inf"):
        credo.decide(fitted.predict(np.array([1.0])), Absolute())
    law = credo.Model({"v": dist.InverseGamma(1.0, 1.0)}, lambda params, x: dist.Normal(0.0, jnp.sqrt(params["v"])))
    with pytest.raises(credo.CredoError, match="is inf"):
        credo.decide(credo.fit(law.given(y=np.array([1.0])), credo.Exact()), Squared())


def test_counts_of_very_different_size_have_their_modes_row_by_row():
    model = credo.Model({"a": dist.Normal(0.0, 0.01)}, lambda params, x: dist.Poisson(x * jnp.exp(params["a"])))
    fitted = credo.fit(model.given(np.full(5, 10.0), np.full(5, 10)), credo.Laplace(), progress=False)
    np.testing.assert_array_equal(credo.decide(fitted.predict(np.array([5.0, 2_000.0])), ZeroOne()).action, [4, 1_999])
    with pytest.raises(credo.CredoError, match=r"reach from \d+ to \d+ \(row 1\)"):
        credo.decide(fitted.predict(np.array([5.0, 2e6])), ZeroOne())


def test_a_search_that_does_not_settle_names_the_row():
    """A curved valley, which steps along coordinates follow slowly: far along it in the second row alone."""
    model = credo.Model({"a": dist.Normal(0.0, 10.0)}, lambda params, x: dist.Normal(params["a"] + 100.0 * x, 5.0))
    fitted = credo.fit(model.given(np.zeros(3), np.array([12.0, 9.0, 15.0])), credo.Laplace(), progress=False)

    def loss(action, y):
        return (action[0] - y) ** 2 + (action[1] - action[0] ** 2 / 10) ** 2

    with pytest.raises(credo.CredoError, match=r"not settled after 500 sweeps \(in row 1 of these"):
        credo.decide(fitted.predict(np.array([0.0, 10.0]), credo.Linearised()), loss, start=np.zeros(2))
