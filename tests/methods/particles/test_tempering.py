"""The steps of tempered SMC on the host: temperatures, resampling, scales, and when particles have moved enough."""

import numpy as np
import pytest

from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.methods.particles.mutation import Moves, Particles
from credo.methods.particles.tails import tails
from credo.methods.particles.tempering import (
    MAX_STEPS,
    Tempered,
    columns_of,
    forget,
    next_beta,
    scale_of,
    systematic,
    take,
    temper,
)
from credo.status import CredoError


def share(gain, step):
    w = np.exp(step * (gain - gain.max()))
    return w.sum() ** 2 / (w**2).sum() / len(w)


@pytest.mark.parametrize("size", [3.0, 1e3, 1e9, 1e30])
def test_a_temperature_keeps_the_share_of_particles_asked_for(size):
    gain = -size * np.random.default_rng(0).chisquare(3, 2_000)
    for beta in (0.0, 0.3 / size):
        new = next_beta(gain, beta, 0.5)
        assert beta < new < 1
        np.testing.assert_allclose(share(gain, new - beta), 0.5, rtol=1e-4)


def test_the_last_step_goes_to_one():
    gain = np.random.default_rng(0).normal(size=100)
    assert next_beta(0.1 * gain, 0.4, 0.5) == 1.0
    assert next_beta(np.zeros(10), 0.0, 0.99) == 1.0


def test_a_step_too_small_to_write_has_its_sentence():
    gain = -1e20 * np.random.default_rng(0).chisquare(3, 100)
    with pytest.raises(CredoError, match=r"no smaller step of beta.*scale of the data"):
        next_beta(gain, 0.5, 0.5)


def test_systematic_resampling_is_even_and_unbiased():
    generator = np.random.default_rng(1)
    weights = generator.dirichlet(np.full(20, 0.5), size=3)
    counts = np.zeros_like(weights)
    num_rounds = 2_000
    for _ in range(num_rounds):
        index = systematic(weights, generator.uniform(size=3))
        drawn = np.stack([np.bincount(row, minlength=20) for row in index])
        np.testing.assert_array_less(np.abs(drawn - 20 * weights), 1.0)
        counts += drawn
    # the sd of a count of at most one more is 1/2 at most: 5 sds of 60 means, one false alarm in 29,000
    np.testing.assert_allclose(counts / num_rounds, 20 * weights, atol=5 * 0.5 / np.sqrt(num_rounds))


def test_a_particle_of_no_weight_has_no_offspring():
    weights = np.array([[0.0, 0.5, 0.0, 0.5, 0.0]])
    for uniform in (0.0, 0.3, 1 - 1e-16):
        assert set(systematic(weights, np.array([uniform]))[0]) == {1, 3}
    population = Particles(np.arange(10.0).reshape(1, 5, 2), np.zeros((1, 5)), np.arange(5.0)[None])
    np.testing.assert_array_equal(take(population, np.array([[4, 4, 0, 1, 1]])).gain, [[4, 4, 0, 1, 1]])


def test_the_scale_is_that_of_the_weighted_particles():
    generator = np.random.default_rng(2)
    root = np.array([[1e3, 0.0], [0.9, 1e-3]])
    u = (generator.normal(size=(4, 500, 2)) @ root.T) + 7.0
    u[0, 0] = np.inf  # of no weight
    weights = generator.exponential(size=(4, 500))
    weights[0, 0] = 0
    weights /= weights.sum()
    scale = scale_of(u, weights)
    assert isinstance(scale, Dense)
    inside = weights.ravel() > 0
    expected = np.cov(u.reshape(-1, 2)[inside].T, aweights=weights.ravel()[inside], ddof=0)
    np.testing.assert_allclose(scale.dense(), expected, rtol=1e-6)


def test_few_particles_know_standard_deviations_alone():
    u = np.random.default_rng(3).normal(size=(2, 10, 6))
    equal = np.full((2, 10), 0.05)
    scale = scale_of(u, equal)
    assert isinstance(scale, Diagonal)
    np.testing.assert_allclose(scale.scale, u.reshape(-1, 6).std(axis=0))
    flat = u.copy()
    flat[..., 2] = 1.0  # constant: any scale will do
    assert np.isfinite(scale_of(flat, equal).scale).all()
    twice = np.repeat(np.random.default_rng(3).normal(size=(2, 500, 1)), 2, axis=-1)
    assert isinstance(scale_of(twice, np.full((2, 500), 1e-3)), Diagonal), "one direction has no variance"


def autoregression(rho, modes=0.0, acceptance=0.8):
    """A stand-in for the kernel: each move keeps the correlation ``rho`` around the particle's own mode."""
    generator = np.random.default_rng(4)
    seen = []

    def move(population, kernel, index, call):
        u = population.position
        for _ in range(int(kernel.num_moves)):
            mode = modes * np.sign(u)
            u = mode + rho * (u - mode) + np.sqrt(1 - rho**2) * generator.normal(size=u.shape)
        seen.append((int(kernel.num_steps), float(kernel.step_size), int(kernel.num_moves)))
        return Moves(population._replace(position=u), np.float64(acceptance), np.float64(0.0))

    return move, seen


def population_at(modes=0.0, size=500):
    generator = np.random.default_rng(5)
    sign = generator.choice([-1.0, 1.0], (4, size, 1)) if modes else 0.0
    return Particles(modes * sign + generator.normal(size=(4, size, 1)), np.zeros((4, size)), np.zeros((4, size)))


@pytest.mark.parametrize(("rho", "least", "most"), [(0.0, 1, 1), (0.5, 4, 8), (0.9, 16, 32), (-0.9, 16, 64)])
@pytest.mark.parametrize("modes", [0.0, 50.0])
def test_particles_move_until_they_have_forgotten(rho, least, most, modes):
    """What they keep of their mode does not count: 0.9 per move is 0.1 after 22."""
    move, _ = autoregression(rho, modes)
    start = population_at(modes, 5_000)  # d known to 2 %
    scale = Diagonal(np.ones(1))
    _, told, _ = forget(start, move, 1.0, scale, 1.0, 0, 128)
    assert max(least, 2 if modes else 1) <= told.num_moves <= max(most, 4 if modes else 1)
    assert told.correlation <= 0.1


def test_particles_move_until_their_tails_have_forgotten():
    """All but the lowest tenth are drawn anew by each move; of these three in ten are."""
    generator = np.random.default_rng(6)

    def move(population, kernel, index, call):
        u = population.position
        for _ in range(int(kernel.num_moves)):
            fresh = generator.normal(size=u.shape)
            low = -1.28 - np.abs(fresh)
            u = np.where(u < -1.28, np.where(generator.uniform(size=u.shape) < 0.7, u, low), np.abs(fresh) - 1.28)
        return Moves(population._replace(position=u), np.float64(0.8), np.float64(0.0))

    start = population_at(size=1_000)
    start = start._replace(position=np.where(start.position < -1.28, start.position, np.abs(start.position) - 1.28))
    moved, told, left = forget(start, move, 1.0, Diagonal(np.ones(1)), 1.0, 0, 128)
    assert told.num_moves == 8  # 0.7⁴ of the lowest stay where they were, and 0.7⁸
    np.testing.assert_array_equal(left, tails(columns_of(start), columns_of(moved)))
    assert left.memory.max() < 2.0


def test_the_limit_of_moves_is_kept_and_told():
    move, seen = autoregression(0.999)
    _, told, _ = forget(population_at(), move, 1.0, Diagonal(np.ones(1)), 1.0, 0, 10)
    assert told.num_moves == 8, "they double, so that what is left can be told"
    assert told.correlation > 0.9
    assert told.num_gradients == sum(2_000 * (1 + steps * moves) for steps, _, moves in seen)


def test_undefined_densities_are_told_by_the_move():
    move, _ = autoregression(0.999)
    _, told, _ = forget(
        population_at(), lambda *args: move(*args)._replace(undefined=0.5), 1.0, Diagonal(np.ones(1)), 1.0, 0, 16
    )
    assert told.num_moves == 16
    assert told.undefined == 0.5


def test_moves_are_in_the_scale_of_the_particles_of_all_islands():
    kernels = []

    def move(population, kernel, index, call):
        kernels.append(kernel)
        return Moves(population, np.float64(0.8), np.float64(0.0))

    start = population_at()
    start = start._replace(position=7.0 + 2.0 * start.position)
    temper(Tempered.begin(start), move, np.random.default_rng(0), ess_share=0.5, max_moves=1)
    np.testing.assert_allclose(kernels[0].scale.dense()[0, 0], np.var(start.position))


def test_steps_shrink_where_moves_are_refused_and_their_number_grows():
    move, seen = autoregression(0.99, acceptance=0.1)
    forget(population_at(), move, 1.0, Diagonal(np.ones(1)), 1.0, 0, 128)
    steps, sizes, _ = zip(*seen, strict=True)
    assert np.all(np.diff(sizes) < 0)
    assert steps[0] == 2
    assert steps[-1] == MAX_STEPS


def test_evidence_of_a_path_that_needs_no_moves():
    """Gains that do not depend on the position: every Ẑ_k is known exactly."""
    move, _ = autoregression(0.0)
    start = population_at()
    start = start._replace(gain=np.full_like(start.gain, -3.0))
    done = temper(Tempered.begin(start), move, np.random.default_rng(0), ess_share=0.5, max_moves=4)
    np.testing.assert_allclose(done.log_z, -3.0)
    assert done.each("beta").tolist() == [1.0]
    assert done.is_ancestor.all()
    half = start._replace(gain=np.where(np.arange(500) % 2 == 0, -3.0, -np.inf) + 0 * start.gain.clip(0))
    done = temper(Tempered.begin(half), move, np.random.default_rng(0), ess_share=0.5, max_moves=1)
    assert done.moved[0].beta == 0.0
    np.testing.assert_array_equal(done.is_ancestor, np.tile(np.arange(500) % 2 == 0, (4, 1)))
