"""Batch and match: the closed form, exactness on Gaussians, the fixed point on a skewed target, bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.linalg
from numpyro.distributions import constraints
from scipy.optimize import brentq

import credo
import targets
from credo.linalg.dense import Dense
from credo.methods.vi.matching.draws import draws, in_blocks
from credo.methods.vi.matching.update import inconsistency, match, weights
from credo.model.model import Model
from credo.posterior.kinds import Gaussian
from credo.posterior.posterior import Posterior
from credo.precision import double
from credo.status import CredoError
from interrupted import on_a_full_disk


def paper(z, g, w, mean, covariance, rate):
    """Cai et al. (2024), algorithm 1, as printed: with a square root of a matrix that is not symmetric.

    ``w``: weights of the draws, 1/B there.
    """
    share = rate / (1 + rate)
    z_mean, g_mean = w @ z, w @ g
    C, Γ = (z - z_mean).T @ np.diag(w) @ (z - z_mean), (g - g_mean).T @ np.diag(w) @ (g - g_mean)
    U = rate * Γ + share * np.outer(g_mean, g_mean)
    V = covariance + rate * C + share * np.outer(mean - z_mean, mean - z_mean)
    identity = np.eye(len(mean))
    new = 2 * V @ np.linalg.inv(identity + np.real(scipy.linalg.sqrtm(identity + 4 * U @ V)))
    return (1 - share) * mean + share * (new @ g_mean + z_mean), new, U, V


@pytest.mark.parametrize(("num_samples", "dim"), [(4, 7), (12, 5)])
@pytest.mark.parametrize("rate", [0.1, 30.0])
@pytest.mark.parametrize("is_even", [True, False])
def test_the_closed_form_is_the_papers(num_samples, dim, rate, is_even):
    generator = np.random.default_rng(dim)
    S = np.tril(generator.normal(size=(dim, dim))) + 3 * np.eye(dim)
    mean, noise = generator.normal(size=dim), generator.normal(size=(num_samples, dim))
    scores = 2 * generator.normal(size=(num_samples, dim)) - 1
    w = np.full(num_samples, 1 / num_samples) if is_even else generator.dirichlet(np.ones(num_samples))
    with double():
        step = match(*map(jnp.asarray, (noise, scores @ S, w, rate)))
        covariance = S @ np.asarray(step.covariance()) @ S.T
        new_mean = mean + S @ np.asarray(step.mean)
        np.testing.assert_allclose(step.excess(), np.diagonal(step.covariance()) - 1, atol=1e-10)
    their_mean, theirs, U, V = paper(mean + noise @ S.T, scores, w, mean, S @ S.T, rate)
    np.testing.assert_allclose(covariance, theirs, atol=1e-9 * np.abs(theirs).max())
    np.testing.assert_allclose(covariance @ U @ covariance + covariance, V, atol=1e-9 * np.abs(V).max())
    np.testing.assert_allclose(new_mean, their_mean, atol=1e-9 * np.abs(their_mean).max())
    assert np.linalg.eigvalsh(covariance)[0] > 0


def test_scores_too_large_for_any_gaussian_keep_it_positive():
    generator = np.random.default_rng(0)
    noise = generator.normal(size=(6, 4))
    with double():
        step = match(*map(jnp.asarray, (noise, 1e6 * generator.normal(size=(6, 4)), np.full(6, 1 / 6), 1e3)))
        assert np.linalg.eigvalsh(step.covariance())[0] > 0


def test_a_draw_far_out_in_the_tail_has_little_say():
    """Of scores −ε but for one draw, where it is 100 times too large: even weights follow it."""
    dim = 5
    with double():
        noise = draws(jax.random.key(0), 20, dim)
        scores = (-noise).at[0].multiply(100.0)
        w, even = weights(noise, scores), weights(noise, -noise)
        changes = [np.asarray(match(noise, scores, v, jnp.asarray(1.0)).covariance()) - np.eye(dim) for v in (w, even)]
    np.testing.assert_allclose(even, 1 / 20)
    np.testing.assert_allclose(np.sum(np.asarray(w)), 1)
    assert 4 * np.max(np.abs(changes[0])) < np.max(np.abs(changes[1]))


def test_inconsistency_is_what_no_gaussian_explains():
    """γ_i = c_i − (K ε)_i + a (ε_i² − 1): the last has mean zero, no covariance with ε, and 2 a² of squares."""
    generator, dim, a = np.random.default_rng(1), 4, 0.3
    noise = generator.normal(size=(400, 50, dim))
    root = generator.normal(size=(dim, dim))
    linear = generator.normal(size=dim) - noise @ (root @ root.T)
    with double():
        none = np.asarray(jax.vmap(inconsistency)(noise, linear))
        found = np.asarray(jax.vmap(inconsistency)(noise, linear + a * (noise**2 - 1)))
    assert np.max(none) < 1e-24
    assert abs(found.mean() - 2 * a**2 * dim) < 4 * found.std() / np.sqrt(len(found))


@pytest.mark.parametrize("dim", [1, 2, 3, 10, 40])
def test_blocks_average_quadratics_exactly(dim):
    number = in_blocks(dim)
    assert 20 <= number < 20 + 2 * dim
    with double():
        first, second = (np.asarray(draws(jax.random.key(k), number, dim)) for k in (0, 1))
    assert first.shape == (number, dim)
    np.testing.assert_allclose(first[0::2], -first[1::2])
    np.testing.assert_allclose(first.T @ first / number, np.eye(dim), atol=1e-12)
    assert dim == 1 or np.max(np.abs(first - second)) > 0.1  # another key, another position


def test_the_lengths_of_many_blocks_are_chis():
    """E|ε|⁴ = d (d + 2), by the quantiles' midpoints to a few per cent; one block knows nothing of it."""
    dim, num_blocks = 3, 200
    with double():
        squares = np.sum(np.asarray(draws(jax.random.key(0), 2 * dim * num_blocks, dim)) ** 2, axis=1)
        sphere = np.sum(np.asarray(draws(jax.random.key(0), 2 * dim, dim)) ** 2, axis=1)
    np.testing.assert_allclose(np.mean(squares), dim, rtol=1e-12)
    np.testing.assert_allclose(np.mean(squares**2), dim * (dim + 2), rtol=0.02)
    np.testing.assert_allclose(sphere, dim, rtol=1e-12)


def test_fewer_draws_than_a_block_and_numbers_that_fill_none():
    with double():
        assert draws(jax.random.key(0), 7, 5).shape == (7, 5)
        cut = np.asarray(draws(jax.random.key(0), 15, 5))
    assert cut.shape == (15, 5)
    np.testing.assert_allclose(cut[:10].T @ cut[:10] / 10, np.eye(5) * np.sum(cut[0] ** 2) / 5, atol=1e-12)


def test_inconsistency_of_a_block():
    """A residual (ε_1 ε_2, 0, …): of mean square d/(d + 2) on the sphere, and (B/(B − 1))² of it, since the mean of a
    block, which the estimate takes from its squares, is exactly 0."""
    dim, a = 6, 0.5
    with double():
        noise = np.stack([np.asarray(draws(jax.random.key(k), 2 * dim, dim)) for k in range(400)])
        scores = -2 * noise
        scores[..., 0] += a * noise[..., 1] * noise[..., 2]
        found = np.asarray(jax.vmap(inconsistency)(noise, scores))
    expected = a**2 * dim / (dim + 2) * (2 * dim / (2 * dim - 1)) ** 2
    assert abs(found.mean() - expected) < 4 * found.std() / np.sqrt(len(found))


def gaussian(dim, seed=0, root=None):
    """(target, mean, covariance): normalised, of condition about 100."""
    generator = np.random.default_rng(seed)
    if root is None:
        root = np.linalg.qr(generator.normal(size=(dim, dim)))[0] * np.logspace(0, 1, dim)
    mean, covariance = generator.normal(size=dim), root @ root.T
    factor = np.linalg.cholesky(covariance)

    def log_density(params):
        z = jax.scipy.linalg.solve_triangular(factor, params["w"] - mean, lower=True)
        return -0.5 * jnp.dot(z, z) - np.log(np.diagonal(factor)).sum() - 0.5 * dim * np.log(2 * np.pi)

    return Model.from_log_density(log_density, {"w": constraints.real_vector}, {"w": (dim,)}).given(), mean, covariance


def away(target, dim):
    """A start ten units off, of unit scale."""
    return Posterior(Gaussian(np.full(dim, 10.0), Dense(np.eye(dim))), target, verdict=None)


@pytest.mark.parametrize(("dim", "num_samples", "most"), [(6, None, 6), (20, 8, 200)])
def test_exact_on_a_gaussian_from_far_away(dim, num_samples, most):
    target, mean, covariance = gaussian(dim)
    method = credo.BatchAndMatch(num_samples=num_samples)
    posterior = credo.fit(target, method, start=away(target, dim), progress=False)
    assert posterior.info["num_steps"] <= most
    sd = np.sqrt(np.diagonal(covariance))
    np.testing.assert_allclose((posterior.mean()["w"] - mean) / sd, 0, atol=1e-6)
    np.testing.assert_allclose(posterior.sd()["w"], sd, rtol=1e-6)
    np.testing.assert_allclose(posterior.kind.scale.dense(), covariance, atol=1e-6 * covariance.max())
    assert abs(posterior.log_evidence.value) < 1e-6
    assert posterior.verdict.status == "pass"


def test_low_rank_is_exact_on_a_gaussian_of_its_kind():
    dim, generator = 40, np.random.default_rng(0)
    scale, factor = np.exp(0.5 * generator.normal(size=dim)), generator.normal(size=(dim, 2))
    root = np.linalg.cholesky(scale[:, None] * (np.eye(dim) + factor @ factor.T) * scale)
    target, mean, covariance = gaussian(dim, root=root)
    posterior = credo.fit(target, credo.BatchAndMatch(family=credo.vi.LowRank(rank=2)), progress=False)
    sd = np.sqrt(np.diagonal(covariance))
    np.testing.assert_allclose((posterior.mean()["w"] - mean) / sd, 0, atol=1e-6)
    np.testing.assert_allclose(
        posterior.kind.scale.dense() / np.outer(sd, sd), covariance / np.outer(sd, sd), atol=1e-5
    )
    assert posterior.info["num_steps"] < 150
    assert posterior.verdict.status == "pass"


def test_the_fixed_point_on_a_gumbel():
    """∇ log p = exp(−x) − 1. E_q of it is 0 where m = s²/2; its mean square, e^{s²} − 1 there, is 1/s²."""
    variance = brentq(lambda v: v * np.expm1(v) - 1, 0.1, 2.0)
    method = credo.BatchAndMatch(num_samples=64, tolerance=1e-3)
    posterior = credo.fit(targets.skewed().target, method, progress=False)
    # what q lacks, in nats, is an average: ten of it are far out in its tail
    lost = (
        0.5 * (posterior.mean()["x"] - variance / 2) ** 2 / variance + np.log(posterior.sd()["x"] / variance**0.5) ** 2
    )
    assert lost < 1e-2


def test_the_bound_holds_on_logistic_regression_for_few_gradients():
    known = targets.logistic()
    posterior = credo.fit(known.target, credo.BatchAndMatch(), progress=False)
    bound = posterior.log_evidence
    assert known.log_evidence - 0.05 - 4 * bound.error < bound.value < known.log_evidence + 4 * bound.error
    assert posterior.verdict.status == "pass"
    assert posterior.info["num_gradients"] < 500
    assert posterior.info["elbo_path"].shape == (2, posterior.info["num_steps"])


@pytest.mark.slow
def test_standardised_effects_need_no_mode():
    """Eight schools, whose mode lies where the scale of the effects is far too small or wide: from N(0, I)."""
    y, sd = np.array([28, 8, -3, 7, -1, 1, 18, 12.0]), np.array([15, 10, 16, 11, 9, 11, 10, 18.0])
    prior = {"mu": dist.Normal(0, 5), "tau": dist.HalfCauchy(5), "z": dist.Normal(0, 1).expand([8])}
    target = credo.Model(prior, lambda p, sd: dist.Normal(p["mu"] + p["tau"] * p["z"], sd)).given(sd, y)
    posterior = credo.fit(target, credo.BatchAndMatch(), progress=False)
    assert posterior.info["num_gradients"] == 4 + 20 * posterior.info["num_steps"] < 2_000
    longest = credo.fit(target, credo.ADVI(family=credo.FullRank()), progress=False).log_evidence
    assert posterior.log_evidence.value > longest.value - 0.1 - 4 * (posterior.log_evidence.error + longest.error)


def test_a_start_far_from_the_posterior_goes_by_way_of_the_mode():
    target, _, _ = gaussian(6)
    posterior = credo.fit(target, credo.BatchAndMatch(), start=np.full(6, 40.0), progress=False)
    assert posterior.info["num_gradients"] > 4 + 24 * posterior.info["num_steps"]
    assert posterior.verdict.status == "pass"


def test_another_family_is_refused():
    with pytest.raises(CredoError, match="closed form"):
        credo.fit(targets.skewed().target, credo.BatchAndMatch(family=credo.MeanField()), progress=False)
    with pytest.raises(CredoError, match="num_samples is 4 or more"):
        credo.fit(targets.skewed().target, credo.BatchAndMatch(num_samples=2), progress=False)
    with pytest.raises(CredoError, match="positive"):
        credo.fit(targets.skewed().target, credo.BatchAndMatch(tolerance=0.0), progress=False)


def test_an_improper_posterior_is_said():
    model = Model({"w": dist.ImproperUniform(constraints.real, (), (2,))}, lambda p, x: dist.Normal(p["w"].sum(), 1.0))
    target = model.given(np.zeros((3, 1)), np.array([0.1, 0.2, 0.3]))
    for start in (None, away(target, 2)):  # by the curvature at the mode, and by a q that widens without end
        posterior = credo.fit(target, credo.BatchAndMatch(), start=start, progress=False)
        assert posterior.verdict.status == "failed"
        assert any("improper" in sentence for sentence in posterior.verdict.sentences)
        assert posterior.log_evidence is None


def walled_density(params):
    """A Gaussian cut off far in its tail: beyond 4 nothing."""
    x = params["x"]
    return jnp.where(x < 4.0, -0.5 * jnp.square(x), -jnp.inf)


def test_where_the_density_is_zero_q_contracts():
    target = Model.from_log_density(walled_density, {"x": constraints.real}).given()
    wide = Posterior(Gaussian(np.zeros(1), Dense(50 * np.eye(1))), target, verdict=None)
    posterior = credo.fit(target, credo.BatchAndMatch(), start=wide, progress=False)
    assert posterior.info["num_rejected"] > 0
    assert abs(posterior.mean()["x"]) < 0.1
    assert abs(posterior.sd()["x"] - 1) < 0.1


def test_a_time_limit_ends_the_fit_with_what_it_has():
    target, method = targets.logistic().target, credo.BatchAndMatch(tolerance=1e-9, max_steps=300)
    posterior = credo.fit(target, method, time_limit=1e-6, progress=False)
    assert not posterior.info["is_complete"]
    assert 0 < posterior.info["num_steps"] < 300
    assert posterior.verdict.status != "pass"
    assert any("The time limit came after" in sentence for sentence in posterior.verdict.sentences)
    assert np.all(np.isfinite(posterior.mean()["w"]))


@pytest.mark.slow
def test_resume_continues_bit_for_bit(tmp_path):
    target, method = targets.logistic().target, credo.BatchAndMatch(tolerance=1e-9, max_steps=100)
    whole = credo.fit(target, method, progress=False)
    assert any("max_steps" in sentence for sentence in whole.verdict.sentences)
    folder = tmp_path / "run"
    with on_a_full_disk(folder, 3, phase=0):
        credo.fit(target, method, checkpoint=folder, progress=False)
    again = credo.resume(folder, target, progress=False)
    np.testing.assert_array_equal(again.kind.mean, whole.kind.mean)
    np.testing.assert_array_equal(again.kind.scale.lower, whole.kind.scale.lower)
