"""Parallel tempering leaves its path invariant, finds the weights of separated modes, and says where it could not."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import jax.scipy.stats as jstats
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import credo
from credo.diagnose.convergence import mcse_mean
from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.methods.mcmc.ladder import (
    State,
    Tuning,
    cumulative_barrier,
    end_gathering,
    end_window,
    equally_rejecting,
    first_betas,
    log_evidence,
)
from credo.methods.mcmc.metric import DiagonalMetric
from credo.methods.mcmc.parallel_tempering import parallel_tempering
from credo.methods.mcmc.warmup import restart
from credo.native import jit
from credo.posterior.kinds import Gaussian
from credo.precision import double, to_numpy
from densities import LOWER, Density, gaussian, gumbel
from interrupted import at_chunk
from targets import TARGETS

NUM_CHAINS = 10_000
MAX_Z = 5.0  # of 24 to 60 statistics a case: one false alarm in 29,000 cases
STATISTICS = (lambda x: x, lambda x: x**2, lambda x: x**3, lambda x: x * np.roll(x, 1, axis=1))
WIDE = Gaussian(np.array([1.0, 0.0, -1.0]), Diagonal(np.array([3.0, 2.0, 2.5])))
BESIDE = Gaussian(np.array([1.0, 0.0]), Diagonal(np.array([2.0, 3.0])))


def along_the_path(rng, betas):
    """Exact draws of every member of the path from WIDE to ``gaussian``, which are Gaussians all."""
    first, last = np.diag(1 / np.square(WIDE.scale.scale)), np.linalg.inv(LOWER @ LOWER.T)
    draws = []
    for beta in betas:
        precision = (1 - beta) * first + beta * last
        mean = np.linalg.solve(precision, (1 - beta) * first @ WIDE.mean)
        draws.append(mean + rng.normal(size=(NUM_CHAINS, 3)) @ np.linalg.cholesky(np.linalg.inv(precision)).T)
    return np.stack(draws, axis=1)


def at_both_ends(rng, betas):
    drawn = BESIDE.mean + rng.normal(size=(NUM_CHAINS, 2)) * BESIDE.scale.scale
    return np.stack([drawn, rng.gumbel(size=(NUM_CHAINS, 2))], axis=1)


CASES = {
    "path": (gaussian, WIDE, along_the_path, (0.0, 0.2, 0.5, 1.0), None),
    "path, dense": (gaussian, WIDE, along_the_path, (0.0, 0.3, 1.0), Dense(np.stack([LOWER, 2 * LOWER, LOWER]))),
    "ties": (gaussian, WIDE, along_the_path, (0.4, 0.4, 0.4, 1.0), None),
    "skewed": (gumbel, BESIDE, at_both_ends, (0.0, 1.0), None),
}


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("case", list(CASES))
def test_path_is_invariant(case):
    """Replicas that start from exact draws: no statistic of any of them may have changed after two steps."""
    function, reference, draws, betas, metric = CASES[case]
    before = draws(np.random.default_rng(1), betas)
    with double():
        algorithm = parallel_tempering(
            Density(function),
            betas=np.array(betas),
            step_size=np.linspace(1.2, 0.6, len(betas)),
            num_steps=3,
            reference=reference,
            metric=metric,
        )

        def two(chain):
            key, position = jax.random.wrap_key_data(chain[0]), chain[1]
            state = algorithm.init(key, position)
            return jax.lax.scan(lambda s, k: algorithm.step(k, s), state, jax.random.split(key, 2))

        keys = np.random.default_rng(2).integers(0, 2**32, (NUM_CHAINS, 2), np.uint32)
        end, info = to_numpy(jit(lambda *chains: jax.lax.map(two, chains))(keys, before))
        truth = to_numpy(jax.vmap(lambda position: algorithm.init(None, position))(end.position))
    assert np.mean(np.any(end.position != before, axis=2)) > 0.5, "the replicas hardly move"
    for statistic in STATISTICS:
        for k in range(len(betas)):
            change = statistic(end.position[:, k]) - statistic(before[:, k])
            z = change.mean(axis=0) / (change.std(axis=0) / np.sqrt(NUM_CHAINS))
            assert np.all(np.abs(z) < MAX_Z)
    for found, expected in zip(end[:-1], truth[:-1], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    is_tied = np.diff(betas) == 0
    np.testing.assert_allclose(info.rejection[..., is_tied], 0, atol=1e-12)
    assert np.any(info.num_round_trips > 0) == (betas[0] == 0)


def test_temperatures_of_equal_rejection():
    """Whatever the temperatures that a barrier Λ(β) = √β was seen at."""
    betas = np.linspace(0, 1, 201)
    rejection = np.broadcast_to(np.diff(np.sqrt(betas)), (4, 10, 200))
    found = equally_rejecting(betas, cumulative_barrier(rejection))
    np.testing.assert_allclose(found, np.linspace(0, 1, 201) ** 2, atol=0.01)


def test_what_was_never_known_is_rejected():
    np.testing.assert_array_equal(cumulative_barrier(np.full((4, 10, 2), np.nan)), [0, 1, 2])


def window(rng, betas):
    """What two chains of replicas recorded in 20 steps, and the tuning with which they did."""
    shape = (2, 20, len(betas), 3)
    names = ("replicas", "base_gradient", "gain_gradient")
    kept = {name: (1 + np.arange(len(betas)))[:, None] * rng.normal(size=shape) for name in names}
    ones = Diagonal(np.ones((len(betas), 3)))
    return kept, Tuning(np.asarray(betas), ones, WIDE, np.asarray(0.8), np.bool_(True))


def at(position, betas, reference) -> State:
    with double():
        algorithm = parallel_tempering(
            Density(gaussian), betas=betas, step_size=np.ones(len(betas)), num_steps=1, reference=reference
        )
        kernel = to_numpy(algorithm.init(None, jnp.asarray(position)))
    log_average = np.log(1.0 + np.arange(len(betas)))
    return State(kernel, restart(np.ones(len(betas)))._replace(log_average=log_average))


def test_a_window_ends_with_metrics_and_steps_where_the_barrier_is_the_same():
    """Λ is 0, 0.2, 0.4, 1.8 at these temperatures, and is asked for at 0, 0.6, 1.2, 1.8."""
    rng, betas = np.random.default_rng(0), np.array([0.0, 0.1, 0.5, 1.0])
    kept, tuning = window(rng, betas)
    states = [at(rng.normal(size=(4, 3)), betas, WIDE) for _ in range(2)]
    info = SimpleNamespace(rejection=np.tile([0.2, 0.2, 1.4], (2, 20, 1)))
    found, states = end_window(DiagonalMetric(), False, (kept, info), tuning, states)
    places = [0.0, 2 + 0.2 / 1.4, 2 + 0.8 / 1.4, 3.0]  # among the old ones
    np.testing.assert_allclose(found.betas, np.interp(places, range(4), betas))
    for state in states:
        np.testing.assert_allclose(state.step.log_step, np.interp(places, range(4), np.log([1, 2, 3, 4])))
    for scale, k in zip(found.metric.scale, (1, 2, 3, 3), strict=True):  # that of the first is of no use
        gradients = kept["base_gradient"][:, :, k] + betas[k] * kept["gain_gradient"][:, :, k]
        expected = DiagonalMetric().estimate(kept["replicas"][:, :, k], gradients, Diagonal(np.ones(3)))
        np.testing.assert_allclose(scale, expected.scale)


def test_gathering_ends_at_a_reference_twice_as_wide_as_what_was_found_last():
    rng, betas = np.random.default_rng(0), np.ones(3)
    kept, tuning = window(rng, betas)
    before = at(rng.normal(size=(3, 3)), betas, WIDE)
    with double():
        found, (state,) = end_gathering(DiagonalMetric(), True, (kept, None), tuning, [before])
    late = kept["replicas"][:, 10:].reshape(-1, 3)
    np.testing.assert_allclose(found.reference.mean, late.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(found.reference.scale.scale, 2 * late.std(axis=0))
    np.testing.assert_array_equal(found.betas, first_betas(3, float))
    for leaf, expected in zip(state.kernel, at(before.position, betas, found.reference).kernel, strict=True):
        np.testing.assert_allclose(leaf, expected, rtol=1e-9)
    # all replicas have one target, and so one metric
    pooled = [np.concatenate(np.moveaxis(kept[name], 2, 0)) for name in kept]
    expected = DiagonalMetric().estimate(pooled[0], pooled[1] + pooled[2], Diagonal(np.ones(3)))
    np.testing.assert_allclose(found.metric.scale, np.tile(expected.scale, (3, 1)))


def test_evidence_of_independent_draws():
    """π_0 = N(0, 2²), ℓ(u) = −u²/2: the path is Gaussian and log Z_1/Z_0 = −½ log(1 + 4)."""
    rng, betas = np.random.default_rng(0), np.linspace(0, 1, 6) ** 2
    z = []
    for _ in range(200):
        u = rng.normal(size=(2, 100, 6)) / np.sqrt(0.25 + betas)
        found = log_evidence(-0.5 * u**2, betas)
        z.append((found.value + 0.5 * np.log(5.0)) / found.error)
    assert abs(np.mean(z)) < 5 / np.sqrt(200)
    assert 0.8 < np.std(z) < 1.25  # the sd of an sd of 200 is 0.05


# through credo.fit ----------------------------------------------------------------------------------------------------


def share_above(posterior, name, bound=0.0):
    """(share of draws above, its standard error)."""
    above = (posterior.draws[name] > bound).astype(float)
    above = above[..., None] if above.ndim == 2 else above[..., :1]
    return above.mean(), mcse_mean(above)[0]


def test_weights_of_the_mixture():
    target = TARGETS["mixture"]().target
    posterior = credo.fit(target, credo.ParallelTempering(), key=3, progress=False)
    assert posterior.verdict.status == "pass", posterior.verdict
    share, error = share_above(posterior, "x")
    assert abs(share - 0.7) < 4 * error
    assert error < 0.02
    assert abs(posterior.log_evidence.value) < 4 * posterior.log_evidence.error < 0.2
    assert any("stays unseen" in sentence for sentence in posterior.verdict.sentences)
    # temperatures are those of equal rejection
    assert np.ptp(posterior.info["rejection"]) < 0.06
    assert posterior.verdict.figures["swap_rate"] == pytest.approx(1 - posterior.info["rejection"].max())
    assert credo.fit(target, credo.NUTS(), key=3, progress=False).verdict.status != "pass"


def two_modes(params):
    """0.3 and 0.7 of N(±a, I) in ten dimensions, ten sds apart."""
    a = jnp.zeros(10).at[0].set(5.0)
    return jnp.logaddexp(
        jnp.log(0.3) + jnp.sum(jstats.norm.logpdf(params["x"] + a)),
        jnp.log(0.7) + jnp.sum(jstats.norm.logpdf(params["x"] - a)),
    )


def test_ten_dimensions():
    model = credo.Model.from_log_density(two_modes, {"x": constraints.real}, {"x": (10,)})
    posterior = credo.fit(model.given(), credo.ParallelTempering(), key=1, progress=False)
    assert posterior.verdict.status == "pass", posterior.verdict
    share, error = share_above(posterior, "x")
    assert abs(share - 0.7) < 4 * error
    assert error < 0.03
    np.testing.assert_allclose(posterior.sd()["x"][1:], 1.0, atol=0.1)
    assert posterior.verdict.figures["num_round_trips"] == posterior.info["round_trips"].sum()


SHORT = credo.ParallelTempering(num_warmup=100, num_draws=400, num_temperatures=6)


def test_from_the_prior():
    """A likelihood of zero for half of the prior, which the reference draws from all the same."""

    def likelihood(params, x):
        return dist.Uniform(0.0, jnp.where(params["x"] > 0, 1.0, jnp.nan))

    model = credo.Model({"x": dist.Normal(0.0, 1.0)}, likelihood)
    posterior = credo.fit(model.given(y=np.array([0.5])), SHORT, key=2, start=np.array([1.0]), progress=False)
    assert posterior.info["temperatures"][0] == 0
    assert np.all(posterior.draws["x"] > 0)
    assert not any("stays unseen" in sentence for sentence in posterior.verdict.sentences)
    table = posterior.summary()
    assert abs(table["mean"].iloc[0] - np.sqrt(2 / np.pi)) < 5 * table["mcse_mean"].iloc[0]
    assert abs(posterior.log_evidence.value - np.log(0.5)) < 5 * posterior.log_evidence.error


def test_conjugate_evidence_and_a_reference():
    target = TARGETS["gaussian"]().target
    reference = credo.fit(target, credo.Laplace(), key=0)
    posterior = credo.fit(
        target,
        credo.ParallelTempering(num_warmup=100, num_draws=400, num_temperatures=4, reference=reference),
        key=0,
        progress=False,
    )
    assert posterior.verdict.figures["barrier"] < 0.05  # Laplace is exact
    assert abs(posterior.log_evidence.value) < 1e-6


MEANS = credo.Model({"m": dist.Normal(0.0, 30.0).expand([5])}, lambda params, x: dist.Normal(params["m"], 0.04))


@pytest.mark.parametrize("num_chunks", [12, 20, 28])
def test_a_run_goes_on_bit_for_bit(tmp_path, num_chunks):
    """What a barrier makes lies in memory as a file gives it back: products round by that."""
    prior = {"mu": dist.Normal(0, 5), "tau": dist.HalfCauchy(5), "z": dist.Normal(0, 1).expand([8])}
    model = credo.Model(prior, lambda params, x: dist.Normal(params["mu"] + params["tau"] * params["z"], x))
    target = model.given(np.arange(10.0, 18.0), np.linspace(-3.0, 28.0, 8))
    method = credo.ParallelTempering(num_draws=60)
    with at_chunk(num_chunks):
        credo.fit(target, method, key=3, checkpoint=tmp_path, progress=False)
    resumed = credo.resume(tmp_path, target, progress=False)
    whole = credo.fit(target, method, key=3, progress=False)
    for name, draws in whole.draws.items():
        np.testing.assert_array_equal(resumed.draws[name], draws)
    assert resumed.log_evidence == whole.log_evidence


def test_no_way_through_is_no_pass():
    """Two temperatures are too few for a posterior 700 times narrower than the prior, which is never reached."""
    method = credo.ParallelTempering(num_warmup=60, num_draws=200, num_temperatures=2)
    posterior = credo.fit(MEANS.given(y=np.zeros((1, 5))), method, key=0, progress=False)
    assert posterior.verdict.figures["num_round_trips"] == 0
    assert posterior.verdict.status == "failed"
    assert any("raise num_temperatures" in sentence for sentence in posterior.verdict.sentences)


@pytest.mark.slow
def test_layouts_agree():
    """The same keys: without warm-up, trajectories part only as rounding grows."""
    method = credo.ParallelTempering(num_warmup=0, num_draws=5, num_temperatures=2)
    threads, vectorized = (
        credo.fit(MEANS.given(y=np.zeros((1, 5))), method, key=2, layout=layout, progress=False).kind.positions
        for layout in ("threads", "vectorized")
    )
    np.testing.assert_allclose(vectorized, threads, rtol=1e-6, atol=1e-8)


def test_all_replicas_of_a_chain_begin_where_it_is_told_to():
    """The data say nothing of a sign, and no step leads from one to the other."""
    model = credo.Model(MEANS.prior, lambda params, x: dist.Normal(jnp.abs(params["m"]), 0.04))
    signs = np.array([1.0, -1.0, 1.0, -1.0])
    method = credo.ParallelTempering(num_warmup=0, num_draws=5, num_temperatures=2)
    start = 10 * np.outer(signs, np.ones(5))
    draws = credo.fit(model.given(y=np.full((1, 5), 10.0)), method, key=2, start=start, progress=False).draws["m"]
    np.testing.assert_array_equal(np.sign(draws), np.broadcast_to(signs[:, None, None], draws.shape))


def test_what_cannot_be():
    target = TARGETS["gaussian"]().target
    with pytest.raises(credo.CredoError, match="too short"):
        credo.fit(target, credo.ParallelTempering(num_warmup=50), progress=False)
    point = credo.fit(target, credo.MAP())
    other = credo.fit(TARGETS["skewed"]().target, credo.Laplace())
    with pytest.raises(credo.CredoError, match="has no density"):
        credo.fit(target, credo.ParallelTempering(reference=point), progress=False)
    with pytest.raises(credo.CredoError, match="other parameters"):
        credo.fit(target, credo.ParallelTempering(reference=other), progress=False)


def test_a_reference_that_knows_of_one_mode_does_not_pass():
    """Its temperatures all begin there, and the evidence was that of a half."""
    two = credo.Model.from_log_density(
        lambda p: jnp.logaddexp(-2 * (p["x"] - 3) ** 2, -2 * (p["x"] + 3) ** 2 - 0.5),
        {"x": constraints.real},
        init={"x": 3.0},
    )
    reference = credo.fit(two.given(), credo.Laplace(), progress=False)
    method = credo.ParallelTempering(num_draws=500, num_temperatures=4, reference=reference)
    assert credo.fit(two.given(), method, key=1, progress=False).verdict.status != "pass"
