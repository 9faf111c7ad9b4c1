"""Priors as users write them: hierarchies, pytrees, names, draws, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import ImproperUniform, constraints
from scipy import stats

from credo.model.model import Model
from credo.precision import double
from credo.status import CredoError

HIERARCHY = {
    "mu": dist.Normal(0.0, 5.0),
    "tau": dist.HalfCauchy(5.0),
    "theta": lambda mu, tau: dist.Normal(mu, tau).expand([3]),
}


@jax.jit
def log_prior(target, u):
    return target.log_prior(u)


def test_hierarchy_by_hand():
    """log N(mu) + log HalfCauchy(tau) + log tau + Σ log N(theta | mu, tau), by scipy."""
    target = Model(HIERARCHY, None).given().flat()
    u = np.array([1.0, -0.5, 0.3, 2.0, -1.0])
    tau = np.exp(u[1])
    expected = (
        stats.norm.logpdf(1.0, 0, 5)
        + stats.halfcauchy.logpdf(tau, scale=5)
        + u[1]
        + stats.norm.logpdf(u[2:], 1.0, tau).sum()
    )
    with double():
        np.testing.assert_allclose(log_prior(target, u), expected, rtol=1e-12)


NESTED = {
    "net": {"w": [dist.Normal(0.0, 1.0).expand([2, 3]), dist.Normal(0.0, 2.0)], "b": dist.Gamma(2.0, 1.0)},
    "pair": lambda net: {"left": dist.Normal(net["b"], 1.0), "right": dist.Uniform(0.0, net["b"])},
}


def test_nested_pytree():
    """Values of a dict may be pytrees, also those of a callable; names are paths and the structure is kept."""
    target = Model(NESTED, None).given()
    names = ["net.b", "net.w.0", "net.w.1", "pair.left", "pair.right"]
    assert [leaf.name for leaf in target.structure.leaves] == names
    assert target.dim == 6 + 4
    with double():
        u = np.random.default_rng(0).normal(size=target.dim)
        params = target.flat().constrain(u)
        assert params["net"]["w"][0].shape == (2, 3)
        assert 0 < params["pair"]["right"] < params["net"]["b"]
        np.testing.assert_allclose(target.flat().unconstrain(params), u, atol=1e-12)
        leaves = target.prior.leaves(params)
        assert jax.tree.structure(target.structure.assemble(leaves)) == jax.tree.structure(params)


def test_prior_that_is_no_dict():
    target = Model([dist.Normal(0.0, 1.0).expand([2]), dist.HalfNormal(1.0)], None).given()
    assert [leaf.name for leaf in target.structure.leaves] == ["0", "1"]
    assert target.prior.names is None
    with double():
        params = target.flat().constrain(np.zeros(3))
        assert isinstance(params, list)
        np.testing.assert_allclose(target.flat().unconstrain(params), np.zeros(3), atol=1e-12)


def test_draws_have_the_moments_of_the_prior():
    """a ~ Exp(½), b | a ~ N(a, 1), c | a ~ U(0, a): exact moments within 4.5 standard errors (false alarms 5e-5)."""
    n = 4_000
    prior = {
        "a": dist.Exponential(0.5),
        "b": lambda a: dist.Normal(a, 1.0).expand([2]),
        "c": lambda a: dist.Uniform(0.0, a),
    }
    draws = Model(prior, None, derived={"twice": lambda a: 2 * a}).sample_prior(7, n)
    assert set(draws) == {"a", "b", "c", "twice"}
    assert draws["b"].shape == (n, 2)
    assert draws["b"].dtype == np.float64
    # Var c = E[a²]/12 + Var(a)/4 = 8/12 + 1
    for name, mean, variance in (("a", 2.0, 4.0), ("twice", 4.0, 16.0), ("b", 2.0, 5.0), ("c", 1.0, 5 / 3)):
        assert np.all(np.abs(draws[name].mean(axis=0) - mean) < 4.5 * np.sqrt(variance / n)), name
        np.testing.assert_allclose(draws[name].var(axis=0), variance, rtol=0.25)
    # two draws at one a are independent given it; the standard error of a correlation is at most 1/√n
    assert abs(np.corrcoef(draws["a"], draws["b"][:, 0])[0, 1] - np.sqrt(4 / 5)) < 4.5 / np.sqrt(n)
    assert abs(np.corrcoef(draws["b"].T)[0, 1] - 4 / 5) < 4.5 / np.sqrt(n)
    assert np.all((draws["c"] > 0) & (draws["c"] < draws["a"]))


@jax.jit
def draw(prior, key):
    params, u = prior.sample(key)
    return params, prior.constrain(u)


def test_a_position_by_other_names_is_said():
    target = Model({"net": {"w": dist.Normal(0.0, 1.0), "b": dist.Normal(0.0, 1.0)}}, None).given()
    assert np.isfinite(target.log_density({"net.w": 0.3, "net.b": 0.1}))
    for wrong, got in (({"net": {"w": 0.3, "b": 0.1}}, "the names net"), (np.zeros(2), "ndarray")):
        with pytest.raises(CredoError, match=rf"by parameter \(net.b, net.w\) of .* and got {got}"):
            target.log_density(wrong)


def test_position_of_a_prior_draw():
    prior = {"a": dist.Exponential(0.5), "b": lambda a: dist.Uniform(-a, a).expand([3])}
    with double():
        params, again = draw(Model(prior, None).prior, jax.random.key(1))
    for one, other in zip(jax.tree.leaves(params), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_improper_priors_have_no_draws():
    model = Model({"a": dist.Normal(0.0, 1.0), "b": ImproperUniform(constraints.positive, (), ())}, None)
    assert model.prior.improper_names() == ("b",)
    with pytest.raises(CredoError, match="'b' has an improper prior"):
        model.sample_prior(0, 2)
    with double():  # flat in b, hence its log-Jacobian alone
        np.testing.assert_allclose(
            log_prior(model.given().flat(), np.array([0.5, -1.5])), stats.norm.logpdf(0.5) - 1.5, rtol=1e-12
        )


@pytest.mark.parametrize(
    ("prior", "sentence"),
    [
        ({"b": lambda a: dist.Normal(a, 1.0)}, "depends on 'a', which is not an earlier parameter"),
        ({"b": 3.0}, "The prior of 'b' is float"),
        ({"b": {"c": "x"}}, "The prior of 'b.c' is str"),
        ({1: dist.Normal(0.0, 1.0)}, "names must be strings"),
        ({"s": dist.ProjectedNormal(np.ones(2))}, "no bijection"),
        ({"w": dist.Normal(0.0, np.array([1.0, np.inf]))}, "hyperparameter that is inf"),
        ({"w": dist.Uniform(2.0, 1.0)}, "lower end 2.0 is not below its upper end 1.0"),
    ],
)
def test_refused(prior, sentence):
    with pytest.raises(CredoError, match=sentence):
        Model(prior, None)


@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_scale_not_positive(scale):
    with pytest.raises(ValueError, match="scale"):
        Model({"w": dist.Normal(0.0, scale)}, None)


def test_an_argument_with_a_default_is_no_parameter():
    prior = {"a": dist.HalfNormal(1.0), **{f"b{k}": lambda a, k=k: dist.Normal(float(k), a) for k in range(2)}}
    model = Model(prior, None, derived={"c": lambda a, factor=2.0: factor * a})
    with double():
        expected = stats.halfnorm.logpdf(1.0) + stats.norm.logpdf(0.5) + stats.norm.logpdf(0.5, 1.0)
        np.testing.assert_allclose(log_prior(model.given().flat(), np.array([0.0, 0.5, 0.5])), expected, rtol=1e-12)
        assert model.report({"a": 3.0, "b0": 0.0, "b1": 0.0})["c"] == 6.0


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda a: 1 / 0, "cannot be had: ZeroDivisionError, division by zero"),
        (lambda a: float(a), "ConcretizationTypeError.*neither float"),
        (lambda a: {"twice": 2 * a}, "returns one array of numbers"),
        (lambda a: "text", "returns one array of numbers"),
        (3.0, "is a function of named parameters; got 3.0"),
    ],
)
def test_derived_quantities_are_arrays(function, sentence):
    with pytest.raises(CredoError, match=f"'b'.*{sentence}"):
        Model({"a": dist.Normal(0.0, 1.0)}, None, derived={"b": function})


def test_names_are_not_given_twice():
    with pytest.raises(CredoError, match=r"Two parameters are called 'a\.w'"):
        Model({"a": {"w": dist.Normal(0.0, 1.0)}, "a.w": dist.Normal(0.0, 1.0)}, None)


def test_the_name_of_an_entry_is_no_name_of_a_parameter():
    with pytest.raises(CredoError, match=r"A parameter is called 'w\[0\]', as an entry of 'w' is: rename it"):
        Model({"w": dist.Normal(0.0, 1.0).expand([3]), "w[0]": dist.Normal(5.0, 1.0)}, None)
    assert Model({"w": dist.Normal(0.0, 1.0), "w[0]": dist.Normal(5.0, 1.0)}, None).given().dim == 2


def test_derived_quantities_name_parameters():
    with pytest.raises(CredoError, match="names 'c', which is no parameter"):
        Model({"a": dist.Normal(0.0, 1.0)}, None, derived={"b": lambda c: c})
    with pytest.raises(CredoError, match="has the name of a parameter"):
        Model({"a": dist.Normal(0.0, 1.0)}, None, derived={"a": lambda a: a})


def test_hyperparameters_are_arguments_of_compiled_code():
    """Another scale, same structure: nothing is traced again."""
    with double():
        for scale in (1.0, 2.0, 3.0):
            value = log_prior(Model({"a": dist.Normal(0.0, scale)}, None).given().flat(), np.array([0.7]))
            np.testing.assert_allclose(value, stats.norm.logpdf(0.7, 0, scale), rtol=1e-12)
    assert jax.tree.structure(Model({"a": dist.Normal(0.0, 1.0)}, None)) == jax.tree.structure(
        Model({"a": dist.Normal(5.0, 2.0)}, None)
    )


def test_parameters_that_are_missing():
    with double(), pytest.raises(CredoError, match="lack 'tau'"):
        Model(HIERARCHY, None).given().unconstrain({"mu": jnp.zeros(())})


@pytest.mark.parametrize(
    ("whole", "number"),
    [
        (lambda: dist.Beta(500, 400), stats.beta(500, 400).logpdf(0.55)),
        (lambda: dist.Gamma(500, 900), stats.gamma(500, scale=1 / 900).logpdf(0.55)),
        (lambda: dist.Dirichlet(jnp.array([500, 400])), stats.beta(500, 400).logpdf(0.55)),
    ],
    ids=["Beta", "Gamma", "Dirichlet"],
)
def test_whole_numbers_as_hyperparameters_are_exact(whole, number):
    """JAX has the special functions of 32-bit whole numbers in single precision."""
    value = np.array([0.55, 0.45]) if isinstance(whole(), dist.Dirichlet) else np.array(0.55)
    with double():
        found = Model({"p": whole()}, None).given()
        u = found.unconstrain({"p": value})
        assert float(found.log_density(u) - found.log_jacobian(u)) == pytest.approx(number, rel=1e-11)
