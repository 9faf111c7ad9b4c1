"""Mixtures of Gaussians some of whose draws reach far: their density, their weights, what they meet."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import credo
from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.linalg.embedded import Embedded
from credo.methods.particles.points import Independent
from credo.methods.particles.weighing import reach_and_weigh
from credo.methods.particles.wide_mixture import WIDE, WideMixture
from credo.posterior.kinds import Gaussian, Mixture
from credo.precision import double
from credo.vi import FullRank, MixtureOf

LOWER = np.array([[1.0, 0.0], [0.5, 0.3]])
PARTS = Gaussian(np.zeros(2), Dense(LOWER)), Gaussian(np.array([6.0, -2.0]), Diagonal(np.array([0.5, 2.0])))
SHARES = np.array([0.3, 0.7])
COVARIANCES = LOWER @ LOWER.T, np.diag([0.25, 4.0])
WIDE_ONE = WideMixture.of(Mixture(np.log(SHARES), PARTS), 0.2)


def share_far_out(u) -> float:
    """Of draws some six sds and more from either component."""
    near = [stats.multivariate_normal(q.mean, cov).logpdf(u) for q, cov in zip(PARTS, COVARIANCES, strict=True)]
    return float(np.mean(np.max(near, axis=0) < -20))


def test_the_density_is_that_of_all_its_gaussians():
    u = np.random.default_rng(0).normal(size=(20, 2)) * 8
    each = [
        [stats.multivariate_normal(q.mean, s**2 * cov).pdf(u) for s in (1.0, *WIDE)]
        for q, cov in zip(PARTS, COVARIANCES, strict=True)
    ]
    narrow = SHARES @ np.array([densities[0] for densities in each])
    wide = SHARES @ np.array([np.mean(densities[1:], axis=0) for densities in each])
    with double():
        log_r, log_q = jax.vmap(WIDE_ONE.log_probs)(u)
        np.testing.assert_allclose(log_q, np.log(narrow), rtol=1e-12)
        np.testing.assert_allclose(log_r, np.log(0.8 * narrow + 0.2 * wide), rtol=1e-12)
        np.testing.assert_array_equal(jax.vmap(WIDE_ONE.log_prob_u)(u), log_r)


def test_draws_have_its_density():
    """Weights q/r have mean one, and under them the draws have the mixture's own mean."""
    model = credo.Model({"x": dist.Normal(0.0, 10.0).expand([2])}, None)
    with double():
        u, log_p_r, log_q_r, _ = reach_and_weigh(WIDE_ONE, model.given().flat(), jax.random.key(1), 20_000, 500)
        log_r = np.asarray(jax.vmap(WIDE_ONE.log_prob_u)(u))
    np.testing.assert_allclose(log_p_r, stats.norm.logpdf(u, scale=10.0).sum(axis=1) - log_r, rtol=1e-9, atol=1e-9)
    weights = np.exp(log_q_r)
    assert abs(weights.mean() - 1) < 5 * weights.std() / np.sqrt(len(u))
    error = np.std(weights[:, None] * u, axis=0) / np.sqrt(len(u))
    assert np.all(abs((weights[:, None] * u).mean(axis=0) - SHARES @ [q.mean for q in PARTS]) < 5 * error)
    assert share_far_out(u) > 0.05


@pytest.mark.parametrize(("wide_share", "least", "most"), [(0.2, 0.05, 0.15), (0.0, 0.0, 0.0)])
def test_importance_draws_the_share_that_was_asked_for(wide_share, least, most):
    target = credo.Model({"x": dist.Normal(0.0, 10.0).expand([2])}, None).given().flat()
    mixture = Mixture(np.log(SHARES), PARTS)
    with double():
        u, *_ = Independent(wide_share).draw_and_weigh(mixture, target, jax.random.key(3), 2_000, 500)
    assert least <= share_far_out(u) <= most


def test_only_mixtures_of_whole_gaussians_reach():
    assert WideMixture.of(PARTS[0], 0.1) is None
    assert WideMixture.of(Mixture(np.log(SHARES), (PARTS[0], Mixture(np.zeros(1), PARTS[:1]))), 0.1) is None
    plane = Gaussian(np.zeros(2), Embedded.at(np.array([0]), Diagonal(np.ones(1)), 2))
    assert WideMixture.of(Mixture(np.log(SHARES), (PARTS[0], plane)), 0.1) is None


def test_a_density_that_overflows_far_out_has_no_weight_there():
    model = credo.Model.from_log_density(
        lambda p: -0.5 * jnp.sum(p["x"] ** 2) + jnp.where(jnp.sum(p["x"] ** 2) > 400, jnp.nan, 0.0),
        {"x": dist.constraints.real_vector},
        {"x": (2,)},
    )
    with double():
        _, log_p_r, *_ = reach_and_weigh(WIDE_ONE, model.given().flat(), jax.random.key(2), 4_000, 500)
    assert not np.any(np.isnan(log_p_r))
    assert np.any(log_p_r == -np.inf)


# two components, of which either may be empty -------------------------------------------------------------------------


def components(params, x):
    shares = jnp.stack([params["w"], 1 - params["w"]])
    return dist.MixtureSameFamily(dist.Categorical(probs=shares), dist.Normal(params["mu"], 1.0))


PRIOR = {"w": dist.Uniform(0.0, 1.0), "mu": dist.Normal(2.0, 3.0).expand([2])}


def outcomes(apart: float):
    rng = np.random.default_rng(1)
    rng.uniform(size=60), rng.normal(size=120)  # what comes next are data by which both passed, and were wrong
    return np.where(rng.uniform(size=80) < 0.35, rng.normal(0.0, 1.0, 80), rng.normal(apart, 1.0, 80))


def by_quadrature(y):
    """The log evidence and the sd of w. In w the density is a polynomial of degree 80 at most, for which 42 nodes are
    exact, and a half of them enough: exchanging the components exchanges w and 1 − w."""
    nodes, weights = (each[:21, None, None] / 2 for each in np.polynomial.legendre.leggauss(42))
    mu = np.arange(-10.0, 14.0, 0.1)  # steps of less than the least sd, 80^−½
    density = 2 * weights * np.multiply.outer(*2 * [0.1 * stats.norm.pdf(mu, 2.0, 3.0)])
    for of_row in stats.norm.pdf(y[:, None], mu):
        density = density * ((0.5 + nodes) * of_row[:, None] + (0.5 - nodes) * of_row)
    return np.log(np.sum(density)), np.sqrt(np.sum(density * nodes**2) / np.sum(density))


@pytest.mark.parametrize("key", [6, 8])  # by which the mixture itself passed
def test_empty_components_are_met(key):
    """A fortieth of the posterior lies where one of the two is empty and roams over its prior."""
    target = credo.Model(PRIOR, components).given(y=outcomes(1.5))
    log_evidence, sd = by_quadrature(target.y)
    fit = credo.fit(target, credo.ADVI(family=MixtureOf(2, FullRank())), key=key, progress=False)
    assert fit.verdict.status != "pass"
    better = credo.fit(target, credo.Importance(proposal=fit), key=key, progress=False)
    evidence = better.log_evidence
    assert abs(evidence.value - log_evidence) < 4 * evidence.error
    assert abs(np.log(better.sd()["w"] / sd)) < 0.1


def test_two_modes_that_hold_all_pass():
    target = credo.Model(PRIOR, components).given(y=outcomes(4.0))
    fit = credo.fit(target, credo.ADVI(family=MixtureOf(2, FullRank())), key=0, progress=False)
    better = credo.fit(target, credo.Importance(proposal=fit), key=0, progress=False)
    assert (fit.verdict.status, better.verdict.status) == ("pass", "pass")
