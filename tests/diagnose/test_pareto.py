"""Pareto smoothing: equal to ArviZ's, right about known tails, and meaningful for weights that are not finite."""

import numpy as np
import pytest
from arviz_stats.base import array_stats  # pyright: ignore[reportPrivateImportUsage]

from credo.diagnose import pareto
from credo.status import CredoError


@pytest.mark.parametrize("relative_efficiency", [1.0, 0.5])
@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0, 100.0])
@pytest.mark.parametrize("size", [30, 225, 226, 5000])
def test_equals_arviz(size, scale, relative_efficiency):
    log_weights = 1e4 + scale * np.random.default_rng(size).normal(size=size)
    ours, k_hat = pareto.smooth(log_weights, relative_efficiency=relative_efficiency)
    theirs, k_theirs = array_stats.psislw(-log_weights, r_eff=relative_efficiency)
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)
    assert k_hat == pytest.approx(float(k_theirs), rel=1e-9)


@pytest.mark.parametrize("k", [-0.5, 0.2, 0.7, 1.5])
def test_shape_of_a_known_tail_is_found(k):
    """Weights that are generalised Pareto with shape k; the fit's standard error is (1 + k)/√M (Zhang & Stephens)."""
    u = np.random.default_rng(9).random(100_000)
    k_hat = pareto.smooth(np.log1p(np.expm1(-k * np.log(u)) / k)).k_hat
    tail = 3 * np.sqrt(100_000)
    assert abs(k_hat - k) < 4 * (1 + abs(k)) / np.sqrt(tail) + 10 * abs(k - 0.5) / tail  # the prior's pull


def test_smoothing_does_what_it_is_for():
    """Ratio of a normal of sd 1.3 to one of sd 1 (k = 0.41): the tail's weights come out smaller, their sum one."""
    x = np.random.default_rng(4).normal(size=4000)
    log_weights = -0.5 * (x / 1.3) ** 2 + 0.5 * x**2
    raw = log_weights - np.logaddexp.reduce(log_weights)
    smoothed, k_hat = pareto.smooth(log_weights)
    assert 0.1 < k_hat < 0.7
    assert np.sum(np.exp(smoothed)) == pytest.approx(1, abs=1e-12)
    assert np.array_equal(np.argsort(smoothed), np.argsort(raw))  # the order of the draws is kept
    assert pareto.effective_sample_size(smoothed) >= pareto.effective_sample_size(raw)


def test_weights_that_are_not_finite():
    log_weights = np.random.default_rng(1).normal(size=1000)
    outside = np.where(np.arange(1000) % 2, log_weights, -np.inf)
    smoothed, k_hat = pareto.smooth(outside)
    assert np.isfinite(k_hat)
    assert np.all(np.exp(smoothed[::2]) == 0)
    assert np.sum(np.exp(smoothed)) == pytest.approx(1)
    few = np.where(np.arange(100) < 17, log_weights[:100], -np.inf)  # fewer than the tail of 20
    smoothed, k_hat = pareto.smooth(few)
    assert np.isfinite(k_hat)
    assert np.all(np.exp(smoothed[17:]) == 0)
    for unknown in (np.nan, np.inf):
        smoothed, k_hat = pareto.smooth(np.where(np.arange(1000) == 3, unknown, log_weights))
        assert np.isnan(k_hat)
        assert np.exp(smoothed[3]) == 0
        assert np.sum(np.exp(smoothed)) == pytest.approx(1)
    smoothed, k_hat = pareto.smooth(np.full(100, -np.inf))
    assert k_hat == np.inf
    assert np.all(np.isnan(smoothed))
    assert np.isnan(pareto.effective_sample_size(smoothed))


def test_a_tail_that_moves_nothing_is_not_judged():
    """log w = 3 z⁸/10⁵ grows without end, but on the draws there are the weights are almost one."""
    z = np.random.default_rng(3).normal(size=(4000, 1))
    log_weights = 3e-5 * z[:, 0] ** 8
    assert pareto.smooth(log_weights).k_hat > 0.7
    figures = pareto.proposal_figures(z, log_weights)
    assert figures["pareto_k"] == 0
    assert max(figures["mean_shift"], figures["log_sd_shift"]) < 0.01
    assert figures["mean_limit"] < 0.1
    shifted = 0.2 * z[:, 0]  # a mean off by 0.2 sd: the weights are worth 96 %
    assert pareto.proposal_figures(z, shifted)["pareto_k"] == pareto.smooth(shifted).k_hat
    assert pareto.proposal_figures(z, shifted)["mean_shift"] > 0.1
    assert np.isnan(pareto.judged_shape(np.where(z[:, 0] == z[0, 0], np.nan, 0.0), np.nan))


def test_tails_without_a_fit():
    rng = np.random.default_rng(1)
    one = np.full(1000, -np.inf)
    one[7] = 0.0
    assert pareto.smooth(one).k_hat == np.inf  # a single draw in the target
    assert pareto.smooth(2000.0 * rng.normal(size=1000)).k_hat == np.inf  # ratios beyond a double
    assert np.isnan(pareto.smooth(rng.normal(size=29)).k_hat)  # a tail of five
    assert pareto.smooth(np.zeros(100)).k_hat == 0  # all equal
    exact = pareto.smooth(-1e5 + 1e-11 * rng.normal(size=1000))  # equal to rounding: a Gaussian target met exactly
    assert exact.k_hat == 0
    np.testing.assert_allclose(np.exp(exact.log_weights), 1e-3, rtol=1e-8)
    assert np.isnan(
        pareto.smooth(rng.integers(0, 3, 1000) + 1.0 * (np.arange(1000) == 5)).k_hat
    )  # few values: no such tail
    tied = 0.3 * rng.binomial(10, 0.3, 1000) + 1e-14 * rng.normal(size=1000)
    assert np.isnan(pareto.smooth(tied).k_hat)  # few values, up to rounding
    with pytest.raises(CredoError, match=r"shape \(2, 3\): give one a draw"):
        pareto.smooth(np.zeros((2, 3)))
    with pytest.raises(CredoError, match="relative efficiency is 0"):
        pareto.smooth(np.zeros(100), relative_efficiency=0.0)


def test_effective_sample_size_and_threshold():
    assert pareto.effective_sample_size(np.full(50, 3e4)) == pytest.approx(50)
    assert pareto.effective_sample_size(np.log([0.5, 0.5, 1e-300])) == pytest.approx(2)
    assert pareto.effective_sample_size(np.full(3, -np.inf)) == 0
    assert np.isnan(pareto.effective_sample_size(np.array([0.0, np.nan])))
    assert pareto.threshold(100) == pytest.approx(0.5)
    assert pareto.threshold(10_000) == 0.7
    assert pareto.threshold(1) == -np.inf
