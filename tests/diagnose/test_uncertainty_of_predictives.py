"""PIT, coverage and novelty of predictives whose law is known by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import credo
from credo.diagnose import auroc, interval_coverage, novelty_scores, pit
from credo.diagnose.intervals import NUM_DRAWS
from credo.linalg.dense import Dense
from credo.model.model import Model
from credo.posterior.kinds import Gaussian, Point
from credo.posterior.posterior import Posterior
from credo.status import CredoError, Verdict

RNG = np.random.default_rng(0)
X = RNG.normal(size=400)
SD = 0.4


def line(params, x):
    return dist.Normal(params["w"] * x, 1.0)


def count(params, x):
    return dist.Poisson(3.0 + 0.0 * params["w"] * x)


def classes(params, x):
    return dist.Bernoulli(logits=params["w"] * x)


def share(params, x):  # numpyro knows no distribution function of it
    return dist.Kumaraswamy(jnp.exp(params["w"] * x), 2.0)


@functools.cache
def predictive(likelihood):
    kind = (
        Point(np.array([0.7]))
        if likelihood in (count, share)
        else Gaussian(np.array([0.7]), Dense.from_covariance(np.array([[SD**2]])))
    )
    y = np.zeros(400, int) if likelihood in (count, classes) else np.zeros(400)
    target = Model({"w": dist.Normal(0.0, 1.0)}, likelihood).given(X, y)
    rule = credo.Linearised() if likelihood in (line, classes) else None
    return Posterior(kind, target, verdict=Verdict("pass")).predict(X, rule)


OUTCOME = stats.norm(0.7 * X, np.sqrt(1 + (SD * X) ** 2))


def test_pit_of_a_normal_outcome():
    y = OUTCOME.rvs(random_state=1)
    np.testing.assert_allclose(pit(predictive(line), y), OUTCOME.cdf(y), atol=1e-9)


def test_pit_of_counts_is_uniform():
    y = stats.poisson(3.0).rvs(400, random_state=2)
    values = pit(predictive(count), y)
    assert np.all((values >= stats.poisson(3.0).cdf(y - 1)) & (values <= stats.poisson(3.0).cdf(y)))
    assert stats.kstest(values, "uniform").pvalue > 1e-3


def test_pit_by_draws():
    """A Kumaraswamy variable's distribution function is 1 − (1 − yᵃ)ᵇ, which the draws approach."""
    y = np.random.default_rng(3).uniform(size=400)
    found = pit(predictive(share), y)
    np.testing.assert_allclose(found, 1.0 - (1.0 - y ** np.exp(0.7 * X)) ** 2, atol=4 * 0.5 / np.sqrt(NUM_DRAWS))


@pytest.mark.slow
def test_pit_of_counts_by_draws_is_drawn_below_the_count():
    """numpyro knows no distribution function of a beta-binomial count: at zero the values are uniform on (0, Pr(0))."""
    model = Model({"w": dist.Normal(0.0, 1.0)}, lambda params, x: dist.BetaBinomial(1.0 + 0 * params["w"] * x, 1.0, 3))
    target = model.given(X, np.zeros(400, int))
    found = pit(Posterior(Point(np.zeros(1)), target, verdict=Verdict("pass")).predict(X), np.zeros(400, int))
    error = 4 * 0.25 / np.sqrt(12 * 400)
    np.testing.assert_allclose(np.mean(found), 0.125, atol=error)  # all four counts have the same probability


def test_coverage_is_what_intervals_cover():
    y = OUTCOME.rvs(random_state=4)
    low, high = predictive(line).interval(0.8)
    found = interval_coverage(predictive(line), y, 0.8)
    assert found.value == np.mean((low <= y) & (y <= high))
    assert abs(found.error - np.sqrt(found.value * (1 - found.value) / 400)) < 2e-4
    assert abs(found.value - 0.8) < 4 * found.error
    low, high = predictive(count).interval(0.5)
    counts = stats.poisson(3.0).rvs(400, random_state=5)
    assert interval_coverage(predictive(count), counts, 0.5).value == np.mean((low <= counts) & (counts <= high))


def test_counts_without_a_sign_are_the_same_counts():
    """One less than zero is 255 in bytes: zeros lay outside of every interval, and had PIT values round a half."""
    counts = stats.poisson(3.0).rvs(400, random_state=5)
    assert interval_coverage(predictive(count), counts.astype(np.uint8)) == interval_coverage(predictive(count), counts)
    np.testing.assert_array_equal(pit(predictive(count), counts.astype(np.uint8)), pit(predictive(count), counts))


def test_all_inside_is_not_certain():
    found = interval_coverage(predictive(line), OUTCOME.mean(), 0.5)
    assert found.value == 1.0
    assert 0.0 < found.error < 0.01


def test_novelty_of_a_line():
    scores = novelty_scores(predictive(line))
    np.testing.assert_allclose(scores["epistemic"], (SD * X) ** 2, rtol=1e-10)
    np.testing.assert_allclose(scores["variance"], 1 + (SD * X) ** 2, rtol=1e-10)
    np.testing.assert_allclose(scores["mutual_information"], 0.5 * np.log1p((SD * X) ** 2), rtol=1e-10)
    assert list(scores) == ["variance", "mutual_information", "epistemic"]
    assert auroc(scores["mutual_information"], np.abs(X) > 1.0) == (1.0, 0.0)


def test_novelty_of_classes():
    scores = novelty_scores(predictive(classes))
    p = np.asarray(predictive(classes).probs)
    np.testing.assert_allclose(scores["max_probability"], np.minimum(p, 1 - p), rtol=1e-12)
    np.testing.assert_allclose(scores["entropy"], stats.bernoulli(p).entropy(), rtol=1e-10)
    assert np.all(scores["mutual_information"] < scores["entropy"])
    np.testing.assert_array_equal(scores["epistemic"], predictive(classes).epistemic)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: pit(predictive(line), np.zeros(3)), "an outcome for each row"),
        (lambda: pit(predictive(line), np.full(400, np.nan)), "NaN in 400 place.s. .the first in row 0"),
        (lambda: interval_coverage(predictive(line), np.zeros(400), 1.0), "strictly between"),
        (
            lambda: interval_coverage(predictive(line), np.zeros(400), "0.9"),  # type: ignore[arg-type]
            "strictly between 0 and 1; got '0.9'",
        ),
    ],
)
def test_bad_input_gets_a_sentence(call, sentence):
    with pytest.raises(CredoError, match=sentence):
        call()


@pytest.mark.parametrize("columns", [1, 2])
def test_pit_of_ordered_classes_without_inputs_and_in_columns(columns):
    y = np.random.default_rng(0).integers(0, 3, size=(60, columns))
    cut = np.array([-0.5, 0.8])
    model = credo.Model(
        {"level": dist.Normal(0.0, 1.0).expand([columns])}, lambda params, x: dist.OrderedLogistic(params["level"], cut)
    )
    posterior = credo.fit(model.given(y=y[0]), credo.Laplace(), progress=False)
    predictive, outcome = posterior.predict(), y[0]
    probs = np.broadcast_to(predictive.probs, (columns, 3))
    found = pit(predictive, outcome, key=jax.random.key(1))
    upper = np.cumsum(probs, axis=1)[np.arange(columns), outcome]
    assert np.all((found >= upper - probs[np.arange(columns), outcome]) & (found <= upper))
    assert 0 <= interval_coverage(predictive, outcome).value <= 1


def test_classes_have_no_pit():
    target = Model({"w": dist.Normal(0.0, 1.0).expand([2])}, lambda p, x: dist.Categorical(logits=x[:, None] * p["w"]))
    posterior = Posterior(Point(np.ones(2)), target.given(X, np.zeros(400, int)), verdict=Verdict("pass"))
    with pytest.raises(CredoError, match="no order"):
        pit(posterior.predict(X), np.zeros(400, int))


def test_classes_with_an_order_have_pit_values_and_intervals():
    """By the sums of their probabilities: uniform where the predictive is right, 90 % covered at least."""
    random = np.random.default_rng(0)
    x = random.normal(size=400)
    y = np.digitize(x + random.logistic(size=400), [-1.0, 0.5, 2.0])
    cuts = dist.TransformedDistribution(dist.Normal(0, 3).expand([3]).to_event(1), dist.transforms.OrderedTransform())
    model = credo.Model({"b": dist.Normal(0, 2), "c": cuts}, lambda p, x: dist.OrderedLogistic(p["b"] * x, p["c"]))
    predictive = credo.fit(model.given(x, y), credo.Laplace(), progress=False).predict(x, key=0)
    values = credo.diagnose.pit(predictive, y)
    sums = np.cumsum(predictive.probs, axis=1)
    assert np.all(values <= sums[np.arange(400), y])
    assert np.all(values >= sums[np.arange(400), y] - predictive.probs[np.arange(400), y])
    assert abs(values.mean() - 0.5) < 4 / np.sqrt(12 * 400)
    assert credo.diagnose.interval_coverage(predictive, y).value >= 0.9
