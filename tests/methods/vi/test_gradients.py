"""Gradient estimators: unbiased, of known variance, on full data and on minibatches."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

from credo.linalg.dense import Dense
from credo.methods.vi.families.full_rank import FullRank
from credo.methods.vi.gradients.estimator import grouped_noise
from credo.methods.vi.gradients.reparameterised import Reparameterised, gaussian_prior
from credo.methods.vi.gradients.sticking_the_landing import StickingTheLanding
from credo.methods.vi.minibatch import lay_anchor, on_batch
from credo.methods.vi.objectives.elbo import ELBO
from credo.model.model import Model
from credo.posterior.kinds import Gaussian
from credo.precision import double

X = np.random.default_rng(0).normal(size=(12, 2))
Y = X @ np.array([1.0, -2.0]) + 0.3 * np.random.default_rng(1).normal(size=12)
ESTIMATORS = {"sticking": StickingTheLanding(), "reparameterised": Reparameterised()}
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


def gradients(estimator, q, target, num_samples=2):
    """Repeated estimates of the gradient of the ELBO at q, flat: (NUM_REPEATS, coordinates)."""
    known = estimator.prepare(target)

    def one(key):
        z = grouped_noise(ELBO(), FAMILY, key, num_samples, 2)

        def objective(xi):
            return estimator.surrogate(ELBO(), FAMILY, q, xi, target.log_density, z, known, num_samples)

        a, B = jax.grad(objective)(FAMILY.rest(q))
        return jnp.concatenate([a, B[np.tril_indices(2)]])

    return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), NUM_REPEATS)))


def exact_gradient(q):
    """Of −½ (u − μ)ᵀΛ(u − μ) + H(q): −Lᵀ Λ (m − μ) and the lower triangle of I − LᵀΛL."""
    mu, precision = posterior()
    L = np.asarray(q.scale.lower)
    return np.concatenate([-L.T @ precision @ (q.mean - mu), (np.eye(2) - L.T @ precision @ L)[np.tril_indices(2)]])


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimates_are_unbiased(name):
    with double():
        drawn = gradients(ESTIMATORS[name], somewhere(), linear())
        errors = drawn.std(axis=0) / np.sqrt(NUM_REPEATS) + 1e-12
        np.testing.assert_array_less(np.abs(drawn.mean(axis=0) - exact_gradient(somewhere())), NUM_ERRORS * errors)


def test_sticking_the_landing_leaves_no_noise_at_the_posterior():
    """Roeder et al. (2017): every single estimate vanishes; the others keep their noise."""
    mu, precision = posterior()
    with double():
        q = FAMILY.around(mu, precision)
        assert np.abs(gradients(ESTIMATORS["sticking"], q, linear())).max() < 1e-9
        assert gradients(ESTIMATORS["reparameterised"], q, linear()).std(axis=0).max() > 0.1


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
