"""What ArviZ is given: its names, and log likelihoods, log priors and replicated data beside closed forms."""

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


GROUP = np.arange(25) % 4
HIERARCHY = credo.Model(
    {
        "spread": dist.HalfNormal(2.0),
        "theta": lambda spread: dist.Normal(0.0, spread).expand([4]).to_event(1),
        "shape": {"share": dist.Dirichlet(jnp.ones(3) * 2.0)},
    },
    lambda params, x: dist.Normal(params["theta"][x], 2.0),
)


@pytest.mark.parametrize("method", [credo.NUTS(num_draws=50, num_warmup=50), credo.Laplace()], ids=["NUTS", "Laplace"])
def test_the_log_prior_is_that_of_each_parameter_given_those_it_hangs_on(method):
    tree = credo.fit(HIERARCHY.given(GROUP, Y), method, progress=False).to_arviz(log_prior=True)
    spread, theta, share = (np.asarray(tree["posterior"][name]) for name in ("spread", "theta", "shape.share"))
    found = tree["log_prior"]
    assert set(found.data_vars) == {"spread", "theta", "shape.share"}
    np.testing.assert_allclose(found["spread"], stats.halfnorm.logpdf(spread, scale=2.0), rtol=1e-10)
    np.testing.assert_allclose(
        found["theta"], stats.norm.logpdf(theta, 0.0, spread[..., None]).sum(axis=-1), rtol=1e-10
    )
    flat = share.reshape(-1, 3)
    expected = [stats.dirichlet.logpdf(row / row.sum(), [2.0] * 3) for row in flat]
    np.testing.assert_allclose(np.ravel(found["shape.share"]), expected, rtol=1e-8)


def test_power_scaling_of_a_prior_finds_the_one_that_decides():
    def sensitivity(scale: float) -> float:
        model = credo.Model({"mean": dist.Normal(0.0, scale)}, lambda params, x: dist.Normal(params["mean"], 2.0))
        tree = credo.fit(model.given(y=Y), credo.Exact(), progress=False).to_arviz(log_prior=True)
        return float(arviz_stats.psense(tree)["mean"])

    assert sensitivity(0.2) > 0.1
    assert sensitivity(20.0) < 0.01


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_rows_left_out_and_replicated_have_the_probabilities_of_the_closed_form(method):
    tree = credo.fit(MODEL.given(y=Y), method, progress=False).to_arviz(log_likelihood=True, posterior_predictive=True)
    assert tree["posterior_predictive"]["y"].shape == (*tree["posterior"]["mean"].shape, 25)
    expected = []
    for i in range(len(Y)):
        others = np.delete(Y, i)
        precision = 1 / 9 + len(others) / 4
        expected.append(stats.norm.cdf(Y[i], others.sum() / 4 / precision, np.sqrt(4 + 1 / precision)))
    np.testing.assert_allclose(arviz_stats.loo_pit(tree)["y"], expected, atol=0.05)


def test_replicated_rows_are_those_of_the_log_likelihood():
    seen = np.arange(25) % 5 != 2
    masked = credo.Model({"mean": dist.Normal(0.0, 3.0)}, lambda params, x: dist.Normal(params["mean"], 2.0).mask(x))
    for target in (masked.given(seen, Y), MODEL.given(y=Y, weights=0.5 * seen)):
        posterior = credo.fit(target, credo.Laplace(), progress=False)
        tree = posterior.to_arviz(log_likelihood=True, posterior_predictive=True)
        for group in ("posterior_predictive", "log_likelihood"):
            assert tree[group]["y"].shape == (1, 4_000, 20)
        np.testing.assert_array_equal(tree["observed_data"]["y"], Y[seen])
        mean, replicated = (np.asarray(tree[g][n]) for g, n in (("posterior", "mean"), ("posterior_predictive", "y")))
        z = (replicated - mean[..., None]) / 2.0  # at each draw those of its own parameters
        assert abs(z.mean()) < 0.02
        assert z.std() == pytest.approx(1.0, abs=0.02)
        assert abs(np.corrcoef(z.mean(axis=-1).ravel(), mean.ravel())[0, 1]) < 0.07


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
    with pytest.raises(credo.CredoError, match="a bare log density or a log factor"):
        credo.fit(bare, credo.Laplace(), progress=False).to_arviz(log_prior=True)
    with pytest.raises(credo.CredoError, match="posterior_predictive=True needs the model's likelihood"):
        credo.fit(bare, credo.Laplace(), progress=False).to_arviz(posterior_predictive=True)
    posterior = credo.fit(MODEL.given(y=Y), credo.Laplace(), progress=False)
    posterior.save(tmp_path / "posterior")
    for group in ("log_likelihood", "log_prior", "posterior_predictive"):
        with pytest.raises(credo.CredoError, match="loaded without its model"):
            credo.load(tmp_path / "posterior").to_arviz(**{group: True})
    monkeypatch.setattr(export, "memory_for_draws", lambda: 1_000)
    with pytest.raises(credo.CredoError, match=r"25 rows at 4,000 draws would take 0.8 MB"):
        posterior.to_arviz(log_likelihood=True)
    with pytest.raises(credo.CredoError, match=r"replicated data of 25 rows at 4,000 draws would take 0.8 MB"):
        posterior.to_arviz(posterior_predictive=True)


def test_parameters_that_are_called_as_coordinates_are():
    """ArviZ would take ``draw`` for the number of the draw, and leave the parameter out."""
    prior = {"draw": dist.Normal(0.0, 1.0), "draw_": dist.Normal(0.0, 1.0), "chain": dist.Normal(0.0, 1.0).expand([2])}
    model = credo.Model(prior, lambda p, x: dist.Normal(p["draw"] + p["draw_"] + p["chain"][0], jnp.ones(len(Y))))
    posterior = credo.fit(model.given(y=Y), credo.NUTS(num_draws=50), progress=False)
    tree = posterior.to_arviz(log_prior=True)
    for group in ("posterior", "log_prior"):
        assert set(tree[group].data_vars) == {"draw__", "draw_", "chain_"}
    np.testing.assert_array_equal(tree["posterior"]["draw__"], posterior.draws["draw"])
    np.testing.assert_array_equal(tree["posterior"]["chain_"], posterior.draws["chain"])
