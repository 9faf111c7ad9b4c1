"""Laplace of networks as it comes: trained, tuned by the evidence, linearised in prediction, and judged."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats

import credo
from cases import first_of
from credo.diagnose.rules import RULES
from credo.laplace import Dense, Evidence, Kronecker
from credo.methods.laplace.judgement import of_draws
from credo.nn import BayesianNetwork, Categorical, Gaussian, HorseshoeLike, Isotropic, LaplacePrior, PerLayer, StudentT
from credo.precision import double
from credo.status import CredoError

RANDOM = np.random.default_rng(4)
X = RANDOM.normal(size=(40, 4))
Y = X @ [0.5, -0.3, 0.2, 0.0] + 0.3 * RANDOM.normal(size=40)
SD = 1e4
UNKNOWN = dist.LogNormal(0.0, SD)  # flat in the log, as far as 40 rows can see


def linear(p, x):
    return x @ p["w"]


def two_parts(p, x):
    return x[:, :2] @ p["a"]["w"] + x[:, 2:] @ p["b"]["w"]


def wavy(p, x):
    return jnp.tanh(x @ p["in"]["w"] + p["in"]["b"]) @ p["out"]


def of_hyperparameters(posterior, k: int) -> float:
    """What the posterior of k of them, and their own prior, add to the log evidence of the data given them."""
    with double():
        covariance = np.asarray(posterior.kind.scale.dense())[:k, :k]
    theta = posterior.kind.mean[:k]
    return stats.norm(0, SD).logpdf(theta).sum() + 0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1]


@pytest.mark.parametrize("structure", first_of([Kronecker(), Dense()]), ids=str)
def test_a_linear_network_is_linear_regression_with_the_evidence_at_its_maximum(structure):
    network = BayesianNetwork(linear, {"w": np.zeros((4, 1))}, head=Gaussian(UNKNOWN), prior=Isotropic(UNKNOWN))
    posterior = credo.fit(network.given(X, Y), credo.Laplace(structure=structure, num_steps=200), progress=False)
    exact = credo.exact.EvidenceLinearRegression().update(X, Y)
    noise, precision = np.exp(posterior.kind.mean[:2])
    np.testing.assert_allclose([noise**-2, precision], [exact.beta, exact.alpha], rtol=1e-6)
    np.testing.assert_allclose(posterior.kind.mean[2:], exact.mean()["weights"], atol=1e-6)
    np.testing.assert_allclose(posterior.sd()["weights"]["w"][:, 0], exact.sd()["weights"], rtol=1e-6)
    given = posterior.log_evidence.value - of_hyperparameters(posterior, 2)
    np.testing.assert_allclose(given, exact.log_evidence.value, rtol=1e-6)
    assert posterior.verdict.status != "failed"
    assert posterior.verdict.figures["mode_distance"] < 1e-4
    assert posterior.info["tuned"] == ["noise", "precision"]
    predictive = posterior.predict(X)  # linearised: the variance has no error of draws
    with double():
        rows = np.hstack([np.zeros((40, 2)), X])
        expected = np.einsum("ni,ij,nj->n", rows, np.asarray(posterior.kind.scale.dense()), rows)
    np.testing.assert_allclose(predictive.epistemic, expected, rtol=1e-8)


@pytest.mark.slow
def test_one_precision_a_layer_is_at_the_maximum_of_the_exact_evidence():
    params = {"a": {"w": np.zeros(2)}, "b": {"w": np.zeros(2)}}
    network = BayesianNetwork(two_parts, params, head=Gaussian(0.3), prior=PerLayer(UNKNOWN))
    posterior = credo.fit(network.given(X, Y), credo.Laplace(num_steps=200), progress=False)

    def evidence(theta):
        a, b = np.exp(-theta)
        covariance = a * X[:, :2] @ X[:, :2].T + b * X[:, 2:] @ X[:, 2:].T + 0.3**2 * np.eye(40)
        return stats.multivariate_normal(np.zeros(40), covariance).logpdf(Y)

    theta = posterior.kind.mean[:2]
    steps = 1e-3 * np.eye(2)
    slope = [(evidence(theta + h) - evidence(theta - h)) / 2e-3 for h in steps]
    np.testing.assert_allclose(slope, 0.0, atol=1e-5)
    given = posterior.log_evidence.value - of_hyperparameters(posterior, 2)
    np.testing.assert_allclose(given, evidence(theta), rtol=1e-6)


@pytest.fixture(scope="module")
def toy():
    x = np.r_[RANDOM.uniform(-3, -1, 25), RANDOM.uniform(1, 3, 25)][:, None]
    y = np.sin(2 * x[:, 0]) + 0.1 * RANDOM.normal(size=50)
    params = {"in": {"w": RANDOM.normal(size=(1, 8)), "b": RANDOM.normal(size=8)}, "out": 0.3 * RANDOM.normal(size=8)}
    network = BayesianNetwork(wavy, params, head=Gaussian(), prior=Isotropic(dist.LogNormal(0.0, 2.0)))
    return network.given(x, y)


@pytest.mark.slow
def test_a_network_is_trained_tuned_and_predicts_linearised(toy):
    x, y = toy.x, toy.y
    posterior = credo.fit(toy, credo.Laplace(num_steps=1_000), progress=False)
    assert posterior.verdict.status == "doubtful"  # nothing shows that weights are normal, or that there is one mode
    assert posterior.verdict.figures["mode_distance"] <= 0.1
    assert posterior.verdict.figures["surprise"] < 0.1
    assert any("underfit" in sentence for sentence in posterior.verdict.sentences)
    assert 0.07 < posterior.mean()["noise"] < 0.15
    path = posterior.info["log_evidence_by_turns"]
    assert max(path) >= path[0]
    linearised = posterior.predict(x).log_prob(y).mean()
    np.testing.assert_array_equal(linearised, posterior.predict(x, credo.Linearised()).log_prob(y).mean())
    sampled = posterior.predict(x, credo.MonteCarlo(100)).log_prob(y).mean()
    assert linearised > sampled + 0.5  # the notes' warning: draws of the weights underfit
    between = posterior.predict(np.zeros((1, 1))).epistemic[0]
    assert between > 4 * posterior.predict(x).epistemic.mean()


@pytest.mark.parametrize("seed", first_of([0, 1]))
def test_precisions_are_where_the_evidence_given_them_is_highest(seed):
    """Turns of precisions and weights went beyond the maximum, and stopped there: nearby values had 0.2 nats more."""

    def apply(p, x):
        return jnp.tanh(x @ p["l1"]["w"] + p["l1"]["b"]) @ p["l2"]["w"] + p["l2"]["b"]

    rng, own = np.random.default_rng(seed), np.random.default_rng(5 + seed)
    x = rng.normal(size=(40, 2))
    y = np.sin(x[:, 0]) + 0.3 * x[:, 1] + 0.2 * rng.normal(size=40)
    sizes = {"l1": (2, 3), "l2": (3, 1)}
    start = {n: {"w": 0.7 * own.normal(size=size), "b": np.zeros(size[1])} for n, size in sizes.items()}
    prior = dist.LogNormal(0.0, 2.0)

    def fitted(params, precision, **settings):
        network = BayesianNetwork(apply, params, head=Gaussian(0.2), prior=PerLayer(precision))
        return credo.fit(network.given(x, y), credo.Laplace(**settings), key=0, progress=False)

    tuned = fitted(start, prior)
    found = {name: float(value) for name, value in tuned.quantile(0.5)["precision"].items()}
    weights = tuned.target.constrain(tuned.kind.mean)["weights"]

    def height(factors) -> float:
        """The log evidence given precisions, and their prior's density in their logs."""
        precision = {name: found[name] * factor for name, factor in zip(found, factors, strict=True)}
        given = fitted(jax.tree.map(np.asarray, weights), precision, num_steps=500).log_evidence.value
        return given + sum(stats.norm(0, 2).logpdf(np.log(value)) for value in precision.values())

    here = height((1.0, 1.0))
    assert max(tuned.info["log_evidence_by_turns"]) == pytest.approx(here, abs=0.02)
    assert max(height(factors) for factors in [(1.35, 1.0), (0.74, 1.0), (1.0, 1.35), (1.0, 0.74)]) < here + 0.03


def test_the_verdict_of_weights_that_nobody_trained(toy):
    fresh = credo.fit(toy, credo.Laplace(num_steps=0, tune=False), progress=False)
    assert fresh.verdict.status == "failed"
    assert fresh.verdict.figures["mode_distance"] > 1
    assert fresh.log_evidence is None


def test_requests_to_tune_what_cannot_be_tuned():
    known = BayesianNetwork(linear, {"w": np.zeros(4)}, head=Gaussian(0.3)).given(X, Y)
    with pytest.raises(CredoError, match="nothing to tune"):
        credo.fit(known, credo.Laplace(tune=Evidence()), progress=False)
    two = BayesianNetwork(linear, {"w": np.ones((4, 2))}, head=Gaussian(dist.HalfNormal(1.0).expand([2])))
    with pytest.raises(CredoError, match="noise changes the curvature of the likelihood by more than one factor"):
        credo.fit(two.given(X, np.stack([Y, -Y], axis=1)), credo.Laplace(tune=True, num_steps=0), progress=False)
    model = credo.Model({"w": dist.Normal(0.0, 1.0).expand([4])}, lambda p, x: dist.Normal(x @ p["w"], 0.3))
    with pytest.raises(CredoError, match="of a network"):
        credo.fit(model.given(X, Y), credo.Laplace(tune=Evidence()), progress=False)


@pytest.mark.slow
def test_a_noise_beside_a_prior_without_curvature_is_said():
    params = {"in": {"w": RANDOM.normal(size=(4, 12)), "b": np.zeros(12)}, "out": RANDOM.normal(size=12)}
    network = BayesianNetwork(wavy, params, head=Gaussian(dist.HalfNormal(1.0)), prior=LaplacePrior(1.0))
    with pytest.raises(CredoError, match="no curvature at 72 of 72 weights.*Give the weights a normal prior"):
        credo.fit(network.given(X, Y), credo.Laplace(num_steps=0), key=1, progress=False)


def test_a_kink_at_the_mode_is_said():
    start = {"w": RANDOM.normal(size=4)}
    network = BayesianNetwork(linear, start, head=Gaussian(1.0), prior=LaplacePrior(0.01))
    verdict = credo.fit(network.given(X, Y), credo.Laplace(num_steps=300), key=1, progress=False).verdict
    assert verdict.status == "failed"
    assert any("'weights.w' has a kink" in sentence for sentence in verdict.sentences)


def test_a_mode_that_gauss_newton_takes_for_a_saddle_is_said_to_be_one_perhaps():
    """The residuals' part of the curvature, which it leaves out, holds weights and precisions together."""
    random = np.random.default_rng(3)
    x = random.uniform(-2, 2, size=(20, 1))
    y = np.sin(2 * x[:, 0]) + 0.2 * random.normal(size=20)
    weights = {"in": random.normal(size=(1, 3)), "out": random.normal(size=(3, 1))}
    network = BayesianNetwork(
        lambda p, x: jnp.tanh(x @ p["in"]) @ p["out"], weights, head=Gaussian(0.3), prior=PerLayer(dist.LogNormal(0, 6))
    )
    approximate = credo.fit(network.given(x, y), credo.Laplace(Dense(), tune=False), progress=False)
    assert approximate.verdict.figures["min_curvature"] < 0
    assert any("curvature=ExactHessian() tells" in sentence for sentence in approximate.verdict.sentences)
    exact = credo.Laplace(Dense(), credo.ExactHessian(), tune=False)
    verdict = credo.fit(network.given(x, y), exact, start=approximate, progress=False).verdict
    assert verdict.figures["min_curvature"] > 0.01
    assert not any("ExactHessian() tells" in sentence for sentence in verdict.sentences)


@pytest.mark.parametrize("start", [0.0, 0.3])
def test_a_density_without_a_bound_is_said(start):
    network = BayesianNetwork(linear, {"w": np.full(4, start)}, head=Gaussian(0.3), prior=HorseshoeLike())
    with pytest.raises(CredoError, match="infinitely high at zero: such a posterior has no mode"):
        credo.fit(network.given(X, Y), credo.Laplace(), key=1, progress=False)
    verdict = credo.fit(network.given(X, Y), credo.MAP(), key=1, progress=False).verdict
    assert verdict.status == "failed"
    assert any("infinitely high at zero" in sentence for sentence in verdict.sentences)


@pytest.mark.parametrize(("scale", "is_kinked"), [(0.005, True), (10.0, False)])
def test_a_kink_of_a_regression_is_said_where_the_mode_lies_in_it(scale, is_kinked):
    prior = {"w": dist.Laplace(0.0, scale).expand([4])}
    target = credo.Model(prior, lambda params, x: dist.Normal(x @ params["w"], 0.5)).given(X, Y)
    sentences = credo.fit(target, credo.MAP(), progress=False).verdict.sentences
    assert any("has a kink" in sentence for sentence in sentences) == is_kinked


@pytest.mark.slow
def test_a_network_that_is_computed_again_backwards_has_its_layers():
    """jax.checkpoint hides nothing."""

    def remembered(p, x):
        return jnp.tanh(x @ p["in"]["w"] + p["in"]["b"])

    def recomputed(p, x):
        return jax.checkpoint(remembered)(p, x) @ p["out"]

    params = {"in": {"w": RANDOM.normal(size=(4, 5)), "b": np.zeros(5)}, "out": RANDOM.normal(size=5)}
    found = []
    for apply in (recomputed, wavy):
        network = BayesianNetwork(apply, params, head=Gaussian(0.3))
        posterior = credo.fit(network.given(X, Y), credo.Laplace(structure=Kronecker(), num_steps=0), key=0)
        assert not any("exact diagonal" in sentence for sentence in posterior.verdict.sentences)
        found.append(np.asarray(posterior.predict(X[:5]).variance))
    np.testing.assert_allclose(*found, rtol=1e-5)


@pytest.mark.parametrize("function", [jnp.log, jnp.sqrt])
@pytest.mark.parametrize(
    "method",
    [
        credo.Laplace(num_steps=0),
        credo.Laplace(),
        credo.MAP(batch_size=8),
        credo.ADVI(batch_size=8),
        credo.NaturalGradient(batch_size=8),
    ],
    ids=["no steps", "Laplace", "MAP", "ADVI", "NaturalGradient"],
)
def test_weights_at_which_the_network_gives_no_number_are_refused(method, function):
    network = BayesianNetwork(lambda p, x: function(x @ p["w"]), {"w": np.ones(4)}, head=Gaussian(0.3))
    with pytest.raises(CredoError, match=r"nan in \d+ of 40 rows"):
        credo.fit(network.given(X, Y), method, key=0, progress=False)


@pytest.mark.parametrize("y", [X @ [0.5, -0.3, 0.2, 0.0], np.zeros(40)], ids=["computed", "zero"])
@pytest.mark.parametrize("head", [Gaussian(), StudentT()], ids=["Gaussian", "StudentT"])
def test_outcomes_without_noise_leave_no_noise_to_tune(head, y):
    """The density of exact outcomes is without bound as the noise goes to zero; it had gone to 1e-75."""
    network = BayesianNetwork(linear, {"w": np.zeros(4)}, head=head)
    with pytest.raises(CredoError, match="the noise rises without end.*Give the noise as a number"):
        credo.fit(network.given(X, y), credo.Laplace(), key=0, progress=False)


@pytest.mark.parametrize("seed", [1, 4])
def test_the_noise_goes_on_to_zero_where_the_evidence_is_straight_in_its_logarithm(seed):
    """Training had left a noise of 4e-10, and Newton's step from there had no length."""
    x = np.random.default_rng(seed).normal(size=(40, 4))
    network = BayesianNetwork(linear, {"w": np.zeros(4)}, head=StudentT())
    with pytest.raises(CredoError, match="the noise rises without end"):
        credo.fit(network.given(x, x @ [0.5, -0.3, 0.2, 0.0]), credo.Laplace(), key=0, progress=False)


def bent(p, x):
    return jnp.tanh(x @ p["in"]) @ p["out"]


@pytest.mark.parametrize(
    ("function", "weights", "subset", "is_linear"),
    [
        (linear, {"w": np.zeros((3, 3))}, None, True),
        (bent, {"in": np.eye(3), "out": np.eye(3)}, None, False),
        (bent, {"in": np.eye(3), "out": np.eye(3)}, credo.laplace.LastLayer(), True),
    ],
    ids=["linear", "bent", "last layer"],
)
def test_draws_of_weights_are_warned_of_where_outputs_bend(function, weights, subset, is_linear):
    """Few labels: the posterior is no Gaussian; in a linear network draws predict as its linearised self does."""
    x = np.random.default_rng(0).normal(size=(12, 3))
    network = BayesianNetwork(function, weights, head=Categorical())
    method = credo.Laplace(num_steps=50, **({} if subset is None else {"subset": subset}))
    posterior = credo.fit(network.given(x, np.arange(12) % 3), method, key=0, progress=False)
    assert posterior.verdict.status == "doubtful"
    assert bool(of_draws(posterior, np.zeros(2, np.uint32))) != is_linear
    doubts = [said for said in posterior.verdict.sentences if "may not be this Gaussian" in said]
    assert len(doubts) == (subset is None)
    assert any("Draws of the weights" in said for said in posterior.verdict.sentences) == (not is_linear)
    for doubt in doubts:
        assert "passes)" in doubt
        for name, value, bound in re.findall(r"(\w+) = (\S+) \((\S+) passes\)", doubt):
            assert float(value) > float(bound) == RULES[name].passes


@pytest.mark.slow
def test_far_from_the_mode_the_noise_is_no_less_than_any_weights_leave_over():
    """Steps by Kronecker factors had gained more than there was to gain, and noise had gone to zero for it."""
    random = np.random.default_rng(0)
    x = random.normal(size=(200, 3))
    y = np.sin(x[:, 0]) + x[:, 1] * x[:, 2] + 0.3 * random.normal(size=200)
    weights = {"in": {"w": random.normal(size=(3, 8)), "b": np.zeros(8)}, "out": random.normal(size=8)}
    target = BayesianNetwork(wavy, weights, head=Gaussian()).given(x, y)
    posterior = credo.fit(target, credo.Laplace(structure=Kronecker(), num_steps=0), progress=False)
    flat, as_tree = ravel_pytree(weights)
    J = jax.jacobian(lambda w: wavy(as_tree(w), x))(flat)
    residual = y - wavy(weights, x)
    left = residual - J @ np.linalg.lstsq(J, residual)[0]
    assert np.sqrt(np.mean(left**2)) < posterior.mean()["noise"] < np.sqrt(np.mean(residual**2))


@pytest.mark.slow
def test_a_time_limit_ends_the_tuning_and_is_said():
    target = BayesianNetwork(linear, {"w": np.zeros((4, 1))}, head=Gaussian()).given(X, Y)
    cut, whole = (
        credo.fit(target, credo.Laplace(num_steps=0), time_limit=seconds, progress=False) for seconds in (1e-9, None)
    )
    assert whole.info["is_complete"]
    assert not cut.info["is_complete"]
    assert any("time limit" in sentence for sentence in cut.verdict.sentences)
    assert cut.info["log_evidence_by_turns"][0] < whole.info["log_evidence_by_turns"][0]
