"""Densities that no member of a family follows: with an edge, without an end, with nothing finite at the start."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import credo
from cases import first_of
from credo import vi
from credo.diagnose import endless
from credo.diagnose.endless import falls_along
from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.methods.vi.faults import _way_out, edge_sentence
from credo.posterior.kinds import Gaussian
from credo.precision import double


def on_a_line(log_density):
    return credo.Model.from_log_density(lambda p: log_density(p["a"]), {"a": constraints.real}).given()


def half_normal(a):
    return jnp.where(a > 0, -0.5 * a**2, -jnp.inf)


@pytest.mark.parametrize("method", first_of([credo.ADVI(), credo.BatchAndMatch(), credo.ADVI(family=vi.Flow())]))
def test_an_edge_inside_the_space_is_said(method):
    """q shrinks away from the edge until its own draws see nothing wrong: a flow had passed with an sd of 0.006."""
    posterior = credo.fit(on_a_line(half_normal), method, key=0, start={"a": 0.5}, progress=False)
    assert posterior.verdict.status != "pass"
    assert any("edge inside the space" in sentence for sentence in posterior.verdict.sentences)


@pytest.mark.parametrize("method", [credo.Pathfinder(), credo.ADVI(family=credo.FullRank())])
def test_a_support_that_hangs_on_a_parameter(method):
    """A log-normal from t0 on: numpyro took the data for NumPy's beside a bound that was traced, and raised."""
    y = 2.0 + np.exp(np.random.default_rng(61).normal(0.3, 0.8, 60))

    def shifted(p, x):
        onto = dist.transforms.AffineTransform(p["t0"], 1.0, domain=constraints.positive)
        return dist.TransformedDistribution(
            dist.Normal(p["mu"] + 0 * x, p["s"]), [dist.transforms.ExpTransform(), onto]
        )

    model = credo.Model({"t0": dist.Uniform(0, 5), "mu": dist.Normal(0, 2), "s": dist.HalfNormal(2)}, shifted)
    verdict = credo.fit(model.given(np.zeros(60), y), method, key=0, progress=False).verdict
    assert verdict.status != "pass"
    assert isinstance(method, credo.Pathfinder) or any("edge inside the space" in each for each in verdict.sentences)


@pytest.mark.parametrize("method", [credo.ADVI(), credo.NaturalGradient()])
def test_a_way_out_to_numbers_that_a_law_refuses(method):
    """Of degrees of freedom under a flat prior: far out they are 0, or infinite."""
    prior = {"m": dist.Normal(0, 5), "nu": dist.ImproperUniform(constraints.positive, (), ())}
    model = credo.Model(prior, lambda p, x: dist.StudentT(p["nu"], p["m"] + 0 * x, 2.0))
    target = model.given(np.zeros(40), np.random.default_rng(0).normal(1, 2, 40))
    assert credo.fit(target, method, key=0, progress=False).verdict.status != "pass"


def test_only_late_steps_tell_of_an_edge():
    early = np.ones(100, bool)
    early[:50] = False
    assert edge_sentence(early) is None
    assert edge_sentence(~early).startswith("In 50 of the last 50 steps")


def test_a_gaussian_is_widest_along_an_axis_or_its_first_eigenvector(monkeypatch):
    monkeypatch.setattr(Diagonal, "dense", None)  # independent coordinates need no matrix
    mean, sd = np.zeros(3), np.array([1.0, 3.0, 2.0])
    turned = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    np.testing.assert_array_equal(_way_out(Gaussian(mean, Diagonal(sd)), vi.MeanField())[0], [0, 1, 0])
    root = np.linalg.cholesky(turned * sd**2 @ turned.T)
    assert abs(_way_out(Gaussian(mean, Dense(root)), vi.FullRank())[0] @ turned[:, 1]) == pytest.approx(1)


@pytest.mark.parametrize("method", [credo.ADVI(), credo.BatchAndMatch(), credo.NaturalGradient()])
def test_nothing_finite_at_the_start_is_an_error_that_names_the_rows(method):
    model = credo.Model({"b": dist.Normal(3.0, 2.0)}, lambda p, x: dist.Uniform(0.0, p["b"]))
    with pytest.raises(credo.CredoError, match="5 of 5 rows|outside"):
        credo.fit(model.given(y=np.array([2.1, 0.5, 2.7, 1.3, 1.0])), method, key=0, progress=False)


@pytest.mark.parametrize(
    ("log_density", "falls"),
    [
        (lambda a: -0.5 * a**2, True),
        (lambda a: -jnp.log1p(a**2), True),  # Cauchy: by a power of two
        (half_normal, True),  # −inf on one side is a fall too
        (lambda a: -0.5 * jnp.log1p(a**2), False),
        (lambda a: 0.0 * a, False),
        (lambda a: a, False),
    ],
)
def test_which_tails_fall(log_density, falls):
    distances = 30 * 10.0 ** np.arange(5)
    with double():
        assert falls_along(on_a_line(log_density), np.ones(1), np.zeros(1), distances) is falls


def test_a_density_that_loops_until_it_is_precise_is_not_looked_at_far_out(monkeypatch):
    """Steps of an equation that is solved numerically would be as many as the distance is long, or more."""

    def decay(a):
        steps = jax.lax.while_loop(lambda t: t < jnp.abs(a), lambda t: t + 1e-3, 0.0)
        return -steps

    monkeypatch.setattr(endless, "_heights", None)
    with double():
        assert falls_along(on_a_line(decay), np.ones(1), np.zeros(1), 30 * 10.0 ** np.arange(5))


IMPROPER = {
    "flat": lambda a: -0.5 * a[0] ** 2,
    "growing": lambda a: a[1] - 0.5 * a[0] ** 2,
    "slow": lambda a: -0.5 * a[0] ** 2 - 0.5 * jnp.log1p(a[1] ** 2),
}


@pytest.mark.parametrize("name", IMPROPER)
@pytest.mark.parametrize("method", [credo.ADVI(), credo.DADVI(), credo.BatchAndMatch(), credo.Pathfinder()])
def test_an_improper_posterior_is_said_and_has_no_evidence(name, method):
    support, shape = {"a": constraints.real_vector}, {"a": (2,)}
    target = credo.Model.from_log_density(lambda p: IMPROPER[name](p["a"]), support, shape).given()
    posterior = credo.fit(target, method, key=0, progress=False)
    assert posterior.verdict.status == "failed"
    assert any("improper" in sentence for sentence in posterior.verdict.sentences)
    assert posterior.log_evidence is None


@pytest.mark.parametrize("method", [credo.ADVI(), credo.BatchAndMatch()])
def test_a_resumed_fit_says_what_the_whole_one_said(method, tmp_path):
    """Columns of which one is twice the other: the direction between them is seen at the start, and kept."""
    prior = {"w": dist.ImproperUniform(constraints.real, (), (2,))}
    x, y = np.outer(np.ones(30), [1.0, 2.0]), np.random.default_rng(0).normal(size=30)
    target = credo.Model(prior, lambda params, x: dist.Normal(x @ params["w"], 1.0)).given(x, y)
    whole = credo.fit(target, method, checkpoint=tmp_path, progress=False)
    again = credo.resume(tmp_path, target, progress=False)
    assert whole.verdict.status == "failed"
    assert again.verdict == whole.verdict
    assert again.info["num_gradients"] == whole.info["num_gradients"]


@pytest.mark.parametrize("method", [credo.ADVI(), credo.BatchAndMatch(), credo.Pathfinder()])
def test_a_proper_posterior_that_no_gaussian_follows_is_not_called_improper(method):
    cauchy = on_a_line(lambda a: -jnp.log1p((a / 3) ** 2))
    prior = {"v": dist.Normal(0.0, 3.0), "x": lambda v: dist.Normal(0.0, jnp.exp(v / 2)).expand([4])}
    funnel = credo.Model(prior, lambda p, x: dist.Normal(p["v"], 100.0)).given(y=np.zeros(1))
    for target in (cauchy, funnel, on_a_line(half_normal)):
        posterior = credo.fit(target, method, key=0, start=np.full(target.dim, 0.5), progress=False)
        assert posterior.verdict.status != "pass"
        assert not any("improper" in sentence for sentence in posterior.verdict.sentences)


def shifted(log_evidence: float):
    """N(0, I) of two coordinates with this log evidence."""
    support, shape = {"a": constraints.real_vector}, {"a": (2,)}
    height = log_evidence - np.log(2 * np.pi)
    return credo.Model.from_log_density(lambda p: height - 0.5 * jnp.sum(p["a"] ** 2), support, shape).given()


@pytest.mark.parametrize("objective", first_of([vi.ChiUpper(), vi.InclusiveKL(), vi.Renyi(0.5)]))
def test_scores_do_not_mind_the_constant_of_a_density(objective):
    """The review of draws that do not move took each objective to grow with log p's constant, as the ELBO does."""
    method = credo.ADVI(family=vi.FullRank(), gradient=vi.ScoreFunction(), objective=objective)
    posterior = credo.fit(shifted(10.0), method, key=0, progress=False)
    assert posterior.verdict.status == "pass"
    assert posterior.verdict.figures["elbo_drift"] < 0.02


@pytest.mark.parametrize("objective", first_of([vi.ImportanceWeighted(), vi.ChiUpper(), vi.Renyi(0.5)]))
def test_sampled_scores_do_not_throw_a_fit_out(objective):
    """Scores whose mean is zero had made sds 10²⁹ times too large, and a proper posterior was called improper."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(60, 4))
    y = x @ np.ones(4) + generator.normal(size=60)
    model = credo.Model({"w": dist.Normal(0.0, 2.0).expand([4])}, lambda p, x: dist.Normal(x @ p["w"], 1.0))
    method = credo.ADVI(family=vi.FullRank(), gradient=vi.Reparameterised(), objective=objective)
    posterior = credo.fit(model.given(x, y), method, key=1, progress=False)
    exact = np.sqrt(np.diag(np.linalg.inv(np.eye(4) / 4 + x.T @ x)))
    assert posterior.verdict.status == "pass"
    np.testing.assert_allclose(posterior.sd()["w"], exact, rtol=0.02)
