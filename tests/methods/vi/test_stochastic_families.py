"""Families on networks: a last layer with a posterior over features with a value; low rank; IVON."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo


@pytest.fixture(scope="module")
def target():
    random = np.random.default_rng(0)
    x = random.normal(size=(120, 2))
    params = {"in": {"w": random.normal(size=(2, 3)), "b": np.zeros(3)}, "last": {"w": np.zeros(3), "b": np.zeros(())}}

    def apply(params, x):
        return jnp.tanh(x @ params["in"]["w"] + params["in"]["b"]) @ params["last"]["w"] + params["last"]["b"]

    network = credo.nn.BayesianNetwork(apply, params, head=credo.nn.Gaussian(0.2))
    return network.given(x, np.sin(2 * x[:, 0]) + 0.2 * random.normal(size=120))


def test_a_last_layer_over_points_is_its_regression(target):
    """Given the features found, the last layer's posterior is Bayesian linear regression's."""
    family = credo.vi.Blocks({"weights.last": credo.FullRank()}, others=credo.vi.Point())
    posterior = credo.fit(target, credo.ADVI(family=family, batch_size=40, max_steps=8_000), key=0)
    assert posterior.log_evidence is None  # with points in it the objective bounds nothing
    flat = target.flat()
    u = np.asarray(posterior.kind.parts[1].position)
    center = np.zeros(target.dim)
    places = {leaf.name: leaf for leaf in target.structure.leaves}
    assert set(places) == {"weights.in.b", "weights.in.w", "weights.last.b", "weights.last.w"}
    center[: u.size] = u
    weights = flat.constrain(jnp.asarray(center))["weights"]["in"]
    features = np.tanh(target.x @ np.asarray(weights["w"]) + np.asarray(weights["b"]))
    design = np.concatenate([np.ones((120, 1)), features], axis=1)  # b before w
    precision = design.T @ design / 0.04 + np.eye(4)
    mean = np.linalg.solve(precision, design.T @ target.y / 0.04)
    found = posterior.kind.parts[0]
    sd = np.sqrt(np.diagonal(np.linalg.inv(precision)))
    assert np.max(np.abs(np.asarray(found.mean) - mean) / sd) < 1.0
    np.testing.assert_allclose(np.sqrt(np.asarray(found.scale.diagonal())), sd, rtol=0.3)
    assert posterior.predict(target.x[:5]).mean.shape == (5,)


@pytest.mark.parametrize("method", [credo.NaturalGradient, credo.ADVI], ids=["IVON", "LowRank"])
def test_others_reach_a_good_fit(target, method):
    options = {"family": credo.vi.LowRank(2)} if method is credo.ADVI else {"family": credo.MeanField()}
    posterior = credo.fit(target, method(batch_size=40, max_steps=6_000, **options), key=0)
    predicted = np.asarray(posterior.predict(target.x).mean)
    assert np.sqrt(np.mean((predicted - target.y) ** 2)) < 0.4  # 0.7 without inputs
    assert posterior.verdict.status in ("doubtful", "failed")


def test_points_alone_are_refused_in_few_dimensions():
    model = credo.Model({"w": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["w"], 1.0))
    with pytest.raises(credo.CredoError, match="MAP"):
        credo.fit(model.given(y=np.ones(3)), credo.ADVI(family=credo.vi.Point()))
