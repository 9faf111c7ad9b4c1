"""Where methods begin: a start that they cannot use is refused, and what a posterior held fixed begins as elsewhere."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo.laplace import LastLayer, Named
from credo.methods.optimise.objective import members
from credo.nn import BayesianNetwork, Gaussian
from credo.posterior.kinds import Draws
from credo.vi import BatchAndMatch

X = np.random.default_rng(0).normal(size=(30, 2))
PRIOR = {"a": dist.Normal(0.0, 1.0), "w": dist.Normal(0.0, 1.0).expand([2])}
TARGET = credo.Model(PRIOR, lambda p, x: dist.Normal(p["a"] + x @ p["w"], 1.0)).given(X, 1.0 + X @ [1.0, -2.0])


@pytest.mark.parametrize(
    "method",
    [credo.MAP(), credo.Laplace(), credo.ADVI(), credo.DADVI(), BatchAndMatch(), credo.Grid()],
    ids=lambda method: type(method).__name__,
)
def test_several_positions_are_refused_by_what_begins_at_one(method):
    with pytest.raises(credo.CredoError, match=r"start has shape \(3, 3\), and this method begins at one"):
        credo.fit(TARGET, method, start=np.zeros((3, 3)), progress=False)
    credo.fit(TARGET, credo.MAP(), start=np.zeros((1, 3)), progress=False)


@pytest.mark.parametrize(("number", "expected"), [(4, [0, 25, 50, 75]), (3, [0, 33, 66])])
def test_members_of_a_set_of_draws_are_spread_over_all_of_it(number, expected):
    draws = np.arange(100.0)[:, None] * np.ones(3)
    posterior = credo.Posterior(Draws(draws.reshape(2, 50, 3)), TARGET, verdict=credo.Verdict("pass"))
    np.testing.assert_array_equal(members(posterior, number)[:, 0], expected)


def test_paths_are_as_many_as_the_positions_given():
    with pytest.raises(credo.CredoError, match=r"start has shape \(3, 3\): give one position, \(3,\), or 4 of them"):
        credo.fit(TARGET, credo.Pathfinder(num_paths=4), start=np.zeros((3, 3)), progress=False)


def test_one_position_is_no_place_for_several_modes():
    with pytest.raises(credo.CredoError, match="begins each member at a place of its own"):
        credo.fit(TARGET, credo.MixtureOfLaplaces(), start={"a": 50.0, "w": np.zeros(2)}, progress=False)


@pytest.mark.parametrize(
    "method",
    [credo.ADVI(), credo.ADVI(credo.FullRank()), credo.DADVI(), BatchAndMatch(), credo.Pathfinder(), credo.NUTS()],
    ids=lambda method: type(method).__name__,
)
def test_a_posterior_of_some_parameters_is_a_start(method):
    """It holds the others fixed, without a width."""
    some = credo.fit(TARGET, credo.Laplace(subset=Named("w")), progress=False)
    truth = credo.fit(TARGET, credo.Laplace(), progress=False)
    found = credo.fit(TARGET, method, start=some, key=1, progress=False)
    assert found.sd()["a"] == pytest.approx(truth.sd()["a"], rel=0.15)


def test_a_last_layer_is_a_start_of_a_network():
    params = {"first": np.eye(2), "last": np.ones(2)}
    network = BayesianNetwork(lambda p, x: jnp.tanh(x @ p["first"]) @ p["last"], params, head=Gaussian(0.5))
    target = network.given(X, np.tanh(X) @ [1.0, -2.0])
    last = credo.fit(target, credo.Laplace(subset=LastLayer()), progress=False)
    found = credo.fit(target, credo.ADVI(batch_size=10, max_steps=200), start=last, progress=False)
    assert np.all(found.sd()["weights"]["first"] > 0)
