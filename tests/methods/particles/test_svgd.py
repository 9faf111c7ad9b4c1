"""SVGD: the fixed point's own equations, one particle, the mean of a Gaussian, and the collapse that it admits."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo.algorithm import as_key, stream
from credo.methods.particles.svgd import STREAM, direction, first_particles, mean_offset, variance_share
from credo.model.windows import random_window, shuffled
from credo.posterior.kinds import Draws
from credo.precision import double
from targets import TARGETS

NORMAL = credo.Model.from_log_density(
    lambda params: -0.5 * jnp.sum(jnp.square((params["u"] - 3.0) / jnp.asarray([1.0, 0.5]))),
    {"u": dist.constraints.real},
    {"u": (2,)},
).given()


@pytest.fixture(scope="module")
def particles():
    return credo.fit(NORMAL, credo.SVGD(num_particles=40, num_steps=1_500), key=0)


def test_direction_is_liu_and_wangs():
    with double():
        rng = np.random.default_rng(0)
        u, scores = jnp.asarray(rng.normal(size=(5, 3))), jnp.asarray(rng.normal(size=(5, 3)))
        distances = [float(np.sum((u[i] - u[j]) ** 2)) for i in range(5) for j in range(i)]
        h = np.median(distances) / np.log(5)

        def k(a, b):
            return jnp.exp(-jnp.sum((a - b) ** 2) / h)

        wanted = [sum(k(u[j], v) * scores[j] + jax.grad(k)(u[j], v) for j in range(5)) / 5 for v in u]
        assert np.allclose(direction(u, scores), np.stack(wanted), rtol=1e-10)


def test_at_the_end_kernel_weighted_scores_sum_to_zero(particles):
    u = particles.kind.positions[0]
    distances = np.sum((u[:, None] - u[None]) ** 2, axis=-1)
    h = np.median(distances[np.triu_indices(len(u), 1)]) / np.log(len(u))
    weights = np.exp(-distances / h).sum(axis=1)
    assert particles.info["direction_norm"] < 1e-3
    # on a Gaussian: that mean is exact
    assert np.allclose(np.average(u, axis=0, weights=weights), 3.0, atol=2e-3)
    assert np.allclose(particles.mean()["u"], 3.0, atol=0.1)
    assert np.allclose(particles.sd()["u"], [1.0, 0.5], rtol=0.15)
    assert 0.8 < particles.verdict.figures["variance_share"] < 1.1


def test_one_particle_climbs_to_the_mode():
    one = credo.fit(NORMAL, credo.SVGD(num_particles=1, num_steps=800), key=0)
    assert np.allclose(one.kind.positions[0, 0], 3.0, atol=1e-3)


def test_variance_share_of_draws_is_one_and_of_collapsed_particles_less():
    rng = np.random.default_rng(1)
    u = rng.normal(size=(500, 40))
    assert abs(variance_share(u, -u) - 1) < 5 * np.sqrt(2 / u.size)  # a mean of chi-squares
    assert abs(variance_share(0.5 * u, -0.5 * u) - 0.25) < 0.1
    wide = credo.Model.from_log_density(
        lambda params: -0.5 * jnp.sum(params["u"] ** 2), {"u": dist.constraints.real}, {"u": (100,)}
    )
    collapsed = credo.fit(wide.given(), credo.SVGD(num_particles=10, num_steps=600), key=0)
    assert collapsed.verdict.figures["variance_share"] < 0.5
    assert collapsed.verdict.status == "failed"
    assert any("collapse" in sentence for sentence in collapsed.verdict.sentences)


def test_mean_offset_of_a_gaussian_is_its_distance_and_tells_of_too_few_steps(particles):
    rng = np.random.default_rng(2)
    root = np.linalg.cholesky(np.array([[4.0, 1.5], [1.5, 1.0]]))
    z = rng.normal(size=(4_000, 2))
    z = (z - z.mean(axis=0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(z.T))).T  # of covariance I and mean zero
    u = z @ root.T + [0.6, -0.2]  # of the target N(0, root rootᵀ) but for its mean: 0.6 / 2, 0.2 / 1
    scores = -np.linalg.solve(root @ root.T, u.T).T
    assert np.isclose(mean_offset(u, scores), 0.3, rtol=1e-8)
    assert particles.verdict.figures["mean_offset"] < 0.1
    few = credo.fit(NORMAL, credo.SVGD(num_particles=40, num_steps=20), key=0)
    off = np.max(np.abs(few.mean()["u"] - 3.0) / [1.0, 0.5])
    assert off > 0.5
    assert few.verdict.figures["mean_offset"] > 0.5
    assert few.verdict.status == "failed"
    assert any("num_steps" in sentence for sentence in few.verdict.sentences)


def test_mean_offset_of_minibatches_is_by_all_rows():
    known = TARGETS["logistic"]()
    some = credo.fit(known.target, credo.SVGD(num_particles=50, num_steps=1_000, batch_size=16), key=0)
    gaps = [np.max(np.abs(some.mean()[name] - mean) / known.sd[name]) for name, mean in known.mean.items()]
    assert max(gaps) > 0.1
    assert np.isclose(some.verdict.figures["mean_offset"], max(gaps), rtol=0.5)


def test_minibatches_give_about_the_particles_of_all_rows():
    known = TARGETS["logistic"]()
    whole, some = (
        credo.fit(known.target, credo.SVGD(num_particles=30, num_steps=1_000, batch_size=size), key=0)
        for size in (None, 100)
    )
    for name, sd in whole.sd().items():
        assert np.all(np.abs(whole.mean()[name] - some.mean()[name]) < 0.5 * sd)


def test_starts_and_bad_settings():
    ensemble = credo.fit(NORMAL, credo.DeepEnsemble(members=3, num_steps=5, batch_size=None), key=0)
    begun = credo.fit(NORMAL, credo.SVGD(num_particles=3, num_steps=1, step_size=1e-9), key=0, start=ensemble)
    assert np.allclose(begun.kind.positions, ensemble.kind.positions, atol=1e-6)  # a particle a member
    with pytest.raises(credo.CredoError, match=r"start has shape \(5, 2\): give one position, \(2,\), or 3 of them"):
        credo.fit(NORMAL, credo.SVGD(num_particles=3), start=np.zeros((5, 2)))
    with pytest.raises(credo.CredoError, match="step_size"):
        credo.fit(NORMAL, credo.SVGD(step_size=0.0))
    with pytest.raises(credo.CredoError, match="num_particles=100"):
        credo.fit(NORMAL, credo.SVGD(num_particles=1_000_000), max_memory=1_000_000)


def test_particles_at_weighed_draws_begin_where_the_weights_are():
    u = np.repeat([-5.0, 5.0], 50)[:, None] * np.ones(2)
    log_weights = np.where(u[None, :, 0] > 0, -np.log(50), -np.inf)
    start = credo.Posterior(Draws(u[None], log_weights), NORMAL, verdict=credo.Verdict("pass"))
    with double():
        assert np.all(first_particles(NORMAL.flat(), 10, jax.random.key(0), start) > 0)


def test_particles_beyond_an_edge_are_refused():
    cut = credo.Model.from_log_density(
        lambda params: jnp.where(params["u"] > 0, -params["u"], -jnp.inf), {"u": dist.constraints.real}
    ).given()
    with pytest.raises(credo.CredoError, match=r"of 10 particles stand where the density is zero"):
        credo.fit(cut, credo.SVGD(num_particles=10, num_steps=2), key=0, progress=False)


def test_particles_of_a_point_are_set_apart():
    """A hundred at one place stay there."""
    y = np.random.default_rng(0).normal(1.0, 2.0, 20)
    model = credo.Model({"m": dist.Normal(0.0, 5.0)}, lambda params, x: dist.Normal(params["m"], 2.0))
    target = model.given(y=y)
    start = credo.fit(target, credo.MAP(), progress=False)
    posterior = credo.fit(target, credo.SVGD(num_steps=300), start=start, key=0, progress=False)
    assert len(np.unique(posterior.kind.positions)) == posterior.kind.positions.size
    assert float(posterior.sd()["m"]) == pytest.approx(1 / np.sqrt(20 / 4 + 1 / 25), rel=0.2)


ROWS = np.r_[np.linspace(0.1, 1.0, 39), -2.0]  # of b > 2.5 the last has no likelihood


@pytest.mark.parametrize("batch_size", [None, 10])
def test_a_density_that_is_no_number_ends_the_way(batch_size):
    model = credo.Model({"b": dist.Normal(0.0, 10.0)}, lambda p, x: dist.Normal(jnp.log(5.0 + p["b"] * x), 0.1))
    target = model.given(ROWS, np.r_[np.log(5.0 + 4.0 * ROWS[:-1]), -6.0])
    method = credo.SVGD(num_particles=5, num_steps=400, batch_size=batch_size)
    posterior = credo.fit(target, method, start={"b": 0.0}, progress=False)
    at, said = posterior.info["failed_at"], posterior.verdict.sentences[0]
    assert posterior.verdict.status == "failed"
    assert f"at step {at + 1}" in said
    if batch_size is None:
        assert np.all(posterior.draws["b"] <= 2.5)
        return
    data = shuffled(target.flat(), 10, np.random.default_rng(stream(jax.random.key(0), STREAM)))
    with double():  # in which the fit was
        key = jax.random.fold_in(as_key(stream(jax.random.key(0), STREAM, 1)), at)
        seen = np.asarray(random_window(data, 10, key).x)
    named = [int(each) for each in said.split("rows ")[1].split(" …")[0].split(", ")]
    np.testing.assert_array_equal(ROWS[named], seen[: len(named)])
    assert -2.0 in seen
