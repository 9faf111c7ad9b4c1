"""Families: local coordinates that say what they move, their Fisher information, and the nearest member."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.methods.vi.families.full_rank import FullRank
from credo.methods.vi.families.mean_field import MeanField
from credo.methods.vi.families.scales import DEEP, OFFSET, SLOPE, Exp, Softplus
from credo.posterior.kinds import Gaussian
from credo.precision import double

pytestmark = pytest.mark.usefixtures("strict")

MEAN = np.array([0.3, -1.0, 2.0])
LOWER = np.array([[0.7, 0.0, 0.0], [-0.4, 1.3, 0.0], [0.2, 0.5, 0.4]])
SCALES = {"exp": Exp(), "softplus": Softplus()}
MEMBERS = {
    "mean_field": (MeanField(), lambda: Gaussian(jnp.asarray(MEAN), Diagonal(jnp.asarray([0.7, 1.3, 0.4])))),
    "full_rank": (FullRank(), lambda: Gaussian(jnp.asarray(MEAN), Dense(jnp.asarray(LOWER)))),
}
MEMBERS |= {f"{name}_softplus": (replace(f, scale=Softplus()), make) for name, (f, make) in list(MEMBERS.items())}


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
    longest = -float(family.scale.log_factor(jnp.asarray(-0.7)))  # 0.7 of an exponential
    assert abs(moved.scale.log_det() - q.scale.log_det()) < 3 * longest + 1e-9


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


# exp and softplus ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_a_scale_has_value_and_slope_one_at_rest_and_its_own_logarithm(scale):
    """The first two make the Fisher information and all gradients at rest the same for every scale."""
    with double():
        np.testing.assert_allclose(scale.factor(jnp.zeros(())), 1.0, rtol=1e-15)
        np.testing.assert_allclose(jax.grad(scale.factor)(jnp.zeros(())), 1.0, rtol=1e-14)
        b = jnp.linspace(-12.0, 40.0, 53)
        np.testing.assert_allclose(scale.log_factor(b), jnp.log(scale.factor(b)), rtol=1e-12, atol=1e-14)
        slope = jax.vmap(jax.grad(lambda b: jnp.log(scale.factor(b))))(b)
        np.testing.assert_allclose(jax.vmap(jax.grad(scale.log_factor))(b), slope, rtol=1e-12)


def test_the_logarithm_of_a_softplus_is_finite_and_smooth_where_it_underflows():
    with double():
        b = jnp.asarray([-5_000.0, (DEEP - 1e-9 - OFFSET) / SLOPE, (DEEP + 1e-9 - OFFSET) / SLOPE])
        value, slope = Softplus().log_factor(b), jax.vmap(jax.grad(Softplus().log_factor))(b)
    np.testing.assert_allclose(value, OFFSET + SLOPE * np.asarray(b), rtol=1e-12)
    np.testing.assert_allclose(slope, SLOPE, rtol=1e-12)


def test_the_entropy_of_a_moved_member_changes_as_the_moved_member_says(member):
    """Away from rest too, where exp and softplus part."""
    family, q = member
    xi = tangent(family, q, size=0.8)
    wanted = jax.grad(lambda xi: family.move(q, xi).scale.log_det())(xi)
    got = jax.grad(lambda xi: family.entropy(q, xi))(xi)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


def regression(w, x):
    return dist.Normal(x @ w["w"], 0.5)


X = np.array([[1.0, 0.3], [1.0, -0.7], [1.0, 1.9], [0.2, 0.4]])
Y = np.array([0.3, -0.8, 2.1, 0.1])


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
@pytest.mark.parametrize("family", [MeanField, FullRank])
def test_both_scales_reach_the_optimum_of_a_conjugate_regression(family, scale):
    """Precision P = I + 4 XᵀX: full-rank is N(P⁻¹ 4 Xᵀy, P⁻¹), mean-field has the variances 1/P_ii.

    From the answer to a single other row, whose sds are two to four times as wide: the scale has a way to go.
    """
    model = credo.Model({"w": dist.Normal(0.0, 1.0).expand([2])}, regression)
    elsewhere = credo.fit(model.given(np.array([[0.3, -0.4]]), np.array([2.0])), credo.Laplace(), progress=False)
    method = credo.NaturalGradient(family=family(scale=scale), tolerance=1e-12)
    posterior = credo.fit(model.given(X, Y), method, key=0, start=elsewhere, progress=False)
    assert isinstance(posterior.kind, Gaussian)
    precision = np.eye(2) + 4.0 * X.T @ X
    covariance = np.linalg.inv(precision)
    wanted = covariance if family is FullRank else np.diag(1 / np.diag(precision))
    np.testing.assert_allclose(posterior.kind.mean, covariance @ (4.0 * X.T @ Y), atol=1e-6)
    np.testing.assert_allclose(posterior.kind.scale.dense(), wanted, atol=1e-6)
