"""Bridge sampling: right within its error beside what is known, and louder than the path where the path is wrong."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.special import logsumexp
from sklearn.datasets import load_diabetes

from credo.fitting import fit
from credo.methods.particles.bridge import bridge
from credo.methods.particles.mutation import Particles
from credo.methods.particles.smc import SMC
from credo.model.model import Model

NUM_KEYS = 40
TRUE_LOG_Z = 3.0


def log_density(u):
    """Skewed in two coordinates, exp(3) in all."""
    value = stats.gamma(3.0).logpdf(np.exp(u[..., 0])) + u[..., 0] + stats.norm(u[..., 0], 0.5).logpdf(u[..., 1])
    return value + TRUE_LOG_Z


def particles_at(u):
    value = log_density(u)
    return Particles(u, 0.5 * value, 0.5 * value)


def draws(generator, num_islands, size):
    first = np.log(generator.gamma(3.0, size=(num_islands, size)))
    return np.stack([first, generator.normal(first, 0.5)], axis=-1)


def test_the_error_covers_and_is_no_larger_than_it_must_be():
    found = []
    for key in range(NUM_KEYS):
        generator = np.random.default_rng(key)
        found.append(bridge(particles_at(draws(generator, 16, 50)), np.zeros(16), particles_at, generator))
    errors = np.array([each.error for each in found])
    z = (np.array([each.value for each in found]) - TRUE_LOG_Z) / errors
    assert np.max(np.abs(z)) < 5
    assert abs(np.mean(z)) < 4 / np.sqrt(NUM_KEYS)
    assert 0.5 < np.mean(z**2) < 2
    assert np.max(errors) < 0.05


def test_the_error_covers_where_all_error_is_that_of_the_fit():
    """Of Gaussian draws: two halves that serve each other err alike, by 1.5 times the square of what was said."""

    def at(u):
        return Particles(u, -0.5 * np.sum(u**2 + np.log(2 * np.pi), axis=-1), np.zeros(u.shape[:2]))

    num_keys, z = 800, []
    for key in range(num_keys):
        generator = np.random.default_rng(key)
        found = bridge(at(generator.normal(size=(16, 6, 6))), np.zeros(16), at, generator)  # few: sds alone, no solves
        z.append(found.value / found.error)
    assert 0.7 < np.mean(np.square(z)) < 1 + 5 * np.sqrt(2 / num_keys)


def test_islands_count_by_their_shares():
    """Half of them draw from elsewhere, and count for nothing."""
    generator = np.random.default_rng(1)
    u = draws(generator, 16, 200)
    u[::4] += 5.0
    log_shares = np.where(np.arange(16) % 4 == 0, -np.inf, 0.0)
    found = bridge(particles_at(u), log_shares, particles_at, generator)
    assert abs(found.value - TRUE_LOG_Z) < 4 * found.error
    assert found.error < 0.05


def test_a_density_that_is_zero_over_half_of_the_space():
    def at(u):
        value = np.where(u[..., 0] > 0, stats.norm.logpdf(u[..., 0]), -np.inf)
        return Particles(u, value, np.zeros(value.shape))

    generator = np.random.default_rng(2)
    found = bridge(at(np.abs(generator.normal(size=(8, 400, 1)))), np.zeros(8), at, generator)
    assert abs(found.value - np.log(0.5)) < 4 * found.error
    assert found.error < 0.1


def test_nothing_is_known_where_nothing_meets():
    """A third of the islands counts for nothing; or the density is zero wherever the Gaussian has its draws."""
    generator = np.random.default_rng(3)
    u = draws(generator, 8, 50)
    for log_shares in (np.where(np.arange(8) % 3 > 0, 0.0, -1e4), np.zeros(8)):
        at = particles_at if log_shares.any() else lambda u: Particles(u, *np.full((2, *u.shape[:2]), -np.inf))
        found = bridge(particles_at(u), log_shares, at, generator)
        assert np.isnan(found.error)


def test_many_coordinates_take_no_matrix():
    def at(u):
        value = np.sum(stats.norm.logpdf(u), axis=-1)
        return Particles(u, value, np.zeros(value.shape))

    generator = np.random.default_rng(4)
    found = bridge(at(generator.normal(size=(8, 100, 700))), np.zeros(8), at, generator)
    assert abs(found.value) < 4 * found.error
    assert found.error < 0.5


@pytest.mark.parametrize(("sd", "num_particles"), [(10.0, 2_048), (100.0, 1_024)], ids=["10", "100"])
def test_a_regression_whose_path_leads_through_a_funnel(sd, num_particles):
    """Coefficients narrow as the unknown noise falls: along the path few particles find the way in."""
    x, y = load_diabetes(return_X_y=True)
    x, y = x[:100, [2, 3, 4, 8]], (y[:100] - y[:100].mean()) / y[:100].std()
    x = np.column_stack([np.ones(100), x / x.std(axis=0)])
    noise = np.linspace(0.4, 2.5, 101)  # enough for eight digits of the evidence
    values = [stats.multivariate_normal(np.zeros(100), s**2 * np.eye(100) + sd**2 * x @ x.T).logpdf(y) for s in noise]
    truth = logsumexp(values + stats.halfnorm(scale=sd / 2).logpdf(noise)) + np.log(noise[1] - noise[0])
    prior = {"w": dist.Normal(0.0, sd).expand([5]), "s": dist.HalfNormal(sd / 2)}
    model = Model(prior, lambda params, x: dist.Normal(jnp.dot(x, params["w"]), params["s"]))
    posterior = fit(model.given(x, y), SMC(num_particles), progress=False)
    evidence, along = posterior.log_evidence, posterior.info["path_evidence"]
    assert abs(evidence.value - truth) < 4 * evidence.error
    assert evidence.error < 0.02
    is_wrong = abs(along.value - truth) > 0.3
    assert is_wrong == (sd == 100.0)
    assert posterior.verdict.status == ("doubtful" if is_wrong else "pass")
    assert ("bridge sampling" in str(posterior.verdict)) == is_wrong
