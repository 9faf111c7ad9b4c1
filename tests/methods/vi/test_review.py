"""The test of stationarity: the gap is what the average lacks, and drift is told from noise."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints

from credo.linalg.diagonal import Diagonal
from credo.methods.vi.ascent import Ascent, Tuning
from credo.methods.vi.families.mean_field import MeanField
from credo.methods.vi.gradients.score_function import ScoreFunction
from credo.methods.vi.gradients.sticking_the_landing import StickingTheLanding
from credo.methods.vi.objectives.elbo import ELBO
from credo.methods.vi.objectives.fisher import FisherDivergence
from credo.methods.vi.objectives.inclusive import InclusiveKL
from credo.methods.vi.objectives.powers import ChiUpper, Renyi
from credo.methods.vi.optimisers.momentum import Momentum
from credo.methods.vi.review import Review, review
from credo.model.model import Model
from credo.posterior.kinds import Gaussian
from credo.precision import double

CURVATURE = np.array([1.0, 9.0])


def quadratic_density(params):
    return -0.5 * jnp.sum(jnp.asarray(CURVATURE) * params["w"] ** 2)


TARGET = Model.from_log_density(quadratic_density, {"w": constraints.real_vector}, {"w": (2,)}).given().flat()
ASCENT = Ascent(MeanField(), ELBO(), StickingTheLanding(), Momentum(), 2, None, 0.01, 64)


def reviewed(means, last, before_mean=None, review_once=None):
    """A review of parts with these means and the optimal scales."""
    with double():
        scale = 1 / np.sqrt(CURVATURE)

        def member(mean):
            return Gaussian(jnp.asarray(mean), Diagonal(jnp.asarray(scale)))

        parts = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[member(np.asarray(mean)) for mean in means])
        before = Review.none(member(np.asarray(before_mean if before_mean is not None else means[0])))
        state = ASCENT.begin(TARGET, member(np.asarray(last)), 0.3, 25)
        return (review_once or once)(parts, state._replace(reviewed=before))


@jax.jit
def once(parts, state):
    return review(ASCENT, TARGET, Tuning((), jnp.asarray(1e6)), jax.random.key(0), parts, state)


def test_the_gap_is_a_quadratic_form_of_half_the_distance_of_the_halves():
    means = np.array([[0.3, 0.0], [0.1, 0.1], [-0.3, 0.1], [-0.2, -0.2]])
    found, _ = reviewed(means, last=[0.0, 0.0])
    delta = 0.5 * (means[:2].mean(axis=0) - means[2:].mean(axis=0))
    np.testing.assert_allclose(found.gap, 0.5 * delta @ (CURVATURE * delta), rtol=1e-9)


OTHERS = {
    "renyi": (Renyi(0.5, 64), StickingTheLanding(), 0.5),
    "chi": (ChiUpper(64), StickingTheLanding(), 1.0),
    "inclusive": (InclusiveKL(64), StickingTheLanding(), 1.0),
    "fisher": (FisherDivergence(), StickingTheLanding(), 1.0),
    "by_weights": (ELBO(), ScoreFunction(), 1.0),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_gap_is_that_of_the_objective_which_is_maximised(name):
    """Of Gaussians with one covariance: α/2 mᵀΛm of Rényi's divergence, ½ mᵀΛm of the others."""
    objective, estimator, share = OTHERS[name]
    ascent = replace(ASCENT, objective=objective, gradient=estimator)
    review_once = jax.jit(
        lambda parts, state: review(ascent, TARGET, Tuning((), jnp.asarray(1e6)), jax.random.key(0), parts, state)
    )
    means = 0.3 * np.array([[0.3, 0.0], [0.1, 0.1], [-0.3, 0.1], [-0.2, -0.2]])
    found, _ = reviewed(means, last=[0.0, 0.0], review_once=review_once)
    delta = 0.5 * (means[:2].mean(axis=0) - means[2:].mean(axis=0))
    np.testing.assert_allclose(found.gap, 0.5 * share * delta @ (CURVATURE * delta), rtol=0.35)
    assert found.is_done


def test_halves_that_meet_by_chance_do_not_hide_the_noise_of_the_quarters():
    found, _ = reviewed(np.array([[0.5, 0.0], [-0.5, 0.0], [0.4, 0.3], [-0.4, -0.3]]), last=[0.0, 0.0])
    assert float(found.gap) > 0.05
    assert not found.is_done


def test_the_expected_gap_is_what_the_average_lacks():
    """Over many stretches of white noise: E[gap] = E[½ m̄ᵀHm̄], with the larger of two estimates at most 2.5 times it."""
    generator = np.random.default_rng(0)
    means = 0.2 * generator.normal(size=(100, 4, 2))
    lacks = np.mean(0.5 * np.sum(CURVATURE * means.mean(axis=1) ** 2, axis=-1))
    said = np.mean([float(reviewed(m, last=[0.0, 0.0])[0].gap) for m in means])
    assert 0.7 * lacks < said < 2.5 * lacks


def test_noise_is_no_drift_and_a_ramp_is_one():
    generator = np.random.default_rng(0)
    ramp = np.outer(np.arange(4), [0.3, 0.1])
    assert reviewed(ramp, last=ramp[-1])[0].is_drifting
    told = [reviewed(0.1 * generator.normal(size=(4, 2)), last=[0.0, 0.0])[0].is_drifting for _ in range(40)]
    # halves differ more than quarters in fewer than half of the cases under noise, and then once more is tried
    assert np.mean(told) < 0.5


def two_hills(params):
    return jnp.sum(0.5 * params["w"] ** 2 - 0.25 * params["w"] ** 4)


def test_halves_on_two_hills_with_a_valley_between_are_not_at_rest():
    target = Model.from_log_density(two_hills, {"w": constraints.real_vector}, {"w": (2,)}).given().flat()
    with double():
        members = [Gaussian(jnp.full(2, mean), Diagonal(jnp.full(2, 0.05))) for mean in (-1.0, -1.0, 1.0, 1.0)]
        parts = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
        state = ASCENT.begin(target, members[-1], 0.3, 25)._replace(reviewed=Review.none(members[0]))
        tuning, key = Tuning((), jnp.asarray(1e6)), jax.random.key(0)
        found, _ = jax.jit(lambda parts, state: review(ASCENT, target, tuning, key, parts, state))(parts, state)
    assert np.isfinite(found.gap)
    assert found.is_drifting


def test_small_gaps_end_the_fit_and_the_step_shrinks_under_noise():
    small = 0.001 * np.array([[1.0, 0.0], [-1.0, 0.0], [1.0, 1.0], [-1.0, -1.0]])
    assert reviewed(small, last=[0.0, 0.0])[0].is_done
    large = np.array([[0.7, 0.0], [-0.4, 0.3], [0.3, -0.3], [-0.9, 0.1]])
    found, step_size = reviewed(large, last=[0.0, 0.0])
    assert not found.is_done
    np.testing.assert_allclose(step_size, 0.7 * 0.3)


def test_parts_that_are_shorter_than_the_memory_prove_nothing():
    with double():
        q = Gaussian(jnp.zeros(2), Diagonal(jnp.asarray(1 / np.sqrt(CURVATURE))))
        parts = jax.tree.map(lambda leaf: jnp.stack([leaf] * 4), q)
        state = ASCENT.begin(TARGET, q, 0.3, 4)
        assert not once(parts, state._replace(reviewed=Review.none(q)))[0].is_done


def test_a_stretch_that_lost_much_is_taken_back():
    far = np.full((4, 2), 5.0)
    found, step_size = reviewed(far, last=[5.0, 5.0], before_mean=[0.1, 0.1])
    np.testing.assert_allclose(found.q.mean, 0.1)
    np.testing.assert_allclose(step_size, 0.25 * 0.3)
    assert not found.is_done
