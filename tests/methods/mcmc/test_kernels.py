"""Kernels leave their targets invariant, and NUTS's trajectories are those of the recursive definition."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.methods.mcmc.chees import chees
from credo.methods.mcmc.hmc import hmc
from credo.methods.mcmc.independence import independence
from credo.methods.mcmc.integrators import MINIMUM_ERROR, SPLIT, Reference
from credo.methods.mcmc.mala import mala
from credo.methods.mcmc.noise import start_of_transition
from credo.methods.mcmc.nuts import nuts
from credo.methods.mcmc.random_walk import random_walk
from credo.methods.mcmc.slice import slice_sampling
from credo.native import jit
from credo.posterior.kinds import Gaussian
from credo.precision import double, to_numpy
from densities import DRAWS, LOWER, Density, elliptical, gaussian, gumbel, half_line, ill_conditioned

pytestmark = pytest.mark.usefixtures("strict")

NUM_CHAINS = 10_000
MAX_Z = 5.0  # of 12 to 60 statistics a case: one false alarm in 29,000 cases
STATISTICS = (
    lambda x: x,
    lambda x: x**2,
    lambda x: x**3,
    lambda x: x * np.roll(x, 1, axis=1),
    lambda x: (x < np.median(x, axis=0) - 0.5).astype(float),
)


def near(*centre, is_whole=False) -> dict:
    """Settings of a kernel that is split round a Gaussian, none too near to the target."""
    reference = Reference(np.array(centre), np.bool_(True), np.asarray(np.pi / 2), np.bool_(is_whole))
    return {"integrator": SPLIT, "reference": reference}


CASES = {
    "nuts, split": (gaussian, nuts, {"step_size": 0.9, **near(0.5, -0.2, 0.1)}),
    "nuts, split, whole": (
        gaussian,
        nuts,
        {"step_size": 1.5, "metric": Dense(LOWER).with_inverse(), **near(0.4, 0.9, -0.1, is_whole=True)},
    ),
    "nuts, split, skewed": (gumbel, nuts, {"step_size": 1.0, **near(0.6, 0.3)}),
    "nuts, split, skewed, whole": (gumbel, nuts, {"step_size": 0.7, **near(0.6, 0.3, is_whole=True)}),
    "nuts, split, half line": (half_line, nuts, {"step_size": 0.7, **near(1.0)}),
    "nuts": (gaussian, nuts, {"step_size": 0.6}),
    "nuts, small steps": (gaussian, nuts, {"step_size": 0.15}),
    "nuts, huge steps": (gaussian, nuts, {"step_size": 1.4}),
    "nuts, cut off": (gaussian, nuts, {"step_size": 0.1, "max_depth": 2}),
    "nuts, diagonal": (gaussian, nuts, {"step_size": 0.7, "metric": Diagonal(np.array([0.5, 1.5, 0.9]))}),
    "nuts, dense": (gaussian, nuts, {"step_size": 0.9, "metric": Dense(LOWER)}),
    "nuts, ill-conditioned": (ill_conditioned, nuts, {"step_size": 0.04}),
    "nuts, skewed": (gumbel, nuts, {"step_size": 0.8}),
    "nuts, two stages": (gumbel, nuts, {"step_size": 1.5, "integrator": MINIMUM_ERROR}),
    "nuts, half line": (half_line, nuts, {"step_size": 0.7}),
    "hmc": (gaussian, hmc, {"step_size": 0.4, "num_steps": 4}),
    "hmc, dense": (gaussian, hmc, {"step_size": 1.2, "num_steps": 3, "metric": Dense(LOWER)}),
    "hmc, skewed": (gumbel, hmc, {"step_size": 1.0, "num_steps": 4}),
    "hmc, split": (gaussian, hmc, {"step_size": 0.9, "num_steps": 3, **near(0.5, -0.2, 0.1)}),
    "hmc, split, skewed": (gumbel, hmc, {"step_size": 1.0, "num_steps": 3, **near(0.6, 0.3)}),
    "hmc, two stages": (gumbel, hmc, {"step_size": 1.5, "num_steps": 2, "integrator": MINIMUM_ERROR}),
    "chees": (gaussian, chees, {"step_size": 0.4, "length": 3.0}),
    "chees, dense": (gaussian, chees, {"step_size": 1.2, "length": 4.0, "metric": Dense(LOWER)}),
    "chees, skewed": (gumbel, chees, {"step_size": 1.0, "length": 3.0}),
    "chees, split": (gaussian, chees, {"step_size": 0.9, "length": 3.0, **near(0.5, -0.2, 0.1)}),
    "chees, split, dense": (
        gaussian,
        chees,
        {"step_size": 1.5, "length": 2.0, "metric": Dense(LOWER).with_inverse(), **near(0.4, 0.9, -0.1)},
    ),
    "chees, split, half line": (half_line, chees, {"step_size": 0.7, "length": 2.0, **near(1.0)}),
    "chees, half line": (half_line, chees, {"step_size": 0.5, "length": 2.0}),
    "hmc, half line": (half_line, hmc, {"step_size": 0.5, "num_steps": 3}),
    "random walk": (gaussian, random_walk, {"step_size": 1.0, "num_steps": 3}),
    "random walk, dense": (gaussian, random_walk, {"step_size": 1.3, "metric": Dense(LOWER)}),
    "random walk, skewed": (gumbel, random_walk, {"step_size": 1.0, "num_steps": 2}),
    "random walk, half line": (half_line, random_walk, {"step_size": 1.5}),
    "mala": (gaussian, mala, {"step_size": 0.7, "num_steps": 3}),
    "mala, dense": (gaussian, mala, {"step_size": 1.2, "metric": Dense(LOWER)}),
    "mala, skewed": (gumbel, mala, {"step_size": 1.3, "num_steps": 2}),
    "mala, half line": (half_line, mala, {"step_size": 0.8}),
    "slice": (gaussian, slice_sampling, {}),
    "slice, dense": (gaussian, slice_sampling, {"metric": Dense(LOWER), "width": 1.0}),
    "slice, short and cut off": (gumbel, slice_sampling, {"width": 0.4, "max_widths": 3}),
    "slice, one width": (gumbel, slice_sampling, {"width": 1.5, "max_widths": 1}),
    "slice, far too wide": (half_line, slice_sampling, {"width": 300.0}),
    "elliptical": (gaussian, elliptical, {"prior": Gaussian(np.ones(3), Dense(2 * LOWER.T @ LOWER)), "num_steps": 2}),
    "elliptical, skewed": (gumbel, elliptical, {"prior": Gaussian(np.ones(2), Diagonal(np.array([1.0, 3.0])))}),
    "elliptical, half line": (half_line, elliptical, {"prior": Gaussian(np.ones(1), Diagonal(np.full(1, 2.0)))}),
    "independence": (gumbel, independence, {"proposal": Gaussian(np.ones(2), Diagonal(np.full(2, 2.0)))}),
    "independence, half line": (
        half_line,
        independence,
        {"proposal": Gaussian(np.ones(1), Diagonal(np.full(1, 2.0))), "num_steps": 2},
    ),
}


@pytest.mark.parametrize("case", list(CASES))
def test_target_is_invariant(case):
    """Chains that start from exact draws: no statistic may have changed after three transitions."""
    function, kernel, settings = CASES[case]
    before = DRAWS[function](np.random.default_rng(1), NUM_CHAINS)
    with double():
        algorithm = kernel(Density(function), **settings)

        def three(chain):
            key, position = jax.random.wrap_key_data(chain[0]), chain[1]
            state = algorithm.init(key, position)
            return jax.lax.scan(lambda s, k: algorithm.step(k, s), state, jax.random.split(key, 3))

        keys = np.random.default_rng(2).integers(0, 2**32, (NUM_CHAINS, 2), np.uint32)
        end, info = to_numpy(jit(lambda *chains: jax.lax.map(three, chains))(keys, before))
    after = end.position
    assert np.mean(np.any(after != before, axis=1)) > 0.5, "the chains hardly move"
    for statistic in STATISTICS:
        change = statistic(after) - statistic(before)
        z = change.mean(axis=0) / (change.std(axis=0) / np.sqrt(NUM_CHAINS))
        assert np.all(np.abs(z) < MAX_Z)
    # the state is that of its position, so that the next step starts from the truth
    with double():
        truth = to_numpy(jax.vmap(algorithm.init)(jnp.zeros((NUM_CHAINS, 2)), after))
    for name, expected in truth._asdict().items():
        if name != "index":  # of the steps made
            np.testing.assert_allclose(getattr(end, name), expected, rtol=1e-9, atol=1e-12)
    if hasattr(info, "acceptance"):
        assert np.all((info.acceptance >= 0) & (info.acceptance <= 1))


# trajectories, by recursion -------------------------------------------------------------------------------------------


class Tree:
    """A subtree by the recursive definition (Hoffman & Gelman 2014, algorithm 3; Betancourt 2017), checks as in Stan.

    Leaves are in the order in which they are added. ``is_bad``: a turn within.
    """

    def __init__(self, leaves):
        self.leaves = leaves
        half = len(leaves) // 2
        if half:
            parts = Tree(leaves[:half]), Tree(leaves[half:])
            self.is_bad = parts[0].is_bad or parts[1].is_bad or turns(leaves[:half], leaves[half:])
        else:
            self.is_bad = False


def turns(left, right):
    """Momenta of two adjacent stretches, in order of time."""

    def is_turn(first, last, total):
        return first @ total <= 0 or last @ total <= 0

    return (
        is_turn(left[0], right[-1], sum(left) + sum(right))
        or is_turn(left[0], right[0], sum(left) + right[0])
        or is_turn(left[-1], right[-1], left[-1] + sum(right))
    )


def expected_trajectory(function, position, momentum, sides, step_size):
    """(number of leaves, doublings) of the recursive sampler."""
    gradient = jax.jit(jax.grad(function))

    def leap(u, r, sign):
        r = r + 0.5 * sign * step_size * np.asarray(gradient(u))
        u = u + sign * step_size * r
        return u, r + 0.5 * sign * step_size * np.asarray(gradient(u))

    ends, momenta, num_leaves = [(position, momentum)] * 2, [momentum], 0
    for depth, side in enumerate(sides):
        point, new = ends[side], []
        for _ in range(2**depth):
            point = leap(*point, 1 if side else -1)
            new.append(point[1])
            # a stretch that closes with a turn ends the doubling at once
            sizes = [2**k for k in range(1, depth + 1) if len(new) % 2**k == 0]
            if any(Tree(new[-size:]).is_bad for size in sizes):
                return num_leaves + len(new), depth + 1
        num_leaves, ends[side] = num_leaves + len(new), point
        ordered = (momenta, new) if side else (new[::-1], momenta)
        momenta = [*ordered[0], *ordered[1]]
        if turns(*ordered):
            return num_leaves, depth + 1
    return num_leaves, len(sides)


@pytest.mark.parametrize("function", [gaussian, gumbel, ill_conditioned])
def test_trajectory_is_that_of_the_recursion(function):
    max_depth = 6
    rng = np.random.default_rng(5)
    depths = set()
    with double():
        step_size = 0.05
        algorithm = nuts(Density(function), step_size=step_size, max_depth=max_depth)

        @jit
        def step(key_data, position):
            key = jax.random.wrap_key_data(key_data)
            _, info = algorithm.step(key, algorithm.init(key, position))
            return info, *start_of_transition(key, position.size, (1 + max_depth,), position.dtype)

        for i in range(25):
            position = DRAWS[function](rng, 1)[0]
            info, momentum, uniform = to_numpy(step(np.array([0, i], np.uint32), position))
            sides = [int(uniform[0] * 2**max_depth) >> k & 1 for k in range(max_depth)]
            expected = expected_trajectory(function, position, momentum, sides, step_size)
            assert (int(info.num_steps), int(info.depth)) == expected
            depths.add(expected[1])
    assert len(depths) > 1


def test_one_uniform_number_chooses_leaves_by_weight():
    """Within one doubling of equal weights, each leaf is kept equally often."""
    with double():
        algorithm = nuts(Density(lambda u: -0.0 * jnp.sum(u)), step_size=1.0, max_depth=5)

        def one(key_data):
            key, start = jax.random.wrap_key_data(key_data), jnp.zeros(1)
            new, info = algorithm.step(key, algorithm.init(key, start))
            return new, info, *start_of_transition(key, 1, (6,), start.dtype)

        keys = np.random.default_rng(0).integers(0, 2**32, (NUM_CHAINS, 2), np.uint32)
        new, info, momentum, uniform = to_numpy(jit(lambda keys: jax.lax.map(one, keys))(keys))
    # a flat density: no turn, every leaf at a whole multiple of the momentum, and the last doubling replaces the rest
    assert np.all(info.num_steps == 31)
    leaf = new.position[:, 0] / momentum[:, 0]
    np.testing.assert_allclose(leaf, np.round(leaf), atol=1e-6)
    sides = (uniform[:, 0] * 2**5).astype(int)[:, None] >> np.arange(5) & 1
    first = (sides[:, :4] == 0) @ 2 ** np.arange(4)  # leaves behind the start before the last doubling
    side = sides[:, 4] == 1
    place = np.where(side, leaf - (15 - first), -leaf - first)
    counts = np.bincount(np.round(place).astype(int), minlength=17)[1:]
    chi_square = np.sum((counts - NUM_CHAINS / 16) ** 2) / (NUM_CHAINS / 16)
    assert chi_square < 50  # 15 degrees of freedom: one false alarm in 80,000


def test_a_position_of_another_length_has_a_sentence():
    """A slice of one too long would be taken for the whole."""
    model = credo.Model({"w": dist.Normal(0.0, 1.0).expand([3])}, lambda params, x: dist.Normal(params["w"], 1.0))
    target = model.given(y=np.zeros((1, 3)))
    kernel = credo.mcmc.nuts(target, step_size=0.1)
    for position in (np.zeros(4), np.zeros(2), np.zeros((4, 3))):
        with pytest.raises(credo.CredoError, match=rf"of shape \(3,\).*{re.escape(str(position.shape))}"):
            kernel.init(jax.random.key(0), position)
