"""Unseen levels of a group are drawn from the conditional prior of their parameter, in every parameter they index."""

import functools

import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest

from credo.linalg.dense import Dense
from credo.model.model import Model
from credo.posterior.kinds import Draws, Gaussian, Point
from credo.posterior.posterior import Posterior
from credo.predict.linearised import Linearised, Quadrature
from credo.predict.monte_carlo import MonteCarlo
from credo.predict.probit import Probit
from credo.status import CredoError, Verdict

RNG = np.random.default_rng(0)
COUNTIES = ["anoka", "becker", "cass"]
TABLE = pd.DataFrame({"county": COUNTIES * 4, "floor": RNG.normal(size=12)})
NUM_DRAWS = 4_000

INTERCEPTS = {
    "mu": dist.Normal(0.0, 1.0),
    "tau": dist.HalfNormal(1.0),
    "a": lambda mu, tau: dist.Normal(mu, tau).expand([3]),
}
SLOPES = {**INTERCEPTS, "b": dist.Normal(0.5, 2.0).expand([3]), "c": dist.Normal(0.0, 1.0).expand([3])}


def intercepts(params, x):
    return dist.Normal(params["a"][x["county"]], 1.0)


def slopes(params, x):
    # c has as many entries as there are counties, and nothing to do with them
    return dist.Normal(params["a"][x["county"]] + params["b"][x["county"]] * x["floor"] + params["c"][0], 1.0)


def centred(params, x):
    return dist.Normal((params["a"] - params["a"].mean())[x["county"]], 1.0)


@functools.cache
def posterior(likelihood=intercepts, column="county"):
    prior = SLOPES if likelihood is slopes else INTERCEPTS
    return fitted(prior, likelihood, TABLE, {column: "a"})


def fitted(prior, likelihood, table, groups):
    target = Model(prior, likelihood, groups=groups).given(table, np.zeros(len(table)))
    positions = np.random.default_rng(1).normal(size=(4, NUM_DRAWS // 4, target.dim)) * 0.4
    return Posterior(Draws(positions), target, verdict=Verdict("pass"))


def rows(county, floor=0.0):
    return pd.DataFrame({"county": county, "floor": np.broadcast_to(floor, len(county))})


def test_an_unseen_level_has_the_variance_of_its_prior():
    p = posterior()
    predictive = p.predict(rows(["anoka", "new"]), MonteCarlo(NUM_DRAWS))
    d = p.draws
    np.testing.assert_allclose(predictive.mean[0], d["a"][..., 0].mean(), atol=1e-12)
    np.testing.assert_allclose(predictive.epistemic[0], d["a"][..., 0].var(), rtol=1e-10)
    expected = d["mu"].var() + np.mean(d["tau"] ** 2)
    # the variance of 4,000 draws with the tails of a scale mixture is known to about 3 %
    assert abs(predictive.epistemic[1] / expected - 1) < 0.15
    assert abs(predictive.mean[1] - d["mu"].mean()) < 5 * np.sqrt(expected / NUM_DRAWS)


def test_a_point_draws_unseen_levels_too():
    """The parameters are known, and the new county is not: N(mu, tau² + 1), epistemic variance tau²."""
    target = posterior().target
    u = 0.3 * np.cos(np.arange(target.dim))
    point = Posterior(Point(u), target, verdict=Verdict("pass"))
    mu, tau = point.mean()["mu"], point.mean()["tau"]
    predictive = point.predict(rows(["new", "anoka"]), MonteCarlo(NUM_DRAWS), key=1)
    np.testing.assert_allclose(predictive.epistemic, [tau**2, 0.0], rtol=0.1, atol=1e-9)  # 4.5 standard errors
    assert abs(predictive.mean[0] - mu) < 4.5 * tau / np.sqrt(NUM_DRAWS)


def test_rows_of_one_unseen_level_share_its_draw():
    draws = posterior().predict(rows(["new", "new", "other"]), MonteCarlo(NUM_DRAWS)).sample(0, 20_000)
    same, different = np.cov(draws.T)[0, 1:]
    d = posterior().draws
    assert abs(same - (d["mu"].var() + np.mean(d["tau"] ** 2))) < 0.15
    assert abs(different - d["mu"].var()) < 0.1


def test_every_parameter_that_the_level_indexes_is_drawn():
    """Slopes too, though groups= names the intercepts alone; a clamped slope would have no variance of its prior."""
    p = posterior(slopes)
    predictive = p.predict(rows(["cass", "new", "new"], [3.0, 0.0, 3.0]), MonteCarlo(NUM_DRAWS))
    d = p.draws
    known = d["a"][..., 2] + 3.0 * d["b"][..., 2] + d["c"][..., 0]
    np.testing.assert_allclose(predictive.epistemic[0], known.var(), rtol=1e-10)
    base = d["mu"].var() + np.mean(d["tau"] ** 2) + d["c"][..., 0].var()
    assert abs(predictive.epistemic[1] / base - 1) < 0.15
    assert abs(predictive.epistemic[2] / (base + 9 * 4.0) - 1) < 0.1
    assert abs(predictive.mean[2] - 3 * 0.5) < 5 * np.sqrt((base + 36) / NUM_DRAWS)


def test_a_prior_that_follows_a_lengthened_parameter():
    prior = {"a": dist.Normal(0.0, 1.0).expand([3]), "b": lambda a: dist.Normal(a, 0.1)}

    def likelihood(params, x):
        return dist.Normal(params["b"][x["county"]], 1.0)

    predictive = fitted(prior, likelihood, TABLE, {"county": "a"}).predict(rows(["new"]), MonteCarlo(NUM_DRAWS))
    assert abs(predictive.epistemic[0] - 1.01) < 5 * 1.01 * np.sqrt(2 / NUM_DRAWS)


def test_whole_numbers_are_codes_of_every_row_of_the_parameter():
    """Codes 0 and 1 were seen, 2 has a posterior of its own all the same, and 7 is new."""
    table = pd.DataFrame({"county": [0, 1] * 6, "floor": np.zeros(12)})
    p = fitted(INTERCEPTS, intercepts, table, {"county": "a"})
    predictive = p.predict({"county": np.array([2, 7]), "floor": np.zeros(2)}, MonteCarlo(NUM_DRAWS))
    d = p.draws
    np.testing.assert_allclose(predictive.mean[0], d["a"][..., 2].mean(), atol=1e-12)
    assert abs(predictive.epistemic[1] / (d["mu"].var() + np.mean(d["tau"] ** 2)) - 1) < 0.15


def test_a_new_level_is_past_all_rows_of_the_parameter():
    """Three names take the first of five rows: the fourth, whose draws have an sd of 0.4, is no row of a new one."""
    p = fitted({"a": dist.Normal(0.0, 1.0).expand([5])}, intercepts, TABLE, {"county": "a"})
    predictive = p.predict(rows(["new"]), MonteCarlo(NUM_DRAWS))
    assert abs(predictive.epistemic[0] - 1.0) < 5 * np.sqrt(2 / NUM_DRAWS)


def test_two_columns_of_one_parameter_share_their_unseen_levels():
    teams = pd.DataFrame({"home": ["x", "y", "z"] * 4, "away": ["y", "z", "x"] * 4})
    skill = {"a": dist.Normal(0.0, 1.0).expand([3])}

    def match(params, x):
        return dist.Normal(params["a"][x["home"]] - params["a"][x["away"]], 1.0)

    p = fitted(skill, match, teams, {"home": "a", "away": "a"})
    new = pd.DataFrame({"home": ["new", "new"], "away": ["new", "other"]})
    predictive = p.predict(new, MonteCarlo(NUM_DRAWS))
    assert predictive.epistemic[0] == 0.0  # a team against itself
    assert abs(predictive.epistemic[1] - 2.0) < 5 * 2.0 * np.sqrt(2 / NUM_DRAWS)


@pytest.mark.parametrize(
    ("prior", "likelihood", "sentence"),
    [
        ({"a": dist.Normal(np.array([0.0, 1.0, 2.0]), 1.0)}, intercepts, "differs from row to row"),
        ({"a": dist.MultivariateNormal(np.zeros(3), np.eye(3))}, intercepts, "one joint draw from MultivariateNormal"),
        ({"a": dist.ImproperUniform(dist.constraints.real, (3,), ())}, intercepts, "improper prior"),
        (INTERCEPTS, centred, "uses all rows of 'a' at once"),
        (
            {"a": dist.Normal(0.0, 1.0).expand([3]), "b": lambda a: dist.Normal(a, 1.0).expand([3])},
            lambda params, x: dist.Normal(params["a"][x["county"]] + params["b"][x["county"]], 1.0),
            "cannot be evaluated with a, b lengthened",
        ),
    ],
)
def test_what_has_no_conditional_prior_is_refused(prior, likelihood, sentence):
    p = fitted(prior, likelihood, TABLE, {"county": "a"})
    p.predict(rows(["anoka"]))
    with pytest.raises(CredoError, match=sentence):
        p.predict(rows(["anoka", "new"]))


def test_events_of_independent_rows_are_rows():
    p = fitted({"a": dist.Normal(0.0, 2.0).expand([3]).to_event(1)}, intercepts, TABLE, {"county": "a"})
    predictive = p.predict(rows(["new"]), MonteCarlo(NUM_DRAWS))
    assert abs(predictive.epistemic[0] - 4.0) < 5 * 4.0 * np.sqrt(2 / NUM_DRAWS)


@pytest.mark.parametrize("rule", [Linearised(), Quadrature(), Probit()])
def test_rules_that_cannot_draw_say_so(rule):
    target = posterior().target
    p = Posterior(Gaussian(np.zeros(5), Dense.from_covariance(np.eye(5))), target, verdict=Verdict("pass"))
    with pytest.raises(CredoError, match="unseen levels of a.*MonteCarlo"):
        p.predict(rows(["new"]), rule)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (rows(["anoka", None]), "1 missing values"),
        (rows([1.0, 2.0]), "held text in the fit and holds numbers"),
        (rows(pd.to_datetime(["2020-01-01", "2020-01-02"])), "held text in the fit and holds dates"),
        (np.zeros((2, 2)), "groups by column 'county'"),
        (pd.DataFrame({"floor": [0.0]}), "lacks column 'county'"),
    ],
)
def test_group_columns_are_checked(table, sentence):
    with pytest.raises(CredoError, match=sentence):
        posterior().predict(table)


@pytest.mark.parametrize(
    ("fitted_to", "new", "sentence"),
    [
        ([True, False], [5, 7], "held truth values in the fit and holds numbers now"),
        ([5, 7], [True, False], "held numbers in the fit and holds truth values now"),
        (["u", "v"], np.array([b"u", b"v"], object), "held text in the fit and holds bytes now"),
        ([5, 7], np.array(pd.to_datetime(["2020-01-01", "2020-01-02"]), object), "held numbers in the fit and holds d"),
    ],
)
def test_levels_of_another_kind_are_no_new_ones(fitted_to, new, sentence):
    """They were drawn as new groups, or ended in an error of NumPy's."""
    prior = {"a": dist.Normal(0.0, 1.0).expand([2])}
    known = fitted(prior, intercepts, pd.DataFrame({"county": fitted_to * 6}), {"county": "a"})
    with pytest.raises(CredoError, match=sentence):
        known.predict({"county": new})


def test_truth_values_are_zero_and_one():
    prior = {"a": dist.Normal(0.0, 1.0).expand([2])}
    known = fitted(prior, intercepts, pd.DataFrame({"county": [True, False] * 6}), {"county": "a"})
    for new in ([0, 1], np.array([False, True], object)):
        mean = known.predict({"county": np.array(new)}).mean
        np.testing.assert_array_equal(mean, known.predict({"county": np.array([False, True])}).mean)


@pytest.mark.parametrize("precision", [np.float16, np.float32])
def test_levels_are_the_same_in_any_precision(precision):
    """0.1 in single precision is 0.10000000149, which was a new group."""
    levels, prior = np.array([0.1, 0.3, 0.7]), {"a": dist.Normal(0.0, 1.0).expand([3])}
    long, short = (
        fitted(prior, intercepts, pd.DataFrame({"county": np.tile(each, 4)}), {"county": "a"})
        for each in (levels, precision(levels))
    )
    means = [known.predict({"county": new}).mean for known in (long, short) for new in (levels, precision(levels))]
    np.testing.assert_array_equal(means, [means[0]] * 4)


def test_levels_that_were_widened_are_the_same():
    """As by a concatenation with numbers of double precision, or by tolist()."""
    levels, prior = np.array([0.1, 0.3, 0.7]), {"a": dist.Normal(0.0, 1.0).expand([3])}
    wide = np.float32(levels).astype(float)
    known = [
        fitted(prior, intercepts, pd.DataFrame({"county": np.tile(each, 4)}), {"county": "a"})
        for each in (np.float32(levels), wide)
    ]
    means = [each.predict({"county": new}).mean for each in known for new in (levels, np.float32(levels), wide)]
    np.testing.assert_array_equal(means, [means[0]] * 6)
