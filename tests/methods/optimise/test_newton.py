"""The maximiser: it finds modes from bad starts, leaves saddles, and knows when it has not found one."""

import time

import jax.numpy as jnp
import numpy as np
import pytest

from credo.methods.optimise.newton import Status, maximise
from credo.methods.optimise.spectrum import Spectrum
from credo.methods.optimise.subproblem import ConjugateGradients, Dense
from credo.precision import double

SOLVERS = {"dense": Dense(2), "products": ConjugateGradients()}


def rosenbrock(args, u):
    return -100 * (u[1] - u[0] ** 2) ** 2 - (1 - u[0]) ** 2


def cauchy(args, u):
    return -jnp.sum(jnp.log1p((u - args) ** 2))


def overflowing(args, u):
    return jnp.sum(args * u - jnp.exp(u))


def quartic(args, u):
    return -jnp.sum(u**4)


def far(args, u):
    return -0.5 * jnp.sum((u - args) ** 2)


def double_well(args, u):
    return -0.5 * u[0] ** 2 + 0.5 * u[1] ** 2 - 0.25 * u[1] ** 4


def quadratic(args, u):
    """Curvatures from 1 to 10¹²."""
    return -0.5 * jnp.sum(jnp.array([1.0, 1e6, 1e12]) * (u - args) ** 2)


def spectrum(args, u):
    return -0.5 * jnp.sum(args * u**2)


PROBLEMS = {
    "banana": (rosenbrock, None, [-1.2, 1.0], [1.0, 1.0], 1e-9),
    "far, where the density is not concave": (cauchy, np.array([1e3, -1e3, 0.0]), [0.1] * 3, [1e3, -1e3, 0.0], 1e-7),
    "overflow on the way": (overflowing, np.array([1e-3, 1e3]), [5.0, -20.0], np.log([1e-3, 1e3]), 1e-9),
    "no curvature at the mode": (quartic, None, [1.0, 2.0], [0.0, 0.0], 1e-4),
}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_finds_the_mode(name, solver):
    objective, args, start, mode, tolerance = PROBLEMS[name]
    with double():
        optimum = maximise(objective, args, np.array(start), SOLVERS[solver])
    assert optimum.status is Status.CONVERGED
    assert optimum.gradient_norm <= 1e-10
    np.testing.assert_allclose(optimum.position, mode, atol=tolerance)


def chained(args, u):
    """A curved valley in 30 dimensions: hundreds of steps, none of which gains much."""
    return -jnp.sum(args * (u[1:] - u[:-1] ** 2) ** 2 + (1 - u[:-1]) ** 2)


def kinked(args, u):
    return -0.5 * jnp.sum(u**2) - 10.0 * jnp.sum(jnp.abs(args @ u - 1.0))


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_curved_valley_is_followed_to_its_end(solver):
    with double():
        optimum = maximise(chained, 1e4, -np.ones(30), SOLVERS[solver], max_steps=1_000)
    assert optimum.status is Status.CONVERGED
    assert optimum.num_hessians > 100
    np.testing.assert_allclose(optimum.position, 1.0, atol=1e-8)


def test_no_creeping_along_kinks():
    """Second derivatives promise hundreds of nats that no step of theirs brings."""
    with double():
        optimum = maximise(kinked, np.random.default_rng(0).normal(size=(60, 30)), np.ones(30), Dense(30))
    assert optimum.status is Status.CREEPING
    assert not optimum.status.is_converged
    assert optimum.num_hessians < 80  # 136 until rounding ends it
    assert optimum.value > -331.9  # of -331.878 there


def smoothed(args, u):
    """Without kinks, but with all curvature in narrow strips."""
    return -jnp.sum(jnp.sqrt(1e-4 + (args @ u - 1.0) ** 2))


def saturated(args, u):
    """Logits of thousands: hardly any curvature is left, and a decrement promises 1e11 nats."""
    return -jnp.sum(jnp.logaddexp(0.0, -args @ u)) - 0.5 * jnp.sum(u**2)


def test_creeping_is_told_from_a_long_way():
    random = np.random.default_rng(5)
    tight, wide = random.normal(size=(60, 30)), random.normal(50_000, 15_000, size=(200, 4)) * [1.0, -1.0, 1.0, -1.0]
    wide *= np.where(random.uniform(size=(200, 1)) < 0.3, -1.0, 1.0)
    with double():
        for objective, rows, start in ((smoothed, tight, np.ones(30)), (saturated, wide, np.ones(4))):
            optimum = maximise(objective, rows, start, Dense(30))
            assert optimum.status is Status.CONVERGED
            assert optimum.num_hessians > 25


@pytest.mark.parametrize("name", PROBLEMS)
def test_products_that_a_clock_counts_come_to_the_same(name):
    objective, args, start, *_ = PROBLEMS[name]
    with double():
        free, counted = (
            maximise(objective, args, np.array(start), ConjugateGradients(deadline=deadline))
            for deadline in (np.inf, time.monotonic() + 1e6)
        )
    assert free.num_products == counted.num_products
    np.testing.assert_array_equal(free.position, counted.position)


def test_a_step_ends_at_its_deadline():
    """Of 100 curvatures all different, whose step takes about as many products."""
    args = np.logspace(0, 4, 100)
    with double():
        cut = ConjugateGradients(deadline=time.monotonic()).evaluate(spectrum, args, np.ones(100), -np.inf, None)
        whole = ConjugateGradients().evaluate(spectrum, args, np.ones(100), -np.inf, None)
        optimum = maximise(spectrum, args, np.ones(100), ConjugateGradients(deadline=0.0), deadline=0.0)
    assert cut.num_products == 1 < whole.num_products
    assert optimum.status is Status.TIME
    assert np.isfinite(optimum.value)


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_no_step_leads_farther_than_it_may(solver):
    """Of −(u − 50)²/2 the first step would be the last."""
    path = [maximise(far, 50.0, np.zeros(2), solver, max_steps=k, longest=20.0).position[0] for k in range(12)]
    assert np.max(np.diff(path)) <= 20.0
    assert path[-1] == pytest.approx(50.0)


def test_units_do_not_matter():
    with double():
        optimum = maximise(quadratic, np.array([1e6, 1.0, 1e-6]), np.zeros(3), SOLVERS["dense"])
    assert optimum.num_gradients == 2, "a quadratic takes one step"
    np.testing.assert_allclose(optimum.position, [1e6, 1.0, 1e-6], rtol=1e-12)


def test_leaves_a_saddle_where_the_gradient_is_zero():
    with double():
        optimum = maximise(double_well, None, np.zeros(2), SOLVERS["dense"])
    assert optimum.status is Status.CONVERGED
    np.testing.assert_allclose(np.abs(optimum.position), [0.0, 1.0], atol=1e-9)


def test_gradient_norm_is_the_distance_in_standard_deviations():
    with double():
        optimum = maximise(quadratic, np.zeros(3), np.array([3.0, 4e-3, 0.0]), SOLVERS["dense"], max_steps=0)
    assert optimum.status is Status.MAX_STEPS
    np.testing.assert_allclose(optimum.gradient_norm, 5.0, rtol=1e-12)


def test_start_that_is_not_finite_is_refused():
    with double():
        assert maximise(overflowing, np.ones(1), np.array([800.0]), SOLVERS["dense"]) is None


@pytest.mark.parametrize("scale", [1.0, 1e8])
def test_spectrum_tells_flat_from_precise_and_negative(scale):
    units = np.array([1.0, scale, 1 / scale])
    cases = {1e-3: 1, 0.0: 0, -1e-3: -1}
    for eigenvalue, sign in cases.items():
        Q = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
        A = (Q * [eigenvalue, 1.0, 2.0]) @ Q.T * np.outer(units, units)
        spectrum = Spectrum(A, np.finfo(float).eps)
        assert np.sign(spectrum.smallest[0]) == sign
        assert spectrum.is_positive == (sign > 0)
        assert np.all(np.linalg.eigvalsh(spectrum.safe() / np.outer(units, units)) > 0)
