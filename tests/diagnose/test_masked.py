"""What a likelihood masks is no datum: figures are those of the rows that are left, whatever stands in the others."""

import functools

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers

import credo
from credo.diagnose import check_prior, interval_coverage, pit
from credo.predict.monte_carlo import MonteCarlo
from credo.reporting.plots.scores import calibration_curves

RNG = np.random.default_rng(0)
N = 60
X = RNG.normal(size=N)
SEEN = np.arange(N) % 4 != 0
TRUE = X + RNG.normal(size=N)
Y = np.where(SEEN, TRUE, 1e3)
INPUTS, LEFT = {"x": X, "seen": SEEN}, {"x": X[SEEN], "seen": SEEN[SEEN]}
PRIOR = {"w": dist.Normal(0.0, 1.0)}


def line(params, x):
    return dist.Normal(params["w"] * x["x"], 1.0).mask(x["seen"])


def binary(params, x):
    return dist.Bernoulli(logits=params["w"] * x["x"]).mask(x["seen"])


def count(params, x):
    return dist.Poisson(jnp.exp(params["w"] * x["x"])).mask(x["seen"])


def program(x, seen, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate("N", len(x)), handlers.mask(mask=seen):
        numpyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


DATA = {
    line: Y,
    binary: np.where(SEEN, TRUE > 0, 7).astype(int),
    count: np.where(SEEN, RNG.poisson(np.exp(X)), -1),
    program: np.where(SEEN, TRUE, np.nan),
}


@functools.cache
def fitted(likelihood) -> credo.Posterior:
    y = DATA[likelihood]
    if likelihood is program:
        target = credo.adapters.from_numpyro(program, **INPUTS, y=y).given()
    else:
        target = credo.Model(PRIOR, likelihood).given(INPUTS, y)
    return credo.fit(target, credo.Laplace(), progress=False)


ALL = pytest.mark.parametrize("likelihood", DATA)


@ALL
def test_scores_are_those_of_the_rows_that_are_left(likelihood):
    """The CRPS of N(0, 1) outcomes was 250 for one masked row of 1,000 in four, and masked rows a log score of 0."""
    posterior, y = fitted(likelihood), DATA[likelihood]
    tables = [credo.compare({"a": posterior}, pair, show=False) for pair in ((INPUTS, y), (LEFT, y[SEEN]))]
    found, expected = (table.loc["a"] for table in tables)
    for name in {"log_score", "log_score_error", "brier", "ece", "coverage_90"} & set(found.index):
        assert found[name] == pytest.approx(expected[name], abs=1e-12), name
    assert ("crps" in found) == (likelihood is not binary)
    if "crps" in found:  # by other draws of the outcomes: E|X − y| of 8,192 of sd 1 to 3
        assert abs(found["crps"] - expected["crps"]) < 5 * 3.0 / np.sqrt(8_192)


@ALL
def test_masked_rows_have_no_log_density(likelihood):
    posterior, y = fitted(likelihood), DATA[likelihood]
    found = posterior.predict(INPUTS).log_prob(y)
    np.testing.assert_array_equal(np.isnan(found), ~SEEN)
    np.testing.assert_allclose(found[SEEN], posterior.predict(LEFT).log_prob(y[SEEN]), rtol=1e-9)


@ALL
def test_masked_rows_have_no_place_and_are_not_covered(likelihood):
    posterior, y = fitted(likelihood), DATA[likelihood]
    predictive, left = posterior.predict(INPUTS), posterior.predict(LEFT)
    np.testing.assert_array_equal(np.isnan(pit(predictive, y)), ~SEEN)
    assert interval_coverage(predictive, y) == pytest.approx(interval_coverage(left, y[SEEN]))


@ALL
def test_calibration_curves_are_of_the_rows_that_are_left(likelihood):
    posterior, y = fitted(likelihood), DATA[likelihood]
    curves, number = calibration_curves({"a": posterior.predict(INPUTS)}, y)
    assert number == SEEN.sum()
    if likelihood is binary:
        expected, _ = calibration_curves({"a": posterior.predict(LEFT)}, y[SEEN])
        np.testing.assert_allclose(curves["a"], expected["a"], rtol=1e-9)
    else:
        assert curves["a"][1][-1] == 1.0
        assert curves["a"][1][-2] > 0.9  # three quarters, where junk lies above


@ALL
def test_checks_see_the_rows_that_are_left(likelihood):
    posterior, y = fitted(likelihood), DATA[likelihood]
    for check in (posterior.check, functools.partial(check_prior, posterior.target)):
        assert check(len, num_draws=5).observed == SEEN.sum()
        np.testing.assert_array_equal(check(len, num_draws=5).replicated, SEEN.sum())
        assert check(np.max, num_draws=5).observed == y[SEEN].max()
    assert 0.01 < posterior.check(np.sum).p_value < 0.99


def test_statistics_of_inputs_have_their_rows():
    check = fitted(line).check(lambda y, x: np.corrcoef(y, x["x"])[0, 1])
    assert check.observed == np.corrcoef(Y[SEEN], X[SEEN])[0, 1]
    assert 0.01 < check.p_value < 0.99


ENTRIES = RNG.uniform(size=(N, 2)) < 0.6
COLUMNS = np.where(ENTRIES, X[:, None] + RNG.normal(size=(N, 2)), 1e3)


def columns(params, x):
    wide = jnp.broadcast_to((params["w"] * x["x"])[:, None], x["seen"].shape)
    return dist.Normal(wide, 1.0).mask(x["seen"]).to_event(1)


def names(params, x):
    return {str(k): dist.Normal(params["w"] * x["x"], 1.0).mask(x["seen"][:, k]) for k in range(2)}


@pytest.mark.parametrize("likelihood", [columns, names])
def test_a_part_of_a_row_that_is_masked_is_left_out_alone(likelihood):
    x, is_scored = {"x": X, "seen": ENTRIES}, ENTRIES.any(axis=1)
    y = COLUMNS if likelihood is columns else {str(k): COLUMNS[:, k] for k in range(2)}
    posterior = credo.fit(credo.Model(PRIOR, likelihood).given(x, y), credo.MAP(), progress=False)
    w = posterior.mean()["w"]
    terms = np.where(ENTRIES, -0.5 * (COLUMNS - w * X[:, None]) ** 2 - 0.5 * np.log(2 * np.pi), 0.0).sum(axis=1)
    found = posterior.predict(x, MonteCarlo(1)).log_prob(y)
    np.testing.assert_array_equal(np.isnan(found), ~is_scored)
    np.testing.assert_allclose(found[is_scored], terms[is_scored], rtol=1e-9)
    table = credo.compare({"a": posterior}, (x, y), show=False)
    assert table.loc["a", "log_score"] == pytest.approx(terms[is_scored].mean())

    def largest(y):
        return np.nanmax(y if likelihood is columns else np.stack(list(y.values())))

    assert posterior.check(largest).observed == COLUMNS[ENTRIES].max()
    assert posterior.check(lambda y: len(y if likelihood is columns else y["0"])).observed == is_scored.sum()
    with pytest.raises(credo.CredoError, match="not finite for the data.*np.nanmax: what the likelihood masks is NaN"):
        posterior.check(lambda y: np.sum(y if likelihood is columns else y["0"]))


def test_nothing_but_masked_rows_is_refused():
    posterior, nothing = fitted(line), {"x": X, "seen": np.zeros(N, bool)}
    with pytest.raises(credo.CredoError, match="masks all these outcomes"):
        credo.compare({"a": posterior}, (nothing, Y), show=False)
    with pytest.raises(credo.CredoError, match="masks all these outcomes"):
        interval_coverage(posterior.predict(nothing), Y)
    with pytest.raises(credo.CredoError, match="masks all outcomes"):
        check_prior(credo.Model(PRIOR, line).given(nothing, Y), np.max)


def test_what_counts_must_still_be_a_number_in_the_support():
    y = np.where(np.arange(N) == 5, np.nan, DATA[program])
    with pytest.raises(credo.CredoError, match=r"NaN in 1 place.s. .the first in row 5"):
        fitted(program).predict(INPUTS).log_prob(y)
    y = np.where(np.arange(N) == 5, -2, DATA[count])
    with pytest.raises(credo.CredoError, match=r"1 row\(s\) outside .*Poisson.*row 5: -2"):
        pit(fitted(count).predict(INPUTS), y)
