"""Importance sampling: exact for an exact proposal, right within its error for a wide one, honest about a bad one."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.special import logsumexp

from credo.algorithm import stream
from credo.fitting import fit
from credo.linalg.dense import Dense
from credo.methods.laplace.laplace import Laplace
from credo.methods.particles.importance import Importance, draw_and_weigh
from credo.methods.particles.points import WIDE, Independent, log_widening, wide_scales
from credo.model.model import Model
from credo.posterior.kinds import Draws, Gaussian, Mixture, Point
from credo.posterior.posterior import Posterior
from credo.precision import double
from credo.status import CredoError, Verdict

KEY = np.array([1, 2], np.uint32)
NUM_ERRORS = 4.5  # two-sided false-alarm rate 7e-6 a number; keys are fixed


def likelihood(params, x):
    return dist.Normal(x @ params["w"], 0.5)


def linear(num_rows=40):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(num_rows, 2))
    y = x @ np.array([1.0, -1.0]) + 0.5 * generator.normal(size=num_rows)
    return Model({"w": dist.Normal(0.0, 1.0).expand([2])}, likelihood).given(x, y)


def truth(target):
    x, y = target.x, target.y
    covariance = np.linalg.inv(x.T @ x / 0.25 + np.eye(2))
    marginal = 0.25 * np.eye(len(y)) + x @ x.T
    log_evidence = -0.5 * (y @ np.linalg.solve(marginal, y) + np.linalg.slogdet(2 * np.pi * marginal)[1])
    return covariance @ x.T @ y / 0.25, covariance, log_evidence


def proposal(target, factor=1.0, kind=None):
    """The exact posterior with its sds multiplied."""
    mean, covariance, _ = truth(target)
    kind = kind or Gaussian(mean, Dense(factor * np.linalg.cholesky(covariance)))
    return Posterior(kind, target, verdict=Verdict("pass"))


def test_the_exact_posterior_as_proposal_has_no_variance():
    target = linear()
    plain = Importance(proposal(target), num_draws=100, points=Independent(wide_share=0.0))
    posterior = fit(target, plain, progress=False)
    assert abs(posterior.log_evidence.value - truth(target)[2]) < 1e-10
    assert posterior.log_evidence.error < 1e-7
    figures = posterior.verdict.figures
    np.testing.assert_allclose(figures["importance_ess"], figures["num_draws"])


def test_a_wide_proposal_recovers_evidence_and_moments():
    target = linear()
    mean, covariance, log_evidence = truth(target)
    posterior = fit(target, Importance(proposal(target, 1.5)), key=1, progress=False)
    assert posterior.verdict.status == "pass"
    assert abs(posterior.log_evidence.value - log_evidence) < NUM_ERRORS * posterior.log_evidence.error
    assert 0 < posterior.log_evidence.error < 0.03
    sd = np.sqrt(np.diagonal(covariance))
    error = NUM_ERRORS / np.sqrt(posterior.verdict.figures["importance_ess"])
    np.testing.assert_array_less(np.abs(posterior.mean()["w"] - mean) / sd, error)
    np.testing.assert_array_less(np.abs(posterior.sd()["w"] / sd - 1), error)


@pytest.mark.parametrize("every", [10, 2])
def test_wide_draws_come_from_what_they_are_weighed_against(every):
    z = np.linspace(-300.0, 300.0, 10_001)
    scales = wide_scales(40 * every, every)
    found = log_widening(z**2, 1, scales) + stats.norm.logpdf(z)
    mixture = (1 - 1 / every) * stats.norm.pdf(z) + np.mean([stats.norm(0, s).pdf(z) for s in WIDE], axis=0) / every
    is_seen = mixture > 0
    np.testing.assert_allclose(found[is_seen], np.log(mixture[is_seen]), atol=1e-9)
    target = linear()
    u, _ = draw_and_weigh(proposal(target).kind, target.flat(), KEY, 20_000, 256, every=every)
    mean, covariance, _ = truth(target)
    white = np.linalg.solve(np.linalg.cholesky(covariance), (u - mean).T)[0]
    number = np.arange(20_000)
    is_wide = number % every == every - 1
    assert stats.kstest(white[~is_wide], "norm").pvalue > 1e-3
    for i, scale in enumerate(WIDE):
        own = is_wide & (number // every % len(WIDE) == i)
        assert abs(np.sum(own) - 20_000 / every / len(WIDE)) < 2
        assert stats.kstest(white[own] / scale, "norm").pvalue > 1e-3


@pytest.mark.parametrize("num_draws", [9, 39, 109])
def test_the_mean_weight_is_unbiased_however_many_draws_there_are(num_draws):
    """Of so few, the share of wide draws is another than the one asked for."""
    target = linear()
    kind, flat, log_evidence = proposal(target).kind, target.flat(), truth(target)[2]
    weights = [draw_and_weigh(kind, flat, stream(KEY, i), num_draws, 256, every=10)[1] for i in range(300)]
    shares = np.exp(np.array(weights) - log_evidence).mean(axis=1)
    assert abs(shares.mean() - 1) < NUM_ERRORS * shares.std() / np.sqrt(len(shares)) + 1e-9


def test_a_wide_draw_at_which_the_density_overflows_has_no_weight():
    target = Model({"m": dist.Normal(0.0, 100.0)}, lambda params, x: dist.Poisson(jnp.exp(params["m"] * x))).given(
        np.array([30.0]), np.array([3])
    )
    narrow = Posterior(Gaussian(np.array([0.03]), Dense(np.array([[3.0]]))), target, verdict=Verdict("pass"))
    posterior = fit(target, Importance(narrow), progress=False)
    u = np.asarray(posterior.kind.positions).reshape(-1, 1)
    assert np.isnan(jax.vmap(target.flat().log_density)(u)).any()
    assert not np.isnan(posterior.verdict.figures["pareto_k"])


def test_a_draw_of_the_proposal_at_which_the_density_is_no_number_is_unknown():
    target = Model.from_log_density(
        lambda params: jnp.where(params["x"] > 1, jnp.nan, -0.5 * params["x"] ** 2), {"x": dist.constraints.real}
    ).given()
    normal = Posterior(Gaussian(np.zeros(1), Dense(np.eye(1))), target, verdict=Verdict("pass"))
    posterior = fit(target, Importance(normal), progress=False)
    assert np.isnan(posterior.log_evidence.value)
    assert np.isnan(posterior.verdict.figures["pareto_k"])
    assert posterior.verdict.status != "pass"


def test_wide_draws_meet_the_tails_of_a_cauchy_posterior():
    """Of four points; the Gaussian at the mode alone leaves sds too small, and k-hat does not see it."""
    y, grid = np.array([-1.0, 0.2, 0.5, 3.0]), np.linspace(-400.0, 400.0, 800_001)
    log_density = np.sum(stats.cauchy.logpdf(y[:, None] - grid), axis=0) + stats.norm.logpdf(grid, scale=50.0)
    log_z = logsumexp(log_density) + np.log(grid[1] - grid[0])
    probs = np.exp(log_density - logsumexp(log_density))
    mean = probs @ grid
    sd = np.sqrt(probs @ (grid - mean) ** 2)
    target = Model({"m": dist.Normal(0.0, 50.0)}, lambda params, x: dist.Cauchy(params["m"], 1.0)).given(y=y)
    for key in range(5):
        posterior = fit(target, Importance(fit(target, Laplace(), progress=False)), key=key, progress=False)
        assert posterior.verdict.status == "pass"
        assert abs(posterior.log_evidence.value - log_z) < 4 * posterior.log_evidence.error
        assert abs(posterior.mean()["m"] - mean) < 0.1 * sd
        assert abs(np.log(posterior.sd()["m"] / sd)) < 0.1


def test_the_error_of_the_evidence_is_its_spread_over_keys():
    target = linear()
    method = Importance(proposal(target, 1.5), num_draws=500)
    found = [fit(target, method, key=key, progress=False).log_evidence for key in range(60)]
    spread, said = np.std([e.value for e in found]), np.mean([e.error for e in found])
    # the sd of a sd of 60 values is 9 %
    assert abs(spread / said - 1) < 0.4


def test_a_narrow_proposal_does_not_pass():
    target = linear()
    posterior = fit(target, Importance(proposal(target, 0.3), points=Independent(wide_share=0.0)), progress=False)
    assert posterior.verdict.figures["pareto_k"] > 0.7
    assert posterior.verdict.status != "pass"
    assert np.isnan(posterior.log_evidence.error)


def test_wide_draws_save_a_narrow_proposal_and_know_how_little_it_is_worth():
    target = linear()
    mean, _, log_evidence = truth(target)
    posterior = fit(target, Importance(proposal(target, 0.3), num_draws=16_000), progress=False)
    assert posterior.verdict.figures["importance_ess"] < 2_000
    assert abs(posterior.log_evidence.value - log_evidence) < NUM_ERRORS * posterior.log_evidence.error
    summary = posterior.summary()
    assert np.all(np.abs(posterior.mean()["w"] - mean) < NUM_ERRORS * np.asarray(summary["mcse_mean"], float))


def test_mixtures_are_proposals_too():
    target = linear()
    narrow, wide = proposal(target, 0.7).kind, proposal(target, 2.0).kind
    mixture = proposal(target, kind=Mixture(np.log([0.5, 0.5]), (narrow, wide)))
    posterior = fit(target, Importance(mixture, num_draws=2_000), progress=False)
    evidence = posterior.log_evidence
    assert abs(evidence.value - truth(target)[2]) < NUM_ERRORS * evidence.error


@pytest.mark.parametrize("num_components", [1, 2])
def test_draws_do_not_depend_on_how_many_are_made_at_once(num_components):
    target = linear().flat()
    kind = proposal(target, 1.5).kind
    kind = kind if num_components == 1 else Mixture(np.log([0.5, 0.5]), (proposal(target, 0.7).kind, kind))
    with double():
        few = draw_and_weigh(kind, target, jax.random.key(3), 50, 7)
        many = draw_and_weigh(kind, target, jax.random.key(3), 50, 64)
    for a, b in zip(few, many, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_a_time_limit_keeps_the_draws_so_far():
    target = linear()
    method = Importance(proposal(target, 1.5), num_draws=2_000)
    whole = fit(target, method, progress=False)
    posterior = fit(target, method, time_limit=1e-6, progress=False)
    num_draws = posterior.kind.positions.shape[1]
    assert 0 < num_draws < 2_000
    np.testing.assert_array_equal(posterior.kind.positions, whole.kind.positions[:, :num_draws])
    assert not posterior.info["is_complete"]
    assert any(f"after {num_draws:,} of 2,000 draws" in sentence for sentence in posterior.verdict.sentences)
    assert np.isfinite(posterior.log_evidence.value)


def test_a_second_fit_compiles_nothing(caplog):
    target = linear()
    fit(target, Importance(proposal(target, 1.5)), progress=False)
    with jax.log_compiles(True), caplog.at_level(logging.WARNING):
        fit(target, Importance(proposal(target, 1.2)), key=9, progress=False)
    assert not [record.message for record in caplog.records if "ompil" in record.message]


@pytest.mark.parametrize(
    ("kind", "message"),
    [(Point(np.zeros(2)), "has no density"), (Draws(np.zeros((1, 3, 2))), "has no density")],
)
def test_points_and_draws_are_refused(kind, message):
    target = linear()
    with pytest.raises(CredoError, match=message):
        fit(target, Importance(proposal(target, kind=kind)), progress=False)


def test_other_mistakes_have_their_sentences():
    target = linear()
    with pytest.raises(CredoError, match="needs a posterior to draw from"):
        fit(target, Importance(), progress=False)
    other = Model({"v": dist.Normal(0.0, 1.0)}, None).given()
    with pytest.raises(CredoError, match="other parameters"):
        fit(other, Importance(proposal(target)), progress=False)
    with pytest.raises(CredoError, match="num_draws is 0"):
        fit(target, Importance(proposal(target), num_draws=0), progress=False)
