"""Draws of counts over categories, against their probability functions and moments."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import credo
from credo.model.draws import draw

PROBS = np.array([0.2, 0.0, 0.3, 0.5])
ALPHA = np.array([0.5, 2.0, 1.0])
TOTALS = np.array([3, 0, 7])
NUM_DRAWS = 20_000


KEPT = PROBS[[0, 2, 3]]
OURS = {
    "probs": lambda totals: dist.MultinomialProbs(KEPT, totals),
    "logits": lambda totals: dist.MultinomialLogits(np.log(KEPT) + 2.0, totals),
    "dirichlet": lambda totals: dist.DirichletMultinomial(ALPHA, totals),
}
MULTINOMIAL = stats.multinomial(4, KEPT)
TRUTHS = {"probs": MULTINOMIAL, "logits": MULTINOMIAL, "dirichlet": stats.dirichlet_multinomial(ALPHA, 4)}


@pytest.mark.parametrize("name", OURS)
def test_counts_have_the_probabilities_of_their_law(name):
    drawn = np.asarray(draw(OURS[name](4), jax.random.key(1), (NUM_DRAWS,)))
    every = [c for c in itertools.product(range(5), repeat=3) if sum(c) == 4]
    expected = np.array([np.exp(TRUTHS[name].logpmf(c)) for c in every])
    seen = np.array([np.sum(np.all(drawn == c, axis=1)) for c in every])
    assert seen.sum() == NUM_DRAWS
    assert stats.chisquare(seen, NUM_DRAWS * expected).pvalue > 1e-3


@pytest.mark.parametrize("name", OURS)
def test_totals_may_differ_and_be_traced(name):
    drawn = jax.jit(lambda totals: draw(OURS[name](totals), jax.random.key(2), (NUM_DRAWS,)))(TOTALS)
    assert drawn.shape == (NUM_DRAWS, 3, 3)
    np.testing.assert_array_equal(drawn.sum(axis=-1), np.broadcast_to(TOTALS, (NUM_DRAWS, 3)))
    ours = OURS[name](TOTALS)
    error = 4 * np.sqrt(np.asarray(ours.variance) / NUM_DRAWS)
    assert np.all(np.abs(drawn.mean(axis=0) - ours.mean) <= error)
    np.testing.assert_allclose(drawn.var(axis=0), ours.variance, rtol=0.1, atol=1e-12)


def test_a_category_without_probability_is_never_drawn():
    drawn = np.asarray(draw(dist.MultinomialProbs(PROBS, 50), jax.random.key(3), (500,)))
    assert np.all(drawn[:, 1] == 0)
    last = np.asarray(draw(dist.MultinomialProbs(np.array([0.4, 0.6, 0.0]), 50), jax.random.key(3), (500,)))
    assert np.all(last[:, 2] == 0)
    assert np.all(last.sum(axis=1) == 50)


def test_wrapped_laws_and_others():
    inner = dist.MultinomialProbs(PROBS, TOTALS)
    assert draw(inner.mask(True).to_event(1), jax.random.key(0), (5,)).shape == (5, 3, 4)
    normal = dist.Normal(jnp.zeros(3), 1.0)
    np.testing.assert_array_equal(draw(normal, jax.random.key(0), (2,)), normal.sample(jax.random.key(0), (2,)))


@pytest.mark.slow
def test_counts_of_rows_with_totals_of_their_own_are_predicted():
    random = np.random.default_rng(0)
    totals = random.integers(5, 60, 80)
    y = np.stack([random.multinomial(total, KEPT) for total in totals])

    def likelihood(params, x):
        logits = jnp.concatenate([jnp.zeros(1), params["logits"]])
        return dist.Multinomial(x["total"].astype(int), logits=jnp.broadcast_to(logits, (len(x["total"]), 3)))

    model = credo.Model({"logits": dist.Normal(jnp.zeros(2), 1.0)}, likelihood)
    x = {"total": totals}
    posterior = credo.fit(model.given(x, y), credo.Laplace(), key=0, progress=False)
    predictive = posterior.predict({"total": np.array([1_000, 10])})
    drawn = predictive.sample(0, 400)
    np.testing.assert_array_equal(drawn.sum(axis=-1), np.broadcast_to([1_000, 10], (400, 2)))
    low, high = predictive.interval(0.9)
    assert np.all((low <= predictive.mean) & (predictive.mean <= high))
    assert model.sample_prior_predictive(0, x, 3).shape == (3, 80, 3)
    decision = credo.decide(predictive, lambda action, y: jnp.abs(action - y[..., 0]), [2.0, 200.0])
    np.testing.assert_array_equal(decision.action, [200.0, 2.0])


def test_conjugate_predictions_have_totals_of_their_own():
    predictive = credo.exact.DirichletCategorical(ALPHA).predictive(trials=TOTALS)
    drawn = predictive.sample(0, 50)
    np.testing.assert_array_equal(drawn.sum(axis=-1), np.broadcast_to(TOTALS, (50, 3)))


@pytest.mark.parametrize("censored", [dist.RightCensoredDistribution, dist.LeftCensoredDistribution])
def test_censored_outcomes_are_not_replicated_without_their_censoring(censored):
    def likelihood(p, x):
        return censored(dist.Normal(p["mean"] * jnp.ones(len(x)), 1.0), x)

    x, y = np.array([0, 1, 0, 1, 1]), np.array([0.1, 1.0, -0.3, 1.0, 1.0])
    model = credo.Model({"mean": dist.Normal(0.0, 1.0)}, likelihood)
    posterior = credo.fit(model.given(x, y), credo.Laplace())
    for ask in (
        lambda: posterior.check(np.mean),
        lambda: credo.diagnose.check_prior(posterior.target, np.mean),
        lambda: credo.diagnose.sbc(model, credo.Laplace(), 20, x=x, key=0),
    ):
        with pytest.raises(credo.CredoError, match="are censored .*, and data drawn from it are not"):
            ask()


def test_what_numpyro_cannot_draw_has_its_sentence():
    truncated = dist.LeftTruncatedDistribution(dist.StudentT(4.0, 0.0, 1.0), 0.0)
    try:
        truncated.sample(jax.random.key(0))
    except ImportError:
        with pytest.raises(credo.CredoError, match="cannot draw from LeftTruncatedDistribution"):
            draw(truncated, jax.random.key(0))


class Inner(dist.Distribution):
    """A user's own, which does not say (``pytree_data_fields``) what it holds."""

    support = dist.constraints.real

    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.batch_shape)

    def log_prob(self, value):
        return self.inner.log_prob(value)

    def sample(self, key, sample_shape=()):
        return self.inner.sample(key, sample_shape)


@pytest.mark.slow
def test_a_users_distribution_need_not_be_a_pytree():
    """Its copy by JAX has no ``inner``: the fit passed, and draws ended in an AttributeError."""
    model = credo.Model({"a": dist.Normal(0.0, 2.0)}, lambda params, x: Inner(dist.Normal(params["a"] + 0 * x, 1.0)))
    posterior = credo.fit(model.given(np.zeros(20), np.linspace(0.0, 1.0, 20)), credo.Laplace(), progress=False)
    assert posterior.predict(np.zeros(3)).sample(0, 5).shape == (5, 3)
    assert 0.05 < posterior.check(np.mean).p_value < 0.95
