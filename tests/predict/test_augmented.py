"""Predictions averaged over transforms of x: a mixture over transforms within each draw."""

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.special import logsumexp

import credo

X = np.linspace(-1, 1, 6)
MODEL = credo.Model({"w": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["w"] * x, 0.3))
RULE = credo.MonteCarlo(50)
VIEWS = [lambda x: x, lambda x: 0.5 * x, lambda x: x + 1]


@pytest.fixture(scope="module")
def posterior():
    return credo.fit(MODEL.given(X, 0.5 * X), credo.Laplace(), key=0)


def test_mixture_over_transforms_within_each_draw(posterior):
    found = posterior.predict(X, credo.Augmented(VIEWS, RULE))
    each = [posterior.predict(view(X), RULE) for view in VIEWS]  # the same draws
    assert np.allclose(found.mean, np.mean([p.mean for p in each], axis=0))
    y = np.full(6, 0.2)
    assert np.allclose(found.log_prob(y), logsumexp([p.log_prob(y) for p in each], axis=0) - np.log(3))
    variance = np.mean([p.variance for p in each], axis=0) + np.var([p.mean for p in each], axis=0)
    assert np.allclose(found.variance, variance)
    slope = np.mean(
        [view(X) for view in VIEWS], axis=0
    )  # p̄'s mean is w times this: what one draw differs from another by
    w_variance = each[2].epistemic / (X + 1 + 1e-12) ** 2
    assert np.allclose(found.epistemic, slope**2 * w_variance[1])
    lower, upper = found.interval(0.9)
    assert np.all(lower < upper)


def test_one_transform_is_the_prediction_there(posterior):
    found = posterior.predict(X, credo.Augmented([lambda x: -x], RULE))
    alone = posterior.predict(-X, RULE)
    assert np.allclose(found.mean, alone.mean)
    assert np.allclose(found.quantile(0.9), alone.quantile(0.9), atol=1e-6)


def test_classes_keep_their_kind():
    model = credo.Model({"w": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Bernoulli(logits=params["w"] * x))
    posterior = credo.fit(model.given(X, (X > 0).astype(int)), credo.Laplace(), key=0)
    both = posterior.predict(X, credo.Augmented([lambda x: x, lambda x: -x], RULE))
    assert np.allclose(both.probs, 0.5)
    assert np.allclose(both.mutual_information, 0.0, atol=1e-12)  # whatever w, the answer is one half


def test_bad_transforms(posterior):
    for transforms, words in (([], "one at least"), ([lambda x: x[:2]], "returned arrays of shapes")):
        with pytest.raises(credo.CredoError, match=words):
            posterior.predict(X, credo.Augmented(transforms, RULE))
    with pytest.raises(credo.CredoError, match="averages over draws"):
        posterior.predict(X, credo.Augmented(VIEWS, credo.Linearised()))
