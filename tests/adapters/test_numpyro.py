"""NumPyro models as they are: the same log density as NumPyro's own, site by site, over a table of programs."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro import handlers
from numpyro.contrib.control_flow import cond, scan
from numpyro.distributions.transforms import OrderedTransform
from numpyro.infer.reparam import LocScaleReparam, TransformReparam
from numpyro.infer.util import log_density, potential_energy
from scipy import stats

import credo
from credo.adapters import from_numpyro
from credo.precision import double, to_numpy
from credo.status import CredoError

rng = np.random.default_rng(5)
X, Y = rng.normal(size=(5, 2)), rng.normal(size=5)
SIGMA = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
EFFECT = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
GAPS = np.where(np.arange(5) == 2, np.nan, Y)


def eight_schools(J, sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("J", J):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("obs", dist.Normal(theta, sigma), obs=y)


def regression(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    s = numpyro.sample("s", dist.LogNormal(0, 1))
    mean = numpyro.deterministic("mean", x @ w)
    with numpyro.plate("N", len(x)):
        numpyro.sample("obs", dist.Normal(mean, s), obs=y)


def nested_plates(y):
    with numpyro.plate("I", 3, dim=-1):
        a = numpyro.sample("a", dist.Normal(0, 1))
        with numpyro.plate("N", 4, dim=-2):
            b = numpyro.sample("b", dist.Exponential(jnp.exp(a)))
            numpyro.sample("obs", dist.Normal(b, 1), obs=y)


def masked(y, mask):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("N", len(y)), handlers.mask(mask=mask):
        numpyro.sample("obs", dist.Normal(mu, 1), obs=y)


def factors(y):
    """A factor, a soft constraint and a likelihood written as a factor."""
    a = numpyro.sample("a", dist.Normal(0, 1).expand([2]))
    numpyro.factor("quartic", -jnp.sum(a**4))
    numpyro.sample("soft", dist.Normal(0, 0.1), obs=jnp.sum(a))
    with numpyro.plate("N", len(y)):
        numpyro.factor("rows", -((y - a[0]) ** 2))


def lkj(y):
    L = numpyro.sample("L", dist.LKJCholesky(3, 2.0))
    s = numpyro.sample("s", dist.HalfNormal(1).expand([3]).to_event(1))
    with numpyro.plate("N", len(y)):
        numpyro.sample("obs", dist.MultivariateNormal(0, scale_tril=s[:, None] * L), obs=y)


def ordered(y):
    cut = numpyro.sample("cut", dist.TransformedDistribution(dist.Normal(0, 1).expand([3]), OrderedTransform()))
    eta = numpyro.sample("eta", dist.Normal(0, 1))
    numpyro.sample("obs", dist.OrderedLogistic(eta * jnp.ones(len(y)), cut), obs=y)


def dependent_supports(y):
    top = numpyro.sample("top", dist.HalfNormal(2))
    x = numpyro.sample("x", dist.Uniform(0, top).expand([3]))
    p = numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))
    low = numpyro.sample("low", dist.TruncatedNormal(0, 1, low=x[0]))
    numpyro.sample("obs", dist.Normal((x * p).sum() + low, 1).expand([len(y)]), obs=y)


def two_outcomes(x, y1=None, y2=None):
    w = numpyro.sample("w", dist.Normal(0, 1))
    numpyro.sample("cost", dist.Normal(w * x, 1), obs=y1)
    numpyro.sample("count", dist.Poisson(jnp.exp(w * x)), obs=y2)


def state_space(y):
    s = numpyro.sample("s", dist.HalfNormal(1))
    x0 = numpyro.sample("x0", dist.Normal(0, 1))

    def step(c, yt):
        z = numpyro.sample("z", dist.LogNormal(c, s))
        numpyro.deterministic("twice", 2 * z)
        numpyro.sample("obs", dist.Normal(z, 1), obs=yt)
        return jnp.log(z), None

    scan(step, x0, y)


def branches(y):
    a = numpyro.sample("a", dist.Normal(0, 1))

    def small(_):
        return numpyro.sample("b", dist.Normal(0, 1))

    def large(_):
        return numpyro.sample("b", dist.Normal(3, 2))

    b = cond(len(y) > 3, large, small, None)
    numpyro.sample("obs", dist.Normal(a + b, 1), obs=y)


def values_are_read(group, y):
    """Python code reads the data: the number of groups is a constant of the program."""
    with numpyro.plate("K", len(np.unique(group))):
        a = numpyro.sample("a", dist.Normal(0, 1))
    numpyro.sample("obs", dist.Normal(a[group], 1), obs=y)


def sample_shape(y):
    a = numpyro.sample("a", dist.HalfNormal(np.array([1.0, 2.0])), sample_shape=(3,))
    numpyro.sample("obs", dist.Normal(a.sum(), 1), obs=y)


def one_number(y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.sample("obs", dist.Normal(mu, 1), obs=y[0])


def local_latents(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("N", len(x)):
        z = numpyro.sample("z", dist.Gamma(2.0, 2.0))
        numpyro.sample("obs", dist.Normal(x @ w, z), obs=y)


def not_centred(J, sigma, y=None):
    return handlers.reparam(eight_schools, config={"theta": LocScaleReparam(0)})(J, sigma, y)


def transformed(y):
    with handlers.reparam(config={"s": TransformReparam()}):
        base = dist.TransformedDistribution(dist.Normal(0, 1), dist.transforms.ExpTransform())
        s = numpyro.sample("s", base)
    numpyro.sample("obs", dist.Normal(0, s).expand([len(y)]), obs=y)


# name: program, its arguments, (rows, factors of the likelihood, head)
PROGRAMS = {
    "eight schools": (eight_schools, (8, SIGMA, EFFECT), (8, 8, "normal")),
    "regression": (regression, (X, Y), (5, 5, "normal")),
    "nested plates": (nested_plates, (rng.normal(size=(4, 3)),), (4, 4, "columns of normal")),
    "mask": (masked, (GAPS, np.isfinite(GAPS)), (5, 5, None)),
    "factor": (factors, (Y,), (0, 0, None)),
    "lkj": (lkj, (rng.normal(size=(6, 3)),), (6, 6, None)),
    "ordered": (ordered, (np.array([0, 1, 2, 3, 1]),), (5, 5, None)),
    "dependent supports": (dependent_supports, (Y,), (5, 5, "normal")),
    "two outcomes": (two_outcomes, (Y, Y, np.arange(5)), (5, 5, None)),
    "outcomes of different lengths": (two_outcomes, (np.ones(1), Y, np.arange(3)), (8, 1, None)),
    "scan": (state_space, (Y,), (5, 5, "normal")),
    "cond": (branches, (Y,), (5, 5, None)),
    "values are read": (values_are_read, (np.array([0, 1, 1, 2, 0]), Y), (5, 5, "normal")),
    "sample_shape": (sample_shape, (Y,), (5, 5, None)),
    "one number": (one_number, (Y,), (1, 1, None)),
    "local latents": (local_latents, (X, Y), (5, 5, "normal")),
    "reparam": (not_centred, (8, SIGMA, EFFECT), (8, 8, "normal")),
    "reparam by transform": (transformed, (Y,), (5, 5, "normal")),
}


@jax.jit
def parts(target, u):
    params = target.constrain(u)
    jacobian, back = target.log_jacobian(u), target.unconstrain(params)
    return target.log_density(u), params, jacobian, back, target.model.report(params)


def compare(target, fn, arguments):
    """(ours, NumPyro's joint density plus our log-Jacobian, NumPyro's potential) at a random position."""
    with double():
        target = target.flat()
        u = 0.5 * np.random.default_rng(1).normal(size=target.dim)
        ours, params, jacobian, back, report = to_numpy(parts(target, u))
        np.testing.assert_allclose(back, u, atol=1e-9)
        theirs = jax.jit(lambda params: log_density(fn, arguments, {}, params)[0])(params)
        potential = jax.jit(lambda u: potential_energy(fn, arguments, {}, u))(target.structure.unravel(jnp.asarray(u)))
        return ours, float(theirs) + jacobian, -float(potential), report


@pytest.mark.parametrize("name", PROGRAMS)
def test_density_is_numpyros(name):
    fn, arguments, (size, num_terms, head) = PROGRAMS[name]
    target = from_numpyro(fn, *arguments).given()
    ours, theirs, potential, _ = compare(target, fn, arguments)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    np.testing.assert_allclose(ours, potential, rtol=1e-12)
    assert (target.size, target.num_terms) == (size, num_terms)
    assert (target.head.name if target.head else None) == head


# subsampling ----------------------------------------------------------------------------------------------------------


def subsampled_by_index(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("N", len(x), subsample_size=3) as i:
        z = numpyro.sample("z", dist.Gamma(2.0, 2.0))
        numpyro.sample("obs", dist.Normal(x[i] @ w, z), obs=y[i])


def subsampled_by_primitive(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("N", len(x), subsample_size=3):
        x, y = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
        z = numpyro.sample("z", dist.Gamma(2.0, 2.0))
        numpyro.sample("obs", dist.Normal(x @ w, z), obs=y)


@pytest.mark.parametrize("fn", [subsampled_by_index, subsampled_by_primitive])
def test_subsampling_plates_take_all_rows(fn):
    """No key, no scale: the density of the same model without subsampling."""
    ours, theirs, _, _ = compare(from_numpyro(fn, X, Y).given(), local_latents, (X, Y))
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_a_batch_passed_for_the_whole():
    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("N", 100, subsample_size=len(x)):
            numpyro.sample("obs", dist.Normal(w * x, 1), obs=y)

    with pytest.raises(CredoError, match="all 100 rows of the subsampling plate 'N'"):
        from_numpyro(model, Y, Y)


# scale ----------------------------------------------------------------------------------------------------------------


def scaled(y):
    with handlers.scale(scale=2.0):
        s = numpyro.sample("s", dist.HalfNormal(1.0))
    with numpyro.plate("N", len(y)), handlers.scale(scale=3.5):
        numpyro.sample("obs", dist.Normal(0, s), obs=y)


def test_scale():
    """The joint density is NumPyro's. Its potential also scales the log-Jacobian, which is no density of s."""
    target = from_numpyro(scaled, Y).given()
    ours, theirs, _, _ = compare(target, scaled, (Y,))
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    u = np.array([0.3])
    s = np.exp(0.3)
    expected = 2 * stats.halfnorm.logpdf(s) + 3.5 * stats.norm.logpdf(Y, 0, s).sum() + 0.3
    with double():
        np.testing.assert_allclose(parts(target.flat(), u)[0], expected, rtol=1e-12)
        # a scale weighs evidence; a new datum counts once
        np.testing.assert_allclose(
            target.likelihood_distribution({"s": s}, None).log_prob(Y), stats.norm.logpdf(Y, 0, s), rtol=1e-12
        )


# calling forms, prediction --------------------------------------------------------------------------------------------

W = {"w": np.array([0.5, -1.0]), "s": np.array(2.0)}


@jax.jit
def density(target, u, batch=None):
    return target.log_density(u, batch)


FORMS = {
    "all bound": lambda: from_numpyro(regression, X, Y).given(),
    "all given": lambda: from_numpyro(regression).given(X, Y),
    "x bound": lambda: from_numpyro(regression, X).given(y=Y),
    "y bound": lambda: from_numpyro(regression, y=Y).given(X),
    "given again": lambda: from_numpyro(regression, 2 * X, Y + 1).given(X, Y),
    "a target's model given again": lambda: from_numpyro(regression).given(2 * X, Y + 1).model.given(X, Y),
}


@pytest.mark.parametrize("form", FORMS)
def test_calling_forms(form):
    target = FORMS[form]()
    with double():
        u = target.flat().unconstrain(W)
        mean = X @ W["w"]
        expected = (
            stats.norm.logpdf(W["w"]).sum() + stats.norm.logpdf(np.log(2.0)) + stats.norm.logpdf(Y, mean, 2.0).sum()
        )  # a log-normal's Jacobian cancels
        np.testing.assert_allclose(density(target.flat(), u), expected, rtol=1e-12)
        new = np.ones((2, 2))
        np.testing.assert_allclose(target.likelihood_distribution(W, new).loc, [-0.5, -0.5])
        np.testing.assert_allclose(target.likelihood_distribution(W, {"x": new}).loc, [-0.5, -0.5])
        np.testing.assert_allclose(target.likelihood_distribution(W, target.x).loc, mean)
        np.testing.assert_allclose(target.model.report(W)["mean"], mean)
    np.testing.assert_array_equal(target.y, Y)


def test_a_second_target_compiles_nothing():
    count = []

    def model(x, y=None):
        count.append(None)
        regression(x, y)

    with double():
        for factor in (1.0, 2.0):
            target = from_numpyro(model).given(factor * X, Y + factor).flat()
            before = len(count)
            density(target, np.zeros(3))
            traced = len(count) - before
    assert traced == 0


def test_draws():
    model = from_numpyro(regression, X, Y)
    draws = model.sample_prior(0, 2_000)
    assert draws["mean"].shape == (2_000, 5)
    assert np.all(np.abs(draws["w"].mean(axis=0)) < 4.5 / np.sqrt(2_000))
    drawn = model.sample_prior_predictive(0, np.ones((3, 2)), 10)
    assert drawn.shape == (10, 3)
    scanned = from_numpyro(state_space, Y).sample_prior(0, 500)["z"]
    assert scanned.shape == (500, 5)
    assert abs(np.corrcoef(np.log(scanned[:, 0]), np.log(scanned[:, 4]))[0, 1]) < 0.9  # steps have keys of their own


def test_minibatches():
    """By rows of given(x, y); what is bound, or mixes rows, is refused."""
    target = from_numpyro(regression).given(X, Y)
    target.check_minibatch(2)
    with double():
        u = target.flat().unconstrain(W)
        singles = [float(density(target.flat(), u, np.array([i]))) for i in range(5)]
        np.testing.assert_allclose(np.mean(singles), density(target.flat(), u), rtol=1e-12)
    with pytest.raises(CredoError, match="must come in through given"):
        from_numpyro(regression, X, Y).given().check_minibatch(2)

    def grouped(x, y=None):
        regression(x["rows"] * x["scale"], y)

    with pytest.raises(CredoError, match="arrays of other lengths than the 5 rows"):
        from_numpyro(grouped).given({"rows": X, "scale": np.ones(2)}, Y).check_minibatch(2)

    def centred(x, y=None):
        regression(x - x.mean(axis=0), y)

    with pytest.raises(CredoError, match="rows beside it"):
        from_numpyro(centred).given(X, Y).check_minibatch(2)


def test_weights():
    counts = np.array([1.0, 0, 2, 1, 3])
    repeated = from_numpyro(regression).given(
        np.repeat(X, counts.astype(int), axis=0), np.repeat(Y, counts.astype(int))
    )
    weighted = from_numpyro(regression).given(X, Y, weights=counts)
    with double():
        u = np.array([0.3, -0.2, 0.1])
        np.testing.assert_allclose(density(weighted.flat(), u), density(repeated.flat(), u), rtol=1e-12)
    with pytest.raises(CredoError, match="3 weights and 5 factors"):
        from_numpyro(regression).given(X, Y, weights=np.ones(3))


# parts ----------------------------------------------------------------------------------------------------------------


def test_parts_of_the_prior():
    prior = from_numpyro(factors, Y).given().prior
    assert prior.factors == ("quartic", "soft", "rows")
    assert prior.improper_names() == ("quartic", "soft", "rows")
    target = from_numpyro(not_centred, 8, SIGMA, EFFECT).given()
    assert [leaf.name for leaf in target.structure.leaves] == ["mu", "tau", "theta_decentered"]
    assert [name for name, _ in target.model.derived_functions] == ["theta"]
    params = {"mu": 1.0, "tau": 2.0, "theta_decentered": np.ones(8)}
    with double():
        np.testing.assert_allclose(target.model.report(params)["theta"], 3.0 * np.ones(8))


def test_missing_observations_have_their_distribution_where_they_are_seen():
    """NumPyro's obs_mask leaves a latent site without density at the rows that are observed, which nobody reads."""

    def model(y, seen):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("N", len(y)):
            numpyro.sample("y", dist.Normal(mu, 1), obs=y, obs_mask=seen)

    seen = np.isfinite(GAPS)
    target = from_numpyro(model, np.nan_to_num(GAPS), seen).given()
    assert target.prior.improper_names() == ()
    posterior = credo.fit(target, credo.Laplace(), key=jax.random.key(0))
    exact = credo.fit(
        credo.Model({"mu": dist.Normal(0, 1)}, lambda params, x: dist.Normal(params["mu"], 1)).given(y=GAPS[seen]),
        credo.Exact(),
        key=jax.random.key(0),
    )
    np.testing.assert_allclose(posterior.mean()["mu"], exact.mean()["mu"], atol=1e-6)
    np.testing.assert_allclose(posterior.sd()["mu"], exact.sd()["mu"], rtol=1e-6)
    np.testing.assert_allclose(posterior.log_evidence.value, exact.log_evidence.value, rtol=1e-6)


def test_other_masks_stay_as_they_are():
    """A density to a power has no integral of one; and a site may be called as it likes."""

    def scaled(y, seen):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.handlers.scale(scale=0.5):
            numpyro.sample("y", dist.Normal(mu, 1), obs=y, obs_mask=seen)

    seen = np.isfinite(GAPS)
    assert from_numpyro(scaled, np.nan_to_num(GAPS), seen).given().prior.improper_names() == ("y_unobserved",)

    def named(y):
        numpyro.sample("x_observed", dist.Normal(0, 1), obs=y)
        with numpyro.handlers.mask(mask=np.zeros(5, bool)):
            numpyro.sample("x", dist.Normal(5, 1).expand([5]))

    assert from_numpyro(named, Y).given().prior.improper_names() == ("x",)


def autoregression(y):
    a = numpyro.sample("a", dist.Uniform(-1, 1))
    with numpyro.plate("N", len(y)):
        numpyro.sample("y", dist.Normal(a * jnp.concatenate([jnp.zeros(1), y[:-1]]), 1), obs=y)


def scanned_autoregression(y):
    a = numpyro.sample("a", dist.Uniform(-1, 1))

    def step(before, now):
        numpyro.sample("y", dist.Normal(a * before, 1), obs=now)
        return now, None

    scan(step, y[0], y[1:])


def random_walk(y):
    s = numpyro.sample("s", dist.HalfNormal(1.0))

    def step(x, now):
        x = numpyro.sample("x", dist.Normal(x, s))
        numpyro.sample("y", dist.Normal(x, 0.5), obs=now)
        return x, None

    scan(step, 0.0, y)


def moved_autoregression(y):
    a = numpyro.sample("a", dist.Uniform(-1, 1))
    lag = jnp.concatenate([jnp.zeros(1), y[:-1]])
    shift = dist.transforms.AffineTransform(a * lag, 1.0)
    numpyro.sample("y", dist.TransformedDistribution(dist.Normal(jnp.zeros(len(y)), 1.0), shift), obs=y)


def about_the_mean(y):
    numpyro.sample("y", dist.Normal(numpyro.sample("a", dist.Normal(0, 1)) + y.mean(), 1).expand([len(y)]), obs=y)


def one_table(table):
    """Of outcomes and inputs: the latter are no outcomes."""
    a = numpyro.sample("a", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(a * table[:, 1], 1), obs=table[:, 0])


LEANING = [autoregression, scanned_autoregression, moved_autoregression, about_the_mean]


@pytest.mark.parametrize(
    ("program", "leans"), [(each, True) for each in LEANING] + [(random_walk, False), (one_table, False)]
)
def test_data_are_drawn_where_outcomes_do_not_lean_on_outcomes(program, leans):
    """Rows drawn at the lags of the data would be of no model."""
    target = from_numpyro(program, np.stack([Y, np.arange(5.0)], axis=1) if program is one_table else Y).given()
    drawn = [
        lambda: credo.diagnose.check_prior(target, np.mean, num_draws=10),
        lambda: target.model.sample_prior_predictive(jax.random.key(0), None, 2),
        lambda: credo.diagnose.sbc(target.model, credo.MAP(), num_simulations=1, key=0, progress=False),
    ]
    for draw in drawn[: 3 if leans else 2]:
        if leans:
            with pytest.raises(CredoError, match="computed from the outcomes seen"):
                draw()
        else:
            draw()


def two_outcomes(x, height=None, weight=None):
    b = numpyro.sample("b", dist.Normal(0, 2))
    numpyro.sample("h", dist.Normal(b * x, 1), obs=height)
    numpyro.sample("w", dist.Normal(3 * b * x, 1), obs=weight)


def test_one_of_several_outcomes_is_named():
    x = np.linspace(-1, 1, 5)
    with pytest.raises(CredoError, match="y may be 'height' or 'weight'"):
        from_numpyro(two_outcomes).given(x, x)
    both = from_numpyro(two_outcomes).given(x, {"weight": 3 * x, "height": x})
    assert both.model.prior.outcomes == ("h", "w")
    np.testing.assert_array_equal(both.y["w"], 3 * x)
    assert from_numpyro(two_outcomes).given(x, {"weight": 3 * x}).model.prior.outcomes == ("w",)
    assert from_numpyro(two_outcomes, height=x).given(x, 3 * x).model.prior.outcomes == ("h", "w")
    columns = {"height": pd.Series(x), "weight": pd.Series(3 * x)}
    again = from_numpyro(two_outcomes, x, x, x).given(x, columns)
    np.testing.assert_array_equal(again.y["w"], 3 * x)

    def optional(features=None, labels=None):
        numpyro.sample("y", dist.Normal(numpyro.sample("b", dist.Normal(0, 1)) * features, 1), obs=labels)

    np.testing.assert_array_equal(from_numpyro(optional).given(x, 2 * x).y, 2 * x)


def test_new_rows_have_no_value_of_a_site_that_has_one_a_row():
    def model(x, y=None):
        with numpyro.plate("N", len(x)):
            e = numpyro.sample("e", dist.Normal(0, 1))
            numpyro.sample("y", dist.Normal(x + e, 1), obs=y)

    posterior = credo.fit(from_numpyro(model).given(np.zeros(5), Y[:5]), credo.MAP(), key=jax.random.key(0))

    def counting(x, y=None):
        b = numpyro.sample("b", dist.Normal(0, 1).expand([3]))
        numpyro.sample("y", dist.Normal(x @ b + 0 * len(y), 1), obs=y)

    other = credo.fit(from_numpyro(counting).given(np.eye(3), Y[:3]), credo.MAP(), key=jax.random.key(0))
    with pytest.raises(CredoError, match="does not run at these inputs without y"):
        _ = other.predict(np.zeros((2, 3))).mean
    with pytest.raises(CredoError, match="'e' has one value for each row of the fit"):
        _ = posterior.predict(np.zeros(3)).mean


def test_a_joint_likelihood_leaves_out_what_outcomes_say_of_new_rows():
    """The prediction is that of another data set: of a Gaussian process no interpolation."""

    def process(x, y=None):
        v = numpyro.sample("v", dist.LogNormal(0.0, 0.05))
        cov = v * jnp.exp(-0.5 * (x[:, None] - x) ** 2) + 0.1 * jnp.eye(x.shape[0])
        numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(x.shape[0]), covariance_matrix=cov), obs=y)

    posterior = credo.fit(from_numpyro(process).given(np.arange(5.0), Y[:5]), credo.MAP(), key=jax.random.key(0))
    with pytest.warns(UserWarning, match="The likelihood is joint.*the 5 outcomes seen"):
        posterior.predict(np.arange(1.0) + 0.5)


def test_rows_of_one_event_are_apart_where_they_do_not_covary():
    def line(x, y=None):
        numpyro.sample("y", dist.Normal(numpyro.sample("b", dist.Normal(0, 1)) * x, 1).to_event(1), obs=y)

    posterior = credo.fit(from_numpyro(line).given(np.arange(5.0), Y[:5]), credo.MAP(), key=jax.random.key(0))
    assert posterior.predict(np.arange(3.0)).mean.shape == (3,)  # and no warning


def test_what_has_no_likelihood_says_why():
    def factors(y):
        a = numpyro.sample("a", dist.Normal(0, 1))
        numpyro.factor("data", jnp.sum(dist.Normal(a, 1).log_prob(y)))

    target = from_numpyro(factors, Y).given()
    with pytest.raises(CredoError, match="its data enter by log factors alone"):
        credo.fit(target, credo.MAP(), key=jax.random.key(0)).predict()
    with pytest.raises(CredoError, match="is a dict by parameter .a."):
        target.log_density(np.zeros(1))


def test_param_sites_keep_their_value():
    def model(y):
        numpyro.sample("y", dist.Normal(numpyro.param("p", 1.5), 1), obs=y)

    with pytest.warns(UserWarning, match="'p' keeps its initial value"):
        target = from_numpyro(model, Y).given()
    assert target.dim == 0


def test_what_python_reads_is_constant():
    program = from_numpyro(values_are_read, np.array([0, 1, 1, 2, 0]), Y).prior.program
    assert [constant is None for constant in program.constants] == [False, True]


@pytest.mark.parametrize("names", [np.array(["b", "a", "b", "b", "a"]), np.array(["b", "a", "b", "b", "a"], object)])
def test_text_is_constant(names):
    def model(names, y):
        levels, codes = np.unique(names, return_inverse=True)
        with numpyro.plate("levels", len(levels)):
            a = numpyro.sample("a", dist.Normal(0, 1))
        numpyro.sample("obs", dist.Normal(a[codes], 1), obs=y)

    target = from_numpyro(model, names, Y).given()
    with double():
        u = np.array([1.0, 2.0])
        expected = stats.norm.logpdf(u).sum() + stats.norm.logpdf(Y, u[[1, 0, 1, 1, 0]]).sum()
        np.testing.assert_allclose(density(target.flat(), u), expected, rtol=1e-12)


# what is refused ------------------------------------------------------------------------------------------------------


def bernoulli(x, y=None):
    a = numpyro.sample("a", dist.Normal(0, 1))
    numpyro.sample("obs", dist.Bernoulli(logits=a * x), obs=y)


def length_of_y(x, y=None):
    a = numpyro.sample("a", dist.Normal(0, 1))
    numpyro.sample("obs", dist.Normal(a * x[: len(y)], 1), obs=y)


def only_with_y(x, y=None):
    a = numpyro.sample("a", dist.Normal(0, 1))
    if y is not None:
        numpyro.sample("obs", dist.Normal(a * x, 1), obs=y)


def two_inputs(x, z, y=None):
    a = numpyro.sample("a", dist.Normal(0, 1))
    numpyro.sample("obs", dist.Normal(a * x + z, 1), obs=y)


def asks_for_a_latent(y):
    a = numpyro.sample("a", dist.Normal(0, 1))
    numpyro.sample("obs", dist.Normal(a if a > 0 else -a, 1), obs=y)


def name_twice(y):
    a, b = (numpyro.sample("a", dist.Normal(0, 1)) for _ in range(2))
    numpyro.sample("obs", dist.Normal(a + b, 1), obs=y)


def nothing_latent(y):
    numpyro.sample("obs", dist.Normal(0, 1), obs=y)


def predict(fn, *arguments):
    with double():
        from_numpyro(fn, *arguments).given().likelihood_distribution({"a": 1.0}, Y)


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (lambda: from_numpyro(regression).sample_prior(0, 2), "waits for data"),
        (lambda: from_numpyro(regression, 1, 2, 3), "do not fit the model's signature"),
        (lambda: from_numpyro(regression).given(X[:3], Y), r"shape \(5,\) and its distribution has shape \(3,\)"),
        (lambda: from_numpyro(regression).given(np.full((5, 2), np.nan), Y), "x has 10 NaN or infinite values"),
        (lambda: from_numpyro(regression).given(X, GAPS), "1 row.* outside the likelihood's support.* row 2: nan"),
        (lambda: from_numpyro(bernoulli).given(Y, np.array([0, 1, 2, 0, 1])), "row 2: 2"),
        (lambda: from_numpyro(factors, Y).sample_prior(0, 1), "factor .'quartic'. that cannot be drawn from"),
        (lambda: predict(length_of_y, Y, Y), "does not run at these inputs without y"),
        (lambda: predict(only_with_y, Y, Y), "Without y the NumPyro model has no site 'obs'"),
        (lambda: predict(two_inputs, Y, Y, Y), "no single input: give new ones as a dict"),
        (lambda: predict(factors, Y), "no likelihood to predict with"),
        (lambda: from_numpyro(regression, X).given(), "observes nothing, and its argument 'y' was left None"),
        (lambda: from_numpyro(regression, pd.DataFrame({0: Y, "0": Y}), Y).given(), "Two columns.*'0'"),
        (lambda: from_numpyro(asks_for_a_latent, Y), r"value of a latent site.*test_numpyro.py.*jnp.where"),
        (lambda: from_numpyro(name_twice, Y), "site's name twice.*`a`.*a name of its own"),
        (lambda: credo.fit(from_numpyro(nothing_latent, Y).given(), credo.NUTS(), key=0), "there is nothing to infer"),
    ],
)
def test_refused(request_, sentence):
    with pytest.raises(CredoError, match=sentence):
        request_()


def test_a_factor_observes_too():
    def program(x, y=None):
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        numpyro.factor("rows", -jnp.sum((slope * x) ** 2))

    assert from_numpyro(program, Y).given().dim == 1


def test_several_inputs_by_name():
    with double():
        target = from_numpyro(two_inputs, Y, Y, Y).given()
        found = target.likelihood_distribution({"a": 2.0}, {"x": np.ones(2), "z": np.array([0.0, 1.0])})
        np.testing.assert_allclose(found.loc, [2.0, 3.0])


def test_after_numpyro_has_sampled_from_the_same_arrays():
    """Its chains leave float32 copies of them behind, which JAX would take for ours."""
    x, y = np.linspace(-1.0, 1.0, 6), np.linspace(0.0, 2.0, 6)

    def line(x, y=None):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)

    chains = numpyro.infer.MCMC(numpyro.infer.NUTS(line), num_warmup=5, num_samples=5, progress_bar=False)
    chains.run(jax.random.key(0), x, y)
    target = from_numpyro(line, x, y).given()
    with double():
        found = float(target.log_density(target.structure.unravel(jnp.array([0.5]))))
    expected = stats.norm.logpdf(0.5) + stats.norm.logpdf(y, 0.5 * x).sum()
    assert abs(found - expected) < 1e-9


@pytest.mark.parametrize("has_plate", [False, True])
@pytest.mark.parametrize("which", ["x", "y"])
def test_rows_that_would_meet_every_other_row_are_refused(which, has_plate):
    """(N, 1) against (N,) is N × N, in which each observation counts N times."""

    def program(x, y=None):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", 6) if has_plate else contextlib.nullcontext():
            numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)

    x, y = np.arange(6.0), np.ones(6)
    from_numpyro(program).given(x, y)
    with pytest.raises(CredoError, match=r"have shape \(6,( 1)?\) .* together \(6, 6\)"):
        from_numpyro(program).given(*((x[:, None], y) if which == "x" else (x, y[:, None])))


def test_one_observation_may_be_that_of_every_row():
    def program(x, y=None):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        numpyro.sample("zero", dist.Normal(slope * x, 1.0), obs=0.0)

    assert from_numpyro(program).given(np.arange(6.0)).y.shape == (6,)


# inputs that are not those of the fit ---------------------------------------------------------------------------------


def by_group(g, y=None):
    with numpyro.plate("groups", 4):
        theta = numpyro.sample("theta", dist.Normal(0.0, 3.0))
    numpyro.sample("y", dist.Normal(theta[g], 2.0), obs=y)


def by_group_and_slope(g, x, y=None):
    theta = numpyro.sample("theta", dist.Normal(0.0, 3.0).expand([4]))
    slope = numpyro.sample("slope", dist.Normal(0.0, 3.0))
    numpyro.sample("y", dist.Normal(theta[g] + slope * x, 2.0), obs=y)


GROUP, SLOPED = np.arange(20) % 4, np.linspace(-3.0, 3.0, 20)
SEEN = np.linspace(-1.0, 3.0, 20) + GROUP
WAYS = {
    "given": lambda: from_numpyro(by_group).given(GROUP, SEEN),
    "inputs bound": lambda: from_numpyro(by_group, GROUP).given(y=SEEN),
    "bound": lambda: from_numpyro(by_group, GROUP, y=SEEN).given(),
}


@pytest.mark.parametrize("way", list(WAYS))
def test_a_group_that_the_fit_has_not_seen_is_no_other_one(way):
    """Group 7 of four had the prediction of the last, and group -9 that of the first."""
    posterior = credo.fit(WAYS[way](), credo.Laplace(), progress=False)
    for group in (7, -9, -1):
        with pytest.raises(credo.CredoError, match=rf"indexes 'theta' at {group} \(in row 1\)"):
            posterior.predict(np.array([3, group]))
    np.testing.assert_allclose(posterior.predict(np.array([3, 0])).mean, posterior.mean()["theta"][[3, 0]], atol=0.5)


def test_inputs_left_out_are_not_those_of_the_fit():
    target = from_numpyro(by_group_and_slope, GROUP, SLOPED, y=SEEN).given()
    posterior = credo.fit(target, credo.Laplace(), progress=False)
    for x in ({"g": np.zeros(20, int)}, {"g": np.zeros(2, int), "X": np.zeros(2)}):
        with pytest.raises(credo.CredoError, match="x lacks 'x'; the NumPyro model was fitted with g, x"):
            posterior.predict(x)
    new = {"g": np.array([0, 1]), "x": np.zeros(2)}
    with_more = posterior.predict({**new, "id": np.arange(2)})  # a column that the model does not ask for
    np.testing.assert_array_equal(with_more.mean, posterior.predict(new).mean)


def test_arguments_left_out_are_named():
    for arguments, given in (((), (GROUP, SEEN)), ((GROUP,), (None, SEEN)), ((), (None, SEEN))):
        with pytest.raises(credo.CredoError, match="lacks its argument '[gx]'"):
            from_numpyro(by_group_and_slope, *arguments).given(*given)
    bound = from_numpyro(by_group_and_slope, GROUP, SLOPED, y=SEEN).given()
    by_name = from_numpyro(by_group_and_slope).given({"g": GROUP, "x": SLOPED}, SEEN)
    u = np.linspace(-1.0, 1.0, 5)
    with double():
        np.testing.assert_allclose(by_name.flat().log_density(u), bound.flat().log_density(u), rtol=1e-12)


def only_slope(x, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("n", len(x)):
        numpyro.sample("y", dist.Normal(b * x, 1.0), obs=y)


def test_a_single_input_may_be_given_by_its_name():
    model, u = from_numpyro(only_slope), np.array([0.3])
    by_name, by_place = model.given({"x": SLOPED}, SEEN), model.given(SLOPED, SEEN)
    with double():
        np.testing.assert_allclose(by_name.flat().log_density(u), by_place.flat().log_density(u), rtol=1e-12)
    posterior = credo.fit(by_name, credo.Laplace(), progress=False)
    new = np.array([1.0, -1.0])
    np.testing.assert_allclose(posterior.predict({"x": new}).mean, posterior.mean()["b"] * new, atol=1e-3)
    with pytest.raises(credo.CredoError, match=r"by the names of its arguments, x, y"):
        model.given({"slope": SLOPED}, SEEN)


@pytest.mark.parametrize("scale", [0.05, 3.0])
def test_a_scaled_latent_is_not_drawn_from_its_unscaled_prior(scale):
    """Its density is a power: what is drawn beside it is of another prior, and swaps and evidences were wrong."""

    def program(y=None):
        with handlers.scale(scale=scale):
            mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mu, 2.0), obs=y)

    target = from_numpyro(program, y=2.0).given()
    for ask in (lambda: target.model.sample_prior(0, 3), lambda: credo.fit(target, credo.SMC(), progress=False)):
        with pytest.raises(credo.CredoError, match="'mu'"):
            ask()
    with np.errstate(all="ignore"):
        mu = np.linspace(-40.0, 40.0, 20_001)
        density = np.exp(scale * stats.norm.logpdf(mu) + stats.norm.logpdf(2.0, mu, 2.0))
    total = density.sum()
    mean, step = (density @ mu) / total, mu[1] - mu[0]
    posterior = credo.fit(target, credo.ParallelTempering(), key=1, progress=False)
    sd = np.sqrt(density @ (mu - mean) ** 2 / total)
    assert abs(posterior.mean()["mu"] - mean) < 0.15 * sd
    assert abs(posterior.sd()["mu"] / sd - 1) < 0.1
    known = credo.fit(target, credo.Grid(), progress=False).log_evidence
    assert known.value == pytest.approx(np.log(total * step), abs=1e-3)
    if posterior.log_evidence is not None:
        assert abs(posterior.log_evidence.value - known.value) < 5 * posterior.log_evidence.error
