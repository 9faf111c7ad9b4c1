"""Step size and metric: what warm-up finds, and that it does not depend on how."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy import stats

import credo
from credo.diagnose.convergence import ess_bulk
from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.linalg.lowrank import LowRank
from credo.methods.mcmc.metric import (
    AutomaticMetric,
    DenseMetric,
    DiagonalMetric,
    LowRankMetric,
    geometric_mean_with_inverse,
)
from credo.methods.mcmc.reference import straight
from credo.methods.mcmc.warmup import (
    State,
    Tuning,
    depth_limit,
    is_behind,
    restart,
    short_trees_first,
    update,
    warmup_phases,
    windows,
)
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


@pytest.mark.parametrize("num_warmup", [1, 40, 300, 1000])
def test_many_chains_wait_for_each_other_less_often(num_warmup):
    few, many = (windows(num_warmup, num_chains=chains) for chains in (15, 16))
    assert sum(many) == num_warmup
    assert many[-1] == few[-1]
    assert len(many) < len(few) or num_warmup < 100
    for phases in (
        warmup_phases(num_warmup, DiagonalMetric(), ("position",), num_chains=16),
        short_trees_first(num_warmup, DiagonalMetric(), ("position",), num_chains=16, max_depth=10),
    ):
        assert [phase.num_steps for phase in phases] == many


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


STATES = [State(None, restart(np.float64(1.0))._replace(log_average=np.log(size))) for size in (1.0, 2.0, 4.0, 8.0)]


@pytest.mark.parametrize(("longest", "step_size"), [(np.inf, 8**0.5), (1.2, 1.2)])
def test_after_warmup_all_chains_have_the_geometric_mean_of_their_steps_and_adapt_no_more(longest, step_size):
    given = {"reference": straight(6)._replace(longest=np.asarray(longest))}
    (phase,) = warmup_phases(10, None, ())
    tuning, states = phase.at_end((None, None), Tuning(None, np.asarray(0.8), np.bool_(True), given), STATES)
    assert not tuning.is_adapting
    np.testing.assert_allclose(np.exp([state.step.log_step for state in states]), step_size)


@pytest.mark.parametrize(("behind", "is_kept", "rotates"), [(0, True, True), (25, True, False), (50, False, False)])
def test_a_window_ends_with_what_is_known_from_chains_that_have_arrived(behind, is_kept, rotates):
    """Energies have the sd 1 + √6 = 3.4: 7 of them above the others a chain tells no rotation, 15 no scale either."""
    u, g = draws(50)
    u[3] *= 3
    energy = np.zeros((4, 50)) + behind * np.eye(4)[3][:, None]
    metric = DenseMetric().initial(np.ones((4, 6)))
    tuning = Tuning(metric, np.asarray(0.8), np.bool_(True), {"reference": straight(6)})
    first = warmup_phases(100, DenseMetric(), ("position", "gradient"))[0]
    found, states = first.at_end(({"position": u, "gradient": g}, SimpleNamespace(energy=energy)), tuning, STATES)
    kept = slice(4 if is_kept else 3)
    np.testing.assert_array_equal(found.metric.lower, DenseMetric().estimate(u[kept], g[kept], metric).lower)
    assert found.given["reference"].rotates == rotates
    assert found.is_adapting
    assert len({float(state.step.log_step) for state in states}) == 1


def test_trees_grow_from_window_to_window():
    u, g = draws(50)
    tuning = Tuning(Diagonal(np.ones(6)), np.asarray(0.8), np.bool_(True))
    phases = short_trees_first(1_000, DiagonalMetric(), ("position", "gradient"), num_chains=4, max_depth=10)
    records = {"position": u, "gradient": g}, None
    limits = [phase.at_end(records, tuning, STATES)[0].given["depth_limit"] for phase in phases]
    assert limits == [6, 8, *[10] * (len(phases) - 2)]


def test_the_first_scales_are_those_by_which_draws_of_variance_one_have_such_gradients():
    found = DiagonalMetric().initial(np.array([[4.0, 0.25], [-4.0, 0.25]]))
    np.testing.assert_allclose(found.scale, [0.5, 2.0])


def test_a_start_whose_gradient_has_no_square_has_the_smallest_scale():
    """Warnings are errors here: NumPy's of the overflow reached the user."""
    found = DiagonalMetric().initial(np.array([[1e200, 1.0]]))
    assert 0 < found.scale[0] < 1e-3
    np.testing.assert_allclose(found.scale[1], 1.0)


def test_few_draws_are_weighed_against_the_scales_before():
    """Of 4 · (5 − 1) draws and 10, by their logarithms."""
    u, before = draws(5)[0], np.full(6, 3.0)
    found = DiagonalMetric().estimate(u, None, Diagonal(before))
    variance = np.mean(np.var(u, axis=1, ddof=1), axis=0)
    np.testing.assert_allclose(2 * np.log(found.scale), (16 * np.log(variance) + 10 * np.log(before**2)) / 26)


def test_of_few_draws_a_covariance_is_shrunk_to_its_diagonal():
    """As by ten draws and one a dimension, to the third power."""
    u = draws(9)[0]
    scale = DiagonalMetric().estimate(u, None, Diagonal(np.ones(6))).scale
    white = (u - u.mean(axis=1, keepdims=True)).reshape(-1, 6) / scale
    weight = 1 - (16 / (32 + 16)) ** 3
    expected = weight * white.T @ white / 32 + (1 - weight) * np.eye(6)
    found = DenseMetric().estimate(u, None, Dense(np.eye(6)))
    np.testing.assert_allclose(found.lower @ found.lower.T, scale[:, None] * expected * scale, rtol=1e-9)


@pytest.mark.parametrize(
    "previous",
    [
        Diagonal(np.arange(1.0, 7.0)),
        Dense(np.linalg.cholesky(COVARIANCE)),
        LowRank.from_eigen(np.arange(1.0, 7.0), np.linalg.qr(ROOT[:, :2])[0], np.array([4.0, 0.3])),
    ],
    ids=lambda metric: type(metric).__name__,
)
def test_scales_of_which_draws_say_nothing_are_those_before(previous):
    found = DiagonalMetric().estimate(np.full((4, 9, 6), np.nan), None, previous)
    np.testing.assert_allclose(found.scale, np.sqrt(np.diag(previous.dense())), rtol=1e-5)  # JAX's are in float32


def test_diagonal_is_the_ratio_of_spreads():
    u, g = draws(5_000)
    found = DiagonalMetric(enough=np.inf).estimate(u, g, Diagonal(np.ones(6)))
    exact = (np.diag(COVARIANCE) / np.diag(np.linalg.inv(COVARIANCE))) ** 0.25
    np.testing.assert_allclose(found.scale, exact, rtol=0.03)  # 20,000 draws: sd of log s below 0.5 %


def test_of_many_draws_the_variance_counts():
    u, g = draws(5_000)
    found = DiagonalMetric().estimate(u, g, Diagonal(np.ones(6)))
    np.testing.assert_allclose(found.scale, np.sqrt(np.diag(COVARIANCE)), rtol=0.03)
    without = DiagonalMetric().estimate(u, None, Diagonal(np.ones(6)))
    np.testing.assert_allclose(without.scale, np.sqrt(np.diag(COVARIANCE)), rtol=0.03)


def test_dense_is_nearly_exact_long_before_the_covariance_is():
    """156 draws of 6 dimensions: gradients cancel the noise of the draws; what is left is the shrinkage, (16/172)³."""
    u, g = draws(40)
    conditions = []
    for gradients in (g, None):
        found = DenseMetric(prior_draws=0.0).estimate(u, gradients, Dense(np.eye(6)))
        whitened = np.linalg.solve(ROOT, np.asarray(found.lower))
        conditions.append(np.linalg.cond(whitened @ whitened.T))
    assert conditions[0] < 1.2
    assert conditions[1] > 1.5


# few directions of many -----------------------------------------------------------------------------------------------

DIM = 300


def spiked(num_draws, variances, rng):
    """Draws and gradients of a Gaussian that is independent but for a few random directions of these variances."""
    directions = np.linalg.qr(rng.normal(size=(DIM, len(variances))))[0]
    z = rng.normal(size=(4, num_draws, DIM))
    scale = np.logspace(-2, 2, DIM)
    w = z + (z @ directions) * (np.sqrt(variances) - 1) @ directions.T
    precision = w + (w @ directions) * (1 / np.asarray(variances) - 1) @ directions.T
    return w * scale, -precision / scale, scale, directions


@pytest.mark.parametrize(
    ("num_draws", "variances", "left"),
    [(150, [400.0, 0.01], 30), (150, [1e4], 30), (150, [1e-3, 1e-3, 50.0], 30), (40, [1e5, 1e-5], 3_000)],
)
def test_low_rank_finds_the_directions(num_draws, variances, left):
    u, g, scale, directions = spiked(num_draws, variances, np.random.default_rng(1))
    metric = LowRankMetric().estimate(u, g, LowRankMetric().initial(np.ones((4, DIM))))
    covariance = np.eye(DIM) + (directions * (np.asarray(variances) - 1)) @ directions.T
    covariance = scale[:, None] * covariance * scale
    with double():
        S = np.asarray(metric.dense())
        np.testing.assert_allclose(metric.solve(metric.matvec(u[0, 0])), u[0, 0], rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(2 * metric.log_det(), np.linalg.slogdet(S)[1], rtol=1e-9)
    values = np.linalg.eigvals(np.linalg.solve(S, covariance)).real
    found, before = values.max() / values.min(), np.linalg.cond(covariance / np.outer(scale, scale))
    assert found < left  # 600 draws of 300 scales and of the directions, or 160, fewer than there are dimensions
    assert found < before / 100


def test_automatic_metric_is_rich_only_where_it_pays():
    rng = np.random.default_rng(2)
    even = [1 / 30]  # the low rank costs about what it gains, and estimates scatter
    for variances, is_rich in (([1.0], False), ([5.0], False), (even, False), ([400.0, 0.01], True)):
        u, g, _, _ = spiked(150, variances, rng)
        metric = AutomaticMetric().estimate(u, g, AutomaticMetric().initial(np.ones((4, DIM))))
        assert bool(metric.is_rich) == is_rich


def test_low_rank_metric_pays_on_a_large_correlated_target():
    """Along the wide direction the chains mix several times faster at the same number of gradients."""
    density = credo.Model.from_log_density(one_direction, {"w": constraints.real_vector}, {"w": (DIM,)})
    sizes = []
    for metric in (DiagonalMetric(), AutomaticMetric()):
        posterior = credo.fit(density.given(), credo.NUTS(num_draws=150, metric=metric), key=1, progress=False)
        size = ess_bulk(posterior.draws["w"].sum(axis=-1)[..., None])[0]
        sizes.append(size / posterior.info["num_gradients_useful"])
    assert sizes[1] > 3 * sizes[0]


def one_direction(params):
    """N(0, I + 399 v vᵀ)."""
    w = params["w"]
    along = jnp.sum(w) / np.sqrt(DIM)
    return -0.5 * (jnp.sum(w * w) - (1 - 1 / 400) * along**2)


# chains on their way --------------------------------------------------------------------------------------------------


def test_a_chain_on_its_way_does_not_count():
    rng = np.random.default_rng(0)
    energy = 1_000 + 10 * rng.normal(size=(4, 50))  # 100 dimensions
    assert not is_behind(energy, 100).any()
    energy[2] += 500
    energy[3, :10] = np.inf
    np.testing.assert_array_equal(is_behind(energy, 100), [False, False, True, False])


def on_a_plateau(params):
    """A normal of sd 0.07 on a plateau of radius 4, 60 nats below: nothing tells where it is.

    A warm-up of 60 steps that repeats no window ends too early for half of 24 keys, one that does for none.
    """
    squares = jnp.sum(params["x"] ** 2)
    edge = 20 * (jnp.sqrt(squares + 1e-3) - 4)
    return jnp.logaddexp(-squares / (2 * 0.07**2), -60 - jnp.logaddexp(0.0, edge))


@pytest.mark.parametrize("key", range(1, 9))
def test_draws_wait_for_a_chain_on_its_way(key):
    target = credo.Model.from_log_density(on_a_plateau, {"x": constraints.real}, shape={"x": (2,)}).given()
    start = np.array([[0.0, 0.0], [0.1, 0.0], [0.0, 0.1], [2.4, 2.0]])
    posterior = credo.fit(target, credo.NUTS(num_warmup=60), start=start, key=key, progress=False)
    assert np.abs(posterior.draws["x"]).max() < 1
    assert posterior.verdict.status == "pass"


def test_early_trees_are_short():
    assert [depth_limit(w, 7, 10)["depth_limit"] for w in range(5)] == [3, 6, 8, 10, 10]
    assert [depth_limit(w, 2, 10)["depth_limit"] for w in range(3)] == [3, 6, 10]
    assert depth_limit(0, 0, 10)["depth_limit"] == 10
    assert depth_limit(1, 7, 5)["depth_limit"] == 5


def test_dense_is_the_covariance_of_a_gaussian():
    u, g = draws(20_000)
    found = DenseMetric().estimate(u, g, Dense(np.eye(6)))
    whitened = np.linalg.solve(ROOT, np.asarray(found.lower))
    np.testing.assert_allclose(whitened @ whitened.T, np.eye(6), atol=0.05)


@pytest.mark.parametrize("metric", [DenseMetric(), LowRankMetric(), AutomaticMetric()], ids=repr)
def test_gradients_whose_squares_are_no_numbers_leave_a_metric_that_is_one(metric):
    """As of a density that is not integrable, whose chains fall into a pole."""
    random = np.random.default_rng(0)
    u, g = random.normal(size=(2, 4, 30, 6)) * np.exp(200 * random.normal(size=(2, 4, 30, 6)))
    found = metric.estimate(u, g, metric.initial(np.ones((4, 6))))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))


def test_geometric_mean_solves_its_equation():
    a, b = COVARIANCE, np.linalg.inv(COVARIANCE) + np.eye(6)
    x = geometric_mean_with_inverse(a, b)
    np.testing.assert_allclose(x @ b @ x, a, rtol=1e-8)


@pytest.mark.parametrize("prior_draws", [0.0, 10.0])
@pytest.mark.parametrize("kind", [DiagonalMetric, DenseMetric, LowRankMetric, partial(DiagonalMetric, enough=0.0)])
def test_few_draws_and_bad_draws_keep_a_usable_metric(kind, prior_draws):
    """A window of one step, the first of 13, ended in a division by zero where nothing is kept of the metric before."""
    estimator = kind(prior_draws=prior_draws)
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


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (credo.mcmc.LowRankMetric(max_rank=-1), "max_rank is 1 or more"),
        (credo.mcmc.LowRankMetric(cutoff=0.0), "cutoff is 1 or more"),
        (credo.mcmc.DenseMetric(prior_draws=-500.0), "prior_draws is 0 or more"),
    ],
)
def test_settings_of_a_metric_are_checked(metric, said):
    model = credo.Model({"x": dist.Normal(np.zeros(3), 1.0)}, lambda params, x: dist.Normal(params["x"], 1.0))
    with pytest.raises(credo.CredoError, match=said):
        credo.fit(model.given(y=np.ones((1, 3))), credo.NUTS(metric=metric), progress=False)
