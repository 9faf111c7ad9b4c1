"""Prepared models: priors scaled by the rows of the fit alone, group effects, offsets, and answers that are known."""

import logging
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest

import credo
from credo.models.groups import LKJ, GroupTerm, cholesky
from credo.models.regression import prepare
from credo.models.table import read_table
from credo.precision import double
from credo.status import CredoError


def grouped(num_groups: int = 12, num_rows: int = 300, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    group = rng.integers(0, num_groups, num_rows)
    x = rng.normal(3.0, 5.0, num_rows)
    intercept, slope = rng.normal(0.0, 1.0, num_groups), rng.normal(0.0, 0.4, num_groups)
    y = 2.0 + intercept[group] + (0.5 + slope[group]) * (x - 3) / 5 + rng.normal(0.0, 0.5, num_rows)
    exposure = rng.uniform(1.0, 3.0, num_rows)
    return pd.DataFrame(
        {
            "y": y,
            "x": x,
            "county": [f"c{i}" for i in group],
            "e": exposure,
            "n": rng.poisson(exposure * np.exp(0.06 * x)),
        }
    )


def given(prepared):
    return prepared.model.given(prepared.inputs(prepared.rows), prepared.y[prepared.rows])


def test_scaling_and_priors_come_from_the_rows_of_the_fit_alone():
    data = grouped()
    rows = np.arange(0, 300, 2)
    changed = data.copy()
    changed.loc[1::2, ["x", "y"]] *= 100
    formula = "y ~ x + (1 + x | county)"
    mine, other = (prepare(read_table(d, formula=formula), rows) for d in (data, changed))
    assert mine.priors == other.priors
    ours, theirs = jax.tree.leaves(mine.inputs(rows)), jax.tree.leaves(other.inputs(rows))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)
    x = mine.inputs(rows)["features"]
    np.testing.assert_allclose([x.mean(), x.std()], [0.0, 1.0], atol=1e-12)


def test_a_rare_indicator_is_scaled_by_its_two_values():
    data = pd.DataFrame({"a": [0.0] * 49 + [3.0], "y": np.random.default_rng(0).normal(size=50)})
    prepared = prepare(read_table(data, "y"), np.arange(50))
    assert np.ptp(prepared.inputs(np.arange(50))["features"]) == pytest.approx(1.0)
    assert any(line.startswith("coefficient of a: ") and "between its two values" in line for line in prepared.priors)


def test_priors_and_labels_are_in_words():
    prepared = prepare(read_table(grouped(), formula="y ~ x + (1 + x | county)"), np.arange(300))
    text = "\n".join(prepared.priors)
    for start in ("intercept (at the mean", "coefficient of x: Normal(0, ", "noise sd: Exponential", "sd over county"):
        assert start in text
    assert "correlation over county of intercept and x: LKJ(2)" in text
    assert prepared.labels["coefficients[0]"] == "x"
    assert prepared.labels["county_effect[0,1]"] == "county = c0: x"
    assert prepared.describe() == ("table: y, gaussian regression on 1 feature, county as groups, 30 parameters.")
    known = set(prepared.model.structure.scalar_names())
    assert {name for name in prepared.labels if "_effect" not in name} <= known


def test_group_effects_agree_with_a_linear_mixed_model():
    """REML by hand: given the variances of the posterior mean, the effects are those of Henderson's equations."""
    data = grouped()
    prepared = prepare(read_table(data, formula="y ~ x + (1 | county)"), np.arange(300))
    posterior = credo.fit(given(prepared), credo.NUTS(num_draws=500), key=1, progress=False)
    mean = posterior.mean()
    x = prepared.inputs(np.arange(300))
    levels, codes = np.unique(x["county"], return_inverse=True)
    z = codes[:, None] == np.arange(len(levels))
    w = np.column_stack([np.ones(300), x["features"], z])
    ratio = float(np.mean((posterior.draws["noise_sd"] / posterior.draws["county_sd"][..., 0]) ** 2))
    solution = np.linalg.solve(w.T @ w + np.diag([0.0, 0.0, *[ratio] * len(levels)]), w.T @ data["y"])
    # Monte Carlo error of the mean effects: sd about 0.25 / √400; the priors of the fixed part are wide
    np.testing.assert_allclose(mean["county_effect"][:, 0], solution[2:], atol=0.08)
    np.testing.assert_allclose(mean["coefficients"], solution[1:2], atol=0.03)


def test_new_groups_are_drawn_from_their_prior():
    prepared = prepare(read_table(grouped(), formula="y ~ x + (1 | county)"), np.arange(300))
    posterior = credo.fit(given(prepared), credo.NUTS(num_draws=500), progress=False)
    new = pd.DataFrame({"x": [3.0, 3.0], "county": ["c1", "nowhere"]})
    known, unknown = posterior.predict(prepared.inputs(new)).epistemic
    sd = posterior.draws["county_sd"][..., 0]
    # Var(E[y | θ]) of a new group at the mean of x is about Var(intercept) + E[σ²]
    expected = np.var(posterior.draws["intercept"]) + np.mean(sd**2)
    assert known < 0.05 * unknown
    assert unknown == pytest.approx(expected, rel=0.25)  # four standard errors of a variance of 2,000 skewed draws


def test_the_correlations_have_the_lkj_density():
    """The density of the partial correlations is LKJ's of the Cholesky factor times the Jacobian between them."""
    k = 4
    below = np.tril_indices(k, -1)
    term = GroupTerm("g", "g", tuple(map(str, range(k))), True)

    @jax.jit
    def densities(partial):
        factor = cholesky(partial, k)
        jacobian = jax.jacfwd(lambda p: cholesky(p, k)[below])(partial)
        theirs = dist.LKJCholesky(k, LKJ).log_prob(factor) + jnp.linalg.slogdet(jacobian)[1]
        return factor, jnp.sum(term.prior(1, 1.0)["g_correlation"].log_prob(partial)), theirs

    for partial in np.random.default_rng(0).uniform(-0.9, 0.9, (5, 6)):
        with double():
            factor, ours, theirs = densities(partial)
        np.testing.assert_allclose(np.sum(np.square(factor), axis=1), 1.0, atol=1e-12)
        assert float(ours) == pytest.approx(float(theirs), abs=1e-9)


@pytest.mark.parametrize("effects", [("intercept",), ("intercept", "x")])
def test_centred_or_not_the_prior_of_the_effects_is_the_same(effects):
    """p(b) = p(z) / |diag(σ) L| a group, at any σ and correlation."""
    k, rng = len(effects), np.random.default_rng(0)
    term = GroupTerm("g", "g", effects, k > 1)
    centred = replace(term, is_centred=True)
    values = {"g_sd": rng.uniform(0.5, 2.0, k), "g_correlation": rng.uniform(-0.9, 0.9, 1)}
    named = [values[name] for name in term.parameters[:-1]]
    z = rng.normal(size=(5, k))

    @jax.jit
    def densities(named, z):
        b = term.scaled(*named, z)
        conditional = centred.prior(5, 1.0)["g_effect"]
        ours = conditional(dict(zip(conditional.arguments, named, strict=True))).log_prob(b).sum()
        scale = named[0][:, None] * (cholesky(named[1], k) if k > 1 else 1.0)
        return ours, term.prior(5, 1.0)["g_standardised"].log_prob(z).sum() - 5 * jnp.linalg.slogdet(scale)[1]

    with double():
        ours, theirs = densities(named, z)
    assert float(ours) == pytest.approx(float(theirs), abs=1e-9)


def test_groups_that_the_data_inform_are_centred():
    few, many = grouped(num_groups=80), grouped(num_groups=4, num_rows=2_000)
    for data, is_centred in ((few, False), (many, True)):
        for formula in ("y ~ x + (1 | county)", "n ~ x + (1 | county)"):
            data["n"] = np.random.default_rng(0).poisson(np.exp(data["y"] / 2))
            prepared = prepare(read_table(data, formula=formula), np.arange(len(data)))
            assert ("county_effect" in prepared.model.structure.tree_names) == is_centred
            assert prepared.model.derived.keys() == (set() if is_centred else {"county_effect"})


@pytest.mark.slow
def test_new_groups_of_centred_effects():
    data = grouped(num_groups=6, num_rows=400, seed=3)
    prepared = prepare(read_table(data, formula="y ~ x + (1 + x | county)"), np.arange(400))
    assert "county_effect" in prepared.model.structure.tree_names
    posterior = credo.fit(given(prepared), credo.NUTS(num_draws=400), progress=False)
    draws = posterior.draws
    # a group of 70 rows is known by them: its own least-squares line, but for shrinkage by about 1 %
    x = prepared.inputs(np.arange(400))["features"][:, 0]
    rows = (data["county"] == "c1").to_numpy()
    slope, intercept = np.polyfit(x[rows], data["y"][rows], 1)
    ours = [draws[name][..., *index].mean() for name, index in (("intercept", ()), ("coefficients", (0,)))]
    effect = draws["county_effect"][..., 1, :].mean(axis=(0, 1))
    np.testing.assert_allclose(ours + effect, [intercept, slope], atol=0.06)
    new = pd.DataFrame({"x": [3.0, 3.0], "county": ["c1", "nowhere"]})
    known, unknown = posterior.predict(prepared.inputs(new)).epistemic
    expected = np.var(draws["intercept"]) + np.mean(draws["county_sd"][..., 0] ** 2)
    assert known < 0.05 * unknown
    assert unknown == pytest.approx(expected, rel=0.3)  # four standard errors of a variance of 1,600 skewed draws


def test_exposure_gives_rates():
    data = grouped()
    prepared = prepare(read_table(data, "n", exposure="e", formula="n ~ x"), np.arange(300))
    posterior = credo.fit(given(prepared), credo.Laplace(), progress=False)
    # maximum likelihood by Fisher scoring; the prior's sd of 2.5 and 5 moves it by about 1e-3 of an sd
    x = prepared.inputs(np.arange(300))["features"]
    design, beta = np.column_stack([np.ones(300), x]), np.zeros(2)
    for _ in range(30):
        rate = data["e"] * np.exp(design @ beta)
        step = np.linalg.solve(design.T @ (rate.to_numpy()[:, None] * design), design.T @ (data["n"] - rate))
        beta = beta + step
    np.testing.assert_allclose(posterior.mean()["intercept"], beta[0], atol=2e-3)
    np.testing.assert_allclose(posterior.mean()["coefficients"], beta[1:], atol=2e-3)
    twice = data.iloc[:3].assign(e=2 * data["e"][:3])
    means = [posterior.predict(prepared.inputs(d)).mean for d in (twice, data.iloc[:3])]
    np.testing.assert_allclose(means[0], 2 * means[1], rtol=1e-9)


def test_a_model_without_fixed_terms_or_intercept():
    data = grouped(num_groups=80)
    table = read_table(data, formula="y ~ 0 + (1 | county)")
    prepared = prepare(table, np.arange(300))
    assert [leaf.name for leaf in given(prepared).structure.leaves] == ["noise_sd", "county_sd", "county_standardised"]
    table = read_table(data, formula="y ~ 0 + x")
    prepared = prepare(table, np.arange(300))
    np.testing.assert_allclose(
        prepared.inputs([0])["features"], data["x"][:1].to_numpy()[:, None] / np.sqrt(np.mean(data["x"] ** 2))
    )


def test_a_second_table_of_the_same_shape_compiles_nothing(caplog):
    formula = "y ~ x + (1 | county)"
    first, second = (prepare(read_table(grouped(seed=s), formula=formula), np.arange(300)) for s in (0, 1))
    credo.fit(given(first), credo.Laplace(), progress=False)
    target = given(second)
    with jax.log_compiles(True), caplog.at_level(logging.WARNING):
        credo.fit(target, credo.Laplace(), progress=False)
    assert not [record.message for record in caplog.records if "ompil" in record.message]


def test_what_is_not_built_is_said():
    data = grouped().assign(kind=np.tile(["u", "v", "w"], 100))
    with pytest.raises(CredoError, match="Group effects of a categorical outcome are not built"):
        prepare(read_table(data, formula="kind ~ x + (1 | county)"), np.arange(300))
    with pytest.raises(CredoError, match="An offset of a categorical outcome adds the same to every class"):
        prepare(read_table(data, formula="kind ~ x + offset(y)"), np.arange(300))
    with pytest.raises(CredoError, match=r"prepare\(\) takes what read_table\(\) returns; got 'iris'"):
        prepare("iris", np.arange(150))  # type: ignore[arg-type]
    with pytest.raises(CredoError, match="no rows to fit"):
        prepare(read_table(data, formula="y ~ x"), [])
    with pytest.raises(CredoError, match="no row 300 in table, which has rows 0 to 299"):
        prepare(read_table(data, formula="y ~ x"), np.arange(301))


def test_rows_may_be_a_mask():
    table = read_table(grouped(), formula="y ~ x")
    mask = np.arange(300) % 3 == 0
    by_mask, by_number = prepare(table, mask), prepare(table, np.flatnonzero(mask))
    np.testing.assert_array_equal(by_mask.rows, by_number.rows)
    here, there = by_mask.inputs(~mask), by_number.inputs(np.flatnonzero(~mask))
    np.testing.assert_array_equal(here["features"], there["features"])


@pytest.mark.parametrize("new", [np.array([[100.0], [200.0]]), pd.DataFrame({"x": [100.0, 200.0]})])
def test_rows_that_were_not_scaled_are_refused(new):
    """An array had been taken as it was, where the fit had scaled its columns."""
    data = pd.DataFrame({"x": 100.0 + 50.0 * np.random.default_rng(0).normal(size=40)})
    data["y"] = 0.1 * data["x"] + np.random.default_rng(1).normal(size=40)
    prepared = prepare(read_table(data, "y"), np.arange(40))
    posterior = credo.fit(given(prepared), credo.Laplace())
    np.testing.assert_allclose(posterior.predict(prepared.inputs({"x": [100.0, 200.0]})).mean, [10.0, 20.0], atol=1.0)
    with pytest.raises(credo.CredoError, match=r"fitted with .*features.*prepared.inputs\("):
        posterior.predict(new)


@pytest.mark.parametrize("formula", ["y ~ 0 + g", "y ~ 0 + one", "y ~ 0 + (1 | g)"])
def test_without_an_intercept_the_coefficients_reach_the_level(formula):
    """1,000 ± 1 was predicted as 0.5 ± 236 by coefficients with an sd of 2.5, with a pass."""
    y = 1_000 + np.random.default_rng(0).normal(size=20)
    data = pd.DataFrame({"g": np.repeat(["a", "b"], 10), "one": np.full(20, 0.01), "y": y})
    prepared = prepare(read_table(data, formula=formula), np.arange(20))
    posterior = credo.fit(given(prepared), credo.NUTS(), key=0, progress=False)
    expected = np.full(2, y.mean()) if "one" in formula else np.array([y[:10].mean(), y[10:].mean()])
    found = posterior.predict(prepared.inputs({"g": ["a", "b"], "one": [0.01, 0.01]})).mean
    np.testing.assert_allclose(found, expected, atol=0.5)


def test_without_an_intercept_counts_may_have_any_exposure():
    data = pd.DataFrame({"g": np.repeat(["a", "b"], 10), "n": np.repeat([7, 10], 10), "e": 1e6})
    prepared = prepare(read_table(data, formula="n ~ 0 + g", exposure="e"), np.arange(20))
    posterior = credo.fit(given(prepared), credo.NUTS(), key=0, progress=False)
    np.testing.assert_allclose(posterior.predict(prepared.inputs([0, 19])).mean, [7, 10], rtol=0.05)


@pytest.mark.parametrize("size", [1e200, 1e-200])
def test_columns_and_outcomes_of_any_size_are_scaled(size):
    """Squares overflow: the scale was inf, and the column 0, without a word."""
    x, y = np.random.default_rng(0).normal(size=(2, 60))
    for data in ({"y": y, "x": x * size}, {"y": y * size, "x": x}):
        prepared = prepare(read_table(pd.DataFrame(data), "y", "gaussian"), np.arange(60))
        assert prepared.inputs(np.arange(60))["features"].std() == pytest.approx(1.0)
    assert f"noise sd: Exponential with mean {np.std(y) * size:.3g}," in prepared.priors[-1]
