"""Acquisitions: what they rank first where noise and ignorance part."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import credo
from credo.decisions import bald, choose, entropy, predictive_variance
from credo.linalg.dense import Dense
from credo.model.model import Model
from credo.posterior.kinds import Gaussian, Point
from credo.posterior.posterior import Posterior
from credo.status import CredoError, Verdict

X = np.array([[0.0, 3.0], [2.0, 1.0], [1.0, 0.1], [2.0, 1.0]])  # (what meets the weight, the noise's sd)


def noisy(params, x):
    return dist.Normal(params["w"] * x[:, 0], x[:, 1])


def binary(params, x):
    return dist.Bernoulli(logits=params["w"] * x[:, 0] + 1.0)


def named(params, x):
    return {"a": noisy(params, x), "b": noisy(params, x)}


def predictive(likelihood, kind=None, rule=None):
    kind = Gaussian(np.zeros(1), Dense.from_covariance(np.array([[0.25]]))) if kind is None else kind
    y = np.zeros(4, int) if likelihood is binary else np.zeros(4)
    y = {"a": y, "b": y} if likelihood is named else y
    target = Model({"w": dist.Normal(0.0, 1.0)}, likelihood).given(X, y)
    return Posterior(kind, target, verdict=Verdict("pass")).predict(X, rule)


def test_bald_passes_over_noise_that_variance_asks_for():
    found = predictive(noisy, rule=credo.Linearised())
    np.testing.assert_allclose(bald(found), 0.5 * np.log1p(0.25 * X[:, 0] ** 2 / X[:, 1] ** 2), rtol=1e-12)
    np.testing.assert_allclose(predictive_variance(found), 0.25 * X[:, 0] ** 2 + X[:, 1] ** 2, rtol=1e-12)
    np.testing.assert_array_equal(choose(found, bald, 4), [2, 1, 3, 0])  # of equals the earlier
    np.testing.assert_array_equal(choose(found, predictive_variance, 2), [0, 1])
    np.testing.assert_array_equal(choose(found), [2])


def test_entropy_of_a_class():
    found = predictive(binary, rule=credo.Quadrature())
    np.testing.assert_allclose(entropy(found), stats.bernoulli(found.probs).entropy(), rtol=1e-10)
    assert choose(found, entropy, 1)[0] == np.argmax(entropy(found))
    assert bald(found)[0] < 1e-9 < bald(found)[1]  # the first row's class is chance alone


def test_the_information_is_the_expected_shrinkage_of_the_posterior():
    """For a Gaussian weight, ½ log of prior over posterior variance, whatever the outcome: Lindley's (1956) gain."""
    found = predictive(noisy, rule=credo.Linearised())
    precision = 4.0 + X[:, 0] ** 2 / X[:, 1] ** 2
    np.testing.assert_allclose(bald(found), 0.5 * np.log(precision / 4.0), rtol=1e-12)


def test_an_acquisition_of_ones_own():
    found = predictive(noisy, Point(np.ones(1)))
    np.testing.assert_array_equal(choose(found, lambda predictive: -predictive.mean, 1), [0])
    marks = np.array([0, 2, 1, 0])
    for dtype in (np.uint8, bool):  # neither has negatives
        np.testing.assert_array_equal(choose(found, lambda _, dtype=dtype: marks.astype(dtype), 2), [1, 2])


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: entropy(predictive(noisy)), "entropy is of classes"),
        (lambda: choose(predictive(noisy), bald, 5), "from 1 to 4; got 5"),
        (lambda: choose(predictive(noisy), bald, True), "got True"),
        (lambda: choose(predictive(noisy), lambda p: jnp.ones((4, 2))), "one number a row"),
        (lambda: choose(predictive(noisy), lambda p: jnp.ones(7)), "this one gives 7 for 4 rows of x"),
        (lambda: choose(predictive(noisy), lambda p: np.full(4, np.nan)), "row 0 is NaN"),
        (lambda: predictive_variance(predictive(named)), "has a, b"),
    ],
)
def test_bad_input_gets_a_sentence(call, sentence):
    with pytest.raises(CredoError, match=sentence):
        call()


def test_what_is_no_predictive_or_no_column_has_a_sentence():
    model = credo.Model({"w": dist.Normal(0.0, 1.0)}, lambda params, x: dist.BernoulliLogits(params["w"] * x))
    posterior = credo.fit(model.given(np.ones(4), np.ones(4)), credo.Laplace(), progress=False)
    for acquisition in (credo.decisions.bald, credo.decisions.predictive_variance):
        with pytest.raises(credo.CredoError, match="takes a predictive"):
            acquisition(posterior)
    predictive = posterior.predict(np.ones(4))
    for function in (credo.diagnose.calibration_error, credo.diagnose.brier_decomposition, credo.diagnose.auroc):
        with pytest.raises(credo.CredoError, match="is a predictive: give an array"):
            function(predictive, np.ones(4))
