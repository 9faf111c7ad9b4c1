"""The verdict on a network's Laplace: data that are less likely than the predictive expects are a surprise."""

import jax.numpy as jnp
import numpy as np
import pytest

import credo
from credo.methods.laplace.judgement import after_earlier
from credo.methods.optimise.surprise import surprise
from credo.nn import BayesianNetwork, Bernoulli, Gaussian, Isotropic

RNG = np.random.default_rng(0)
N = 60
X = RNG.normal(size=(N, 2))
Y = X @ [1.0, -0.5] + 0.4 * RNG.normal(size=N)


def linear(params, x):
    return x @ params["w"]


def fitted(head, y):
    network = BayesianNetwork(linear, {"w": jnp.zeros((2, 1))}, head=head, prior=Isotropic(1.0))
    return credo.fit(network.given(X, y), credo.Laplace(num_steps=50), progress=False)


@pytest.mark.parametrize(("noise", "status"), [(0.4, "pass"), (0.1, "doubtful")])
def test_of_normal_outcomes_it_is_that_of_squared_residuals(noise, status):
    posterior = fitted(Gaussian(noise), Y)
    predictive = posterior.predict(X)
    excess = 0.5 * (Y - predictive.mean) ** 2 / predictive.variance - 0.5  # E log p − log p, of a normal outcome
    expected = excess.mean() - 3 * excess.std() / np.sqrt(N)
    assert surprise(posterior, 0, is_linearised=True) == pytest.approx(expected, rel=1e-4)
    assert posterior.verdict.figures["surprise"] == pytest.approx(expected, rel=1e-4)
    assert posterior.verdict.status == status


def test_what_was_not_weighed_does_not_pass():
    """Of a linear network, which is a Gaussian in any number of dimensions."""
    network = BayesianNetwork(linear, {"w": jnp.zeros((101, 1))}, head=Gaussian(0.4), prior=Isotropic(1.0))
    posterior = credo.fit(network.given(np.resize(X, (N, 101)), Y), credo.Laplace(num_steps=50), progress=False)
    assert posterior.verdict.status == "doubtful"


def test_the_worse_of_two_verdicts_stays():
    earlier = fitted(Gaussian(0.4), Y)
    for before, now, expected in (
        ("pass", "pass", "pass"),
        ("doubtful", "pass", "doubtful"),
        ("doubtful", "failed", "failed"),
        ("failed", "doubtful", "failed"),
    ):
        earlier.verdict = credo.Verdict(before)
        assert after_earlier(credo.Verdict(now), earlier).status == expected


@pytest.mark.parametrize(("structure", "is_told"), [(credo.laplace.Diagonal(), True), (credo.laplace.Dense(), False)])
def test_what_to_do_about_earlier_data_is_what_was_not_done(structure, is_told):
    network = BayesianNetwork(linear, {"w": jnp.zeros((2, 1))}, head=Gaussian(0.4), prior=Isotropic(1.0))
    earlier = credo.fit(network.given(X[:, :2], Y), credo.Laplace(structure, num_steps=5), progress=False)
    earlier.verdict = credo.Verdict("doubtful")
    (sentence,) = after_earlier(credo.Verdict("pass"), earlier).sentences
    assert ("with structure=Dense(), or all data at once" in sentence) == is_told
    assert sentence.endswith("all data at once.")


def test_of_classes_it_is_a_sum_over_them():
    labels = (RNG.uniform(size=N) < 0.5).astype(int)
    posterior = fitted(Bernoulli(), labels)
    p = np.asarray(posterior.predict(X, credo.Probit()).mean)
    entropy = -p * np.log(p) - (1 - p) * np.log(1 - p)
    excess = -np.log(np.where(labels == 1, p, 1 - p)) - entropy
    expected = excess.mean() - 3 * excess.std() / np.sqrt(N)
    assert surprise(posterior, 0, is_linearised=True) == pytest.approx(expected, rel=1e-3)
