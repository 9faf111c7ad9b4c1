"""Draws that reach far tell a density without mass, where q's tails are light, from a part of the posterior."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy import stats
from scipy.special import logsumexp

import credo
from credo.diagnose.moments import shifts_between
from credo.linalg.dense import Dense
from credo.methods.particles.reach import SHARE, log_widening, reaching, widened
from credo.methods.particles.wide_mixture import WIDE
from credo.posterior.kinds import Gaussian
from credo.precision import double


def bare(log_density, dim=1):
    return credo.Model.from_log_density(log_density, {"x": constraints.real_vector}, {"x": (dim,)}).given().flat()


def test_the_mixture_is_a_density():
    for dim, step in ((1, 0.01), (2, 0.2)):
        axis = np.arange(-90, 90 + step, step)
        z = np.stack([each.ravel() for each in np.meshgrid(*[axis] * dim)], axis=1)
        density = np.exp(log_widening(z) + stats.norm.logpdf(z).sum(axis=1))
        assert density.sum() * step**dim == pytest.approx(1, abs=1e-6)
    both = np.mean(1 / WIDE) + np.mean(1 / WIDE**3)
    assert log_widening(np.zeros((1, 3)))[0] == pytest.approx(np.log(1 - SHARE + SHARE / 2 * both))


def test_draws_are_those_of_the_mixture_and_weights_those_of_the_target():
    mean, lower = np.array([1.0, -2.0]), np.array([[2.0, 0.0], [0.9, 0.5]])
    covariance = lower @ lower.T
    target = bare(lambda p: 3.0 + dist.MultivariateNormal(jnp.array(mean), jnp.array(covariance)).log_prob(p["x"]), 2)
    with double():
        draw = reaching(Gaussian(mean, Dense(lower)), target, np.array([0, 1], np.uint32), 100_000, 50_000)
        u, log_target, log_approximation, _ = draw(0)
        np.testing.assert_allclose(log_target - log_approximation, 3.0, atol=1e-9)
        assert np.any(draw(1).u != u)
    w = np.exp(log_approximation)
    assert np.mean(w) == pytest.approx(1, abs=0.01)
    np.testing.assert_allclose(w @ u / w.sum(), mean, atol=0.03)
    z = np.linalg.solve(lower, (u - mean).T).T
    share = 0.75 * SHARE * np.mean(2 * stats.norm.sf(6 / WIDE))  # half of them in both, the rest in one of two
    np.testing.assert_allclose(np.mean(np.abs(z) > 6, axis=0), share, rtol=0.08)


def test_one_number_says_what_a_draw_reaches_along_and_how_far():
    choice = (np.arange(80_000) + 0.5) / 80_000
    factor = widened(np.ones((80_000, 3)), choice, 0.2)
    assert np.all(factor[:64_000] == 1)
    for scale in WIDE:
        assert np.sum(np.all(factor == scale, axis=1)) == 2_000
        alone = np.sum((factor == scale) & (factor.sum(axis=1) == scale + 2)[:, None], axis=0)
        np.testing.assert_allclose(alone, 2_000 / 3, atol=1)
    assert np.all(widened(np.ones((9, 3)), choice[-9:], 0.0) == 1)


@pytest.mark.parametrize("value", [jnp.inf, jnp.nan])
def test_an_overflow_far_out_has_no_weight_and_one_nearby_is_unknown(value):
    far = bare(lambda p: jnp.where(p["x"][0] > 7, value, -0.5 * p["x"][0] ** 2))
    near = bare(lambda p: jnp.where(p["x"][0] > 1, jnp.nan, -0.5 * p["x"][0] ** 2))
    with double():
        kind, key = Gaussian(np.zeros(1), Dense(np.eye(1))), np.array([0, 1], np.uint32)
        assert np.all(reaching(kind, far, key, 2_000, 2_000)(0).log_weights < np.inf)
        assert np.isnan(reaching(kind, near, key, 2_000, 2_000)(0).log_weights).any()


def test_shifts_between_two_weighings():
    rng = np.random.default_rng(0)
    x = rng.normal(scale=3.0, size=(40_000, 1))

    def log_weights(mean, sd):
        log_w = stats.norm.logpdf(x[:, 0], mean, sd) - stats.norm.logpdf(x[:, 0], 0.0, 3.0)
        return log_w - np.log(np.sum(np.exp(log_w)))

    mean, log_sd = shifts_between(x, log_weights(1.2, 1.5), log_weights(1.0, 1.0))
    assert abs(mean.value[0] - 0.2 / 1.5) < 3 * mean.error[0]
    assert abs(log_sd.value[0] - np.log(1.5)) < 3 * log_sd.error[0]
    assert mean.error[0] < 0.02
    same = shifts_between(x, log_weights(1.0, 1.0), log_weights(1.0, 1.0))
    assert same.mean.most[0] == same.log_sd.most[0] == 0.0
    moved = shifts_between(x + 1e8, log_weights(1.2, 1.5), log_weights(1.0, 1.0))
    np.testing.assert_allclose((moved.mean.value, moved.log_sd.value), (mean.value, log_sd.value), atol=1e-5)


def test_errors_of_shifts_between_are_those_that_repeated_estimates_have():
    """A thousand estimates of 2,000 draws of N(0, 3²): the spread is known to 2.2 %."""
    x = np.random.default_rng(1).normal(scale=3.0, size=(1_000, 2_000, 1))
    laws = [stats.norm.logpdf(x[..., 0], *law) - stats.norm.logpdf(x[..., 0], 0.0, 3.0) for law in ((2, 1.5), (1, 1))]
    target, approximation = (log_w - logsumexp(log_w, axis=1, keepdims=True) for log_w in laws)
    found = [shifts_between(*each) for each in zip(x, target, approximation, strict=True)]
    for shift in ("mean", "log_sd"):
        values, errors = ([getattr(getattr(each, shift), name)[0] for each in found] for name in ("value", "error"))
        assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(values), rel=0.12)


def test_what_has_weight_under_one_of_both_counts_and_what_has_none_may_be_anything():
    """A half-normal against a normal."""
    x = np.random.default_rng(2).normal(size=20_000)
    log_target = np.where(x > 0, 0.0, -np.inf)
    log_target, log_approximation = (log_w - logsumexp(log_w) for log_w in (log_target, np.zeros(len(x))))
    none = np.full(2, -np.inf)
    mean, log_sd = shifts_between(
        np.append(x, [np.inf, np.nan])[:, None], np.append(log_target, none), np.append(log_approximation, none)
    )
    sd = np.sqrt(1 - 2 / np.pi)
    assert abs(mean.value[0] - np.sqrt(2 / np.pi) / sd) < 4 * mean.error[0]
    assert abs(log_sd.value[0] - np.log(sd)) < 4 * log_sd.error[0]
    assert mean.error[0] < 0.05


def test_shifts_between_do_not_depend_on_blocks_of_scalars(monkeypatch):
    x = np.random.default_rng(3).normal(size=(1_000, 5)) * [1.0, 2.0, 3.0, 4.0, 5.0]
    weighed = 0.3 * x[:, 0] - 0.1 * x[:, 3], 0.1 * x[:, 1]
    log_target, log_approximation = (log_w - logsumexp(log_w) for log_w in weighed)
    whole = shifts_between(x, log_target, log_approximation)
    alone = shifts_between(x[:, :1], log_target, log_approximation)
    monkeypatch.setattr("credo.diagnose.moments.AT_ONCE", 1)
    blocks = shifts_between(x, log_target, log_approximation)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), blocks, whole)
    assert whole.mean.value[0] == pytest.approx(alone.mean.value[0], rel=1e-10)
    assert 0 < whole.mean.least[0] < 0.99 * alone.mean.least[0]  # the worst of several is larger by chance


def outliers(params):
    """One draw in a hundred is of ten times the sd, which makes the sd √1.99."""
    wide = jnp.log(0.01) + dist.Normal(0.0, 10.0).log_prob(params["x"])
    return jnp.sum(jnp.logaddexp(jnp.log(0.99) + dist.Normal(0.0, 1.0).log_prob(params["x"]), wide))


@pytest.mark.parametrize("method", [credo.ADVI(), credo.DADVI(), credo.BatchAndMatch(), credo.Laplace()], ids=repr)
def test_a_wide_component_is_not_passed_over(method):
    """Its weights were worth 99 % of the draws, and passed for it, with sds 29 % too small."""
    for key in range(2):
        fit = credo.fit(bare(outliers), method, key=key, progress=False)
        assert fit.sd()["x"][0] < 1.1
        assert fit.verdict.status != "pass"
        assert fit.verdict.figures["log_sd_shift"] > 0.1
        assert fit.info.get("evidence_upper") is None


@pytest.mark.slow
@pytest.mark.parametrize("law", [dist.StudentT(3.0, 0.0, 1.0), dist.Cauchy(0.0, 1.0)], ids=["t", "cauchy"])
def test_a_flow_of_one_dimension_has_no_heavy_tails(law):
    target = bare(lambda p: jnp.sum(law.log_prob(p["x"])))
    fit = credo.fit(target, credo.ADVI(family=credo.vi.Flow()), key=1, progress=False)
    assert fit.verdict.status != "pass"
    assert fit.info["evidence_upper"] is None
    figures = fit.verdict.figures
    assert figures.get("log_sd_limit", np.inf) >= figures.get("log_sd_shift", 0.0)


@pytest.mark.slow
def test_of_a_flow_in_few_dimensions_no_less_is_left_open_than_is_sure():
    """Sds 8 % too small, in tails of which its own draws know nothing."""
    law = dist.StudentT(5.0, 0.0, 1.0)
    target = bare(lambda p: jnp.sum(law.log_prob(p["x"])))
    for key in range(3):
        fit = credo.fit(target, credo.ADVI(family=credo.vi.Flow()), key=key, progress=False)
        assert fit.verdict.figures["log_sd_limit"] > fit.verdict.figures["log_sd_shift"] > 0


@pytest.mark.parametrize("method", [credo.ADVI(), credo.DADVI(), credo.BatchAndMatch()], ids=repr)
def test_right_answers_pass_though_a_weight_far_out_has_no_variance(method):
    """Counts, whose log rate has a lighter tail on one side: 98.8 % of the draws' worth was a failure."""
    model = credo.Model({"rate": dist.Gamma(2.0, 1.0)}, lambda params, x: dist.Poisson(params["rate"]))
    target = model.given(y=np.array([3, 5, 1, 4]))
    exact = stats.gamma(15.0, scale=1 / 5)
    for key in range(3):
        fit = credo.fit(target, method, key=key, progress=False)
        assert abs(fit.mean()["rate"] - exact.mean()) < 0.1 * exact.std()
        assert abs(np.log(fit.sd()["rate"] / exact.std())) < 0.095
        assert fit.verdict.status == "pass"


@pytest.mark.parametrize(("dim", "share", "scale"), [(4, 0.03, 4.0), (10, 0.06, 3.0)])
def test_a_wide_part_in_all_coordinates_is_met(dim, share, scale):
    """Its sds are 1.2, and q's 1; draws that reach along one coordinate at a time met nothing, and it passed."""
    names = [f"x{i}" for i in range(dim)]

    def log_density(p):
        square = sum(p[name] ** 2 for name in names)
        wide = jnp.log(share) - dim * jnp.log(scale) - 0.5 * square / scale**2
        return jnp.logaddexp(jnp.log1p(-share) - 0.5 * square, wide)

    target = credo.Model.from_log_density(log_density, dict.fromkeys(names, constraints.real)).given()
    for key in range(2):
        assert credo.fit(target, credo.Laplace(), key=key, progress=False).verdict.status != "pass"
