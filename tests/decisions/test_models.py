"""Model choice is a decision under zero-one loss on the probabilities of models."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import jacobian
from jax.nn import softmax
from numpyro import handlers
from scipy.special import betaln, expit

import credo
from credo.adapters import from_numpyro
from credo.decisions import CostMatrix, ModelProbabilities, Reject, Squared, ZeroOne, model_probabilities
from credo.posterior.posterior import Posterior
from credo.status import CredoError, Verdict

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


def test_the_error_of_three_probabilities_is_that_of_their_softmax():
    log_joint, errors = jnp.array([0.0, 1.0, -0.5]), np.array([0.1, 0.02, 0.3])
    belief = ModelProbabilities(("a", "b", "c"), np.asarray(softmax(log_joint)), errors)
    moved = np.asarray(jacobian(softmax)(log_joint)) * errors
    np.testing.assert_allclose(belief.error, np.sqrt(np.sum(moved**2, axis=1)), rtol=1e-5)


def test_an_error_of_unknown_size_stays_unknown():
    laplace = credo.fit(FITS["any"].target, credo.Laplace(), progress=False)
    belief = model_probabilities({"fair": FITS["fair"], "any": laplace})
    assert np.isnan(belief.error).all()
    assert np.isnan(credo.decide(belief, ZeroOne()).error)
    assert credo.decide(belief, CostMatrix([[2.0, 2.0], [5.0, 5.0]])).error == 0, "it costs the same under both"


HOLES = np.array([[1, np.nan, 1, 1, 0], [1, 1, np.nan, 1, 0]])  # without its hole the same outcomes twice


def program(seen, times=1.0, x=None, y=TOSSES):
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate("N", len(TOSSES)), handlers.scale(scale=times), handlers.mask(mask=seen):
        numpyro.sample("y", dist.Bernoulli(p), obs=y)


def counted(mask, weights=None) -> Posterior:
    """``mask``: (N,) in the likelihood."""
    model = credo.Model({"p": dist.Beta(1.0, 1.0)}, lambda params, x: dist.Bernoulli(params["p"]).mask(mask))
    return credo.fit(model.given(y=TOSSES, weights=weights), credo.Grid(), progress=False)


def lacking(y) -> Posterior:
    model = credo.Model({"p": dist.Beta(1.0, 1.0)}, lambda params, x: dist.Bernoulli(params["p"] + 0 * x))
    return credo.fit(model.given(np.arange(5.0), y, missing="drop"), credo.Grid(), progress=False)


def of_program(*arguments) -> Posterior:
    return credo.fit(from_numpyro(program, *arguments).given(), credo.Grid(), progress=False)


def measured(y) -> Posterior:
    model = credo.Model({"mean": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["mean"], 1.0))
    return credo.fit(model.given(y=y), credo.Exact(), progress=False)


TENTHS = np.arange(5) / 10
ALL, SOME, NONE_TWICE = np.ones(8, bool), np.arange(8) > 2, np.arange(8.0) % 2


@pytest.mark.parametrize(
    ("one", "other", "sentence"),
    [
        (lambda: counted(ALL), lambda: counted(SOME), "different weights, masks or scales of y"),
        (lambda: counted(ALL), lambda: counted(ALL, NONE_TWICE), "different weights, masks or scales of y"),
        (lambda: of_program(ALL), lambda: of_program(SOME), "different weights, masks or scales of y"),
        (lambda: of_program(ALL), lambda: of_program(ALL, 2.0), "different weights, masks or scales of y"),
        (lambda: lacking(HOLES[0]), lambda: lacking(HOLES[1]), "different missing rows of y"),
    ],
)
def test_models_that_count_other_rows_are_not_compared(one, other, sentence):
    posteriors = {"one": one(), "other": other()}
    with pytest.raises(credo.CredoError, match=f"'one' and 'other' are posteriors of {sentence}"):
        model_probabilities(posteriors)
    with pytest.raises(credo.CredoError, match=f"'one' and 'other' were fitted to {sentence}"):
        credo.compare(posteriors, show=False)


def test_outcomes_that_differ_in_their_last_digits_are_others():
    """At 1e6 single precision knows sixteenths: data 2.8 sds apart were weighed as the same."""
    noise = np.random.default_rng(21).normal(size=(2, 4))
    one, other = (measured_far(1e6 + 0.01 * each) for each in noise)
    with pytest.raises(credo.CredoError, match="different y"):
        model_probabilities({"one": one, "other": other})


def measured_far(y) -> Posterior:
    model = credo.Model({"mean": dist.Normal(1e6, 1.0)}, lambda params, x: dist.Normal(params["mean"], 0.01))
    return credo.fit(model.given(y=y), credo.Exact(), progress=False)


@pytest.mark.slow
def test_the_same_rows_counted_alike_are_compared_however_that_is_said():
    for one, other in (
        (counted(ALL), counted(True, np.ones(8))),
        (counted(SOME), counted(True, SOME.astype(float))),
        (counted(SOME), of_program(SOME)),
        (lacking(HOLES[0]), lacking(HOLES[0])),
        (measured(TENTHS), measured(TENTHS.astype(np.float32))),
    ):
        np.testing.assert_allclose(model_probabilities({"one": one, "other": other}).probs, 0.5, atol=1e-3)


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
        (lambda: model_probabilities(FITS, prior=[0.5, 0.5]), "a weight for each model by its name"),
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


def bare(sd: float, y, *, method=None):
    """y ~ N(m, sd²), m ~ N(0, 3²), as a bare log density."""

    def log_density(params, data):
        return jnp.sum(dist.Normal(params["m"], sd).log_prob(data)) + dist.Normal(0.0, 3.0).log_prob(params["m"])

    model = credo.Model.from_log_density(log_density, {"m": dist.constraints.real})
    return credo.fit(model.given(y), method or credo.Exact(), key=0)


def test_bare_log_densities_are_known_by_their_data():
    y = np.random.default_rng(7).normal(1.0, 1.0, 10)
    found = model_probabilities({"one": bare(1.0, y), "two": bare(2.0, y)})
    whole = {
        name: credo.fit(
            credo.Model({"m": dist.Normal(0.0, 3.0)}, lambda params, x, sd=sd: dist.Normal(params["m"], sd)).given(y=y),
            credo.Exact(),
            key=0,
        )
        for name, sd in (("one", 1.0), ("two", 2.0))
    }
    np.testing.assert_allclose(found.probs, model_probabilities(whole).probs, rtol=1e-9)
    with pytest.raises(CredoError, match="'one' and 'two' are posteriors of different data"):
        model_probabilities({"one": bare(1.0, y), "two": bare(2.0, y + 1)})


def test_data_that_a_log_density_reads_from_outside_are_not_known():
    model = credo.Model.from_log_density(lambda params: -jnp.square(params["m"]), {"m": dist.constraints.real})
    posterior = credo.fit(model.given(), credo.Laplace(), key=0)
    with pytest.raises(CredoError, match="reads its data from outside"):
        model_probabilities({"a": posterior, "b": posterior})


def test_the_evidence_of_a_failed_posterior_is_warned_of():
    y = np.random.default_rng(7).normal(1.0, 1.0, 10)
    good = bare(1.0, y)
    failed = Posterior(
        good.kind, good.target, verdict=Verdict("failed", sentences=("It is off.",)), log_evidence=good.log_evidence
    )
    with pytest.warns(UserWarning, match="The posterior of 'b' has failed, and its log evidence.*It is off"):
        model_probabilities({"a": good, "b": failed})
