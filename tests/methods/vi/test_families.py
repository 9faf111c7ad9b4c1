"""Families: local coordinates that say what they move, their Fisher information, and the nearest member."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.methods.vi.families.full_rank import FullRank
from credo.methods.vi.families.mean_field import MeanField
from credo.posterior.kinds import Gaussian
from credo.precision import double

pytestmark = pytest.mark.usefixtures("strict")

MEAN = np.array([0.3, -1.0, 2.0])
LOWER = np.array([[0.7, 0.0, 0.0], [-0.4, 1.3, 0.0], [0.2, 0.5, 0.4]])
MEMBERS = {
    "mean_field": (MeanField(), lambda: Gaussian(jnp.asarray(MEAN), Diagonal(jnp.asarray([0.7, 1.3, 0.4])))),
    "full_rank": (FullRank(), lambda: Gaussian(jnp.asarray(MEAN), Dense(jnp.asarray(LOWER)))),
}


@pytest.fixture(params=MEMBERS)
def member(request):
    family, make = MEMBERS[request.param]
    with double():
        yield family, make()


def tangent(family, q, size=0.1):
    """Some small tangent at q; a full-rank one is lower triangular."""
    generator = np.random.default_rng(0)
    drawn = jax.tree.map(lambda leaf: jnp.asarray(size * generator.normal(size=leaf.shape)), family.rest(q))
    return jax.tree.map(lambda leaf: jnp.tril(leaf) if leaf.ndim == 2 else leaf, drawn)


def test_a_draw_from_q_moved_is_the_draw_of_the_moved_q(member):
    family, q = member
    xi, z = tangent(family, q), jnp.asarray([0.5, -1.2, 0.1])
    moved = family.move(q, xi)
    np.testing.assert_allclose(family.draw(q, xi, z).u, moved.mean + moved.scale.matvec(z), rtol=1e-12)


def test_the_path_density_is_that_of_q_at_rest(member):
    family, q = member
    draw = family.draw(q, tangent(family, q), jnp.asarray([0.5, -1.2, 0.1]))
    np.testing.assert_allclose(draw.path_log_prob, q.log_prob_u(draw.u), rtol=1e-12)


def test_entropy_is_minus_the_expected_log_density(member):
    family, q = member
    xi = tangent(family, q)
    moved = family.move(q, xi)
    expected = 0.5 * np.linalg.slogdet(2 * np.pi * np.e * moved.scale.dense())[1]
    np.testing.assert_allclose(family.entropy(q, xi), expected, rtol=1e-12)


def kl(q, p):
    """KL(q ‖ p) of Gaussians."""
    P = jnp.linalg.inv(p.scale.dense())
    away = q.mean - p.mean
    trace = jnp.sum(P * q.scale.dense())
    return 0.5 * (trace + jnp.dot(away, P @ away) - q.mean.size) + p.scale.log_det() - q.scale.log_det()


def test_natural_gradients_divide_by_the_fisher_information(member):
    """KL(q_ξ ‖ q) = ½ ξᵀFξ + O(ξ³): its gradient at ξ, divided by F, is ξ again."""
    family, q = member
    xi = tangent(family, q, size=1e-5)
    gradient = jax.grad(lambda xi: kl(family.move(q, xi), q))(xi)
    for got, wanted in zip(jax.tree.leaves(family.natural(gradient, jnp.ones(()))), jax.tree.leaves(xi), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-9)


def test_long_steps_are_shortened(member):
    family, q = member
    far = jax.tree.map(lambda leaf: 1e6 * leaf, tangent(family, q))
    moved = family.move(q, family.natural(far, jnp.ones(())))
    assert np.max(np.abs(q.scale.solve(moved.mean - q.mean))) < 10.0
    assert abs(moved.scale.log_det() - q.scale.log_det()) < 3 * 0.7 + 1e-9


def test_the_nearest_mean_field_has_the_variances_of_the_precisions():
    covariance = LOWER @ LOWER.T
    with double():
        nearest = MeanField().around(MEAN, np.linalg.inv(covariance))
        np.testing.assert_allclose(nearest.scale.diagonal(), 1 / np.diagonal(np.linalg.inv(covariance)))
        full = FullRank().around(MEAN, np.linalg.inv(covariance))
        np.testing.assert_allclose(full.scale.dense(), covariance, rtol=1e-10)


@pytest.mark.parametrize("family", [MeanField(), FullRank()])
def test_saddles_and_flat_directions_still_give_a_start(family):
    with double():
        q = family.around(np.zeros(3), np.diag([4.0, -1.0, 0.0]))
        assert np.all(np.isfinite(q.scale.diagonal()))
        np.testing.assert_allclose(q.scale.diagonal()[:2], [0.25, 1.0])
