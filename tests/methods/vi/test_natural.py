"""NaturalGradient: Newton's method on Gaussians, unbiased curvature from either estimate, and memory linear in dim."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import credo
import targets
from credo.equations import equations
from credo.fitting import fit
from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.methods.vi.ascent import Ascent, Tuning
from credo.methods.vi.families.full_rank import FullRank
from credo.methods.vi.families.low_rank import LowRank
from credo.methods.vi.families.mean_field import MeanField
from credo.methods.vi.gradients.reparameterised import Reparameterised
from credo.methods.vi.gradients.second_order import SecondOrder
from credo.methods.vi.gradients.sticking_the_landing import StickingTheLanding
from credo.methods.vi.natural.natural_gradient import NaturalGradient
from credo.methods.vi.objectives.elbo import ELBO
from credo.methods.vi.objectives.inclusive import InclusiveKL
from credo.methods.vi.optimisers.momentum import Momentum
from credo.model.model import Model
from credo.posterior.kinds import Gaussian
from credo.precision import double
from credo.status import CredoError
from interrupted import on_a_full_disk

MEAN = np.array([0.3, -0.2, 0.5])
MEMBERS = {
    "full_rank": (FullRank(), lambda: Gaussian(jnp.asarray(MEAN), Dense(jnp.linalg.cholesky(targets.GAUSSIAN_COV)))),
    "mean_field": (MeanField(), lambda: Gaussian(jnp.asarray(MEAN), Diagonal(jnp.array([0.5, 1.0, 2.0])))),
}


def natural(target, key=0, start=None, **settings):
    return fit(target, NaturalGradient(**settings), key=key, start=start, progress=False)


def gradient_of(estimator, family, q, log_density, z):
    """(value, gradient in the tangent) of the ELBO."""
    return jax.value_and_grad(
        lambda tangent: estimator.surrogate(ELBO(), family, q, tangent, log_density, z, (), len(z))
    )(family.rest(q))


# second derivatives -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("member", MEMBERS)
def test_on_a_quadratic_the_gradient_is_exact_from_a_single_pair_of_draws(member):
    """∇_a = Sᵀ(h − A m), ∇_B = tril(I − SᵀA S) for log p = hᵀu − ½ uᵀA u, whatever z is."""
    family, make = MEMBERS[member]
    A = np.linalg.inv(targets.GAUSSIAN_COV) + 0.5
    h = np.array([1.0, -1.0, 2.0])
    with double():
        q = make()
        z = np.random.default_rng(0).normal(size=(1, 3))
        z = np.concatenate([z, -z])
        _, (a, B) = gradient_of(SecondOrder(), family, q, lambda u: h @ u - 0.5 * u @ A @ u, z)
        S = np.linalg.cholesky(q.scale.dense())
        G = np.eye(3) - S.T @ A @ S
        np.testing.assert_allclose(a, S.T @ (h - A @ MEAN), rtol=1e-10)
        np.testing.assert_allclose(B, np.diagonal(G) if member == "mean_field" else np.tril(G), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("member", MEMBERS)
def test_it_is_unbiased_and_quieter_than_path_derivatives(member):
    """Both estimate one gradient; that of the scale by second derivatives has less variance on a near-Gaussian."""
    family, make = MEMBERS[member]
    target, num_repeats = targets.logistic().target.flat(), 400
    with double():
        q = make()
        q = Gaussian(jnp.asarray(targets.logistic().mean["w"]), jax.tree.map(lambda leaf: 0.2 * leaf, q.scale))
        draws = np.random.default_rng(3).normal(size=(num_repeats, 2, 3))
        draws = np.concatenate([draws, -draws], axis=1)
        found = {}
        for estimator in (SecondOrder(), StickingTheLanding()):
            one = jax.jit(lambda z, e=estimator: gradient_of(e, family, q, target.log_density, z)[1])
            a, B = jax.lax.map(one, draws)
            found[type(estimator)] = np.concatenate([a, B.reshape(num_repeats, -1)], axis=1)
        (quick, loud), n = found.values(), math.sqrt(num_repeats)
        error = np.hypot(quick.std(axis=0), loud.std(axis=0)) / n
        assert np.all(np.abs(quick.mean(axis=0) - loud.mean(axis=0)) <= 4.5 * error + 1e-12)
        assert np.sum(quick[:, 3:].var(axis=0)) < 0.5 * np.sum(loud[:, 3:].var(axis=0))


# exact answers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gaussian", "ill_conditioned"])
def test_gaussian_targets_are_exact(name):
    known = targets.TARGETS[name]()
    posterior = natural(known.target)
    np.testing.assert_allclose(posterior.mean()["w"], known.mean["w"], atol=1e-6 * known.sd["w"].min())
    np.testing.assert_allclose(posterior.sd()["w"], known.sd["w"], rtol=1e-6)
    assert abs(posterior.log_evidence.value - known.log_evidence) < 1e-6
    assert posterior.verdict.status == "pass"
    assert posterior.info["num_steps"] <= 12  # the first stretch


def test_newton_steps_from_afar_solve_a_gaussian_to_the_last_digits():
    """Quadratic convergence: errors e of a log sd become e²; the mean comes by 5 sds a step at most."""
    target = targets.gaussian().target.flat()
    with double():
        ascent = Ascent(FullRank(), ELBO(), SecondOrder(), Momentum(0.0), 2, None, 0.01, 2)
        q = Gaussian(jnp.full(3, 20.0), Dense(3.0 * jnp.eye(3)))
        state = ascent.begin(target, q, 1.0, 100)
        step = jax.jit(ascent.algorithm(target, Tuning((), np.asarray(1e6))).step)
        for i in range(14):
            state, _ = step(jax.random.key(i), state)
        np.testing.assert_allclose(state.q.mean, targets.GAUSSIAN_MEAN, atol=1e-9)
        np.testing.assert_allclose(state.q.scale.dense(), targets.GAUSSIAN_COV, atol=1e-9)


def test_from_a_poor_start_the_answer_is_exact_too():
    known = targets.gaussian()
    start = natural(known.target)
    start.kind = Gaussian(np.asarray(start.kind.mean) + 10.0, start.kind.scale)
    posterior = natural(known.target, start=start, tolerance=1e-10)
    np.testing.assert_allclose(posterior.mean()["w"], known.mean["w"], atol=1e-6)
    np.testing.assert_allclose(posterior.sd()["w"], known.sd["w"], rtol=1e-6)
    assert posterior.info["num_steps"] < 200


@pytest.mark.parametrize("gradient", [SecondOrder(), StickingTheLanding()])
def test_the_diagonal_has_the_variances_of_the_precisions(gradient):
    precision = np.linalg.inv(targets.GAUSSIAN_COV)
    posterior = natural(targets.gaussian().target, family=MeanField(), gradient=gradient)
    exact = isinstance(gradient, SecondOrder)  # path derivatives see draws, whose noise 0.01 nats leave
    np.testing.assert_allclose(posterior.sd()["w"], np.diagonal(precision) ** -0.5, rtol=1e-6 if exact else 0.1)


@pytest.mark.parametrize("gradient", [SecondOrder(), StickingTheLanding()])
def test_logistic_regression(gradient):
    known = targets.logistic()
    posterior = natural(known.target, gradient=gradient, family=FullRank())
    bound = posterior.log_evidence
    assert known.log_evidence - 0.05 < bound.value < known.log_evidence + 4 * bound.error
    np.testing.assert_allclose(posterior.mean()["w"], known.mean["w"], atol=0.1 * known.sd["w"].min())
    np.testing.assert_allclose(posterior.sd()["w"], known.sd["w"], rtol=0.1)


@pytest.mark.parametrize("family", [FullRank(), MeanField()])
def test_minibatches_reach_the_same_answer(family):
    known = targets.logistic()
    posterior = natural(known.target, batch_size=64, family=family)
    slack = 0.05 if isinstance(family, FullRank) else 0.15
    assert known.log_evidence - slack < posterior.log_evidence.value < known.log_evidence + 0.05


# the loop ---------------------------------------------------------------------------------------------------------


def wide_density(params):
    u = params["w"]
    return -0.5 * jnp.sum((1.0 + jnp.linspace(0.0, 3.0, u.size)) * u**2)


def test_the_diagonal_form_keeps_memory_linear_in_the_dimension():
    """No array of a step at d = 100,000 has more than (draws + a few) · d numbers."""
    dim, num_samples = 100_000, 4
    target = Model.from_log_density(wide_density, {"w": constraints.real_vector}, {"w": (dim,)}).given().flat()
    with double():
        chosen = NaturalGradient().ascent(target)
        assert isinstance(chosen.family, MeanField)
        assert isinstance(chosen.gradient, StickingTheLanding)
        ascent = Ascent(chosen.family, ELBO(), chosen.gradient, Momentum(), num_samples, None, 0.01, num_samples)
        state = ascent.blank(target)
        step = ascent.algorithm(target, Tuning((), np.asarray(1e6))).step
        program = jax.make_jaxpr(step)(jax.random.key(0), state).jaxpr
        largest = max(variable.aval.size for each in equations(program) for variable in each.outvars)
    assert largest <= 64 * dim  # a review's draws


@pytest.mark.slow
def test_a_hundred_thousand_dimensions_by_gradients():
    dim = 100_000
    target = Model.from_log_density(wide_density, {"w": constraints.real_vector}, {"w": (dim,)}).given()
    posterior = natural(target, num_samples=4, max_steps=300)
    sd = 1 / np.sqrt(1 + np.linspace(0, 3, dim))
    assert np.sqrt(np.mean(np.log(posterior.sd()["w"] / sd) ** 2)) < 0.02
    assert np.sqrt(np.mean((posterior.mean()["w"] / sd) ** 2)) < 0.05


def test_a_run_that_a_full_disk_stopped_resumes_bit_for_bit(tmp_path):
    target, method, folder = targets.skewed().target, NaturalGradient(tolerance=1e-4), tmp_path / "run"
    whole = fit(target, method, key=3, progress=False)
    with on_a_full_disk(folder, 2, phase=0, chunk=8):
        fit(target, method, key=3, checkpoint=folder, progress=False)
    resumed = credo.resume(folder, target, progress=False)
    assert resumed.info["num_steps"] == whole.info["num_steps"] > 16
    np.testing.assert_array_equal(resumed.kind.mean, whole.kind.mean)
    np.testing.assert_array_equal(resumed.kind.scale.dense(), whole.kind.scale.dense())


# what can go wrong ------------------------------------------------------------------------------------------------


def flat_density(params):
    return -0.5 * params["x"] ** 2 + 0.0 * params["free"]


def test_an_improper_posterior_is_said_to_be_one():
    model = Model.from_log_density(flat_density, {"x": constraints.real, "free": constraints.real})
    posterior = natural(model.given())
    assert posterior.verdict.status == "failed"
    assert any("'free'" in sentence and "improper" in sentence for sentence in posterior.verdict.sentences)


def poisson():
    model = Model({"rate": dist.Gamma(2.0, 1.0)}, lambda params, x: dist.Poisson(params["rate"]))
    return model.given(y=np.array([3, 5, 1]))


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"batch_size": 0}, "of 0 rows was asked of 3"),
        ({"gradient": Reparameterised()}, "SecondOrder"),
        ({"family": LowRank(1)}, "FullRank"),
        ({"step_size": -1.0}, "step_size"),
        ({"num_samples": 1}, "num_samples is 2 or more"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, match):
    with pytest.raises(CredoError, match=match):
        natural(poisson(), **settings)


def test_second_derivatives_go_with_gaussians_and_the_elbo_alone():
    method = credo.ADVI(gradient=SecondOrder(), objective=InclusiveKL())
    with pytest.raises(CredoError, match="InclusiveKL"):
        fit(poisson(), method, progress=False)


def test_a_start_outside_the_support_is_refused():
    with pytest.raises(CredoError, match="rate"):
        natural(poisson(), start={"rate": -1.0})


def test_discrete_parameters_are_refused():
    model = Model({"k": dist.Poisson(3.0)}, lambda params, x: dist.Normal(params["k"], 1.0))
    with pytest.raises(CredoError, match="discrete"):
        natural(model.given(y=np.ones(3)))


@pytest.mark.parametrize("method", [credo.ADVI(family=FullRank(), max_steps=50), NaturalGradient(max_steps=50)])
def test_runs_in_single_precision_resume(method, tmp_path):
    """Their first factor was kept in double precision, which a resumed run took for another target's."""
    x = np.random.default_rng(0).normal(size=(40, 2))
    model = Model({"w": dist.Normal(0.0, 10.0).expand([2])}, lambda params, x: dist.Normal(x @ params["w"], 1.0))
    target = model.given(x, x @ [1.0, 2.0])
    whole = fit(target, method, precision="float32", progress=False, checkpoint=tmp_path / "run")
    again = credo.resume(tmp_path / "run", target, progress=False)
    np.testing.assert_array_equal(whole.kind.mean, again.kind.mean)
    assert again.kind.mean.dtype == np.float32
