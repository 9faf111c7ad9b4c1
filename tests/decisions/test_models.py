"""Model choice is a decision under zero-one loss on the probabilities of models."""

from dataclasses import replace

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.special import betaln, expit

import credo
from credo.decisions import CostMatrix, Reject, Squared, ZeroOne, model_probabilities
from credo.posterior.posterior import Posterior

TOSSES = np.array([1, 1, 0, 1, 1, 1, 0, 1])
HEADS, TAILS = 6, 2


def bernoulli(params, x):
    return dist.Bernoulli(params["p"])


def fit(a: float, b: float, y=TOSSES) -> Posterior:
    return credo.fit(credo.Model({"p": dist.Beta(a, b)}, bernoulli).given(y=y), credo.Exact(), progress=False)


FITS = {"fair": fit(50.0, 50.0), "any": fit(1.0, 1.0)}
EVIDENCES = np.array([betaln(50 + HEADS, 50 + TAILS) - betaln(50, 50), betaln(1 + HEADS, 1 + TAILS)])


def test_probabilities_are_bayes_rule_on_the_evidences():
    belief = model_probabilities(FITS)
    fair = expit(EVIDENCES[0] - EVIDENCES[1])
    np.testing.assert_allclose(belief.probs, [fair, 1 - fair], rtol=1e-9)
    np.testing.assert_array_equal(belief.error, 0.0)
    tilted = model_probabilities(FITS, prior={"any": 1.0, "fair": 3.0})
    np.testing.assert_allclose(tilted.probs[0], expit(EVIDENCES[0] - EVIDENCES[1] + np.log(3)), rtol=1e-9)
    assert model_probabilities(FITS, prior={"any": 0.0, "fair": 1.0}).probs[1] == 0.0


def test_the_choice_is_the_likeliest_model_or_the_cheapest():
    belief = model_probabilities(FITS)
    decision = credo.decide(belief, ZeroOne())
    assert decision.action == "fair"
    np.testing.assert_allclose(decision.expected_loss, belief.probs[1])
    assert decision.error == 0.0
    assert credo.decide(belief, CostMatrix([[0.0, 100.0], [1.0, 0.0]])).action == "any"
    assert credo.decide(belief, lambda action, truth: 0.0 if action == truth else 1.0).action == "fair"
    assert credo.decide(belief, Reject(0.01)).action is None


def test_errors_of_the_evidences_reach_probabilities_and_losses():
    """First-order errors against 20,000 evidences drawn with those errors: their sds agree to 4 sd of a sd (1/√2n)."""
    errors = np.array([0.02, 0.05])
    noisy = {
        name: Posterior(p.kind, p.target, verdict=p.verdict, log_evidence=replace(p.log_evidence, error=error))
        for (name, p), error in zip(FITS.items(), errors, strict=True)
    }
    belief = model_probabilities(noisy)
    drawn = EVIDENCES + errors * np.random.default_rng(0).normal(size=(20_000, 2))
    fair = expit(drawn[:, 0] - drawn[:, 1])
    np.testing.assert_allclose(belief.error, fair.std(), rtol=4 / np.sqrt(40_000))
    costs = np.array([[0.0, 3.0], [1.0, 0.5]])
    decision = credo.decide(belief, CostMatrix(costs))
    row = costs[["fair", "any"].index(decision.action)]
    np.testing.assert_allclose(decision.error, np.std(row[0] * fair + row[1] * (1 - fair)), rtol=4 / np.sqrt(40_000))


def test_an_error_of_unknown_size_stays_unknown():
    laplace = credo.fit(FITS["any"].target, credo.Laplace(), progress=False)
    belief = model_probabilities({"fair": FITS["fair"], "any": laplace})
    assert np.isnan(belief.error).all()
    assert np.isnan(credo.decide(belief, ZeroOne()).error)


def without_evidence() -> Posterior:
    return credo.fit(FITS["any"].target, credo.MAP(), progress=False)


def with_bound() -> Posterior:
    bound = credo.Estimate(-5.0, 0.01, "lower bound")
    return Posterior(FITS["any"].kind, FITS["any"].target, verdict=credo.Verdict("pass"), log_evidence=bound)


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (lambda: model_probabilities({}), "takes a dict of posteriors"),
        (lambda: model_probabilities({"a": 3}), "'a' is a int"),
        (lambda: model_probabilities({"a": without_evidence()}), "'a' has no log evidence"),
        (lambda: model_probabilities({"a": with_bound()}), "'a' is a lower bound"),
        (lambda: model_probabilities({**FITS, "b": fit(1.0, 1.0, 1 - TOSSES)}), "different y"),
        (lambda: model_probabilities(FITS, prior={"fair": 1.0}), "one weight for each"),
        (lambda: model_probabilities(FITS, prior={"fair": -1.0, "any": 2.0}), "not negative"),
        (lambda: credo.decide(model_probabilities(FITS), Squared()), "is for numbers"),
        (lambda: credo.decide(model_probabilities(FITS), CostMatrix(np.eye(3))), "there are 2 models"),
        (lambda: credo.decide(model_probabilities(FITS), lambda a, m: np.nan), "not finite"),
    ],
)
def test_a_wrong_request_ends_in_a_sentence(request_, sentence):
    with pytest.raises(credo.CredoError, match=sentence):
        request_()
