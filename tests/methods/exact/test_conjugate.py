"""Recognition of conjugate models: every family's closed form is found, and nothing else is."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.special import betaln

from credo.methods.exact.beta import BetaBernoulli
from credo.methods.exact.conjugate import recognise
from credo.methods.exact.dirichlet import DirichletCategorical
from credo.methods.exact.gamma import GammaPoisson
from credo.methods.exact.normal import NormalKnownVariance
from credo.model.model import Model
from credo.precision import double

GENERATOR = np.random.default_rng(0)
BINARY = (GENERATOR.random(50) < 0.3) * 1.0
TRIALS = GENERATOR.integers(1, 20, 30)
SUCCESSES = GENERATOR.binomial(TRIALS, 0.4)
EXPOSURE = GENERATOR.uniform(0.1, 3.0, 100)
COUNTS = GENERATOR.poisson(500 * EXPOSURE)
LABELS = GENERATOR.integers(0, 4, 60)
TABLE = GENERATOR.multinomial(20, [0.1, 0.2, 0.7], size=40)
NUMBERS = GENERATOR.normal(3.0, 2.0, 80)
ALPHA = np.array([0.7, 0.7, 1.3, 2.0])


def beta(a, b):
    with double():  # built elsewhere, numpyro's Beta computes with a float32 copy of its parameters
        return dist.Beta(a, b)


def bernoulli(params, x):
    return dist.Bernoulli(probs=params["probability"])


def poisson(params, x):
    return dist.Poisson(params["rate"] * x)


def among(components):
    number = components.batch_shape[-1]
    return dist.MixtureSameFamily(dist.Categorical(np.full(number, 1 / number)), components)


CASES = {
    "beta–Bernoulli": (
        {"probability": beta(2.0, 3.0)}, bernoulli, None, BINARY, BetaBernoulli(2, 3).update(BINARY),
    ),
    "uniform–Bernoulli": (
        {"probability": dist.Uniform(0.0, 1.0)}, bernoulli, None, BINARY, BetaBernoulli(1, 1).update(BINARY),
    ),
    "beta–binomial": (
        {"probability": beta(2.0, 3.0)},
        lambda params, x: dist.Binomial(x, params["probability"]),
        TRIALS, SUCCESSES, BetaBernoulli(2, 3).update(successes=SUCCESSES, trials=TRIALS),
    ),
    "gamma–Poisson": (
        {"rate": dist.Gamma(2.0, 3.0)}, poisson, EXPOSURE, COUNTS,
        GammaPoisson(2, 3).update(COUNTS, exposure=EXPOSURE),
    ),
    "exponential–Poisson": (
        {"rate": dist.Exponential(0.5)}, poisson, EXPOSURE, COUNTS,
        GammaPoisson(1, 0.5).update(COUNTS, exposure=EXPOSURE),
    ),
    "normal–normal": (
        {"mean": dist.Normal(0.0, 10.0)}, lambda params, x: dist.Normal(params["mean"], 2.0), None, NUMBERS,
        NormalKnownVariance(0, 100, 4).update(NUMBERS),
    ),
    "gamma–Poisson, a prior without information": (
        {"rate": dist.Gamma(1e-3, 1e-3)}, poisson, EXPOSURE, COUNTS,
        GammaPoisson(1e-3, 1e-3).update(COUNTS, exposure=EXPOSURE),
    ),
    "normal–normal, a prior a million sds wide": (
        {"mean": dist.Normal(0.0, 1e6)}, lambda params, x: dist.Normal(params["mean"], 2.0), None, NUMBERS,
        NormalKnownVariance(0, 1e12, 4).update(NUMBERS),
    ),
    "normal–normal, far off": (
        {"mean": dist.Normal(0.0, 10.0)}, lambda params, x: dist.Normal(params["mean"], 2e-3),
        None, 1e6 + NUMBERS / 1e3,
        NormalKnownVariance(0, 100, 4e-6).update(1e6 + NUMBERS / 1e3),
    ),
    "Dirichlet–categorical": (
        {"probabilities": dist.Dirichlet(ALPHA)}, lambda params, x: dist.Categorical(probs=params["probabilities"]),
        None, LABELS, DirichletCategorical(ALPHA).update(LABELS),
    ),
    "Dirichlet–multinomial": (
        {"probabilities": dist.Dirichlet(ALPHA[:3])},
        lambda params, x: dist.Multinomial(20, probs=params["probabilities"]),
        None, TABLE, DirichletCategorical(ALPHA[:3]).update(counts=TABLE),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("prior", "likelihood", "x", "y", "expected"), CASES.values(), ids=CASES.keys())
def test_conjugate_pairs_are_found(prior, likelihood, x, y, expected):
    distributions, log_evidence = recognise(Model(prior=prior, likelihood=likelihood).given(x, y))
    assert log_evidence == pytest.approx(expected.log_evidence.value, rel=1e-10)
    for name, wanted in expected.distributions.items():
        found = distributions[name]
        assert type(found) is type(wanted)
        for argument in wanted.arg_constraints:
            np.testing.assert_allclose(getattr(found, argument), getattr(wanted, argument), rtol=1e-10)


def test_sample_weights_are_multiplicities():
    model = Model(prior={"rate": dist.Gamma(2.0, 3.0)}, likelihood=poisson)
    weights = np.arange(100) % 3
    distributions, log_evidence = recognise(model.given(EXPOSURE, COUNTS, weights=weights.astype(float)))
    expected = GammaPoisson(2, 3).update(np.repeat(COUNTS, weights), exposure=np.repeat(EXPOSURE, weights))
    assert log_evidence == pytest.approx(expected.log_evidence.value, rel=1e-10)
    assert distributions["rate"].concentration == pytest.approx(expected.a, rel=1e-10)


def test_independent_parameters_of_several_families():
    group = np.arange(60) % 3
    y = GENERATOR.geometric(np.array([0.2, 0.5, 0.8])[group]) - 1

    def likelihood(params, x):
        return dist.GeometricProbs(params["probability"][x])

    prior = {"probability": beta(2.0, 3.0).expand([3]).to_event(1), "unused": dist.InverseGamma(3.0, 2.0)}
    distributions, log_evidence = recognise(Model(prior=prior, likelihood=likelihood).given(group, y))
    failures = np.array([y[group == g].sum() for g in range(3)])
    found = distributions["probability"]
    assert found.event_dim == 1
    np.testing.assert_allclose(found.base_dist.concentration1, 2.0 + 20)
    np.testing.assert_allclose(found.base_dist.concentration0, 3.0 + failures)
    assert distributions["unused"].concentration == pytest.approx(3.0, rel=1e-12)
    expected = np.sum(betaln(2.0 + 20, 3.0 + failures) - betaln(2.0, 3.0))
    assert log_evidence == pytest.approx(expected, rel=1e-10)


NOT_CONJUGATE = {
    "another parametrisation": (
        {"p": beta(2.0, 3.0)}, lambda params, x: dist.Bernoulli(params["p"] ** 2), None, BINARY,
    ),
    "logistic": ({"z": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Bernoulli(logits=params["z"]), None, BINARY),
    "an unknown family": (
        {"p": dist.LogNormal(0.0, 1.0)}, lambda params, x: dist.Poisson(params["p"]), None, COUNTS,
    ),
    "dependent weights": (
        {"w": dist.Normal(0.0, 1.0).expand([2])},
        lambda params, x: dist.Normal(x @ params["w"], 1.0),
        np.column_stack([np.ones(80), NUMBERS]), NUMBERS,
    ),
    "a hierarchy": (
        {"variance": dist.InverseGamma(2.0, 3.0), "mean": lambda variance: dist.Normal(0.0, jnp.sqrt(variance))},
        lambda params, x: dist.Normal(params["mean"], jnp.sqrt(params["variance"])),
        None, NUMBERS,
    ),
    "a kink two sds away": (
        {"m": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(jnp.maximum(params["m"], 2.0) * x, 1.0),
        np.array([1.0, 2.0]), np.array([0.3, 0.1]),
    ),
    "a small addition": (
        {"rate": dist.Gamma(2.0, 3.0)}, lambda params, x: dist.Poisson(params["rate"] + 1e-4), None, COUNTS[:5],
    ),
    "another mode, far in the prior": (  # conjugate to 16 digits about the first one
        {"angle": dist.Normal(0.0, 500.0)},
        lambda params, x: among(dist.Normal(params["angle"][..., None] + np.array([-360.0, 0.0, 360.0]), 5.0)),
        None, np.array([10.0, 12.0, 7.0]),
    ),
    "per hour or per minute": (
        {"rate": dist.Gamma(1.0, 1e-3)},
        lambda params, x: among(dist.Poisson(params["rate"][..., None] * np.array([1.0, 60.0]))),
        None, np.array([600, 630, 580]),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("prior", "likelihood", "x", "y"), NOT_CONJUGATE.values(), ids=NOT_CONJUGATE.keys())
def test_other_models_are_not_recognised(prior, likelihood, x, y):
    assert recognise(Model(prior=prior, likelihood=likelihood).given(x, y)) is None
