"""Modes elsewhere: their share is what it is, whatever the method, and none is made up."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy import integrate

import credo
import targets
from credo.linalg.diagonal import Diagonal
from credo.methods.optimise.subproblem import Dense
from credo.methods.particles import elsewhere
from credo.methods.particles.elsewhere import Climber, shares_elsewhere
from credo.methods.particles.left_out import left_out
from credo.posterior.kinds import Gaussian, Mixture
from credo.precision import double
from credo.vi import FullRank, MixtureOf

WIDTHS = 1.0, 1.3
METHODS = [
    credo.ADVI(),
    credo.ADVI(family=FullRank()),
    credo.DADVI(),
    credo.BatchAndMatch(),
    credo.NaturalGradient(),
    credo.Pathfinder(),
    credo.Laplace(),
    FLOW := credo.ADVI(family=credo.vi.Flow()),
]


def two(first, second, dim, log_ratio=0.0):
    """Two normals of ``dim`` dimensions, and the share of the second."""
    widths = np.array(WIDTHS)

    def log_density(params):
        u = params["u"]
        heights = [
            -0.5 * jnp.sum(((u - jnp.asarray(at)) / width) ** 2)
            for at, width in zip((first, second), widths, strict=True)
        ]
        return jnp.logaddexp(heights[0], heights[1] + log_ratio)

    share = widths[1] ** dim * np.exp(log_ratio) / (widths[0] ** dim + widths[1] ** dim * np.exp(log_ratio))
    return credo.Model.from_log_density(log_density, {"u": constraints.real_vector}, {"u": (dim,)}).given(), share


def figure(kind, target, u):
    with double():
        return shares_elsewhere(Climber.of(target.flat()), kind, target, u, np.inf).get("mode_share")


def near(at, width, dim, num=500):
    """A Gaussian that holds one mode, and draws of it."""
    u = at + width * np.random.default_rng(3).normal(size=(num, dim))
    return Gaussian(np.broadcast_to(np.asarray(at, float), (dim,)), Diagonal(np.full(dim, width))), u


IN_ONE_DIMENSION = [credo.ADVI(), credo.Laplace()]  # of families and of modes, to begin with


@pytest.mark.parametrize(
    ("dim", "method"),
    [
        pytest.param(
            dim,
            method,
            id=f"{dim}-{type(method).__name__}{i}",
            marks=pytest.mark.slow if method == FLOW or (dim == 1 and method not in IN_ONE_DIMENSION) else (),
        )
        for dim in (1, 4)
        for i, method in enumerate(METHODS)
    ],
)
def test_a_fit_of_one_of_two_modes_does_not_pass(dim, method):
    target, _ = two(10.0, -13.0 + np.arange(dim), dim)
    posterior = credo.fit(target, method, key=1, progress=False)
    assert posterior.verdict.status != "pass"
    assert posterior.info.get("evidence_upper") is None


def test_what_a_flow_leaves_out_is_found():
    """One that bends nothing yet is the Gaussian that holds one mode."""
    target, share = two(0.0, 6.0, 4)
    _, u = near(0.0, 1.0, 4)
    with double():
        flow = credo.vi.Flow(credo.vi.RealNVP(), num_layers=2).start(np.zeros(4), np.ones(4))
    assert figure(flow, target, u) == pytest.approx(share, rel=1e-4)


def test_no_step_leads_far_beyond_the_draws():
    """30 sds below them, where a rate is nearly zero, Newton's first step is of thousands; of such a rate an equation
    that is solved numerically takes hours."""
    seen = []

    class Watched(Dense):
        def evaluate(self, objective, args, u, minimum, last):
            seen.append(u)
            return super().evaluate(objective, args, u, minimum, last)

    model = credo.Model({"rate": dist.Gamma(2.0, 1.0)}, lambda params, x: dist.Poisson(params["rate"]))
    target = model.given(y=np.arange(4)).flat()
    kind, u = near(0.5, 0.3, 1)
    with double():
        climber = Climber.of(target)
        shares_elsewhere(climber._replace(solver=Watched(climber.solver.chunk)), kind, target, u, np.inf)
    assert -9.0 < np.min(seen) < -8.0
    assert np.max(seen) < 2.1 * 9.0


def test_a_mode_that_only_the_prior_leads_to_is_seen():
    """A frequency: next to the right one are wrong ones, a hundred sds apart and far from the origin."""
    t = np.linspace(0.0, 1.5, 30)
    y = np.cos(100.0 * t) + 0.1 * np.random.default_rng(0).normal(size=30)
    model = credo.Model({"w": dist.Normal(101.0, 2.0)}, lambda params, t: dist.Normal(jnp.cos(params["w"] * t), 0.1))
    wrong = credo.fit(model.given(t, y), credo.Laplace(), start={"w": 105.0}, progress=False)
    assert wrong.mean()["w"] == pytest.approx(105.15, abs=0.01)
    assert wrong.verdict.figures["mode_share"] == pytest.approx(1.0)
    right = credo.fit(model.given(t, y), credo.Laplace(), start=wrong.info["elsewhere"], progress=False)
    assert right.mean()["w"] == pytest.approx(100.0, abs=0.1)
    assert right.verdict.status == "pass"
    assert "elsewhere" not in right.info


def test_a_prior_without_draws_is_fitted_all_the_same():
    """numpyro has no draws of a truncated t without another package, and a law of the user's own may have none."""
    prior = {"m": dist.Normal(0.0, 5.0), "s": dist.TruncatedDistribution(dist.StudentT(3.0), low=0.0)}
    model = credo.Model(prior, lambda params, x: dist.Normal(params["m"], params["s"]))
    target = model.given(y=2.0 + 1.5 * np.random.default_rng(0).normal(size=40))
    assert credo.fit(target, credo.Laplace(), progress=False).verdict.figures["mode_share"] == 0.0
    assert credo.fit(target, credo.Grid(), progress=False).verdict.status == "pass"
    with pytest.raises(credo.CredoError, match="prior of 's' cannot be drawn from"):
        credo.fit(target, credo.SMC(), progress=False)


def test_the_verdict_says_so(tmp_path):
    target, share = two(10.0, -13.0 + np.arange(4), 4)
    posterior = credo.fit(target, credo.DADVI(), key=1, progress=False)
    mean = float(np.mean(posterior.mean()["u"]))
    missed = share if mean > 0 else 1 - share
    assert posterior.verdict.figures["mode_share"] == pytest.approx(missed, rel=0.05)
    assert posterior.verdict.status == "failed"
    said = next(s for s in posterior.verdict.sentences if "another mode" in s)
    assert said.startswith(
        f"About {posterior.verdict.figures['mode_share']:.1%} of the posterior lies about another mode"
    )
    assert "MixtureOf(k)" in said
    place = posterior.info["elsewhere"]["u"]
    np.testing.assert_allclose(place, 10.0 if mean < 0 else -13.0 + np.arange(4), atol=1e-6)
    posterior.save(tmp_path / "fit.credo")
    np.testing.assert_array_equal(credo.load(tmp_path / "fit.credo", target).info["elsewhere"]["u"], place)


def test_draws_weighed_from_one_mode_do_not_pass():
    target, share = two(6.0, -14.0 + np.arange(4), 4)
    kind, _ = near(6.0, 1.1, 4)
    proposal = credo.fit(target, credo.Laplace(), key=1, progress=False)
    proposal.kind = kind
    posterior = credo.fit(target, credo.Importance(proposal), key=1, progress=False)
    assert posterior.verdict.figures["mode_share"] == pytest.approx(share, rel=0.05)
    assert posterior.verdict.status == "failed"


@pytest.mark.parametrize("distance", [12.0, 30.0])
@pytest.mark.parametrize("log_ratio", [0.0, -4.0])
def test_the_share_is_exact_near_and_far(distance, log_ratio):
    """q holds the mode at the origin, and not that at ``distance`` sds, whose height differs."""
    target, share = two(0.0, distance / 2, 4, log_ratio)
    kind, u = near(0.0, 1.0, 4)
    assert figure(kind, target, u) == pytest.approx(share, rel=1e-4)


@pytest.mark.parametrize(
    ("shape", "rel"),
    [
        (lambda t: -(t**4) / 4 - t**2 / 2, 0.03),  # by height and curvature it would have 1.30 times its mass
        (lambda t: t - jnp.exp(t), 0.05),  # tails heavier than those of the draws come out low
    ],
    ids=["light tails", "one heavy tail"],
)
def test_a_mode_that_is_not_normal_is_weighed_and_not_guessed(shape, rel):
    def log_density(params):
        return jnp.logaddexp(-0.5 * params["u"][0] ** 2, shape(4.0 * (params["u"][0] + 10.0)))

    target = credo.Model.from_log_density(log_density, {"u": constraints.real_vector}, {"u": (1,)}).given()
    kind, u = near(0.0, 1.0, 1)
    mass = integrate.quad(lambda t: float(np.exp(shape(t))), -40.0, 10.0, points=[0.0])[0] / 4.0
    share = mass / (mass + np.sqrt(2 * np.pi))
    assert figure(kind, target, u) == pytest.approx(share, rel=rel)


def test_what_holds_all_modes_misses_none():
    target, share = two(6.0, -6.0, 2)
    parts = [near(at, width, 2) for at, width in zip((6.0, -6.0), WIDTHS, strict=True)]
    kind = Mixture(np.log([1 - share, share]), tuple(kind for kind, _ in parts))
    assert figure(kind, target, np.concatenate([u for _, u in parts])) == 0.0


@pytest.mark.slow
def test_a_mixture_fitted_to_two_modes_passes():
    target, _ = two(6.0, -6.0 + np.arange(2), 2)
    posterior = credo.fit(target, credo.ADVI(family=MixtureOf(2, FullRank())), key=1, progress=False)
    assert posterior.verdict.figures["mode_share"] == 0.0
    assert posterior.verdict.status == "pass"


@pytest.mark.parametrize(
    "name",
    [
        "ill_conditioned",
        "constrained",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("gaussian", "logistic")),
    ],
)
def test_where_there_is_one_mode_none_is_made_up(name):
    target = targets.TARGETS[name]().target
    posterior = credo.fit(target, credo.BatchAndMatch(), key=1, progress=False)
    assert posterior.verdict.figures["mode_share"] == 0.0
    assert posterior.verdict.status == "pass"


@pytest.mark.parametrize("width", [0.1, 1e-3])
def test_a_spike_in_a_slab_is_half_of_the_posterior(width):
    """No valley leads to it, and no draw of the slab meets it."""

    def log_density(params):
        square = jnp.sum(params["u"] ** 2)
        return jnp.logaddexp(-0.5 * square, -0.5 * square / width**2 - 5 * np.log(width))

    target = credo.Model.from_log_density(log_density, {"u": constraints.real_vector}, {"u": (5,)}).given()
    kind, u = near(0.0, 1.0, 5)
    with double():
        found = shares_elsewhere(Climber.of(target.flat()), kind, target, u, np.inf)
    assert found["mode_share"] == 0
    assert found["peak_share"] == pytest.approx(0.5, abs=0.01)


def test_a_valley_is_seen_below_draws_of_many_dimensions():
    """Draws lie 40 nats below their mode, and 32 nats part the modes: straight lines to the draws only fall."""
    dim = 80
    second = np.zeros(dim)
    second[0] = 8.0

    def log_density(params):
        heights = [-0.5 * jnp.sum((params["u"] - at) ** 2) for at in (0.0, second)]
        return jnp.logaddexp(*heights)

    target = credo.Model.from_log_density(log_density, {"u": constraints.real_vector}, {"u": (dim,)}).given()
    kind, u = near(0.0, 1.0, dim)
    with double():
        found = elsewhere._shares(Climber.of(target.flat()), kind, [elsewhere.Mode(second, np.eye(dim))], u, None)
    assert found["mode_share"] == pytest.approx(0.5, abs=0.02)
    assert found["peak_share"] == 0


def test_the_joint_mode_of_a_hierarchy_is_no_other_mode():
    """It lies far from all draws, and the density falls from it to them without a valley: it was a share of 1 %."""
    prior = {"tau": dist.HalfNormal(1.0), "z": dist.Normal(0, 1).expand([20]), "mu": dist.Normal(0, 1)}
    model = credo.Model(prior, lambda params, x: dist.Normal(params["mu"] + params["tau"] * params["z"], 0.2))
    target = model.given(y=np.random.default_rng(0).normal(size=20))
    posterior = credo.fit(target, credo.ADVI(family=FullRank()), key=1, progress=False)
    assert posterior.verdict.figures["mode_share"] == 0.0


@pytest.mark.parametrize("change", [{"LARGEST": 3}, {"WORK": 1e2}], ids=["many dimensions", "dear second derivatives"])
def test_where_it_would_be_dear_nothing_is_looked_for(monkeypatch, change):
    for name, value in change.items():
        monkeypatch.setattr(elsewhere, name, value)
    target, _ = two(0.0, 10.0, 4)
    kind, u = near(0.0, 1.0, 4)
    assert figure(kind, target, u) is None


def test_nothing_begins_after_the_deadline_or_where_the_fit_has_failed():
    """One in doubt by other figures may be that of the wrong mode."""
    target, _ = two(0.0, 10.0, 4)
    kind, u = near(0.0, 1.0, 4)
    with double():
        climber = Climber.of(target.flat())
        assert left_out(kind, target, u, {}, -np.inf, climber=climber) == {}
        assert left_out(kind, target, u, {"pareto_k": 1.2}, np.inf, climber=climber) == {}
        assert left_out(kind, target, u, {"pareto_k": 0.9}, np.inf, climber=climber)["mode_share"] > 0.5
        assert set(left_out(kind, target, u, {"pareto_k": 0.9}, np.inf)) == set()
        assert set(left_out(kind, target, u, {}, np.inf)) == {"copy_weight"}
        every = {"copy_weight", "mode_share", "peak_share"}
        assert set(left_out(kind, target, u, {}, np.inf, climber=climber)) == every


def test_one_reason_is_enough():
    """What has an equal mode at its mirror image is not searched from elsewhere."""
    target, _ = two(10.0, -10.0, 1)
    kind, u = near(10.0, 1.0, 1)
    with double():
        found = left_out(kind, target, u, {}, np.inf, climber=Climber.of(target.flat()))
    assert found["copy_weight"] > 10
    assert "mode_share" not in found


def test_copies_are_looked_for_at_draws_that_count():
    """Those at zero, in the middle of both modes, are their own mirror images."""
    target, _ = two(10.0, -10.0, 1)
    kind, u = near(10.0, 1.0, 1)
    u[:4] = 0.0
    with double():
        all_alike, weighed = (
            left_out(kind, target, u, {}, np.inf, log_weights=each)["copy_weight"]
            for each in (None, np.where(u[:, 0] == 0, -np.inf, 0.0))
        )
    assert all_alike == 0
    assert weighed > 10


def test_copies_of_networks_are_the_same_function_and_not_looked_for():
    start = {"in": np.ones((1, 2)), "out": np.ones(2)}
    network = credo.nn.BayesianNetwork(
        lambda p, x: jnp.tanh(x @ p["in"]) @ p["out"], start, head=credo.nn.Gaussian(0.5)
    )
    target = network.given(np.ones((3, 1)), np.ones(3)).flat()
    kind, u = near(0.0, 1.0, target.dim)
    with double():
        assert left_out(kind, target, u, {}, np.inf) == {}


def test_the_share_of_a_wide_proposal_is_not_overstated():
    """The median of its weights lies far below their mean: a share of 1e-4 was said to be 4 %."""
    dim, share, real = 8, 1e-4, {"x": constraints.real}

    def both(params):
        here, there = (-0.5 * jnp.sum((params["x"] - place) ** 2) for place in (0.0, 12.0))
        return jnp.logaddexp(jnp.log1p(-share) + here, jnp.log(share) + there)

    wide = credo.Model.from_log_density(lambda params: -0.125 * jnp.sum(params["x"] ** 2), real, {"x": (dim,)})
    proposal = credo.fit(wide.given(), credo.Laplace(), progress=False)
    target = credo.Model.from_log_density(both, real, {"x": (dim,)}).given()
    verdict = credo.fit(target, credo.Importance(proposal, num_draws=10_000), key=0, progress=False).verdict
    assert verdict.figures["mode_share"] == pytest.approx(share, rel=0.2)


def test_the_largest_of_several_is_named():
    """Three modes; q has the first. The others are met in any order."""

    def log_density(params):
        places, log_ratios = jnp.array([0.0, 40.0, -60.0]), jnp.array([0.0, 1.0, 4.0])
        return jax.nn.logsumexp(log_ratios - 0.5 * (params["u"][0] - places) ** 2)

    target = credo.Model.from_log_density(log_density, {"u": constraints.real_vector}, {"u": (1,)}).given()
    posterior = credo.fit(target, credo.Laplace(), start={"u": [0.1]}, progress=False)
    share = (np.exp(1) + np.exp(4)) / (1 + np.exp(1) + np.exp(4))
    assert posterior.verdict.figures["mode_share"] == pytest.approx(share, rel=1e-3)
    np.testing.assert_allclose(posterior.info["elsewhere"]["u"], [-60.0], atol=1e-6)


@pytest.mark.parametrize(
    ("prior", "first"),
    [
        (dist.LogNormal(0.0, 2.0), lambda params: params),
        ([dist.LogNormal(0.0, 2.0)], lambda params: params[0]),
        ((dist.LogNormal(0.0, 2.0), {"z": dist.Normal(0.0, 1.0)}), lambda params: params[0]),
        ({"a": dist.LogNormal(0.0, 2.0)}, lambda params: params["a"]),
    ],
    ids=["bare", "list", "tuple", "dict"],
)
def test_where_the_other_mode_lies_is_a_start_whatever_the_prior(prior, first):
    """5 log a is about 0 or about 15; what start takes as a position is one, and no parameters."""

    def likelihood(params, x):
        middle = 5.0 * jnp.log(first(params))
        parts = dist.Normal(jnp.stack([middle, middle - 15.0]), jnp.ones(2))
        return dist.MixtureSameFamily(dist.Categorical(jnp.array([0.5, 0.5])), parts).expand([1])

    target = credo.Model(prior, likelihood).given(y=np.array([0.0]))
    one = credo.fit(target, credo.Laplace(), key=2, progress=False)
    other = credo.fit(target, credo.Laplace(), key=2, start=one.info["elsewhere"], progress=False)
    places = sorted(float(np.log(first(posterior.mean()))) for posterior in (one, other))
    np.testing.assert_allclose(places, [0.0, 3.0], atol=0.1)
