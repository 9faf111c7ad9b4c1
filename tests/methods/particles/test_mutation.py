"""The moves leave every member of a path invariant, and keep out of where it is zero."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credo.algorithm import stream
from credo.linalg.dense import Dense
from credo.methods.particles.mutation import Kernel, Particles, begin, mutate
from credo.precision import double, to_numpy

pytestmark = pytest.mark.usefixtures("strict")

NUM = 10_000
MAX_Z = 5.0  # of 6 to 12 statistics a case: one false alarm in 140,000 cases
ROOT = np.array([[1.0, 0.0], [0.5, 0.7]])


class Curve(eqx.Module):
    """The part of a path that kernels see: log π_0 and ℓ."""

    base: object = eqx.field(static=True)
    gain: object = eqx.field(static=True)

    def draw(self, key):
        return jax.random.normal(key, (2,))

    def parts(self, u):
        return self.base(u), self.gain(u)


def standard(u):
    return -0.5 * jnp.sum(u * u)


def gumbel(u):  # skewed, so that a reversed sign shows
    return jnp.sum(-u - jnp.exp(-u))


def to_the_right(u):
    return 2.0 * u[0]


def nothing(u):
    return 0.0 * u[0]


def half(u):  # −inf on one side and NaN beyond
    return jnp.where(u[0] > 0, 0.0, jnp.where(u[0] > -1, -jnp.inf, jnp.nan))


def half_normal(rng):
    return np.abs(rng.normal(size=(NUM, 2))) * [1, 0] + rng.normal(size=(NUM, 2)) * [0, 1]


CASES = {
    "tilted": (standard, to_the_right, 0.5, lambda rng: rng.normal(size=(NUM, 2)) + np.array([1.0, 0.0])),
    "untilted": (standard, to_the_right, 0.0, lambda rng: rng.normal(size=(NUM, 2))),
    "skewed": (gumbel, nothing, 1.0, lambda rng: rng.gumbel(size=(NUM, 2))),
    "half": (standard, half, 1.0, half_normal),
    "half at the beginning": (standard, half, 0.0, half_normal),
}


def moved(curve, u, beta, *, num_moves=3, at_once=NUM, key=0):
    with double():
        start = Particles(u, np.zeros(len(u)), np.zeros(len(u)))
        kernel = Kernel(np.float64(beta), Dense(ROOT), np.float64(0.9), np.int32(2), np.int32(num_moves))
        data = stream(jax.random.key(key))
        return to_numpy(mutate(curve, start, kernel, data, at_once=at_once))


@pytest.mark.parametrize("case", list(CASES))
def test_moves_leave_their_law_invariant(case):
    base, gain, beta, draw = CASES[case]
    u = draw(np.random.default_rng(7))
    after, acceptance, _ = moved(Curve(base, gain), u, beta)
    assert 0.2 < acceptance < 1
    assert np.mean(np.abs(after.position - u) > 1e-9) > 0.5, "they move"
    truth = draw(np.random.default_rng(8))
    for statistic in (lambda x: x, lambda x: x**2, lambda x: x > 0.5):
        a, b = statistic(after.position) * 1.0, statistic(truth) * 1.0
        error = np.sqrt((a.var(axis=0) + b.var(axis=0)) / NUM) + 1e-12
        np.testing.assert_array_less(np.abs(a.mean(axis=0) - b.mean(axis=0)) / error, MAX_Z)
    np.testing.assert_allclose(after.log_base, jax.vmap(base)(after.position), rtol=1e-5)
    assert np.all(after.gain > -np.inf)


def test_particles_do_not_depend_on_how_many_are_moved_at_once():
    u = np.random.default_rng(1).normal(size=(50, 2))
    one, other = (moved(Curve(gumbel, to_the_right), u, 0.3, at_once=n).particles for n in (50, 7))
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


def test_islands_and_keys_have_draws_of_their_own():
    curve = Curve(standard, half)
    with double():
        first, second = (to_numpy(begin(curve, stream(jax.random.key(0), k), num=100, at_once=100)) for k in (0, 1))
    assert not np.any(first.position == second.position)
    undefined = first.position[:, 0] <= -1
    np.testing.assert_array_equal(np.isnan(first.gain), undefined)
    u = np.abs(np.random.default_rng(1).normal(size=(50, 2)))
    one, other = (moved(curve, u, 1.0, key=key).particles.position for key in (0, 1))
    assert np.mean(one == other) < 0.5, "but for those that were refused by both"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_moves_that_meet_an_undefined_density_are_counted(value):
    """On the line ℓ = 0 below 1 and undefined above: one step of 0.9 sees each end, whose law is known."""
    u = np.minimum(np.random.default_rng(3).normal(size=(NUM, 2)), 0.9)
    curve = Curve(standard, lambda u: jnp.where(u[0] > 1, value, 0.0))
    found = moved(curve, u, 1.0, num_moves=1)
    assert 0.02 < found.undefined < 0.5
    assert np.all(found.particles.position[:, 0] <= 1)
    assert np.all(np.isfinite(found.particles.gain))
    thrown = Curve(lambda u: -50.0 * jnp.sum(u**4), lambda u: jnp.where(jnp.abs(u[0]) > 1e3, value, 0.0))
    assert moved(thrown, u, 1.0, num_moves=1).undefined < 0.01, "a trajectory that has diverged may meet anything"


def test_a_particle_without_a_gradient_stands_still():
    curve = Curve(standard, lambda u: jnp.sqrt(u[0] - u[0]))  # 0, with the gradient inf · 0
    u = np.random.default_rng(1).normal(size=(20, 2))
    after, acceptance, _ = moved(curve, u, 1.0)
    assert acceptance == 0
    np.testing.assert_array_equal(after.position, u)
