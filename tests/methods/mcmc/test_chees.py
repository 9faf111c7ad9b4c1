"""ChEES-HMC: its sequence, its gradient, the length it finds, and chains that do equal work."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints

import credo
from credo.crew import choose_layout
from credo.linalg.diagonal import Diagonal
from credo.methods.mcmc import DiagonalMetric
from credo.methods.mcmc.chees import chees, van_der_corput
from credo.methods.mcmc.cross_chain import longer, windows
from credo.methods.mcmc.integrators import LEAPFROG, MINIMUM_ERROR
from credo.methods.mcmc.noise import start_of_transition
from credo.methods.mcmc.reference import LONGEST
from credo.precision import double, to_numpy
from densities import Density, gumbel
from targets import TARGETS


def test_van_der_corput():
    n = np.arange(1, 4097, dtype=np.int32)
    with double():
        found = np.asarray(jax.vmap(lambda n: van_der_corput(n, jnp.float64))(n))
    np.testing.assert_array_equal(found[:7], [0.5, 0.25, 0.75, 0.125, 0.625, 0.375, 0.875])
    np.testing.assert_array_equal(np.sort(found[:-1]), np.arange(1, 4096) / 4096)


@pytest.mark.usefixtures("strict")
def test_length_gradient_is_the_derivative_of_the_gain():
    """By central differences, of trajectories whose steps are so small that they are those of continuous time."""
    centre, start, step_size, length = np.array([0.3, 0.8]), np.array([-0.5, 2.0]), 1e-3, 2.2
    with double():

        @jax.jit
        def info(length):
            algorithm = chees(
                Density(gumbel),
                step_size=step_size,
                length=length,
                centre=jnp.asarray(centre),
                metric=Diagonal(np.array([0.7, 1.6])),
                max_num_steps=10_000,
            )
            key = jax.random.wrap_key_data(np.array([1, 2], np.uint32))
            return algorithm.step(key, algorithm.init(key, jnp.asarray(start)))[1]

        steps = 2 * step_size * 50  # the first step goes half the length
        low, middle, high = (to_numpy(info(length + d)) for d in (-steps, 0.0, steps))
    slope = (high.length_gain - low.length_gain) / (np.log(length + steps) - np.log(length - steps))
    assert int(middle.num_steps) == round(0.5 * length / step_size)
    np.testing.assert_allclose(middle.length_gradient, slope, rtol=0.01)


@pytest.mark.usefixtures("strict")
def test_energies_at_both_ends():
    """Of small steps the energy stays: α is 1 but for O(ε²), a quarter as far off at half the step."""
    start, key = np.array([0.1, 0.4]), jax.random.wrap_key_data(np.array([1, 2], np.uint32))
    with double():
        momentum = np.asarray(start_of_transition(key, 2, (), np.float64)[0])
        infos = []
        for step_size in (0.02, 0.01):
            algorithm = chees(Density(gumbel), step_size=step_size, length=2.2, max_num_steps=1_000)
            infos.append(algorithm.step(key, algorithm.init(key, jnp.asarray(start)))[1])
    for info in infos:
        np.testing.assert_allclose(info.energy, 0.5 * np.sum(momentum**2) + np.sum(start + np.exp(-start)), rtol=1e-12)
    wide, narrow = (1 - float(info.acceptance) for info in infos)
    assert 0 < narrow < 1e-4
    np.testing.assert_allclose(wide / narrow, 4, rtol=0.05)


def isotropic(params):
    return -0.5 * jnp.sum(params["x"] ** 2)


def test_length_of_a_gaussian():
    """The gain of h T, h uniform, is largest at T = 2.25 (tan 2T = 2T), and that for its price at 1.2."""
    model = credo.Model.from_log_density(isotropic, {"x": constraints.real}, {"x": (20,)})
    posterior = credo.fit(model.given(), credo.ChEES(num_draws=100, integrator=LEAPFROG), key=0, progress=False)
    assert 1.0 < posterior.info["trajectory_length"] < 3.0


def test_a_gaussian_takes_a_step_a_draw_and_no_length_below_it():
    model = credo.Model.from_log_density(isotropic, {"x": constraints.real}, {"x": (20,)})
    posterior = credo.fit(model.given(), credo.ChEES(), key=0, progress=False)
    assert posterior.info["num_gradients_useful"] == 16 * 500
    assert LONGEST - 0.1 < posterior.info["trajectory_length"] < 3.0
    assert posterior.verdict.figures["min_ess_bulk"] > 8_000
    np.testing.assert_allclose(posterior.sd()["x"], 1.0, rtol=0.05)


def test_length_where_scales_differ():
    """A diagonal metric cannot undo a rotation: the widest direction asks for a longer way."""
    target = TARGETS["ill_conditioned"]().target
    posterior = credo.fit(target, credo.ChEES(metric=DiagonalMetric()), key=0, progress=False)
    assert posterior.info["trajectory_length"] > 2.5
    assert posterior.verdict.figures["max_r_hat"] < 1.02


def test_length_stays_where_nothing_is_known():
    class Nothing:
        acceptance = np.zeros((4, 8))
        step_size = np.ones((4, 8))
        length_gain = np.full((4, 8), np.nan)
        length_gradient = np.full((4, 8), np.nan)

    assert longer(np.float64(1.5), Nothing, 1.0) == 1.5


@pytest.mark.parametrize(("length", "shorter"), [(1.0, 0.5), (0.3, 0.25)])
def test_a_gain_that_any_length_has_is_had_for_less_down_to_a_step(length, shorter):
    class Constant:
        acceptance = np.ones((4, 8))
        step_size = np.full((4, 8), 0.25)
        length_gain = np.ones((4, 8))
        length_gradient = np.zeros((4, 8))

    assert longer(np.float64(length), Constant, 1.0) == pytest.approx(shorter)
    assert longer(np.float64(length), Constant, 0.0) == length


def test_gradients_are_counted_of_an_integrator_of_two_a_step():
    with double():
        algorithm = chees(Density(gumbel), step_size=0.25, length=2.0, integrator=MINIMUM_ERROR)
        key = jax.random.wrap_key_data(np.array([1, 2], np.uint32))
        info = algorithm.step(key, algorithm.init(key, jnp.zeros(2)))[1]
    assert int(info.num_steps) == 2 * 4  # the first trajectory has half the length


@pytest.mark.parametrize("num_warmup", [1, 8, 20, 200, 1000])
def test_windows(num_warmup):
    lengths = windows(num_warmup)
    assert sum(lengths) == num_warmup
    assert all(lengths)


def test_layouts_agree_and_chains_do_equal_work():
    """The same keys: without warm-up, trajectories part only as rounding grows."""
    target, method = TARGETS["gaussian"]().target, credo.ChEES(chains=8, num_warmup=0, num_draws=10)
    fits = [credo.fit(target, method, key=2, layout=layout, progress=False) for layout in ("vectorized", None)]
    assert [fit.info["layout"] for fit in fits] == ["vectorized", choose_layout(method.chains)]
    np.testing.assert_allclose(fits[0].kind.positions, fits[1].kind.positions, rtol=1e-6, atol=1e-8)
    assert fits[0].info["num_gradients_executed"] == fits[0].info["num_gradients"]
