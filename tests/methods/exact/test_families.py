"""Conjugate families against quadrature, and the laws that every one of them obeys."""

from typing import NamedTuple

import jax
import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.integrate import dblquad, quad
from scipy.special import logsumexp

from credo.methods.exact.beta import BetaBernoulli
from credo.methods.exact.dirichlet import DirichletCategorical
from credo.methods.exact.gamma import GammaPoisson
from credo.methods.exact.linear_regression import LinearRegression
from credo.methods.exact.normal import NormalInverseGamma, NormalKnownVariance
from credo.methods.vi import cavi
from credo.status import CredoError


class Case(NamedTuple):
    """A family before data, data as keyword arguments of ``update`` (one row an entry), and one more row of data."""

    family: object
    data: dict
    new: dict
    predictive: dict  # arguments of ``predictive`` for the new row
    log_joint: object = None  # (θ, **data) -> log p(θ, data), and its support, where θ is one number
    support: tuple = ()


def normals(loc, scale, n, seed=3):
    return np.random.default_rng(seed).normal(loc, scale, n)


CASES = {
    "bernoulli": Case(
        BetaBernoulli(1.7, 0.6),
        {"y": np.array([1, 0, 0, 1, 0, 0, 0])},
        {"y": [1]},
        {},
        lambda p, y: stats.beta.logpdf(p, 1.7, 0.6) + stats.bernoulli.logpmf(y, p).sum(),
        (0, 1),
    ),
    "binomial": Case(
        BetaBernoulli(1.7, 3.6),
        {"successes": np.array([3, 0, 11]), "trials": np.array([5, 2, 30])},
        {"successes": [4], "trials": [9]},
        {"trials": 9},
        lambda p, successes, trials: stats.beta.logpdf(p, 1.7, 3.6) + stats.binom.logpmf(successes, trials, p).sum(),
        (0, 1),
    ),
    "poisson": Case(
        GammaPoisson(2.5, 1.3),
        {"y": np.array([3, 0, 7, 2]), "exposure": np.array([1.0, 0.2, 2.5, 1.5])},
        {"y": [6], "exposure": [2.0]},
        {"exposure": 2.0},
        lambda rate, y, exposure: (
            stats.gamma.logpdf(rate, 2.5, scale=1 / 1.3) + stats.poisson.logpmf(y, rate * exposure).sum()
        ),
        (0, np.inf),
    ),
    "normal": Case(
        NormalKnownVariance(-1.0, 4.0, 2.0),
        {"y": normals(1.5, 1.4, 9)},
        {"y": [0.3]},
        {},
        lambda mean, y: stats.norm.logpdf(mean, -1.0, 2.0) + stats.norm.logpdf(y, mean, np.sqrt(2.0)).sum(),
        (-np.inf, np.inf),
    ),
    "normal-inverse-gamma": Case(
        NormalInverseGamma(-1.0, 0.4, 2.2, 3.0), {"y": normals(1.5, 1.4, 9)}, {"y": [0.3]}, {}
    ),
    "categorical": Case(DirichletCategorical([0.5, 1.0, 2.0]), {"y": np.array([0, 2, 2, 1, 2, 0])}, {"y": [1]}, {}),
    "multinomial": Case(
        DirichletCategorical([0.5, 1.0, 2.0]),
        {"counts": np.array([[1, 0, 4], [2, 2, 2], [0, 1, 0]])},
        {"counts": [[3, 0, 1]]},
        {"trials": 4},
    ),
}
each = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
# numpyro's discrete samplers take seconds to compile
each_quick = pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[pytest.mark.slow] if name in ("binomial", "poisson", "multinomial") else [])
        for name, case in CASES.items()
    ],
)


@pytest.mark.parametrize("case", [case for case in CASES.values() if case.log_joint])
def test_evidence_and_moments_equal_quadrature(case):
    posterior = case.family.update(**case.data)
    (mean,), (sd,) = posterior.mean().values(), posterior.sd().values()
    peak = case.log_joint(mean, **case.data)
    points = [mean - 4 * sd, mean, mean + 4 * sd] if np.isfinite(case.support).all() else None
    low = max(case.support[0], mean - 40 * sd)
    high = min(case.support[1], mean + 40 * sd)

    def moment(f):
        points_inside = [p for p in points if low < p < high] if points else None
        return quad(
            lambda t: f(t) * np.exp(case.log_joint(t, **case.data) - peak),
            low, high, points=points_inside or [mean], epsabs=0, epsrel=1e-11, limit=200,
        )[0]  # fmt: skip

    z = moment(lambda t: 1.0)
    assert posterior.log_evidence.value == pytest.approx(np.log(z) + peak, rel=1e-8)
    assert posterior.log_evidence.kind == "exact"
    assert posterior.log_evidence.error == 0.0
    assert mean == pytest.approx(moment(lambda t: t) / z, rel=1e-8)
    assert sd == pytest.approx(np.sqrt(moment(lambda t: (t - mean) ** 2) / z), rel=1e-8)


def test_normal_inverse_gamma_equals_quadrature():
    m, kappa, a, b = -1.0, 0.4, 2.2, 3.0
    y = CASES["normal-inverse-gamma"].data["y"]
    posterior = NormalInverseGamma(m, kappa, a, b).update(y)
    centre = posterior.location

    def log_joint(mean, log_variance):
        sd = np.exp(log_variance / 2)
        log_prior = stats.invgamma.logpdf(sd**2, a, scale=b) + stats.norm.logpdf(mean, m, sd / np.sqrt(kappa))
        return log_prior + stats.norm.logpdf(y, mean, sd).sum() + log_variance

    peak = log_joint(centre, np.log(posterior.b / posterior.a))

    def integral(f, n=400):  # trapezia over a smooth decaying integrand converge faster than any power
        log_variance, z = np.meshgrid(np.linspace(-3, 9, n), np.linspace(-14, 14, n))
        mean = centre + z * np.exp(log_variance / 2) / np.sqrt(posterior.kappa)
        sd = np.exp(log_variance / 2)
        log_p = stats.invgamma.logpdf(sd**2, a, scale=b) + stats.norm.logpdf(mean, m, sd / np.sqrt(kappa))
        log_p += stats.norm.logpdf(y[:, None, None], mean, sd).sum(axis=0) + log_variance
        jacobian = sd / np.sqrt(posterior.kappa)
        return np.sum(f(mean, sd**2) * np.exp(log_p - peak) * jacobian) * (12 / (n - 1)) * (28 / (n - 1))

    z = integral(lambda mean, variance: 1.0)
    assert posterior.log_evidence.value == pytest.approx(np.log(z) + peak, rel=1e-8)
    for name, f in (("mean", lambda mean, variance: mean), ("variance", lambda mean, variance: variance)):
        first = integral(f) / z
        second = integral(lambda mean, variance, f=f: f(mean, variance) ** 2) / z
        assert posterior.mean()[name] == pytest.approx(first, rel=1e-8)
        assert posterior.sd()[name] == pytest.approx(np.sqrt(second - first**2), rel=1e-7)


def test_dirichlet_equals_quadrature():
    alpha, counts = np.array([0.9, 1.5, 2.0]), np.array([3, 0, 4])
    posterior = DirichletCategorical(alpha).update(counts=counts)

    def moment(f):
        def integrand(q, p):
            x = np.array([p, q, 1 - p - q])
            return f(x) * np.prod(x ** (alpha + counts - 1))

        return dblquad(integrand, 0, 1, 0, lambda p: 1 - p, epsabs=0, epsrel=1e-10)[0]

    z = moment(lambda x: 1.0)
    log_prior = stats.dirichlet.logpdf([0.2, 0.3, 0.5], alpha) - np.sum((alpha - 1) * np.log([0.2, 0.3, 0.5]))
    log_coefficient = stats.multinomial.logpmf(counts, 7, [0.2, 0.3, 0.5]) - np.sum(counts * np.log([0.2, 0.3, 0.5]))
    assert posterior.log_evidence.value == pytest.approx(np.log(z) + log_prior + log_coefficient, rel=1e-8)
    assert posterior.mean()["probabilities"][1] == pytest.approx(moment(lambda x: x[1]) / z, rel=1e-8)


@each
def test_any_split_of_the_data_gives_the_same_answer(case):
    generator = np.random.default_rng(0)
    n = len(next(iter(case.data.values())))
    batch = case.family.update(**case.data)
    for num_parts in (2, 3, n):
        cuts = np.sort(generator.choice(np.arange(1, n), num_parts - 1, replace=False))
        order = generator.permutation(n)
        family = case.family
        for rows in np.split(order, cuts):
            family = family.update(**{name: values[rows] for name, values in case.data.items()})
        assert family.log_evidence.value == pytest.approx(batch.log_evidence.value, rel=1e-10)
        for name in batch.mean():
            np.testing.assert_allclose(family.mean()[name], batch.mean()[name], rtol=1e-10)
            np.testing.assert_allclose(family.sd()[name], batch.sd()[name], rtol=1e-10)


@each
def test_predictive_is_the_ratio_of_evidences(case):
    before = case.family.update(**case.data)
    after = before.update(**case.new)
    ratio = after.log_evidence.value - before.log_evidence.value
    y = np.asarray(next(iter(case.new.values())))[0]
    assert before.predictive(**case.predictive).log_prob(y) == pytest.approx(ratio, rel=1e-10)


@each_quick
def test_draws_agree_with_the_moments(case):
    posterior, n = case.family.update(**case.data), 20_000
    draws = posterior.sample(1, n)
    for name, mean in posterior.mean().items():
        error = posterior.sd()[name] / np.sqrt(n)
        assert np.all(np.abs(draws[name].mean(axis=0) - mean) < 5 * error)  # false alarm: below 1e-5 in all
        assert draws[name].dtype == np.float64


@each_quick
def test_predictive_draws_agree_with_its_moments(case):
    predictive, n = case.family.update(**case.data).predictive(**case.predictive), 20_000
    draws = predictive.sample(jax.random.key(2), n)
    if np.all(np.isnan(predictive.mean)):  # labels have no mean
        draws = np.eye(3)[draws]
        mean = predictive.distribution.probs
        variance = mean * (1 - mean)
    else:
        mean, variance = predictive.mean, predictive.variance
    assert np.all(np.abs(draws.mean(axis=0) - mean) < 5 * np.sqrt(variance / n))


def test_counts_to_come_obey_the_law_of_total_variance():
    """E v(θ) + Var m(θ), of counts over an exposure and of successes in trials."""
    for name, times in (("poisson", 2.0), ("binomial", 9)):
        case = CASES[name]
        posterior = case.family.update(**case.data)
        (mean,), (sd,) = posterior.mean().values(), posterior.sd().values()
        within = times * (mean if name == "poisson" else mean - mean**2 - sd**2)
        predictive = posterior.predictive(**case.predictive)
        assert predictive.mean == pytest.approx(times * mean)
        assert predictive.variance == pytest.approx(within + times**2 * sd**2)


def test_a_mean_and_its_variance_are_drawn_together():
    """κ (μ − m)² / σ² is χ² with one degree of freedom, whatever σ²."""
    posterior = NormalInverseGamma(0.3, 0.5, 3.0, 2.0).update(normals(5.0, 3.0, 6))
    draws = posterior.sample(0, 20_000)
    ratio = posterior.kappa * (draws["mean"] - posterior.location) ** 2 / draws["variance"]
    assert ratio.mean() == pytest.approx(1.0, abs=5 * np.sqrt(2 / 20_000))


def test_no_data_has_evidence_one():
    assert BetaBernoulli().log_evidence.value == 0.0


def test_the_evidence_of_all_outcomes_sums_to_one():
    n = 6
    log_p = [BetaBernoulli(0.3, 2.0).update(successes=s, trials=n).log_evidence.value for s in range(n + 1)]
    assert logsumexp(log_p) == pytest.approx(0.0, abs=1e-13)


def test_a_large_offset_costs_no_digits():
    y = normals(0.0, 1.0, 50)
    near = NormalInverseGamma(0.0, 1.0, 2.0, 2.0).update(y)
    far = NormalInverseGamma(2.0**30, 1.0, 2.0, 2.0).update(y + 2.0**30)
    assert far.b == pytest.approx(near.b, rel=1e-6)  # the data themselves have lost digits: 2^30 · 2^-52 = 2e-7
    assert far.log_evidence.value == pytest.approx(near.log_evidence.value, rel=1e-6)


def test_the_posterior_is_a_prior_of_a_model():
    posterior = NormalInverseGamma(0.0, 1.0, 2.0, 2.0).update([1.0, 3.0])
    assert list(posterior.distributions) == ["variance", "mean"]
    drawn = posterior.sample(0, 5)
    assert drawn["mean"].shape == (5,)
    assert np.all(drawn["variance"] > 0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: BetaBernoulli(0.0, 1.0), "a is 0, and must be positive"),
        (lambda: BetaBernoulli(1.0, np.nan), "b is nan"),
        (lambda: GammaPoisson(1.0, -2.0), "b is -2"),
        (lambda: NormalKnownVariance(0.0, 1.0, 0.0), "noise_variance is 0"),
        (lambda: NormalInverseGamma(np.inf, 1.0, 1.0, 1.0), "location is inf"),
        (lambda: DirichletCategorical([1.0, 0.0]), "row 1 holds 0"),
        (lambda: DirichletCategorical([1.0]), "one entry"),
        (lambda: BetaBernoulli().update([]), "no rows"),
        (lambda: BetaBernoulli().update([0, 1, 2]), "0 or 1, but row 2 holds 2"),
        (lambda: BetaBernoulli().update([0, np.nan]), "not finite"),
        (lambda: BetaBernoulli().update(["a"]), "not numeric"),
        (lambda: BetaBernoulli().update(), "one of the two"),
        (lambda: BetaBernoulli().update(successes=3), "one of the two"),
        (lambda: BetaBernoulli().update(successes=3, trials=2), "at most the number of trials"),
        (lambda: BetaBernoulli().update(successes=[1, 2], trials=[3, 3, 3]), "2 rows and trials has 3"),
        (lambda: GammaPoisson(1, 1).update([0.5]), "a count"),
        (lambda: GammaPoisson(1, 1).update([-1]), "a count"),
        (lambda: GammaPoisson(1, 1).update([1, 2], exposure=[1.0, 0.0]), "exposure must be positive"),
        (lambda: GammaPoisson(1, 1).update([1, 2], exposure=[1.0, 1.0, 1.0]), "3"),
        (lambda: NormalKnownVariance(0, 1, 1).update([[1.0, 2.0]]), "one-dimensional"),
        (lambda: NormalKnownVariance(0, 1, 1).update([1.0, -np.inf]), "not finite"),
        (lambda: DirichletCategorical([1, 1]).update([0, 2]), "a label below 2"),
        (lambda: DirichletCategorical([1, 1]).update(counts=[1, 2, 3]), "3 columns"),
        (lambda: BetaBernoulli().sample(0, -1), "n is the number of draws, a whole number from 0; got -1"),
        (lambda: BetaBernoulli().predictive().sample(0, 2.5), "n is the number of draws, .* got 2.5"),
    ],
)
def test_bad_input_is_a_sentence(call, words):
    with pytest.raises(CredoError, match=words):
        call()


@pytest.mark.parametrize(
    "update",
    [
        lambda a, b: BetaBernoulli().update(successes=a, trials=b),
        lambda a, b: GammaPoisson(1, 1).update(a, exposure=b),
        lambda a, b: LinearRegression().update(a.to_frame(), b),
        lambda a, b: cavi.LinearRegression().update(a.to_frame(), b),
        lambda a, b: cavi.ProbitRegression().update(a.to_frame(), b),
    ],
)
def test_rows_of_pandas_are_paired_in_one_order(update):
    a, b = pd.Series([0, 1]), pd.Series([1, 1])
    update(a, b)
    with pytest.raises(CredoError, match="in different orders"):
        update(a, b[::-1])


@pytest.mark.parametrize(
    ("predictive", "possible", "impossible"),
    [
        (BetaBernoulli(2.0, 3.0).predictive(), [0, 1], [2, 0.5, -1]),
        (DirichletCategorical([1.0, 2.0, 3.0]).predictive(), [0, 2], [-1, 3]),
        (DirichletCategorical([1.0, 2.0, 3.0]).predictive(5), [[5, 0, 0], [1, 2, 2]], [[1, 1, 1], [9, -4, 0]]),
    ],
    ids=["bernoulli", "categorical", "multinomial"],
)
def test_what_cannot_be_has_no_probability(predictive, possible, impossible):
    assert np.all(np.isfinite(predictive.log_prob(possible)))
    assert np.all(predictive.log_prob(impossible) == -np.inf)


def test_a_key_is_a_whole_number():
    with pytest.raises(CredoError, match="key is an int"):
        GammaPoisson(2.0, 3.0).sample(1.5, 3)


def test_labels_and_counts_that_are_no_whole_numbers_have_no_probability():
    predictive = DirichletCategorical([20.0, 30.0, 50.0]).predictive()
    np.testing.assert_allclose(np.exp(predictive.log_prob([0.0, 2.0, 0.5, 3.0])), [0.2, 0.5, 0.0, 0.0])
    counts = DirichletCategorical([20.0, 30.0, 50.0]).predictive(trials=100)
    assert counts.log_prob(np.array([30.5, 29.5, 40.0])) == -np.inf
    assert np.isfinite(counts.log_prob(np.array([30.0, 30.0, 40.0])))
