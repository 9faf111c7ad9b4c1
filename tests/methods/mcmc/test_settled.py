"""Discrete coordinates that took one value in all draws, though others have mass."""

import numpy as np
import numpyro.distributions as dist
import pytest

import credo

PLACES = {"z": dist.Bernoulli(0.5), "x": lambda z: dist.Normal(20.0 * z, 1.0 + z)}


def two_places(shift=0.0):
    """z holds x at 0 ± 1 or at 20 ± 2, so that a sweep never leaves the value it fell to; the data say little of z."""
    model = credo.Model(PLACES, lambda params, x: dist.Normal(0.0 * params["x"] + shift * params["z"], 1.0))
    return model.given(y=np.array([0.0]))


def fitted(target, **blocks):
    return credo.fit(target, credo.Gibbs({"z": credo.Enumerated(), **blocks}, num_draws=400), key=0, progress=False)


@pytest.mark.parametrize("method", [credo.Conjugate(), credo.NUTS()], ids=["conjugate", "nuts"])
def test_another_value_with_half_of_the_mass_is_found(method):
    verdict = fitted(two_places(), x=method).verdict
    assert verdict.figures["num_settled"] == 1
    assert verdict.figures["settled_share"] == pytest.approx(0.5, abs=1e-6)
    assert verdict.status == "doubtful"
    assert any("took one value in all draws, where others have 50.0%" in sentence for sentence in verdict.sentences)


def test_the_share_is_that_of_laplace():
    posterior = fitted(two_places(shift=1.0), x=credo.Conjugate())
    shares = np.exp([0.0, -0.5]) / np.sum(np.exp([0.0, -0.5]))
    expected = shares[1 - int(posterior.mean()["z"])]
    assert posterior.verdict.figures["settled_share"] == pytest.approx(expected, abs=1e-6)


def test_a_value_that_the_data_settle_passes():
    model = credo.Model(
        {"z": dist.Bernoulli(0.5), "x": dist.Normal(0.0, 1.0)},
        lambda params, x: dist.Normal(params["x"] + 10.0 * params["z"], 1.0),
    )
    posterior = credo.fit(
        model.given(y=np.zeros(20)), credo.Gibbs({"z": credo.Enumerated(), "x": credo.NUTS()}), key=0, progress=False
    )
    figures = posterior.verdict.figures
    assert figures["settled_share"] < 1e-9
    assert figures["acceptance_rate"] == posterior.info["blocks"]["x"]["acceptance_rate"]  # z proposes nothing
    assert posterior.verdict.status == "pass"


def test_without_continuous_parameters_densities_are_compared():
    model = credo.Model({"z": dist.DiscreteUniform(0, 5)}, lambda params, x: dist.Normal(params["z"], 0.1))
    posterior = fitted(model.given(y=np.full(4, 2.0)))
    assert posterior.verdict.figures["settled_share"] < 1e-9


def test_of_several_coordinates_the_largest_share_is_told_of_those_that_settled():
    """z has another place with half of the mass, the data settle a, and the die that they say nothing of moves."""
    prior = PLACES | {"a": dist.Bernoulli(0.5), "die": dist.Categorical(probs=np.full(3, 1 / 3))}
    target = credo.Model(prior, lambda params, x: dist.Normal(10.0 * params["a"], 1.0)).given(y=np.zeros(20))
    verdict = fitted(target, x=credo.Conjugate(), a=credo.Enumerated(), die=credo.Enumerated()).verdict
    assert verdict.figures["num_settled"] == 2
    assert verdict.figures["settled_share"] == pytest.approx(0.5, abs=1e-6)


def test_of_many_values_the_nearest_are_looked_at():
    """Each of 0 … 30 holds x near a place of its own, and y = 15 ± 1 says which of them have mass."""
    prior = {"z": dist.DiscreteUniform(0, 30), "x": lambda z: dist.Normal(20.0 * z, 1.0)}
    target = credo.Model(prior, lambda params, x: dist.Normal(params["z"], 1.0)).given(y=np.array([15.0]))
    method = credo.Gibbs({"z": credo.Enumerated(), "x": credo.Conjugate()}, num_draws=400)
    posterior = credo.fit(target, method, key=0, start={"z": 14, "x": 300.0}, progress=False)
    others = 2 * np.sum(np.exp(-0.5 * np.arange(1, 5) ** 2))
    assert posterior.verdict.figures["settled_share"] == pytest.approx(others / (1 + others), abs=1e-6)
