"""Pathfinder: factors against the recursion they stand for, Gaussians, separated modes, bad input, and NUTS from it."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy import stats

import credo
import targets
from credo.methods.particles.wide_mixture import WIDE
from credo.methods.vi.pathfinder import pathfinder
from credo.methods.vi.pathfinder.climb import climb
from credo.methods.vi.pathfinder.inverse_hessian import InverseHessian
from credo.methods.vi.pathfinder.wide import log_widening, wide_scales
from credo.model.model import Model
from credo.posterior.kinds import Draws, Gaussian
from credo.status import CredoError


def steps_on_a_quadratic(dim, number, seed=0):
    """(steps, changes): y = P s, P positive definite."""
    generator = np.random.default_rng(seed)
    root = generator.normal(size=(dim, dim)) + 2 * np.eye(dim)
    steps = generator.normal(size=(number, dim))
    return steps, steps @ (root @ root.T)


@pytest.mark.parametrize(("dim", "number", "history"), [(7, 2, 5), (7, 9, 5), (3, 8, 6)])
def test_factors_are_those_of_the_recursion(dim, number, history):
    """H ← (I − s yᵀ/b) H (I − y sᵀ/b) + s sᵀ/b over the steps kept, from the diagonal."""
    steps, changes = steps_on_a_quadratic(dim, number)
    found = InverseHessian.identity(dim)
    for step, change in zip(steps, changes, strict=True):
        found = found.after(step, change, history)
    H = np.diag(found.diagonal)
    for s, y in zip(steps[-history:], changes[-history:], strict=True):
        left = np.eye(dim) - np.outer(s, y) / (s @ y)
        H = left @ H @ left.T + np.outer(s, s) / (s @ y)
    np.testing.assert_allclose(np.stack([found.product(e) for e in np.eye(dim)]), H, atol=1e-9 * np.abs(H).max())
    np.testing.assert_allclose(found.product(changes[-1]), steps[-1], atol=1e-9)  # the secant equation
    root = found.root()
    S = root.times(np.eye(dim)).T
    np.testing.assert_allclose(S @ S.T, H, atol=1e-9 * np.abs(H).max())
    np.testing.assert_allclose(root.whitened(S.T), np.eye(dim), atol=1e-7)
    np.testing.assert_allclose(root.log_det(), 0.5 * np.linalg.slogdet(H)[1], atol=1e-8)


def test_the_diagonal_is_that_of_a_bfgs_update_of_it():
    """Of the precision (a/b) diag(1/α), whose curvature along α y is right: B − B s sᵀB/(sᵀB s) + y yᵀ/b."""
    steps, changes = steps_on_a_quadratic(5, 2)
    first = InverseHessian.identity(5).after(steps[0], changes[0], 5)
    s, y, α = steps[1], changes[1], first.diagonal
    B = np.diag((y @ (α * y)) / (y @ s) / α)
    B = B - np.outer(B @ s, B @ s) / (s @ B @ s) + np.outer(y, y) / (y @ s)
    np.testing.assert_allclose(1 / first.after(s, y, 5).diagonal, np.diagonal(B))


def test_a_step_without_curvature_changes_nothing():
    known = InverseHessian.identity(3)
    assert known.after(np.ones(3), -np.ones(3), 5) is known
    assert known.after(np.ones(3), np.full(3, np.nan), 5) is known


def gaussian(dim, rank, seed=0, spread=1.0):
    """(target, mean, covariance): a normalised Gaussian of covariance D + A Aᵀ, coordinates of unlike scale."""
    generator = np.random.default_rng(seed)
    scale, factor = np.exp(spread * generator.normal(size=dim)), generator.normal(size=(dim, rank))
    mean = generator.normal(size=dim)
    core = np.eye(rank) + factor.T @ factor
    pull = factor @ np.linalg.inv(np.linalg.cholesky(core)).T  # (I + A Aᵀ)⁻¹ = I − pull pullᵀ
    constant = -np.log(scale).sum() - 0.5 * np.linalg.slogdet(core)[1] - 0.5 * dim * np.log(2 * np.pi)

    def log_density(params):
        v = (params["w"] - mean) / scale
        return constant - 0.5 * (jnp.dot(v, v) - jnp.sum(jnp.square(jnp.matmul(v, pull))))

    model = Model.from_log_density(log_density, {"w": constraints.real_vector}, {"w": (dim,)})
    return model.given(), mean, scale[:, None] * (np.eye(dim) + factor @ factor.T) * scale


def test_one_path_on_a_gaussian():
    target, mean, covariance = gaussian(6, 2)
    posterior = credo.fit(target, credo.Pathfinder(), progress=False)
    assert isinstance(posterior.kind, Gaussian)
    sd = np.sqrt(np.diagonal(covariance))
    np.testing.assert_allclose((posterior.mean()["w"] - mean) / sd, 0, atol=1e-3)  # 1e-8 nats are 1.4e-4 sds
    bound = posterior.log_evidence
    assert bound.kind == "lower bound"
    assert -1.0 < bound.value < 4 * bound.error
    assert posterior.info["num_gradients"] < 60
    assert posterior.info["elbo_path"].shape[1] == min(posterior.info["num_steps"], 64)
    # what it says of itself: draws and density are of one Gaussian
    q, u = posterior.kind, np.random.default_rng(0).normal(size=6)
    dense = np.asarray(q.scale.dense())
    away = u - q.mean
    expected = -0.5 * (away @ np.linalg.solve(dense, away) + np.linalg.slogdet(2 * np.pi * dense)[1])
    np.testing.assert_allclose(posterior.log_prob({"w": u}), expected, atol=1e-8)


def test_several_paths_on_a_gaussian_are_exact_up_to_their_error():
    target, mean, covariance = gaussian(6, 2)
    posterior = credo.fit(target, credo.Pathfinder(num_paths=4), progress=False)
    assert isinstance(posterior.kind, Draws)
    assert posterior.verdict.status == "pass"
    evidence = posterior.log_evidence
    assert evidence.kind == "monte carlo"
    assert abs(evidence.value) < 5 * evidence.error
    error = 5 / np.sqrt(posterior.verdict.figures["importance_ess"])
    np.testing.assert_allclose((posterior.mean()["w"] - mean) / np.sqrt(np.diagonal(covariance)), 0, atol=error)


@pytest.mark.slow
def test_thousands_of_parameters():
    target, mean, covariance = gaussian(2_000, 3, spread=0.1)
    posterior = credo.fit(target, credo.Pathfinder(num_draws=100), progress=False)
    sd = np.sqrt(np.diagonal(covariance))
    assert np.max(np.abs(posterior.mean()["w"] - mean) / sd) < 0.01
    assert posterior.kind.scale.factor.shape[1] <= 100
    assert np.median(np.abs(np.log(posterior.sd()["w"] / sd))) < 0.5


@pytest.mark.parametrize("unit", [1e-8, 1.0, 1e6, 1e10])
def test_the_answer_is_the_same_in_all_units(unit):
    """A path had ended where H, which began as the identity, knew nothing of the mean's 10⁵."""
    y = 3 + np.random.default_rng(1).normal(size=50)
    prior = {"m": dist.Normal(0.0, 10 * unit), "s": dist.LogNormal(np.log(unit), 1.0)}
    model = Model(prior, lambda params, x: dist.Normal(params["m"], params["s"]))
    posterior = credo.fit(model.given(y=unit * y), credo.Pathfinder(num_paths=2), key=1, progress=False)
    sd = y.std() / np.sqrt(50)
    assert abs(posterior.mean()["m"] / unit - y.mean()) < 0.2 * sd
    assert abs(np.log(posterior.sd()["m"] / unit / sd)) < 0.2


def test_several_paths_find_both_modes():
    known = targets.mixture()
    posterior = credo.fit(known.target, credo.Pathfinder(num_paths=10), progress=False)
    error = 5 / np.sqrt(posterior.verdict.figures["importance_ess"])
    assert abs(posterior.mean()["x"] - known.mean["x"]) / known.sd["x"] < error
    assert posterior.verdict.status == "pass"


@pytest.mark.parametrize("num_paths", [1, 2])
def test_nuts_starts_from_it(num_paths):
    known = targets.logistic()
    found = credo.fit(known.target, credo.Pathfinder(num_paths=num_paths), progress=False)
    posterior = credo.fit(known.target, credo.NUTS(num_warmup=200, num_draws=200), start=found, progress=False)
    assert posterior.verdict.figures["max_r_hat"] < 1.1
    error = 5 / np.sqrt(posterior.verdict.figures["min_ess_bulk"])
    np.testing.assert_allclose((posterior.mean()["w"] - known.mean["w"]) / known.sd["w"], 0, atol=error)


def broken_density(params):
    """No number left of 0, and zero right of 9."""
    x = params["x"]
    return jnp.where(x < 9.0, 3 * jnp.log(x) - 2 * x, -jnp.inf)


@pytest.mark.parametrize("num_paths", [1, 5])
def test_points_that_are_no_numbers_are_too_far(num_paths):
    """A Gamma(4, 2) density: mode 1.5, mean 2. Paths whose start is no number begin again."""
    target = Model.from_log_density(broken_density, {"x": constraints.real}).given()
    posterior = credo.fit(target, credo.Pathfinder(num_paths=num_paths, num_samples=2), progress=False)
    assert 1.0 < posterior.mean()["x"] < 2.5


def test_nowhere_finite_is_a_sentence():
    target = Model.from_log_density(lambda p: jnp.sqrt(-1.0 - p["x"] ** 2), {"x": constraints.real}).given()
    with pytest.raises(CredoError):
        credo.fit(target, credo.Pathfinder(num_paths=2), progress=False)


@pytest.mark.parametrize("num_paths", [1, 4])
def test_an_improper_posterior_does_not_pass(num_paths):
    model = Model({"w": dist.ImproperUniform(constraints.real, (), (2,))}, lambda p, x: dist.Normal(p["w"].sum(), 1.0))
    target = model.given(np.zeros((3, 1)), np.array([0.1, 0.2, 0.3]))
    posterior = credo.fit(target, credo.Pathfinder(num_paths=num_paths), progress=False)
    assert posterior.verdict.status != "pass"
    assert posterior.log_evidence is None


def test_a_time_limit_ends_the_paths():
    target, _, _ = gaussian(6, 2)
    posterior = credo.fit(target, credo.Pathfinder(num_paths=4), time_limit=1e-6, progress=False)
    assert not posterior.info["is_complete"]
    assert posterior.verdict.status != "pass"
    assert any("time limit" in sentence for sentence in posterior.verdict.sentences)
    assert np.all(np.isfinite(posterior.mean()["w"]))


def test_after_the_time_limit_the_last_point_alone_is_judged(monkeypatch):
    """As if the limit came when the path had ended."""
    target, mean, _ = gaussian(6, 2)
    monkeypatch.setattr(pathfinder, "climb", lambda evaluate, paths, deadline: climb(evaluate, paths, np.inf))
    posterior = credo.fit(target, credo.Pathfinder(), time_limit=1e-6, progress=False)
    assert posterior.info["num_steps"] > 1
    assert posterior.info["elbo_path"].shape == (2, 1)
    assert not posterior.info["is_complete"]
    assert any("time limit" in sentence for sentence in posterior.verdict.sentences)
    np.testing.assert_allclose(posterior.mean()["w"], mean, atol=1e-3)


def test_points_of_a_path_share_their_steps():
    """Copies of them would take the square of the path's length."""
    steps, changes = steps_on_a_quadratic(5, 2)
    first = InverseHessian.identity(5).after(steps[0], changes[0], 5)
    assert first.after(steps[1], changes[1], 5).steps[0] is first.steps[0]


def test_wrong_settings_are_refused():
    with pytest.raises(CredoError, match="num_paths is 1 or more"):
        credo.fit(targets.skewed().target, credo.Pathfinder(num_paths=0), progress=False)


@pytest.mark.oracle
def test_no_worse_than_blackjax():
    """The same start and history: our ELBO, by more draws, is not below theirs."""
    from blackjax.vi import pathfinder

    known = targets.logistic()
    flat = known.target.flat()
    with credo.precision.double():
        state, _ = pathfinder.approximate(jax.random.key(0), flat.log_density, jnp.zeros(3), num_samples=200, maxcor=6)
        theirs = float(state.elbo)
    posterior = credo.fit(known.target, credo.Pathfinder(history=6), start=np.zeros(3), progress=False)
    assert posterior.log_evidence.value > theirs - 0.3


def density_of_three(params, data):
    return -0.5 * jnp.sum((params["x"] - data) ** 2)


@pytest.mark.parametrize("name", ["Pathfinder", "ADVI", "NaturalGradient", "Auto"])
def test_a_model_that_says_where_to_begin_is_judged_as_any_other(name):
    """At the mode even, where a path goes nowhere."""
    model = Model.from_log_density(density_of_three, {"x": constraints.real}, init={"x": 1.0})
    posterior = credo.fit(model.given(np.arange(3.0)), getattr(credo, name)(), progress=False)
    assert posterior.verdict.status == "pass"
    assert posterior.sd()["x"] == pytest.approx(3**-0.5, rel=0.02)


def undefined_density(params):
    return jnp.log(params["x"]) - params["x"]


def test_a_density_without_rows_that_is_no_number_in_places_has_an_answer():
    model = Model.from_log_density(undefined_density, {"x": constraints.real}, init={"x": 1.0})
    assert credo.fit(model.given(), credo.ADVI(), progress=False).verdict.status != "pass"
    weighed = credo.fit(model.given(), credo.Pathfinder(num_paths=2), progress=False)
    assert np.isnan(weighed.verdict.figures["pareto_k"]), "of draws of q that have no weight nothing is known"
    assert weighed.verdict.status != "pass"


@pytest.mark.parametrize("every", [10, 2])
def test_wide_draws_are_weighed_against_the_scales_they_were_made_with(every):
    scales, z = wide_scales(40 * every, every), np.linspace(-300.0, 300.0, 10_001)
    assert [np.sum(scales == scale) for scale in WIDE] == [10] * len(WIDE)
    found = log_widening(z**2, 1, scales) + stats.norm.logpdf(z)
    mixture = (1 - 1 / every) * stats.norm.pdf(z) + np.mean([stats.norm(0, s).pdf(z) for s in WIDE], axis=0) / every
    is_seen = mixture > 0
    np.testing.assert_allclose(found[is_seen], np.log(mixture[is_seen]), atol=1e-9)


def test_paths_that_all_end_at_one_of_two_modes_do_not_pass():
    """0.3 of the posterior is 8 away in each of five coordinates: the mean is 2.4."""
    places = dist.Normal(jnp.stack([jnp.zeros(5), jnp.full(5, 8.0)]), jnp.ones((2, 5)))
    prior = dist.MixtureSameFamily(dist.Categorical(jnp.array([0.7, 0.3])), dist.Independent(places, 1))
    model = credo.Model({"m": prior}, lambda params, x: dist.Normal(x * params["m"][0], 1.0))
    posterior = credo.fit(model.given(np.zeros(3), np.zeros(3)), credo.Pathfinder(num_paths=8), key=1, progress=False)
    assert posterior.mean()["m"].max() < 0.1
    assert posterior.verdict.figures["mode_share"] == pytest.approx(0.3, abs=0.05)
    assert posterior.verdict.status == "failed"
