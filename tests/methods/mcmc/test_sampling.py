"""NUTS and HMC through ``credo.fit``: draws, verdicts, starts, checkpoints, and what is traced and compiled."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import credo
from credo.diagnose.convergence import e_bfmi
from credo.methods.mcmc import AutomaticMetric, DenseMetric, DiagonalMetric
from credo.methods.mcmc.nuts import nuts
from credo.methods.mcmc.slice import slice_sampling
from credo.methods.mcmc.start import gradients_away, start_chains
from credo.methods.mcmc.warmup import Adaptive
from credo.precision import double
from interrupted import at_chunk, out_of_time
from targets import TARGETS

SHORT = credo.NUTS(num_warmup=60, num_draws=80)
TRACES, COMPILED = [], []


def listen(event, duration, *, fun_name="", **_):
    if event == "/jax/core/compile/backend_compile_duration":
        COMPILED.append(fun_name)


jax.monitoring.register_event_duration_secs_listener(listen)


def noisy(params, x):
    TRACES.append(x)
    return dist.Normal(params["slope"] * x["x"] + params["level"][x["group"]], params["noise"])


MODEL = credo.Model(
    {
        "slope": dist.Normal(0.0, 1.0),
        "level": dist.Normal(0.0, 1.0).expand([5]),
        "noise": dist.HalfNormal(1.0),
    },
    noisy,
)


def data(seed=0):
    rng = np.random.default_rng(seed)
    x = {"x": rng.normal(size=60), "group": rng.integers(0, 5, 60)}
    return x, 0.5 * x["x"] + 0.3 * x["group"] + 0.4 * rng.normal(size=60)


@pytest.fixture(scope="module")
def target():
    return MODEL.given(*data())


@pytest.fixture(scope="module")
def posterior(target):
    return credo.fit(target, SHORT, key=1, progress=False)


def test_what_a_posterior_of_draws_says(posterior):
    assert posterior.draws["level"].shape == (4, 80, 5)
    assert posterior.draws["noise"].dtype == np.float64
    assert np.all(posterior.draws["noise"] > 0)
    assert 4 * 80 <= posterior.info["num_gradients_useful"] < posterior.info["num_gradients"]
    assert posterior.info["layout"] == "threads"
    assert posterior.info["is_complete"]
    assert 0.05 < posterior.info["step_size"] < 2
    assert {"compile", "warmup", "sampling", "total"} <= set(posterior.info["seconds"])
    assert {
        "max_r_hat", "min_ess_bulk", "min_ess_tail", "num_divergences", "e_bfmi", "max_depth_share", "num_stuck_chains",
    } <= set(posterior.verdict.figures)  # fmt: skip
    assert posterior.verdict.figures["num_draws"] == 320


def test_figures_are_those_of_all_trajectories_and_of_the_worst_chain(target):
    posterior = credo.fit(target, credo.NUTS(num_warmup=20, num_draws=30, max_depth=3), key=1, progress=False)
    figures, stats = posterior.verdict.figures, posterior.info["sample_stats"]
    assert figures["max_depth_share"] == np.mean(stats["depth"] == 3) > 0
    assert figures["e_bfmi"] == e_bfmi(stats["energy"]).min()
    assert figures["acceptance_rate"] == pytest.approx(stats["acceptance"].mean())
    assert figures["num_divergences"] == stats["is_divergent"].sum()


def test_same_key_same_draws_another_key_others(target, posterior):
    again = credo.fit(target, SHORT, key=1, progress=False)
    np.testing.assert_array_equal(again.kind.positions, posterior.kind.positions)
    other = credo.fit(target, SHORT, key=2, progress=False)
    assert not np.any(other.kind.positions == posterior.kind.positions)


@pytest.mark.parametrize("method", [credo.NUTS(), credo.HMC(num_steps=8)], ids=["nuts", "hmc"])
def test_moments(method):
    """Five standard errors at the effective sample size: a false alarm once in 1.7 million scalars."""
    known = TARGETS["gaussian"]()
    posterior = credo.fit(known.target, method, key=4, progress=False)
    assert posterior.verdict.status == "pass", posterior.verdict
    table = posterior.summary()
    z = (table["mean"].to_numpy() - known.mean["w"]) / table["mcse_mean"].to_numpy()
    assert np.all(np.abs(z) < 5)
    np.testing.assert_allclose(posterior.sd()["w"], known.sd["w"], rtol=5 / np.sqrt(table["ess_tail"].min()))


def test_dense_metric_pays_on_a_correlated_target():
    target = TARGETS["ill_conditioned"]().target
    method = credo.NUTS(num_draws=300)
    diagonal = credo.fit(target, dataclasses.replace(method, metric=DiagonalMetric()), key=1, progress=False)
    for metric in (DenseMetric(), AutomaticMetric()):
        dense = credo.fit(target, dataclasses.replace(method, metric=metric), key=1, progress=False)
        assert dense.info["num_gradients_useful"] < 0.3 * diagonal.info["num_gradients_useful"]
        assert dense.verdict.figures["max_r_hat"] < 1.05


def test_step_size_meets_the_target_acceptance(target):
    """Those of the leapfrog: longer ones than rotations have use of would be accepted too."""
    methods = [credo.NUTS(num_draws=100, target_acceptance=a, integrator=credo.mcmc.LEAPFROG) for a in (0.6, 0.95)]
    fits = [credo.fit(target, method, key=3, progress=False) for method in methods]
    rates = [fit.verdict.figures["acceptance_rate"] for fit in fits]
    assert 0.5 < rates[0] < 0.85  # dual averaging errs on the side of small steps, as in Stan
    assert 0.9 < rates[1] < 1


# verdicts -------------------------------------------------------------------------------------------------------------


def test_a_funnel_does_not_pass():
    target, method = TARGETS["funnel"]().target, credo.NUTS(num_draws=300)
    verdicts = [credo.fit(target, method, key=key, progress=False).verdict for key in range(4)]
    assert all(verdict.status != "pass" for verdict in verdicts)
    assert sum(verdict.figures["num_divergences"] > 0 for verdict in verdicts) >= 2  # a short run may meet none


def test_separated_modes_fail():
    posterior = credo.fit(
        TARGETS["mixture"]().target, SHORT, key=2, start=np.array([[-4.0], [4.0], [4.0], [-4.0]]), progress=False
    )
    assert posterior.verdict.status == "failed"
    assert posterior.verdict.figures["max_r_hat"] > 1.5


def test_one_chain_is_doubtful(target):
    posterior = credo.fit(target, credo.NUTS(chains=1, num_warmup=60, num_draws=80), key=1, progress=False)
    assert posterior.verdict.status != "pass"
    assert any("two chains or more" in sentence for sentence in posterior.verdict.sentences)


def test_no_warmup(target):
    posterior = credo.fit(target, credo.NUTS(num_warmup=0, num_draws=5), key=1, progress=False)
    assert posterior.info["num_gradients"] == posterior.info["num_gradients_useful"]
    assert posterior.info["step_size"] == 1.0


# tracing and compiling ------------------------------------------------------------------------------------------------


def test_density_is_traced_twice_and_a_second_fit_not_at_all():
    def likelihood(params, x):  # code of its own, so that nothing is compiled yet
        return noisy(params, x)

    model = credo.Model(MODEL.prior, likelihood)
    target = model.given(*data())
    other = model.given(*data(seed=1))
    before = len(TRACES), len(COMPILED)
    credo.fit(target, SHORT, key=1, progress=False)
    assert len(TRACES) == before[0] + 2
    assert len(COMPILED) > before[1]
    before = len(TRACES), len(COMPILED)
    credo.fit(other, credo.NUTS(num_warmup=40, num_draws=100, target_acceptance=0.9), key=2, progress=False)
    credo.fit(target, SHORT, key=3, progress=False)
    assert len(TRACES) == before[0]
    names = COMPILED[before[1] :]
    assert not [name for name in names if "report_positions" not in name], "only the number of draws is new"


def test_single_precision(target):
    posterior = credo.fit(target, SHORT, key=1, precision="float32", progress=False)
    assert posterior.kind.positions.dtype == np.float32
    assert posterior.verdict.figures["max_r_hat"] < 1.1


# starts ---------------------------------------------------------------------------------------------------------------


def starts(target, start=None, kernel=nuts, chains=4):
    """Where chains begin."""
    program = Adaptive(kernel, (), kernel is nuts)
    with double():
        states = start_chains(target.flat(), start, jax.random.key(0), chains, program, {})
    return np.stack([state.position for state in states])


def test_starts_are_mirrored_pairs_of_which_each_has_distances_of_its_own():
    """Four pairs have, in each coordinate, a quarter of (0, 2) each."""
    u = starts(TARGETS["gaussian"]().target, chains=8)
    np.testing.assert_array_equal(u[1::2], -u[::2])
    np.testing.assert_array_equal(np.sort(np.floor(2 * np.abs(u[::2])), axis=0), np.arange(4)[:, None] * np.ones(3))


def test_chains_that_start_from_a_posterior_start_apart():
    target = TARGETS["gaussian"]().target
    assert len(np.unique(starts(target, credo.fit(target, credo.Laplace(), progress=False))[:, 0])) == 4


def test_discrete_starts_are_drawn_anew_until_one_is_possible():
    """One value of twenty is, the last."""
    prior = {"z": dist.DiscreteUniform(1, 20), "x": dist.Normal(0.0, 1.0)}
    model = credo.Model(prior, lambda params, x: dist.Delta(0.0, jnp.where(params["z"] == 20, 0.0, -jnp.inf)))
    np.testing.assert_array_equal(starts(model.given(y=np.zeros(1)), kernel=slice_sampling)[:, 0], 20)


def test_starts_at_positions_and_posteriors(target, posterior):
    few = credo.NUTS(num_warmup=0, num_draws=1, max_depth=1)
    for start in (np.zeros(7), np.zeros((4, 7)), posterior, {"slope": 0.5, "level": np.zeros(5), "noise": 0.4}):
        near = credo.fit(target, few, key=1, start=start, progress=False)
        assert np.all(np.isfinite(near.kind.positions))
    with pytest.raises(credo.CredoError, match=r"shape \(3, 7\): give one position, \(7,\), or 4 of them, \(4, 7\)"):
        credo.fit(target, few, key=1, start=np.zeros((3, 7)), progress=False)


def nowhere(params):
    return jnp.log(-1.0 - params["x"] ** 2)


def far_away(params):
    return jnp.where(params["x"] > 5.0, -params["x"], -jnp.inf)


def narrow(params):
    return jnp.where(jnp.abs(params["x"]) < 0.3, 0.0, -jnp.inf)


def test_no_finite_start_is_explained():
    target = credo.Model.from_log_density(nowhere, {"x": constraints.real}).given()
    with pytest.raises(
        credo.CredoError, match=r"Chain 0 cannot start: tried 100 random positions.* log density is nan"
    ):
        credo.fit(target, SHORT, progress=False)
    target = credo.Model.from_log_density(far_away, {"x": constraints.real}).given()
    with pytest.raises(credo.CredoError, match=r"cannot start: tried the start of chain 0.* log density is -inf"):
        credo.fit(target, SHORT, start=np.zeros(1), progress=False)
    assert credo.fit(target, SHORT, start=np.full(1, 6.0), progress=False).draws["x"].min() > 5


def test_random_starts_are_tried_until_one_is_finite():
    target = credo.Model.from_log_density(narrow, {"x": constraints.real}).given()
    posterior = credo.fit(target, SHORT, progress=False)
    assert np.all(np.abs(posterior.draws["x"]) < 0.3)


# checkpoints ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_starts_where_a_recursion_explodes_are_drawn_again():
    """An ARMA(1, 1) outside its unit circle: log densities of −10⁵⁰ over half of the starts, with no way out."""
    random, y = np.random.default_rng(3), [0.0]
    noise = 0.5 * random.normal(size=200)
    for t in range(1, 200):
        y.append(0.6 * y[-1] + noise[t] + 0.3 * noise[t - 1])

    def log_density(p, y):
        def step(error, pair):
            before, now = pair
            error = now - p["phi"] * before - p["theta"] * error
            return error, error

        _, errors = jax.lax.scan(step, 0.0, (y[:-1], y[1:]))
        prior = sum(dist.Normal(0.0, 2.0).log_prob(p[name]) for name in ("phi", "theta"))
        prior += dist.HalfCauchy(2.5).log_prob(p["sigma"])
        return prior + jnp.sum(dist.Normal(0.0, p["sigma"]).log_prob(errors))

    support = {"phi": constraints.real, "theta": constraints.real, "sigma": constraints.positive}
    target = credo.Model.from_log_density(log_density, support=support).given(np.array(y))
    for key in range(8):
        posterior = credo.fit(target, credo.NUTS(), key=key, progress=False)
        assert posterior.verdict.status == "pass", posterior.verdict
        assert posterior.mean()["phi"] == pytest.approx(0.6, abs=0.2)  # sd about 0.07


@pytest.mark.parametrize("num_chunks", [3, 6, 9, 13])
def test_resume_gives_the_draws_of_an_uninterrupted_fit(target, posterior, tmp_path, num_chunks):
    with at_chunk(num_chunks):
        credo.fit(target, SHORT, key=1, checkpoint=tmp_path, progress=False)
    resumed = credo.resume(tmp_path, target, progress=False)
    np.testing.assert_array_equal(resumed.kind.positions, posterior.kind.positions)
    assert resumed.info["num_gradients"] == posterior.info["num_gradients"]
    assert resumed.verdict == posterior.verdict


def test_resume_refuses_other_data(target, tmp_path):
    credo.fit(target, SHORT, key=1, checkpoint=tmp_path, progress=False)
    with pytest.raises(credo.CredoError):
        credo.resume(tmp_path, MODEL.given(*data(seed=9)), progress=False)


def test_time_limit_says_so_in_the_verdict(target):
    method = credo.NUTS(num_warmup=0, num_draws=1_000_000)
    with out_of_time():
        posterior = credo.fit(target, method, key=1, time_limit=1_000.0, progress=False)
    assert not posterior.info["is_complete"]
    assert any("The time limit came after" in sentence for sentence in posterior.verdict.sentences)


# settings -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"chains": 0}, "chains is at least 1; got 0"),
        ({"num_draws": 0}, "num_draws is at least 1; got 0"),
        ({"num_warmup": -1}, "num_warmup is at least 0; got -1"),
        ({"target_acceptance": 1.0}, "target_acceptance lies between 0 and 1; got 1.0"),
        ({"max_depth": 0}, "max_depth lies between 1 and 20; got 0"),
    ],
)
def test_bad_settings(settings, sentence):
    with pytest.raises(credo.CredoError, match=sentence):
        credo.NUTS(**settings)


@pytest.mark.parametrize("num_warmup", [0, 1, 3, 5, 20])
@pytest.mark.parametrize("name", ["ill_conditioned", "logistic"])
def test_few_steps_of_warmup_from_a_mode(name, num_warmup):
    """Gradients there tell no width: with a metric made of them all transitions diverged."""
    known = TARGETS[name]()
    mode = credo.fit(known.target, credo.MAP(), progress=False)
    method = credo.NUTS(num_warmup=num_warmup)
    posterior = credo.fit(known.target, method, key=0, start=mode, progress=False)
    again = credo.fit(known.target, method, key=0, start=np.asarray(mode.kind.position), progress=False)
    np.testing.assert_array_equal(posterior.kind.positions, again.kind.positions)
    assert posterior.verdict.status == "pass", posterior.verdict


@pytest.mark.parametrize("away", [0.0, 0.7])
def test_gradients_one_unit_away_from_a_start_are_those_of_the_curvature(away):
    """Of a Gaussian with its mode at 0, g(u + z) = −P (u + z) exactly."""
    known = TARGETS["ill_conditioned"]()
    u, program = np.full(10, away), Adaptive(nuts, (), True)
    with double():
        states = start_chains(known.target.flat(), u, jax.random.key(0), 4, program, {})
        found = gradients_away(known.target.flat(), states, jax.random.key(0), program, {})
        precision = -np.asarray(jax.hessian(known.target.flat().log_density)(jnp.zeros(10)))
    signs = -np.linalg.solve(precision, found.T) - away
    np.testing.assert_allclose(np.abs(signs), 1, atol=1e-4)
    assert len(np.unique(np.sign(signs), axis=1).T) > 4


@pytest.mark.slow
def test_the_step_of_another_kind_of_sampler_is_none_of_these(target):
    """That of SGLD, in other units, cost NUTS a hundred times the gradients."""
    langevin = credo.fit(target, credo.SGLD(step_size=1e-4, batch_size=None, num_draws=20), progress=False)
    still = credo.NUTS(num_warmup=0, num_draws=2, max_depth=2)
    assert credo.fit(target, still, start=langevin, progress=False).info["step_size"] == pytest.approx(1.0)
    earlier = credo.fit(target, credo.HMC(num_warmup=50, num_draws=20), progress=False)
    found = credo.fit(target, still, start=earlier, progress=False).info["step_size"]
    assert found == pytest.approx(earlier.info["step_size"], rel=1e-6)
