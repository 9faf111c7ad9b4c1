"""Missing outcomes: the parameters know what the observed rows say, and the rest is drawn from p(y | x, θ)."""

import functools

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.distributions import constraints

import credo
from credo import CredoError, Model
from credo.adapters import from_numpyro

N = 12
X = np.random.default_rng(0).normal(size=(N, 2))
Y = X @ np.array([1.0, -2.0]) + 0.3 * np.cos(np.arange(N))
LACKING = np.array([2, 5, 6])
OBSERVED = np.setdiff1d(np.arange(N), LACKING)
HOLED = np.where(np.isin(np.arange(N), LACKING), np.nan, Y)
NOISE = 0.5


def line(params, x):
    return dist.Normal(x @ params["w"], NOISE)


MODEL = Model({"w": dist.Normal(0.0, 1.0).expand([2])}, line, derived={"total": lambda w: w.sum()})


@functools.cache
def imputed():
    return credo.fit(MODEL.given(X, HOLED, missing="impute"), credo.Exact())


def closed_form():
    """Mean and covariance of w given the observed rows."""
    x = X[OBSERVED]
    covariance = np.linalg.inv(np.eye(2) + x.T @ x / NOISE**2)
    return covariance @ x.T @ Y[OBSERVED] / NOISE**2, covariance


def test_missing_outcomes_are_refused_unless_asked_for():
    with pytest.raises(CredoError, match=r"y has 3 NaN or infinite values \(the first in row 2: nan\).*missing="):
        MODEL.given(X, HOLED)


@pytest.mark.parametrize("missing", ["drop", "impute"])
@pytest.mark.parametrize("kind", ["array", "list", "series"])
def test_the_parameters_know_what_the_observed_rows_say(missing, kind):
    with_none = [None if np.isnan(y) else y for y in HOLED]
    y = {"array": HOLED, "list": with_none, "series": pd.Series(with_none, dtype=object)}[kind]
    weights = np.arange(1.0, N + 1)
    target = MODEL.given(X, y, weights=weights, missing=missing)
    alone = MODEL.given(X[OBSERVED], Y[OBSERVED], weights=weights[OBSERVED])
    for name in ("x", "y", "weights", "size", "num_terms"):
        np.testing.assert_array_equal(getattr(target, name), getattr(alone, name))
    np.testing.assert_array_equal(target.missing.rows, LACKING)
    np.testing.assert_array_equal(target.missing.x, X[LACKING])


def test_a_verdict_says_how_many_and_what_is_assumed():
    verdict = credo.fit(MODEL.given(X, HOLED, missing="drop"), credo.MAP()).verdict
    assert any("3 of 12 rows have no outcome: they were left out" in each for each in verdict.sentences)
    assert any("draws of them are 'y_missing'" in each and "given x" in each for each in imputed().verdict.sentences)
    assert MODEL.given(X, Y, missing="drop").missing is None


def test_a_row_that_lacks_one_of_two_outcomes_is_left_out_and_that_is_said():
    both = credo.Model(
        {"w": dist.Normal(0.0, 1.0).expand([2])}, lambda p, x: {k: dist.Normal(x @ p["w"], 1.0) for k in "ab"}
    )
    verdict = credo.fit(both.given(X, {"a": HOLED, "b": Y}, missing="drop"), credo.MAP()).verdict
    assert any("3 of 12 rows lack an outcome (3 of them a part of it, which" in each for each in verdict.sentences)


def test_imputations_have_the_joint_distribution_of_the_closed_form():
    """y_mis | D ~ N(X_mis m, X_mis S X_misᵀ + σ² I), and its covariance with w is X_mis S."""
    mean, covariance = closed_form()
    x = X[LACKING]
    number = 20_000
    draws = imputed().sample(3, number)
    y, w = draws["y_missing"], draws["w"]
    np.testing.assert_allclose(imputed().mean()["w"], mean, atol=1e-8)
    expected = x @ covariance @ x.T + NOISE**2 * np.eye(3)
    sd = np.sqrt(np.diag(expected))
    assert np.all(np.abs(y.mean(axis=0) - x @ mean) < 4.5 * sd / np.sqrt(number))
    found = np.cov(np.concatenate([y, w], axis=1).T)
    # each entry of a sample covariance has a standard error of at most √2 sd_i sd_j / √n
    error = 4.5 * np.sqrt(2 / number)
    assert np.all(np.abs(found[:3, :3] - expected) < error * np.outer(sd, sd))
    assert np.all(np.abs(found[:3, 3:] - x @ covariance) < error * np.outer(sd, np.sqrt(np.diag(covariance))))


def test_imputations_are_reported_beside_the_parameters():
    posterior = imputed()
    assert set(posterior.mean()) == {"w", "total", "y_missing"}
    assert posterior.mean()["y_missing"].shape == (3,)
    assert list(posterior.summary().index) == ["w[0]", "w[1]", "total", *(f"y_missing[{i}]" for i in range(3))]
    assert posterior.quantile(0.5)["y_missing"].shape == (3,)
    assert "y_missing" in posterior.to_arviz()["posterior"]
    assert posterior.check(np.mean, num_draws=50).replicated.shape == (50,)


def test_draws_keep_their_imputations_in_files(tmp_path):
    target = MODEL.given(X, HOLED, missing="impute")
    posterior = credo.fit(target, credo.NUTS(chains=2, num_warmup=50, num_draws=50), progress=False)
    assert posterior.draws["y_missing"].shape == (2, 50, 3)
    posterior.save(tmp_path / "p.credo")
    for loaded in (credo.load(tmp_path / "p.credo"), credo.load(tmp_path / "p.credo", target)):
        np.testing.assert_array_equal(loaded.draws["y_missing"], posterior.draws["y_missing"])
    assert "y_missing" not in credo.load(tmp_path / "p.credo", MODEL).draws
    with pytest.raises(CredoError, match="other data"):
        credo.load(tmp_path / "p.credo", MODEL.given(X[OBSERVED], Y[OBSERVED]))


@pytest.mark.slow
def test_counts_and_groups():
    """Discrete outcomes are drawn as well; levels that are seen in rows without an outcome keep their codes."""
    model = Model(
        {"p": dist.Beta(1.0, 1.0).expand([3])},
        lambda params, x: dist.Binomial(5, params["p"][x["g"]]),
        groups={"g": "p"},
    )
    y = [1, 4, None, 2, 5, None]
    target = model.given({"g": list("abcabc")}, y, missing="impute")
    assert target.y.dtype == np.int64
    np.testing.assert_array_equal(target.missing.x["g"], [2, 2])
    posterior = credo.fit(target, credo.NUTS(chains=2, num_warmup=100, num_draws=2_000), progress=False)
    drawn = posterior.draws["y_missing"]
    # under the uniform prior of an unseen group every count is as likely, and two of one group go together
    p = posterior.draws["p"][..., 2]
    residual = drawn - 5 * p[..., None]
    variance = np.mean(5 * p * (1 - p))
    assert np.all(np.abs(residual.mean(axis=(0, 1))) < 4.5 * np.sqrt(variance / 4_000))
    assert abs(np.corrcoef(residual.reshape(-1, 2).T)[0, 1]) < 4.5 / np.sqrt(4_000)
    assert set(np.unique(drawn)) == set(range(6))


def test_without_inputs_and_with_columns():
    sole = Model(dist.Normal(0.0, 1.0), lambda params, x: dist.Normal(params, 1.0))
    posterior = credo.fit(sole.given(y=[1.0, None, 2.0, None], missing="impute"), credo.MAP())
    assert posterior.sample(0, 3).shape == (3,)  # bare, as the prior is
    assert posterior.summary(["y_missing"]).shape[0] == 2
    two = Model({"m": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["m"] * x[:, None], 1.0))
    y = np.ones((4, 3))
    y[1] = np.nan
    posterior = credo.fit(two.given(np.arange(4.0), y, missing="impute"), credo.MAP())
    assert posterior.mean()["y_missing"].shape == (1, 3)
    y[2, 0] = np.nan
    assert two.given(np.arange(4.0), y, missing="drop").size == 2


def joint(params, x):
    return dist.MultivariateNormal(x @ params["w"], jnp.eye(len(x)))


def centred(params, x):
    return dist.Normal((x - x.mean(axis=0)) @ params["w"], 1.0)


def by_row(params, x):
    return dist.Normal(params["w"].sum() + jnp.arange(float(len(OBSERVED))), 1.0)


def one_a_row(params, x):
    return dist.Normal(params["w"].sum() + jnp.arange(float(N)), 1.0)


HALF = np.stack([Y, HOLED], axis=1)


@pytest.mark.parametrize(
    ("likelihood", "y", "missing", "sentence"),
    [
        (joint, HOLED, "drop", "The likelihood is joint .* cannot be left out"),
        (joint, HOLED, "impute", "The likelihood is joint .* cannot be left out"),
        (centred, HOLED, "drop", "changes with the rows beside it"),
        (centred, HOLED, "impute", "changes with the rows beside it"),
        (by_row, HOLED, "impute", r"cannot be evaluated at these data"),
        (line, np.full(N, np.nan), "drop", "All 12 outcomes are missing"),
        (one_a_row, HOLED, "impute", r"\(index what has an entry for each row by a column of row numbers in x\)"),
        (line, HALF, "impute", "Row 2 of y has some entries and lacks others"),
        (line, {"y": HOLED}, "impute", "knows one outcome, and y is a dict"),
        (
            line,
            np.where(np.arange(N) == 7, np.inf, HOLED),
            "drop",
            r"y has 1 infinite value \(the first in row 7: inf\), which are not missing",
        ),
        (line, HOLED, "ignore", "missing is 'drop', 'impute' or None; got 'ignore'"),
        (line, HOLED[:-1], "drop", r"differ in length \(x has 12, y has 11"),
        (
            lambda p, x: dist.Poisson(jnp.exp(x @ p["w"])),
            HOLED,
            "drop",
            "outside .*Rows are counted without the 3 that",
        ),
    ],
)
def test_refused(likelihood, y, missing, sentence):
    with pytest.raises(CredoError, match=sentence):
        Model({"w": dist.Normal(0.0, 1.0).expand([2])}, likelihood).given(X, y, missing=missing)


def test_refused_by_models_without_rows():
    with pytest.raises(CredoError, match="'y_missing', and the model has that name already"):
        Model({"y_missing": dist.Normal(0.0, 1.0)}, line).given(X, HOLED, missing="impute")
    with pytest.raises(CredoError, match="knows no y, weights or missing"):
        Model.from_log_density(lambda p: -(p["a"] ** 2), {"a": constraints.real}).given(missing="drop")

    def program(x, y=None):
        numpyro.sample("y", dist.Normal(numpyro.sample("w", dist.Normal(0.0, 1.0)) * x, 1.0), obs=y)

    with pytest.raises(CredoError, match="in NumPyro, mask the missing outcomes"):
        from_numpyro(program).given(X[:, 0], HOLED, missing="drop")
