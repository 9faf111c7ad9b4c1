"""Exact: closed forms recognised by the density itself, and a sentence where there is none."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy.special import betaln
from scipy.stats import multivariate_normal

import targets
from credo.fitting import fit
from credo.linalg.quadratic import _tried, quadratic, third_derivatives
from credo.methods.exact import Exact, LinearRegression
from credo.model.model import Model
from credo.posterior.kinds import Gaussian
from credo.posterior.product import Product
from credo.precision import double
from credo.status import CredoError

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(200, 5))
Y = X @ GENERATOR.normal(size=5) + 0.5 * GENERATOR.normal(size=200)


def likelihood(params, x):
    return dist.Normal(x @ params["w"], 0.5)


def linear(x, y):
    return Model({"w": dist.Normal(0.0, 1.0).expand([x.shape[1]])}, likelihood).given(x, y)


@pytest.mark.parametrize("num_rows", [200, 3], ids=["many rows", "fewer rows than parameters"])
def test_linear_regression_equals_its_closed_form(num_rows):
    x, y = X[:num_rows], Y[:num_rows]
    posterior = fit(linear(x, y), Exact(), progress=False)
    known = LinearRegression(alpha=1.0, beta=4.0).update(x, y)
    assert isinstance(posterior.kind, Gaussian)
    assert posterior.verdict.status == "pass"
    assert posterior.log_evidence.kind == "exact"
    np.testing.assert_allclose(posterior.log_evidence.value, known.log_evidence.value, rtol=1e-10)
    np.testing.assert_allclose(posterior.mean()["w"], known.mean()["weights"], rtol=1e-9)
    np.testing.assert_allclose(posterior.sd()["w"], known.sd()["weights"], rtol=1e-9)


def test_a_bare_gaussian_density_gives_its_moments_and_its_constant():
    known = targets.ill_conditioned()
    posterior = fit(known.target, Exact(), progress=False)
    np.testing.assert_allclose(posterior.mean()["w"], known.mean["w"], atol=1e-10)
    np.testing.assert_allclose(posterior.sd()["w"], known.sd["w"], rtol=1e-9)
    np.testing.assert_allclose(posterior.log_evidence.value, known.log_evidence, rtol=1e-9)


def test_several_named_parameters_that_meet_in_one_predictor():
    model = Model(
        {"a": dist.Normal(1.0, 2.0), "b": {"c": dist.Normal(0.0, 1.0).expand([5])}},
        lambda params, x: dist.Normal(params["a"] + x @ params["b"]["c"], 0.5),
    )
    posterior = fit(model.given(X, Y), Exact(), progress=False)
    design = np.column_stack([np.ones(len(X)), X])
    precision = design.T @ design * 4 + np.diag([0.25, 1, 1, 1, 1, 1])
    mean = np.linalg.solve(precision, design.T @ Y * 4 + np.array([0.25, 0, 0, 0, 0, 0]))
    np.testing.assert_allclose(posterior.mean()["a"], mean[0], rtol=1e-9)
    np.testing.assert_allclose(posterior.mean()["b"]["c"], mean[1:], rtol=1e-9)


def test_a_second_fit_compiles_nothing(caplog):
    fit(linear(X, Y), Exact(), progress=False)
    with jax.log_compiles(True), caplog.at_level(logging.WARNING):
        fit(linear(2 * X, Y), Exact(), progress=False)
    assert not [record.message for record in caplog.records if "ompil" in record.message]


def binomial_likelihood(params, x):
    return dist.Binomial(total_count=x, probs=params["p"])


def test_beta_binomial_by_its_conjugate_pair():
    trials, successes = np.array([5, 10, 20]), np.array([2, 3, 11])
    model = Model({"p": dist.Beta(2.0, 3.0)}, binomial_likelihood)
    posterior = fit(model.given(trials, successes), Exact(), progress=False)
    assert isinstance(posterior.kind, Product)
    assert posterior.info["route"] == "conjugate"
    assert posterior.verdict.status == "pass"
    a, b = 2 + 16, 3 + 19
    np.testing.assert_allclose(posterior.mean()["p"], a / (a + b), rtol=1e-9)
    choose = np.sum(-betaln(successes + 1, trials - successes + 1) - np.log1p(trials))
    np.testing.assert_allclose(posterior.log_evidence.value, choose + betaln(a, b) - betaln(2, 3), rtol=1e-9)


def test_a_flat_prior_gives_the_posterior_and_no_evidence():
    flat = Model({"w": dist.ImproperUniform(constraints.real, (), (5,))}, likelihood)
    posterior = fit(flat.given(X, Y), Exact(), progress=False)
    np.testing.assert_allclose(posterior.mean()["w"], np.linalg.lstsq(X, Y)[0], rtol=1e-9)
    assert posterior.log_evidence is None


def test_an_improper_posterior_names_what_is_free():
    model = Model({"a": dist.Normal(0.0, 1.0), "w": dist.ImproperUniform(constraints.real, (), (5,))}, likelihood)
    with pytest.raises(CredoError, match="leave 'w' free"):
        fit(model.given(X[:3], Y[:3]), Exact(), progress=False)
    prior = {"a": dist.ImproperUniform(constraints.real, (), ()), "w": dist.Normal(0.0, 1.0).expand([5])}
    with pytest.raises(CredoError, match="leave 'a' free"):
        fit(Model(prior, likelihood).given(X, Y), Exact(), progress=False)


def test_columns_that_are_multiples_leave_a_direction_free():
    """By rounding their precision has a Cholesky factor for every other multiple."""
    model = Model({"w": dist.ImproperUniform(constraints.real, (), (2,))}, likelihood)
    for k in range(3, 11):
        with pytest.raises(CredoError, match="leave 'w' free"):
            fit(model.given(X[:, :1] * [1.0, 1 / k], Y), Exact(), progress=False)


def test_what_is_free_is_named_whatever_the_units():
    """In units of its own a direction that both share is all but one of them."""
    flat = dist.ImproperUniform(constraints.real, (), ())
    model = Model({"a": flat, "b": flat}, lambda p, x: dist.Normal(x * (p["a"] + 3e3 * p["b"]), 1.0))
    with pytest.raises(CredoError, match="leave 'a' and 'b' free"):
        fit(model.given(X[:, 0], Y), Exact(), progress=False)


def unknown_noise(params, x):
    return dist.Normal(x @ params["w"], params["noise"])


def logistic(params, x):
    return dist.Bernoulli(logits=x @ params["w"])


WITHOUT_CLOSED_FORM = {
    "unknown noise": (
        {"w": dist.Normal(0.0, 1.0).expand([5]), "noise": dist.HalfNormal(1.0)},
        unknown_noise,
        Y,
        "third derivative in 'noise' does not vanish",
    ),
    "logistic": ({"w": dist.Normal(0.0, 1.0).expand([5])}, logistic, (Y > 0).astype(int), "third derivative in 'w'"),
    "heavy prior": ({"w": dist.StudentT(4.0).expand([5])}, likelihood, Y, "third derivative in 'w'"),
}


@pytest.mark.parametrize("name", WITHOUT_CLOSED_FORM)
def test_other_models_are_refused_with_the_reason(name):
    prior, outcome, y, message = WITHOUT_CLOSED_FORM[name]
    with pytest.raises(CredoError, match=message) as error:
        fit(Model(prior, outcome).given(X, y), Exact(), progress=False)
    assert "Laplace()" in str(error.value)


def test_a_product_of_parameters_is_told_from_a_curved_one():
    model = Model(
        {"w": dist.Normal(0.0, 1.0).expand([5]), "b": dist.Normal(1.0, 1.0)},
        lambda params, x: dist.Normal(x @ params["w"] * params["b"], 0.5),
    )
    with pytest.raises(CredoError, match="product of parameters"):
        fit(model.given(X, Y), Exact(), progress=False)


@pytest.mark.parametrize(
    ("f", "is_quadratic"),
    [
        (lambda u: -jnp.sum((u - 3.0) ** 2), True),
        (lambda u: -jnp.sum((u - 3.0) ** 2) - 1e-5 * u[0] ** 4, False),
        (lambda u: -jnp.sum(jnp.where(jnp.abs(u) < 3.0, 0.5 * u**2, 3.0 * jnp.abs(u) - 4.5)), False),  # Huber
        (lambda u: -jnp.sum(u**2) - 0.1 * u[0] ** 3, False),
    ],
    ids=["quadratic", "a little quartic", "quadratic near the origin only", "cubic"],
)
def test_quadratics_are_told_from_others(f, is_quadratic):
    with double():
        assert (quadratic(jax.tree_util.Partial(f), 3).residual < 1e-8) == is_quadratic


def test_third_derivatives_are_found_in_the_block_that_has_them():
    with double():
        f = jax.tree_util.Partial(lambda u: -(u[0] ** 2) - u[1] ** 4)
        found = third_derivatives(f, 2, [slice(0, 1), slice(1, 2)])
    assert found[0] < 1e-12 < 1e-3 < found[1]


@pytest.mark.parametrize(
    ("prior", "outcome", "y"),
    [
        (
            dist.Normal(0.0, 1.0),
            lambda params, x: dist.Uniform(params["w"] - 1.0, params["w"] + 1.0).expand([1]),
            [0.9],
        ),
        (dist.Normal(0.0, 1.0), lambda params, x: dist.Uniform(params["w"] - 10, params["w"] + 10).expand([1]), [9.0]),
        (dist.Gamma(5.0, 1.0), lambda params, x: dist.Uniform(0.0, params["w"]).expand([2]), [0.1, 0.7]),
    ],
    ids=["near", "far", "gamma"],
)
def test_an_edge_that_parameters_move_is_no_closed_form(prior, outcome, y):
    """The log density is quadratic, or that of a gamma, wherever it is finite."""
    with pytest.raises(CredoError, match="move the edge of the values that outcomes can have"):
        fit(Model({"w": prior}, outcome).given(y=np.array(y)), Exact())


@pytest.mark.parametrize("edge", [0.3, 3.0, 25.0])
def test_a_quadratic_that_ends_somewhere_is_no_closed_form(edge):
    def log_density(params):
        return jnp.where(params["w"] < edge, -0.5 * params["w"] ** 2, -jnp.inf)

    target = Model.from_log_density(log_density, {"w": constraints.real}, {"w": ()}).given()
    with pytest.raises(CredoError, match="No closed form is known"):
        fit(target, Exact())


def test_a_conjugate_density_that_is_another_where_it_has_mass_is_no_closed_form():
    """The gamma that holds above 0.7 has 4 % of its mass below."""

    def likelihood(params, x):
        return dist.Exponential(jnp.maximum(params["rate"], 0.7)).expand([2])

    with pytest.raises(CredoError, match="No closed form is known"):
        fit(Model({"rate": dist.Gamma(2.0, 1.0)}, likelihood).given(y=np.array([0.1, 0.7])), Exact())


@pytest.mark.parametrize("offset", [0.0, 1e7, 1e8, 1e9, 1e10])
def test_numbers_far_from_zero_are_no_error_of_the_answer(offset):
    """Those near 10⁹ have seven digits after the point; what they lose had counted against the closed form."""
    y = np.round(10.0 * np.random.default_rng(0).normal(size=30))
    model = Model({"m": dist.Normal(offset, 10.0)}, lambda params, x: dist.Normal(params["m"], 10.0).expand([30]))
    posterior = fit(model.given(y=offset + y), Exact())
    assert posterior.verdict.status == "pass"
    precision = 31 / 10.0**2
    assert abs(posterior.mean()["m"] - offset - y.sum() / 31) * np.sqrt(precision) < 1e-15 * max(offset, 1.0)
    np.testing.assert_allclose(posterior.sd()["m"], precision**-0.5, rtol=1e-12)
    covariance = 100.0 * (np.eye(30) + 1.0)
    wanted = multivariate_normal(np.zeros(30), covariance).logpdf(y)
    np.testing.assert_allclose(posterior.log_evidence.value, wanted, rtol=1e-9)


def test_terms_that_cancel_are_no_error_of_the_answer():
    """Counts near 10⁷: terms of 10⁹ nats, which leave 10⁻⁶ of rounding where −290 is what is left of them."""
    y = np.random.default_rng(0).poisson(1e7, size=30)
    model = Model({"rate": dist.Gamma(1e7, 1.0)}, lambda params, x: dist.Poisson(params["rate"]).expand([30]))
    posterior = fit(model.given(y=y), Exact())
    assert posterior.info["route"] == "conjugate"
    np.testing.assert_allclose(posterior.mean()["rate"], (1e7 + y.sum()) / 31, rtol=1e-12)
    np.testing.assert_allclose(posterior.sd()["rate"], np.sqrt(1e7 + y.sum()) / 31, rtol=1e-9)
    assert posterior.log_evidence.value == pytest.approx(-289.628296, abs=1e-4)  # by 50 digits


def test_rounding_is_no_excuse_for_what_is_not_conjugate():
    """Far from zero a small third derivative is still told from rounding."""
    model = Model({"m": dist.StudentT(1e5, 1e7, 10.0)}, lambda params, x: dist.Normal(params["m"], 10.0).expand([30]))
    with pytest.raises(CredoError, match="No closed form is known"):
        fit(model.given(y=1e7 + 10.0 * np.random.default_rng(0).normal(size=30)), Exact())


@pytest.mark.parametrize(("dim", "place", "y"), [(5, 2, -2.2), (6, 5, 1.7), (8, 1, 2.3), (11, 2, 1.5), (15, 0, -1.2)])
def test_a_kink_on_one_side_of_one_coordinate_is_seen(dim, place, y):
    """Eight positions, on one side each, passed these as exact; the other coordinates are quadratic."""
    names = [f"w{k:02d}" for k in range(dim)]
    prior = {n: dist.Laplace(0.0, 1.0) if k == place else dist.Normal(0.0, 1.0) for k, n in enumerate(names)}
    model = Model(prior, lambda p, x: dist.Normal(jnp.stack([p[n] for n in names]), 1.0).to_event(1))
    with pytest.raises(CredoError, match="No closed form is known"):
        fit(model.given(y=y * np.eye(dim)[place : place + 1]), Exact())


@pytest.mark.parametrize("dim", [1, 2, 5, 11, 23, 24, 100, 499])
def test_every_coordinate_is_tried_far_out_on_both_sides(dim):
    """Where a kink may hide beyond, there is no mass."""
    tried = _tried(dim)
    assert tried.max(axis=0).min() > 10
    assert tried.min(axis=0).max() < -10


def test_a_prior_with_a_mode_far_from_the_first_has_no_closed_form():
    """Quadratic to 64 sds about zero, and a second normal at 150: the posterior mean is 75."""
    two = dist.MixtureSameFamily(dist.Categorical(np.full(2, 0.5)), dist.Normal(np.array([0.0, 150.0]), 1.0))
    model = Model({"m": two}, lambda params, x: dist.Normal(params["m"], 1e4))
    with pytest.raises(CredoError, match="elsewhere in the prior"):
        fit(model.given(y=np.array([0.0])), Exact(), progress=False)


def test_a_prior_that_cannot_be_drawn_from_needs_no_draws():
    class Density(dist.Distribution):
        support, arg_constraints = constraints.real, {}

        def log_prob(self, value):
            return -0.5 * value**2 - 0.5 * np.log(2 * np.pi)

    model = Model({"w": Density()}, lambda params, x: dist.Normal(params["w"] * x, 1.0))
    known = Model({"w": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["w"] * x, 1.0))
    one, other = (fit(each.given(X[:, 0], Y), Exact(), progress=False) for each in (model, known))
    assert one.log_evidence.value == pytest.approx(other.log_evidence.value)
