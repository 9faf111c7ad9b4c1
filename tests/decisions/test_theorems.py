"""What decision theory says the best action is, and that its price is stated honestly."""

import functools

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import credo
from credo.decisions import Absolute, CostMatrix, Interval, Pinball, Reject, Squared, ZeroOne
from credo.model.target import Target
from credo.posterior.kinds import Draws
from credo.posterior.posterior import Posterior

NOISE = 0.7
RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 2))
Y = X @ np.array([1.0, -0.5]) + NOISE * RNG.normal(size=8)
NEW = RNG.normal(size=(3, 2))
COVARIANCE = np.linalg.inv(np.eye(2) + X.T @ X / NOISE**2)
CENTRE = COVARIANCE @ X.T @ Y / NOISE**2
EPISTEMIC = np.einsum("ij,jk,ik->i", NEW, COVARIANCE, NEW)
MEAN, SD = NEW @ CENTRE, np.sqrt(EPISTEMIC + NOISE**2)  # p(y | x, D) = N(MEAN, SD²), by hand
CLASSES = np.array([0, 1, 1, 0, 1, 0, 1, 1])
COUNTS = np.array([3, 5, 1, 4])


def linear(params, x):
    return dist.Normal(x @ params["w"], NOISE)


def logistic(params, x):
    return dist.Bernoulli(logits=x @ params["w"])


def poisson(params, x):
    return dist.Poisson(params["rate"])


def target() -> Target:
    return credo.Model({"w": dist.Normal(0.0, 1.0).expand([2])}, linear).given(X, Y)


@functools.cache
def fitted(method=None) -> Posterior:
    return credo.fit(target(), method or credo.Exact(), progress=False)


@functools.cache
def classified(method=None) -> Posterior:
    model = credo.Model({"w": dist.Normal(0.0, 2.0).expand([2])}, logistic)
    return credo.fit(model.given(X, CLASSES), method or credo.Laplace(), progress=False)


@functools.cache
def linearised() -> credo.Predictive:
    """N(MEAN, SD²) to rounding."""
    return fitted(credo.Laplace()).predict(NEW, credo.Linearised())


# the best action --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "score"), [(Squared(), 0.0), (Absolute(), 0.0), (Pinball(0.9), stats.norm.ppf(0.9))], ids=repr
)
def test_mean_median_and_quantile(loss, score):
    """Exactly what the predictive says, which for a linearised one is the truth to rounding."""
    decision = credo.decide(linearised(), loss)
    np.testing.assert_allclose(decision.action, MEAN + score * SD, rtol=1e-6)
    assert decision.expected_loss.shape == decision.error.shape == (3,)


def copy_of_squared(action, outcome):
    return (outcome - action) ** 2


def copy_of_absolute(action, outcome):
    return jnp.abs(outcome - action)


def copy_of_pinball(action, outcome):
    return jnp.where(outcome > action, 0.9 * (outcome - action), 0.1 * (action - outcome))


@pytest.mark.parametrize(
    ("loss", "copy", "width"),
    [  # the asymptotic sd of an average, of a median and of a quantile, in units of sd / √n
        (Squared(), copy_of_squared, 1.0),
        (Absolute(), copy_of_absolute, np.sqrt(np.pi / 2)),
        (Pinball(0.9), copy_of_pinball, np.sqrt(0.09) / stats.norm.pdf(stats.norm.ppf(0.9))),
    ],
    ids=["squared", "absolute", "pinball"],
)
def test_a_search_on_a_copy_of_the_loss_finds_the_formula(loss, copy, width):
    """Both integrate over the same draws of the parameters: what is left is 4,096 draws of the noise (4.5 sd: 1e-5)."""
    predictive = fitted().predict(NEW)
    formula, searched = credo.decide(predictive, loss), credo.decide(predictive, copy)
    np.testing.assert_allclose(searched.action, formula.action, atol=4.5 * width * SD.max() / np.sqrt(4_096))
    np.testing.assert_allclose(searched.expected_loss, formula.expected_loss, atol=4.5 * formula.error.max())


def test_zero_one_takes_the_likeliest_class():
    predictive = classified().predict(NEW)
    decision = credo.decide(predictive, ZeroOne())
    np.testing.assert_array_equal(decision.action, np.where(predictive.probs > 0.5, 1, 0))
    np.testing.assert_allclose(decision.expected_loss, np.minimum(predictive.probs, 1 - predictive.probs))
    copy = credo.decide(predictive, lambda action, outcome: action != outcome)
    np.testing.assert_array_equal(copy.action, decision.action)


@pytest.mark.slow
def test_zero_one_takes_the_mode_of_counts():
    counts = credo.Model({"rate": dist.Gamma(2.0, 1.0)}, poisson)
    posterior = credo.fit(counts.given(y=COUNTS), credo.Exact(), progress=False)
    # a gamma mixture of Poissons is negative binomial: shape 2 + Σ y, success probability (1 + n)/(2 + n)
    mass = stats.nbinom(2 + COUNTS.sum(), 5 / 6).pmf(np.arange(20))
    decision = credo.decide(posterior.predict(rule=credo.MonteCarlo(1_000)), ZeroOne())
    assert decision.action == np.argmax(mass)
    assert abs(decision.expected_loss - (1 - mass.max())) < 4.5 * decision.error


def test_asymmetric_costs_move_the_boundary_to_the_ratio_by_hand():
    """Act where p > c_FP / (c_FP + c_FN): on the line of a plug-in, where x·w = log(c_FP / c_FN)."""
    costs = CostMatrix.binary(false_positive=1.0, false_negative=4.0)
    mode = classified(credo.MAP())
    w = mode.mean()["w"]
    boundary = np.log(1.0 / 4.0) * w / (w @ w)
    around = np.stack([boundary - 1e-6 * w, boundary + 1e-6 * w])
    np.testing.assert_array_equal(credo.decide(mode.predict(around), costs).action, [0, 1])
    np.testing.assert_allclose(mode.predict(boundary[None]).probs, 1.0 / (1.0 + 4.0))

    rows = np.random.default_rng(1).normal(size=(500, 2)) * 2
    for rule in (credo.MonteCarlo(), credo.Quadrature(), credo.Probit()):
        predictive = classified().predict(rows, rule)
        decision = credo.decide(predictive, costs)
        np.testing.assert_array_equal(decision.action, predictive.probs > 0.2)
        np.testing.assert_allclose(decision.expected_loss, np.minimum(1 - predictive.probs, 4 * predictive.probs))
        assert np.all(decision.error == 0) == (not isinstance(rule, credo.MonteCarlo))


def test_a_rejection_is_chows_rule():
    predictive = classified().predict(np.random.default_rng(1).normal(size=(200, 2)))
    largest = np.maximum(predictive.probs, 1 - predictive.probs)
    decision = credo.decide(predictive, Reject(0.3))
    np.testing.assert_array_equal(decision.action == -1, largest < 1 - 0.3)
    np.testing.assert_allclose(decision.expected_loss, np.minimum(1 - largest, 0.3))
    np.testing.assert_array_equal(decision.error == 0, decision.action == -1)  # what a rejection costs is known

    loss = Reject(0.57, Squared())  # the predictive variances are 0.53, 0.60 and 0.52
    decision = credo.decide(linearised(), loss)
    np.testing.assert_array_equal(np.isnan(decision.action), [False, True, False])
    assert loss(np.nan, 0.0) == 0.57
    assert loss(1.0, 0.0) == 1.0
    assert Reject(0.3)(-1, 0) == 0.3


def test_a_rejection_among_numbers_is_no_number():
    """An action of −1 is itself there."""
    belief = linearised()

    def loss(action, y):
        return (action - y) ** 2

    free = credo.decide(belief, loss, actions=[-1, 0, 1])
    cost = float(np.median(free.expected_loss))
    decision = credo.decide(belief, Reject(cost, loss), actions=[-1, 0, 1])
    np.testing.assert_array_equal(decision.action, np.where(free.expected_loss > cost, np.nan, free.action))
    assert Reject(0.3, Squared())(-1, 0.0) == 1.0


# the interval -----------------------------------------------------------------------------------------------------

PRICE = 0.1


def interval_risk(low, high):
    return 1 - stats.norm.cdf(high, MEAN, SD) + stats.norm.cdf(low, MEAN, SD) + PRICE * (high - low)


def test_the_interval_ends_where_the_density_is_its_price():
    predictive = linearised()
    decision = credo.decide(predictive, Interval(PRICE))
    low, high = decision.action
    half = SD * np.sqrt(-2 * np.log(PRICE * SD * np.sqrt(2 * np.pi)))  # N(y | MEAN, SD²) = PRICE, solved for |y − MEAN|
    np.testing.assert_allclose(low, MEAN - half, atol=1e-5)
    np.testing.assert_allclose(high, MEAN + half, atol=1e-5)
    for other in (predictive.interval(0.9), predictive.interval(0.95), (low - 0.1, high), (low, high - 0.1)):
        assert np.all(interval_risk(*other) > interval_risk(low, high))
    assert np.all(np.abs(decision.expected_loss - interval_risk(low, high)) < 4.5 * decision.error)


def test_an_interval_next_to_free_keeps_what_was_drawn():
    """Its ends lie beyond 7 sds, farther than they are looked for."""
    low, high = credo.decide(linearised(), Interval(1e-12)).action
    assert np.all((MEAN - low > 2.5 * SD) & (high - MEAN > 2.5 * SD))


def test_an_interval_too_dear_to_keep_is_empty():
    decision = credo.decide(linearised(), Interval(2.0))
    np.testing.assert_array_equal(decision.action[0], decision.action[1])
    np.testing.assert_allclose(decision.expected_loss, 1.0)


@pytest.mark.parametrize("price", [1e-20, 1e-4, 0.02, 0.5])
def test_no_interval_of_counts_loses_less(price):
    """Every pair of ends is tried: draws alone left up to 1 % of the loss."""
    model = credo.Model({"rate": dist.Gamma(2.0, 1.0)}, lambda params, x: dist.Poisson(params["rate"] * x))
    predictive = credo.fit(model.given(np.ones(4), COUNTS), credo.Exact(), progress=False).predict(
        np.array([0.1, 40.0])
    )
    counts = np.arange(400)
    probs = np.exp([predictive.log_prob(np.full(2, count)) for count in counts])
    above = np.cumsum(probs, axis=0)
    low, high = credo.decide(predictive, Interval(price)).action
    for row in range(2):
        risk = 1 - above[None, :, row] + (above - probs)[:, None, row] + price * (counts[None] - counts[:, None])
        risk = np.where(counts[None] >= counts[:, None], risk, np.inf)
        assert risk[low[row], high[row]] <= risk.min() + 1e-11


def test_counts_drawn_for_all_rows_together():
    """No count of one row has a probability of its own: intervals are by draws, and modes are not searched for."""
    model = credo.Model({"rate": dist.Gamma(2.0, 1.0)}, lambda params, x: dist.Poisson(params["rate"] * x).to_event(1))
    predictive = credo.fit(model.given(np.ones(4), COUNTS), credo.Laplace(), progress=False).predict(np.ones(4))
    low, high = credo.decide(predictive, Interval(0.02)).action
    assert np.all((low >= 0) & (low < high) & (high < 15))
    with pytest.raises(credo.CredoError, match="drawn for all rows together"):
        credo.decide(predictive, ZeroOne())


@pytest.mark.slow
def test_the_interval_of_a_skewed_posterior():
    """Gamma(15, 5): both ends at density PRICE. The loss is flat there, so 4,001 levels leave 0.05 sd."""
    model = credo.Model({"rate": dist.Gamma(2.0, 1.0)}, poisson)
    posterior = credo.fit(model.given(y=COUNTS), credo.Grid(), progress=False)
    low, high = credo.decide(posterior, Interval(PRICE)).action
    exact = stats.gamma(15, scale=1 / 5)
    for end, bracket in ((low["rate"], (0.01, 2.8)), (high["rate"], (2.8, 9.0))):
        points = np.linspace(*bracket, 100_001)
        wanted = points[np.argmin(np.abs(exact.pdf(points) - PRICE))]
        assert abs(end - wanted) < 0.05 * exact.std()


def test_squared_loses_the_variance_without_simulation():
    """Where the rule has closed forms, and for a point, whose likelihood has: nothing is drawn, so no error."""
    decision = credo.decide(fitted(credo.Laplace()).predict(NEW, credo.Quadrature()), Squared(), key=3)
    np.testing.assert_allclose(decision.expected_loss, SD**2, rtol=1e-6)
    np.testing.assert_array_equal(decision.error, 0.0)
    columns = credo.Model({"w": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["w"] + x, NOISE))
    plugged_in = credo.fit(columns.given(X, X), credo.MAP(), progress=False).predict(NEW)
    decision = credo.decide(plugged_in, Squared())
    np.testing.assert_allclose(decision.expected_loss, 2 * NOISE**2, rtol=1e-12)
    np.testing.assert_array_equal(decision.error, 0.0)
    assert np.all(credo.decide(fitted().predict(NEW), Squared()).error > 0)


# the error --------------------------------------------------------------------------------------------------------


def of_predictive():
    posterior = fitted()

    def decide(key: int):
        decision = credo.decide(posterior.predict(NEW[:1], key=key), Squared(), key=1_000 + key)
        return decision.expected_loss[0], decision.error[0]

    return decide, SD[0] ** 2


def of_posterior():
    posterior = fitted()
    return lambda key: _price(credo.decide(posterior, Squared(), key=key)), np.trace(COVARIANCE)


def of_chains():
    """Four chains of 500 draws, each keeping 0.8 of the one before: worth a ninth of their number for the mean.

    Built by hand from N(CENTRE, COVARIANCE).
    """
    given, factor = target(), np.linalg.cholesky(COVARIANCE)

    def decide(key: int):
        noise = np.random.default_rng(key).normal(size=(500, 4, 2))
        states = [noise[0]]
        for each in noise[1:]:
            states.append(0.8 * states[-1] + 0.6 * each)
        positions = CENTRE + np.stack(states, axis=1) @ factor.T
        posterior = Posterior(Draws(positions), given, verdict=credo.Verdict("pass"))
        return _price(credo.decide(posterior, Squared()))

    return decide, np.trace(COVARIANCE)


def of_weights():
    """2,000 draws from N(CENTRE, 2 COVARIANCE), weighted to N(CENTRE, COVARIANCE)."""
    given, factor = target(), np.linalg.cholesky(COVARIANCE)

    def decide(key: int):
        z = np.sqrt(2.0) * np.random.default_rng(key).normal(size=(2_000, 2))
        log_weights = -0.25 * np.sum(z**2, axis=1)
        posterior = Posterior(
            Draws((CENTRE + z @ factor.T)[None], log_weights[None]), given, verdict=credo.Verdict("pass")
        )
        return _price(credo.decide(posterior, Squared()))

    return decide, np.trace(COVARIANCE)


def _price(decision):
    return decision.expected_loss, decision.error


@pytest.mark.parametrize(
    "setting",
    [of_predictive, of_posterior, of_chains, of_weights],
    ids=["predictive", "posterior", "chains", "weights"],
)
def test_the_truth_lies_within_the_stated_error_as_often_as_it_says(setting):
    """100 keys: at most 13 outside 1.96 errors (5 expected; more than 13 has probability 5e-4), Σ z² as of χ²(100).

    The bounds of Σ z² have false-alarm rate 1e-3 each. They hold the error down too: it may not be far too large.
    """
    decide, truth = setting()
    results = np.array([decide(key) for key in range(100)])
    z = (results[:, 0] - truth) / results[:, 1]
    assert np.sum(np.abs(z) > 1.96) <= 13
    low, high = stats.chi2(100).ppf([1e-3, 1 - 1e-3])
    assert low < np.sum(z**2) < high
