"""The test of uniform ranks: exact by enumeration, its level by simulation, and what it sees."""

import itertools

import numpy as np
import pytest

from credo.diagnose.simulation.uniformity import (
    _inside,
    _p_of_counts,
    _p_of_mean,
    _tails,
    band,
    ecdf_p_values,
    manner,
    p_values,
)


def statistic(counts) -> float:
    """T by the definition, with binomial probabilities summed one by one."""
    from scipy.stats import binom

    size, num_ranks = sum(counts), len(counts)
    below = np.cumsum(counts)[:-1]
    share = np.arange(1, num_ranks) / num_ranks
    return min(1.0, float(np.min(2 * np.minimum(binom.cdf(below, size, share), binom.sf(below - 1, size, share)))))


@pytest.mark.parametrize(("num_simulations", "num_ranks"), [(4, 5), (6, 4), (9, 2), (1, 7)])
def test_p_values_are_exact(num_simulations, num_ranks):
    """Against all equally likely outcomes."""
    outcomes = [
        np.bincount(ranks, minlength=num_ranks) for ranks in itertools.product(range(num_ranks), repeat=num_simulations)
    ]
    known = {tuple(counts): statistic(counts) for counts in outcomes}
    all_statistics = np.array([known[tuple(counts)] for counts in outcomes])
    for counts, t in known.items():
        exact = np.mean(all_statistics <= t * (1 + 1e-9))
        assert _p_of_counts(np.array(counts)) == pytest.approx(exact, abs=1e-12)


@pytest.mark.parametrize(("num_simulations", "num_ranks"), [(200, 20), (1000, 100), (50, 400)])
def test_level_of_the_test_and_coverage_of_the_band(num_simulations, num_ranks):
    """4,000 sets of uniform ranks. Rejections at 5 %: at most 5 %, and no less than the steps of a discrete test cost.

    The error of a share of 5 % is 0.34 %; four of them are 1.4 %.
    """
    rng = np.random.default_rng(3)
    low, high = band(num_simulations, num_ranks, 0.95)
    ranks = rng.integers(0, num_ranks, (num_simulations, 4000))
    counts = np.stack([np.bincount(column, minlength=num_ranks) for column in ranks.T])
    below = np.concatenate([np.zeros((4000, 1), int), np.cumsum(counts, axis=1)], axis=1)
    is_inside = np.all((below >= low) & (below <= high), axis=1)
    assert 0.935 < is_inside.mean() < 0.975
    p = ecdf_p_values(ranks[:, :500], num_ranks)
    assert np.all((p < 0.05) <= ~is_inside[:500])  # what the band holds is not rejected
    assert np.mean(p <= 0.05) < 0.05 + 4 * np.sqrt(0.05 * 0.95 / 500)
    assert abs(np.mean(p <= 0.5) - 0.5) < 0.03 + 4 * np.sqrt(0.25 / 500)
    assert np.mean(p_values(ranks[:, :500], num_ranks) <= 0.05) < 0.05 + 4 * np.sqrt(0.05 * 0.95 / 500)


@pytest.mark.parametrize("power", [1, 2])
def test_the_bound_of_a_mean_holds_and_is_near(power):
    """Of a normal mean z errors out, the bound is exp(−z²/2) a side, where the exact tail is at least a tenth of it."""
    values = ((np.arange(100) + 0.5) / 50 - 1) ** power
    random = np.random.default_rng(4)
    bounds = np.array([_p_of_mean(values, random.integers(0, 100, 60)) for _ in range(1000)])
    for level in (0.5, 0.1, 0.02):
        assert np.mean(bounds <= level) <= level + 4 * np.sqrt(level / 1000)
    ranks = np.arange(100).repeat(10)
    shifted = np.where(np.isin(np.arange(1000), np.flatnonzero(values[ranks] < np.median(values))[::3]), 99, ranks)
    z = (values[shifted].mean() - values.mean()) / (values.std() / np.sqrt(1000))
    assert np.log(_p_of_mean(values, shifted) / 2) == pytest.approx(-(z**2) / 2, rel=0.25)
    assert _p_of_mean(values, np.full(7, np.argmax(values))) == pytest.approx(2 * (power / 100) ** 7, rel=1e-3)


def test_band_is_that_of_its_probability():
    low, high = band(100, 10, 0.9)
    assert low[0] == high[0] == 0
    assert low[-1] == high[-1] == 100
    np.testing.assert_array_equal(low, 100 - high[::-1])  # ranks may be counted from either end
    rarest = float(np.min(_tails(100, 10)[np.arange(9), low[1:-1]]))  # of the counts that it holds
    assert _inside(rarest, 100, 10) < 0.9 <= _inside(0.999999 * rarest, 100, 10)  # no narrower one would do
    wide = band(100, 10, 0.999)
    assert np.all(wide[0] <= low)
    assert np.all(wide[1] >= high)


@pytest.mark.parametrize(
    ("draw", "sign"),
    [
        (lambda rng, n: rng.beta(1.0, 1.4, n), (-1, 0)),
        (lambda rng, n: rng.beta(1.4, 1.0, n), (1, 0)),
        (lambda rng, n: rng.beta(0.7, 0.7, n), (0, 1)),
        (lambda rng, n: rng.beta(1.5, 1.5, n), (0, -1)),
    ],
    ids=["low ranks", "high ranks", "in the tails", "in the middle"],
)
def test_manner_of_ranks_that_are_not_uniform(draw, sign):
    ranks = np.floor(100 * draw(np.random.default_rng(1), 500)).astype(int)
    assert p_values(ranks, 100) < 1e-4
    found = manner(ranks, 100)
    assert np.sign([z if abs(z) > 4 else 0 for z in found]).tolist() == list(sign)


def test_manner_of_uniform_ranks_is_standard_normal():
    """2,000 sets: means to 5 errors of 1/√2,000, variances to 5 of √(2/2,000)."""
    ranks = np.random.default_rng(2).integers(0, 7, (300, 2000))
    for z in manner(ranks, 7):
        assert abs(z.mean()) < 5 / np.sqrt(2000)
        assert abs(z.var() - 1) < 5 * np.sqrt(2 / 2000)


def test_far_from_uniform_is_not_rounded_to_nought():
    p = p_values(np.zeros((1000, 2, 1), int), 100)
    assert p.shape == (2, 1)
    assert np.all(p < 1e-300)
    assert np.all(p >= 0)
    assert 0 < ecdf_p_values(np.repeat(np.arange(50), 4), 100) < 1e-20
