"""Gradient estimators: unbiased, of known variance, on full data and on minibatches."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.methods.vi.families.full_rank import FullRank
from credo.methods.vi.families.mean_field import MeanField
from credo.methods.vi.families.supports import examples
from credo.methods.vi.gradients.reparameterised import Reparameterised, gaussian_prior
from credo.methods.vi.gradients.score_function import ScoreFunction
from credo.methods.vi.gradients.sticking_the_landing import StickingTheLanding
from credo.methods.vi.gradients.terms import dependence, log_terms, relevant
from credo.methods.vi.minibatch import lay_anchor, on_batch
from credo.methods.vi.objectives.elbo import ELBO
from credo.model.model import Model
from credo.posterior.kinds import Gaussian
from credo.precision import double

X = np.random.default_rng(0).normal(size=(12, 2))
Y = X @ np.array([1.0, -2.0]) + 0.3 * np.random.default_rng(1).normal(size=12)
ESTIMATORS = {
    "sticking": StickingTheLanding(),
    "reparameterised": Reparameterised(),
    "score": ScoreFunction(),
    "score_without_terms": ScoreFunction(rao_blackwell=False),
    "plain_score": ScoreFunction(baseline=False, rao_blackwell=False),
}
FAMILIES = {"full_rank": FullRank(), "mean_field": MeanField()}
FAMILY = FullRank()
NUM_REPEATS = 4_000
NUM_ERRORS = 4.5  # two-sided false-alarm rate 7e-6 a number, of which there are fewer than 50


def normal_likelihood(params, x):
    return dist.Normal(x @ params["w"], 0.5)


def linear():
    return Model({"w": dist.Normal(0.0, 2.0).expand([2])}, normal_likelihood).given(X, Y).flat()


def posterior():
    precision = X.T @ X / 0.25 + np.eye(2) / 4
    return np.linalg.solve(precision, X.T @ Y / 0.25), precision


def somewhere():
    """A member that is not the posterior."""
    return Gaussian(jnp.asarray([0.4, -1.0]), Dense(jnp.asarray([[0.3, 0.0], [0.1, 0.2]])))


def gradients(estimators, q, target, num_samples=2, family=FAMILY, batch_size=None, num_repeats=NUM_REPEATS):
    """Repeated estimates of the gradient of the ELBO at q, flat (num_repeats, coordinates), by name of estimator."""
    known = {name: estimator.prepare(target, batch_size is None) for name, estimator in estimators.items()}
    anchor = None if batch_size is None else lay_anchor(target, q.mean)

    def one(target, name, estimator, key):
        k_noise, k_batch = jax.random.split(key)
        z = estimator.noise(ELBO(), family, k_noise, num_samples, target.dim)
        density = estimator.density(target, anchor, batch_size, k_batch)

        def objective(xi):
            return estimator.surrogate(ELBO(), family, q, xi, density, z, known[name], num_samples)

        return jax.grad(objective)(family.rest(q))

    @jax.jit
    def every(target, keys):
        return {n: jax.vmap(lambda key, n=n, e=e: one(target, n, e, key))(keys) for n, e in estimators.items()}

    found = every(target, jax.random.split(jax.random.key(0), num_repeats))
    return {name: flat(*each) for name, each in found.items()}


def flat(a, b):
    """The tangents (…, dim) and (…, dim) or (…, dim, dim), of which the lower triangle counts."""
    a, b = np.asarray(a), np.asarray(b)
    return np.concatenate([a, b[(..., *np.tril_indices(a.shape[-1]))] if b.ndim > a.ndim else b], axis=-1)


@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_estimates_are_unbiased(family, batch_size):
    """Every estimator of the ELBO's gradient × family × minibatches: the gradient of the closed form."""
    with double():
        q = somewhere()
        q = q if family == "full_rank" else Gaussian(q.mean, Diagonal(jnp.asarray([0.3, 0.2])))
        exact = flat(*jax.jit(jax.grad(lambda xi: elbo(FAMILIES[family].move(q, xi))))(FAMILIES[family].rest(q)))
        drawn = gradients(ESTIMATORS, q, linear(), family=FAMILIES[family], batch_size=batch_size)
        for name, each in drawn.items():
            errors = each.std(axis=0) / np.sqrt(NUM_REPEATS) + 1e-12
            np.testing.assert_array_less(np.abs(each.mean(axis=0) - exact), NUM_ERRORS * errors, err_msg=name)


def elbo(q):
    """Of a Gaussian q, but for a constant."""
    mu, precision = posterior()
    away = q.mean - mu
    return -0.5 * (away @ precision @ away + jnp.sum(precision * q.scale.dense())) + q.scale.log_det()


def test_sticking_the_landing_leaves_no_noise_at_the_posterior():
    """Roeder et al. (2017): every single estimate vanishes; the reparameterised ones keep their noise.

    Scores vanish with it where a baseline takes off the log weight, which is the same for all draws.
    """
    mu, precision = posterior()
    with double():
        q = FAMILY.around(mu, precision)
        drawn = gradients({n: ESTIMATORS[n] for n in ("sticking", "reparameterised", "score")}, q, linear())
        assert np.abs(drawn["sticking"]).max() < 1e-9
        assert np.abs(drawn["score"]).max() < 1e-9
        assert drawn["reparameterised"].std(axis=0).max() > 0.1


INDEPENDENT = {"a": dist.Normal(0.0, 2.0).expand([4]), "b": dist.Gamma(3.0, 2.0), "c": dist.StudentT(8.0)}


def test_variances_are_ordered_as_theory_says():
    """Paths beat scores; among scores each device takes noise off, summed over six independent coordinates.

    2,000 repeats know a variance to about 5 %.
    """
    target = Model(INDEPENDENT, None).given().flat()
    names = ["plain_score", "score_without_terms", "score", "sticking"]
    with double():
        q = Gaussian(jnp.full(6, 0.3), Diagonal(jnp.full(6, 0.7)))
        chosen = {name: ESTIMATORS[name] for name in names}
        drawn = gradients(chosen, q, target, num_samples=8, family=MeanField(), num_repeats=2_000)
        noise = [drawn[name].var(axis=0).sum() for name in names]
        assert all(more > 1.1 * less for more, less in itertools.pairwise(noise)), noise


def hierarchy(params, x):
    return dist.Normal(params["theta"], 1.0)


def test_terms_are_those_that_a_parameter_moves():
    """tau moves the prior of theta, theta_i its own prior and its own row; all terms add up to the log density."""
    model = Model({"tau": dist.HalfNormal(1.0), "theta": lambda tau: dist.Normal(0.0, tau).expand([3])}, hierarchy)
    target = model.given(y=np.array([0.5, -1.0, 2.0])).flat()
    with double():
        u = jnp.asarray([0.3, 0.1, -0.4, 1.2])
        known, terms = dependence(target, examples(target), has_rows=True), log_terms(target, u)
        np.testing.assert_allclose(terms.total(), target.log_density(u), rtol=1e-12)
        np.testing.assert_array_equal(known.row_of, [-1, 0, 1, 2])
        tau = np.exp(0.3)
        prior = np.asarray(dist.Normal(0.0, tau).log_prob(u[1:]))
        rows = np.asarray(dist.Normal(u[1:], 1.0).log_prob(target.y))
        expected = [dist.HalfNormal(1.0).log_prob(tau) + 0.3 + prior.sum(), *(prior + rows)]
        np.testing.assert_allclose(relevant(terms, known), expected, rtol=1e-12)
        without = dependence(target, examples(target), has_rows=False)
        np.testing.assert_allclose(relevant(terms, without)[1:], prior + rows.sum(), rtol=1e-12)


def joined(params, x):
    return dist.Normal(jnp.cumsum(params["z"]), 1.0)


def test_rows_that_share_elements_are_no_rows_of_their_own():
    target = Model({"z": dist.Bernoulli(0.5).expand([3])}, joined).given(y=np.zeros(3)).flat()
    with double():
        assert np.all(dependence(target, examples(target), has_rows=True).row_of == -1)


def test_the_closed_form_kl_is_used_where_the_prior_of_u_is_gaussian():
    """E_q[log weight] is the same, prior and entropy sampled or not."""
    target = linear()
    with double():
        known = gaussian_prior(target)
        assert known is not None
        np.testing.assert_allclose(known.precision, [0.25, 0.25], rtol=1e-12)
        u = jnp.asarray([0.7, -3.0])
        np.testing.assert_allclose(known.log_prob(u), target.log_prior(u), rtol=1e-12)
        q = somewhere()
        mean, spread = np.asarray(q.mean), np.asarray(q.scale.dense())
        expected = np.sum(-0.5 * (mean**2 + np.diagonal(spread)) / 4 - 0.5 * np.log(2 * np.pi * 4))
        np.testing.assert_allclose(known.expectation(q), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("prior", "is_gaussian"),
    [
        (dist.LogNormal(1.0, 0.5), True),
        (dist.MultivariateNormal(np.zeros(2), np.array([[2.0, 0.5], [0.5, 1.0]])), True),
        (dist.Gamma(2.0, 1.0), False),
        (dist.StudentT(5.0), False),
        (dist.ImproperUniform(constraints.real, (), ()), False),
    ],
)
def test_gaussian_priors_are_found_by_their_density(prior, is_gaussian):
    target = Model({"w": prior}, None).given().flat()
    with double():
        assert (gaussian_prior(target) is not None) == is_gaussian


def test_anchored_minibatches_average_to_full_data():
    """Over all batches of one row: the value and the gradient of the full log density, at any position."""
    target = linear()
    with double():
        anchor = lay_anchor(target, jnp.asarray([0.9, -1.9]))
        u = jnp.asarray([1.4, -2.5])
        parts = [
            jax.value_and_grad(on_batch(target, anchor, target.rows(jnp.asarray([row]))))(u) for row in range(len(Y))
        ]
        value, gradient = jax.value_and_grad(target.log_density)(u)
        np.testing.assert_allclose(np.mean([v for v, _ in parts]), value, rtol=1e-12)
        np.testing.assert_allclose(np.mean([g for _, g in parts], axis=0), gradient, rtol=1e-12)


def test_the_anchor_takes_away_the_noise_of_minibatches_near_it():
    target = linear()
    with double():
        anchor = lay_anchor(target, jnp.asarray(posterior()[0]))
        u = anchor.position + 0.01
        rows = [target.rows(jnp.asarray([row])) for row in range(len(Y))]
        plain = np.std([jax.grad(lambda u, b=b: target.log_density(u, b))(u) for b in rows], axis=0)
        anchored = np.std([jax.grad(on_batch(target, anchor, b))(u) for b in rows], axis=0)
        assert np.all(anchored < 0.1 * plain)
