"""Simulation-based calibration: uniform where all is right, and each planted fault is found and named.

A right method is below p = 1e-4 (over all quantities, by an exact test) once in 10,000 cases.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import credo
from credo import CredoError, Verdict
from credo.diagnose import Calibration, posterior_sbc, sbc
from credo.diagnose.simulation.ranks import rank
from credo.diagnose.simulation.simulate import from_prior
from credo.diagnose.simulation.uniformity import band, ecdf_p_values
from credo.native import jit
from credo.posterior.kinds import Draws

RARE = 1e-4
SIGMA = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
X = np.random.default_rng(0).normal(size=(20, 2))


def schools(params, x):
    return dist.Normal(params["mu"] + params["tau"] * params["z"], x)


def logistic(params, x):
    return dist.BernoulliLogits(x @ params["w"])


def exponential(params, x):
    return dist.Exponential(params["rate"])


MODELS: dict[str, tuple[credo.Model, dict[str, Any]]] = {
    "eight schools": (
        credo.Model(
            {"mu": dist.Normal(0.0, 5.0), "tau": dist.HalfCauchy(5.0), "z": dist.Normal(0.0, 1.0).expand([8])},
            schools,
            derived={"theta": lambda mu, tau, z: mu + tau * z},
        ),
        {"x": SIGMA},
    ),
    "normal mean": (
        credo.Model({"mean": dist.Normal(1.0, 2.0)}, lambda params, x: dist.Normal(params["mean"], 3.0)),
        {"size": 5},
    ),
    "beta-binomial": (
        credo.Model({"p": dist.Beta(2.0, 3.0)}, lambda params, x: dist.Binomial(10, params["p"])),
        {"size": 4},
    ),
    "logistic": (credo.Model({"w": dist.Normal(0.0, 1.5).expand([2])}, logistic), {"x": X}),
    "gamma-poisson": (
        credo.Model({"rate": dist.Gamma(2.0, 1.0)}, lambda params, x: dist.Poisson(params["rate"])),
        {"size": 6},
    ),
}
WAITING = credo.Model({"rate": dist.LogNormal(0.0, 0.7)}, exponential)  # of few operations: it compiles soon
LINE = credo.Model({"slope": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["slope"] * x, 1.0))
ALL = tuple(MODELS)


def independence(target):
    return credo.IndependenceMH(credo.fit(target, credo.Laplace(), progress=False), chains=2, num_draws=500)


def by_parameter(target):
    return credo.Gibbs({leaf.name: credo.NUTS() for leaf in target.structure.leaves}, chains=2, num_draws=500)


METHODS: dict[str, tuple[Any, tuple[str, ...]]] = {  # a method joins by a line, with the models that it claims
    # short runs: 100 ranks need 100 independent draws
    "nuts": (credo.NUTS(chains=2, num_draws=300), ALL),
    "hmc": (credo.HMC(chains=2, num_draws=400, num_steps=8), ALL),
    "chees": (credo.ChEES(chains=8, num_draws=100), ALL[1:]),
    "mala": (credo.MALA(chains=2, num_warmup=500, num_draws=2_000), ALL),
    "random_walk": (credo.RandomWalkMetropolis(chains=2, num_warmup=1_000, num_draws=3_000), ALL),
    "slice": (credo.Slice(chains=2, num_draws=1_000), ALL),
    "elliptical_slice": (credo.EllipticalSlice(chains=2, num_draws=1_000), ("normal mean", "logistic")),
    "parallel_tempering": (credo.ParallelTempering(chains=1, num_draws=1_000), ALL),
    "independence": (independence, ("normal mean", "logistic", "beta-binomial", "gamma-poisson")),
    "gibbs": (by_parameter, ALL),
    "conjugate": (credo.Gibbs({"mean": credo.Conjugate()}, chains=2, num_draws=200), ("normal mean",)),
    "smc": (credo.SMC(num_particles=512), ALL),
}
CASES = [(method, model) for method, (_, models) in METHODS.items() for model in models]


def is_uniform(calibration: Calibration) -> bool:
    assert not calibration.failures
    return calibration.verdict.figures["sbc_p_value"] > RARE


@dataclass(frozen=True)
class ByGrid:
    """Independent draws from exp(density(target, u)), u one number, by its distribution function on a grid."""

    density: Any = lambda target, u: target.log_density(u)
    num_draws: int = 99

    def fit(self, target, *, key, start, options):
        draws = on_grid(target.flat(), key, self.density, self.num_draws)
        return credo.Posterior(Draws(np.asarray(draws)[None]), target, verdict=Verdict("pass"))


@partial(jax.jit, static_argnames=("density", "num_draws"))
def on_grid(target, key, density, num_draws):
    u = jnp.linspace(-9.0, 9.0, 4001)
    log_p = jax.vmap(lambda v: density(target, v[None]))(u)
    mass = jnp.cumsum(jnp.exp(log_p - jnp.max(log_p)))
    uniform = jax.random.uniform(key, (num_draws, 1)) * mass[-1]
    return jnp.interp(uniform, mass, u)


# what is right --------------------------------------------------------------------------------------------------------


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("beta-binomial", "gamma-poisson")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["normal mean", *SLOW])
def test_closed_forms_are_calibrated(name):
    model, data = MODELS[name]
    calibration = sbc(model, credo.Exact(), 200, key=1, progress=False, **data)
    assert is_uniform(calibration)
    assert calibration.num_simulations == 200
    assert calibration.statuses == {"pass": 200, "doubtful": 0, "failed": 0}
    assert set(calibration.ranks) == {*(leaf.name for leaf in model.structure.leaves), "log_likelihood"}
    assert calibration.ranks["log_likelihood"].shape == (200,)
    assert np.all(np.isinf(calibration.num_effective))


def test_nuts_is_calibrated():
    calibration = sbc(WAITING, METHODS["nuts"][0], 25, key=2, size=6, progress=False)
    assert is_uniform(calibration)
    assert calibration.verdict.figures["sbc_excess_spread"] < 0.01
    assert np.all(calibration.num_effective < 1_000)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "name"), CASES)
def test_every_method_is_calibrated_on_every_model(method, name):
    model, data = MODELS[name]
    calibration = sbc(
        model, METHODS[method][0], 300 if method in ("nuts", "hmc") else 100, key=3, progress=False, **data
    )
    assert is_uniform(calibration), calibration.verdict


@pytest.mark.slow
def test_a_thousand_fits_of_eight_schools():
    model, data = MODELS["eight schools"]
    calibration = sbc(model, METHODS["nuts"][0], 1_000, key=0, progress=False, **data)
    assert is_uniform(calibration), calibration.verdict
    assert set(calibration.ranks) == {"mu", "tau", "z", "theta", "log_likelihood"}


@pytest.mark.slow
def test_weighted_draws_and_a_method_made_for_each_target():
    def importance(target):
        return credo.Importance(credo.fit(target, credo.Laplace(), progress=False), num_draws=2_000)

    calibration = sbc(WAITING, importance, 60, key=4, size=6, progress=False)
    assert is_uniform(calibration)
    assert np.all(np.isfinite(calibration.num_effective))


def test_statistics_derived_quantities_and_ties():
    """A discrete quantity has ties, which are broken at random; a constant one is all ties."""
    model = credo.Model(WAITING.prior, exponential, derived={"is_large": lambda rate: (rate > 1).astype(int)})
    statistics = {
        "distance": lambda params, y: jnp.abs(params["rate"] - jnp.mean(y)),
        "constant": lambda params, y: jnp.ones((2, 1)),
    }
    calibration = sbc(model, ByGrid(), 150, key=5, size=6, statistics=statistics, progress=False)
    assert is_uniform(calibration)
    assert calibration.ranks["constant"].shape == (150, 2, 1)
    assert set(calibration.ranks) == {"rate", "is_large", "log_likelihood", "distance", "constant"}
    assert {"constant[0,0]", "distance"} <= set(calibration.summary().index)


def test_rank_counts_what_lies_below():
    random = np.random.default_rng(0)
    assert rank(np.array([2.0, 1.0, 3.0, 0.0]), random) == 2
    ranks = np.array([rank(np.array([1.0, 1.0, 1.0 + 1e-15, 0.0, 2.0]), random) for _ in range(900)])
    np.testing.assert_allclose(np.bincount(ranks) / 900, [0, 1 / 3, 1 / 3, 1 / 3], atol=5 * np.sqrt(2 / 9 / 900))
    assert rank(np.array([-np.inf, -np.inf, 0.0]), random) in (0, 1)
    tail = np.array([5.0, 1e15, *np.linspace(-2.0, 2.0, 98)])
    assert {int(rank(tail, random)) for _ in range(20)} == {98}, "one far draw makes no ties of the others"


def test_a_prior_alone_and_a_joint_likelihood():
    prior = credo.Model({"a": dist.Gumbel(0.0, 1.0)}, None)
    assert set(sbc(prior, ByGrid(), 50, progress=False).ranks) == {"a"}
    joint = credo.Model(
        {"a": dist.Normal(0.0, 1.0)}, lambda params, x: dist.MultivariateNormal(params["a"] * jnp.ones(3), np.eye(3))
    )
    assert is_uniform(sbc(joint, ByGrid(), 50, size=2, progress=False))


@pytest.mark.parametrize(
    ("likelihood", "data", "shapes"),
    [
        (lambda p, x: dist.Normal(p["a"] * jnp.ones(1), 1.0), {"x": X}, (len(X),)),
        (lambda p, x: dist.Normal(p["a"] * jnp.ones(1), 1.0), {"size": 5}, (5,)),
        (lambda p, x: dist.Normal(p["a"] * jnp.ones(3), 1.0).to_event(1), {"x": X}, (len(X), 3)),
        (lambda p, x: dist.Normal(p["a"] * jnp.ones(3), 1.0).to_event(1), {"size": 3}, (3, 3)),
        (lambda p, x: dist.Normal(p["a"] * jnp.ones((1, 2)), 1.0), {"size": 5}, (5, 2)),
        (lambda p, x: dist.Normal(p["a"] * jnp.ones((1, 2)), 1.0), {"x": X}, (len(X), 2)),
        (
            lambda p, x: {"here": dist.Normal(p["a"] * x[:, 0], 1.0), "there": dist.Normal(p["a"], 1.0)},
            {"x": X},
            {"here": (len(X),), "there": (len(X),)},
        ),
    ],
    ids=[
        *("batch of one", "batch of one, by size", "columns", "as many columns as rows"),
        *("batch of one row, by size", "batch of one row", "one outcome of one row"),
    ],
)
def test_rows_that_the_likelihood_does_not_tell_apart_are_drawn_each(likelihood, data, shapes):
    truths = from_prior(
        credo.Model({"a": dist.Normal(0.0, 1.0)}, likelihood), data.get("x"), data.get("size"), 2, jax.random.key(0)
    )
    _, drawn = truths.draw(np.arange(2))
    assert jax.tree.map(lambda leaf: leaf.shape[1:], drawn) == shapes
    assert all(np.unique(leaf).size == leaf.size for leaf in jax.tree.leaves(drawn))
    _, target = next(truths.each())
    assert target is not None
    assert target.size == (data.get("size") or len(X))


@pytest.mark.slow
def test_a_joint_likelihood_gives_its_rows_itself():
    joint = credo.Model(
        {"a": dist.Normal(0.0, 1.0)}, lambda params, x: dist.MultivariateNormal(params["a"] * jnp.ones(3), np.eye(3))
    )
    calibration = sbc(joint, ByGrid(), 100, progress=False)
    assert is_uniform(calibration)


@pytest.mark.slow
def test_a_numpyro_program():
    def program(x, y=None):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        numpyro.deterministic("twice", 2 * slope)
        numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)

    x = np.linspace(-1.0, 1.0, 6)
    y = np.array([-0.4, -0.9, 0.3, 0.2, 0.5, 1.4])
    model = credo.adapters.from_numpyro(program, x, y)
    calibration = sbc(model, ByGrid(), 200, key=3, progress=False)
    assert is_uniform(calibration)
    assert {"slope", "twice", "log_likelihood"} <= set(calibration.ranks)
    posterior = credo.fit(model.given(), credo.Laplace(), progress=False)
    assert is_uniform(posterior_sbc(posterior, ByGrid(), 200, key=3, progress=False))


# what is wrong --------------------------------------------------------------------------------------------------------


def without_jacobian(target, u):
    return target.log_density(u) - target.log_jacobian(u)


def prior_twice(target, u):
    return target.log_density(u) + target.log_prior(u)


def data_twice(target, u):
    return target.log_density(u) + jnp.sum(target.log_likelihood(u))


def data_ignored(target, u):
    return target.log_prior(u)


def rows_out_of_order(target, u):
    return target.log_prior(u) + jnp.sum(
        target.model.likelihood(target.constrain(u), target.x).log_prob(target.y[::-1])
    )


@pytest.mark.parametrize(
    ("density", "num_simulations", "sentence"),
    [
        (without_jacobian, 300, "The draws of rate are too low"),
        (prior_twice, 600, "The draws of rate are too narrow"),
        (data_twice, 400, "Draws fit the data better than the true parameters do"),
        (data_ignored, 300, "Draws fit the data worse than the true parameters do"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_wrong_density_is_found(density, num_simulations, sentence):
    """The weakest signal, of a prior that counts twice, has a p-value of some 1e-4 in 300 simulations, 1e-10 in 600."""
    calibration = sbc(WAITING, ByGrid(density), num_simulations, key=6, size=3, progress=False)
    assert calibration.verdict.status == "failed"
    assert calibration.verdict.figures["sbc_p_value"] < 1e-8  # it is no matter of luck
    assert any(said.startswith(sentence) for said in calibration.verdict.sentences), calibration.verdict
    assert calibration.summary()["finding"].iloc[0] != "uniform"


def test_rows_out_of_order_are_found():
    calibration = sbc(LINE, ByGrid(rows_out_of_order), 300, key=6, x=np.linspace(0.0, 2.0, 6), progress=False)
    assert calibration.verdict.status == "failed"
    assert any("Draws fit the data worse" in said for said in calibration.verdict.sentences)


def test_parameters_alone_would_not_tell_that_the_data_are_ignored():
    calibration = sbc(WAITING, ByGrid(data_ignored), 300, key=7, size=3, progress=False)
    assert calibration.p_values["rate"] > 1e-3
    assert calibration.p_values["log_likelihood"] < 1e-10


@pytest.mark.slow
def test_an_approximation_is_found_where_it_is_wrong():
    """Laplace is exact for a normal mean, and too short in the right tail of a rate."""
    model, data = MODELS["normal mean"]
    assert is_uniform(sbc(model, credo.Laplace(), 150, key=8, progress=False, **data))
    narrow = sbc(model, Narrow(), 150, key=8, progress=False, **data)
    assert any("The draws of mean are too narrow" in said for said in narrow.verdict.sentences)


@dataclass(frozen=True)
class Narrow:
    """Laplace with sds of 0.6 of what they should be."""

    def fit(self, target, *, key, start, options):
        posterior = credo.Laplace().fit(target, key=key, start=start, options=options)
        kind = posterior.kind
        posterior.kind = type(kind)(kind.mean, jax.tree.map(lambda a: 0.6 * a, kind.scale))
        return posterior


def always_downhill(log_ratio):
    return jnp.maximum(log_ratio, -0.7)  # a fall of more than 0.7 counts as one of 0.7


def right(log_ratio):
    return log_ratio


@dataclass(frozen=True)
class RandomWalk:
    """Metropolis with a rule of its own for the log acceptance probability."""

    rule: Any
    num_draws: int = 4_000

    def fit(self, target, *, key, start, options):
        positions = walk(
            target.flat(), jax.random.key_data(key), np.zeros(target.dim), rule=self.rule, num_draws=self.num_draws
        )
        return credo.Posterior(Draws(np.asarray(positions)[None, 500:]), target, verdict=Verdict("pass"))


def _walk(target, data, position, *, rule, num_draws):
    def step(state, key):
        u, log_p = state
        k_move, k_accept = jax.random.split(key)
        new = u + 1.2 * jax.random.normal(k_move, u.shape)
        new_log_p = target.log_density(new)
        is_accepted = jnp.log(jax.random.uniform(k_accept)) < rule(new_log_p - log_p)
        state = jnp.where(is_accepted, new, u), jnp.where(is_accepted, new_log_p, log_p)
        return state, state[0]

    keys = jax.random.split(jax.random.wrap_key_data(data), num_draws)
    return jax.lax.scan(step, (position, target.log_density(position)), keys)[1]


walk = jit(_walk, static_argnames=("rule", "num_draws"))


@pytest.mark.parametrize("rule", [right, always_downhill])
def test_a_kernel_with_a_wrong_acceptance_is_found(rule):
    model = WAITING
    calibration = sbc(model, RandomWalk(rule), 200, key=9, size=6, progress=False)
    if rule is right:
        assert is_uniform(calibration), calibration.verdict
        assert calibration.verdict.figures["sbc_excess_spread"] < 0.01
    else:
        assert calibration.verdict.status == "failed"
        assert any("too wide" in said for said in calibration.verdict.sentences), calibration.verdict


# about a posterior ----------------------------------------------------------------------------------------------------


def fitted(weights=None, method=None, y=(0.4, 1.5, 0.2, 0.7, 2.0)):
    target = WAITING.given(y=np.array(y), weights=weights)
    return credo.fit(target, method or ByGrid(num_draws=2_000), progress=False)


def test_posterior_sbc_is_uniform_about_the_right_posterior():
    """New rows count once each, whatever the weights of those that were seen."""
    posterior = fitted(np.array([1.0, 3.0, 0.0, 2.0, 1.0]))
    calibration = posterior_sbc(posterior, ByGrid(), 200, key=1, progress=False)
    assert is_uniform(calibration), calibration.verdict


def test_posterior_sbc_finds_a_wrong_posterior_and_a_wrong_method():
    wrong = fitted(None, ByGrid(prior_twice, 2_000), y=(0.2, 0.1, 0.05, 0.3, 0.1))
    verdict = posterior_sbc(wrong, ByGrid(), 200, key=2, progress=False).verdict
    assert verdict.status == "failed"
    assert "posterior that was asked about is in question as much as the method" in verdict.sentences[-1]
    posterior = fitted()
    found = posterior_sbc(posterior, ByGrid(without_jacobian), 200, key=2, progress=False)
    assert any("The draws of rate are too low" in said for said in found.verdict.sentences)


@pytest.mark.slow
def test_posterior_sbc_of_several_outcomes_and_of_rows_with_effects():
    """A dict of outcomes, and a likelihood that is tied to its rows: both data sets are at the same ones."""
    model = credo.Model(
        {"z": dist.Normal(0.0, 1.0).expand([3])},
        lambda params, x: {"a": dist.Normal(params["z"], x), "b": dist.Poisson(jnp.exp(params["z"]))},
    )
    y = {"a": np.array([0.3, -1.0, 2.0]), "b": np.array([1, 0, 4])}
    seen = []
    statistics = {"sum": lambda params, y: seen.append(sorted(y)) or jnp.sum(params["z"])}
    posterior = credo.fit(model.given(np.ones(3), y), credo.Laplace(), progress=False)
    calibration = posterior_sbc(posterior, credo.Laplace(), 30, statistics=statistics, progress=False)
    assert calibration.ranks["z"].shape == (30, 3)
    assert seen[0] == ["a", "a_replicated", "b", "b_replicated"]


def test_posterior_sbc_refuses_with_a_sentence():
    with pytest.raises(CredoError, match=r"worth \d+ independent draws, and 300 simulations need one each"):
        posterior_sbc(fitted(None, ByGrid(num_draws=350)), ByGrid(), 300, progress=False)
    prior = credo.fit(credo.Model({"a": dist.Normal(0.0, 1.0)}, None).given(), credo.Laplace(), progress=False)
    with pytest.raises(CredoError, match="needs a likelihood and observed y"):
        posterior_sbc(prior, ByGrid())
    for statistic in (lambda params, y: jnp.sum(y), lambda params, y: 1 / 0):
        with pytest.raises(CredoError, match=r"statistic 's' has no value .*y is a dict of 'observed', 'replicated'"):
            posterior_sbc(fitted(None, ByGrid()), ByGrid(), 5, statistics={"s": statistic}, progress=False)


# the run --------------------------------------------------------------------------------------------------------------


def test_same_key_same_answer_and_simulations_do_not_depend_on_their_number():
    calibration, again, fewer, other = (
        sbc(WAITING, ByGrid(), number, key=key, size=6, progress=False)
        for number, key in ((20, 1), (20, 1), (8, 1), (20, 2))
    )
    for name, ranks in calibration.ranks.items():
        np.testing.assert_array_equal(ranks, again.ranks[name])
        np.testing.assert_array_equal(ranks[:8], fewer.ranks[name])
        assert np.any(ranks != other.ranks[name])


@dataclass(frozen=True)
class Refuses:
    """Answers data whose sum is small."""

    limit: float

    def fit(self, target, *, key, start, options):
        if np.sum(target.y) > self.limit:
            raise CredoError(f"The sum is {np.sum(target.y):g}.")
        return ByGrid().fit(target, key=key, start=start, options=options)


def test_failures_are_counted_and_named():
    calibration = sbc(WAITING, Refuses(8.0), 50, key=1, size=6, progress=False)
    number = len(calibration.failures)
    assert 0 < number < 50
    assert calibration.num_simulations == 50 - number
    assert calibration.verdict.figures["sbc_failure_share"] == number / 50
    assert calibration.verdict.status == "failed"
    first = next(iter(calibration.failures))
    assert any(f"simulation {first}: The sum is" in said for said in calibration.verdict.sentences)
    with pytest.raises(CredoError, match="None of 50 simulated data sets could be fitted. The first: The sum is"):
        sbc(WAITING, Refuses(-1.0), 50, size=6, progress=False)


def test_other_errors_say_in_which_simulation():
    def broken(target):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        sbc(WAITING, broken, 5, size=6, progress=False)
    assert caught.value.__notes__ == ["This happened in simulation 0 of 5."]


def test_data_and_statistics_that_are_no_numbers_are_failures():
    wild = credo.Model({"rate": dist.LogNormal(0.0, 1e3)}, exponential)
    calibration = sbc(wild, ByGrid(), 30, size=6, progress=False)
    assert any("not finite" in why for why in calibration.failures.values())
    root = {"root": lambda params, y: jnp.sqrt(params["rate"] - 0.2)}
    calibration = sbc(WAITING, ByGrid(), 60, size=6, statistics=root, progress=False)
    assert "root is not a number" in next(iter(calibration.failures.values()))


def test_time_limit():
    calibration = sbc(WAITING, ByGrid(), 500, size=6, time_limit=0.01, progress=False)
    assert not calibration.is_complete
    assert 0 < calibration.num_simulations < 500
    assert any("The time limit came after" in said for said in calibration.verdict.sentences)


def test_fits_with_too_few_independent_draws_are_doubtful():
    class Slow(RandomWalk):
        def fit(self, target, *, key, start, options):
            posterior = super().fit(target, key=key, start=start, options=options)
            posterior.kind = Draws(np.repeat(posterior.kind.positions[:, ::300], 300, axis=1))
            return posterior

    calibration = sbc(WAITING, Slow(right), 20, size=6, progress=False)
    expected = np.mean(2 * (99 / calibration.num_effective - 1) / 99)
    assert calibration.verdict.figures["sbc_excess_spread"] == pytest.approx(expected)
    assert expected > 0.05
    assert any("Draws that are not independent" in said for said in calibration.verdict.sentences)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: sbc(WAITING, ByGrid(num_draws=50), 5, size=6), "A fit has 50 draws and 99 are needed"),
        (lambda: sbc(WAITING, ByGrid(), 5), "how many rows a data set has, by size="),
        (lambda: sbc(MODELS["eight schools"][0], ByGrid(), 5, x=SIGMA, size=8), "batch_shape \\(8,\\) by itself"),
        (lambda: sbc(WAITING, ByGrid(), 5, size=-1), "size is a whole number of at least 1; got -1"),
        (lambda: sbc(WAITING, ByGrid(), 0, size=6), "num_simulations is a whole number of at least 1; got 0"),
        (lambda: sbc(WAITING, ByGrid(), 5, size=6, num_ranks=1), "num_ranks is a whole number of at least 2"),
        (lambda: sbc(WAITING, ByGrid(), 5, size=6, statistics=[np.sum]), r"functions of \(params, y\) by name"),
        (lambda: sbc(WAITING, ByGrid(), 5, size=6, statistics={"a": np.abs}), "statistic 'a' has no value"),
        (lambda: sbc(WAITING, ByGrid(), 5, size=6, statistics={"a": lambda y: y}), "statistic 'a' has no value"),
        (lambda: sbc(WAITING, ByGrid(), 5, size=6, time_limit="1 s"), "time_limit is a number of seconds"),
        (
            lambda: sbc(credo.Model.from_log_density(lambda p: -p["a"], {"a": dist.constraints.positive}), ByGrid()),
            "cannot simulate data, so it cannot be calibrated: it is a bare log density",
        ),
        (
            lambda: sbc(credo.Model({"a": dist.ImproperUniform(dist.constraints.real, (), ())}, None), ByGrid()),
            "improper",
        ),
        (
            lambda: sbc(credo.Model({"a": dist.Normal(0.0, 1.0)}, None), ByGrid(), size=3),
            "no likelihood, hence no data",
        ),
    ],
)
def test_refuses_with_a_sentence(call, sentence):
    with pytest.raises(CredoError, match=sentence):
        call()


# the picture ----------------------------------------------------------------------------------------------------------


def test_the_picture_is_that_of_the_ranks():
    calibration = sbc(WAITING, ByGrid(data_ignored), 100, size=6, num_ranks=20, progress=False)
    figure = credo.plots.rank_ecdf(calibration, ["rate", "log_likelihood"])
    low, high = band(100, 20, 0.95)
    for panel, name in zip(figure.axes, ("rate", "log_likelihood"), strict=True):
        (line,) = [line for line in panel.get_lines() if line.get_label() == name]
        points, heights = line.get_data()
        shares = [np.mean(calibration.ranks[name] < 20 * point - 1e-9) for point in points]
        np.testing.assert_allclose(heights, np.array(shares) - points, atol=1e-12)
        is_inside = np.all((100 * (heights + points) >= low - 1e-9) & (100 * (heights + points) <= high + 1e-9))
        assert is_inside == (ecdf_p_values(calibration.ranks[name], 20) > 0.05)
    assert credo.plots.rank_ecdf(calibration).axes[0].get_title().startswith("log_likelihood (p = ")
    with pytest.raises(CredoError, match="no scalar 'x'; there are log_likelihood, rate"):
        credo.plots.rank_ecdf(calibration, ["x"])
    with pytest.raises(CredoError, match="sbc"):
        credo.plots.rank_ecdf(3)


def test_a_statistic_replaces_nothing_that_is_ranked():
    """It took the place of the parameter, and a wrong method passed."""
    model = credo.Model({"mean": dist.Normal(0.0, 2.0)}, lambda params, x: dist.Normal(params["mean"], 1.0))
    for name in ("mean", "log_likelihood"):
        with pytest.raises(credo.CredoError, match=f"A statistic is named '{name}'"):
            credo.diagnose.sbc(model, credo.MAP(), 10, size=5, progress=False, statistics={name: lambda p, y: y.sum()})


def test_the_time_limit_holds_where_no_fit_ends_well():
    class Refusing:
        def fit(self, target, *, key, start, options):
            raise credo.CredoError("no")

    model = credo.Model({"mean": dist.Normal(0.0, 2.0)}, lambda params, x: dist.Normal(params["mean"], 1.0))
    with pytest.raises(credo.CredoError, match="None of 1 simulated data sets could be fitted"):
        credo.diagnose.sbc(model, Refusing(), 100, size=5, time_limit=1e-9, progress=False)
