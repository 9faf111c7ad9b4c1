"""Random-walk Metropolis, MALA and slice sampling: their programs, their precision, and what they are tuned to."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats
from numpyro.distributions import constraints

import credo
from contract import check_accuracy
from credo.diagnose.convergence import mcse_sd
from credo.equations import equations
from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.methods.mcmc.independence import independence
from credo.methods.mcmc.mala import mala
from credo.methods.mcmc.noise import start_of_transition
from credo.methods.mcmc.random_walk import metropolis, random_walk
from credo.methods.mcmc.slice import MAX_SHRINKS, slice_sampling
from credo.native import suits
from credo.posterior.kinds import Gaussian
from credo.precision import double, to_numpy
from densities import LOWER, Density, elliptical, gaussian, gumbel
from targets import TARGETS

PROPOSAL = Gaussian(np.zeros(3, np.float32), Diagonal(np.ones(3, np.float32)))
KERNELS = {
    "random walk": (random_walk, {"step_size": 0.5, "num_steps": 4}),
    "mala": (mala, {"step_size": 0.5, "num_steps": 4}),
    "slice": (slice_sampling, {}),
    "elliptical": (elliptical, {"prior": PROPOSAL, "num_steps": 4}),
    "independence": (independence, {"proposal": PROPOSAL, "num_steps": 4}),
}


def marked(u):
    """A density whose one tangent shows where it is evaluated."""
    return -0.5 * jnp.sum(u * u) + jnp.tan(0.0 * u[0])


def standard(u):
    return -0.5 * jnp.sum(u * u)


# programs -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("name", list(KERNELS))
def test_one_place_evaluates_the_density_and_the_program_is_native(name):
    kernel, settings = KERNELS[name]
    algorithm, key = kernel(Density(marked), **settings), jax.random.key(0)
    state = algorithm.init(key, jnp.zeros(3))
    program = jax.make_jaxpr(algorithm.step)(key, state)
    assert sum(equation.primitive.name == "tan" for equation in equations(program.jaxpr)) == 1
    assert suits(program)


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("name", list(KERNELS))
def test_single_precision_stays(name):
    kernel, settings = KERNELS[name]
    key = jax.random.key(0)
    with double():  # the wider context must not widen anything
        position = np.zeros(3, np.float32)
        algorithm = kernel(Density(standard), **settings)
        state = jax.eval_shape(algorithm.init, key, position)
        new, info = jax.eval_shape(algorithm.step, key, state)
    for leaf in jax.tree.leaves((state, new, info)):
        assert leaf.dtype in (np.float32, np.int32)
    assert jax.tree.map(lambda a: a.shape, new) == jax.tree.map(lambda a: a.shape, state)


# moves ----------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("name", ["random walk", "mala", "slice"])
def test_a_metric_is_a_change_of_coordinates(name):
    """On N(0, S Sᵀ) with metric S a kernel moves S z where on N(0, I) it moves z."""
    kernel, settings = KERNELS[name]
    key, z = jax.random.key(3), np.array([0.3, -1.0, 2.0])
    with double():
        white = kernel(Density(standard), **settings)
        shaped = kernel(Density(gaussian), **settings, metric=Dense(LOWER))
        z, info = to_numpy(jax.jit(lambda: white.step(key, white.init(key, jnp.asarray(z))))())
        u, shaped_info = to_numpy(
            jax.jit(lambda: shaped.step(key, shaped.init(key, jnp.asarray(LOWER @ [0.3, -1, 2]))))()
        )
    np.testing.assert_allclose(u.position, LOWER @ z.position, rtol=1e-10)
    assert not np.any(z.position == [0.3, -1.0, 2.0])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), info, shaped_info)


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("position", [np.array([0.1, -0.2, 0.3]), np.array([-1.7, -0.2, 0.3])])
def test_langevin_acceptance_is_that_of_metropolis_and_hastings(position):
    """α from the densities of the two proposals, N(u + ½ε²Σ∇log p(u), ε²Σ) with a drift of length ε(√3 + 1) at most
    in the metric, by SciPy. At the second position the drift would be longer."""
    epsilon, covariance = 1.5, LOWER @ LOWER.T

    def drifted(at):
        drift = 0.5 * epsilon**2 * covariance @ (np.exp(-at) - 1)
        length = np.linalg.norm(np.linalg.solve(LOWER, drift))
        return at + min(1.0, epsilon * (np.sqrt(3) + 1) / length) * drift

    def proposal_density(to, at):
        return scipy.stats.multivariate_normal.logpdf(to, drifted(at), epsilon**2 * covariance)

    seen = []
    with double():
        algorithm = mala(Density(gumbel), step_size=epsilon, metric=Dense(LOWER))
        step = jax.jit(lambda key: algorithm.step(key, algorithm.init(key, jnp.asarray(position))))
        for key in jax.random.split(jax.random.key(1), 12):
            z, _ = start_of_transition(jax.random.fold_in(key, 0), 3, (), np.float64)
            to = drifted(position) + epsilon * LOWER @ np.asarray(z)
            log_ratio = np.sum(-to - np.exp(-to)) - np.sum(-position - np.exp(-position))
            log_ratio += proposal_density(position, to) - proposal_density(to, position)
            _, info = step(key)
            np.testing.assert_allclose(info.acceptance, min(1, np.exp(log_ratio)), rtol=1e-8)
            seen.append(float(info.acceptance))
    assert sum(acceptance < 0.9 for acceptance in seen) > 3


def test_what_is_not_finite_is_never_accepted():
    ratios = np.array([0.0, 3.0, np.log(0.25), -np.inf, np.nan, np.inf])
    np.testing.assert_allclose(metropolis(ratios), [1, 1, 0.25, 0, 0, 0], rtol=1e-6)


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("outside", [-np.inf, np.nan, np.inf])
def test_a_slice_of_one_point_ends_where_it_began(outside):
    """As does one whose shrinkage meets a density that is infinite: never an acceptance, never an endless loop."""
    with double():
        algorithm = slice_sampling(Density(lambda u: jnp.where(jnp.all(u == 0.0), 0.0, outside)), max_widths=4)
        state, info = algorithm.step(jax.random.key(0), algorithm.init(jax.random.key(0), jnp.zeros(2)))
    np.testing.assert_array_equal(state.position, 0)
    assert state.log_density == 0
    assert info.num_densities <= 2 * (MAX_SHRINKS + 4)


BEHIND = -1.2e7  # a log density of millions of rows: in float32 whole numbers alone
FAR_BEHIND = {
    "slice": (
        credo.Slice(),
        credo.Model.from_log_density(lambda p: BEHIND - 0.5 * p["w"] ** 2, {"w": constraints.real}).given(),
    ),
    "elliptical slice": (
        credo.EllipticalSlice(),
        credo.Model(
            {"w": dist.Normal(0.0, 4.0)}, lambda p, x: dist.Delta(0.0, BEHIND - 0.5 * p["w"] ** 2 * (1 - 1 / 16))
        ).given(y=np.zeros(1)),
    ),
}


@pytest.mark.parametrize("name", list(FAR_BEHIND))
def test_slices_of_a_density_of_few_digits_are_those_of_its_differences(name):
    method, target = FAR_BEHIND[name]
    posterior = credo.fit(target, method, key=0, precision="float32", progress=False)
    w = np.linspace(-8.0, 8.0, 4_001)
    share = 1 if name == "slice" else 1 - 1 / 16
    rounded = np.float32(BEHIND - 0.5 * share * w**2).astype(float) - BEHIND
    density = np.exp(rounded - 0.5 * (1 - share) * w**2)
    sd = np.sqrt(np.sum(density * w**2) / np.sum(density))
    draws = posterior.draws["w"][..., None].astype(float)
    assert abs(np.std(draws) - sd) < 4 * mcse_sd(draws)[0]


@pytest.mark.usefixtures("strict")
def test_an_interval_is_as_wide_as_it_may_be():
    """Where the density is flat each column's interval takes all of its max_widths, and the first point in it."""
    with double():
        algorithm = slice_sampling(Density(lambda u: 0.0 * jnp.sum(u)), width=1.5, max_widths=6)
        step = jax.jit(jax.vmap(lambda key: algorithm.step(key, algorithm.init(key, jnp.zeros(3)))))
        state, info = to_numpy(step(jax.random.split(jax.random.key(0), 2_000)))
    assert np.all(info.num_densities == 3 * (5 + 1))
    # L = −w (V + J), and t is uniform on the 6 w from there on: |t| ≤ 6 w, and t is as often below 0 as above
    reach = np.abs(state.position) / 1.5
    assert 5 < reach.max() <= 6
    share = np.mean(state.position < 0)
    assert abs(share - 0.5) < 5 * np.sqrt(0.25 / state.position.size)
    # the fraction of the way from L: u = L + 6 w v. Its density is that of a difference of two uniforms on (0, 6)
    np.testing.assert_allclose(np.mean(state.position**2) / 1.5**2, 6.0, rtol=5 * np.sqrt(1.4 / state.position.size))


# through fit ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "method", "acceptance"),
    [
        ("gaussian", credo.RandomWalkMetropolis(), 0.234),
        ("gaussian", credo.RandomWalkMetropolis(target_acceptance=0.4), 0.4),
        ("skewed", credo.RandomWalkMetropolis(), 0.44),
    ],
)
def test_step_size_meets_the_best_acceptance(target, method, acceptance):
    posterior = credo.fit(TARGETS[target]().target, method, key=1, progress=False)
    assert posterior.verdict.figures["acceptance_rate"] == pytest.approx(acceptance, abs=0.06)
    assert posterior.info["num_densities"] == 4 * 1_600 * 20
    assert posterior.info["num_gradients"] == 0


@pytest.mark.parametrize("acceptance", [0.3, 0.574, 0.8])
def test_a_step_of_mala_meets_the_acceptance_asked(acceptance):
    posterior = credo.fit(TARGETS["gaussian"]().target, credo.MALA(target_acceptance=acceptance), key=0, progress=False)
    assert posterior.verdict.figures["acceptance_rate"] == pytest.approx(acceptance, abs=0.04)


def num_densities(method):
    """A draw, of a standard normal variable."""
    model = credo.Model({"w": dist.Normal(0.0, 1.0)}, None)
    posterior = credo.fit(model.given(), method, key=0, progress=False)
    return np.mean(posterior.info["sample_stats"]["num_densities"])


@pytest.mark.parametrize("key", [1, 4])
def test_langevin_chains_enter_where_a_density_falls_faster_than_a_parabola(key):
    """Gamma(0.3, 1) and a count of zero: the rate is Gamma(0.3, 2), its logarithm falls like −2eᵘ. With drifts of any
    length these chains were below 0.3, their sds of the rate 12 and 16 % too small, and they passed."""
    model = credo.Model({"rate": dist.Gamma(0.3, 1.0)}, lambda params, x: dist.Poisson(params["rate"]))
    posterior = credo.fit(model.given(np.zeros((1, 1)), np.array([0])), credo.MALA(), key=key, progress=False)
    assert posterior.verdict.status == "pass"
    assert posterior.draws["rate"].max() > 1.5
    np.testing.assert_allclose(posterior.sd()["rate"], np.sqrt(0.3) / 2, rtol=0.06)


def test_intervals_are_as_wide_and_as_many_as_was_asked():
    """One of a quarter of an sd grows by a quarter at a time, and 1.5 sds on average take six or more."""
    short = {"num_warmup": 100, "num_draws": 200}
    usual = num_densities(credo.Slice(**short))
    assert num_densities(credo.Slice(width=0.25, max_widths=64, **short)) > usual + 6
    # which is not looked at where one is all that there may be, and a wide one shrinks
    alone = num_densities(credo.Slice(max_widths=1, **short))
    assert alone < usual - 2
    assert num_densities(credo.Slice(width=30.0, max_widths=1, **short)) > alone + 1


def test_langevin_steps_are_as_many_and_as_short_as_was_asked():
    method = credo.MALA(num_steps=3, target_acceptance=0.9, num_draws=500)
    posterior = credo.fit(TARGETS["gaussian"]().target, method, key=1, progress=False)
    assert posterior.info["num_gradients"] == 4 * 800 * 3
    assert posterior.verdict.figures["acceptance_rate"] > 0.85  # 0.72 where 0.574 is asked


@pytest.mark.parametrize("method", [credo.RandomWalkMetropolis, credo.MALA, credo.Slice])
def test_shape_of_the_proposals_is_found(method):
    """Condition number 1,000 in ten rotated dimensions: without a dense metric it takes 20 times the proposals."""
    target = TARGETS["ill_conditioned"]().target
    found, lacking = (
        credo.fit(target, method(metric=metric), key=2, progress=False).verdict.figures
        for metric in (credo.methods.mcmc.AutomaticMetric(), credo.methods.mcmc.DiagonalMetric())
    )
    assert found["min_ess_bulk"] > 10 * lacking["min_ess_bulk"]


def cube_and_root(params):
    """x = r³ + r with r ~ N(0, 1), which is found by a loop that has no reverse mode."""

    def newton(carry):
        r, _ = carry
        change = (r**3 + r - params["x"]) / (3 * r**2 + 1)
        return r - change, change

    r, _ = jax.lax.while_loop(lambda carry: jnp.abs(carry[1]) > 1e-9, newton, (params["x"], jnp.ones(())))
    return -0.5 * r**2 - jnp.log(3 * r**2 + 1)


@pytest.mark.parametrize("method", [credo.RandomWalkMetropolis(), credo.Slice()])
def test_no_gradient_is_asked_for(method):
    target = credo.Model.from_log_density(cube_and_root, {"x": constraints.real}).given()
    with pytest.raises(credo.CredoError, match="JAX cannot differentiate"):
        credo.fit(target, credo.NUTS(num_warmup=1, num_draws=1), progress=False)
    posterior = credo.fit(target, method, key=1, progress=False)
    assert posterior.verdict.status == "pass", posterior.verdict
    r = scipy.stats.norm.ppf(0.9)
    share = np.mean(posterior.draws["x"] < r**3 + r)
    assert abs(share - 0.9) < 5 * np.sqrt(0.9 * 0.1 / posterior.verdict.figures["min_ess_tail"])


@pytest.mark.parametrize("method", [credo.RandomWalkMetropolis(), credo.MALA(), credo.Slice()])
def test_a_funnel_does_not_pass(method):
    assert credo.fit(TARGETS["funnel"]().target, method, key=1, progress=False).verdict.status != "pass"


@pytest.mark.slow
def test_each_moves_a_block_of_gibbs():
    known = TARGETS["constrained"]()
    blocks = {"weights": credo.RandomWalkMetropolis(num_steps=5), "scale": credo.Slice(), "share": credo.MALA()}
    posterior = credo.fit(known.target, credo.Gibbs(blocks), key=1, progress=False)
    assert posterior.verdict.status == "pass", posterior.verdict
    check_accuracy(posterior, known, 0.0)
    facts, rates = posterior.info["blocks"], dict.fromkeys(blocks, 1.0)
    for name, rate in (("weights", 0.234), ("share", 0.574)):
        rates[name] = facts[name]["acceptance_rate"]
        assert rates[name] == pytest.approx(rate, abs=0.12)
        assert facts[name]["step_size"] > 1.0  # sds, of one or two parameters
    assert facts["scale"] == {"acceptance_rate": 1.0}
    assert posterior.verdict.figures["acceptance_rate"] == pytest.approx(np.mean(list(rates.values())))


def test_a_stopping_rule_draws_on():
    method = credo.Slice(num_warmup=100, num_draws=100, until=credo.StoppingRule())
    posterior = credo.fit(TARGETS["gaussian"]().target, method, key=1, progress=False)
    assert posterior.kind.positions.shape[1] > 100
    assert posterior.verdict.status == "pass"


def test_chains_in_one_loop_draw_what_they_draw_alone():
    """But for the rounding of two programs."""
    target = TARGETS["gaussian"]().target
    method = credo.Slice(num_warmup=0, num_draws=20)
    alone = credo.fit(target, method, key=1, layout="threads", progress=False)
    together = credo.fit(target, method, key=1, layout="vectorized", progress=False)
    np.testing.assert_allclose(together.kind.positions, alone.kind.positions, rtol=1e-8)
    assert together.info["num_densities"] == alone.info["num_densities"]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: credo.Slice(width=0.0), "width is a finite number of standard deviations above 0; got 0.0"),
        (lambda: credo.Slice(width=np.inf), "width is a finite number of standard deviations above 0; got inf"),
        (lambda: credo.Slice(max_widths=0), "max_widths is at least 1; got 0"),
        (lambda: credo.Slice(width=0.5, max_widths=1), "width × max_widths = 0.5 sds is so short"),
        (lambda: credo.RandomWalkMetropolis(target_acceptance=1.5), "target_acceptance lies between 0 and 1; got 1.5"),
        (lambda: credo.RandomWalkMetropolis(chains=0), "chains is at least 1; got 0"),
    ],
)
def test_bad_settings(make, sentence):
    with pytest.raises(credo.CredoError, match=sentence):
        make()


@pytest.mark.parametrize("method", [credo.RandomWalkMetropolis(num_steps=0), credo.MALA(num_steps=0)])
def test_no_proposals_are_no_draws(method):
    with pytest.raises(credo.CredoError, match="num_steps is 1 or more"):
        credo.fit(TARGETS["gaussian"]().target, method, progress=False)


# regions of which nothing is known ------------------------------------------------------------------------------------


def cut(above):
    """A standard normal prior under a likelihood that is ``above`` where w > 1.5, and flat elsewhere."""
    model = credo.Model({"w": dist.Normal(0.0, 1.0)}, lambda p, x: dist.Delta(0.0, jnp.where(p["w"] > 1.5, above, 0.0)))
    return model.given(y=np.zeros(1))


PROPOSAL = credo.fit(cut(0.0), credo.Laplace())
PROPOSING = {
    "random walk": credo.RandomWalkMetropolis(),
    "MALA": credo.MALA(),
    "slice": credo.Slice(),
    "elliptical slice": credo.EllipticalSlice(),
    "independence": credo.IndependenceMH(proposal=PROPOSAL),
    "slice within Gibbs": credo.Gibbs({"w": credo.Slice()}),
}


@pytest.mark.parametrize("name", list(PROPOSING))
@pytest.mark.parametrize("above", [np.nan, np.inf, -np.inf])
def test_a_region_without_a_density_is_told(name, above):
    """What a chain refuses for want of a number is no part of its draws, which then are of another posterior."""
    posterior = credo.fit(cut(above), PROPOSING[name], key=1, start={"w": 0.0}, progress=False)
    assert posterior.draws["w"].max() <= 1.5
    share = posterior.verdict.figures["undefined_proposals"]
    if name == "independence" and above != np.inf:
        assert posterior.verdict.figures["pareto_k"] == 0  # of weights of 0
    if above == -np.inf:  # an edge like any other
        assert share == 0
    else:
        assert 0.05 < share <= 1
        assert posterior.verdict.status == "doubtful"
        assert any("log density was NaN or +inf" in sentence for sentence in posterior.verdict.sentences)


@pytest.mark.parametrize("method", [credo.NUTS(), credo.ChEES()], ids=lambda method: type(method).__name__)
def test_chains_caught_by_an_infinite_density_are_told_why(method):
    posterior = credo.fit(cut(np.inf), method, key=1, start={"w": 0.0}, progress=False)
    assert posterior.verdict.status == "failed"
    assert any("log density was NaN or +inf" in sentence for sentence in posterior.verdict.sentences)
