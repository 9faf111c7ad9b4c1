"""Families, objectives and parameters that go together, and a sentence for those that do not."""

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

import credo
from credo import vi

COUNTS = credo.Model({"rate": dist.Gamma(2.0, 1.0)}, lambda params, x: dist.Poisson(params["rate"]))
TARGET = COUNTS.given(y=np.array([3, 5, 1, 4]))


@pytest.mark.parametrize("family", [vi.Gamma(), vi.Blocks({"rate": vi.Gamma()})], ids=["alone", "in blocks"])
def test_the_fisher_divergence_refuses_draws_that_do_not_move_with_their_noise(family):
    """It was zero everywhere, and the fit "done" where it began."""
    with pytest.raises(credo.CredoError, match=r"draws of Gamma\(\), Beta\(\) and Dirichlet\(\) are made from keys"):
        credo.fit(TARGET, credo.ADVI(family=family, objective=vi.FisherDivergence()))


@pytest.mark.parametrize(
    ("objective", "gradient"),
    [
        (vi.ImportanceWeighted(num_inner=3), vi.StickingTheLanding()),
        (vi.Renyi(num_inner=3), vi.ScoreFunction()),
        pytest.param(vi.ImportanceWeighted(num_inner=3), vi.ScoreFunction(), marks=pytest.mark.slow),
        pytest.param(vi.Renyi(num_inner=3), vi.StickingTheLanding(), marks=pytest.mark.slow),
    ],
    ids=lambda one: type(one).__name__,
)
def test_groups_of_any_size(objective, gradient):
    posterior = credo.fit(TARGET, credo.ADVI(objective=objective, gradient=gradient), progress=False)
    assert float(posterior.mean()["rate"]) == pytest.approx(3.0, abs=0.1)


def test_a_q_that_has_collapsed_is_no_pass():
    posterior = credo.fit(TARGET, credo.ADVI(objective=vi.ChiUpper(2)), progress=False)
    assert posterior.verdict.status != "pass"


def test_discrete_parameters_alone():
    """p(z | y) and log p(y) by enumeration."""
    prior = np.array([0.2, 0.3, 0.5])
    model = credo.Model({"z": dist.Categorical(prior)}, lambda params, x: dist.Normal(5.0 * params["z"], 1.0))
    posterior = credo.fit(
        model.given(y=np.array([2.4])), credo.ADVI(gradient=vi.ScoreFunction()), key=0, progress=False
    )
    log_joint = np.log(prior) + norm.logpdf(2.4, 5.0 * np.arange(3))
    assert posterior.verdict.status == "pass"
    assert posterior.log_evidence.value == pytest.approx(logsumexp(log_joint), abs=1e-3)
    share = np.mean(np.asarray(posterior.sample(0, 4_000)["z"]) == 1)
    assert share == pytest.approx(np.exp(log_joint[1] - logsumexp(log_joint)), abs=0.04)


def test_a_discrete_parameter_that_is_certain_is_no_doubt():
    """All draws of it are one value, which has no sd to be off by."""
    model = credo.Model(
        {"mu": dist.Normal(0.0, 1.0), "z": dist.Bernoulli(0.5)},
        lambda params, x: dist.Normal(params["mu"] + 20.0 * params["z"], 1.0),
    )
    target = model.given(y=np.array([20.3, 19.8, 20.1]))
    posterior = credo.fit(target, credo.ADVI(gradient=credo.vi.ScoreFunction()), key=0, progress=False)
    assert posterior.mean()["z"] == pytest.approx(1.0, abs=1e-3)
    assert posterior.mean()["mu"] == pytest.approx(0.2 / 4, abs=0.05)  # one row of the prior's weight beside three
    assert posterior.verdict.status == "pass"


def test_no_fisher_divergence_of_discrete_parameters():
    model = credo.Model(
        {"mu": dist.Normal(0.0, 1.0), "z": dist.Bernoulli(0.3)}, lambda p, x: dist.Normal(p["mu"] + p["z"], 1.0)
    )
    target = model.given(y=np.array([2.4, 3.0]))
    q = credo.fit(target, credo.ADVI(gradient=vi.ScoreFunction(), max_steps=50), progress=False)
    found = vi.divergences(q)
    assert np.isnan(found.fisher.value)
    assert np.isfinite(found.kl_p_q.value)


def test_a_point_is_no_reference():
    q = credo.fit(TARGET, credo.Laplace(), progress=False)
    with pytest.raises(credo.CredoError, match="reference is a point"):
        vi.divergences(q, reference=credo.fit(TARGET, credo.MAP(), progress=False))


def test_a_prior_of_many_dimensions_is_not_looked_at_in_full(monkeypatch):
    from credo.methods.vi.gradients import reparameterised

    monkeypatch.setattr(reparameterised, "MAX_DIM", 2)
    monkeypatch.setattr(reparameterised, "quadratic", lambda *_: pytest.fail("the whole curvature was formed"))
    model = credo.Model({"b": dist.Normal(0.0, 1.0).expand([3])}, lambda p, x: dist.Normal(p["b"].sum(), 1.0))
    method = credo.ADVI(gradient=vi.Reparameterised(), max_steps=50)
    credo.fit(model.given(y=np.ones(3)), method, progress=False)
