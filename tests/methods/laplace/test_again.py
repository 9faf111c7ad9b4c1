"""A second fit of a network, and a second prediction, trace nothing and factor nothing twice."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import LogNormal

import credo
from credo.nn import BayesianNetwork, Categorical, Isotropic, PerLayer
from credo.predict import by_layers, projection

RANDOM = np.random.default_rng(5)
TRACES: list[int] = []
PARAMS = {"in": RANDOM.normal(size=(12, 9)), "out": RANDOM.normal(size=(9, 3))}


def apply(params, x):
    TRACES.append(1)
    return jnp.tanh(x @ params["in"]) @ params["out"]


def new_target():
    network = BayesianNetwork(apply, PARAMS, head=Categorical())
    return network.given(RANDOM.normal(size=(60, 12)), RANDOM.integers(3, size=60))


def fitted(structure, subset, target=None):
    target = new_target() if target is None else target
    method = credo.Laplace(structure=structure, subset=subset, curvature=credo.laplace.GaussNewton(), num_steps=0)
    return credo.fit(target, method, precision="float32", progress=False)


@pytest.mark.parametrize(
    ("structure", "subset"),
    [
        (credo.laplace.Dense(), credo.laplace.LastLayer()),
        pytest.param(credo.laplace.Dense(), credo.laplace.All(), marks=pytest.mark.slow),
        pytest.param(credo.laplace.Kronecker(), credo.laplace.All(), marks=pytest.mark.slow),
    ],
    ids=["last layer", "dense", "kronecker"],
)
def test_a_second_fit_and_its_prediction_do_not_trace_the_network(structure, subset):
    """New data, a new target, the same shapes."""
    x = RANDOM.normal(size=(7, 12))
    _ = fitted(structure, subset).predict(x, credo.Probit()).probs
    other = new_target()
    before = len(TRACES)
    probs = fitted(structure, subset, other).predict(x + 1.0, credo.Probit()).probs
    assert len(TRACES) == before > 0
    np.testing.assert_allclose(probs.sum(axis=1), 1.0, rtol=1e-6)


@pytest.mark.parametrize("rule", [Isotropic, PerLayer])
def test_networks_of_one_shape_with_unknown_precisions_are_traced_once(rule):
    """As in a loop over splits: each network has its own prior and weights, and took seconds to compile."""

    def one(seed: int):
        random = np.random.default_rng(seed)
        weights = jax.tree.map(lambda leaf: random.normal(size=leaf.shape), PARAMS)
        network = BayesianNetwork(apply, weights, head=Categorical(), prior=rule(LogNormal(0.0, 2.0)))
        target = network.given(random.normal(size=(60, 12)), random.integers(3, size=60))
        before = len(TRACES)
        posterior = credo.fit(target, credo.Laplace(num_steps=0), key=0, progress=False)
        return len(TRACES) - before, posterior

    (first, one_posterior), (second, other) = one(0), one(1)
    assert second <= 3 < 9 <= first  # what is left are looks at shapes
    assert one_posterior.mean()["precision"] != other.mean()["precision"]


def test_covariances_are_formed_once_a_posterior_and_go_with_it(monkeypatch):
    """By fit, whose verdict predicts, and all predictions; two posteriors are never taken for one another."""
    counts = []
    monkeypatch.setattr(by_layers, "SMALL", 0)  # which would have no need of them here
    square = by_layers._square
    monkeypatch.setattr(by_layers, "_square", lambda lower: counts.append(1) or square(lower))
    first, second = (fitted(credo.laplace.Dense(), credo.laplace.LastLayer()) for _ in range(2))
    assert len(counts) == 2
    x = RANDOM.normal(size=(60, 12))
    own = second.predict(x, credo.Probit()).probs
    np.testing.assert_array_equal(second.predict(x, credo.Probit()).probs, own)
    assert len(counts) == 2
    assert np.max(np.abs(first.predict(x, credo.Probit()).probs - own)) > 0  # other data: another covariance
    assert len(counts) == 3
    np.testing.assert_array_equal(second.predict(x, credo.Probit()).probs, own)
    del first, second
    gc.collect()
    assert by_layers._PAIRS.found is None


@pytest.mark.parametrize("rule", [credo.Probit(), credo.Linearised()])
def test_no_dense_root_goes_along_with_the_rows(rule, monkeypatch):
    """Its copies in float64, one a chunk, took four times the memory of the matrix itself."""
    monkeypatch.setattr(by_layers, "SMALL", 0)
    posterior, seen, outputs = fitted(credo.laplace.Dense(), credo.laplace.LastLayer()), [], projection._outputs
    dim = by_layers.inner_of(posterior.kind.scale)[0].dim

    def watched(given, *args, **kwargs):
        seen.extend(np.shape(leaf) for leaf in jax.tree.leaves(given))
        return outputs(given, *args, **kwargs)

    monkeypatch.setattr(projection, "_outputs", watched)
    x = RANDOM.normal(size=(60, 12))
    found = posterior.predict(x, rule)
    assert seen
    assert (dim, dim) not in seen
    monkeypatch.setattr(by_layers, "plan", lambda *_: None)
    plain = posterior.predict(x, rule)
    assert (dim, dim) in seen
    np.testing.assert_allclose(found.probs, plain.probs, atol=1e-6)
    np.testing.assert_array_equal(found.sample(0, 20), plain.sample(0, 20))
