"""Step size and metric: what warm-up finds, and that it does not depend on how."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.methods.mcmc.metric import AutomaticMetric, DenseMetric, DiagonalMetric, geometric_mean_with_inverse
from credo.methods.mcmc.warmup import restart, update, warmup_phases, windows
from credo.precision import double, to_numpy

RNG = np.random.default_rng(3)
ROOT = RNG.normal(size=(6, 6)) * np.logspace(-2, 1, 6)[:, None]
COVARIANCE = ROOT @ ROOT.T


def draws(num_draws, num_chains=4):
    """Draws of N(0, COVARIANCE) and the gradients of its log density there."""
    u = RNG.normal(size=(num_chains, num_draws, 6)) @ ROOT.T
    return u, -np.linalg.solve(COVARIANCE, u[..., None])[..., 0]


@pytest.mark.parametrize("num_warmup", [1, 5, 12, 13, 40, 100, 300, 1000])
def test_windows_add_up_and_grow(num_warmup):
    *growing, last = windows(num_warmup)
    assert sum(growing) + last == num_warmup
    assert growing == sorted(growing)
    assert last >= min(num_warmup, 12)
    phases = warmup_phases(num_warmup, DiagonalMetric(), ("position", "gradient"))
    assert [phase.num_steps for phase in phases] == [*growing, last]


def test_no_warmup_has_no_phases():
    assert warmup_phases(0, DiagonalMetric(), ("position", "gradient")) == []


@pytest.mark.parametrize("target", [0.6, 0.8, 0.95])
def test_dual_averaging_finds_the_step_size(target):
    """Acceptance falls with the step size as that of leapfrog does, 2 Φ(−ε²)."""

    @jax.jit
    def adapt(key):
        def step(da, k):
            mean = 2 * jax.scipy.stats.norm.cdf(-jnp.exp(2 * da.log_step))
            noisy = jnp.clip(mean + 0.05 * jax.random.normal(k), 0, 1)
            return update(da, noisy, target), mean

        return jax.lax.scan(step, jax.tree.map(jnp.asarray, restart(np.float64(10.0))), jax.random.split(key, 500))

    with double():
        da, acceptance = to_numpy(adapt(jax.random.key(0)))
    assert np.mean(acceptance[100:]) == pytest.approx(target, abs=0.03)
    exact = np.sqrt(-stats.norm.ppf(target / 2))
    assert np.exp(da.log_average) == pytest.approx(exact, rel=0.1)


def test_diagonal_is_the_ratio_of_spreads():
    u, g = draws(5_000)
    found = DiagonalMetric().estimate(u, g, Diagonal(np.ones(6)))
    exact = (np.diag(COVARIANCE) / np.diag(np.linalg.inv(COVARIANCE))) ** 0.25
    np.testing.assert_allclose(found.scale, exact, rtol=0.03)  # 20,000 draws: sd of log s below 0.5 %


def test_dense_is_the_covariance_of_a_gaussian():
    u, g = draws(20_000)
    found = DenseMetric().estimate(u, g, Dense(np.eye(6)))
    whitened = np.linalg.solve(ROOT, np.asarray(found.lower))
    np.testing.assert_allclose(whitened @ whitened.T, np.eye(6), atol=0.05)


def test_geometric_mean_solves_its_equation():
    a, b = COVARIANCE, np.linalg.inv(COVARIANCE) + np.eye(6)
    x = geometric_mean_with_inverse(a, b)
    np.testing.assert_allclose(x @ b @ x, a, rtol=1e-8)


@pytest.mark.parametrize("estimator", [DiagonalMetric(), DenseMetric()], ids=["diagonal", "dense"])
def test_few_draws_and_bad_draws_keep_a_usable_metric(estimator):
    initial = estimator.initial(np.array([[1e8, 0.0, 1.0, 2.0, 3.0, np.pi]]))
    u, g = draws(3)
    for positions, gradients in ((u, g), (u[:, :1], g[:, :1]), (0 * u, g), (u, 0 * g), (u, np.full_like(g, np.nan))):
        found = estimator.estimate(positions, gradients, initial)
        factor = np.asarray(jax.tree.leaves(found)[0])
        assert np.all(np.isfinite(factor))
        assert np.all(np.abs(np.diag(factor) if factor.ndim == 2 else factor) > 0)


def test_a_metric_that_rounding_makes_indefinite_is_not_taken():
    """Chains trapped where gradients are astronomical: 30 orders of magnitude within one covariance."""
    u, g = draws(50)
    mix = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]
    scales = 10.0 ** np.linspace(-15, 15, 6)
    stretched, squeezed = u @ (mix * scales) @ mix.T, g @ (mix / scales) @ mix.T
    for metric in (DenseMetric(), AutomaticMetric()):
        previous = metric.initial(np.ones((4, 6)))
        found = metric.estimate(stretched, squeezed, previous)
        assert np.all(np.isfinite(found.dense()))


def test_distance_between_chains_is_not_width():
    u, g = draws(2_000)
    apart = u + 1e3 * np.arange(4)[:, None, None]
    one = DiagonalMetric().estimate(u, g, Diagonal(np.ones(6)))
    other = DiagonalMetric().estimate(apart, g, Diagonal(np.ones(6)))
    np.testing.assert_allclose(one.scale, other.scale, rtol=1e-9)
