"""Discrete latent sites of a NumPyro model are summed out exactly: against sums written by hand."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import scan
from scipy import stats
from scipy.special import logsumexp

import credo
from credo.adapters import from_numpyro
from credo.precision import double, to_numpy
from credo.status import CredoError

needs_funsor = pytest.mark.skipif(importlib.util.find_spec("funsor") is None, reason="needs the extra `enumeration`")
Y = np.array([0.0, 1.0, 2.0, -1.0, 0.3])


def mixture(y):
    """Each row's component; a subsampling plate; quantities derived from parameters, and one from the components."""
    share = numpyro.sample("share", dist.Uniform(0, 1))
    w = jnp.stack([share, 1 - share])
    with numpyro.plate("K", 2):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    numpyro.deterministic("gap", mu[1] - mu[0])
    with numpyro.plate("N", len(y), subsample_size=2) as i:
        z = numpyro.sample("z", dist.Categorical(w))
        numpyro.deterministic("centre", mu[z])
        numpyro.sample("obs", dist.Normal(mu[z], s), obs=y[i])


def mixture_by_hand(p):
    prior = stats.norm.logpdf(p["mu"]).sum() + stats.halfnorm.logpdf(p["s"])
    w = np.array([p["share"], 1 - p["share"]])
    return prior + logsumexp(np.log(w) + stats.norm.logpdf(Y[:, None], p["mu"], p["s"]), axis=1).sum()


def hidden_markov(y):
    with numpyro.plate("K", 2):
        P = numpyro.sample("P", dist.Dirichlet(jnp.ones(2)))
        mu = numpyro.sample("mu", dist.Normal(0, 1))

    def step(z, yt):
        z = numpyro.sample("z", dist.Categorical(P[z]))
        numpyro.sample("obs", dist.Normal(mu[z], 1.0), obs=yt)
        return z, None

    scan(step, 0, y)


def hidden_markov_by_hand(p):
    """The forward algorithm."""
    alpha, log_density = p["P"][0], stats.norm.logpdf(p["mu"]).sum()
    for t, y in enumerate(Y):
        alpha = (alpha @ p["P"] if t else alpha) * stats.norm.pdf(y, p["mu"], 1.0)
    return log_density + np.log(alpha.sum())


def switch(y):
    """One discrete variable for all rows."""
    k = numpyro.sample("k", dist.Bernoulli(0.3))
    a = numpyro.sample("a", dist.Normal(0, 1))
    with numpyro.plate("N", len(y)):
        numpyro.sample("obs", dist.Normal(jnp.where(k == 1, a, -a), 1.0), obs=y)


def switch_by_hand(p):
    ways = [np.log(q) + stats.norm.logpdf(Y, sign * p["a"]).sum() for q, sign in ((0.3, 1), (0.7, -1))]
    return stats.norm.logpdf(p["a"]) + logsumexp(ways)


@jax.jit
def density(target, u):
    return target.log_density(u), target.constrain(u), target.log_jacobian(u)


@needs_funsor
@pytest.mark.parametrize(
    ("fn", "by_hand"), [(mixture, mixture_by_hand), (hidden_markov, hidden_markov_by_hand), (switch, switch_by_hand)]
)
def test_sums_are_exact(fn, by_hand):
    target = from_numpyro(fn, Y).given()
    with double():
        u = 0.5 * np.random.default_rng(2).normal(size=target.dim)
        ours, params, log_jacobian = to_numpy(density(target.flat(), u))
    np.testing.assert_allclose(ours, by_hand(params) + log_jacobian, rtol=1e-10)


def occupancy(y):
    """Sites without an animal give no counts: second derivatives at a probability of 0."""
    share, seen = (numpyro.sample(name, dist.Beta(1.0, 1.0)) for name in ("share", "seen"))
    with numpyro.plate("N", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(share))
        numpyro.sample("y", dist.Binomial(4, z * seen), obs=y)


@needs_funsor
def test_sites_where_nothing_lives_have_second_derivatives():
    counts = np.array([0, 0, 2, 1, 0, 3, 0, 2, 0, 1])
    target = from_numpyro(occupancy, counts).given().flat()

    def by_hand(u):
        share, seen = jax.nn.sigmoid(u)
        there = jnp.log(share) + dist.Binomial(4, seen).log_prob(counts)
        rows = jnp.where(counts == 0, jnp.logaddexp(there, jnp.log(1 - share)), there)
        return jnp.sum(rows) + jnp.log(share * (1 - share) * seen * (1 - seen))

    with double():
        u = np.array([0.3, -0.4])
        found, expected = (jax.jit(jax.hessian(density))(u) for density in (target.log_density, by_hand))
        np.testing.assert_allclose(found, expected, rtol=1e-9)


@needs_funsor
def test_parts():
    target = from_numpyro(mixture, Y).given()
    assert target.prior.names == ("share", "mu", "s")
    assert target.prior.discrete == ("z",)
    assert [name for name, _ in target.model.derived_functions] == ["gap"]  # "centre" has no single value
    assert target.prior.improper_names() == ()
    draws = target.model.sample_prior(0, 3)
    assert set(draws) == {"share", "mu", "s", "gap"}
    with pytest.raises(CredoError, match="sums out z"):
        target.likelihood_distribution({}, Y)


@needs_funsor
def test_nothing_is_calibrated_against_data_that_stay():
    """Its one data set is in its density: parameters of the prior would be ranked among draws given these data."""
    with pytest.raises(CredoError, match="cannot simulate data, so it cannot be calibrated: it sums out z"):
        credo.diagnose.sbc(from_numpyro(mixture, Y).given().model, credo.NUTS(), 10, progress=False)


@needs_funsor
def test_a_second_target_compiles_nothing():
    count = []

    def model(y):
        count.append(None)
        switch(y)

    with double():
        for shift in (0.0, 1.0):
            target = from_numpyro(model, Y + shift).given().flat()
            before = len(count)
            density(target, np.zeros(1))
            traced = len(count) - before
    assert traced == 0


def counts(y):
    n = numpyro.sample("n", dist.Poisson(3.0))
    numpyro.sample("obs", dist.Normal(n, 1), obs=y)


def without_plate(y):
    z = numpyro.sample("z", dist.Bernoulli(0.5).expand([5]))
    numpyro.sample("obs", dist.Normal(z, 1), obs=y)


def moving_support(y):
    z = numpyro.sample("z", dist.Bernoulli(0.5))
    a = numpyro.sample("a", dist.Uniform(0.0, 1.0 + z))
    with numpyro.plate("N", len(y)):
        numpyro.sample("obs", dist.Normal(a, 1), obs=y)


@needs_funsor
@pytest.mark.parametrize(
    ("fn", "sentence"),
    [
        (counts, "'n' is a discrete latent variable with infinitely many values"),
        (without_plate, r"'z' has batch shape \(5,\) with dimension -1 in no plate"),
        (moving_support, "support of site 'a' depends on a discrete latent site"),
    ],
)
def test_refused(fn, sentence):
    with pytest.raises(CredoError, match=sentence):
        from_numpyro(fn, Y)


def test_without_funsor_a_sentence(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CredoError, match=r"Site 'z' is a discrete latent variable .*credo\[enumeration\]"):
        from_numpyro(mixture, Y)


@needs_funsor
def test_the_prior_within_a_sum_is_not_told_as_flat():
    posterior = credo.fit(from_numpyro(mixture, Y).given(), credo.Laplace(), progress=False)
    with pytest.raises(CredoError, match="sums 'z' out of its density as a whole. Write the sum as a distribution"):
        posterior.to_arviz(log_prior=True)
