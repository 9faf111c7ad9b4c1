"""Stochastic-gradient samplers: unbiased gradients, stationary laws in closed form, schedules, resuming."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import linalg

import credo
from credo.algorithm import Options
from credo.diagnose.function_space import weights_of
from credo.methods.sgmcmc import tune
from credo.methods.sgmcmc.dynamics import Dynamics
from credo.methods.sgmcmc.gradient import Anchor, stochastic_gradient
from credo.methods.sgmcmc.nose_hoover import nose_hoover
from credo.methods.sgmcmc.preconditioner import CurvatureScale
from credo.methods.sgmcmc.schedule import Constant, Cyclical, Decaying
from credo.methods.sgmcmc.sghmc import sghmc
from credo.methods.sgmcmc.sgld import sgld
from credo.methods.sgmcmc.stochastic import _temperature_error
from credo.methods.sgmcmc.tune import Noise, Tuning, first_position, measure, measure_among
from credo.methods.sgmcmc.warm_up import warm_up
from credo.model.windows import shuffled
from credo.posterior.kinds import Draws
from credo.precision import double
from interrupted import on_a_full_disk

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(60, 2)) @ np.array([[1.0, 0.0], [0.8, 0.6]])
Y = X @ np.array([1.0, -2.0]) + 0.5 * RANDOM.normal(size=60)
WEIGHTS = RANDOM.integers(1, 4, 60).astype(float)
NUM_ERRORS = 4.5  # two-sided false-alarm rate 7e-6 a number


def likelihood(params, x):
    return dist.Normal(x @ params["w"], 0.5)


def logistic(params, x):
    return dist.Bernoulli(logits=x @ params["w"])


LINEAR = credo.Model({"w": dist.Normal(0.0, 2.0).expand([2])}, likelihood)
PRECISION = X.T @ X / 0.25 + np.eye(2) / 4
MEAN = np.linalg.solve(PRECISION, X.T @ Y / 0.25)
COVARIANCE = np.linalg.inv(PRECISION)


def positions_of(posterior) -> np.ndarray:
    """(chain, draw, dim)."""
    assert isinstance(posterior.kind, Draws)
    return posterior.kind.positions


def dynamics(
    gradient, step_size, *, num_steps=1, schedule=None, temperature=1.0, scale=None, total=1_000, most=np.inf, power=2
) -> Dynamics:
    scale, step_size = np.ones(2) if scale is None else scale, np.asarray(step_size, float)
    with double():
        arrays = [jnp.asarray(a) for a in (scale, step_size, MEAN, np.asarray(most), np.eye(2))]
    return Dynamics(gradient, *arrays, schedule or Constant(), temperature, num_steps, 0, total, power)


def noise(largest, mean=None, least=None) -> Noise:
    mean = largest if mean is None else mean
    return Noise(largest, mean, mean if least is None else least, np.zeros(2))


def exact(key, u):
    return -jnp.asarray(PRECISION) @ (u - jnp.asarray(MEAN))


def simulate(algorithm, num_draws, key=0):
    """Positions (draw, dim) and temperatures of one chain."""
    with double():

        @jax.jit
        def chain(key):
            state = algorithm.init(key, jnp.asarray(MEAN))

            def step(state, i):
                state, info = algorithm.step(jax.random.fold_in(key, i), state)
                return state, (state.position, info.temperature)

            return jax.lax.scan(step, state, jnp.arange(num_draws))[1]

        return jax.tree.map(np.asarray, chain(jax.random.key(key)))


def check_moments(positions, covariance, mean=MEAN):
    """Means and covariances against the truth, in errors that effective sizes give."""
    sd = np.sqrt(np.diag(covariance))
    for i in range(2):
        z = positions[:, i] - mean[i]
        for value, truth in ((z, 0.0), (z**2, covariance[i, i])):
            blocks = value[: len(value) // 100 * 100].reshape(100, -1).mean(axis=1)
            error = np.std(blocks, ddof=1) / 10
            assert abs(blocks.mean() - truth) < NUM_ERRORS * error
            assert error < 0.05 * (sd[i] if truth == 0 else truth), "else the test could not fail"


# gradients ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_anchored", [False, True])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
@pytest.mark.parametrize("model", [LINEAR, credo.Model(LINEAR.prior, logistic)], ids=["linear", "logistic"])
def test_the_mean_over_all_windows_is_the_gradient(model, weights, is_anchored, monkeypatch):
    y = Y if model is LINEAR else (Y > 0).astype(float)
    target = model.given(X, y, weights=weights).flat()
    data = shuffled(target, 7, np.random.default_rng(1))
    u = np.array([0.3, -1.2])
    with double():
        here = np.array([1.0, -1.0])
        anchor = Anchor(here, jax.jit(jax.grad(target.log_density))(here)) if is_anchored else None
        estimate = stochastic_gradient(data, 7, anchor)
        monkeypatch.setattr(jax.random, "randint", lambda key, shape, low, high: key)  # every place once
        windows = np.asarray(jax.jit(jax.vmap(estimate, in_axes=(0, None)))(np.arange(target.size), u))
        np.testing.assert_allclose(windows.mean(axis=0), jax.jit(jax.grad(target.log_density))(u), rtol=1e-10)
    assert windows.std(axis=0).min() > 0


def test_control_variates_remove_the_noise_of_a_gaussian():
    target = LINEAR.given(X, Y).flat()
    data = shuffled(target, 7, np.random.default_rng(1))
    with double():
        estimate = stochastic_gradient(data, 7, Anchor(MEAN, np.zeros(2)))
        draws = np.stack([estimate(jax.random.key(i), jnp.asarray(MEAN)) for i in range(5)])
    np.testing.assert_allclose(draws, 0.0, atol=1e-9)


# stationary laws ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_sgld_has_the_law_that_its_step_size_gives(temperature):
    """In the eigenvectors of Λ: variance T / (λ (1 − ε λ / 4)), and so the temperature that it shows."""
    ε = 0.4 / np.linalg.eigvalsh(PRECISION)[-1]
    positions, temperatures = simulate(sgld(dynamics(exact, ε, num_steps=20, temperature=temperature)), 20_000)
    expected = temperature * np.linalg.inv(PRECISION @ (np.eye(2) - ε / 4 * PRECISION))
    check_moments(positions, expected)
    shown = np.trace(PRECISION @ expected) / 2
    assert temperatures.mean() == pytest.approx(shown, abs=NUM_ERRORS * temperatures.std() * 5 / np.sqrt(20_000))


def test_noise_of_gradients_heats_sgld_as_said():
    """(1 + ε V / 4) / (1 − ε λ / 4), for independent noise of variance V in a coordinate of precision λ."""
    λ, V = np.diag(PRECISION), 9.0 * np.diag(PRECISION)

    def noisy(key, u):
        return -jnp.asarray(λ) * (u - MEAN) + jnp.sqrt(V) * jax.random.normal(jax.random.fold_in(key, 7), (2,))

    s = λ**-0.5
    positions, _ = simulate(sgld(dynamics(noisy, 0.3, num_steps=10, scale=s)), 30_000)
    check_moments(positions, np.diag((1 + 0.3 * 9.0 / 4) / (1 - 0.3 / 4) / λ))


def test_sghmc_has_the_law_that_its_step_size_gives():
    """The stationary covariance of the linear recursion B A O A, by Lyapunov's equation, is that of the density."""
    h, γ, λ = 0.6, 1.5, 1.0
    c = np.exp(-γ * h)
    O, A, B = np.diag([1.0, c]), np.array([[1.0, h / 2], [0.0, 1.0]]), np.array([[1.0, 0.0], [-h * λ, 1.0]])
    M, noise = A @ O @ A @ B, np.diag([0.0, 1 - c**2])
    expected = linalg.solve_discrete_lyapunov(M, A @ noise @ A.T)[0, 0]
    assert expected == pytest.approx(1.0, abs=1e-12)

    def unit(key, u):
        return -(u - MEAN)

    positions, _ = simulate(sghmc(dynamics(unit, h, num_steps=5), γ), 40_000)
    check_moments(positions, expected * np.eye(2))


def test_the_thermostat_takes_up_the_noise_of_gradients():
    """Noise that would heat SGHMC of the same step by half leaves the variance within a few percent."""
    V, h, d = 40.0, 0.05, 2

    def noisy(key, u):
        return -(u - MEAN) + np.sqrt(V) * jax.random.normal(jax.random.fold_in(key, 7), (d,))

    hot, _ = simulate(sghmc(dynamics(noisy, h, num_steps=20), 1.0), 10_000)
    assert np.var(hot[2_000:]) > 1.6
    positions, temperatures = simulate(nose_hoover(dynamics(noisy, h, num_steps=20), 1.0), 40_000)
    assert np.var(positions[2_000:] - MEAN) == pytest.approx(1.0, abs=0.06)
    assert temperatures[2_000:].mean() == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    "method", [credo.SGLD(), credo.SGHMC(), credo.SGNHT(), credo.SGLD(preconditioner=credo.sgmcmc.GradientScale())]
)
def test_fits_of_a_linear_model_are_right_to_the_bias_they_promise(method):
    posterior = credo.fit(LINEAR.given(X, Y), dataclasses.replace(method, batch_size=20), key=1, progress=False)
    sd = np.sqrt(np.diag(COVARIANCE))
    error = NUM_ERRORS / np.sqrt(posterior.verdict.figures["min_ess_bulk"])
    np.testing.assert_array_less(np.abs(posterior.mean()["w"] - MEAN) / sd, error)
    np.testing.assert_array_less(np.abs(posterior.sd()["w"] / sd - 1), 0.1 + error)
    assert posterior.verdict.figures["temperature_error"] < 0.15
    assert posterior.info["has_control_variates"], "of a quadratic they leave no noise"
    if isinstance(method.preconditioner, CurvatureScale):  # in which no curvature is above 2
        assert posterior.info["step_size"] > method.best_step(2.0, noise(0.0))
    assert posterior.info["num_gradients"] == 2 * 4 * 1_200 * posterior.info["num_steps"]


def test_all_rows_need_no_control_variates():
    with_all, plain = (
        credo.fit(
            LINEAR.given(X, Y),
            credo.SGLD(batch_size=None, num_draws=20, control_variates=wanted),
            key=2,
            progress=False,
        )
        for wanted in (True, False)
    )
    np.testing.assert_array_equal(positions_of(with_all), positions_of(plain))
    assert with_all.info["num_gradients"] == plain.info["num_gradients"]
    assert not with_all.info["has_control_variates"]


def test_constant_steps_say_where_the_noise_of_gradients_spans_too_much():
    scales = np.array([1.0, 1_000.0])
    fitted = credo.fit(
        LINEAR.given(X * scales, Y), credo.ConstantSGD(batch_size=16, num_draws=20), key=2, progress=False
    )
    assert any("standardise the columns" in each.lower() for each in fitted.verdict.sentences)


def test_the_bias_vanishes_with_the_step():
    """SGLD without control variates: the variance's excess falls in proportion to ε."""
    excess = []
    for ε in (0.4, 0.1):
        method = credo.SGLD(batch_size=None, step_size=ε, num_steps=int(12 / ε), num_draws=8_000)
        posterior = credo.fit(LINEAR.given(X, Y), method, key=2, progress=False)
        excess.append(np.mean(posterior.sd()["w"] ** 2 / np.diag(COVARIANCE)) - 1)
    assert excess[0] > 0.05
    assert excess[1] < 0.5 * excess[0]


# schedules ------------------------------------------------------------------------------------------------------------


def test_draws_of_decaying_steps_are_weighed_by_them():
    posterior = credo.fit(LINEAR.given(X, Y), credo.SGLD(schedule=Decaying(), batch_size=20), key=3, progress=False)
    assert isinstance(posterior.kind, Draws)
    weights = np.exp(np.asarray(posterior.kind.log_weights))
    assert weights.sum() == pytest.approx(1.0)
    factors = (1 + np.arange(1, 1_001) / 50.0) ** -0.55
    np.testing.assert_allclose(weights[0] / weights[0, 0], factors / factors[0], rtol=0.02)
    np.testing.assert_allclose(posterior.mean()["w"], MEAN, atol=0.5 * np.sqrt(COVARIANCE.max()))


def test_hamiltonian_steps_are_the_root_of_the_schedule_and_weigh_their_draws():
    """The schedule is one of ε = h²; a draw has the step of its last update."""
    settings = {"step_size": 0.1, "num_steps": 3, "num_warmup": 0, "num_draws": 8, "batch_size": None}
    method = credo.SGHMC(schedule=Decaying(power=1.0, offset=1.0), **settings)
    posterior = credo.fit(LINEAR.given(X, Y), method, key=3, progress=False)
    sizes = 0.1 * (1 + np.arange(2, 24, 3) / 24) ** -0.5
    np.testing.assert_allclose(posterior.info["sample_stats"]["step_size"], np.tile(sizes, (4, 1)), rtol=1e-6)
    assert isinstance(posterior.kind, Draws)
    np.testing.assert_allclose(
        np.exp(posterior.kind.log_weights), np.tile(sizes / (4 * sizes.sum()), (4, 1)), rtol=1e-6
    )


def test_a_cycle_explores_without_noise_and_its_draws_are_dropped():
    schedule = Cyclical(cycles=4, exploration=0.75)
    posterior = credo.fit(LINEAR.given(X, Y), credo.SGLD(schedule=schedule, batch_size=None), key=4, progress=False)
    num_kept = positions_of(posterior).shape[1]
    assert abs(num_kept - 250) <= 4
    assert posterior.verdict.figures["temperature_error"] < 0.2, "where it explores a chain is cold"
    for name, figures in posterior.info["sample_stats"].items():
        assert figures.shape[:2] == (4, num_kept), f"{name} of a draw stands beside it"
    with double():
        place = np.array([schedule.factor(t, 1_000) for t in (0, 125, 249, 250)])
        assert not schedule.is_hot(180, 1_000)
        assert schedule.is_hot(190, 1_000)
    np.testing.assert_allclose(place, [1.0, 0.5, 0.5 * (np.cos(np.pi * 249 / 250) + 1), 1.0], atol=1e-12)


def test_a_cold_posterior_is_called_one():
    posterior = credo.fit(LINEAR.given(X, Y), credo.SGLD(temperature=0.1), key=5, progress=False)
    ratio = np.mean(posterior.sd()["w"] ** 2 / np.diag(COVARIANCE))
    assert 0.08 < ratio < 0.13
    assert posterior.verdict.figures["temperature_error"] < 0.2
    assert posterior.verdict.status == "doubtful"
    assert any("not the posterior" in sentence for sentence in posterior.verdict.sentences)


# the loop -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [credo.SGLD, pytest.param(credo.SGHMC, marks=pytest.mark.slow), credo.SGNHT])
def test_a_run_that_a_full_disk_stopped_is_resumed_bit_for_bit(method, tmp_path):
    target, settings = LINEAR.given(X, Y), {"chains": 2, "num_warmup": 20, "num_draws": 100, "batch_size": 10}
    whole = credo.fit(target, method(**settings), key=6, progress=False)
    folder = tmp_path / "run"
    with on_a_full_disk(folder, 3, phase=5):
        credo.fit(target, method(**settings), key=6, checkpoint=folder, progress=False)
    again = credo.resume(folder, target, progress=False)
    np.testing.assert_array_equal(positions_of(whole), positions_of(again))


def test_chains_begin_round_a_posterior_or_a_position():
    target = LINEAR.given(X, Y)
    laplace = credo.fit(target, credo.Laplace(), progress=False)
    for start in (laplace, {"w": MEAN}):
        posterior = credo.fit(target, credo.SGLD(num_draws=50, num_warmup=0), key=7, start=start, progress=False)
        first = positions_of(posterior)[:, 0]
        assert np.all(np.abs(first - MEAN) < 10 * np.sqrt(np.diag(COVARIANCE)))


def quartic():
    """A flat top and steep sides: the curvature at the mode says nothing of that a standard deviation away."""
    return credo.Model.from_log_density(
        lambda p: -0.25 * p["a"] ** 4 - 0.005 * p["a"] ** 2, {"a": dist.constraints.real}
    ).given()


def test_a_step_that_chains_run_away_with_is_halved_in_warm_up(tmp_path):
    settings = {"batch_size": None, "num_warmup": 100, "num_draws": 2_000, "num_steps": 20}
    target, start = quartic(), {"a": 0.0}
    posterior = credo.fit(target, credo.SGHMC(**settings), key=0, start=start, progress=False)
    assert posterior.info["step_size"] < 0.5 * np.sqrt(0.2)  # by the curvature at the mode
    variance = 2 * math.gamma(0.75) / math.gamma(0.25)  # of exp(−a⁴/4)
    assert abs(np.var(posterior.draws["a"]) / variance - 1) < 0.1
    with on_a_full_disk(tmp_path / "run", 1, phase=3):
        credo.fit(target, credo.SGHMC(**settings), key=0, start=start, checkpoint=tmp_path / "run", progress=False)
    again = credo.resume(tmp_path / "run", target, progress=False)
    np.testing.assert_array_equal(positions_of(again), positions_of(posterior))


@pytest.mark.parametrize(
    ("kernel", "power"),
    [(sgld, 2), (lambda d: sghmc(d, 1.0), 1), (lambda d: nose_hoover(d, 1.0), 1)],
    ids=["SGLD", "SGHMC", "SGNHT"],
)
def test_bounded_forces_bring_chains_back_from_where_steps_are_unstable(kernel, power):
    def last(most):
        with double():
            algorithm = kernel(dynamics(lambda key, u: -(u**3), 0.2, num_steps=400, most=most, power=power))
            state = algorithm.init(jax.random.key(0), jnp.full(2, 30.0))
            return jax.tree.map(np.asarray, jax.jit(algorithm.step)(jax.random.key(1), state))

    state, info = last(np.inf)
    assert not np.all(np.isfinite(state.position))
    state, info = last(10.0)
    assert np.all(np.abs(state.position) < 4.0)  # exp(−u⁴/4)
    assert 0 < info.bounded < 0.5


def test_bounded_forces_are_said():
    """The start is where nothing is curved, and warm-up too short to see what is round it."""
    method = credo.SGLD(batch_size=None, num_warmup=0, num_draws=500, num_steps=20)
    posterior = credo.fit(quartic(), method, key=0, start={"a": 0.0}, progress=False)
    assert posterior.info["sample_stats"]["bounded"].mean() > 1e-3
    assert any("forces were bounded" in sentence for sentence in posterior.verdict.sentences)


def test_what_chains_ran_away_with_is_not_found_again_and_draws_are_bounded():
    def after(positions, method):
        """Tunings at the ends of the windows, at the first of which the chain is where ``positions`` has it."""
        phases = warm_up(method, quartic().flat(), jax.random.key(0), first, lambda *_: (first, [begun]))
        tuning, states, found = first, [begun._replace(position=positions, count=np.int32(7))], []
        for phase in phases:
            tuning, states = phase.at_end(None, tuning, states)
            found.append(tuning)
        assert states[0].count == 7, "what begins anew is no earlier in its schedule"
        return found

    method = credo.SGHMC(batch_size=None, num_warmup=50)
    begun = method.like(np.array([1.0]))
    first = Tuning(
        np.ones(1), np.asarray(0.4), np.zeros(1), None, np.asarray(np.inf), np.asarray(1.0), np.zeros((2, 1))
    )
    with double():
        whole, lost = (after(np.array([place]), method) for place in (1.0, np.nan))
        given = after(np.array([1.0]), dataclasses.replace(method, step_size=0.4))
    assert lost[0].step_size == 0.2
    assert lost[1].step_size == pytest.approx(0.5 * whole[1].step_size)
    assert [float(tuning.most) for tuning in whole] == [*[np.inf] * 4, 10.0]
    assert given[-1].most == np.inf


def test_warm_up_measures_the_curvature_where_chains_are():
    positions = [np.array([value]) for value in (-1.0, 0.5, 2.0)]
    with double():
        found = measure_among(quartic().flat(), None, CurvatureScale(), jax.random.key(0), positions, np.zeros(1))
    curvatures = np.array([3 * u[0] ** 2 + 0.01 for u in positions])
    np.testing.assert_allclose(found.scale, np.prod(curvatures) ** (-1 / 6), rtol=1e-12)
    np.testing.assert_allclose(found.curvature, 1.0, rtol=1e-12)  # of the scaled density, in the geometric mean


def test_the_scale_is_right_in_any_units_and_one_where_there_is_no_curvature():
    """Beside columns with whose noise another's curvature cannot be told in one round of probes."""
    x = np.concatenate([X * [1.0, 1e-4], np.zeros((60, 3))], axis=1)
    model = credo.Model({"w": dist.Laplace(np.zeros(5), 1.0)}, lambda params, x: dist.Normal(x @ params["w"], 0.5))
    with double():
        u = np.zeros(5)
        found = measure_among(model.given(x, Y).flat(), None, CurvatureScale(), jax.random.key(0), [u], u)
    np.testing.assert_allclose(found.scale[:2], 0.5 / np.linalg.norm(x[:, :2], axis=0), rtol=0.2)
    np.testing.assert_array_equal(found.scale[2:], 1.0)


@pytest.mark.slow
def test_the_gradient_noise_of_weights_counts_in_the_mean():
    """The largest variance of a single one would rule the step; the sd of the noise is a coordinate like others."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(3, 20)), "v": rng.normal(size=20) / 4}
    network = credo.nn.BayesianNetwork(
        lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"], weights, head=credo.nn.Gaussian(dist.HalfNormal(0.1))
    )
    x = rng.normal(size=(200, 3))
    with double():
        target = shuffled(network.given(x, np.sin(x[:, 0])).flat(), 10, rng)
        u, key = np.asarray(target.unconstrain(network.start)), jax.random.key(0)
        found = measure_among(target, 10, CurvatureScale(), key, [u], u)
        gradient = stochastic_gradient(target, 10, None)
        gradients = jax.vmap(lambda key: gradient(key, u))(jax.random.split(jax.random.key(1), 4_000))
        variances = np.var(np.asarray(found.scale * gradients), axis=0)
    is_weight = weights_of(target)
    assert is_weight is not None
    assert np.sum(~is_weight) == 1
    expected = max(np.mean(variances[is_weight]), variances[~is_weight][0])
    assert expected < 0.5 * np.max(variances)
    assert abs(found.noise.largest / expected - 1) < 0.5  # of 64 gradients


def test_a_step_that_was_given_is_not_changed_but_ends_in_warm_up(tmp_path):
    method, folder = credo.SGHMC(batch_size=None, step_size=0.4, num_steps=20), tmp_path / "run"
    with pytest.raises(credo.CredoError, match=r"ran away to infinity with step size 0\.4"):
        credo.fit(quartic(), method, key=0, start={"a": 0.0}, progress=False, checkpoint=folder)
    assert list(folder.glob("draws-0-*"))
    assert not list(folder.glob("draws-5-*"))  # of sampling


def test_chains_begin_at_positions_of_their_own():
    starts = MEAN + 50.0 * np.arange(4)[:, None]
    target = LINEAR.given(X, Y)
    method = credo.SGLD(num_draws=4, num_warmup=0, num_steps=1, step_size=1e-6, batch_size=20)
    posterior = credo.fit(target, method, key=7, start=starts, progress=False)
    assert not posterior.info["has_control_variates"], "an anchor at one of them would add noise to the others"
    np.testing.assert_allclose(positions_of(posterior)[:, 0], starts, atol=10 * np.sqrt(np.max(COVARIANCE)))


def test_starts_that_are_wrong_are_said():
    target = LINEAR.given(X, Y)
    with pytest.raises(
        credo.CredoError, match=r"start has shape \(3, 2\): give one position, \(2,\), or 4 of them, \(4, 2\)"
    ):
        credo.fit(target, credo.SGHMC(), start=np.zeros((3, 2)), progress=False)
    with pytest.raises(credo.CredoError, match=r"start is not finite at w\[1\]"):
        credo.fit(target, credo.SGHMC(), start=np.array([0.0, np.nan]), progress=False)


# requests that cannot be answered -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (credo.SGLD(step_size=-1.0), "step_size is -1"),
        (credo.SGLD(temperature=0.0), "temperature is 0"),
        (credo.SGLD(temperature=np.inf), "temperature is inf"),
        (credo.SGLD(step_size=np.inf), "step_size is inf"),
        (credo.SGLD(batch_size=0), "batch_size is 0"),
        (credo.SGHMC(friction=0.0), "friction is 0"),
        (credo.SGNHT(diffusion=-1.0), "diffusion is -1"),
        (credo.SGLD(step_size=1e6, batch_size=None), "ran away to infinity"),
    ],
)
def test_wrong_settings_are_said(method, sentence):
    with pytest.raises(credo.CredoError, match=sentence):
        credo.fit(LINEAR.given(X, Y), method, progress=False)


def test_targets_without_minibatches_are_said():
    density = credo.Model.from_log_density(lambda p: -0.5 * jnp.sum(p["a"] ** 2), {"a": dist.constraints.real})
    with pytest.raises(credo.CredoError, match="batch_size=None"):
        credo.fit(density.given(), credo.SGLD(), progress=False)
    joint = credo.Model(
        {"a": dist.Normal(0.0, 1.0)}, lambda params, x: dist.MultivariateNormal(params["a"] * jnp.ones(9), np.eye(9))
    )
    with pytest.raises(credo.CredoError, match="joint"):
        credo.fit(joint.given(y=np.zeros(9)), credo.SGLD(batch_size=3), progress=False)
    with pytest.raises(credo.CredoError, match="0.5 < power"):
        Decaying(power=0.3)
    with pytest.raises(credo.CredoError, match="share in"):
        Cyclical(exploration=1.0)


def test_draws_are_kept_by_the_last_of_their_updates():
    cyclical = credo.SGLD(num_draws=8, schedule=Cyclical(cycles=2, exploration=0.5))
    kept, log_weights = cyclical._kept(3, 8)  # updates 2, 5, 8, 11 of a cycle of 12, of which the last six are hot
    np.testing.assert_array_equal(kept, [False, False, True, True] * 2)
    np.testing.assert_array_equal(log_weights, 0.0)
    kept, log_weights = credo.SGLD(num_draws=8, schedule=Decaying(power=1.0, offset=1.0))._kept(3, 5)
    np.testing.assert_array_equal(kept, np.ones(5))
    np.testing.assert_allclose(log_weights, -np.log1p(np.array([2, 5, 8, 11, 14]) / 24))


def test_a_schedule_that_keeps_no_draw_is_said():
    target = LINEAR.given(X, Y)
    short = credo.SGLD(num_draws=40, num_steps=2, schedule=Cyclical(cycles=30))
    with pytest.raises(credo.CredoError, match="keeps none of 40 draws"):
        credo.fit(target, short, progress=False)
    long = credo.SGLD(chains=1, num_draws=500_000, num_steps=100, schedule=Cyclical(cycles=1, exploration=0.99))
    with pytest.raises(credo.CredoError, match="came after .* of 500000 draws .* none: raise time_limit"):
        credo.fit(target, long, time_limit=4.0, progress=False)


def test_sds_that_do_not_exist_do_not_pass():
    """InverseGamma(1.5, 1.5) has a mean and no variance: of twelve fits ten passed, with sds from 4 to 490."""
    model = credo.Model({"v": dist.InverseGamma(1.0, 1.0)}, lambda params, x: dist.Normal(0.0, jnp.sqrt(params["v"])))
    target = model.given(y=np.array([1.0]))
    methods = [credo.SGLD(batch_size=None), credo.SGHMC(batch_size=None), credo.SGNHT(batch_size=None)]
    fits = [credo.fit(target, method, key=key, progress=False) for method in methods for key in range(2)]
    assert sum(fit.verdict.status == "pass" for fit in fits) <= 2  # that have hardly met the tail
    assert all("sd_error" in fit.verdict.figures for fit in fits)


@pytest.mark.parametrize("step_size", [1.0, 1.9])
def test_draws_of_sghmc_are_where_its_force_is_taken(step_size):
    """Of a normal density its law is exact at any step below 2; half a drift on the variance is 1 − h²/4 of that."""
    y = np.random.default_rng(0).normal(1.0, 2.0, size=1_000)
    model = credo.Model({"mean": dist.Normal(0.0, 100.0)}, lambda params, x: dist.Normal(params["mean"], 2.0))
    posterior = credo.fit(model.given(y=y), credo.SGHMC(step_size=step_size, batch_size=None), key=1, progress=False)
    assert float(posterior.sd()["mean"]) == pytest.approx(2 / np.sqrt(1_000), rel=0.05)


def test_a_thermostat_waits_while_a_cycle_explores():
    """Without noise its friction could only rise, and its draws were a tenth as wide."""
    y = np.random.default_rng(0).normal(1.0, 2.0, size=5_000)
    model = credo.Model({"mean": dist.Normal(0.0, 10.0)}, lambda params, x: dist.Normal(params["mean"], 2.0))
    method = credo.SGNHT(schedule=Cyclical(), num_draws=4_000, num_steps=10, control_variates=False)
    posterior = credo.fit(model.given(y=y), method, key=1, progress=False)
    assert float(posterior.sd()["mean"]) == pytest.approx(2 / np.sqrt(5_000), rel=0.15)


@pytest.mark.parametrize("T", [1.0, 0.25])
def test_each_term_of_the_bias_is_a_twentieth(T):
    """ε (λ + V / T) / 4 of Langevin's steps; h² λ / 4 and h V / (2 γ T) of Hamiltonian ones."""
    sgld, sghmc = credo.SGLD(temperature=T), credo.SGHMC(friction=3.0, temperature=T)
    assert sgld.best_step(5.0, noise(0.1)) * 5.0 / 4 == pytest.approx(0.05)
    assert sgld.best_step(5.0, noise(90.0)) * 90.0 / (4 * T) == pytest.approx(0.05)
    assert sghmc.best_step(5.0, noise(1e-3)) ** 2 * 5.0 / 4 == pytest.approx(0.05)
    assert sghmc.best_step(5.0, noise(90.0)) * 90.0 / (2 * 3.0 * T) == pytest.approx(0.05)


@pytest.mark.parametrize("mean", [9.0, 1.0])
def test_a_thermostat_takes_up_what_all_directions_have_of_the_noise(mean):
    """Friction A + h V̄ / 2 leaves T (A + h V / 2) / (A + h V̄ / 2) where the noise is V."""
    h, A = credo.SGNHT(diffusion=2.0).best_step(0.1, noise(9.0, mean)), 2.0
    share = (A + h * 9.0 / 2) / (A + h * mean / 2) - 1
    assert share == pytest.approx(0.05 if mean < 9 else 0.0)
    assert h * 9.0 / (2 * A) <= 1 + 1e-12


@pytest.mark.parametrize(("largest", "mean", "least"), [(1.05, 1.0, 0.0), (9.0, 9.0, 0.0), (3.0, 1.0, 0.5)])
def test_nor_is_a_direction_of_little_noise_cold(largest, mean, least):
    h = credo.SGNHT().best_step(0.1, noise(largest, mean, least))
    shares = [(1 + h * v / 2) / (1 + h * mean / 2) - 1 for v in (largest, least)]
    assert max(map(abs, shares)) == pytest.approx(0.05)


def test_a_direction_of_no_length_hides_no_other():
    """Where no curvature is, as of densities linear by pieces, its temperature is zero throughout."""
    rng = np.random.default_rng(0)
    directed = np.stack([2.0 + 0.2 * rng.normal(size=(4, 500)), np.zeros((4, 500))], axis=-1)
    assert _temperature_error(np.ones((4, 500)), directed, 3, 1.0) == pytest.approx(1.0, abs=0.1)


def skewed_noise(key, u):
    """Unit curvature, and noise of variance 20 in one direction of two, across both axes."""
    z = np.sqrt(20.0) * jax.random.normal(jax.random.fold_in(key, 7))
    return -(u - MEAN) + z * jnp.array([1.0, 1.0]) / np.sqrt(2)


def test_a_thermometer_along_a_direction_shows_what_the_mean_hides():
    """Of a thermostat: hot in one direction, cold in the other, and right in the mean."""
    across = np.array([[1.0, 1.0], [1.0, -1.0]]) / np.sqrt(2)
    with double():
        both = dataclasses.replace(dynamics(skewed_noise, 0.1, num_steps=20), directions=jnp.asarray(across))
        algorithm = nose_hoover(both, 1.0)

        @jax.jit
        def chain(key):
            def step(state, i):
                state, info = algorithm.step(jax.random.fold_in(key, i), state)
                return state, (state.position, info.temperature, info.directed)

            return jax.lax.scan(step, algorithm.init(key, jnp.asarray(MEAN)), jnp.arange(20_000))[1]

        positions, mean, directed = (np.asarray(each) for each in chain(jax.random.key(0)))
    expected = (1 + 0.1 * np.array([20.0, 0.0]) / 2) / (1 + 0.1 * 10.0 / 2)
    np.testing.assert_allclose(directed.mean(axis=0), expected, rtol=0.1)
    np.testing.assert_allclose(np.var((positions - MEAN) @ across.T, axis=0), expected, rtol=0.1)
    assert mean.mean() == pytest.approx(1.0, abs=0.05)
    error = _temperature_error(mean[None], directed[None], 2, 1.0)
    assert error == pytest.approx(1 / 3, abs=0.05)
    assert _temperature_error(mean[None], directed[None, :, :0], 2, 1.0) < 0.05


EVEN = 0.5 * np.ones((20, 20)) + 0.5 * np.eye(20)


@pytest.mark.parametrize(
    "method", [credo.SGNHT, *(pytest.param(each, marks=pytest.mark.slow) for each in (credo.SGHMC, credo.SGLD))]
)
def test_steps_are_right_where_the_noise_of_gradients_is(method):
    """Columns that are alike by half: nearly all of the noise lies along their sum, which no coordinate shows."""
    rng = np.random.default_rng(1)
    x = rng.multivariate_normal(np.zeros(20), EVEN, size=400)
    model = credo.Model({"b": dist.Normal(0.0, 5.0).expand([20])}, lambda p, x: dist.Normal(x @ p["b"], 1.0))
    target = model.given(x, x @ np.full(20, 0.3) + rng.normal(size=400))
    posterior = credo.fit(target, method(batch_size=16, num_draws=2_000), key=2, progress=False)
    along = np.ones(20) / 20
    expected = along @ np.linalg.solve(x.T @ x + np.eye(20) / 25, along)
    assert np.var(positions_of(posterior) @ along) == pytest.approx(expected, rel=0.2)
    given = method(batch_size=16, num_draws=2_000, step_size=6 * posterior.info["step_size"], num_steps=20)
    assert credo.fit(target, given, key=2, progress=False).verdict.figures["temperature_error"] > 0.1


def test_the_largest_noise_is_that_of_a_direction():
    rng = np.random.default_rng(0)
    direction = np.full(200, 200**-0.5)

    def found(spike: float) -> list[Noise]:
        with double():
            rows = rng.normal(size=(20, 64, 200)) + spike * rng.normal(size=(20, 64, 1)) * direction
            return [jax.tree.map(np.asarray, tune._of_gradients(jnp.asarray(each))) for each in rows]

    assert np.mean([each.largest for each in found(0.0)]) < 2, "along their own directions it were 5 and more"
    spiked = found(7.0)
    assert np.mean([each.largest for each in spiked]) == pytest.approx(50.0, rel=0.2)
    assert np.mean([each.mean for each in spiked]) == pytest.approx(1 + 49 / 200, rel=0.1)
    assert min(abs(each.direction @ direction) for each in spiked) > 0.8


def test_the_noise_that_an_anchor_leaves_is_seen_away_from_it():
    """At the anchor itself it leaves none."""
    target = credo.Model(LINEAR.prior, logistic).given(X, (Y > 0).astype(float)).flat()
    with double():
        data = shuffled(target, 10, np.random.default_rng(1))
        found = measure(data, 10, CurvatureScale(), jax.random.key_data(jax.random.key(0)), np.array([0.5, -1.0]))
    assert 1e-3 < found.anchored_noise.largest / found.noise.largest < 1


def test_chains_of_a_network_begin_where_gradients_lead(monkeypatch):
    """Second derivatives of all data took minutes before the first draw, and no draw was kept before."""

    def never(*_, **__):
        raise AssertionError("a search by second derivatives")

    monkeypatch.setattr("credo.methods.sgmcmc.tune.find_mode", never)
    params = {"w": np.ones((2, 3)), "v": np.ones((3, 1))}
    net = credo.nn.BayesianNetwork(lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"], params, head=credo.nn.Gaussian(0.5))
    target, key = net.given(X, Y).flat(), jax.random.key(0)
    with double():
        found = first_position(target, 20, key, None, Options())
        before, after = (float(target.log_density(jnp.asarray(u))) for u in (np.ones(target.dim), found))
    assert after > before + 50


def test_chains_do_not_begin_where_a_search_without_an_end_was_stopped():
    rising = credo.Model.from_log_density(lambda p: 0.5 * jnp.log1p(p["a"] ** 2), {"a": dist.constraints.real})
    with double():
        key = jax.random.key_data(jax.random.key(0))
        found = first_position(rising.given().flat(), None, key, None, Options())
    assert np.abs(found) < 10


def test_automatic_steps_are_shorter_for_a_cold_posterior():
    """The noise of gradients heats a chain by a share that grows as its temperature falls."""
    warm, cold = (
        credo.fit(
            LINEAR.given(X, Y), credo.SGLD(temperature=T, control_variates=False, batch_size=10, num_draws=20), key=1
        ).info["step_size"]
        for T in (1.0, 0.01)
    )
    assert cold < 0.1 * warm


@pytest.mark.parametrize("method", [credo.SGLD(), credo.SGHMC(), credo.SGNHT()], ids=["SGLD", "SGHMC", "SGNHT"])
def test_chains_that_all_begin_at_one_of_two_modes_do_not_pass(method):
    """They agree with each other, and the posterior of m is that of −m: its mean is 0, its sd 2."""
    model = credo.Model({"m": dist.Normal(0.0, 5.0)}, lambda params, x: dist.Normal(params["m"] ** 2, 1.0))
    posterior = credo.fit(model.given(y=np.array([4.0, 4.5, 3.9])), method, key=3, progress=False)
    assert posterior.sd()["m"] < 0.2
    assert posterior.verdict.figures["max_r_hat"] < 1.01
    assert posterior.verdict.status != "pass"


@pytest.mark.parametrize("schedule", [Constant(), Decaying()], ids=["evenly", "weighted"])
def test_chains_that_all_begin_at_one_of_two_modes_do_not_pass_in_more_dimensions(schedule):
    """One of them holds about half of the posterior, and neither is the other's mirror image."""
    prior = {"m": dist.Normal(0.0, 5.0), "rest": dist.Normal(0.0, 1.0).expand([12])}
    model = credo.Model(prior, lambda params, x: dist.Normal(params["m"] ** 2 + params["m"], 1.0))
    method = credo.SGLD(schedule=schedule, num_draws=4_000)
    posterior = credo.fit(model.given(y=np.array([4.0, 4.5, 3.9])), method, key=3, progress=False)
    assert isinstance(posterior.kind, Draws)
    assert (posterior.kind.log_weights is None) == (schedule == Constant())
    assert posterior.sd()["m"] < 0.3
    assert posterior.verdict.figures["max_r_hat"] < 1.01
    assert posterior.verdict.figures["mode_share"] > 0.3
    assert posterior.verdict.status == "failed"


@pytest.mark.parametrize("method", [credo.SGLD(), credo.SGHMC(), credo.SGNHT()], ids=["SGLD", "SGHMC", "SGNHT"])
def test_a_wide_part_that_no_chain_has_met_does_not_pass(method):
    """The sd is 9, and all chains say that it is 1."""
    parts = dist.Normal(0.0, np.array([1.0, 40.0]))
    law = dist.MixtureSameFamily(dist.Categorical(np.array([0.95, 0.05])), parts)
    target = credo.Model({"x": law}, lambda params, x: dist.Normal(params["x"], 1e4)).given(y=np.zeros(2))
    posterior = credo.fit(target, method, key=1, progress=False)
    assert posterior.sd()["x"] < 1.2
    assert posterior.verdict.figures["max_r_hat"] < 1.01
    assert posterior.verdict.figures["unmet_shift"] > 0.5
    assert posterior.verdict.status == "failed"
