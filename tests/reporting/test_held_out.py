"""Held-out outcomes: those of every kind of likelihood are scored, and those that it could not give are refused."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest

import credo
from credo.diagnose import interval_coverage, pit
from credo.predict import stream
from credo.reporting.scores import predict_held_out

RNG = np.random.default_rng(0)
N = 30
X = RNG.normal(size=N)
WIDE, COUNTS, LABELS = RNG.normal(size=(N, 3)), RNG.multinomial(5, [0.2, 0.3, 0.5], N), RNG.integers(0, 3, (N, 2))
ONE = {"w": dist.Normal(0.0, 1.0)}
THREE = {"w": dist.Normal(0.0, 1.0).expand([3]).to_event(1)}
GRID = {"w": dist.Normal(0.0, 1.0).expand([2, 3])}


def fitted(prior, likelihood, x, y) -> credo.Posterior:
    return credo.fit(credo.Model(prior, likelihood).given(x, y), credo.Laplace(), key=0, progress=False)


def scored(posterior, held_out):
    return credo.compare({"a": posterior}, held_out, show=False).loc["a"]


# outside of the support -------------------------------------------------------------------------------------------

SUPPORTS = {
    "negative count": (lambda p, x: dist.Poisson(jnp.exp(p["w"] * x)), 1, -2, "Poisson.*row 4: -2"),
    "half a count": (lambda p, x: dist.Poisson(jnp.exp(p["w"] * x)), 1.0, 1.5, r"Poisson.*row 4: 1\.5"),
    "two of a kind": (lambda p, x: dist.Bernoulli(logits=p["w"] * x), 1, 2, "Bernoulli.*row 4: 2"),
    "share above one": (lambda p, x: dist.Beta(jnp.exp(p["w"] * x), 1.0), 0.5, 1.5, r"Beta.*row 4: 1\.5"),
    "no class": (lambda p, x: dist.Categorical(logits=jnp.stack([p["w"] * x, x], -1)), 1, 2, "Categorical.*row 4: 2"),
    "negative class": (lambda p, x: dist.Categorical(logits=jnp.stack([p["w"] * x, x], -1)), 1, -1, "row 4: -1"),
    "more than trials": (lambda p, x: dist.Binomial(3 + jnp.asarray(x > 9), logits=p["w"] * x), 1, 4, "row 4: 4"),
    "NaN": (lambda p, x: dist.Normal(p["w"] * x, 1.0), 0.5, np.nan, "NaN.*the first in row 4"),
    "infinite": (lambda p, x: dist.Poisson(jnp.exp(p["w"] * x)), 1.0, np.inf, "the first in row 4: inf"),
}


@functools.cache
def of_support(name: str) -> credo.Posterior:
    likelihood, usual, _, _ = SUPPORTS[name]
    return fitted(ONE, likelihood, X, np.full(N, usual))


@pytest.mark.parametrize("name", SUPPORTS)
def test_outcomes_outside_the_support_are_refused(name):
    """They scored −∞, or counted as outside of an interval; the fit refuses them in the same words."""
    likelihood, usual, other, sentence = SUPPORTS[name]
    posterior, y = of_support(name), np.where(np.arange(N) == 4, other, usual)
    figures = [lambda: scored(posterior, (X, y)), lambda: credo.Model(ONE, likelihood).given(X, y)]
    if "class" not in name:
        figures += [lambda: pit(posterior.predict(X), y), lambda: interval_coverage(posterior.predict(X), y)]
    figures.append(lambda: credo.plots.calibration({"a": posterior}, (X, y)))
    for figure in figures:
        with pytest.raises(credo.CredoError, match=sentence):
            figure()


def test_the_rule_of_prediction_does_not_matter():
    posterior, y = of_support("two of a kind"), np.where(np.arange(N) == 4, 2, 1)
    for rule in (credo.Linearised(), credo.Probit(), credo.Quadrature()):
        with pytest.raises(credo.CredoError, match="row 4: 2. Recode y, drop those rows"):
            pit(posterior.predict(X, rule), y)


def test_a_support_by_the_parameters_has_impossible_outcomes():
    """Some parameters could give them: a model that holds none of these is wrong, and scores −∞."""
    posterior = fitted(ONE, lambda p, x: dist.Uniform(0.0, jnp.exp(p["w"]) + 0.0 * x), X, np.full(N, 0.5))
    assert scored(posterior, (X, np.full(N, 1e9)))["log_score"] == -np.inf


# forms of outcomes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prior", "likelihood", "y"),
    [
        (THREE, lambda p, x: dist.MultivariateNormal(p["w"], jnp.eye(3)), WIDE),
        (THREE, lambda p, x: dist.Normal(p["w"], 1.0).to_event(1), WIDE),
        pytest.param(THREE, lambda p, x: dist.Multinomial(5, logits=p["w"]), COUNTS, marks=pytest.mark.slow),
    ],
    ids=["multivariate", "columns", "multinomial"],
)
def test_rows_of_several_columns_without_inputs(prior, likelihood, y):
    """As those of a model with inputs that it does not read: the CRPS to its draws, the rest exactly."""

    def wide(p, x):
        return likelihood(p, None).expand([x.shape[0]])

    alone = scored(fitted(prior, likelihood, None, y), (None, y[:9]))
    beside = scored(fitted(prior, wide, X, y), (X[:9], y[:9]))
    for name in ("log_score", "log_score_error"):
        assert alone[name] == pytest.approx(beside[name], rel=1e-6)
    assert alone["coverage_90"] == pytest.approx(beside["coverage_90"], abs=0.12)  # sampled quantiles
    assert alone["crps"] == pytest.approx(beside["crps"], abs=5 * 1.5 / np.sqrt(8_192))


def two(params, x):
    return {"size": dist.Normal(params["w"] * x, 1.0), "number": dist.Poisson(jnp.exp(params["w"] * x))}


BY_NAME = {"size": WIDE[:, 0], "number": COUNTS[:, 0]}


def test_outcomes_by_name_have_the_log_score_of_all():
    posterior = fitted(ONE, two, X, BY_NAME)
    found = scored(posterior, (X, BY_NAME))
    predictive = predict_held_out(posterior, X)
    assert found["log_score"] == pytest.approx(predictive.log_prob(BY_NAME).mean())
    assert found["log_score_error"] > 0
    assert not {"crps", "brier"} & set(found.index)
    table = pd.DataFrame(BY_NAME, dtype=object)
    assert scored(posterior, (X, dict(table)))["log_score"] == found["log_score"]
    for y in (WIDE[:, 0], {"size": WIDE[:, 0]}):
        with pytest.raises(credo.CredoError, match="y lacks an outcome of the likelihood; it has number, size"):
            scored(posterior, (X, y))
    with pytest.raises(credo.CredoError, match="number has 1 row.*row 2: -1"):
        scored(posterior, (X, BY_NAME | {"number": np.where(np.arange(N) == 2, -1, 1)}))


def test_sites_of_different_lengths_are_one_datum():
    def program(few, many):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        for name, y in (("few", few), ("many", many)):
            with numpyro.plate(f"{name} rows", len(y)):
                numpyro.sample(name, dist.Normal(w, 1.0), obs=y)

    y = {"few": WIDE[:4, 0], "many": WIDE[:9, 1]}
    posterior = credo.fit(credo.adapters.from_numpyro(program, **y).given(), credo.MAP(), progress=False)
    terms = -0.5 * (np.concatenate(list(y.values())) - posterior.mean()["w"]) ** 2 - 0.5 * np.log(2 * np.pi)
    assert scored(posterior, (None, y))["log_score"] == pytest.approx(terms.sum())


@pytest.mark.parametrize("is_event", [True, False])
def test_columns_of_classes(is_event):
    """Brier score and calibration error over all entries; their quantiles were asked for."""

    def likelihood(p, x):
        d: Any = dist.Categorical(logits=p["w"] + 0.0 * x[:, None, None])
        return d.to_event(1) if is_event else d

    posterior = fitted(GRID, likelihood, X, LABELS)
    found = scored(posterior, (X, LABELS))
    probs = np.asarray(predict_held_out(posterior, X).probs)
    assert found["brier"] == pytest.approx(np.mean(np.sum((probs - np.eye(3)[LABELS]) ** 2, axis=-1)))
    assert 0.0 <= found["ece"] < 0.3


@pytest.mark.parametrize(
    ("likelihood", "y"),
    [
        (lambda p, x: dist.Categorical(logits=p["w"]), LABELS[:, 0]),
        (lambda p, x: dist.Bernoulli(logits=p["w"][0]), LABELS[:, 0] // 2),
    ],
    ids=["classes", "binary"],
)
def test_classes_without_inputs(likelihood, y):
    posterior = fitted(THREE, likelihood, None, y)
    found, probs = scored(posterior, (None, y[:11])), np.asarray(predict_held_out(posterior, None).probs)
    probs = np.broadcast_to(probs, (11, *probs.shape[1:]))
    expected = credo.diagnose.calibration_error(np.stack([1 - probs, probs], 1) if probs.ndim == 1 else probs, y[:11])
    assert found["ece"] == pytest.approx(expected.value)
    assert "crps" not in found


LINE = {"w": dist.Normal(0.0, 1.0)}, lambda p, x: dist.Normal(p["w"] * x, 1.0)


@functools.cache
def line() -> credo.Posterior:
    return fitted(*LINE, X, WIDE[:, 0])


@pytest.mark.parametrize(
    "held_out",
    [
        (X, WIDE[:, 0].astype(object)),
        (X.astype(object), WIDE[:, 0]),
        (pd.Series(X), pd.Series(WIDE[:, 0], dtype=object)),
        [list(X), list(WIDE[:, 0])],
    ],
    ids=["objects", "objects in x", "series", "lists"],
)
def test_numbers_in_other_clothes_are_numbers(held_out):
    assert scored(line(), held_out)["crps"] == scored(line(), (X, WIDE[:, 0]))["crps"]


def test_binary_outcomes_as_objects_booleans_and_floats():
    posterior = of_support("two of a kind")
    expected = scored(posterior, (X, LABELS[:, 0] // 2))
    for dtype in (object, bool, float):
        found = scored(posterior, (X, (LABELS[:, 0] // 2).astype(dtype)))
        assert found["brier"] == expected["brier"]


@pytest.mark.parametrize(
    ("held_out", "sentence"),
    [
        (X, r"pair \(x, y\).*got ndarray"),
        (np.stack([X, X]), r"pair \(x, y\).*got ndarray"),
        ((X, WIDE[:, 0], WIDE[:, 1]), "got tuple of 3"),
        ((X,), "got tuple of 1"),
        ({"x": X, "y": WIDE[:, 0]}, "got dict"),
        ("xy", "got str"),
        (3, "got int"),
        ((X, None), "no outcomes"),
        ((X, {"y": WIDE[:, 0]}), "y is a dict of y, and the likelihood has one outcome"),
        ((X, np.array(["a"] * N, object)), "y holds text"),
        ((X, np.array([None] * N, object)), "y has 30 missing values"),
        ((X, [[1.0, 2.0], [3.0]]), "y is ragged"),
        ((X, WIDE), r"y has shape \(30, 3\) and the predictive \(30,\)"),
    ],
)
def test_what_is_no_pair_of_inputs_and_outcomes_is_said(held_out, sentence, tmp_path):
    posteriors = {"a": line()}
    for figure in (
        lambda: credo.compare(posteriors, held_out, show=False),
        lambda: credo.report(posteriors, held_out, path=tmp_path / "report.html"),
        lambda: credo.plots.calibration(posteriors, held_out),
    ):
        with pytest.raises(credo.CredoError, match=sentence):
            figure()


def test_many_outcomes_of_a_model_without_inputs_are_scored_some_at_a_time(monkeypatch):
    """All of them beside all draws took gigabytes."""
    y = np.random.default_rng(1).normal(size=300)
    model = credo.Model({"m": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["m"], 1.0))
    posterior = credo.fit(model.given(y=y[:20]), credo.NUTS(num_draws=100), progress=False)
    together = posterior.predict().log_prob(y)
    monkeypatch.setattr(stream, "MEMORY", 2**18)
    apart = posterior.predict()
    assert apart._stream.alone is not None
    assert apart._stream.alone < 100
    np.testing.assert_allclose(apart.log_prob(y), together, rtol=1e-13)
    assert (
        predict_held_out(posterior, None, np.zeros(10**6))._stream.law.width
        < predict_held_out(posterior, None)._stream.law.width
    )


def test_a_law_without_a_variance_measures_no_distance():
    model = credo.Model({"v": dist.InverseGamma(0.5, 1.0)}, lambda params, x: dist.Normal(0.0, jnp.sqrt(params["v"])))
    target = model.given(y=np.array([1.0]))
    fits = {"exact": credo.fit(target, credo.Exact()), "laplace": credo.fit(target, credo.Laplace(), progress=False)}
    table = credo.compare(fits, show=False)
    assert np.isnan(table["mean_distance"]).all()


@pytest.mark.slow
def test_distances_are_of_what_is_derived_too():
    """b − a is known ten times better than a and b, and off by a quarter of its sd under Laplace."""
    model = credo.Model(
        {"a": dist.Normal(0, 10), "b": lambda a: dist.Normal(a, 2)},
        lambda p, x: dist.Binomial(x["n"], logits=p["a"] - p["b"] + 0.0 * x["n"]),
        derived={"contrast": lambda a, b: a - b},
    )
    target = model.given({"n": np.array([12, 8])}, np.array([1, 0]))
    fits = {name: credo.fit(target, method, key=1) for name, method in (("N", credo.NUTS()), ("L", credo.Laplace()))}
    table = credo.compare(fits, reference="N", show=False)
    assert 0.2 < table.loc["L", "mean_distance"] < 0.3
    assert table.loc["L", "sd_ratio"] == pytest.approx(0.93, abs=0.02)
