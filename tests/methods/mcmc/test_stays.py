"""Modes that warm-up saw and the draws do not; draws of any tail, and chains on their way, are none."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints

import credo
from credo.methods.mcmc.stays import MOST, Stays, lost

RANDOM = np.random.default_rng(3)


def energy_of(x):
    """Of a Gaussian, with a momentum."""
    return 0.5 * np.sum(x**2, axis=-1) + RANDOM.chisquare(x.shape[-1], x.shape[:-1]) / 2


def seen(*places, energy, dim=1):
    """Stays of one chain in as many windows, the same in every coordinate."""
    stays = Stays.empty(1, dim, np.float64)
    for place in places:
        stays = stays.after(np.full((1, 9, dim), float(place)), np.full((1, 9), energy))
    return stays


@pytest.mark.parametrize(
    ("places", "dim", "is_lost"),
    [
        ((0.0, 10.0, 10.0, 0.0), 10, True),
        ((0.0, -9.0, -12.0, 0.0), 10, True),
        ((10.0, 10.0, 0.0, 0.0), 10, False),  # from its start
        ((0.0, 10.0, 0.0, 10.0), 10, False),
        ((0.0, 10.0, -10.0, 0.0), 10, False),  # on its way
        ((0.0, 5.0, 5.0, 0.0), 10, False),
        ((0.0, 10.0, 0.0, 0.0), 1, True),  # where energies vary little
        ((10.0, 0.0, 0.0, 0.0), 1, False),
        ((0.0, 5.0, 0.0, 0.0), 1, False),
    ],
)
def test_a_place_far_from_all_draws_is_lost_where_it_is_as_likely(places, dim, is_lost):
    x = RANDOM.normal(size=(4, 500, dim))
    energy = energy_of(x)
    assert lost(seen(*places, energy=np.median(energy), dim=dim), x, energy) == [is_lost]
    assert not lost(seen(*places, energy=np.median(energy) + 20.0, dim=dim), x, energy)


@pytest.mark.parametrize(("above", "is_lost"), [(0.66, True), (0.70, False)])
def test_a_place_is_as_likely_up_to_two_sds_of_the_energy(above, is_lost):
    """Energies uniform on (0, 1): half of what is between their 16th and 84th part is 0.34, and twice that 0.68."""
    energy = np.linspace(0.0, 1.0, 2_000).reshape(4, 500)
    stays = seen(0.0, 10.0, 0.0, 0.0, energy=0.5 + above)
    assert lost(stays, RANDOM.normal(size=(4, 500, 1)), energy) == [is_lost]


@pytest.mark.parametrize(
    ("dim", "below", "is_lost"), [(1, 25.0, True), (1, 35.0, False), (4_000, 60.0, True), (4_000, 180.0, False)]
)
def test_a_place_of_far_less_energy_is_on_the_way(dim, below, is_lost):
    """Of 5,003 parameters of a volatility, half the fits were doubtful for chains that had not filled their volume."""
    x = RANDOM.normal(size=(4, 100, dim))
    energy = energy_of(x)
    stays = seen(0.0, 12.0, 12.0, 0.0, energy=np.median(energy) - below, dim=dim)
    assert lost(stays, x, energy) == [is_lost]


def test_a_place_is_far_by_the_draws_of_all_chains_and_lost_to_one():
    """The first chain is narrow, and the third was in the other mode."""
    x = RANDOM.normal(size=(4, 500, 1)) * np.array([0.001, 1.0, 1.0, 1.0])[:, None, None]
    for place, third in ((10.0, True), (4.5, False)):
        stays = Stays.empty(4, 1, np.float64)
        for at in (0.0, place, place, 0.0):
            stays = stays.after(np.full((4, 9, 1), np.array([0.0, 0.0, at, 0.0])[:, None, None]), np.zeros((4, 9)))
        np.testing.assert_array_equal(lost(stays, x, np.zeros((4, 500))), [False, False, third, False])


def test_of_large_posteriors_no_stays_are_kept():
    assert Stays.empty(4, 62_500, np.float32).position.size == MOST
    assert Stays.empty(4, 62_501, np.float32) is None


def test_windows_that_are_not_over_say_nothing():
    x = RANDOM.normal(size=(4, 500, 1))
    assert not lost(Stays.empty(4, 1, np.float64), x, energy_of(x)).any()
    assert not lost(seen(5.0, 5.0, 5.0, energy=0.0), np.ones((4, 500, 1)), energy_of(x)).any()  # no width, no distance


def test_the_median_of_a_window_is_kept():
    x = np.concatenate([np.full((2, 6, 3), -1.0), np.full((2, 5, 3), 4.0)], axis=1)
    stays = Stays.empty(2, 3, np.float64).after(x, x[..., 0])
    assert np.all(stays.position[-1] == -1.0)
    assert np.all(stays.energy[-1] == -1.0)
    assert np.all(np.isnan(stays.position[:-1]))


@pytest.mark.parametrize("tail", ["normal", "exponential", "standard_cauchy"])
def test_more_draws_of_the_same_are_seldom_lost(tail):
    """Even where a chain stands still at a draw for all of warm-up."""
    found = 0
    for _ in range(500):
        x = getattr(RANDOM, tail)(size=(4, 1_000, 1))
        place = np.repeat(getattr(RANDOM, tail)(size=(4, 1, 1)), 9, axis=1)
        stays = Stays.empty(4, 1, np.float64)
        for _ in range(7):
            stays = stays.after(place, np.zeros((4, 9)))
        found += lost(stays, x, np.zeros((4, 1_000))).any()
    assert found <= 1


def two_modes(params):
    return jnp.logaddexp(-0.5 * (params["x"] + 5) ** 2, jnp.log(2.0) - 0.5 * (params["x"] - 5) ** 2)


@pytest.mark.slow
def test_chains_that_leapt_to_one_mode_do_not_pass():
    """One key in thirty: all four end in one mode, after some stayed in the other for windows of warm-up."""
    target = credo.Model.from_log_density(two_modes, {"x": constraints.real}, {"x": ()}).given()
    num_agreeing = 0
    for key in range(100):
        verdict = credo.fit(target, credo.NUTS(), key=key, progress=False).verdict
        assert verdict.status != "pass"
        num_agreeing += verdict.figures["max_r_hat"] <= 1.01
    assert num_agreeing > 0, "nothing was tested: raise the number of keys"
