"""Searches, lists of actions, rows in chunks, wrong requests: what a user's own loss meets."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo.decisions import Absolute, CostMatrix, Interval, Pinball, Reject, Squared, ZeroOne
from credo.decisions.belief import OfPosterior, OfPredictive, Outcomes, average
from credo.decisions.interval import highest_density
from credo.decisions.search import among, by_coordinates
from credo.diagnose.convergence import mcse_mean
from credo.posterior.kinds import Draws
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
    return Outcomes(jnp.asarray(values), jnp.full(shape[:2], 1 / shape[0]), 1)


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


def test_the_search_begins_in_the_best_of_several_valleys():
    """From 0, where three in ten of the outcomes are, min((a − y)², 1) has no way down to where the others are."""
    with double():
        y = jnp.where(jnp.arange(100) % 10 < 3, 0.0, 10.0)[:, None]
        found = by_coordinates(lambda a, y: jnp.minimum((a - y) ** 2, 1.0), jnp.zeros(1), Outcomes(y, y * 0 + 0.01, 1))
        np.testing.assert_allclose(found, 10.0, atol=1e-5)


def test_what_cannot_happen_costs_nothing():
    """An infinite loss at an outcome of weight zero."""

    def loss(action, y):
        return jnp.where(y > 2.0, jnp.inf, (action - y) ** 2)

    with double():
        y, weights = jnp.array([[0.0], [1.0], [3.0]]), jnp.array([[0.5], [0.5], [0.0]])
        drawn = Outcomes(y, weights, 1)
        np.testing.assert_allclose(by_coordinates(loss, jnp.zeros(1), drawn), 0.5, atol=1e-5)
        np.testing.assert_allclose(among(loss, [0.0, 0.5], drawn)[1], [[0.5], [0.25]])
        np.testing.assert_allclose(average(loss(0.5, y), drawn)[0], 0.25)


# averaging --------------------------------------------------------------------------------------------------------


def test_the_error_of_an_average_is_that_of_its_groups_means():
    """Of G = 5 means: sd / √G, times √(ν/(ν − 2)) with ν = 4, by which standardised errors have variance one."""
    losses = RNG.normal(size=(20, 3))
    mean, error = average(losses, Outcomes(losses, np.full((20, 3), 1 / 20), 4))
    np.testing.assert_allclose(mean, losses.mean(axis=0))
    means = losses.reshape(5, 4, 3).mean(axis=1)
    np.testing.assert_allclose(error, means.std(axis=0, ddof=1) / np.sqrt(5) * np.sqrt(2.0))


def test_the_error_of_an_average_over_chains_is_that_of_the_chains():
    losses = RNG.normal(size=(4, 50, 2)) + np.arange(4.0)[:, None, None]  # they disagree
    flat = losses.reshape(200, 2)
    _, error = average(flat, Outcomes(flat, np.full((200, 2), 1 / 200), 1, chains=4))
    np.testing.assert_allclose(error, mcse_mean(losses))


def test_weighted_draws_of_several_islands_are_as_many_groups():
    """Fifty copies of a draw in each of eight islands are eight draws."""
    target = posterior().target
    places = RNG.normal(size=(8, 1, 2))
    copies = Draws(np.repeat(places, 50, axis=1), np.zeros((8, 50)))
    belief = OfPosterior(credo.Posterior(copies, target, verdict=credo.Verdict("pass")), jax.random.key(0), 2)
    squares = places[:, 0, 0] ** 2
    mean, error = belief.each(lambda drawn: average(drawn.values["w"][..., 0] ** 2, drawn))
    np.testing.assert_allclose(mean, squares.mean(), rtol=1e-6)
    np.testing.assert_allclose(error, squares.std(ddof=1) / np.sqrt(8) * np.sqrt(7 / 5), rtol=1e-6)


def test_outcomes_have_the_weights_of_their_draws():
    """E y² of N(0, 1) with weight 0.9 and N(10, 1) with weight 0.1."""
    model = credo.Model({"w": dist.Normal(0.0, 1.0).expand([2])}, line)
    kind = Draws(np.array([[[0.0, 0.0], [10.0, 0.0]]]), np.log([[0.9, 0.1]]))
    fitted = credo.Posterior(kind, model.given(X, X[:, 0]), verdict=credo.Verdict("pass"))
    decision = credo.decide(fitted.predict(np.array([[1.0, 0.0]])), lambda a, y: (a - y) ** 2, actions=[0.0])
    np.testing.assert_allclose(decision.expected_loss, 0.9 * 1.0 + 0.1 * 101.0, rtol=0.1)


def test_many_outcomes_of_few_draws_are_few_draws():
    """512 outcomes of each of eight draws of the parameters, far apart, say of the mean what eight numbers say."""
    places = 10 * RNG.normal(size=8)
    model = credo.Model({"w": dist.Normal(0.0, 1.0).expand([2])}, line)
    kind = Draws(np.stack([places, 0 * places], axis=-1)[None])
    fitted = credo.Posterior(kind, model.given(X, X[:, 0]), verdict=credo.Verdict("pass"))
    decision = credo.decide(fitted.predict(np.array([[1.0, 0.0]])), lambda a, y: a + y, actions=[0.0])
    np.testing.assert_allclose(decision.error, places.std(ddof=1) / np.sqrt(8) * np.sqrt(7 / 5), rtol=0.05)


def test_neighbours_in_a_chain_are_few_draws():
    """A chain that stays 32 steps at each of 32 places says of the mean of an outcome what 32 numbers say."""
    places = 10 * RNG.normal(size=32)
    model = credo.Model({"w": dist.Normal(0.0, 1.0).expand([2])}, line)
    slow = Draws(np.repeat(np.stack([places, 0 * places], axis=-1), 32, axis=0)[None])
    fitted = credo.Posterior(slow, model.given(X, X[:, 0]), verdict=credo.Verdict("pass"))
    decision = credo.decide(fitted.predict(np.array([[1.0, 0.0]])), lambda a, y: a + y, actions=[0.0])
    np.testing.assert_allclose(decision.error, places.std(ddof=1) / np.sqrt(32) * np.sqrt(31 / 29), rtol=0.05)


def test_one_draw_says_nothing_of_the_error_of_an_average():
    model = credo.Model({"w": dist.Normal(0.0, 1.0).expand([2])}, line)
    one = Draws(np.array([[[1.0, 2.0]]]))
    fitted = credo.Posterior(one, model.given(X, X[:, 0]), verdict=credo.Verdict("pass"))
    for belief, loss in ((fitted, lambda a, p: a + p["w"][0]), (fitted.predict(X[:1]), lambda a, y: a + y)):
        decision = credo.decide(belief, loss, actions=[0.0])
        assert np.all(np.isfinite(decision.expected_loss))
        assert np.all(np.isnan(decision.error))


def test_averages_over_a_grid_are_exact():
    target = credo.Model({"w": dist.Normal(0.0, 1.0)}, lambda p, x: dist.Normal(p["w"], 1.0)).given(y=np.ones(3))
    decision = credo.decide(credo.fit(target, credo.Grid()), lambda a, p: (a - p["w"]) ** 2, actions=[0.5])
    np.testing.assert_allclose(decision.expected_loss, 1 / 4 + (3 / 4 - 0.5) ** 2, rtol=1e-6)
    assert decision.error == 0.0


def test_stored_draws_decide_without_their_model(tmp_path):
    """By derived quantities too, which were computed when the file was written."""
    prior, twice = {"w": dist.Normal(0.0, 1.0)}, {"twice": lambda w: 2 * w}
    model = credo.Model(prior, lambda p, x: dist.Normal(p["w"], 1.0), derived=twice)
    fitted = credo.fit(model.given(y=np.ones(3)), credo.SMC(num_particles=256), key=0, progress=False)
    path = tmp_path / "fit.credo"
    fitted.save(path)
    with_model, without = (
        credo.decide(each, lambda a, p: (a - p["twice"]) ** 2, actions=[0.0, 1.0])
        for each in (fitted, credo.load(path))
    )
    assert without.action == with_model.action
    np.testing.assert_allclose(without.error, with_model.error)


def test_outcomes_by_name_are_drawn_apart():
    """E[(y_1 − x·w) (y_2 − x·w)] is zero given the parameters, and one if both came of one key."""

    def both(params, x):
        return {name: dist.Normal(x @ params["w"], 1.0) for name in "ab"}

    model = credo.Model({"w": dist.Normal(0.0, 1.0).expand([2])}, both)
    fitted = credo.fit(model.given(X, {"a": X[:, 0], "b": X[:, 0]}), credo.MAP(), progress=False)
    decision = credo.decide(fitted.predict(np.zeros((1, 2))), lambda a, y: y["a"] * y["b"], actions=["none"])
    assert abs(decision.expected_loss[0]) < 4.5 * decision.error[0]


def squared(action, outcome):
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(jax.tree.map(lambda a, y: (y - a) ** 2, action, outcome)))


@pytest.mark.parametrize("is_of_parameters", [True, False])
def test_draws_that_chose_an_action_do_not_price_it(is_of_parameters):
    """The mean of four draws loses (1 + 1/4) σ² on others, and only (1 − 1/4) σ² on these.

    A price has an sd of 0.95 σ² at most; the bound is three errors of the mean of 60 below the truth.
    """
    model = credo.Model({"w": dist.Normal(0.0, 1.0).expand([2])}, line)
    fitted = credo.fit(model.given(X, X[:, 0]), credo.Laplace(), progress=False)
    belief = fitted if is_of_parameters else fitted.predict(X[:1], credo.Linearised())
    variance = np.sum(fitted.sd()["w"] ** 2) if is_of_parameters else belief.variance[0]
    prices = [credo.decide(belief, squared, num_draws=4, key=key).expected_loss for key in range(60)]
    assert np.mean(prices) / variance > 1.25 - 3 * 0.95 / np.sqrt(60)


def test_the_largest_count_may_be_the_mode():
    model = credo.Model({"rate": dist.Beta(99.0, 1.0)}, lambda params, x: dist.Binomial(5, params["rate"]))
    fitted = credo.fit(model.given(y=np.full(3, 5)), credo.MAP(), progress=False)
    assert credo.decide(fitted.predict(), ZeroOne()).action == 5


# intervals --------------------------------------------------------------------------------------------------------


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


@pytest.mark.slow
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
