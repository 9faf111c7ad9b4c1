"""What ArviZ is given: its names, and the log likelihood of each row beside closed forms."""

import arviz_stats
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import credo
from credo.posterior import export

Y = np.random.default_rng(0).normal(1.0, 2.0, size=25)
MODEL = credo.Model({"mean": dist.Normal(0.0, 3.0)}, lambda params, x: dist.Normal(params["mean"], 2.0))


def left_out() -> float:
    """Σ log p(y_i | the others), of a normal mean under a normal prior."""
    total = 0.0
    for i in range(len(Y)):
        others = np.delete(Y, i)
        precision = 1 / 9 + len(others) / 4
        total += stats.norm.logpdf(Y[i], others.sum() / 4 / precision, np.sqrt(4 + 1 / precision))
    return total


METHODS = {"Exact": credo.Exact(), "NUTS": credo.NUTS(num_draws=500), "SMC": credo.SMC()}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_leave_one_out_is_that_of_the_closed_form(method):
    tree = credo.fit(MODEL.given(y=Y), method, progress=False).to_arviz(log_likelihood=True)
    mean = np.asarray(tree["posterior"]["mean"])
    np.testing.assert_allclose(tree["log_likelihood"]["y"], stats.norm.logpdf(Y, mean[..., None], 2.0), rtol=1e-10)
    assert arviz_stats.loo(tree).elpd == pytest.approx(left_out(), abs=0.1)


def test_statistics_have_the_names_of_arviz():
    tree = credo.fit(MODEL.given(y=Y), credo.NUTS(num_draws=20), progress=False).to_arviz()
    expected = {"acceptance_rate", "diverging", "energy", "n_steps", "step_size", "tree_depth"}
    assert set(tree["sample_stats"].data_vars) == expected
    assert "log_likelihood" not in tree.children


def test_several_outcomes_and_weights():
    def likelihood(params, x):
        return {"a": dist.Normal(params["mean"], 2.0), "b": dist.Poisson(jnp.exp(params["mean"]))}

    y = {"a": Y, "b": np.arange(25) % 4}
    weights = np.arange(25) % 3
    target = credo.Model({"mean": dist.Normal(0.0, 3.0)}, likelihood).given(y=y, weights=weights)
    tree = credo.fit(target, credo.Laplace(), progress=False).to_arviz(log_likelihood=True)
    mean = np.asarray(tree["posterior"]["mean"])[..., None]
    found = tree["log_likelihood"]
    counts = weights > 0
    a, b = stats.norm.logpdf(Y, mean, 2.0), stats.poisson.logpmf(y["b"], np.exp(mean))
    np.testing.assert_allclose(found["a"], (weights * a)[..., counts], rtol=1e-10)
    np.testing.assert_allclose(found["b"], (weights * b)[..., counts], rtol=1e-10)
    assert np.isfinite(arviz_stats.loo(tree, var_name="a").elpd)


def test_masked_rows_are_left_out_as_rows_of_no_weight_are():
    seen = np.arange(25) % 5 != 2
    model = credo.Model({"mean": dist.Normal(0.0, 3.0)}, lambda params, x: dist.Normal(params["mean"], 2.0).mask(x))
    masked = credo.fit(model.given(seen, Y), credo.Laplace(), progress=False).to_arviz(log_likelihood=True)
    left = credo.fit(MODEL.given(y=Y, weights=seen.astype(int)), credo.Laplace(), progress=False)
    by_weights = left.to_arviz(log_likelihood=True)
    np.testing.assert_allclose(masked["log_likelihood"]["y"], by_weights["log_likelihood"]["y"], rtol=1e-8)
    assert arviz_stats.loo(masked).elpd == pytest.approx(arviz_stats.loo(by_weights).elpd)


def test_a_mask_that_moves_with_the_parameters_is_exported_as_it_is():
    model = credo.Model(
        {"mean": dist.Normal(0.0, 3.0)}, lambda params, x: dist.Normal(params["mean"], 2.0).mask(x > params["mean"])
    )
    tree = credo.fit(model.given(Y, Y), credo.Laplace(), progress=False).to_arviz(log_likelihood=True)
    mean = np.asarray(tree["posterior"]["mean"])[..., None]
    expected = np.where(mean < Y, stats.norm.logpdf(Y, mean, 2.0), 0.0)
    np.testing.assert_allclose(tree["log_likelihood"]["y"], expected[..., np.any(expected != 0, axis=(0, 1))])


def test_names_with_slashes_have_dots():
    prior = {"layer/kernel": dist.Normal(0.0, 1.0), "other": {"a/b": dist.Normal(0.0, 1.0)}}
    model = credo.Model(prior, lambda p, x: dist.Normal(p["layer/kernel"] + p["other"]["a/b"], 1.0))
    tree = credo.fit(model.given(y=Y), credo.Laplace(), progress=False).to_arviz()
    assert set(tree["posterior"].data_vars) == {"layer.kernel", "other.a.b"}


def test_what_has_no_log_likelihood_or_no_room_for_it(monkeypatch, tmp_path):
    bare = credo.Model.from_log_density(
        lambda params: -0.5 * params["x"] ** 2, {"x": dist.constraints.real}, {"x": ()}
    ).given()
    with pytest.raises(credo.CredoError, match="a bare log density"):
        credo.fit(bare, credo.Laplace(), progress=False).to_arviz(log_likelihood=True)
    posterior = credo.fit(MODEL.given(y=Y), credo.Laplace(), progress=False)
    posterior.save(tmp_path / "posterior")
    with pytest.raises(credo.CredoError, match="loaded without its model"):
        credo.load(tmp_path / "posterior").to_arviz(log_likelihood=True)
    monkeypatch.setattr(export, "memory_for_draws", lambda: 1_000)
    with pytest.raises(credo.CredoError, match=r"25 rows at 4,000 draws is 0.8 MB"):
        posterior.to_arviz(log_likelihood=True)
