"""Gibbs: every kind of block leaves the target invariant, and fits agree with exact answers."""

import itertools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy import special, stats

import credo
from credo import CredoError, Model
from credo.diagnose.verdict import judge
from credo.methods.mcmc.blocks import inner, own
from credo.methods.mcmc.chains import Recipe, first_tuning
from credo.methods.mcmc.conditional import Block, Conditional
from credo.methods.mcmc.conjugate import Conjugating, conjugating
from credo.methods.mcmc.enumerated import Enumerating, enumerating
from credo.methods.mcmc.families import LogGamma, LogisticBeta, Normal
from credo.methods.mcmc.gibbs import Moved, State, Update, gibbs
from credo.methods.mcmc.gibbs_sampling import Sweep
from credo.methods.mcmc.sweeps import check_moves, figures_of_sweeps, warmup
from credo.precision import double, to_numpy

NUM_CHAINS = 4_000
MAX_Z = 5.0  # of about 80 statistics: one false alarm in 20,000 runs


# invariance -----------------------------------------------------------------------------------------------------------

EVERYTHING = Model(
    {
        "w": dist.Beta(2.0, 3.0),
        "z": lambda w: dist.Bernoulli(w).expand([4]),
        "c": dist.Categorical(probs=np.array([0.5, 0.2, 0.3])),
        "m": lambda z, c: dist.Normal(2.0 * z + c, 1.0),
        "t": dist.Gamma(3.0, 2.0),
        "x": lambda m, t: dist.Normal(m.sum(), t**-0.5),
        "s": lambda t: dist.Uniform(0.0, t),
    },
    None,
)


def draw_s_and_c(key, params, data):
    k_s, k_c = jax.random.split(key)
    k = jnp.arange(3)
    log_p = jnp.log(jnp.array([0.5, 0.2, 0.3])) - 0.5 * jnp.sum((params["m"] - 2.0 * params["z"] - k[:, None]) ** 2, 1)
    return {"s": params["t"] * jax.random.uniform(k_s), "c": jax.random.categorical(k_c, log_p)}


def draw_x(key, params, data):
    return params["m"].sum() + params["t"] ** -0.5 * jax.random.normal(key)


def draw_too_narrow(key, params, data):
    return params["m"].sum() + 0.8 * params["t"] ** -0.5 * jax.random.normal(key)


def draw_t(key, params, data):
    """Given x, m and s, whose values stay: t is a gamma variable above s, proposed without that bound."""
    rate = 2.0 + 0.5 * (params["x"] - params["m"].sum()) ** 2
    proposal = jax.random.gamma(key, 2.5) / rate
    return jnp.where(proposal > params["s"], proposal, params["t"])


def exact_draws():
    """Positions (chain, dim), by NumPy."""
    rng = np.random.default_rng(0)
    w = rng.beta(2.0, 3.0, NUM_CHAINS)
    z = (rng.uniform(size=(NUM_CHAINS, 4)) < w[:, None]).astype(float)
    c = rng.choice(3, NUM_CHAINS, p=[0.5, 0.2, 0.3]).astype(float)
    m = rng.normal(2.0 * z + c[:, None], 1.0)
    t = rng.gamma(3.0, 1 / 2.0, NUM_CHAINS)
    x = rng.normal(m.sum(axis=1), t**-0.5)
    s = rng.uniform(size=NUM_CHAINS)
    return np.column_stack([special.logit(w), z, c, m, np.log(t), x, special.logit(s)])


def sweep_of(target, blocks, position):
    """The program of ``blocks``, and its tuning."""
    updates, tuning = [], []
    for names, kind in blocks.items():
        block = Block.of(target.structure, names)
        if isinstance(kind, credo.Conjugate):
            update, given = conjugating(target, block, [position]), None
        elif isinstance(kind, credo.Enumerated):
            update, given = enumerating(credo.Enumerated(), target, block, [position])
        elif callable(kind):
            update, given = own(target, block, kind)
        else:
            update, recipe = inner(target, block, kind)
            given = first_tuning(recipe, 0, [recipe.like(np.ones(block.dim))])[0]
        updates.append(update)
        tuning.append(given)
    return Sweep(tuple(updates)), tuple(tuning)


def z_scores(blocks, num_sweeps=2):
    """Of the changes of statistics, in chains that start from exact draws."""
    with double():
        target, before = EVERYTHING.given().flat(), exact_draws()
        program, tuning = sweep_of(target, blocks, before[0])
        algorithm = program.algorithm(target, tuning)

        def several(chain):
            key, position = chain
            k_init, *keys = jax.random.split(key, num_sweeps + 1)
            state = algorithm.init(k_init, position)
            return jax.lax.scan(lambda s, k: algorithm.step(k, s), state, jnp.stack(keys))

        keys = jax.random.split(jax.random.key(1), NUM_CHAINS)
        end, info = to_numpy(jax.jit(lambda *c: jax.lax.map(several, c))(keys, before))
        log_density = np.asarray(
            jax.jit(lambda u: jax.lax.map(target.log_density, u))(
                np.stack([before, end.position]).reshape(-1, target.dim)
            )
        )
        log_density = log_density.reshape(2, -1)
    np.testing.assert_allclose(end.log_density, log_density[1], rtol=1e-10)
    assert np.all(info.is_valid)
    moving = np.concatenate([program.updates[b].block.index() for b in range(len(blocks))])
    assert np.all(np.mean(end.position[:, moving] != before[:, moving], axis=0) > 0.05)
    np.testing.assert_array_equal(end.has_moved, end.has_moved | (end.position != before))
    statistics = (
        lambda u: u,
        lambda u: (u - before.mean(axis=0)) ** 2,
        lambda u: (u - before.mean(axis=0)) * (np.roll(u, 1, axis=1) - np.roll(before, 1, axis=1).mean(axis=0)),
        lambda u: (u[:, :1] < np.median(before[:, 0])) * u,
        lambda u: (u < np.quantile(before, 0.1, axis=0)).astype(float),
    )
    change = [(log_density[1] - log_density[0])[:, None], *(f(end.position) - f(before) for f in statistics)]
    return np.concatenate([np.abs(c.mean(axis=0)) / (c.std(axis=0) / np.sqrt(NUM_CHAINS) + 1e-300) for c in change])


def test_target_is_invariant():
    blocks = {
        ("w",): credo.Conjugate(),
        ("z",): credo.Enumerated(),
        ("s", "c"): draw_s_and_c,
        ("x",): credo.HMC(num_steps=2),
    }
    assert np.all(z_scores(blocks) < MAX_Z)


@pytest.mark.slow
def test_target_is_invariant_to_every_kind_of_block():
    blocks = {
        ("w",): credo.Conjugate(),
        ("z",): credo.Enumerated(),
        ("c",): credo.Enumerated(),
        ("m",): credo.Conjugate(),  # normal, and not apart
        ("t",): draw_t,  # whose value moves the coordinate of s
        ("x",): credo.Slice(),
        ("s",): lambda key, params, data: params["t"] * jax.random.uniform(key),
    }
    assert np.all(z_scores(blocks) < MAX_Z)


def test_a_wrong_conditional_is_seen():
    """The test above would fail: the statistics have the power."""
    assert z_scores({("x",): draw_too_narrow}).max() > MAX_Z


# fits -----------------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(4)
SIGNAL = np.concatenate([RNG.normal(0.0, 1.0, 24), RNG.normal(2.5, 1.0, 16), [-4.0]])
MIXTURE = Model(
    {
        "w": dist.Beta(2.0, 2.0),
        "mu": dist.Normal(2.0, 1.0),
        "z": lambda w: dist.Bernoulli(w).expand([SIGNAL.size]),
    },
    lambda params, x: dist.Normal(params["mu"] * params["z"], 1.0),
    derived={"num_signal": lambda z: z.sum()},
)
MIXTURE_METHOD = credo.Gibbs({"z": credo.Enumerated(), "w": credo.Conjugate(), "mu": credo.Conjugate()})


@pytest.fixture(scope="module")
def mixture():
    return credo.fit(MIXTURE.given(y=SIGNAL), MIXTURE_METHOD, key=2, progress=False)


def mixture_by_quadrature():
    """Means and sds of w and mu, and P(z = 1), with z summed out."""
    w, mu = np.linspace(0.001, 0.999, 300)[:, None], np.linspace(0.0, 5.0, 301)
    ones = stats.norm.pdf(SIGNAL[:, None, None], mu, 1.0) * w
    zeros = stats.norm.pdf(SIGNAL, 0.0, 1.0)[:, None, None] * (1 - w)
    p = np.exp(np.log(ones + zeros).sum(axis=0) + stats.norm.logpdf(mu, 2.0, 1.0) + stats.beta.logpdf(w, 2.0, 2.0))
    p /= p.sum()
    moments = [(np.sum(p * v), np.sqrt(np.sum(p * (v - np.sum(p * v)) ** 2))) for v in (w, mu)]
    return moments, np.sum(p * ones / (ones + zeros), axis=(1, 2))


@pytest.mark.slow
def test_mixture_agrees_with_the_sum_over_assignments(mixture):
    assert mixture.verdict.status == "pass", mixture.verdict
    assert mixture.info["blocks"] == {
        "z": {"elements_at_once": True},
        "w": {"family": "beta"},
        "mu": {"family": "normal"},
    }
    table, (moments, probability) = mixture.summary(), mixture_by_quadrature()
    for name, (mean, sd) in zip(("w", "mu"), moments, strict=True):
        assert abs(table["mean"][name] - mean) < 5 * table["mcse_mean"][name]
        assert abs(table["sd"][name] / sd - 1) < 10 / np.sqrt(table["ess_bulk"][name])
    error = 5 * np.sqrt(probability * (1 - probability) / mixture.verdict.figures["min_ess_bulk"]) + 0.001
    np.testing.assert_array_less(np.abs(mixture.mean()["z"] - probability), error)
    assert mixture.info["num_gradients"] > 0
    assert "acceptance_rate" not in mixture.verdict.figures


def test_draws_are_whole_numbers_in_every_use(mixture, tmp_path):
    draws = mixture.draws
    assert np.issubdtype(draws["z"].dtype, np.integer)
    assert draws["z"].shape == (4, 1_000, SIGNAL.size)
    np.testing.assert_array_equal(draws["num_signal"], draws["z"].sum(axis=-1))
    assert mixture.verdict.figures["num_settled"] >= 1  # that of the datum at −4
    assert np.all(draws["z"][..., -1] == 0)
    assert np.issubdtype(mixture.sample(0, 3)["z"].dtype, np.integer)
    assert not any("fewer rows" in sentence for sentence in mixture.verdict.sentences)
    predictive = mixture.predict(None, credo.MonteCarlo(4_000))
    np.testing.assert_allclose(predictive.mean, (draws["mu"][..., None] * draws["z"]).mean(axis=(0, 1)), rtol=1e-6)
    mixture.save(tmp_path / "p.credo")
    for model in (None, MIXTURE, MIXTURE.given(y=SIGNAL)):
        loaded = credo.load(tmp_path / "p.credo", model)
        np.testing.assert_array_equal(loaded.draws["z"], draws["z"])
        assert np.issubdtype(loaded.draws["z"].dtype, np.integer)
        assert loaded.verdict == mixture.verdict
    assert credo.methods.settings.from_json(credo.methods.settings.to_json(MIXTURE_METHOD)) == MIXTURE_METHOD


COUNTS = np.concatenate([RNG.poisson(3.0, 17), RNG.poisson(1.5, 13)])
CHANGE = Model(
    {"s": dist.DiscreteUniform(1, COUNTS.size - 1), "rate": dist.Gamma(2.0, 1.0).expand([2])},
    lambda params, x: dist.Poisson(params["rate"][(x >= params["s"]).astype(int)]),
)


@pytest.mark.slow
def test_change_point_agrees_with_its_enumeration():
    years = np.arange(COUNTS.size)
    method = credo.Gibbs({"s": credo.Enumerated(), "rate": credo.Conjugate()}, num_draws=4_000)
    posterior = credo.fit(CHANGE.given(years, COUNTS), method, key=5, progress=False)
    assert posterior.verdict.status == "pass", posterior.verdict
    assert posterior.info["blocks"]["rate"] == {"family": "gamma"}

    def log_marginal(y):  # up to the factorials, which are the same for all s
        return special.gammaln(2.0 + y.sum()) - (2.0 + y.sum()) * np.log(1.0 + y.size)

    log_p = np.array([log_marginal(COUNTS[:s]) + log_marginal(COUNTS[s:]) for s in years[1:]])
    p = np.exp(log_p - special.logsumexp(log_p))
    drawn = posterior.draws["s"]
    found = (drawn.reshape(-1)[:, None] == years[1:]).mean(axis=0)
    ess = posterior.verdict.figures["min_ess_bulk"]
    np.testing.assert_array_less(np.abs(found - p), 5 * np.sqrt(p * (1 - p) / ess) + 1e-3)
    rates = [[(2.0 + y.sum()) / (1.0 + y.size) for y in (COUNTS[:s], COUNTS[s:])] for s in years[1:]]
    table = posterior.summary(["rate"])
    np.testing.assert_array_less(np.abs(table["mean"] - p @ np.array(rates)), 5 * table["mcse_mean"])


GROUPS = np.repeat(np.arange(6), 5)
HIERARCHY = {
    "grand": dist.Normal(0.0, 10.0),
    "between": dist.InverseGamma(3.0, 2.0),  # variances
    "within": dist.InverseGamma(3.0, 2.0),
    "effect": lambda grand, between: dist.Normal(grand, jnp.sqrt(between)).expand([6]),
}


def normal_rows(params, x):
    return dist.Normal(params["effect"][x], jnp.sqrt(params["within"]))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["threads", "vectorized"])
def test_hierarchy_with_conjugate_conditionals_agrees_with_nuts(layout):
    rng = np.random.default_rng(0)
    y = 2.0 + rng.normal(size=6)[GROUPS] + rng.normal(size=30)
    target = Model(HIERARCHY, normal_rows).given(GROUPS, y)
    method = credo.Gibbs({name: credo.Conjugate() for name in HIERARCHY}, num_draws=2_000)
    found = credo.fit(target, method, key=1, layout=layout, progress=False)
    assert found.verdict.status == "pass", found.verdict
    families = {name: facts["family"] for name, facts in found.info["blocks"].items()}
    assert families == {"grand": "normal", "between": "inverse gamma", "within": "inverse gamma", "effect": "normal"}
    both = [p.summary() for p in (found, credo.fit(target, credo.NUTS(num_draws=2_000), key=1, progress=False))]
    error = np.hypot(both[0]["mcse_mean"], both[1]["mcse_mean"])
    np.testing.assert_array_less(np.abs(both[0]["mean"] - both[1]["mean"]), 5 * error)
    np.testing.assert_allclose(both[0]["sd"], both[1]["sd"], rtol=0.2)


@pytest.mark.slow
def test_dirichlet_and_samplers_within():
    """Shares of three categories by Conjugate(), and of a mixture's other parameters by samplers."""
    counts = np.array([7, 2, 4])
    model = Model(
        {"p": dist.Dirichlet(np.array([1.0, 2.0, 0.5])), "a": dist.Normal(0.0, 1.0), "b": dist.Normal(0.0, 1.0)},
        lambda params, x: dist.Categorical(probs=jnp.broadcast_to(params["p"], (13, 3))),
    )
    blocks = {"p": credo.Conjugate(), "a": credo.Slice(), "b": credo.RandomWalkMetropolis(num_steps=5)}
    posterior = credo.fit(model.given(y=np.repeat(np.arange(3), counts)), credo.Gibbs(blocks), key=3, progress=False)
    assert posterior.verdict.status == "pass", posterior.verdict
    assert posterior.info["blocks"]["p"] == {"family": "Dirichlet"}
    assert set(posterior.info["blocks"]["b"]) == {"acceptance_rate", "step_size"}
    exact = stats.dirichlet(np.array([1.0, 2.0, 0.5]) + counts)
    table = posterior.summary()
    np.testing.assert_array_less(np.abs(table["mean"] - [*exact.mean(), 0.0, 0.0]), 5 * table["mcse_mean"].to_numpy())
    np.testing.assert_allclose(table["sd"], [*np.sqrt(exact.var()), 1.0, 1.0], rtol=0.1)


@pytest.mark.slow
def test_interrupted_runs_continue_bit_for_bit(tmp_path):
    target = MIXTURE.given(y=SIGNAL)
    method = credo.Gibbs({"z": credo.Enumerated(), ("w", "mu"): credo.NUTS(max_depth=5)}, num_draws=200)
    whole = credo.fit(target, method, key=2, progress=False)
    assert whole.info["blocks"]["w, mu"]["step_size"] != 1.0, "the step size has adapted"
    credo.fit(target, method, key=2, progress=False, checkpoint=tmp_path)
    again = credo.resume(tmp_path, target, progress=False)
    np.testing.assert_array_equal(whole.kind.positions, again.kind.positions)
    (moments, probability) = mixture_by_quadrature()
    assert np.max(np.abs(whole.mean()["z"] - probability)) < 0.2
    assert abs(whole.mean()["mu"] - moments[1][0]) < 0.2


# parts ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coupled", [False, True])
def test_elements_are_drawn_at_once_only_where_they_are_apart(coupled):
    """A term that joins two of the elements leaves the one-by-one sweep, and both draw from the conditional."""

    def log_density(params):
        z, u = params["z"], params["u"]
        joined = 1.5 * z[0] * z[2] if coupled else 0.0
        return -0.5 * u**2 + joined

    model = Model(
        {
            "u": dist.Normal(0.0, 1.0),
            "z": lambda u: dist.Categorical(logits=jnp.outer(jnp.arange(3.0), jnp.ones(3)) * u),
        },
        None,
    )
    if coupled:
        supports = {"u": constraints.real, "z": constraints.integer_interval(0, 2)}
        model = Model.from_log_density(log_density, supports, {"z": (3,)})
    with double():
        target = model.given().flat()
        update, values = enumerating(
            credo.Enumerated(), target, Block.of(target.structure, ["z"]), [np.array([0.7, 0, 1, 2])]
        )
        assert update.is_apart is not coupled
        np.testing.assert_array_equal(values, [0, 1, 2])
        draw = jax.jit(jax.vmap(lambda key, u: update.update(target, values).step(key, u, None).position))
        start = np.tile([0.7, 0.0, 1.0, 2.0], (5_000, 1))
        z = np.asarray(draw(jax.random.split(jax.random.key(0), 5_000), start))[:, 1:]
        if not coupled:
            logits = np.outer(np.arange(3.0), np.ones(3)) * 0.7
            p = special.softmax(logits, axis=1)  # the same for each value
            np.testing.assert_allclose((z[..., None] == values).mean(axis=0), p, atol=5 * 0.5 / np.sqrt(5_000))
        else:  # z_0 first, given z_2 = 2
            p = special.softmax(1.5 * 2 * np.arange(3))
            np.testing.assert_allclose((z[:, :1] == values).mean(axis=0), p, atol=5 * 0.5 / np.sqrt(5_000))


def drawn(target, position, num_draws=5_000):
    """The update of z, and what it draws (draw, element) given the rest of ``position``."""
    with double():
        target = target.flat()
        block = Block.of(target.structure, ["z"])
        update, values = enumerating(credo.Enumerated(), target, block, [np.asarray(position)])
        draw = jax.jit(jax.vmap(lambda key: update.update(target, values).step(key, jnp.asarray(position), None)))
        return update, np.asarray(draw(jax.random.split(jax.random.key(0), num_draws)).position)[:, block.index()]


def test_supports_that_depend_on_elements_bring_their_jacobians():
    """x given z is uniform on (0, 1 + z), and its coordinate, the logit of x / (1 + z), says nothing of z."""
    model = Model({"z": dist.Bernoulli(0.5).expand([4]), "x": lambda z: dist.Uniform(0.0, 1.0 + z)}, None)
    update, z = drawn(model.given(), [0.0, 1.0, 0.0, 1.0, 0.3, -1.0, 2.0, 0.0])
    assert update.is_apart
    np.testing.assert_allclose(z.mean(axis=0), 0.5, atol=5 * 0.5 / np.sqrt(len(z)))


@pytest.mark.parametrize("size", [3, 6])
def test_any_two_elements_that_meet_are_seen_to(size):
    """The row of one holds another, for each of the pairs."""
    prior = {"z": dist.DiscreteUniform(0, 2).expand([size])}
    model = Model(prior, lambda params, x: dist.Normal(x @ params["z"], 1.0))
    for i, j in [(0, 0), *itertools.permutations(range(size), 2)]:
        x = np.eye(size)
        x[i, j] = 1.0
        target = model.given(x, np.zeros(size)).flat()
        update, _ = enumerating(
            credo.Enumerated(), target, Block.of(target.structure, ["z"]), np.zeros((1, target.dim))
        )
        assert update.is_apart == (i == j)


def test_terms_of_several_entries_count_for_their_element():
    """x_ij given z_i: the odds of z_i are those of all entries of its row."""
    prior = {"z": dist.Bernoulli(0.5).expand([3]), "x": lambda z: dist.Normal(z[:, None], 1.0).expand([3, 2])}
    x = np.array([[0.5, 0.1], [1.5, 1.0], [-1.0, 2.5]])
    update, z = drawn(Model(prior, None).given(), [0.0, 1.0, 0.0, *x.ravel()])
    assert update.is_apart
    np.testing.assert_allclose(z.mean(axis=0), special.expit(np.sum(x - 0.5, axis=1)), atol=5 * 0.5 / np.sqrt(len(z)))


def test_elements_of_different_ranges_stay_in_their_own():
    model = Model({"z": dist.DiscreteUniform(np.array([0, 2]), np.array([3, 5]))}, None)
    _, z = drawn(model.given(), [1.0, 2.0])
    for values, low in zip(z.T, (0, 2), strict=True):
        found, counts = np.unique(values, return_counts=True)
        np.testing.assert_array_equal(found, low + np.arange(4))
        np.testing.assert_allclose(counts / len(z), 0.25, atol=5 * np.sqrt(3 / 16 / len(z)))


def test_elements_drawn_in_turn_have_random_numbers_of_their_own():
    """Two that are alike are more probable by a factor of e."""

    def log_density(params):
        return 1.0 * (params["z"][0] == params["z"][1])

    model = Model.from_log_density(log_density, {"z": constraints.boolean}, {"z": (2,)})
    update, z = drawn(model.given(), [0.0, 1.0])
    assert not update.is_apart
    # z_0 given z_1 = 1, then z_1 given z_0: each alike with this probability
    p = np.e / (1 + np.e)
    np.testing.assert_allclose(z[:, 0].mean(), p, atol=5 * 0.5 / np.sqrt(len(z)))
    np.testing.assert_allclose(np.mean(z[:, 0] == z[:, 1]), p, atol=5 * 0.5 / np.sqrt(len(z)))
    np.testing.assert_allclose(z.prod(axis=1).mean(), p * p, atol=5 * 0.5 / np.sqrt(len(z)))


def test_blocks_have_random_numbers_of_their_own():
    """Two that draw the same way are not alike, nor is one in two sweeps."""
    target = Model({"a": dist.Normal(0.0, 1.0).expand([2])}, None).given().flat()

    def drawing(i):
        return Update(lambda key, u: None, lambda key, u, carried: Moved(u.at[i].set(jax.random.normal(key))))

    kernel = gibbs(target, updates=[drawing(0), drawing(1)])
    state, keys = kernel.init(jax.random.key(0), jnp.zeros(2)), jax.random.split(jax.random.key(1), 2_000)
    draws = jax.jit(jax.vmap(lambda key: kernel.step(key, state)[0].position))(keys)
    assert abs(np.corrcoef(draws.T)[0, 1]) < 5 / np.sqrt(2_000)


def test_a_sweep_is_the_sum_of_its_moves():
    """Whatever their order; the log density is that of where the last one ended, evaluated where it does not know."""
    target = Model({"a": dist.Normal(0.0, 1.0)}, None).given().flat()

    def moving(by, **facts):
        return Update(lambda key, u: None, lambda key, u, carried: Moved(u + by, **facts))

    first = moving(1.0, num_steps=3, num_densities=5, num_undefined=1, is_divergent=True, acceptance=0.25)
    second = moving(2.0, num_steps=4, num_densities=7, num_undefined=1)
    for updates, acceptance in (((first, second), [0.25, 1.0]), ((second, first), [1.0, 0.25])):
        kernel = gibbs(target, updates=updates)
        state, info = kernel.step(jax.random.key(1), kernel.init(jax.random.key(0), jnp.zeros(1)))
        assert state.position == 3.0
        np.testing.assert_allclose([state.log_density, info.log_density], stats.norm.logpdf(3.0), rtol=1e-6)
        assert (info.num_steps, info.num_densities, info.num_undefined) == (7, 12 + 1, 2)
        assert info.is_divergent
        np.testing.assert_allclose(info.acceptance, acceptance)


def test_what_blocks_evaluate_is_counted():
    """(gradients, densities) by hand."""
    prior = {name: dist.Bernoulli(0.3).expand([3]) for name in ("apart", "together")}
    prior |= {name: dist.Normal(0.0, 1.0).expand([3]) for name in ("a", "b", "c", "d")}
    with double():
        target = Model(prior, None).given().flat()
        blocks = {name: Block.of(target.structure, [name]) for name in prior}
        walk, langevin = credo.RandomWalkMetropolis(num_steps=5), credo.MALA(num_steps=4)
        updates = [
            (0, 2 + 2, Enumerating(blocks["apart"], is_apart=True), np.arange(2)),  # two, to see whether they still are
            (0, 3 * 2, Enumerating(blocks["together"], is_apart=False), np.arange(2)),
            (3 + 1, 2, Conjugating(blocks["a"], Normal(False)), None),
            (2, 2, Conjugating(blocks["b"], Normal(True)), None),
            (0, 5 + 1, *inner(target, blocks["c"], walk)),  # the density has changed since the last sweep
            (4 + 1, 0, *inner(target, blocks["d"], langevin)),
        ]
        for num_gradients, num_densities, update, given in updates:
            if isinstance(given, Recipe):
                given = first_tuning(given, 0, [given.like(np.ones(3))])[0]
            made = update.update(target, given)
            u, key = jnp.zeros(target.dim), jax.random.key(0)
            moved = jax.jit(lambda u, made=made, key=key: made.step(key, u, made.init(key, u)))(u)
            assert (moved.num_steps, moved.num_densities) == (num_gradients, num_densities)
            if moved.log_density is not None:
                np.testing.assert_allclose(moved.log_density, jax.jit(target.log_density)(moved.position))


PRECISION = np.array([[2.0, 0.9, -0.5], [0.9, 1.0, 0.3], [-0.5, 0.3, 3.0]])
A, B = np.array([0.5, 3.0, 8.0]), np.array([2.0, 0.1, 5.0])
SHIFTS = np.array([np.log(2.0), 0.0, 0.0])
# a family, its log density over coordinates v up to a constant, and v from independent draws by NumPy
FAMILIES = {
    "normal": (
        Normal(False),
        lambda v: -0.5 * (v - 1) @ PRECISION @ (v - 1),
        lambda rng, n: rng.multivariate_normal(np.ones(3), np.linalg.inv(PRECISION), n),
    ),
    "normal, apart": (
        Normal(True),
        lambda v: -0.5 * jnp.sum(A * (v + 2) ** 2),
        lambda rng, n: rng.normal(-2.0, A**-0.5, (n, 3)),
    ),
    "gamma": (
        LogGamma(1),
        lambda v: jnp.sum(A * v - B * jnp.exp(v)),
        lambda rng, n: np.log(rng.gamma(A, 1 / B, (n, 3))),
    ),
    "inverse gamma": (
        LogGamma(-1),
        lambda v: jnp.sum(-A * v - B * jnp.exp(-v)),
        lambda rng, n: -np.log(rng.gamma(A, 1 / B, (n, 3))),
    ),
    "Dirichlet": (
        LogisticBeta(tuple(SHIFTS)),
        lambda v: jnp.sum(A * jax.nn.log_sigmoid(v - SHIFTS) + B * jax.nn.log_sigmoid(SHIFTS - v)),
        lambda rng, n: np.log(rng.gamma(A, 1.0, (n, 3)) / rng.gamma(B, 1.0, (n, 3))) + SHIFTS,
    ),
}


@pytest.mark.parametrize("name", list(FAMILIES))
def test_a_family_draws_from_its_density(name):
    family, log_density, sample = FAMILIES[name]
    rng, num_draws = np.random.default_rng(0), 4_000
    expected = sample(rng, num_draws)

    def draw(key, found):
        v = family.sample(key, found)
        return v, family.log_prob(found, v), log_density(v)

    with double():
        found = family.fit(SimpleNamespace(log_density=log_density), jnp.array([0.3, -0.4, 0.1]))
        keys = jax.random.split(jax.random.key(0), num_draws)
        v, own, given = to_numpy(jax.jit(lambda keys: jax.vmap(lambda key: draw(key, found))(keys))(keys))
    np.testing.assert_allclose(own - own[0], given - given[0], atol=1e-8 * (1 + np.max(np.abs(given))))
    # each coordinate, and each sum of two: of 30 comparisons one false alarm in 3,000 keys
    for i, j in itertools.combinations_with_replacement(range(3), 2):
        assert stats.ks_2samp(v[:, i] + v[:, j], expected[:, i] + expected[:, j]).pvalue > 1e-5


def moved_by(target, position, names, conditional):
    """What a user's ``conditional`` makes of ``position``: (values before, values after, whether they are possible)."""
    update, function = own(target, Block.of(target.structure, names), conditional)

    @jax.jit
    def move(u):
        moved = update.update(target, function).step(jax.random.key(0), u, None)
        return target.constrain(u), target.constrain(moved.position), moved.is_valid

    return move(jnp.asarray(position))


def test_a_conditional_of_ones_own_leaves_the_values_of_others():
    """s is uniform on (0, t), so that its coordinate moves with t, and t cannot fall below it."""
    with double():
        target, u = EVERYTHING.given().flat(), exact_draws()[0]
        before, after, is_valid = moved_by(target, u, ["t"], lambda key, params, data: 1.5 * params["t"])
        assert is_valid
        for name in before:
            np.testing.assert_allclose(after[name], before[name] * (1.5 if name == "t" else 1.0), rtol=1e-12)
        assert not moved_by(target, u, ["t"], lambda key, params, data: 0.9 * params["s"])[2]
        both = ((0.5, 0.5, True), (1.5, 0.5, False), (0.5, 1.5, False), (np.nan, 0.5, False))
        for w, s, is_possible in both:
            found = moved_by(target, u, ["w", "s"], lambda key, p, data, w=w, s=s: {"w": w, "s": s * p["t"]})
            assert found[2] == is_possible


def test_a_conditional_of_ones_own_stays_within_the_support():
    """Whole numbers below 0 have coordinates, as have shares that do not sum to one."""
    prior, shares = {"k": dist.Poisson(2.0), "p": dist.Dirichlet(np.ones(3)), "last": dist.Poisson(2.0)}, np.ones(3) / 3
    with double():
        target = Model(prior, None).given().flat()
        for k, p, last, is_possible in ((3, shares, 1, True), (-1, shares, 1, False), (3, 2 * shares, 1, False)):
            found = moved_by(
                target, np.zeros(4), list(prior), lambda *_, v=(k, p, last): dict(zip(prior, v, strict=True))
            )
            assert found[2] == is_possible


def test_a_conditional_of_ones_own_sees_the_data():
    """Rows, or what the model of a log density was given."""
    with double():
        model = Model.from_log_density(lambda p, data: -0.5 * (p["a"] - data["level"]) ** 2, {"a": constraints.real})
        target = model.given({"level": 2.5}).flat()
        assert moved_by(target, [0.0], ["a"], lambda key, params, data: data["level"])[1]["a"] == 2.5
        model = Model({"a": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["a"] * x, 1.0))
        target = model.given(np.arange(3.0), np.ones(3)).flat()
        assert moved_by(target, [0.0], ["a"], lambda key, params, data: jnp.sum(data.x + data.y))[1]["a"] == 6.0


@pytest.mark.slow
def test_a_kernel_begins_anew_where_other_blocks_have_gone():
    """x given (m, t) knows nothing of the density of an earlier sweep; a step far too long is told to diverge."""
    with double():
        target, (first, second) = EVERYTHING.given().flat(), exact_draws()[:2]
        update, recipe = inner(target, Block.of(target.structure, ["x"]), credo.HMC(num_steps=2))
        for step_size in (0.5, 1e6):
            tuning, (adapted,) = first_tuning(recipe, 0, [recipe.like(np.ones(1))], step_size)
            made = update.update(target, tuning)
            starts = [made.init(jax.random.key(0), jnp.asarray(u))._replace(step=adapted.step) for u in (first, second)]
            step = jax.jit(lambda carried, made=made: made.step(jax.random.key(1), jnp.asarray(second), carried))
            moved, expected = map(step, starts)
            jax.tree.map(np.testing.assert_array_equal, moved, expected)
            assert (moved.acceptance < 1e-6) == moved.is_divergent == (step_size == 1e6)


def test_samplers_are_tuned_at_the_end_of_each_window():
    """To the sds of their own coordinates; chains go on with the mean of their step sizes, and none adapts at last."""
    with double():
        target = Model({"a": dist.Normal(0.0, 1.0), "b": dist.Normal(0.0, 1.0)}, None).given().flat()
        blocks = [Block.of(target.structure, [name]) for name in ("a", "b")]
        bound = [own(target, blocks[0], draw(0.0)), inner(target, blocks[1], credo.RandomWalkMetropolis())]
        program, recipe = Sweep(tuple(update for update, _ in bound)), bound[1][1]
        assert recipe.target_acceptance == 0.44  # of one parameter, however many the model has
        tuning, chains = first_tuning(recipe, 300, [recipe.like(np.ones(1))] * 2)
        states = [
            State(
                np.zeros(2),
                np.zeros(()),
                (None, chain._replace(step=chain.step._replace(log_average=size))),
                np.zeros(2, bool),
            )
            for chain, size in zip(chains, np.log([1.0, 4.0]), strict=True)
        ]
        first, *_, last = warmup(MIXTURE_METHOD, program, bound, states[0])
        info = SimpleNamespace(is_valid=np.ones((2, 200, 2), bool), log_density=np.zeros((2, 200)))
        positions = np.random.default_rng(0).normal(size=(2, 200, 2)) * [1.0, 30.0]
        for phase, records in ((first, {"position": positions}), (last, {})):
            (_, tuned), found = phase.at_end((records, info), (None, tuning), states)
            np.testing.assert_allclose([np.exp(state.carried[1].step.log_step) for state in found], 2.0)
            assert tuned.is_adapting == (phase is first)
            if phase is first:
                np.testing.assert_allclose(np.sqrt(tuned.metric.diagonal()), 30.0, rtol=0.3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_log_density_that_is_none_ends_the_run(value):
    info = SimpleNamespace(is_valid=np.ones((1, 10, 0), bool), log_density=np.where(np.arange(10) == 3, value, 0.0))
    with pytest.raises(CredoError, match="after 1 of 10 sweeps"):
        check_moves(SimpleNamespace(updates=()), info)


def test_a_conditional_that_is_conjugate_at_some_starts_only_is_none():
    """Normal where b < 0, and of Cauchy's tails where b > 0."""

    def log_density(p):
        return jnp.where(p["b"] < 0, -0.5 * p["a"] ** 2, -jnp.log1p(p["a"] ** 2)) - 0.5 * p["b"] ** 2

    target = Model.from_log_density(log_density, {"a": constraints.real, "b": constraints.real}).given().flat()
    block, starts = Block.of(target.structure, ["a"]), [np.array([0.3, -1.0]), np.array([0.3, 1.0])]
    assert conjugating(target, block, starts[:1]).family == Normal(True)
    with pytest.raises(CredoError, match="a is not normal"):
        conjugating(target, block, starts)


def test_what_is_almost_normal_is_not():
    """By 10⁻⁵ a⁴, nor is it where chains have gone."""
    model = Model.from_log_density(lambda p: -0.5 * p["a"] ** 2 - 1e-5 * p["a"] ** 4, {"a": constraints.real})
    with double():
        target, start = model.given().flat(), np.array([0.3])
        block = Block.of(target.structure, ["a"])
        with pytest.raises(CredoError, match="a is not normal"):
            conjugating(target, block, [start])
        made = Conjugating(block, Normal(True)).update(target, None)
        keys = jax.random.split(jax.random.key(0), 200)
        is_valid = jax.jit(jax.vmap(lambda key: made.step(key, jnp.asarray(start), None).is_valid))(keys)
    # a normal one fitted at 0.3 is off by 10⁻⁵ (a − 0.3)³ (a + 0.9): within rounding, 1.5 10⁻⁸, at a tenth of the draws
    assert np.mean(is_valid) < 0.25


def test_rounding_of_a_large_log_density_is_no_kink():
    """Rows far from the level, whose log densities of −10⁷ each sum to −10¹⁰, with digits down to 10⁻⁶."""
    y = 1e4 * np.random.default_rng(0).normal(size=1_000) ** 2
    model = Model({"a": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["a"], 1.0))
    with double():
        target = model.given(y=y).flat()
        made = conjugating(target, Block.of(target.structure, ["a"]), [np.array([0.3])]).update(target, None)
        keys = jax.random.split(jax.random.key(0), 200)
        assert np.all(jax.jit(jax.vmap(lambda key: made.step(key, jnp.array([0.7]), None).is_valid))(keys))


def test_conditional_density_is_that_of_the_whole_position():
    with double():
        target = EVERYTHING.given().flat()
        u = exact_draws()[0]
        block = Block.of(target.structure, ["x", "w"])
        conditional = Conditional(target, jnp.asarray(u), block)
        np.testing.assert_array_equal(conditional.whole(block.take(u)), u)
        np.testing.assert_array_equal(block.index(), [0, 11])
        v = np.array([0.3, -1.0])
        u[[0, 11]] = v
        both = jax.jit(lambda c, v, u: (c.log_density(v), c.target.log_density(u)))(conditional, v, u)
    np.testing.assert_allclose(both[0], both[1])


def test_what_data_make_certain_is_settled_wherever_chains_began():
    """Animals that were seen are there. Those at which each chain began with a one never move."""
    seen = np.repeat([1, 0], [60, 20])
    prior = {"p": dist.Beta(2.0, 2.0), "z": dist.Bernoulli(0.7).expand([80])}
    model = Model(prior, lambda params, i: dist.Bernoulli(params["p"] * params["z"][i]))
    method = credo.Gibbs({"z": credo.Enumerated(), "p": credo.Slice()}, num_warmup=100)
    posterior = credo.fit(model.given(np.arange(80), seen), method, key=0, progress=False)
    assert posterior.verdict.status == "pass"
    assert posterior.verdict.figures["num_settled"] == 60


def test_constant_coordinates_count_only_where_they_have_moved():
    """Position: a, continuous; z_0 varies; z_1 settled after it moved; z_2 never moved; z_3 differs between chains."""
    rng = np.random.default_rng(0)
    structure = Model({"a": dist.Normal(0.0, 1.0), "z": dist.Bernoulli(0.5).expand([4])}, None).structure
    target = SimpleNamespace(structure=structure)

    def figures_of(columns):
        positions = np.stack([rng.normal(size=(4, 500)), rng.integers(0, 2, (4, 500)), *columns], axis=-1)
        has_moved = np.array([True, True, True, False, False])
        states = [SimpleNamespace(has_moved=np.zeros(5, bool)), SimpleNamespace(has_moved=has_moved)]
        info = SimpleNamespace(acceptance=np.ones((4, 500, 1)))
        done = SimpleNamespace(records={"position": positions}, info={"sampling": info}, states=states)
        return figures_of_sweeps(done, target, SimpleNamespace(updates=()), MIXTURE_METHOD)

    one, varying = np.ones((4, 500)), rng.integers(0, 2, (4, 500))
    balanced = np.stack([rng.permutation(np.arange(500) % 2) for _ in range(4)])  # its median is ½
    settled = figures_of([one, varying, varying])
    assert settled["num_settled"] == 1
    assert settled["max_r_hat"] < 1.02
    assert settled["num_stuck_chains"] == 0
    never = figures_of([varying, one, varying])
    assert never["num_settled"] == 0
    assert np.isnan(never["max_r_hat"])
    assert judge(never).status == "doubtful"
    assert figures_of([varying, balanced, varying])["max_r_hat"] < 1.02
    for chains in ([0.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 1.0]):
        apart = np.repeat(chains, 500).reshape(4, 500)
        for columns in ([varying, varying, apart], [apart, varying, varying]):
            disagreeing = figures_of(columns)
            assert disagreeing["num_settled"] == 0
            assert disagreeing["max_r_hat"] > 1e3
            assert judge(disagreeing).status == "failed"


# what is refused ------------------------------------------------------------------------------------------------------


def draw(value):
    return lambda key, params, data: value


@pytest.mark.parametrize(
    ("blocks", "sentence"),
    [
        ({}, "has no blocks"),
        (["mu"], r"takes a dict, parameter -> how it moves.*got \['mu'\]"),
        ({"mu": credo.Conjugate, "z": credo.Enumerated(), "w": credo.NUTS()}, "Conjugate, without its brackets"),
        ({"mu": 3.0, "z": credo.Enumerated(), "w": credo.NUTS()}, "moves the block 'mu' by 3.0: give it Conjugate"),
        ({"theta": credo.NUTS()}, "'theta', which is no parameter of the model: it has w, mu, z"),
        ({"z": credo.Enumerated(), ("mu", "w"): credo.NUTS(), "w": credo.NUTS()}, "moves 'w' in two places"),
        ({("mu", "w"): credo.NUTS()}, r"moves 'z': add it, as in \{…, 'z': Enumerated\(\)\}"),
        ({"mu": credo.NUTS()}, r"moves 'w', 'z': add them, as in \{…, 'z': Enumerated\(\), 'w': NUTS\(\)\}"),
        ({"z": credo.Enumerated()}, r"moves 'w', 'mu': add them, as in \{…, \('w', 'mu'\): NUTS\(\)\}"),
        ({("z", "mu", "w"): credo.NUTS()}, r"holds 'z', which is discrete, and NUTS\(\) moves continuous"),
        ({"z": credo.Enumerated(), ("mu", "w"): credo.NUTS(chains=2)}, r"NUTS\(chains=2\) within Gibbs\(\)"),
        ({"z": credo.Enumerated(), ("mu", "w"): credo.HMC(num_warmup=5)}, r"HMC\(num_warmup=5\) within Gibbs\(\)"),
        ({"z": credo.Enumerated(), ("mu", "w"): credo.Slice(num_draws=7)}, r"Slice\(num_draws=7\) within Gibbs\(\)"),
        ({"z": credo.Enumerated(), ("mu", "w"): credo.NUTS(until=credo.StoppingRule())}, r"NUTS\(until=StoppingRule"),
        ({"mu": credo.Enumerated(), "z": credo.Enumerated(), "w": credo.NUTS()}, "'mu' is continuous"),
        ({"z": credo.Conjugate(), ("mu", "w"): credo.NUTS()}, "'z' is discrete: give its block Enumerated"),
        ({("z", "w"): credo.Enumerated(), "mu": credo.NUTS()}, "takes one parameter, and the block holds z, w"),
        (
            {"z": draw(jnp.zeros(3, int)), ("mu", "w"): credo.NUTS()},
            r"'z' with shape \(3,\); in the model it has \(41,\)",
        ),
        ({"z": draw(jnp.zeros(41)), ("mu", "w"): credo.NUTS()}, "returned float32 for 'z', which is discrete"),
        ({"z": credo.Enumerated(), ("mu", "w"): draw(1.0)}, "returned a float64 array of shape .*: return a dict"),
        ({"z": credo.Enumerated(), ("mu", "w"): draw({"mu": 1.0})}, "returned a dict of mu: return a dict"),
        ({"z": credo.Enumerated(), "mu": draw(None), "w": credo.NUTS()}, "returned a NoneType for 'mu'"),
        ({"z": credo.Enumerated(), "mu": draw(1j), "w": credo.NUTS()}, "returned complex"),
        ({"z": credo.Enumerated(), "mu": lambda k, p, d: p["nu"], "w": credo.NUTS()}, "asks for 'nu'"),
        ({"z": credo.Enumerated(), "mu": lambda k, p: 1.0, "w": credo.NUTS()}, "cannot be evaluated"),
    ],
)
def test_refused(blocks, sentence):
    with pytest.raises(CredoError, match=sentence):
        credo.fit(MIXTURE.given(y=SIGNAL), credo.Gibbs(blocks), progress=False)


def test_values_outside_the_support_end_the_run():
    model = Model({"k": dist.Poisson(2.0), "p": dist.Beta(1.0, 1.0)}, None)
    method = credo.Gibbs({"k": draw(1), "p": draw(1.5)}, num_warmup=20, num_draws=20)
    with pytest.raises(CredoError, match=r"The conditional of p returned values that .* in 32 of 32 sweeps"):
        credo.fit(model.given(), method, progress=False)


def test_a_kink_far_from_the_start_ends_the_run():
    """A normal variable whose density falls faster beyond 3, where no chain starts: one draw in 700 gets there."""

    def log_density(params):
        return -0.5 * params["a"] ** 2 - 50.0 * jnp.maximum(params["a"] - 3.0, 0.0) ** 2

    target = Model.from_log_density(log_density, {"a": constraints.real}).given()
    with pytest.raises(CredoError, match="a is normal where the chains started, but was not in .* sweeps"):
        credo.fit(target, credo.Gibbs({"a": credo.Conjugate()}), progress=False)


@pytest.mark.parametrize(
    ("prior", "kind", "sentence"),
    [
        (dist.Poisson(2.0), credo.Enumerated(), "finitely many values that 'k' may take"),
        (dist.DiscreteUniform(0, 20_000), credo.Enumerated(), "20,001 values"),
        (dist.StudentT(3.0, 0.0, 1.0), credo.Conjugate(), "k is not normal, gamma, inverse gamma, beta or Dirichlet"),
    ],
)
def test_no_closed_form(prior, kind, sentence):
    with pytest.raises(CredoError, match=sentence):
        credo.fit(Model({"k": prior}, None).given(), credo.Gibbs({"k": kind}), progress=False)


def test_elements_that_meet_through_what_is_zero_at_the_start_are_drawn_in_turn():
    """Spike and slab from zero, where no element has a say: against all eight models."""
    x = np.random.default_rng(2).normal(size=(40, 3))
    y = x @ [1.5, 0.0, 0.4] + np.random.default_rng(3).normal(size=40)
    model = credo.Model(
        {"on": dist.Bernoulli(0.5).expand([3]), "slab": dist.Normal(0.0, 2.0).expand([3])},
        lambda params, x: dist.Normal(x @ (params["on"] * params["slab"]), 1.0),
    )
    method = credo.Gibbs({"on": credo.Enumerated(), "slab": credo.NUTS()})
    start = {"on": np.zeros(3), "slab": np.zeros(3)}
    posterior = credo.fit(model.given(x, y), method, key=0, start=start, progress=False)
    every = np.array(list(itertools.product((0, 1), repeat=3)))
    log_evidences = [
        stats.multivariate_normal(np.zeros(40), np.eye(40) + 4 * (x * on) @ (x * on).T).logpdf(y) for on in every
    ]
    shares = np.exp(log_evidences - np.max(log_evidences))
    assert not posterior.info["blocks"]["on"]["elements_at_once"]
    np.testing.assert_allclose(posterior.mean()["on"], shares @ every / shares.sum(), atol=0.05)


def test_elements_that_meet_when_a_rare_switch_is_on_are_drawn_in_turn():
    i = np.arange(8)
    model = credo.Model(
        {"on": dist.Bernoulli(0.01), "z": dist.Bernoulli(0.5).expand([8])},
        lambda params, x: dist.Normal(params["z"][x["i"]] + params["on"] * params["z"][x["j"]], 1.0),
    )
    target = model.given({"i": i, "j": (i + 1) % 8}, np.ones(8)).flat()
    start = np.zeros((4, target.dim))
    update, _ = enumerating(credo.Enumerated(), target, Block.of(target.structure, ("z",)), start)
    assert not update.is_apart


def test_normal_elements_that_meet_when_a_rare_switch_is_on_are_drawn_together():
    """Chains that start with the switch off see independent elements, and would fail at the first that turns it on."""
    i = np.arange(8)
    model = credo.Model(
        {"on": dist.Bernoulli(0.3), "z": dist.Normal(0.0, 1.0).expand([8])},
        lambda params, x: dist.Normal(params["z"][x["i"]] + params["on"] * params["z"][x["j"]], 1.0),
    )
    target = model.given({"i": i, "j": (i + 1) % 8}, np.ones(8))
    method = credo.Gibbs({"on": credo.Enumerated(), "z": credo.Conjugate()}, num_draws=1_000)
    posterior = credo.fit(target, method, key=0, start={"on": 0.0, "z": np.zeros(8)}, progress=False)
    covariances = [np.eye(8) + d @ d.T for d in (np.eye(8), np.eye(8) + np.roll(np.eye(8), 1, axis=1))]
    log_evidences = [stats.multivariate_normal(np.zeros(8), c).logpdf(np.ones(8)) for c in covariances]
    share = 0.3 * np.exp(log_evidences[1]) / (0.7 * np.exp(log_evidences[0]) + 0.3 * np.exp(log_evidences[1]))
    error = posterior.summary()["mcse_mean"]["on"]
    assert abs(posterior.mean()["on"] - share) < 4.5 * error


@pytest.mark.parametrize("num_values", [1_000, 1_500])
def test_elements_that_meet_only_where_they_are_equal_are_drawn_one_after_the_other(num_values):
    """Two places of thousands, and an outcome that only equal ones explain: all at once, they would hardly ever be."""
    model = credo.Model(
        {"z": dist.DiscreteUniform(0, num_values - 1).expand([2])},
        lambda p, x: dist.Normal(jnp.where(p["z"][0] == p["z"][1], 7.0, 0.0), 1.0),
    )
    posterior = credo.fit(
        model.given(y=np.array([7.0])), credo.Gibbs({"z": credo.Enumerated()}, num_draws=100), key=0, progress=False
    )
    z = posterior.draws["z"]
    assert np.mean(z[..., 0] == z[..., 1]) > 0.99  # odds of 1 : (num_values − 1) exp(−7²/2) against it


def test_normal_elements_that_never_meet_are_drawn_apart():
    """By a product with the Hessian, whatever their number."""
    model = credo.Model({"m": dist.Normal(0.0, 1.0).expand([8])}, lambda p, x: dist.Normal(p["m"][x], 1.0))
    target = model.given(np.arange(16) % 8, np.ones(16)).flat()
    update = conjugating(target, Block.of(target.structure, ("m",)), np.zeros((4, target.dim)))
    assert update.family == Normal(True)


def test_elements_that_meet_only_where_another_parameter_has_gone_are_not_drawn_at_once():
    """A rare regime couples neighbours: drawn at once, P(flag) came out as 0.12 and the verdict passed it."""
    y = np.array([0.0, 3, 3, 3, 3, 3])

    def likelihood(p, x):
        return dist.Normal(jnp.where(p["flag"] == 1, 3.0 * jnp.roll(p["z"], 1), 1.0 * p["z"]), 1.0)

    target = credo.Model({"flag": dist.Bernoulli(0.001), "z": dist.Bernoulli(0.5).expand([6])}, likelihood).given(y=y)
    flag = credo.Enumerated()
    with pytest.raises(CredoError, match="at_once=False"):
        credo.fit(target, credo.Gibbs({"z": credo.Enumerated(), "flag": flag}), key=0, progress=False)
    method = credo.Gibbs({"z": credo.Enumerated(at_once=False), "flag": flag}, num_draws=3_000)
    posterior = credo.fit(target, method, key=0, progress=False)
    every = np.array(list(itertools.product(range(2), repeat=6)))
    weights = [
        share * np.exp(-0.5 * np.sum((y - mean) ** 2, axis=1))
        for share, mean in ((0.999, 1.0 * every), (0.001, 3.0 * np.roll(every, 1, axis=1)))
    ]
    np.testing.assert_allclose(posterior.draws["flag"].mean(), weights[1].sum() / np.sum(weights), atol=0.05)


def test_normal_elements_that_meet_through_what_is_zero_at_the_start_are_drawn_together():
    """Of a density alone there are no draws of a prior, and what began at 0 was taken for a whole number."""

    def log_density(p):
        z = p["z"]
        return -0.5 * p["slope"] ** 2 - 0.5 * z @ z - 0.5 * jnp.sum((1.0 - z - p["slope"] * jnp.roll(z, 1)) ** 2)

    supports = {"slope": constraints.real, "z": constraints.real}
    target = Model.from_log_density(log_density, supports, {"z": (4,)}).given().flat()
    update = conjugating(target, Block.of(target.structure, ("z",)), np.zeros((4, target.dim)))
    assert update.family == Normal(False)


MEETINGS = {  # what rows come by, and the mean of a variable
    "alike": (lambda z: 1.0 * jnp.all(z == jnp.roll(z, 1)), lambda z: 0.0),
    "one, and no more": (lambda z: jnp.where(z.sum() == 1, 0.0, -jnp.inf), lambda z: 0.0),
    "through another parameter": (lambda z: 0.0, lambda z: z.sum()),
}


@pytest.mark.parametrize("meeting", list(MEETINGS))
def test_a_sweep_sees_that_elements_meet_where_it_has_gone(meeting):
    """At u > 3, which neither starts nor draws of the prior knew. One configuration for all sweeps was 1111, which the
    values one by one are as well; and where all that was compared is impossible, a share of 0.43 came out as 0.17."""

    def likelihood(p, x):
        return dist.Delta(jnp.zeros(4), jnp.where(p["u"] > 3.0, of_rows(p["z"]), p["z"] * x))

    of_rows, mean = MEETINGS[meeting]
    prior = {"u": dist.Normal(0.0, 1.0), "z": dist.Bernoulli(0.5).expand([4])}
    prior["m"] = lambda u, z: dist.Normal(jnp.where(u > 3.0, mean(z), 0.0), 1.0)
    with double():
        target = Model(prior, likelihood).given(np.arange(4.0), np.zeros(4)).flat()
        update, values = enumerating(
            credo.Enumerated(), target, Block.of(target.structure, ["z"]), np.zeros((1, target.dim))
        )
        assert update.is_apart
        step = jax.jit(jax.vmap(update.update(target, values).step, in_axes=(0, None, None)))
        keys = jax.random.split(jax.random.key(0), 400)
        apart, met = (step(keys, jnp.array([u, 0.0, 0.0, 1.0, 0.0, 0.5]), None).is_valid for u in (2.0, 4.0))
    assert np.all(apart)
    # configurations that all of the values have, 0000 and 1111, tell nothing of who meets whom
    assert np.mean(met) < (0.2 if meeting == "alike" else 1e-9)


def test_impossible_configurations_do_not_tell_that_elements_stand_apart():
    """The number of ones was drawn from its prior, 20 where 12.5 is right: all that was compared was impossible."""

    def likelihood(p, x):
        number = p["z"].sum()
        return dist.Normal(jnp.where((number >= 1) & (number <= 20), 1.0 * number, jnp.nan), 1.0)

    target = credo.Model({"z": dist.Bernoulli(0.05).expand([100])}, likelihood).given(y=np.array([9.0]))
    posterior = credo.fit(target, credo.Gibbs({"z": credo.Enumerated()}, num_draws=400), key=0, progress=False)
    number = np.arange(1, 21)
    weights = stats.binom.pmf(number, 100, 0.05) * stats.norm.pdf(9.0, number, 1.0)
    assert not posterior.info["blocks"]["z"]["elements_at_once"]
    np.testing.assert_allclose(posterior.draws["z"].sum(axis=-1).mean(), weights @ number / weights.sum(), atol=0.2)


def test_configurations_of_density_zero_do_not_either():
    """Most have none; what was compared was -inf, and a sentence blamed a conditional that nobody had written."""
    tilt = np.linspace(-1.0, 1.0, 12)

    def log_density(p):
        number = p["z"].sum()
        return jnp.where((number > 3) | (number < 1), -jnp.inf, jnp.sum(p["z"] * tilt))

    target = Model.from_log_density(log_density, {"z": constraints.boolean}, {"z": (12,)}).given()
    start = {"z": np.eye(12, dtype=int)[0]}
    method = credo.Gibbs({"z": credo.Enumerated()}, num_draws=2_000)
    posterior = credo.fit(target, method, start=start, key=0, progress=False)
    every = np.array(list(itertools.product(range(2), repeat=12)))
    weights = np.where((every.sum(axis=1) >= 1) & (every.sum(axis=1) <= 3), np.exp(every @ tilt), 0.0)
    assert not posterior.info["blocks"]["z"]["elements_at_once"]
    np.testing.assert_allclose(
        posterior.draws["z"].reshape(-1, 12).mean(axis=0), weights @ every / weights.sum(), atol=0.04
    )


@pytest.mark.slow
def test_conjugate_conditionals_of_shapes_below_one():
    """Most of a gamma variable of shape 0.1 lies so low that a gradient tells nothing of its rate, and a share of a
    Dirichlet variable next to 1 leaves its model no digits."""
    prior = {"x": dist.Gamma(0.1, 1.0).expand([3]), "m": dist.Normal(0.0, 1.0)}
    model = credo.Model(prior, lambda params, x: dist.Poisson(params["x"][jnp.arange(3)]))
    method = credo.Gibbs({"x": credo.Conjugate(), "m": credo.Conjugate()}, num_draws=4_000)
    draws = credo.fit(model.given(y=np.array([0, 0, 5])), method, key=0, progress=False).draws["x"].reshape(-1, 3)
    for values, shape in zip(draws.T, (0.1, 0.1, 5.1), strict=True):
        assert stats.kstest(values[::10], stats.gamma(shape, scale=0.5).cdf).pvalue > 1e-3
    prior = {"p": dist.Dirichlet(np.full(4, 0.1)), "m": dist.Normal(0.0, 1.0)}
    model = credo.Model(prior, lambda params, x: dist.Categorical(probs=jnp.tile(params["p"], (3, 1))))
    method = credo.Gibbs({"p": credo.Conjugate(), "m": credo.Conjugate()}, num_draws=4_000)
    draws = credo.fit(model.given(y=np.array([0, 0, 2])), method, key=0, progress=False).draws["p"].reshape(-1, 4)
    for values, a in zip(draws.T, (2.1, 0.1, 1.1, 0.1), strict=True):
        assert stats.kstest(values[::10], stats.beta(a, 3.4 - a).cdf).pvalue > 1e-3


@pytest.mark.parametrize("precision", [pytest.param("float64", marks=pytest.mark.slow), "float32"])
def test_conjugate_conditionals_of_shapes_next_to_nothing(precision):
    """A third of these draws or more lie below the smallest number: the model saw 0 and blamed this block, or another
    one. Moments are those of gamma and Dirichlet laws, to within five standard errors."""
    a, num_draws = 0.002, 4_000
    prior = {"p": dist.Dirichlet(np.full(4, a)), "x": dist.Gamma(a, 1.0), "m": dist.Normal(0.0, 1.0)}
    model = credo.Model(prior, lambda params, x: dist.Normal(params["m"], 1.0))
    method = credo.Gibbs(dict.fromkeys(prior, credo.Conjugate()), num_draws=num_draws // 4)
    posterior = credo.fit(model.given(y=np.zeros(3)), method, key=0, precision=precision, progress=False)
    p, x = posterior.draws["p"].reshape(-1, 4), posterior.draws["x"].ravel()
    np.testing.assert_allclose(p.mean(axis=0), 0.25, atol=5 * np.sqrt(3 / 16 / num_draws))
    below = 0.1 if precision == "float32" else 1e-50
    for values, law in ((p[:, 0], stats.beta(a, 3 * a)), (x, stats.gamma(a))):
        share = law.cdf(below)
        np.testing.assert_allclose(np.mean(values < below), share, atol=5 * np.sqrt(share * (1 - share) / num_draws))
    assert [facts["family"] for facts in posterior.info["blocks"].values()] == ["Dirichlet", "gamma", "normal"]


@pytest.mark.slow
def test_weights_of_a_mixture_without_members():
    """Of 16,000 sweeps with Dirichlet(0.02) two ended in a sentence that the weights were not Dirichlet."""
    y = np.concatenate([np.random.default_rng(0).normal(-3, 1, 25), np.random.default_rng(1).normal(3, 1, 15)])
    prior = {
        "w": dist.Dirichlet(np.full(6, 0.004)),
        "precision": dist.Gamma(1.0, 1.0).expand([6]),
        "mean": dist.Normal(0.0, 5.0).expand([6]),
        "z": lambda w: dist.CategoricalProbs(w).expand([40]),
    }
    model = credo.Model(prior, lambda p, x: dist.Normal(p["mean"][p["z"]], p["precision"][p["z"]] ** -0.5))
    blocks = dict.fromkeys(prior, credo.Conjugate()) | {"z": credo.Enumerated()}
    posterior = credo.fit(model.given(y=y), credo.Gibbs(blocks, num_draws=1_000), key=0, progress=False)
    assert np.all(np.isfinite(posterior.info["sample_stats"]["log_density"]))


@pytest.mark.parametrize("order", [("mean", "top", "label"), ("top", "label", "mean"), ("label", "mean", "top")])
@pytest.mark.parametrize(
    ("share", "said"),
    [
        (np.nan, "^The conditional of top returned values that are not finite"),
        (0.5, "-inf after .* sweeps: the conditional of top moves where the posterior is 0"),
    ],
)
def test_the_block_that_went_wrong_is_blamed_in_any_order(share, said, order):
    """The blocks that met what it left had been, such as the conjugate one before it, from the second sweep on."""
    blocks = {
        "mean": credo.Conjugate(),
        "top": lambda key, params, data: share * params["top"],
        "label": credo.Enumerated(),
    }
    prior = {"mean": dist.Normal(0.0, 5.0), "top": dist.HalfNormal(10.0), "label": dist.Bernoulli(0.5)}
    model = credo.Model(
        prior, lambda p, x: {"a": dist.Normal(p["mean"] + p["label"], 1.0), "b": dist.Uniform(0.0, p["top"])}
    )
    y = np.linspace(0.1, 0.9, 10)
    method = credo.Gibbs({name: blocks[name] for name in order}, num_warmup=20, num_draws=20)
    with pytest.raises(CredoError, match=said):
        credo.fit(
            model.given(y={"a": y, "b": y}),
            method,
            key=0,
            start={"mean": 0.0, "top": 1.0, "label": 1},
            progress=False,
        )


@pytest.mark.parametrize("unit", [1e-9, *(pytest.param(unit, marks=pytest.mark.slow) for unit in (1e-5, 1e6))])
@pytest.mark.parametrize("name", ["precision", "variance"])
def test_conjugate_scales_of_any_unit(name, unit):
    """Far below the mode two gradients are one number, and the block was told to be no gamma's."""
    y = np.random.default_rng(0).normal(size=20)
    prior = dist.Gamma(1.0, unit**2) if name == "precision" else dist.InverseGamma(1.0, unit**2)
    power = -0.5 if name == "precision" else 0.5
    model = credo.Model({name: prior}, lambda params, x: dist.Normal(0.0, params[name] ** power))
    method = credo.Gibbs({name: credo.Conjugate()})
    posterior = credo.fit(model.given(y=unit * y), method, key=0, progress=False)
    rate = 1 + 0.5 * np.sum(y**2)
    expected = 11 / rate / unit**2 if name == "precision" else rate / 10 * unit**2
    assert float(posterior.mean()[name]) == pytest.approx(expected, rel=0.02)
    assert posterior.verdict.status == "pass"
