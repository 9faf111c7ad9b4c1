"""Convergence figures: equal to ArviZ's, and right where a theorem says what they must be."""

import numpy as np
import pytest
from arviz_stats.base import array_stats  # pyright: ignore[reportPrivateImportUsage]

from credo.diagnose import convergence as c
from credo.status import CredoError


def autoregressive(rng, phi, shape):
    """Stationary AR(1) draws of unit variance: ESS / N is (1 − φ)/(1 + φ) for the mean, with φ² for squares."""
    noise = rng.normal(size=shape) * np.sqrt(1 - phi**2)
    x = np.empty(shape)
    x[:, 0] = rng.normal(size=x[:, 0].shape)
    for t in range(1, shape[1]):
        x[:, t] = phi * x[:, t - 1] + noise[:, t]
    return x


def scalars(num_chains, num_draws):
    """What chains do: mix, crawl, alternate, stay put, disagree, drift, have heavy tails, and take few values."""
    rng = np.random.default_rng(num_draws)
    size = (num_chains, num_draws, 1)
    x = [autoregressive(rng, phi, size) for phi in (0.0, 0.9, -0.7, 0.99)]
    x.append(np.repeat(x[0], 3, axis=1)[:, :num_draws])  # rejections: ties within a chain
    x.append(np.round(x[1]))
    x.append((rng.random(size) < 0.3) * 1.0)
    x.append(x[0] + np.arange(num_chains)[:, None, None])
    x.append(x[0] * (1 + np.arange(num_chains)[:, None, None]))  # seen by the folded R-hat only
    x.append(x[0] + np.linspace(0, 2, num_draws)[None, :, None])
    x.append(rng.standard_cauchy(size))
    x.append(1e-18 * x[1] + 0.0)  # the figures do not depend on units
    return np.concatenate(x, axis=-1)


ORACLES = {
    "r_hat": (c.r_hat, lambda a: array_stats.rhat(a)),
    "ess_bulk": (c.ess_bulk, lambda a: array_stats.ess(a, method="bulk")),
    "ess_tail": (c.ess_tail, lambda a: array_stats.ess(a, method="tail", prob=(0.05, 0.95))),
    "ess_mean": (c.ess_mean, lambda a: array_stats.ess(a, method="mean")),
    "ess_quantile": (lambda x: c.ess_quantile(x, 0.1), lambda a: array_stats.ess(a, method="quantile", prob=0.1)),
    "mcse_mean": (c.mcse_mean, lambda a: array_stats.mcse(a, method="mean")),
    "mcse_quantile": (lambda x: c.mcse_quantile(x, 0.1), lambda a: array_stats.mcse(a, method="quantile", prob=0.1)),
}


@pytest.mark.parametrize("shape", [(4, 400), (2, 101), (3, 30), (1, 60), (4, 6)], ids=str)
@pytest.mark.parametrize("figure", ORACLES)
@pytest.mark.filterwarnings("ignore:(invalid value|divide by zero):RuntimeWarning:arviz_stats")  # the smallest cases
def test_equals_arviz(figure, shape):
    ours, theirs = ORACLES[figure]
    x = scalars(*shape)
    usable = np.ptp(x, axis=(0, 1)) > 0
    # ArviZ calls a range below 1e-15 constant: the last scalar is shown to it in other units
    shown = x * np.where(np.arange(x.shape[-1]) == x.shape[-1] - 1, 1e18, 1)
    units = np.where((np.arange(x.shape[-1]) == x.shape[-1] - 1) & figure.startswith("mcse"), 1e-18, 1)
    meant = np.array([theirs(shown[..., i]) for i in range(x.shape[-1])]) * units
    np.testing.assert_allclose(ours(x)[usable], meant[usable], rtol=1e-8)


def test_mcse_sd_uses_the_draws_that_count_for_the_sd():
    """ESS of the squared deviations, as ArviZ has it from 1.0 on (0.8 takes that of the mean)."""
    x = scalars(4, 400)[..., :-1]
    squares = (x - x.mean(axis=(0, 1))) ** 2
    ess = np.array([array_stats.ess(a, method="mean") for a in np.moveaxis(squares, 2, 0)])
    meant = np.sqrt(np.var(squares, axis=(0, 1)) / ess / np.mean(squares, axis=(0, 1))) / 2
    np.testing.assert_allclose(c.mcse_sd(x), meant, rtol=1e-8)


@pytest.mark.parametrize("phi", [-0.5, 0.8])
def test_standard_errors_are_those_of_repeated_runs(phi):
    """1,000 independent runs as scalars: the spread of their estimates is what each run reports.

    The spread of 1,000 estimates is known to 2.2 %; the reports are biased by a few % at this length. 15 % is beyond
    both; with the ESS of the mean, the error of the alternating chain's sd would come out 2.2 times too small.
    """
    x = autoregressive(np.random.default_rng(5), phi, (4, 500, 1000))
    for reported, estimates in [
        (c.mcse_mean(x), x.mean(axis=(0, 1))),
        (c.mcse_sd(x), x.std(axis=(0, 1))),
        (c.mcse_quantile(x, 0.25), np.quantile(x, 0.25, axis=(0, 1))),
    ]:
        assert np.sqrt(np.mean(reported**2)) == pytest.approx(np.std(estimates), rel=0.15)


@pytest.mark.parametrize("phi", [-0.5, 0.0, 0.8])
def test_ess_is_that_of_theory(phi):
    x = autoregressive(np.random.default_rng(2), phi, (4, 2000, 50))
    # one scalar's estimate has a relative spread of about 10 %, so the median of 50 one of 2 %; 8 % is four of them
    assert np.median(c.ess_mean(x)) == pytest.approx(8000 * (1 - phi) / (1 + phi), rel=0.08)


@pytest.mark.parametrize("cores", [1, 3])
def test_one_call_answers_as_three_whatever_the_blocks(monkeypatch, cores):
    x = scalars(4, 100)
    x[0, 3, 2], x[1, :, 5], x[:, :, 6] = np.nan, np.inf, 2.5
    apart = np.stack([c.r_hat(x), c.ess_bulk(x), c.ess_tail(x)])
    monkeypatch.setattr(c, "BLOCK", 3 * 4 * 100)
    monkeypatch.setattr(c, "WORTHWHILE", 4 * 100)
    monkeypatch.setattr(c, "num_cores", lambda: cores)
    np.testing.assert_array_equal(np.stack(c.convergence(x)), apart)
    assert np.all(np.isnan(apart[:, [2, 5, 6]]))
    assert not np.any(np.isnan(np.delete(apart, [2, 5, 6], axis=1)))


FIGURES = [f for f, _ in ORACLES.values()] + [c.mcse_sd]


@pytest.mark.parametrize("value", [0.1, np.nan, np.inf])
def test_draws_that_say_nothing_have_no_figures(value):
    """ArviZ gives constant draws the ESS of all of them; a frozen chain must not pass."""
    x = np.full((4, 50, 2), value)
    assert all(np.all(np.isnan(figure(x))) for figure in FIGURES)


def test_too_few_draws_or_chains():
    rng = np.random.default_rng(0)
    assert all(np.all(np.isnan(figure(rng.normal(size=(4, 3, 2))))) for figure in FIGURES)
    single = rng.normal(size=(1, 200, 2))
    assert np.all(np.isnan(c.r_hat(single)))
    assert np.all(c.ess_bulk(single) > 50)
    assert all(figure(np.empty((4, 100, 0))).shape == (0,) for figure in FIGURES)
    with pytest.raises(CredoError, match=r"shape \(4, 100\): give them as \(chain, draw, k\)"):
        c.r_hat(np.zeros((4, 100)))


@pytest.mark.parametrize("num_chains", [4, 7])
def test_frozen_chains_at_different_points(num_chains):
    """Scores of equal draws have a variance of rounding, not of zero."""
    x = np.repeat(np.arange(float(num_chains)), 1_001).reshape(num_chains, 1_001, 1)
    assert np.isposinf(c.r_hat(x)).all()


def test_chains_at_one_of_two_values_disagree():
    """All draws lie equally far from the median, so that the folded ranks say nothing, and the others all."""
    x = np.repeat([0.0, 0.0, 1.0, 1.0], 50).reshape(4, 50, 1)
    assert np.isposinf(c.r_hat(x)).all()


def test_e_bfmi():
    rng = np.random.default_rng(1)
    energy = autoregressive(rng, 0.9, (3, 4000, 1))[..., 0]
    np.testing.assert_allclose(c.e_bfmi(energy), array_stats.bfmi(energy), rtol=1e-12)
    # theory: 2 (1 − φ) = 0.2; its standard error here is about 0.2/√200
    np.testing.assert_allclose(c.e_bfmi(energy), 0.2, atol=0.06)
    energy[0], energy[1, 5] = 3.0, np.nan
    assert np.isnan(c.e_bfmi(energy)).tolist() == [True, True, False]
    assert np.isnan(c.e_bfmi(energy[:, :3])).all()


def test_stuck_chains():
    x = np.random.default_rng(1).normal(size=(5, 1000, 3))
    x[0] = x[0, :1]  # never moved
    x[1, 300:420] = x[1, 300]  # stood still for 120 draws
    x[2, 300:340] = x[2, 300]  # rejected 39 proposals: it happens
    x[3, :, 1] = 0.5  # one coordinate is constant, the chain moves
    x[4] = np.nan
    assert c.longest_stay(x).tolist() == [1000, 120, 40, 1, 1000]
    assert c.stuck_chains(x).tolist() == [True, True, False, False, True]
    assert c.stuck_chains(x[:, :20]).tolist() == [True, False, False, False, True]
    assert not c.stuck_chains(x[:, :1]).any(), "one draw tells nothing"
    assert not c.stuck_chains(x[1:2, 360:]).any(), "60 of 640 draws are fewer than a tenth"
    assert not c.stuck_chains(x[2:3, 300:400]).any(), "40 of 100 draws are fewer than 50"


# nested R-hat ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("superchains", [(2, 2, 400), (3, 4, 30), (4, 1, 100), (2, 3, 4)], ids=str)
def test_nested_r_hat_equals_arviz(superchains):
    num_superchains, per_superchain, num_draws = superchains
    x = scalars(num_superchains * per_superchain, num_draws)[..., :-1]
    labels = np.repeat(np.arange(num_superchains), per_superchain)
    usable = np.ptp(x, axis=(0, 1)) > 0
    meant = np.array([array_stats.rhat_nested(x[..., i], superchain_ids=labels) for i in range(x.shape[-1])])
    np.testing.assert_allclose(c.nested_r_hat(x, num_superchains)[usable], meant[usable], rtol=1e-8)


@pytest.mark.parametrize("shape", [(16, 8, 1), (4, 64, 1), (8, 16, 2)], ids=str)
def test_nested_r_hat_of_chains_that_have_forgotten_their_start(shape):
    """E B = 1/(MN) and E W = 1 (W_k + B_k = 1 − 1/N + …) in variances of a draw, for N = 1 and 2.

    With N = 1: W = 1. With N = 2: W_k = 1 and B_k = 1/2. The bulk and the folded figure are about alike; the larger of
    two noisy ones lies above, by less than the sd of B, √(2/(K−1)) of it. 400 scalars: their median is known well.
    """
    num_superchains, per_superchain, num_draws = shape
    x = np.random.default_rng(1).normal(size=(num_superchains * per_superchain, num_draws, 400))
    found = np.median(c.nested_r_hat(x, num_superchains) ** 2 - 1)
    expected = 1 / (per_superchain * num_draws) / (1 + (num_draws - 1) / num_draws)
    assert 0.8 * expected < found < (1 + np.sqrt(2 / (num_superchains - 1))) * expected


@pytest.mark.parametrize("num_draws", [1, 2, 50])
def test_nested_r_hat_sees_superchains_that_disagree(num_draws):
    """In place, and in spread alone; chains that disagree within their superchains are no sign of a start kept."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(8, 32, num_draws))
    k = np.arange(8)[:, None, None]
    moved, spread, within = x + k, x * (1 + k), x + rng.normal(size=(1, 32, 1))
    together = np.stack([x, moved, spread, within], axis=-1).reshape(256, num_draws, 4)
    found = c.nested_r_hat(together, 8)
    assert np.all(found[[0, 3]] < 1.05)
    assert np.all(found[[1, 2]] > 1.1)


@pytest.mark.parametrize("number", [2.0, "4", None, True])
def test_superchains_are_counted(number):
    with pytest.raises(CredoError, match="num_superchains is a whole number"):
        c.nested_r_hat(np.zeros((8, 4, 1)), number)


def test_nested_r_hat_of_two_values_of_half_the_draws_each():
    """They lie equally far from their median: folded, they say nothing."""
    x = np.random.default_rng(3).permuted(np.tile([0.0, 1.0], 40)).reshape(8, 10, 1)
    assert np.isfinite(c.nested_r_hat(x, 4)).all()


def test_nested_r_hat_of_too_little():
    x = np.random.default_rng(0).normal(size=(6, 1, 2))
    x[0, 0, 1] = np.nan
    assert np.isnan(c.nested_r_hat(x, 3)).tolist() == [False, True]
    assert np.isnan(c.nested_r_hat(x, 6)).all()
    assert c.nested_r_hat(np.repeat(np.arange(3.0), 2).reshape(6, 1, 1), 3)[0] > 1e8
    for number in (1, 4):
        with pytest.raises(CredoError, match=f"6 chains cannot be {number} superchains of equal size"):
            c.nested_r_hat(x, number)


@pytest.mark.slow
def test_ten_thousand_scalars():
    """40 million draws, in blocks: seconds, and memory of a block beside the draws."""
    x = np.random.default_rng(0).normal(size=(4, 1000, 10_000))
    r_hat, ess_bulk, ess_tail = c.convergence(x)
    assert r_hat.shape == ess_bulk.shape == ess_tail.shape == (10_000,)
    assert np.max(r_hat) < 1.02
    assert np.min(ess_bulk) > 2000
