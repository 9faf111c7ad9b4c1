"""Optimisers: each leads any family to the same answer, and what a step cannot use has a sentence."""

from dataclasses import dataclass

import numpy as np
import numpyro.distributions as dist
import optax
import pytest

import targets
from cases import first_of
from credo.fitting import fit
from credo.methods.vi import (
    ADVI,
    Blocks,
    Flow,
    FlowAdam,
    FullRank,
    LowRank,
    MeanField,
    MixtureOf,
    Momentum,
    Optimiser,
)
from credo.model.model import Model
from credo.nn import BayesianNetwork, Gaussian
from credo.status import CredoError

FAMILIES = [MeanField(), FullRank(), LowRank(1), MixtureOf(2), Blocks({"w": FullRank()}, others=MeanField())]
X = np.random.default_rng(0).normal(size=(60, 3)) @ (np.eye(3) + 0.7)
Y = X @ np.array([-1.0, 0.0, 1.0]) + np.random.default_rng(1).normal(size=60)
NUM_ERRORS = 4
APART = optax.inject_hyperparams(optax.adam)(learning_rate=0.1)  # whose state holds the rate


@dataclass(frozen=True)
class Plain(Optimiser):
    """The direction itself."""

    def start(self, rest):
        return ()

    def update(self, direction, state, step_size):
        return direction, state


def likelihood(params, x):
    return dist.Normal(x @ params["w"], params["noise"])


@pytest.fixture(scope="module")
def target():
    return Model({"w": dist.Normal(0.0, 2.0).expand([3]), "noise": dist.HalfNormal(1.0)}, likelihood).given(X, Y)


@pytest.mark.parametrize("family", first_of([*FAMILIES, Flow(num_layers=2)]), ids=lambda family: type(family).__name__)
def test_adam_leads_any_family_where_its_own_optimiser_does(target, family):
    own = fit(target, ADVI(family=family), key=1, progress=False)
    adam = fit(target, ADVI(family=family, optimiser=optax.adam(0.1)), key=2, progress=False)
    assert own.verdict.figures["elbo_drift"] < 0.01
    assert adam.verdict.figures["elbo_drift"] < 0.01
    error = np.hypot(own.log_evidence.error, adam.log_evidence.error)
    assert abs(adam.log_evidence.value - own.log_evidence.value) < 0.02 + NUM_ERRORS * error


@pytest.mark.parametrize(
    "optimiser",
    first_of(
        [
            optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0, momentum=0.9)),
            optax.rmsprop(0.1),
            optax.adagrad(0.5),
        ]
    ),
    ids=["chain", "rmsprop", "adagrad"],
)
def test_others_of_optax_do_so_too(target, optimiser):
    own = fit(target, ADVI(family=FullRank()), key=1, progress=False)
    found = fit(target, ADVI(family=FullRank(), optimiser=optimiser), key=2, progress=False)
    assert abs(found.log_evidence.value - own.log_evidence.value) < 0.02


def test_gradient_descent_at_rate_one_is_the_natural_step(target):
    plain, sgd = (
        fit(target, ADVI(optimiser=optimiser, max_steps=100), key=3, progress=False)
        for optimiser in (Plain(), optax.sgd(1.0))
    )
    np.testing.assert_allclose(sgd.kind.mean, plain.kind.mean, rtol=1e-9)
    np.testing.assert_allclose(sgd.sd()["w"], plain.sd()["w"], rtol=1e-9)


@pytest.mark.parametrize("batch_size", [None, 20])
def test_a_state_that_does_not_begin_at_zero_is_kept(target, batch_size):
    """Zeros in the place of a learning rate would never move."""
    start = {"w": np.full(3, 2.0), "noise": np.array(3.0)}
    found, expected = (
        fit(target, ADVI(optimiser=each, batch_size=batch_size, max_steps=100), key=4, start=start, progress=False)
        for each in (APART, optax.adam(0.1))
    )
    np.testing.assert_allclose(found.kind.mean, expected.kind.mean, rtol=1e-6)


def test_adam_from_far_and_on_minibatches():
    target = targets.logistic().target
    whole = fit(target, ADVI(), key=1, progress=False)
    start = {"w": np.full(3, 4.0)}
    method = ADVI(optimiser=optax.adam(0.2), batch_size=100)
    found = fit(target, method, key=1, start=start, progress=False)
    assert abs(found.log_evidence.value - whole.log_evidence.value) < 0.1


@pytest.mark.parametrize("optimiser", [optax.adam(0.1), APART], ids=["adam", "rate within its state"])
def test_the_weights_of_a_network_move_by_adam(optimiser):
    """Of a linear one, whose best mean field is known: that of least KL, of precisions on the diagonal."""
    network = BayesianNetwork(lambda w, x: x @ w, np.zeros((3, 1)), head=Gaussian(1.0))
    method = ADVI(batch_size=20, optimiser=optimiser, max_steps=4_000)
    posterior = fit(network.given(X, Y), method, key=1, progress=False)
    precision = X.T @ X + np.eye(3)
    error = posterior.kind.mean - np.linalg.solve(precision, X.T @ Y)
    assert np.abs(error).max() < 0.3 / np.sqrt(precision.diagonal().min())
    np.testing.assert_allclose(posterior.kind.scale.scale, precision.diagonal() ** -0.5, rtol=0.1)


@pytest.mark.parametrize(
    ("optimiser", "reason"),
    [(optax.adamw(0.1), "requires the current value of parameters"), (optax.polyak_sgd(0.1), "argument: 'value'")],
    ids=["decay of weights", "search along a line"],
)
def test_what_asks_for_more_than_gradients_is_refused(target, optimiser, reason):
    with pytest.raises(CredoError, match=rf"asks for more than gradients .*{reason}.*Use one such as optax.adam"):
        fit(target, ADVI(optimiser=optimiser), progress=False)


def test_an_optimiser_by_name_is_refused(target):
    with pytest.raises(CredoError, match="optimiser is of the kind Optimiser or of the kind GradientTransformation"):
        fit(target, ADVI(optimiser="adam"), progress=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("decay", [1.0, 1.5, -1.0])
def test_a_decay_outside_of_the_unit_interval_is_refused(target, decay):
    with pytest.raises(CredoError, match=rf"Momentum\(decay={decay}\): decay is (below 1.0|0.0 or more)"):
        fit(target, ADVI(optimiser=Momentum(decay)), progress=False)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)
def test_the_optimiser_of_flows_is_for_flows(target, family):
    with pytest.raises(CredoError, match=r"FlowAdam\(\) moves the layers of a flow.*leave optimiser out"):
        fit(target, ADVI(family=family, optimiser=FlowAdam()), progress=False)
