"""Laplace of some parameters, the others at the mode: regression on the features that the fixed ones make."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import credo
from credo.linalg.dense import Dense
from credo.linalg.embedded import Embedded
from credo.methods.laplace import layered
from credo.methods.optimise.objective import in_unconstrained_space
from credo.model.last_layer import last_layers
from credo.model.layers import find_layers
from credo.nn import BayesianNetwork, Categorical, Gaussian, Isotropic
from credo.posterior.kinds import Gaussian as Normal
from credo.precision import double

RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(40, 2))
Y = np.sin(2 * X[:, 0]) + 0.3 * RANDOM.normal(size=40)
PARAMS = {
    "in": {"w": RANDOM.normal(size=(2, 6)), "b": RANDOM.normal(size=6)},
    "out": {"w": RANDOM.normal(size=(6, 1)), "b": RANDOM.normal(size=1)},
}


def features(p, x):
    return jnp.tanh(x @ p["in"]["w"] + p["in"]["b"])


def apply(p, x):
    return features(p, x) @ p["out"]["w"] + p["out"]["b"]


def design(x):
    """(M, 7): the features and a one."""
    return np.column_stack([np.tanh(x @ PARAMS["in"]["w"] + PARAMS["in"]["b"]), np.ones(len(x))])


Φ = design(X)
PRECISION = Φ.T @ Φ / 0.09 + 2.0 * np.eye(7)
MEAN = np.linalg.solve(PRECISION, Φ.T @ Y / 0.09)  # of the last layer, given the first
PARAMS["out"] = {"w": MEAN[:6, None], "b": MEAN[6:]}
NETWORK = BayesianNetwork(apply, PARAMS, head=Gaussian(0.3), prior=Isotropic(2.0))
TARGET = NETWORK.given(X, Y)


def laplace(target, subset, structure=None):
    """At the weights that the network was given."""
    structure = credo.laplace.Dense() if structure is None else structure
    method = credo.Laplace(structure=structure, curvature=credo.GaussNewton(), subset=subset, num_steps=0)
    return credo.fit(target, method, key=0, progress=False)


@pytest.fixture(scope="module")
def last():
    return laplace(TARGET, credo.laplace.LastLayer())


# the last layer --------------------------------------------------------------------------------------------------


def test_last_layer_is_bayesian_linear_regression_on_the_features(last):
    marginal = Φ @ Φ.T / 2.0 + 0.09 * np.eye(40)
    log_evidence = -0.5 * (Y @ np.linalg.solve(marginal, Y) + np.linalg.slogdet(2 * np.pi * marginal)[1])
    assert last.log_evidence.value == pytest.approx(log_evidence, rel=1e-6)
    new = RANDOM.normal(size=(5, 2))
    Ψ, predictive = design(new), last.predict(new, rule=credo.Linearised())
    np.testing.assert_allclose(predictive.mean, Ψ @ MEAN, rtol=1e-6)
    np.testing.assert_allclose(
        predictive.epistemic, np.einsum("ij,jk,ik->i", Ψ, np.linalg.inv(PRECISION), Ψ), rtol=1e-6
    )


def test_the_others_are_known(last):
    sd, draws = last.sd(), last.sample(1, 50)
    assert sd["weights"]["in"]["w"].max() < 1e-12
    assert sd["weights"]["out"]["w"].min() > 1e-3
    np.testing.assert_array_equal(np.ptp(draws["weights"]["in"]["b"], axis=0), 0.0)
    with double():
        u = last.kind.mean
        inside = np.linalg.slogdet(np.asarray(last.kind.scale.inner.dense()))[1]
        at_mode = float(last.kind.log_prob_u(u))
        assert at_mode == pytest.approx(-0.5 * inside - 3.5 * np.log(2 * np.pi))
        assert float(last.kind.log_prob_u(u + 0.1)) == -np.inf


def test_saved_and_loaded(last, tmp_path):
    last.save(tmp_path / "posterior")
    again = credo.load(tmp_path / "posterior", NETWORK)
    rule = credo.Linearised()
    np.testing.assert_array_equal(last.predict(X, rule=rule).mean, again.predict(X, rule=rule).mean)
    np.testing.assert_array_equal(last.sd()["weights"]["out"]["w"], again.sd()["weights"]["out"]["w"])


def test_the_verdict_weighs_the_free_coordinates_alone(last):
    """A Gaussian in the free coordinates: weights are one, whatever the fixed ones would do."""
    assert last.verdict.figures["pareto_k"] <= 0.5
    assert last.verdict.figures["min_curvature"] >= 2.0 - 1e-9


def test_the_others_are_at_the_mode_too():
    """Credo trained them all, and takes those that do not vary for known there."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 2))
    params = {"W": rng.normal(size=(2, 8)), "b": np.zeros(8), "v": 0.3 * rng.normal(size=(8, 1))}
    network = BayesianNetwork(
        lambda p, x: (jnp.tanh(x @ p["W"] + p["b"]) @ p["v"])[:, 0], params, head=credo.nn.Gaussian(0.3)
    )
    target = network.given(x, np.sin(2 * x[:, 0]) * x[:, 1])
    whole, part = (
        credo.fit(target, credo.Laplace(subset=each, num_steps=200), progress=False)
        for each in (credo.laplace.All(), credo.laplace.LastLayer())
    )
    assert part.info["log_density"] == pytest.approx(whole.info["log_density"], abs=1e-3)
    assert part.verdict.figures["mode_distance"] == pytest.approx(whole.verdict.figures["mode_distance"], abs=1e-3)


def residual(p, x):
    h = jnp.tanh(x @ p["a"])
    h = h + jnp.tanh(h @ p["b"] + p["c"])
    return jax.jit(lambda h: h @ p["w"] + p["d"])(h)


def two_heads(p, x):
    h = jnp.tanh(x @ p["a"])
    return jnp.concatenate([h @ p["mean"], h @ p["scale"]], axis=-1)


def tied(p, x):
    return jnp.tanh(x @ p["a"]) @ p["a"].T


def hidden(p, x):
    return jnp.tanh(x @ p["a"] + p["c"])


def weight_norm(p, x):
    return hidden(p, x) @ (p["w"] / jnp.linalg.norm(p["w"], axis=0) * p["g"])


def factored(p, x):
    return hidden(p, x) @ (p["w"] @ p["v"])


def prototypes(p, x):
    return -jnp.sum(jnp.square(hidden(p, x) - p["w"].T), axis=-1)


def in_a_loop(p, x):
    return jax.lax.scan(lambda h, w: (jnp.tanh(w @ h), None), hidden(p, x), p["v"])[0]


def scaled(p, x):
    return hidden(p, x) @ p["w"] * p["g"] + p["d"]


def positive(p, x):
    return jax.nn.softplus(hidden(p, x) @ p["w"] + p["d"])


def gated(p, x):
    return (hidden(p, x) @ p["w"]) * jax.nn.sigmoid(hidden(p, x) @ p["v"])


def product_and_sum(p, x):
    return jnp.sum(hidden(p, x)[..., None] * p["w"], axis=-2)


def noise_floor(p, x):
    o = hidden(p, x) @ p["w"] + p["d"]
    return jnp.stack([o[..., 0], jnp.log(jax.nn.softplus(o[..., 1]) + jnp.exp(p["g"][0]))])


def noise_beside(p, x):
    o = jax.nn.softplus(hidden(p, x) @ p["w"] + p["d"])
    return jnp.log(jnp.concatenate([o, jax.nn.softplus(p["g"])]))


def scaled_noise(p, x):
    o = hidden(p, x) @ p["w"] + p["d"]
    return jnp.stack([o[..., 0], jnp.exp(o[..., 1]) * p["g"][0]])


def scaled_heads(p, x):
    return jnp.sum(jnp.stack([hidden(p, x) @ p["w"], hidden(p, x) @ p["v"]]) * p["g"], axis=0)


LAST = {
    "scaled heads": (scaled_heads, {"a": (2, 3), "c": (3,), "w": (3, 2), "v": (3, 2), "g": (2,)}, {"w", "v"}),
    "product and sum": (product_and_sum, {"a": (2, 3), "c": (3,), "w": (3, 2)}, set()),
    "noise floor": (noise_floor, {"a": (2, 3), "c": (3,), "w": (3, 2), "d": (2,), "g": (1,)}, {"w", "d"}),
    "noise beside": (noise_beside, {"a": (2, 3), "c": (3,), "w": (3, 2), "d": (2,), "g": (2,)}, {"w", "d"}),
    "scaled noise": (scaled_noise, {"a": (2, 3), "c": (3,), "w": (3, 2), "d": (2,), "g": (1,)}, {"w", "d"}),
    "weight norm": (weight_norm, {"a": (2, 3), "c": (3,), "w": (3, 2), "g": (2,)}, set()),
    "factored": (factored, {"a": (2, 3), "c": (3,), "w": (3, 2), "v": (2, 2)}, set()),
    "prototypes": (prototypes, {"a": (2, 3), "c": (3,), "w": (3, 4)}, set()),
    "in a loop": (in_a_loop, {"a": (2, 3), "c": (3,), "v": (2, 3, 3)}, set()),
    "scaled": (scaled, {"a": (2, 3), "c": (3,), "w": (3, 2), "g": (2,), "d": (2,)}, {"w", "d"}),
    "positive": (positive, {"a": (2, 3), "c": (3,), "w": (3, 2), "d": (2,)}, {"w", "d"}),
    "gated": (gated, {"a": (2, 3), "c": (3,), "w": (3, 2), "v": (3, 2)}, {"w", "v"}),
    "residual": (residual, {"a": (2, 3), "b": (3, 3), "c": (3,), "w": (3, 2), "d": (2,)}, {"w", "d"}),
    "two heads": (two_heads, {"a": (2, 3), "mean": (3, 1), "scale": (3, 1)}, {"mean", "scale"}),
    "tied": (tied, {"a": (2, 3)}, set()),
}


@pytest.mark.parametrize("name", LAST)
def test_last_layers_are_found_in_the_program(name):
    function, shapes, expected = LAST[name]
    first = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes.values())])

    def outputs(u, row):
        parts = {n: u[a:b].reshape(s) for (n, s), a, b in zip(shapes.items(), first, first[1:], strict=False)}
        return function(parts, row)

    found = last_layers(find_layers(outputs, np.zeros(first[-1], np.float32), np.zeros(2, np.float32)))
    places = np.searchsorted(first, [layer.index.min() for layer in found], side="right") - 1
    assert {list(shapes)[i] for i in places} == expected


# other subsets -----------------------------------------------------------------------------------------------------


def test_named_parameters_are_conditioned_on_the_rest(last):
    named = laplace(TARGET, credo.laplace.Named("weights.out"))
    np.testing.assert_allclose(named.sd()["weights"]["out"]["w"], last.sd()["weights"]["out"]["w"], rtol=1e-9)
    assert named.log_evidence.value == pytest.approx(last.log_evidence.value, rel=1e-9)


def test_largest_variances():
    diagonal = laplace(TARGET, credo.laplace.All(), credo.laplace.Diagonal())
    some = laplace(TARGET, credo.laplace.LargestVariance(5))
    sd = np.asarray(diagonal.kind.scale.scale)
    np.testing.assert_array_equal(some.kind.scale.index, np.sort(np.argsort(-sd)[:5]))


def test_the_evidence_given_the_others_where_the_prior_couples_them():
    """The free weights have the conditional normal of their prior, at the values of the fixed ones."""
    m, S = np.array([1.0, -0.5, 0.3]), np.array([[2.0, 0.8, 0.3], [0.8, 1.0, -0.2], [0.3, -0.2, 0.5]])
    x = RANDOM.normal(size=(12, 3)) * [3.0, 1.0, 1.0]
    y = x @ [1.0, 2.0, -1.0] + 0.5 * RANDOM.normal(size=12)
    prior = {"w": lambda: dist.MultivariateNormal(m, covariance_matrix=S)}
    model = credo.Model(prior, lambda p, x: dist.Normal(x @ p["w"], 0.5))
    posterior = credo.fit(model.given(x, y), credo.Laplace(subset=credo.laplace.LargestVariance(2)), progress=False)
    free, fixed = np.array([1, 2]), np.array([0])
    np.testing.assert_array_equal(posterior.kind.scale.index, free)
    pull = S[np.ix_(free, fixed)] @ np.linalg.inv(S[np.ix_(fixed, fixed)])
    mean = m[free] + pull @ (posterior.kind.mean[fixed] - m[fixed])
    covariance = S[np.ix_(free, free)] - pull @ S[np.ix_(fixed, free)]
    centre = x[:, free] @ mean + x[:, fixed] @ posterior.kind.mean[fixed]
    marginal = x[:, free] @ covariance @ x[:, free].T + 0.25 * np.eye(12)
    expected = stats.multivariate_normal(centre, marginal).logpdf(y)
    assert posterior.log_evidence.value == pytest.approx(expected, rel=1e-9)
    method = credo.Laplace(structure=credo.laplace.Diagonal(), subset=credo.laplace.LargestVariance(2))
    precision = np.diag(x.T @ x / 0.25 + np.linalg.inv(S))[free]
    found = credo.fit(model.given(x, y), method, progress=False).sd()["w"][free]
    np.testing.assert_allclose(found, precision**-0.5, rtol=1e-9)


def test_an_operator_of_some_coordinates():
    root = np.tril(RANDOM.normal(size=(3, 3))) + 2 * np.eye(3)
    index = np.array([1, 2, 5])
    expected = np.zeros((6, 6))
    expected[np.ix_(index, index)] = root @ root.T
    with double():
        scale = Embedded.at(index, Dense(root), 6)
        v = np.zeros(6)
        v[index] = RANDOM.normal(size=3)
        np.testing.assert_allclose(scale.dense(), expected)
        np.testing.assert_allclose(scale.diagonal(), np.diag(expected))
        np.testing.assert_allclose(np.square(scale.transpose_matvec(np.ones(6))).sum(), expected.sum())
        rows = np.random.default_rng(0).normal(size=(4, 6))
        np.testing.assert_allclose(
            np.square(scale.transpose_matvecs(rows)).sum(axis=1), np.diag(rows @ expected @ rows.T)
        )
        np.testing.assert_allclose(scale.matvec(scale.solve(v)), v, atol=1e-12)
        drawn = np.asarray(jax.vmap(Normal(np.zeros(6), scale).sample_u)(jax.random.split(jax.random.key(0), 4000)))
    np.testing.assert_allclose(np.cov(drawn.T), expected, atol=0.2 * expected.max())
    assert scale.rank == 3


# requests that cannot be answered --------------------------------------------------------------------------------


def test_what_is_taken_for_known_forbids_a_pass(last):
    assert last.verdict.status == "doubtful"
    assert any("7 of 25 parameters vary" in sentence for sentence in last.verdict.sentences)


def test_a_posterior_of_some_parameters_is_no_prior_and_no_proposal(last):
    with pytest.raises(credo.CredoError, match="no density over all"):
        credo.fit(TARGET, credo.Laplace(prior=last), key=0)
    methods = credo.Importance(proposal=last), credo.IndependenceMH(proposal=last), credo.SMC(reference=last)
    for method in (*methods, credo.ParallelTempering(reference=last)):
        with pytest.raises(credo.CredoError, match="lie on a plane"):
            credo.fit(TARGET, method, key=0)


def test_wrong_requests_are_said():
    with pytest.raises(credo.CredoError, match=r"'weights\.oot'.*weights\.out\.w"):
        laplace(TARGET, credo.laplace.Named("weights.oot"))
    with pytest.raises(credo.CredoError, match="takes names"):
        laplace(TARGET, credo.laplace.Named())
    with pytest.raises(credo.CredoError, match="give 1 to 25"):
        laplace(TARGET, credo.laplace.LargestVariance(26))
    with pytest.raises(credo.CredoError, match="whole matrix"):
        laplace(TARGET, credo.laplace.LargestVariance(2), credo.laplace.Kronecker())
    network = BayesianNetwork(tied, {"a": RANDOM.normal(size=(2, 3))}, head=Categorical())
    with pytest.raises(credo.CredoError, match="No matrix of weights"):
        laplace(network.given(X, (Y > 0).astype(int)), credo.laplace.LastLayer())


def test_a_prior_that_is_not_normal_leaves_no_evidence():
    network = BayesianNetwork(apply, PARAMS, head=Gaussian(dist.HalfNormal(1.0)), prior=Isotropic(2.0))
    method = credo.Laplace(subset=credo.laplace.Named("noise"), curvature=credo.ExactHessian(), num_steps=0)
    posterior = credo.fit(network.given(X, Y), method, progress=False)
    assert posterior.log_evidence is None
    assert any("no normal prior" in sentence for sentence in posterior.verdict.sentences)


def test_the_prior_of_a_subset_is_that_of_its_weights_given_an_unknown_precision():
    """−∂² log p / ∂w ∂log α = α w is no curvature of w, and no correlation of weights."""
    params = {"a": {"w": np.full((3, 4), 1.5)}, "c": {"w": np.full((4, 2), 2.0)}}
    network = BayesianNetwork(
        lambda p, x: jnp.tanh(x @ p["a"]["w"]) @ p["c"]["w"],
        params,
        head=Categorical(),
        prior=Isotropic(dist.LogNormal(0.0, 1.0)),
    )
    target = network.given(np.ones((5, 3)), np.array([0, 1, 0, 1, 1])).flat()
    with double():
        u = jnp.concatenate([jnp.log(jnp.array([2.0])), jnp.full(12, 1.5), jnp.full(8, 2.0)])
        objective = in_unconstrained_space(target)
        every = layered.layers_of(target, u, "", "")
        for layers, weights in ((every, slice(1, 21)), (every.within(np.arange(13, 21)), slice(13, 21))):
            found, is_independent = layered.prior_diagonal(objective, target, u, layers)
            np.testing.assert_allclose(found[weights], 2.0, rtol=1e-12)
            assert is_independent


def test_the_prior_of_many_coordinates_in_no_layer_is_theirs_alone(monkeypatch):
    """A product with ones on the unknown precision as well would add what couples it to each of them."""
    monkeypatch.setattr(layered, "MAX_APART", 3)
    params = {"g": np.array([0.5, -1.0, 2.0, 1.0]), "w": np.full(4, 0.7)}
    network = BayesianNetwork(
        lambda p, x: (x * jnp.sin(p["g"])) @ p["w"], params, head=Gaussian(0.5), prior=Isotropic(dist.LogNormal(0, 1.0))
    )
    target = network.given(np.ones((5, 4)), np.arange(5.0)).flat()
    with double():
        u = jnp.concatenate([jnp.log(jnp.array([1.35])), jnp.asarray(params["g"]), jnp.full(4, 0.7)])
        layers = layered.layers_of(target, u, "", "")
        assert layers.rest.size > 3
        found, is_independent = layered.prior_diagonal(in_unconstrained_space(target), target, u, layers)
        np.testing.assert_allclose(found[1:], 1.35, rtol=1e-9)
        assert is_independent
