"""Families beyond one normal: their draws, densities, moments and local coordinates agree with each other."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo.linalg.dense import Dense
from credo.linalg.factor import DiagonalPlusFactor
from credo.methods.vi.families.blocks import Blocks
from credo.methods.vi.families.factors import Beta, Dirichlet, Gamma
from credo.methods.vi.families.flow import Flow, NeuralSpline, RealNVP
from credo.methods.vi.families.full_rank import FullRank
from credo.methods.vi.families.low_rank import LowRank
from credo.methods.vi.families.mean_field import MeanField
from credo.methods.vi.families.mixture import MixtureOf
from credo.model.structure import Leaf, Structure
from credo.posterior.factors import LogGamma, Sticks
from credo.posterior.kinds import Gaussian
from credo.precision import double

pytestmark = pytest.mark.usefixtures("strict")

DIM = 5
rng = np.random.default_rng(11)
MEAN = rng.normal(size=DIM)
FACTOR = rng.normal(size=(DIM, 2))
COVARIANCE = np.diag(np.exp(rng.normal(size=DIM))) + FACTOR @ FACTOR.T
PRECISION = np.linalg.inv(COVARIANCE)
LEAVES = (
    Leaf("a", (2,), (2,), True, support="positive"),
    Leaf("b", (), (), True, support="unit_interval"),
    Leaf("c", (3,), (2,), False, support="simplex"),
)
STRUCTURE = Structure(LEAVES, None, ())

FAMILIES = {
    "low_rank": LowRank(2),
    "low rank, more columns than coordinates": LowRank(9),
    "blocks": Blocks({("a", "c"): FullRank()}).bound(STRUCTURE),
    "blocks in blocks": Blocks({"b": MeanField()}, others=LowRank(1)).bound(STRUCTURE),
    "mixture": MixtureOf(3, FullRank()).bound(STRUCTURE),
    "gamma": Gamma(),
    "beta": Beta(),
    "dirichlet": Dirichlet(DIM + 1),
    "factors": Blocks({"a": Gamma(), "b": Beta(), "c": Dirichlet()}).bound(STRUCTURE),
    "real NVP": Flow(RealNVP(), num_layers=2, width=4),
    "spline": Flow(NeuralSpline(num_bins=4), num_layers=2, width=4, base=MeanField()),
    "flow in a block": Blocks({("a", "c"): Flow(RealNVP(), num_layers=2, width=4)}).bound(STRUCTURE),
    "mixture of blocks": MixtureOf(2, Blocks({"a": FullRank()})).bound(STRUCTURE),
}
NUM_DRAWS = 20_000
KEY = jax.random.wrap_key_data(np.array([0, 7], np.uint32))
MOMENTS = {Flow: 5 / np.sqrt(4_096), Blocks: 5 / np.sqrt(4_096)}  # those of flows are means over so many draws


SLOW = {"beta": "dirichlet", "factors": "gamma, dirichlet and flow in a block"}  # in core is the code of each by these


class Member(NamedTuple):
    """A family, one of its densities, and two programs of it."""

    family: object
    q: object
    move: Callable
    drawn: Callable


@functools.cache
def member_of(name):
    family = FAMILIES[name]

    @jax.jit
    def drawn(q, xi, z):
        """A draw, its density, and the noise that gives it where q is normal."""
        draw = family.draw(q, xi, z)
        white = q.scale.solve(draw.u - q.mean) if isinstance(q, Gaussian) else draw.u
        return draw, q.log_prob_u(draw.u), white

    q, move = family.around(MEAN, PRECISION), jax.jit(family.move)
    # weights of draws of splines that are bent more have a tail that no number of draws meets
    return Member(family, move(q, tangent(family, q, 0.15 if name == "spline" else 0.3)), move, drawn)


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in FAMILIES])
def member(request):
    with double():
        yield member_of(request.param)


def tangent(family, q, size):
    """Some tangent at q."""
    generator = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(size * generator.normal(size=leaf.shape)), family.rest(q))


def one(z):
    """The first row of noise."""
    return jax.tree.map(lambda leaf: leaf[0], z)


def test_a_draw_from_q_moved_is_the_draw_of_the_moved_q(member):
    family, q, move, drawn = member
    xi, z = tangent(family, q, 0.1), one(family.noise(jax.random.key(1), 4, DIM))
    moved = move(q, xi)
    draw, log_q, _ = drawn(q, xi, z)
    again, _, _ = drawn(moved, family.rest(moved), z)
    np.testing.assert_allclose(draw.u, again.u, rtol=1e-10)
    np.testing.assert_allclose(draw.log_share, again.log_share, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(draw.path_log_prob, log_q, rtol=1e-10)


def test_draws_with_their_shares_have_the_density_and_the_moments(member):
    """E_q[r/q] = 1 for a density r narrower than q; and both ways of drawing have the moments that q says it has."""
    family, q, _, _ = member
    center, variances = np.asarray(family.center(q)), np.asarray(family.variances(q))
    sd = 0.5 * np.sqrt(variances)

    def weigh(u):
        log_r = jnp.sum(-0.5 * jnp.square((u - center) / sd) - jnp.log(sd)) - 0.5 * DIM * np.log(2 * np.pi)
        return jnp.exp(log_r - q.log_prob_u(u))

    @jax.jit
    def drawn(q):
        z = family.noise(jax.random.key(2), NUM_DRAWS, DIM)
        draws = jax.vmap(lambda z: family.draw(q, family.rest(q), z))(z)
        share = jnp.exp(draws.log_share * jnp.ones(NUM_DRAWS))
        plain = jax.vmap(q.sample_u)(jax.random.split(jax.random.key(3), NUM_DRAWS))
        return (draws.u, share, jax.vmap(weigh)(draws.u)), (plain, jnp.ones(NUM_DRAWS), jax.vmap(weigh)(plain))

    for u, share, weights in jax.tree.map(np.asarray, drawn(q)):
        error = np.std(share * weights) / np.sqrt(NUM_DRAWS / 2)  # mirrored pairs: at most half as many independent
        assert abs(np.mean(share * weights) - 1) < 5 * error
        away = (u - center) / np.sqrt(variances)
        slack = MOMENTS.get(type(family), 0.0)
        np.testing.assert_allclose(np.mean(share[:, None] * away, axis=0), 0, atol=slack + 5 / np.sqrt(NUM_DRAWS / 2))
        square = share[:, None] * away**2
        error = np.std(square, axis=0) * np.sqrt(2 / NUM_DRAWS)
        np.testing.assert_array_less(np.abs(np.mean(square, axis=0) - 1), 2 * slack + 5 * error)


def test_entropy_is_minus_the_expected_log_density(member):
    family, q, move, _ = member
    xi = tangent(family, q, 0.1)
    entropy, moved = jax.jit(family.entropy)(q, xi), move(q, xi)
    if isinstance(q, Gaussian):
        covariance = moved.scale.dense()
        np.testing.assert_allclose(entropy, 0.5 * np.linalg.slogdet(2 * np.pi * np.e * covariance)[1], rtol=1e-10)
    elif entropy is not None:
        terms = -jax.jit(jax.vmap(lambda key: moved.log_prob_u(moved.sample_u(key))))(jax.random.split(KEY, 4_000))
        assert abs(np.mean(terms) - entropy) < 5 * np.std(terms) / np.sqrt(len(terms))


def test_averages_of_members_are_members(member):
    """Iterates are averaged leaf by leaf: what comes out must be a density, here of the same draws as before."""
    family, q, move, drawn = member
    mean = jax.tree.map(lambda x, y: 0.5 * (x + y), q, move(q, tangent(family, q, 0.2)))
    draw, log_q, white = drawn(mean, family.rest(mean), one(family.noise(jax.random.key(1), 4, DIM)))
    np.testing.assert_allclose(draw.path_log_prob, log_q, rtol=1e-10)
    assert np.all(np.isfinite(white))


def test_long_steps_stay_near(member):
    family, q, move, _ = member
    far = jax.tree.map(lambda leaf: 1e6 * leaf, tangent(family, q, 1.0))
    moved = move(q, jax.jit(family.natural)(far, jnp.ones(())))
    assert np.all(np.abs(family.center(moved) - family.center(q)) < 30 * np.sqrt(family.variances(q)))
    assert np.all(np.isfinite(np.log(family.variances(moved))))
    assert np.all(family.variances(family.contract(q)) < family.variances(q))


# low rank -------------------------------------------------------------------------------------------------------------


def kl(q, p):
    """KL(q ‖ p) of Gaussians."""
    P, away = jnp.linalg.inv(p.scale.dense()), q.mean - p.mean
    trace = jnp.sum(P * q.scale.dense())
    return 0.5 * (trace + jnp.dot(away, P @ away) - q.mean.size) + p.scale.log_det() - q.scale.log_det()


def test_the_information_of_low_rank_coordinates_is_one_but_for_rotations():
    family = LowRank(2)
    with double():
        q = family.around(MEAN, PRECISION)
        flat, unravel = jax.flatten_util.ravel_pytree(family.rest(q))
        fisher = jax.jit(jax.hessian(lambda x: kl(family.move(q, unravel(x)), q)))(flat)
    a, b, C = slice(0, DIM), slice(DIM, 2 * DIM), slice(2 * DIM, None)
    np.testing.assert_allclose(fisher[a, a], np.eye(DIM), atol=1e-10)
    assert np.linalg.eigvalsh(fisher[b, b])[-1] <= 1
    inner = np.linalg.eigvalsh(fisher[C, C])
    assert abs(inner[0]) < 1e-12, "the rotation of two columns changes nothing"
    np.testing.assert_allclose(inner[1:], 1, atol=0.05)  # the damping of weak factors
    assert np.linalg.eigvalsh(fisher)[-1] <= 2


@pytest.mark.parametrize(("dim", "rank"), [(5, 2), (30, 4)])
def test_the_nearest_low_rank_is_the_gaussian_itself_where_it_has_such_a_covariance(dim, rank):
    A = np.random.default_rng(dim).normal(size=(dim, rank))
    covariance = np.diag(np.linspace(0.1, 2.0, dim)) + A @ A.T
    with double():
        q = LowRank(rank).around(np.zeros(dim), np.linalg.inv(covariance))
        assert abs(kl(q, Gaussian(np.zeros(dim), Dense.from_covariance(covariance)))) < 1e-7


def test_the_nearest_low_rank_is_stationary():
    """No small step in any direction is better, where the Gaussian has no such covariance."""
    with double():
        p = FullRank().around(MEAN, PRECISION)
        q = LowRank(1).around(MEAN, PRECISION)

        def excess(scale, factor):
            return kl(Gaussian(q.mean, DiagonalPlusFactor(scale, factor)), p)

        scale, factor = jax.jit(jax.grad(excess, argnums=(0, 1)))(
            jnp.asarray(q.scale.scale), jnp.asarray(q.scale.factor)
        )
        np.testing.assert_allclose(scale * q.scale.scale, 0, atol=1e-6)
        np.testing.assert_allclose(factor * q.scale.factor, 0, atol=1e-6)


def test_low_rank_begins_at_saddles_and_flat_directions():
    with double():
        q = LowRank(1).around(np.zeros(3), np.diag([4.0, -1.0, 0.0]))
        assert np.all(np.isfinite(q.scale.diagonal()))


# blocks ---------------------------------------------------------------------------------------------------------------


def test_the_nearest_blocks_are_those_of_the_precision():
    with double():
        q = FAMILIES["blocks"].around(MEAN, PRECISION)
        group = np.array([0, 1, 3, 4])
        covariance = np.asarray(q.scale.dense())
        np.testing.assert_allclose(covariance[np.ix_(group, group)], np.linalg.inv(PRECISION[np.ix_(group, group)]))
        np.testing.assert_allclose(covariance[2], np.eye(DIM)[2] / PRECISION[2, 2], atol=1e-15)
        np.testing.assert_array_equal(q.mean, MEAN)


@pytest.mark.parametrize(
    ("blocks", "sentence"),
    [
        ({"d": FullRank()}, "no parameter 'd' for a block: the model has a, b, c"),
        ({"a": FullRank(), ("b", "a"): FullRank()}, "'a' stands in more than one block"),
        ({("a", "a"): FullRank()}, "'a' stands in more than one block"),
    ],
)
def test_names_that_do_not_fit_have_a_sentence(blocks, sentence):
    with pytest.raises(credo.CredoError, match=sentence):
        Blocks(blocks).bound(STRUCTURE)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Blocks({}), "takes a dict of families"),
        (lambda: Blocks({"a": "full"}), "takes a dict of families"),
        (lambda: LowRank(0), r"LowRank\(rank=0\)"),
        (lambda: LowRank(1.5), r"LowRank\(rank=1.5\)"),
        (lambda: Flow(num_layers=0), r"Flow\(num_layers=0\)"),
        (lambda: Flow(base=1), r"Flow\(base=1\)"),
        (lambda: Flow(base=MixtureOf(2)).bound(STRUCTURE), "A flow bends a Gaussian, and MixtureOf is none"),
        (lambda: NeuralSpline(num_bins=1), "from 2 to 500"),
        (lambda: NeuralSpline(bound=-1.0), "positive number of standard deviations"),
        (
            lambda: Blocks({"b": Gamma()}).bound(STRUCTURE),
            "family of positive numbers, and 'b' has support unit_interval",
        ),
        (
            lambda: Blocks({"c": Beta()}).bound(STRUCTURE),
            "family of numbers on an interval, and 'c' has support simplex",
        ),
        (lambda: Blocks({"a": Dirichlet()}).bound(STRUCTURE), "shares that sum to one, and 'a' has support positive"),
        (lambda: MixtureOf(0), "the number of components is a whole number from 1"),
        (lambda: MixtureOf(2, 3), "takes a family of its components"),
        (
            lambda: MixtureOf(2, MixtureOf(2)).bound(STRUCTURE),
            "components of a mixture are Gaussian, and MixtureOf is not",
        ),
    ],
)
def test_settings_that_do_not_fit_have_a_sentence(make, sentence):
    with pytest.raises(credo.CredoError, match=sentence):
        make()


# mixtures -------------------------------------------------------------------------------------------------------------


def test_every_component_of_a_mixture_has_its_turn():
    family = FAMILIES["mixture"]
    with double():
        chosen, _ = family.noise(jax.random.key(0), 24, DIM)
    np.testing.assert_array_equal(np.bincount(np.asarray(chosen)), [8, 8, 8])
    np.testing.assert_array_equal(chosen[:12], chosen[12:])  # mirrored draws are of one component


def test_components_begin_at_the_heaviest_of_distinct_modes():
    with double():
        near = MeanField().start(np.zeros(1), np.ones(1))
        same, far = Gaussian(np.full(1, 0.1), near.scale), Gaussian(np.full(1, 9.0), near.scale)
        lost = Gaussian(np.full(1, -9.0), near.scale)
        q = MixtureOf(3, MeanField()).at_modes([lost, far, near, same], [-50.0, -1.0, 0.0, 0.0])
        at = np.sort([float(part.mean[0]) for part in q.components])
    assert at[0] < 0 < at[1] < 3, "two beside the heaviest mode"
    assert at[2] == 9.0
    np.testing.assert_allclose(np.sort(np.exp(q.log_weights))[0], np.exp(-1) / (1 + np.exp(-1)))


# factors --------------------------------------------------------------------------------------------------------------

FACTORS = {
    "gamma": (Gamma(), lambda: LogGamma(jnp.asarray([0.5, -1.0]), jnp.log(jnp.asarray([0.4, 7.0])))),
    "beta": (Beta(), lambda: Sticks(jnp.log(jnp.asarray([[0.6, 2.0], [9.0, 4.0]])))),
    "dirichlet": (Dirichlet(3), lambda: Sticks(jnp.log(jnp.asarray([[0.7, 2.0, 5.0]])))),
}


@pytest.mark.parametrize("name", ["gamma", "dirichlet", pytest.param("beta", marks=pytest.mark.slow)])
def test_factors_move_in_units_of_information_and_their_draws_follow(name):
    """E[score scoreᵀ] = I in the local coordinates; the mean derivative of the draws is that of the mean."""
    family, make = FACTORS[name]
    with double():
        q = make()
        flat, unravel = jax.flatten_util.ravel_pytree(family.rest(q))

        @jax.jit
        def scores(q, z):
            u = jax.vmap(lambda z: family.draw(q, family.rest(q), z).u)(z)
            score = jax.vmap(lambda u: jax.grad(lambda x: family.move(q, unravel(x)).log_prob_u(u))(flat))(u)
            slopes = jax.vmap(lambda z: jax.jacrev(lambda x: family.draw(q, unravel(x), z).u)(flat))(z)
            return score, slopes, jax.jacfwd(lambda x: family.center(family.move(q, unravel(x))))(flat)

        score, slopes, expected = jax.tree.map(np.asarray, scores(q, family.noise(KEY, NUM_DRAWS, 2)))
    outer = score[:, :, None] * score[:, None, :]
    error = outer.std(axis=0) / np.sqrt(NUM_DRAWS)
    np.testing.assert_array_less(np.abs(outer.mean(axis=0) - np.eye(flat.size)), 5 * error)
    error = slopes.std(axis=0) / np.sqrt(NUM_DRAWS)
    np.testing.assert_array_less(np.abs(slopes.mean(axis=0) - expected), 5 * error + 1e-12)


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (lambda: LogGamma(np.log([0.5]), np.log([3.0])), lambda: dist.Gamma(3.0, 6.0)),
        (lambda: Sticks(np.log([[0.6, 2.0]])), lambda: dist.Beta(0.6, 2.0)),
        (lambda: Sticks(np.log([[0.7, 2.0, 5.0, 1.0]])), lambda: dist.Dirichlet(np.array([0.7, 2.0, 5.0, 1.0]))),
    ],
)
def test_factors_have_numpyros_density_with_its_jacobian(kind, make):
    with double(), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        q, distribution = kind(), make()
        transform = dist.biject_to(distribution.support)
        u = jnp.asarray([0.3, -1.2, 0.8])[: 3 if isinstance(distribution, dist.Dirichlet) else 1]
        at = u if isinstance(distribution, dist.Dirichlet) else u[0]
        x = transform(at)
        expected = distribution.log_prob(x) + transform.log_abs_det_jacobian(at, x)
        np.testing.assert_allclose(q.log_prob_u(u), expected, rtol=1e-10)


def test_factors_begin_at_the_mode_and_the_curvature():
    """Of the density over positions, by autodiff: a gamma or Dirichlet posterior is met exactly."""
    with double():
        for family, q in ((Gamma(), FACTORS["gamma"][1]()), (Dirichlet(3), FACTORS["dirichlet"][1]())):
            alpha = np.exp(q.log_alpha[0]) if isinstance(q, Sticks) else None
            mode = q.log_mean if alpha is None else np.log(alpha[:-1] / np.cumsum(alpha[::-1])[-2::-1]) + np.log([2, 1])
            np.testing.assert_allclose(jax.grad(q.log_prob_u)(jnp.asarray(mode)), 0, atol=1e-12)
            again = family.around(np.asarray(mode), -np.asarray(jax.hessian(q.log_prob_u)(jnp.asarray(mode))))
            for leaf, wanted in zip(jax.tree.leaves(again), jax.tree.leaves(q), strict=True):
                np.testing.assert_allclose(leaf, wanted, atol=1e-10)
