"""Grid: evidence, moments and quantiles against quadrature and closed forms."""

import itertools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy import integrate
from scipy.stats import gamma, norm

import credo
import targets
from credo.fitting import fit
from credo.methods.exact.box import _rotation
from credo.methods.exact.grid import Grid, Sum, _around
from credo.model.model import Model
from credo.status import CredoError


@pytest.mark.parametrize("name", ["gaussian", "skewed", "mixture", pytest.param("logistic", marks=pytest.mark.slow)])
def test_evidence_and_moments_of_the_table(name):
    known = targets.TARGETS[name]()
    posterior = fit(known.target, Grid(), progress=False)
    assert posterior.verdict.status == "pass"
    assert posterior.log_evidence.kind == "exact"
    assert abs(posterior.log_evidence.value - known.log_evidence) < 1e-8
    for parameter in known.mean:
        np.testing.assert_allclose(posterior.mean()[parameter], known.mean[parameter], rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(posterior.sd()[parameter], known.sd[parameter], rtol=1e-8)


COUNTS = np.array([3, 5, 1, 4])


def poisson(params, x):
    return dist.Poisson(params["rate"]).expand([len(COUNTS)])


def test_quadrature_agrees_in_the_users_space():
    """A gamma-like density with its Jacobian: scipy integrates over the rate, the grid over its logarithm."""
    model = Model({"rate": dist.HalfNormal(4.0)}, poisson)
    posterior = fit(model.given(y=COUNTS), Grid(), progress=False)

    def density(rate, power=0):
        terms = np.exp(-rate) * rate**COUNTS / np.array([6.0, 120.0, 1.0, 24.0])  # over the factorials
        return rate**power * 2 * norm.pdf(rate, 0, 4) * np.prod(terms)

    moments = [integrate.quad(density, 0, 40, args=(power,), epsabs=0, epsrel=1e-12)[0] for power in range(3)]
    np.testing.assert_allclose(posterior.log_evidence.value, np.log(moments[0]), rtol=1e-9)
    mean = moments[1] / moments[0]
    np.testing.assert_allclose(posterior.mean()["rate"], mean, rtol=1e-8)
    np.testing.assert_allclose(posterior.sd()["rate"], np.sqrt(moments[2] / moments[0] - mean**2), rtol=1e-8)


def test_moments_of_a_heavy_tail():
    """exp(u), u standard normal: the seventh sd of u still shows in the sd of exp(u)."""
    posterior = fit(Model({"x": dist.LogNormal(0.0, 1.0)}, None).given(), Grid(), progress=False)
    np.testing.assert_allclose(posterior.log_evidence.value, 0.0, atol=1e-10)
    np.testing.assert_allclose(posterior.mean()["x"], np.exp(0.5), rtol=1e-9)
    np.testing.assert_allclose(posterior.sd()["x"], np.sqrt((np.e - 1) * np.e), rtol=1e-9)


def test_no_more_nodes_are_stored_than_count():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=40), rng.normal(3.0, 2.0, size=40)
    model = Model(
        {"a": dist.Normal(0.0, 5.0), "b": dist.Normal(0.0, 5.0), "s": dist.HalfNormal(3.0)},
        lambda params, x: dist.Normal(params["a"] + params["b"] * x, params["s"]),
    )
    posterior = fit(model.given(x, y), Grid(), progress=False)
    assert posterior.verdict.status == "pass"
    assert posterior.kind.positions.shape[1] < 120_000  # of 2,146,689
    assert posterior.info["num_densities"] > 250_000


def test_quantiles_of_a_conjugate_posterior():
    model = Model({"rate": dist.Gamma(2.0, 1.0)}, poisson)
    posterior = fit(model.given(y=COUNTS), Grid(), progress=False)
    levels = [0.01, 0.25, 0.5, 0.99]
    np.testing.assert_allclose(posterior.quantile(levels)["rate"], gamma.ppf(levels, 15, scale=1 / 5), rtol=1e-5)


def test_quantiles_in_three_dimensions_are_finer_than_a_side():
    known = targets.gaussian()
    posterior = fit(known.target, Grid(), progress=False)
    levels = np.array([0.05, 0.3, 0.5, 0.9])
    wanted = known.mean["w"] + known.sd["w"] * norm.ppf(levels)[:, None]
    # a side of the grid has nodes 0.3 sd apart
    assert np.max(np.abs(posterior.quantile(levels)["w"] - wanted) / known.sd["w"]) < 0.01


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_rotated_nodes_share_no_coordinate(dim):
    R = _rotation(dim)
    np.testing.assert_allclose(R @ R.T, np.eye(dim), atol=1e-14)
    nodes = np.stack(np.meshgrid(*[np.arange(-6, 7)] * dim, indexing="ij"), axis=-1).reshape(-1, dim) @ R.T
    assert all(np.diff(np.sort(column)).min() > 1e-5 for column in nodes.T)


def far_modes_density(params):
    a = -0.5 * jnp.sum(jnp.square((params["w"] - 20.0) / 0.5)) - 2 * jnp.log(0.5)
    b = -0.5 * jnp.sum(jnp.square(params["w"] + 1.0))
    return jnp.logaddexp(jnp.log(0.25) + a, jnp.log(0.75) + b) - jnp.log(2 * jnp.pi)


def test_two_far_modes_are_both_seen():
    target = Model.from_log_density(far_modes_density, {"w": constraints.real_vector}, {"w": (2,)}).given()
    posterior = fit(target, Grid(), progress=False)
    np.testing.assert_allclose(posterior.log_evidence.value, 0.0, atol=1e-8)
    np.testing.assert_allclose(posterior.mean()["w"], 0.25 * 20 - 0.75, atol=1e-7)


def test_bounds_cut_and_say_so():
    model = Model({"rate": dist.Gamma(2.0, 1.0)}, poisson)
    target = model.given(y=COUNTS)
    cut = fit(target, Grid(num_points=2_001, bounds={"rate": (1.0, 3.0)}), progress=False)
    assert cut.verdict.status == "failed"
    assert 1.0 <= cut.quantile(0.0)["rate"] <= cut.quantile(1.0)["rate"] <= 3.0 + 1e-12
    whole = gamma(15, scale=1 / 5)
    wanted = np.log(whole.cdf(3.0) - whole.cdf(1.0))
    full = fit(target, Grid(), progress=False)
    np.testing.assert_allclose(cut.log_evidence.value - full.log_evidence.value, wanted, atol=1e-5)
    for low in (0.0, 1e-3):  # an end of the support bounds nothing
        wide = fit(target, Grid(bounds={"rate": (low, 60.0)}), progress=False)
        np.testing.assert_allclose(wide.log_evidence.value, full.log_evidence.value, atol=1e-9)
        assert wide.log_evidence.kind == "exact"
    assert cut.log_evidence.kind == "lower bound"
    assert np.isnan(cut.log_evidence.error)


def rough_density(params):
    return -0.5 * params["x"] ** 2 + 3.0 * jnp.sin(400.0 * params["x"])


def test_a_grid_too_coarse_for_the_density_does_not_pass():
    target = Model.from_log_density(rough_density, {"x": constraints.real}).given()
    posterior = fit(target, Grid(num_points=101), progress=False)
    assert posterior.verdict.status != "pass"
    assert any("num_points" in sentence for sentence in posterior.verdict.sentences)


def test_a_density_that_overflows_in_a_corner_counts_nothing_there():
    def log_density(params):
        return jnp.where(params["x"] > 4.5, jnp.inf, norm_log(params["x"]))

    def norm_log(x):
        return -0.5 * x**2 - 0.5 * jnp.log(2 * jnp.pi)

    posterior = fit(Model.from_log_density(log_density, {"x": constraints.real}).given(), Grid(), progress=False)
    np.testing.assert_allclose(posterior.log_evidence.value, 0.0, atol=2e-5)
    np.testing.assert_allclose(posterior.sd()["x"], 1.0, atol=1e-3)


def test_a_time_limit_keeps_the_last_whole_grid(monkeypatch):
    known = targets.gaussian()
    clock = iter(np.arange(0.0, 1e4))  # a second for each look at it
    monkeypatch.setattr("credo.methods.exact.box.time.monotonic", lambda: next(clock))
    with pytest.raises(CredoError, match="time limit of 1 s came after .* before the coarsest grid was complete"):
        fit(known.target, Grid(), time_limit=1.0, progress=False)
    whole = fit(known.target, Grid(), time_limit=1e6, progress=False)
    assert whole.info["is_complete"]
    cut = fit(known.target, Grid(), time_limit=whole.info["num_densities"] / 4_096 - 20.0, progress=False)
    assert not cut.info["is_complete"]
    assert cut.info["num_points"] < whole.info["num_points"]
    assert cut.verdict.status == "doubtful"
    assert any("The time limit came while" in sentence for sentence in cut.verdict.sentences)
    np.testing.assert_allclose(cut.mean()["w"], known.mean["w"], atol=1e-5)


def test_a_second_fit_compiles_nothing(caplog):
    model = Model({"rate": dist.Gamma(2.0, 1.0)}, poisson)
    fit(model.given(y=COUNTS), Grid(), progress=False)
    with jax.log_compiles(True), caplog.at_level(logging.WARNING):
        fit(model.given(y=COUNTS + 1), Grid(), key=2, progress=False)
    assert not [record.message for record in caplog.records if "ompil" in record.message]


def test_mistakes_have_their_sentences():
    wide = Model({"w": dist.Normal(0.0, 1.0).expand([4])}, None).given()
    with pytest.raises(CredoError, match="has 4: use NUTS"):
        fit(wide, Grid(), progress=False)
    target = Model({"rate": dist.Gamma(2.0, 1.0)}, poisson).given(y=COUNTS)
    with pytest.raises(CredoError, match="num_points is 2"):
        fit(target, Grid(num_points=2), progress=False)
    with pytest.raises(CredoError, match="no parameter"):
        fit(target, Grid(bounds={"lambda": (0.0, 1.0)}), progress=False)
    with pytest.raises(CredoError, match="two different numbers in its support"):
        fit(target, Grid(bounds={"rate": (-1.0, 1.0)}), progress=False)
    for bounds in ((3.0, 1.0), (1.0, 1.0), (np.nan, 1.0), (1.0, np.nan), (1.0,), 2.0, ("a", 1.0), ([1.0, 2.0], 3.0)):
        with pytest.raises(CredoError, match=r"bounds of 'rate' are .*give \(low, high\)"):
            fit(target, Grid(bounds={"rate": bounds}), progress=False)


@pytest.mark.parametrize(
    ("prior", "likelihood", "y", "log_evidence"),
    [
        (dist.HalfNormal(1.0), lambda p, x: dist.Normal(0.0 * p["w"], 1.0).expand([2]), [1.0, 1.0], -2.8378770664),
        (dist.HalfNormal(1.0), lambda p, x: dist.Normal(-p["w"], 1.0).expand([1]), [2.0], -4.1151176334),
        (
            dist.RightTruncatedDistribution(dist.Normal(0.0, 1.0), high=0.3),
            lambda p, x: dist.Normal(p["w"], 1.0).expand([1]),
            [1.0],
            -1.9791813762,
        ),
    ],
    ids=["no information", "at the edge", "truncated"],
)
def test_a_steep_side_is_not_cut_off(prior, likelihood, y, log_evidence):
    """In the log coordinate the box is long, and its last part holds much of a density that falls at once."""
    found = fit(Model({"w": prior}, likelihood).given(y=np.array(y)), Grid())
    assert found.verdict.status == "pass"
    assert found.log_evidence.kind == "exact"
    np.testing.assert_allclose(found.log_evidence.value, log_evidence, atol=1e-9)


@pytest.mark.parametrize("half", [2.0, 4.5])
def test_bounds_that_cut_a_normal_are_said(half):
    target = Model({"w": dist.Normal(0.0, 1.0)}, None).given()
    found = fit(target, Grid(bounds={"w": (-half, half)}))
    assert found.verdict.status != "pass"
    assert found.log_evidence is None or found.log_evidence.kind == "lower bound"


@pytest.mark.parametrize(
    ("prior", "bounds"),
    [
        (dist.StudentT(2.0, 0.0, 1.0), (-1e3, 1e3)),
        (dist.Cauchy(0.0, 1.0), (-1e7, 1e7)),
        (dist.HalfCauchy(1.0), None),
        (dist.InverseGamma(2.0, 1.0), None),
        (dist.Pareto(1.0, 2.0), None),
    ],
)
def test_a_posterior_without_a_variance_does_not_pass(prior, bounds):
    """Next to no mass is cut off, and most of the variance: sds of 4 and of 4e8 had passed."""
    found = fit(Model({"w": prior}, None).given(), Grid(bounds=bounds and {"w": bounds}))
    assert found.verdict.status != "pass"
    assert found.verdict.figures["grid_variance_beyond"] > 0.1


def test_a_tail_without_a_variance_is_seen_among_three_parameters():
    prior = {"a": dist.Normal(0.0, 1.0), "s": dist.InverseGamma(1.5, 1.0), "b": lambda a: dist.Normal(a, 1.0)}
    assert fit(Model(prior, None).given(), Grid()).verdict.figures["grid_variance_beyond"] > 0.1


@pytest.mark.parametrize("prior", [dist.StudentT(3.0, 0.0, 1.0), dist.InverseGamma(3.0, 1.0), dist.Gamma(0.1, 1.0)])
def test_a_heavy_tail_with_a_variance_passes(prior):
    found = fit(Model({"w": prior}, None).given(), Grid())
    assert found.verdict.status == "pass"
    np.testing.assert_allclose(found.sd()["w"], np.sqrt(prior.variance), rtol=2e-3)


def test_a_mode_without_curvature_in_one_dimension():
    model = Model({"w": dist.Laplace(0.0, 1.0)}, lambda p, x: dist.Normal(p["w"] * x, 1.0))
    found = fit(model.given(np.zeros(3), np.ones(3)), Grid())
    np.testing.assert_allclose(found.log_evidence.value, 3 * norm.logpdf(1.0), atol=1e-6)


@pytest.mark.parametrize("num_points", [None, 100, 400])
def test_a_spike_between_the_nodes_is_no_answer(num_points):
    """One observation of a normal: the scale may go to zero round it. The truth has sds of 1.6 and 1.1."""
    prior = {"mean": dist.Normal(0.0, 5.0), "scale": dist.HalfNormal(2.0)}
    target = Model(prior, lambda params, x: dist.Normal(params["mean"], params["scale"])).given(y=np.array([1.0]))
    try:
        found = fit(target, Grid(num_points))
        assert found.verdict.status == "failed"
        said = found.verdict.sentences
    except CredoError as error:  # whether a node meets it hangs on the last digits, which versions of JAX have apart
        said = [str(error)]
    assert any("a spike (a scale that the data let go to zero)" in sentence for sentence in said)


def test_a_grid_that_does_not_fit_into_memory_is_refused():
    """27 billion nodes ended in an error of NumPy's, after the search for the mass."""
    target = Model({"w": dist.Normal(0.0, 1.0).expand([3])}, None).given()
    sentence = r"num_points=3000\) needs .* for 27,000,000,000 nodes.* 1.0 GB: Grid\(num_points=158\) needs"
    with pytest.raises(CredoError, match=sentence):
        fit(target, Grid(num_points=3_000), max_memory=1_000_000_000, progress=False)


def test_bounds_without_mass_are_refused():
    target = Model({"top": dist.HalfNormal(1.0)}, lambda params, x: dist.Uniform(0.0, params["top"])).given(
        y=np.ones(3)
    )
    with pytest.raises(CredoError, match=r"zero at all 50 nodes"):
        fit(target, Grid(50, bounds={"top": (0.1, 0.9)}))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [40, 43])
def test_a_smooth_density_in_a_wide_box_of_three_dimensions_passes(seed):
    """An autoregression: from 65 to 129 nodes a side the evidence moved by 1e-3 nats, and then by nothing."""
    random, y = np.random.default_rng(seed), [0.0]
    for _ in range(40):
        y.append(0.5 * y[-1] + random.normal())
    prior = {"phi": dist.Uniform(-1.0, 1.0), "s": dist.InverseGamma(2.0, 1.0), "c": dist.Normal(0.0, 1.0)}
    model = Model(prior, lambda p, x: dist.Normal(p["c"] + p["phi"] * x, p["s"]))
    y = np.array(y)
    posterior = fit(model.given(y[:-1], y[1:]), Grid(), progress=False)
    assert posterior.verdict.status == "pass"
    assert posterior.log_evidence.error < 1e-6
    chains = fit(model.given(y[:-1], y[1:]), credo.NUTS(num_draws=4_000), progress=False)
    for name, sd in chains.sd().items():
        assert abs(posterior.mean()[name] - chains.mean()[name]) < 0.06 * sd
        assert posterior.sd()[name] == pytest.approx(sd, rel=0.06)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_the_last_grid_has_all_neighbours_of_a_node_that_counts(dim):
    log_weights = np.full((5,) * dim, -100.0)
    log_weights[(2,) * dim] = 0.0
    places = _around(Sum(np.zeros((5**dim, dim)), log_weights.ravel(), 0.0, 0.0), 5, dim)
    assert {tuple(place) for place in places.T.tolist()} == set(itertools.product((3, 4, 5), repeat=dim))
