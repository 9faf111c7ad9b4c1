"""Divergences have a place, and funnels a name and a remedy."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import credo
from credo.diagnose.curve import MAX_DRAWS, curve, curve_sentence
from credo.diagnose.geometry import (
    _shares_below,
    funnel,
    funnel_sentence,
    persistent_divergences,
    place_of_divergences,
    sentences,
)
from targets import TARGETS

SCHOOLS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
TOP = {"mu": dist.Normal(0.0, 5.0), "tau": dist.HalfCauchy(5.0)}
CENTRED = credo.Model(
    {**TOP, "theta": lambda mu, tau: dist.Normal(mu, tau).expand([8])}, lambda p, x: dist.Normal(p["theta"], x)
)
NON_CENTRED = credo.Model(
    {**TOP, "z": dist.Normal(0.0, 1.0).expand([8])}, lambda p, x: dist.Normal(p["mu"] + p["tau"] * p["z"], x)
)
TARGET = CENTRED.given(ERRORS, SCHOOLS)
STRUCTURE = TARGET.structure  # mu, tau, theta[0] … theta[7]


def positions(rng, num_draws=1_000):
    return rng.normal(size=(4, num_draws, 10))


def test_ties_lie_half_below_each_other():
    x = np.array([[1.0, 5.0], [2.0, 5.0], [2.0, 5.0], [3.0, 5.0]])
    found = _shares_below(x, np.array([True, True, False, True]))
    np.testing.assert_allclose(found, [[0.125, 0.5], [0.5, 0.5], [0.875, 0.5]])
    np.testing.assert_array_equal(x[:, 0], [1.0, 2.0, 2.0, 3.0])


def test_divergences_are_found_where_they_gather():
    rng = np.random.default_rng(1)
    u = positions(rng)
    place = place_of_divergences(u, u[..., 1] < -1.5, STRUCTURE)
    assert (place.name, place.is_low) == ("tau", True)
    assert place.share == pytest.approx(0.067, abs=0.02)
    place = place_of_divergences(u, (u[..., 4] > 1) & (rng.uniform(size=u.shape[:2]) < 0.1), STRUCTURE)
    assert (place.name, place.is_low) == ("theta[2]", False)


def test_divergences_anywhere_have_no_place():
    """Ten coordinates and four errors: a false alarm once in 1,600."""
    rng = np.random.default_rng(2)
    for share in (0.001, 0.01, 0.3):
        u = positions(rng)
        assert place_of_divergences(u, rng.uniform(size=u.shape[:2]) < share, STRUCTURE) is None
    assert place_of_divergences(u, np.zeros(u.shape[:2], bool), STRUCTURE) is None
    assert place_of_divergences(u, np.ones(u.shape[:2], bool), STRUCTURE) is None


@pytest.mark.parametrize("num_draws", [500, 3 * MAX_DRAWS])
def test_a_funnel_is_named_whichever_way_it_opens(num_draws):
    u = positions(np.random.default_rng(3), num_draws)
    assert funnel(u, STRUCTURE) is None
    open_up = u.copy()
    open_up[..., 2:] = u[..., :1] + np.exp(0.7 * u[..., 1:2]) * u[..., 2:]
    scale, name, correlation = funnel(open_up, STRUCTURE)
    assert (scale, name) == ("tau", "theta")
    assert correlation > 0.7
    assert "non-centred" in funnel_sentence((scale, name, correlation))
    close = u.copy()
    close[..., 2:] = np.exp(-u[..., 1:2]) * u[..., 2:]
    scale, name, correlation = funnel(close, STRUCTURE)
    assert (scale, name) == ("tau", "theta")
    assert "inverted funnel" in funnel_sentence((scale, name, correlation))


def test_components_in_either_order_are_no_funnel():
    """Two means whose order decides which side of the median they are on, and how large the share of the first is."""
    rng = np.random.default_rng(8)
    model = credo.Model({"share": dist.Beta(2.0, 2.0), "mean": dist.Normal(0.0, 9.0).expand([2])}, None)
    swapped = rng.uniform(size=(4, 1_000, 1)) < 0.45
    means = np.where(swapped, [9.0, -1.0], [-1.0, 9.0]) + 0.1 * rng.normal(size=(4, 1_000, 2))
    u = np.concatenate([np.where(swapped, -1.0, 1.0) + 0.1 * rng.normal(size=(4, 1_000, 1)), means], axis=-1)
    assert funnel(u, model.given().structure) is None
    u[..., 1:] = np.exp(u[..., :1]) * rng.normal(size=(4, 1_000, 2))
    assert funnel(u, model.given().structure)[:2] == ("share", "mean")


def ab(rng, b_given_a) -> np.ndarray:
    """Draws (4, 1,000, 2) of a ~ N(0, 1) and b, which is ``b_given_a``."""
    a = rng.normal(size=(4, 1_000))
    return np.stack([a, b_given_a(a)], axis=-1)


BANANA = credo.Model(
    {"a": dist.Normal(0.0, 1.0), "b": dist.Normal(0.0, 10.0)}, lambda p, x: dist.Normal(p["b"] - p["a"] ** 2, 0.05)
).given(np.zeros((1, 1)), np.zeros(1))
AB = credo.Model({"a": dist.Normal(0.0, 1.0), "b": dist.Normal(0.0, 9.0)}, None).given().structure


def test_a_ridge_that_bends_is_no_funnel():
    rng = np.random.default_rng(10)
    banana = ab(rng, lambda a: a**2 + 0.1 * rng.normal(size=a.shape))
    assert funnel(banana, AB) is None
    assert curve(banana, AB) == ("b", "a")
    mouth = ab(rng, lambda a: np.exp(3 * a) * rng.normal(size=a.shape))
    assert funnel(mouth, AB)[:2] == ("a", "b")


def test_lines_and_clusters_are_no_curves():
    rng = np.random.default_rng(11)
    for noise in (1e-6, 0.1, 3.0):
        line = ab(rng, lambda a, noise=noise: 2 * a + noise * rng.normal(size=a.shape))
        assert curve(line, AB) is None
        assert curve((1e4 + line).astype(np.float32), AB) is None
    heavy = rng.standard_t(2, size=(4, 1_000, 2)) @ np.array([[1.0, 0.8], [0.0, 0.6]])
    assert curve(heavy, AB) is None
    corners = np.array([[-9.0, 0.0], [0.0, 9.0], [9.0, 0.0]])[rng.integers(3, size=(4, 1_000))]
    assert curve(corners + rng.normal(size=(4, 1_000, 2)), AB) is None


def test_chains_in_modes_of_their_own_lie_along_no_curve():
    """Sorted by any coordinate without a gap, the parts would each belong to one chain."""
    rng = np.random.default_rng(12)
    for _ in range(20):
        apart = 6.0 * rng.normal(size=(4, 1, 10)) + rng.normal(size=(4, 1_000, 10))
        assert curve(apart, STRUCTURE) is None


def test_draws_that_say_nothing_are_no_funnel():
    u = positions(np.random.default_rng(4), 50)
    u[..., 1] = 0.0
    assert funnel(u, STRUCTURE) is None
    u[0, 0, 5] = np.nan
    assert funnel(u, STRUCTURE) is None
    assert sentences(u[:, :2], None, TARGET) == []
    u[..., 5] = 0.0
    assert curve(u, STRUCTURE) is None


def test_the_verdict_of_a_funnel_names_the_form_to_try():
    said = {
        name: " ".join(credo.fit(target, credo.NUTS(num_draws=500), key=1, progress=False).verdict.sentences)
        for name, target in {
            "centred": CENTRED.given(ERRORS, SCHOOLS),
            "funnel": TARGETS["funnel"]().target,
            "banana": BANANA,
            "too much data": NON_CENTRED.given(ERRORS / 100, SCHOOLS),
            "right": NON_CENTRED.given(ERRORS, SCHOOLS),
        }.items()
    }
    assert "theta spreads as tau grows: a funnel" in said["centred"]
    assert "x spreads as v grows: a funnel" in said["funnel"]
    assert "z narrows as tau grows: an inverted funnel" in said["too much data"]
    assert "b follows a along a curve" in said["banana"]
    assert "raise target_acceptance" in said["banana"]
    assert "target_acceptance" not in curve_sentence("b", "a", has_steps=False)
    assert all("funnel" not in said[name] for name in ("right", "banana"))


@pytest.mark.parametrize("scale", ["sd", "variance", "precision", "log"])
@pytest.mark.parametrize("form", ["centred", "non-centred"])
def test_the_form_to_try_whatever_the_scale_is_given_by(scale, form):
    """The sign alone told a model with a precision to take the form that it had."""
    prior, sd = {
        "sd": (dist.HalfCauchy(5.0), lambda tau: tau),
        "variance": (dist.InverseGamma(0.5, 0.5), lambda tau: tau**0.5),
        "precision": (dist.Gamma(0.5, 0.5), lambda tau: tau**-0.5),
        "log": (dist.Normal(0.0, 1.5), jnp.exp),
    }[scale]
    top = {"mu": dist.Normal(0.0, 5.0), "tau": prior}
    if form == "centred":
        bottom = {"theta": lambda mu, tau: dist.Normal(mu, sd(tau)).expand([8])}
        model = credo.Model(top | bottom, lambda p, x: dist.Normal(p["theta"], x))
        name, target, expected = "theta", model.given(ERRORS, SCHOOLS), "the non-centred form"
    else:
        bottom = {"z": dist.Normal(0.0, 1.0).expand([8])}
        model = credo.Model(top | bottom, lambda p, x: dist.Normal(p["mu"] + sd(p["tau"]) * p["z"], x))
        name, target, expected = "z", model.given(ERRORS / 100, SCHOOLS), "an inverted funnel"
    u = positions(np.random.default_rng(6))
    sign = (-1 if scale == "precision" else 1) * (1 if form == "centred" else -1)
    u[..., 2:] = np.exp(sign * u[..., 1:2]) * u[..., 2:]
    (said,) = sentences(u, None, target)
    assert said.startswith(f"{name} {'spreads' if sign > 0 else 'narrows'} as tau grows: ")
    assert expected in said


def test_of_a_bare_log_density_the_sign_tells():
    def log_density(p):
        return -0.5 * jnp.sum(p["theta"] ** 2) * p["tau"] - p["tau"]

    supports = {"mu": constraints.real, "tau": constraints.positive, "theta": constraints.real}
    target = credo.Model.from_log_density(log_density, supports, {"theta": (8,)}).given()
    u = positions(np.random.default_rng(7))
    u[..., 2:] = np.exp(-u[..., 1:2]) * u[..., 2:]
    (said,) = sentences(u, None, target)
    assert "if tau is a precision that theta has in its prior, take the non-centred form" in said


def test_stray_divergences_are_forgiven_and_persistent_ones_are_not():
    rng = np.random.default_rng(5)
    u = positions(rng)
    few = np.zeros(u.shape[:2], bool)
    few[0, 10] = few[2, 700] = True
    assert persistent_divergences(u, few, STRUCTURE) == 0
    few[:, ::400] = True
    assert persistent_divergences(u, few, STRUCTURE) == few.sum()  # more than one in a thousand
    few[:] = False
    few[0, 10] = True
    u[..., 2:] = u[..., :1] + np.exp(0.7 * u[..., 1:2]) * u[..., 2:]
    assert persistent_divergences(u, few, STRUCTURE) == 1  # in a funnel


def test_a_place_is_where_less_than_half_of_the_draws_are():
    """Of a thousand divergences a slight preference is certain, and no place that anybody could look at."""
    rng = np.random.default_rng(0)
    positions = rng.normal(size=(4, 2_500, 2))
    structure = credo.Model({"a": dist.Normal(), "b": dist.Normal()}, None).given().structure
    slight = rng.random(positions.shape[:2]) < 0.1 * np.exp(0.3 * positions[..., 0])
    assert place_of_divergences(positions, slight, structure) is None
    found = place_of_divergences(positions, positions[..., 0] > 1.5, structure)
    assert found is not None
    assert found.name == "a"
    assert found.share < 0.2


def test_shorter_steps_come_before_the_centred_form_where_steps_diverged():
    found = "scale", "z", -0.9
    assert "target_acceptance=0.99 first" in funnel_sentence(found, False, has_steps=True)
    assert "target_acceptance" not in funnel_sentence(found, False)
