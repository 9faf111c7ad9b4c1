"""What rows tell together: against determinants, and sums over all outcomes of the rows chosen."""

import functools
import itertools

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.special import expit, xlogy

import credo
from credo.decisions import bald, choose, expected_information_gain
from credo.linalg.dense import Dense
from credo.posterior.kinds import Draws, Gaussian, Point
from credo.posterior.posterior import Posterior
from credo.predict import stream
from credo.status import CredoError, Verdict

RANDOM = np.random.default_rng(0)
X = np.column_stack(
    [RANDOM.normal(size=(6, 3)), RANDOM.uniform(0.3, 2.0, 6)]
)  # (what meets the weights, the noise's sd)
ROOT = RANDOM.normal(size=(3, 3))
COVARIANCE = ROOT @ ROOT.T
POSITIONS = RANDOM.normal(size=(1, 120, 3)) * [1.0, 0.5, 2.0]


def normal(params, x):
    return dist.Normal(x[:, :3] @ params["w"], x[:, 3])


def columns(params, x):
    """Two that share their weights."""
    loc = x[:, :3] @ params["w"]
    return dist.Normal(np.array([1.0, -2.0]) * loc[:, None] + x[:, :2] * params["w"][0], x[:, 2:] ** 2)


def binary(params, x):
    return dist.BernoulliLogits(x[:, :3] @ params["w"])


def classes(params, x):
    return dist.CategoricalLogits((x[:, :3] @ params["w"])[:, None] * np.array([0.0, 1.0, -1.0]))


def counts(params, x):
    return dist.Poisson(2.0 * np.e ** (0.4 * (x[:, :3] @ params["w"])))


def named(params, x):
    return {"a": normal(params, x), "b": normal(params, x)}


def predictive(likelihood, kind, rule=None, x=X):
    y = {columns: np.zeros((len(x), 2)), normal: np.zeros(len(x))}.get(likelihood, np.zeros(len(x), int))
    y = {"a": 1.0 * y, "b": 1.0 * y} if likelihood is named else y
    target = credo.Model({"w": dist.Normal(0.0, 1.0).expand([3])}, likelihood).given(x, y)
    return Posterior(kind, target, verdict=Verdict("pass")).predict(x, rule)


def gaussian():
    return Gaussian(np.zeros(3), Dense.from_covariance(COVARIANCE))


def log_det(slopes, noise):
    """½ log |I + R⁻¹ J Σ Jᵀ|."""
    return 0.5 * np.linalg.slogdet(np.eye(len(noise)) + slopes @ COVARIANCE @ slopes.T / noise[:, None])[1]


@pytest.mark.parametrize("likelihood", [normal, columns])
def test_gains_of_normal_outcomes_are_quotients_of_determinants(likelihood):
    """Whose rows are those of the chosen, and of these and one more."""
    if likelihood is normal:
        slopes, noise = X[:, None, :3], X[:, 3:] ** 2
    else:
        slopes = np.array([1.0, -2.0])[:, None] * X[:, None, :3]
        slopes[:, :, 0] += X[:, :2]
        noise = X[:, 2:] ** 4
    chosen = [4, 1]
    known = log_det(np.concatenate(slopes[chosen]), np.concatenate(noise[chosen]))
    more = [[*chosen, m] for m in range(6)]
    expected = [log_det(np.concatenate(slopes[rows]), np.concatenate(noise[rows])) - known for rows in more]
    found = predictive(likelihood, gaussian(), credo.Linearised())
    np.testing.assert_allclose(expected_information_gain(found, chosen), expected, rtol=1e-8)
    np.testing.assert_array_equal(expected_information_gain(found), bald(found))


def probabilities(likelihood):
    """(draw, row, outcome) of all that matter."""
    z = POSITIONS[0] @ X[:, :3].T
    if likelihood is binary:
        return np.stack([1.0 - expit(z), expit(z)], axis=-1)
    if likelihood is classes:
        p = np.exp(z[..., None] * np.array([0.0, 1.0, -1.0]))
        return p / p.sum(axis=-1, keepdims=True)
    return stats.poisson(2.0 * np.exp(0.4 * z)[..., None]).pmf(np.arange(120))


@pytest.mark.parametrize(
    ("likelihood", "chosen"), [(binary, [0, 3]), (binary, [4, 4, 4]), (classes, [0, 3, 5]), (counts, [2])]
)
def test_gains_by_draws_are_sums_over_what_the_chosen_may_be(likelihood, chosen):
    p = probabilities(likelihood)
    share, gains = [], []
    for seen in itertools.product(range(p.shape[2]), repeat=len(chosen)):
        weights = np.prod([p[:, row, y] for row, y in zip(chosen, seen, strict=True)], axis=0) / len(p)
        share.append(weights.sum())
        rho = weights / max(weights.sum(), 1e-300)
        marginal = np.tensordot(rho, p, axes=1)
        gains.append(np.sum(rho[:, None, None] * (xlogy(p, p) - xlogy(p, marginal)), axis=(0, 2)))
    share, gains = np.array(share), np.array(gains)
    expected = share @ gains
    error = np.sqrt(share @ (gains - expected) ** 2 / 512)
    if likelihood is counts:  # whose own outcomes are drawn too, at 512 draws of which information is known to 15 %
        error = error + 0.05 * expected
    found = expected_information_gain(predictive(likelihood, Draws(POSITIONS)), chosen)
    assert np.all(np.abs(found - expected) <= 4.0 * error)
    assert np.max(error) < 0.1 * np.max(expected)


@pytest.mark.parametrize("likelihood", [binary, classes])
def test_linearised_outputs_tell_what_draws_tell(likelihood):
    """Of the same posterior, since outputs are linear; the Gaussian that labels leave is not quite theirs."""
    by_outputs = predictive(likelihood, gaussian(), credo.Linearised())
    by_weights = predictive(likelihood, gaussian(), credo.MonteCarlo(8_000))
    for chosen in ([0], [4, 5, 1]):
        found, expected = (expected_information_gain(each, chosen) for each in (by_outputs, by_weights))
        np.testing.assert_allclose(found, expected, rtol=0.1, atol=0.01)
        assert np.all(found[chosen] < bald(by_outputs)[chosen])  # a second label of the same row


@pytest.mark.parametrize(("likelihood", "sd"), [(classes, 8.0), (counts, 5.0)])  # of logits, or of a rate's log 2
def test_wide_outputs_are_told_to_tell_too_much(likelihood, sd):
    """By as much as the docstring says: up to three times, and next to nothing too little."""
    kind = Gaussian(np.zeros(3), Dense(sd * np.eye(3) / np.sqrt(np.mean(np.sum(X[:, :3] ** 2, axis=1)))))
    found, expected = (
        expected_information_gain(predictive(likelihood, kind, rule), [0, 2])
        for rule in (credo.Linearised(), credo.MonteCarlo(8_000))
    )
    assert 0.8 < np.min(found / expected) < np.max(found / expected) < 3.0, found / expected


def test_a_network_of_many_classes_is_asked_for_many_rows():
    """Draws of the weights would be told apart by the first few outcomes, and rows after these tell nothing."""
    random = np.random.default_rng(1)
    target = credo.nn.BayesianNetwork(
        lambda params, x: x @ params["w"], {"w": random.normal(size=(8, 5))}, head=credo.nn.Categorical()
    ).given(random.normal(size=(12, 8)), random.integers(5, size=12))
    posterior = credo.fit(target, credo.Laplace(), progress=False)
    pool = posterior.predict(random.normal(size=(40, 8)))

    def total(chosen):
        return sum(expected_information_gain(pool, chosen[:k])[chosen[k]] for k in range(len(chosen)))

    assert total(choose(pool, expected_information_gain, 6)) > total(choose(pool, bald, 6))


def test_rows_with_wide_outcomes_are_worked_through_one_draw_after_the_other(monkeypatch):
    at_once = expected_information_gain(predictive(classes, Draws(POSITIONS)), [1])
    counted = expected_information_gain(predictive(counts, Draws(POSITIONS)), [1])
    monkeypatch.setattr(stream, "WIDE", 1)
    np.testing.assert_allclose(expected_information_gain(predictive(classes, Draws(POSITIONS)), [1]), at_once)
    streamed = expected_information_gain(predictive(counts, Draws(POSITIONS)), [1])
    np.testing.assert_allclose(streamed, counted, rtol=0.4, atol=0.02)  # other outcomes are drawn


@pytest.mark.parametrize("rule", [credo.Linearised(), credo.MonteCarlo(1_000)])
def test_rows_are_chosen_that_do_not_tell_the_same(rule):
    x = np.array([[3.0, 0.0, 0.0, 1.0], [3.0, 0.0, 0.0, 1.0], [0.0, 1.5, 0.0, 1.0], [0.0, 0.0, 1.0, 1.0]])
    kind = Gaussian(np.zeros(3), Dense.from_covariance(np.eye(3)))
    found = predictive(normal, kind, rule, x)
    np.testing.assert_array_equal(choose(found, bald, 2), [0, 1])
    np.testing.assert_array_equal(choose(found, expected_information_gain, 4), [0, 2, 3, 1])


def test_gains_add_up_to_what_the_best_rows_tell():
    """The greedy choice is within 1 − 1/e of the best, here equal to it."""
    found = predictive(normal, gaussian(), credo.Linearised())
    chosen = choose(found, expected_information_gain, 3)
    total = sum(expected_information_gain(found, chosen[:k])[chosen[k]] for k in range(3))
    every = {rows: log_det(X[list(rows), :3], X[list(rows), 3] ** 2) for rows in itertools.combinations(range(6), 3)}
    np.testing.assert_allclose(total, every[tuple(sorted(chosen))], rtol=1e-8)
    assert total >= (1 - np.exp(-1)) * max(every.values())


def test_a_point_learns_nothing():
    for rule in (credo.Linearised(), credo.MonteCarlo()):
        found = predictive(normal, Point(np.ones(3)), rule)
        np.testing.assert_allclose(expected_information_gain(found, [0]), 0.0, atol=1e-12)


@pytest.mark.parametrize("likelihood", [normal, binary])
def test_rows_that_a_mask_hides_tell_nothing(likelihood):
    def masked(params, x):
        return likelihood(params, x).mask(x[:, 0] != X[2, 0])

    found = predictive(masked, gaussian(), credo.MonteCarlo(400))
    assert bald(found)[2] == 0
    np.testing.assert_allclose(
        np.delete(bald(found), 2),
        np.delete(bald(predictive(likelihood, gaussian(), credo.MonteCarlo(400))), 2),
        rtol=0.2,
    )
    np.testing.assert_array_equal(expected_information_gain(found, [2]), bald(found))
    beside = expected_information_gain(found, [0, 2])
    np.testing.assert_allclose(beside, expected_information_gain(found, [0]), rtol=1e-10, atol=1e-12)
    assert beside[2] == 0


def of_rows(prior, likelihood, kind, x, rule):
    target = credo.Model(prior, likelihood).given(x, np.zeros(len(x)))
    return Posterior(kind, target, verdict=Verdict("pass")).predict(x, rule)


@pytest.mark.parametrize("rule", [credo.Linearised(), credo.MonteCarlo(4_000)])
def test_rows_that_need_the_others_are_looked_at_among_them(rule):
    """Parameters of one entry a row, and a series whose rows carry on what those before had."""
    exact = isinstance(rule, credo.Linearised)
    scale = np.array([1.0, 2.0, 3.0])
    kind = Gaussian(np.zeros(3), Dense(np.eye(3)))
    own = {"theta": dist.Normal(0.0, 1.0).expand([3])}
    found = of_rows(own, lambda params, x: dist.Normal(params["theta"], x), kind, scale, rule)
    expected = 0.5 * np.log1p([1.0 / 2.0, 1.0 / 4.0, 1.0 / 9.0])  # the first row's second outcome, the others' first
    np.testing.assert_allclose(expected_information_gain(found, [0]), expected, rtol=1e-8 if exact else 0.2)

    def carried(params, x):
        return dist.Normal((x[:, :3] @ params["w"]).cumsum(), x[:, 3])

    found = of_rows({"w": dist.Normal(0.0, 1.0).expand([3])}, carried, gaussian(), X, rule)
    slopes, noise = np.cumsum(X[:, :3], axis=0), X[:, 3] ** 2
    chosen = [0, 3, 3]
    known = log_det(slopes[chosen], noise[chosen])
    expected = [log_det(slopes[[*chosen, m]], noise[[*chosen, m]]) - known for m in range(6)]
    np.testing.assert_allclose(expected_information_gain(found, chosen), expected, rtol=1e-8 if exact else 0.3)


def test_an_acquisition_of_ones_own_may_ask_what_was_chosen():
    def spread(predictive, chosen):
        return np.array([min([abs(row - other) for other in chosen], default=row) for row in range(6)])

    found = predictive(normal, Point(np.ones(3)))
    np.testing.assert_array_equal(choose(found, spread, 3), [5, 0, 2])
    for before in ([1], np.array([1])):
        sent = functools.partial(spread, chosen=before)
        np.testing.assert_array_equal(choose(found, sent, 2), [5, 3])
    with pytest.raises(CredoError, match="from 1 to 5; got 6"):
        choose(found, sent, 6)


def test_outcomes_that_leave_few_draws_are_told():
    x = X * [1.0, 1.0, 1.0, 0.01]
    found = predictive(normal, gaussian(), credo.MonteCarlo(64), x)
    with pytest.warns(UserWarning, match="leave a handful of the 64 draws"):
        expected_information_gain(found, [0, 1])


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda found: expected_information_gain(found, [0, 6]), r"from 0 to 5; got \[0, 6\]"),
        (lambda found: expected_information_gain(found, [0.5]), r"got \[0.5\]"),
        (lambda found: expected_information_gain(found, np.ones(6, bool)), "indices of rows"),
        (lambda found: expected_information_gain(found, [[0, 1]]), "indices of rows"),
        (lambda found: expected_information_gain(found, [0, [1]]), "indices of rows"),
        (lambda found: choose(found, lambda predictive: {"a": predictive.mean}), "this one gives dict"),
        (lambda found: choose(found, lambda predictive: ["a", "b"]), "this one gives list"),
        (lambda _: expected_information_gain(predictive(named, gaussian()), [0]), "has a, b"),
        (lambda _: expected_information_gain(predictive(binary, gaussian(), credo.Probit()), [0]), r"Probit\(\)"),
        (lambda _: expected_information_gain(gaussian(), [0]), "takes a predictive"),
        (functools.partial(choose, acquisition=expected_information_gain, n=7), "from 1 to 6; got 7"),
    ],
)
def test_bad_input_gets_a_sentence(call, sentence):
    with pytest.raises(CredoError, match=sentence):
        call(predictive(normal, gaussian(), credo.Linearised()))
