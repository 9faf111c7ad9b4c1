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


@pytest.mark.parametrize("kind", ["columns", "outcomes"])
def test_several_outcomes_of_a_row_share_their_transform(kind):
    """log (1/A) Σ_a p(y_1 | f_a(x)) p(y_2 | f_a(x)), which is no product of averages; draws know it too."""

    def likelihood(params, x):
        logits = 4.0 * params["w"] * x
        if kind == "columns":
            return dist.Bernoulli(logits=np.ones(2) * logits[:, None])
        return {name: dist.Bernoulli(logits=logits) for name in "ab"}

    model = credo.Model({"w": dist.Normal(1.0, 0.01)}, likelihood)

    def outcomes(first, second):
        return np.stack([first, second], axis=-1) if kind == "columns" else {"a": first, "b": second}

    ones = np.ones(6, int)
    posterior = credo.fit(model.given(X, outcomes(ones, ones)), credo.MAP())
    found = posterior.predict(X, credo.Augmented([lambda x: x, lambda x: -x]))
    p = 1 / (1 + np.exp(-4.0 * float(posterior.mean()["w"]) * X))
    both = 0.5 * (p * p + (1 - p) * (1 - p))
    assert np.allclose(found.log_prob(outcomes(ones, ones)), np.log(both))
    assert np.allclose(found.log_prob(outcomes(ones, 1 - ones)), np.log(p * (1 - p)))
    draws = found.sample(1, 4_000)
    first, second = np.moveaxis(np.asarray(draws), -1, 0) if kind == "columns" else (draws["a"], draws["b"])
    assert np.allclose(np.mean((first == 1) & (second == 1), axis=0), both, atol=0.04)
    assert np.allclose(np.mean(first, axis=0), 0.5, atol=0.04)
    assert np.isclose(np.mean(first[:, 0] * first[:, -1]), 0.25, atol=0.04), "each row has a transform of its own"


def test_bad_transforms(posterior):
    with pytest.raises(credo.CredoError, match="returned arrays of shapes"):
        posterior.predict(X, credo.Augmented([lambda x: x[:2]], RULE))
    for transforms in ([], 3, abs, "flip", [3]):
        with pytest.raises(credo.CredoError, match="takes a list of functions of x, one at least"):
            credo.Augmented(transforms, RULE)  # type: ignore[arg-type]
    for rule in (credo.Linearised(), credo.MonteCarlo, credo.Augmented(VIEWS)):
        with pytest.raises(credo.CredoError, match="averages over draws of the parameters: leave rule out"):
            credo.Augmented(VIEWS, rule)


def test_where_predictions_would_be_linearised_the_other_rule_is_told():
    weights = {"a": np.ones(4), "b": np.linspace(-1, 1, 4), "c": np.ones(4)}

    def apply(p, x):
        return np.tanh(1.0) * (x[:, None] * p["a"] + p["b"]) @ p["c"]

    network = credo.nn.BayesianNetwork(apply, weights, head=credo.nn.Gaussian(0.3), prior=credo.nn.Isotropic(1.0))
    posterior = credo.fit(network.given(X, 0.5 * X), credo.Laplace(num_steps=0), start={"weights": weights}, key=0)
    with pytest.warns(UserWarning, match="predictions of this posterior are linearised") as record:
        told = posterior.predict(X, credo.Augmented(VIEWS))
    assert record[0].filename == __file__
    assert np.allclose(told.mean, posterior.predict(X, credo.Augmented(VIEWS, credo.MonteCarlo())).mean)
