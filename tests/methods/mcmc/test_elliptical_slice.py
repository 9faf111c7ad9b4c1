"""Elliptical slice sampling: which priors are Gaussian, and draws from the prior where there are no data."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import credo
from credo.equations import equations
from credo.methods.mcmc.elliptical_slice import State, elliptical_slice
from credo.methods.mcmc.gaussian_prior import gaussian_prior
from credo.native import suits
from credo.precision import double
from interrupted import at_chunk
from targets import TARGETS

COVARIANCE = np.array([[2.0, 0.9], [0.9, 1.0]])
GRID = np.linspace(0, 1, 12)
KERNEL = np.exp(-0.5 * ((GRID[:, None] - GRID) / 0.3) ** 2) + 1e-6 * np.eye(12)
WALK = np.minimum.outer(np.arange(1, 5), np.arange(1, 5)) * 0.25


def block(*parts):
    dim, matrix = sum(len(part) for part in parts), []
    for i, part in enumerate(parts):
        before = sum(len(each) for each in parts[:i])
        matrix.append(np.hstack([np.zeros((len(part), before)), part, np.zeros((len(part), dim - before - len(part)))]))
    return np.vstack(matrix)


GAUSSIAN_PRIORS = {
    "independent": (
        {"a": dist.Normal(1.0, 2.0), "b": dist.Normal(-1.0, 0.5).expand([2]).to_event(1)},
        [1.0, -1.0, -1.0],
        np.diag([4.0, 0.25, 0.25]),
    ),
    "multivariate": (
        {"a": dist.MultivariateNormal(np.array([1.0, 2.0]), COVARIANCE), "b": dist.Normal(0.0, 3.0)},
        [1.0, 2.0, 0.0],
        block(COVARIANCE, [[9.0]]),
    ),
    "a Gaussian process": (dist.MultivariateNormal(np.zeros(12), KERNEL), np.zeros(12), KERNEL),
    "a random walk": (dist.GaussianRandomWalk(0.5, 4), np.zeros(4), WALK),
    "linear-Gaussian": (
        {"a": dist.Normal(1.0, 2.0), "b": lambda a: dist.Normal(3.0 * a - 1.0, 0.5)},
        [1.0, 2.0],
        [[4.0, 12.0], [12.0, 36.25]],
    ),
    "log-normal": ({"a": dist.LogNormal(0.5, 0.7)}, [0.5], [[0.49]]),
}


@pytest.mark.parametrize("name", list(GAUSSIAN_PRIORS))
def test_gaussian_priors_are_recognised(name):
    prior, mean, covariance = GAUSSIAN_PRIORS[name]
    found = gaussian_prior(credo.Model(prior, None).given())
    np.testing.assert_allclose(found.mean, mean, atol=1e-6)
    np.testing.assert_allclose(np.asarray(found.scale.dense()), covariance, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("prior", "sentence"),
    [
        ({"a": dist.Normal(0.0, 1.0), "b": dist.StudentT(4.0, 0.0, 1.0)}, "that of 'b' is not"),
        ({"sigma": dist.HalfNormal(1.0)}, "that of 'sigma' is not"),
        ({"v": dist.Normal(0.0, 3.0), "x": lambda v: dist.Normal(0.0, jnp.exp(v / 2))}, "that of 'v' is not"),
        (
            {"a": dist.Normal(0.0, 1.0), "b": dist.Normal(0.0, 1.0), "c": lambda a, b: dist.Normal(a * b, 1.0)},
            "'a', 'b' and 'c' is Gaussian in each alone and not in all of them together",
        ),
        (
            {"a": dist.Normal(0.0, 1.0), "b": dist.ImproperUniform(constraints.real, (), ())},
            "the prior leaves 'b' free",
        ),
    ],
)
def test_other_priors_are_refused_by_name(prior, sentence):
    target = credo.Model(prior, None).given()
    with pytest.raises(credo.CredoError, match=sentence):
        credo.fit(target, credo.EllipticalSlice(), progress=False)


def test_a_process_that_is_all_but_singular_is_told_what_to_do():
    """Its flattest direction is spread over so many entries that none has a tenth of it."""
    x = np.linspace(0.0, 1.0, 300)
    K = np.exp(-0.5 * (x[:, None] - x) ** 2 / 0.1**2) + 1e-10 * np.eye(300)
    target = credo.Model({"f": lambda: dist.MultivariateNormal(np.zeros(300), K)}, None).given()
    with pytest.raises(credo.CredoError, match="leaves 'f' free, or all but free.*add a larger number to the diagonal"):
        credo.fit(target, credo.EllipticalSlice(), progress=False)


def test_a_bare_log_density_has_no_prior():
    with pytest.raises(credo.CredoError, match="a bare log density has none: write it as prior and likelihood"):
        credo.fit(TARGETS["skewed"]().target, credo.EllipticalSlice(), progress=False)


def test_without_data_it_draws_from_the_prior():
    """The likelihood is constant, so that the first point of each ellipse is taken: uncorrelated draws of the prior."""
    prior, mean, covariance = GAUSSIAN_PRIORS["multivariate"]
    target = credo.Model(prior, None).given()
    method = credo.EllipticalSlice(num_warmup=0, num_draws=2_500, num_steps=2)
    posterior = credo.fit(target, method, key=1, progress=False)
    assert posterior.info["num_densities"] == 4 * 2_500 * 2
    assert posterior.verdict.status == "pass"
    draws = posterior.kind.positions.reshape(-1, 3)
    assert posterior.verdict.figures["min_ess_bulk"] > 0.8 * len(draws)
    sd = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(draws.mean(axis=0) - mean) < 5 * sd / np.sqrt(len(draws)))
    # var(x_i x_j) = σ_ii σ_jj + σ_ij²; squares are correlated from draw to draw, E cos² θ = ½ a transition
    error = np.sqrt((np.outer(sd**2, sd**2) + covariance**2) * (1 + 2 * 0.25 / 0.75) / len(draws))
    assert np.all(np.abs(np.cov(draws.T) - covariance) < 5 * error)


MODEL = credo.Model(
    dist.MultivariateNormal(np.zeros(12), KERNEL), lambda f, x: dist.Poisson(jnp.exp(1.0 + f)).to_event(0)
)


def test_chains_begin_at_draws_from_the_prior():
    """Without data each transition takes the first point of its ellipse: one density, and an orbit of the prior."""
    target = credo.Model({"w": dist.Normal(100.0, 1.0)}, None).given()
    method = credo.EllipticalSlice(chains=20, num_warmup=0, num_draws=2, num_steps=3)
    posterior = credo.fit(target, method, key=0, progress=False)
    np.testing.assert_array_less(np.abs(posterior.draws["w"] - 100.0), 6.0)
    assert posterior.info["num_densities"] == 20 * 2 * 3


def test_a_gaussian_process_of_counts():
    """Against NUTS in white coordinates, f = L z, which is another program and another sampler."""
    counts = np.random.default_rng(0).poisson(np.exp(1 + np.sin(6 * GRID)))
    posterior = credo.fit(MODEL.given(GRID, counts), credo.EllipticalSlice(), key=1, progress=False)
    assert posterior.verdict.status == "pass", posterior.verdict
    lower = np.linalg.cholesky(KERNEL)
    white = credo.Model(
        {"z": dist.Normal(0.0, 1.0).expand([12])}, lambda params, x: dist.Poisson(jnp.exp(1.0 + lower @ params["z"]))
    )
    reference = credo.fit(white.given(GRID, counts), credo.NUTS(num_draws=2_000), key=1, progress=False)
    f = reference.draws["z"].reshape(-1, 12) @ lower.T
    mean, sd = posterior.mean(), posterior.sd()
    ess = min(posterior.verdict.figures["min_ess_bulk"], reference.verdict.figures["min_ess_bulk"])
    np.testing.assert_array_less(np.abs(mean - f.mean(axis=0)) / f.std(axis=0), 5 * np.sqrt(2 / ess))
    np.testing.assert_allclose(sd, f.std(axis=0), rtol=2 * 5 * np.sqrt(2 / ess))


def test_the_prior_is_not_evaluated():
    """Its density takes a triangular solve, without which the program is one native function."""
    target = MODEL.given(GRID, np.arange(12)).flat()
    with double():
        algorithm = elliptical_slice(target, prior=gaussian_prior(target))
        state = State(jnp.zeros(12), jnp.zeros(()))
        program = jax.make_jaxpr(algorithm.step)(jax.random.key(0), state)
        density = jax.make_jaxpr(target.log_density)(state.position)
    assert "triangular_solve" in {equation.primitive.name for equation in equations(density.jaxpr)}
    assert suits(program)


def test_single_precision():
    counts = np.random.default_rng(0).poisson(np.exp(1 + np.sin(6 * GRID)))
    method = credo.EllipticalSlice(num_draws=300)
    posterior = credo.fit(MODEL.given(GRID, counts), method, key=1, precision="float32", progress=False)
    assert posterior.kind.positions.dtype == np.float32
    assert posterior.verdict.figures["max_r_hat"] < 1.05


def test_resume_gives_the_draws_of_an_uninterrupted_fit(tmp_path):
    target = MODEL.given(GRID, np.arange(12))
    method = credo.EllipticalSlice(num_warmup=30, num_draws=40)
    whole = credo.fit(target, method, key=1, progress=False)
    with at_chunk(7):
        credo.fit(target, method, key=1, checkpoint=tmp_path, progress=False)
    resumed = credo.resume(tmp_path, target, progress=False)
    np.testing.assert_array_equal(resumed.kind.positions, whole.kind.positions)


def test_chains_start_where_the_likelihood_is():
    """A third of the prior's draws allow the data; one start a chain, of four, was refused 99 times of 100."""
    model = credo.Model({"f": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Uniform(0.0, jnp.exp(params["f"])))
    posterior = credo.fit(model.given(y=np.array([1.5, 1.0])), credo.EllipticalSlice(), key=0, progress=False)
    f = np.linspace(np.log(1.5), 8, 100_001)
    weights = np.exp(-0.5 * f**2 - 2 * f)
    assert float(posterior.mean()["f"]) == pytest.approx(np.sum(f * weights) / np.sum(weights), abs=0.02)
