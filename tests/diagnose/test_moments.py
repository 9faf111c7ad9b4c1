"""Shifts of means and sds under importance weights, where the target's moments are known in closed form."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse

from credo.diagnose import moments, pareto
from credo.diagnose.moments import SURE, Weighed, draws_needed, figures_of, shifts

DIM = 6


def weighed(z, log_ratio, *, is_normal=False, **more) -> Weighed:
    spread = np.ones(z.shape[1]) if is_normal else None
    return Weighed(z, pareto.smooth(log_ratio).log_weights, z, np.eye(z.shape[1]), spread=spread, **more)


def correlated(correlation: float):
    """Mean field's optimum on pairs of correlated normals: precisions, and by how much its log sds fall short."""
    block = np.linalg.inv(np.array([[1.0, correlation], [correlation, 1.0]])) * (1 - correlation**2)
    return np.kron(np.eye(DIM // 2), block), -0.5 * np.log(1 - correlation**2)


def skewed(z, precision):
    """log p / q and ∇ log p of a normal with a factor exp(0.1 tanh z)/cosh(z)^0.1 in each coordinate."""
    log_p = -0.5 * np.einsum("si,ij,sj->s", z, precision, z) - 0.1 * np.log(np.cosh(z)).sum(1) + 0.1 * np.tanh(z).sum(1)
    return log_p + 0.5 * (z**2).sum(axis=1), -z @ precision - 0.1 * np.tanh(z) + 0.1 / np.cosh(z) ** 2


def test_an_exact_approximation_moves_nothing():
    z = np.random.default_rng(3).normal(size=(500, DIM))
    for more in ({}, {"is_normal": True}, {"is_normal": True, "gradient": -z}):
        found = shifts(weighed(z, np.zeros(500), **more))
        for shift in found:
            np.testing.assert_allclose(shift.most, 0.0, atol=1e-9)


def test_gradients_leave_no_error_on_a_gaussian_target():
    """Mean 0.15 off in all coordinates of correlation 0.5, by 600 draws whose own error would be 0.06."""
    precision, short = correlated(0.5)
    z = np.random.default_rng(1).normal(size=(600, DIM))
    y = z - 0.15
    log_ratio = -0.5 * np.einsum("si,ij,sj->s", y, precision, y) + 0.5 * (z**2).sum(axis=1)
    found = shifts(weighed(z, log_ratio, gradient=-y @ precision, is_normal=True))
    np.testing.assert_allclose(found.log_sd.value, short, atol=1e-6)
    np.testing.assert_allclose(found.mean.value, 0.15 / np.exp(short), atol=1e-6)
    assert found.log_sd.error.max() < 1e-6
    without = shifts(weighed(z, log_ratio, is_normal=True))
    assert without.log_sd.error.min() > 0.01


@pytest.mark.parametrize("has_gradient", [False, True])
@pytest.mark.parametrize("is_normal", [False, True])
def test_errors_are_those_that_repeated_estimates_have(has_gradient, is_normal):
    """100 estimates: the mean square of their errors over the claimed ones lies between 0.5 and 2."""
    precision, _ = correlated(0.3)
    rng = np.random.default_rng(5)
    z = rng.normal(size=(60_000, DIM))
    log_ratio, gradient = skewed(z, precision)
    long = shifts(weighed(z, log_ratio, gradient=gradient, is_normal=True))
    w = np.exp(log_ratio)[:, None] / np.exp(log_ratio).sum()
    mean = (w * z).sum(axis=0)
    sd = np.sqrt((w * (z - mean) ** 2).sum(axis=0))
    for shift, plain in zip(long, (mean / sd, np.log(sd)), strict=True):
        assert np.all(np.abs(shift.value - plain) < 4 * 1.5 / np.sqrt(60_000)), "12 of 4 errors: once in 1,300"
    scores = []
    for _ in range(100):
        z = rng.normal(size=(1_000, DIM))
        log_ratio, gradient = skewed(z, precision)
        found = shifts(weighed(z, log_ratio, gradient=gradient if has_gradient else None, is_normal=is_normal))
        scores += [(s.value - t.value) / np.hypot(s.error, t.error) for s, t in zip(found, long, strict=True)]
    assert 0.5 < np.mean(np.square(scores)) < 2.0


def test_what_is_sure_and_what_cannot_be_ruled_out():
    """At the bound a pass is wrong once in 740, for any number of coordinates: none of 300 at a mean off by 0.1 sd."""
    rng = np.random.default_rng(8)
    num_passes = num_alarms = 0
    for _ in range(300):
        z = rng.normal(size=(2_000, 3))
        found = shifts(weighed(z, 0.1 * z[:, 0], is_normal=True))
        num_passes += found.mean.most.max() <= 0.1 - 1e-12
        num_alarms += found.log_sd.least.max() > 0
    assert num_passes <= 4  # 0.4 expected: five or more once in 16,000
    assert num_alarms <= 25  # at most 7.5 expected of 5 % in two figures


def test_figures_of_a_verdict():
    z = np.random.default_rng(4).normal(size=(4_000, 4))
    log_ratio = -0.5 * ((z[:, 2] - 0.5) / 1.2) ** 2 + 0.5 * z[:, 2] ** 2  # N(0.5, 1.2²) in one coordinate
    found = shifts(weighed(z, log_ratio, is_normal=True))
    figures = figures_of(found)
    assert list(figures) == ["mean_shift", "log_sd_shift"], "what may be is not said beside what is"
    assert 0.3 < figures["mean_shift"] <= 0.5 / 1.2
    assert 0.05 < figures["log_sd_shift"] <= np.log(1.2)
    assert draws_needed(found.mean, 0.1, 4_000) == np.inf
    faint = shifts(weighed(z, 0.02 * z[:, 0]))
    assert list(figures_of(faint)) == ["mean_shift", "log_sd_shift", "mean_limit", "log_sd_limit"]
    assert 0.02 < figures_of(faint)["mean_limit"] < 0.1
    needed = draws_needed(faint.mean, 0.1, 4_000)
    assert needed == pytest.approx(4_000 * np.max((SURE * faint.mean.error / (0.1 - faint.mean.least)) ** 2))
    unknown = figures_of(shifts(weighed(z, np.full(4_000, -np.inf))))
    assert all(np.isnan(value) for value in unknown.values())


def test_many_scalars_and_directions_of_their_own():
    """A sum of two coordinates moves by both; blocks of columns change nothing."""
    z = np.random.default_rng(2).normal(size=(3_000, 2))
    log_ratio = 0.2 * z[:, 0] + 0.1 * z[:, 1]  # N((0.2, 0.1), I)
    directions = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
    gradient, spread = -(z - [0.2, 0.1]), np.sqrt([1.0, 2.0, 1.0])
    log_weights = pareto.smooth(log_ratio).log_weights
    found = shifts(Weighed(z, log_weights, z @ directions, directions, gradient, spread))
    np.testing.assert_allclose(found.mean.value, [0.2, 0.3 / np.sqrt(2), 0.1], atol=1e-6)
    wide = np.tile(directions, 100)
    tiled = shifts(Weighed(z, log_weights, z @ wide, wide, gradient, np.tile(spread, 100)))
    np.testing.assert_allclose(tiled.mean.value, np.tile(found.mean.value, 100), rtol=1e-9)


def test_directions_of_correlated_coordinates():
    """N(0, R) weighed to a mean of 0.2 R 1: Hermite polynomials of a direction are controls at variance one."""
    R = np.array([[1.0, -0.9], [-0.9, 1.0]])
    z = np.random.default_rng(4).normal(size=(3_000, 2)) @ np.linalg.cholesky(R).T
    directions = np.array([[1.0, 1.0, 1.0], [0.0, 1.0, -1.0]])
    spread = np.sqrt(np.einsum("ik,ij,jk->k", directions, R, directions))
    log_weights = pareto.smooth(0.2 * z.sum(axis=1)).log_weights
    found = shifts(Weighed(z, log_weights, z @ directions, directions, spread=spread))
    truth = 0.2 * directions.T @ R.sum(axis=1) / spread
    assert np.all(np.abs(found.mean.value - truth) < 4 * found.mean.error)
    assert np.all(found.mean.error < 0.01)
    assert np.all(np.abs(found.log_sd.value) < 4 * found.log_sd.error)


def test_of_many_draws_no_copy_is_made(monkeypatch):
    monkeypatch.setattr(moments, "AT_ONCE", 50_000)
    z = np.random.default_rng(0).normal(size=(1_000, 1_000))
    weighed = Weighed(z, np.full(1_000, -np.log(1_000)), z, scipy.sparse.eye_array(1_000), spread=np.ones(1_000))
    tracemalloc.start()
    shifts(weighed)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < z.nbytes
