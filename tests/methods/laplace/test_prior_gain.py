"""What the data say of weights beside their prior, and by which curvature the prior's precision is tuned."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats
from sklearn.datasets import load_digits

import credo
from credo.laplace import Dense, Diagonal, Kronecker, LastLayer
from credo.methods.laplace import gram, look, prior_gain
from credo.nn import BayesianNetwork, Categorical, Gaussian, Isotropic, LaplacePrior, PerLayer

RANDOM = np.random.default_rng(1)
X, TAU, NOISE = RANDOM.normal(size=(40, 4)), 0.7, 0.5
Y = X @ np.array([0.1, -0.2, 0.0, 0.05]) + NOISE * RANDOM.normal(size=40)


def linear(prior, head=None):
    return BayesianNetwork(lambda p, x: x @ p["w"], {"w": np.zeros(4)}, head=head or Gaussian(NOISE), prior=prior)


def log_evidence(tau: float) -> float:
    return stats.multivariate_normal(np.zeros(40), X @ X.T / tau + NOISE**2 * np.eye(40)).logpdf(Y)


@pytest.mark.parametrize("structure", [Dense(), Kronecker()])
def test_of_a_linear_network_both_figures_are_exact(structure):
    posterior = credo.fit(linear(Isotropic(TAU)).given(X, Y), credo.Laplace(structure=structure), progress=False)
    covariance = np.linalg.inv(X.T @ X / NOISE**2 + TAU * np.eye(4))
    assert posterior.verdict.figures["num_determined"] == pytest.approx(4 - TAU * np.trace(covariance), abs=1e-5)
    taus = TAU * np.exp(np.linspace(-prior_gain.WIDEST, prior_gain.WIDEST, 4_001))
    values = [log_evidence(tau) for tau in taus]
    assert posterior.verdict.figures["prior_gain"] == pytest.approx(max(values) - log_evidence(TAU), abs=1e-3)
    share = prior_gain.share_of(posterior.kind.scale, np.asarray(posterior.kind.mean), 0, TAU)
    assert share is not None
    for factor in (0.01, 0.3, 1.0, 20.0):
        expected = log_evidence(factor * TAU) - log_evidence(TAU)
        assert prior_gain.gain(share, np.log(factor)) == pytest.approx(expected, abs=1e-4)
    assert prior_gain.better_precision(share)[0] == pytest.approx(taus[int(np.argmax(values))] / TAU, rel=0.01)


@pytest.mark.parametrize(("tau", "is_said"), [(1e-6, True), (20.0, False)])
def test_a_prior_far_less_likely_than_another_is_named(tau, is_said):
    posterior = credo.fit(linear(Isotropic(tau), Gaussian()).given(X, Y), credo.Laplace(), progress=False)
    assert (posterior.verdict.figures["prior_gain"] >= prior_gain.DECISIVE) == is_said
    assert any("nats higher with a prior precision" in each for each in posterior.verdict.sentences) == is_said


@pytest.mark.slow
def test_weights_held_at_zero_are_no_better_prior():
    """Two rows a class, told apart without doubt: the curvature there says nothing of a network of constants."""
    random, num_classes = np.random.default_rng(0), 30
    weights = [
        {"w": random.normal(size=(a, b)) / np.sqrt(a), "b": np.zeros(b)} for a, b in ((16, 32), (32, num_classes))
    ]
    centres, y = random.normal(size=(num_classes, 16)), np.tile(np.arange(num_classes), 2)
    x = centres[y] + 0.2 * random.normal(size=(len(y), 16))

    def apply(p, x):
        return jnp.maximum(x @ p[0]["w"] + p[0]["b"], 0) @ p[1]["w"] + p[1]["b"]

    posterior = credo.fit(
        BayesianNetwork(apply, weights, head=Categorical()).given(x, y), credo.Laplace(), progress=False
    )
    target = posterior.target
    share = prior_gain.share_of(
        posterior.kind.scale, np.asarray(posterior.kind.mean), 0, prior_gain.prior_precision(target)
    )
    claimed = prior_gain.better_precision(share)[1] + posterior.log_evidence.value
    assert claimed > 20 - len(y) * np.log(num_classes)  # what the curvature alone would say, and what constants have
    assert posterior.verdict.figures.get("prior_gain", 0.0) < prior_gain.DECISIVE
    assert not any("nats higher" in each for each in posterior.verdict.sentences)


def test_of_weights_that_a_wider_prior_explains_none_is_cut_off():
    """A prior a hundred times too narrow: the squares are those expected under the right one, times up to nine."""
    r, factor = np.array([0.1, 0.5, 0.9]), 1e-4
    v = np.array([1.0, 9.0, 4.0]) * (1 - r) * ((1 - r) / factor + r)
    q = 1 + (factor - 1) * r
    whole = 0.5 * np.sum(np.log(factor) - np.log(q) - (factor - 1) * v / q)
    assert prior_gain.gain(prior_gain.Share(r, v), np.log(factor)) == pytest.approx(whole, rel=1e-10)


def test_what_the_way_to_the_mode_may_account_for_is_no_gain():
    """23,000 nats were named of weights 6 sds from the mode, where class labels could have gained 36."""
    share = prior_gain.Share(r=np.full(3, 0.999), v=np.full(3, 10.0))
    assert prior_gain.better_precision(share)[1] > 1_000
    assert prior_gain.better_precision(share._replace(distance=4.0))[1] < 1
    strong = prior_gain.Share(r=np.full(40, 0.01), v=np.full(40, 0.01))
    at_mode, off = (prior_gain.gain(strong._replace(distance=d), np.log(10.0)) for d in (0.0, 4.0))
    assert 0 < off < at_mode


def test_weights_trained_elsewhere_promise_no_more_than_labels_can_gain():
    x, y = load_digits(n_class=3, return_X_y=True)
    x, y = x[:200] / 16, y[:200]
    random = np.random.default_rng(0)
    weights = {"a": random.normal(size=(64, 8)) / 8, "b": random.normal(size=(8, 3)) / 3}

    def apply(p, x):
        return jnp.tanh(x @ p["a"]) @ p["b"]

    network = BayesianNetwork(apply, weights, head=Categorical(), prior=Isotropic(0.01))
    trained = credo.fit(network.given(x, y), credo.MAP(batch_size=50, num_steps=400), progress=False)
    elsewhere = BayesianNetwork(apply, trained.mean()["weights"], head=Categorical(), prior=Isotropic(1.0))
    posterior = credo.fit(elsewhere.given(x, y), credo.Laplace(num_steps=0), progress=False)
    assert 1 < posterior.verdict.figures["mode_distance"] < 10
    assert 0 <= posterior.verdict.figures["prior_gain"] < -posterior.log_evidence.value


@pytest.mark.parametrize("seed", range(6))
def test_the_best_of_several_maxima_is_found(seed):
    random = np.random.default_rng(seed)
    r = random.choice([0.001, 0.1, 0.9, 0.999], 8)
    share = prior_gain.Share(r, (1 - r) * random.chisquare(1, 8) * 10 ** random.uniform(-2, 2, 8))
    factor, nats = prior_gain.better_precision(share)
    best = max(prior_gain.gain(share, log) for log in np.linspace(-prior_gain.WIDEST, prior_gain.WIDEST, 4_001))
    assert nats == pytest.approx(max(best, 0.0), abs=0.02)
    assert prior_gain.gain(share, np.log(factor)) == pytest.approx(nats, abs=1e-9)


def test_outputs_that_do_not_change_with_the_weights_are_told():
    model = BayesianNetwork(lambda p, x: jnp.round(x @ p["w"]), {"w": np.ones(4)}, head=Gaussian(NOISE))
    sentences = credo.fit(model.given(X, Y), credo.Laplace(num_steps=0), progress=False).verdict.sentences
    assert any("The data determine no weight" in each for each in sentences)


def test_flat_directions_away_from_zero_count_for_nothing():
    """The data cannot have moved them there."""
    share = prior_gain.Share(r=np.full(5, 1 - 1e-9), v=np.full(5, 0.2))
    assert prior_gain.better_precision(share)[1] < 0.1


@pytest.mark.parametrize("prior", [LaplacePrior(1.0), PerLayer({"a": 1.0, "b": 2.0}), Isotropic(dist.Gamma(2.0, 1.0))])
def test_priors_without_one_known_precision_have_no_other_to_name(prior):
    model = BayesianNetwork(
        lambda p, x: x @ (p["a"] + p["b"]), {"a": np.zeros(4), "b": np.zeros(4)}, head=Gaussian(), prior=prior
    )
    assert prior_gain.prior_precision(model.given(X, Y)) is None


# tuned ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def classes(monkeypatch):
    """A network too large for the matrix of all its weights, and few rows."""
    monkeypatch.setattr(look, "UP_TO_DENSE", 50)
    return classes_of(dist.LogNormal(0.0, 2.0))


def classes_of(precision):
    rng = np.random.default_rng(0)
    x, c = rng.normal(size=(60, 10)), rng.normal(size=(5, 10))
    params = [
        {"w": rng.normal(size=shape) / np.sqrt(shape[0]), "b": np.zeros(shape[1])} for shape in ((10, 20), (20, 5))
    ]
    model = BayesianNetwork(
        lambda p, x: jnp.tanh(x @ p[0]["w"] + p[0]["b"]) @ p[1]["w"] + p[1]["b"],
        params,
        head=Categorical(),
        prior=Isotropic(precision),
    )
    return model.given(x, np.argmax((x + np.sin(2 * x)) @ c.T, axis=1))


def share_right(posterior) -> float:
    probs = np.asarray(posterior.predict(posterior.target.x).probs)
    return float(np.mean(probs.argmax(axis=1) == np.asarray(posterior.target.y)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [credo.Laplace(structure=Diagonal()), credo.Laplace(subset=LastLayer()), credo.Laplace()],
    ids=["diagonal", "last-layer", "left-out"],
)
def test_precisions_are_tuned_by_factors_where_the_matrix_is_too_large(classes, method, monkeypatch):
    """By the diagonal's evidence the weights were all zero, and every prediction the same."""
    monkeypatch.setattr(gram, "MOST_ROWS", 0)
    posterior = credo.fit(classes, method, key=0, progress=False)
    assert posterior.verdict.figures["num_determined"] > 5
    assert share_right(posterior) > 0.8
    is_own = method == credo.Laplace()
    assert any("tuned by the evidence of Kronecker()" in each for each in posterior.verdict.sentences) != is_own


@pytest.mark.slow
def test_weights_that_are_their_prior_are_said():
    target = classes_of(dist.LogNormal(np.log(1e4), 0.01))
    posterior = credo.fit(target, credo.Laplace(structure=Diagonal()), key=0, progress=False)
    assert posterior.verdict.figures["num_determined"] < 5
    assert share_right(posterior) < 0.5
    assert "hardly depend on x" in posterior.verdict.sentences[0]


@pytest.mark.slow
def test_a_noise_is_no_output_that_the_weights_must_determine():
    """A line through a hundred rows: both weights are known, and so is their one output."""
    x = np.linspace(-1.0, 1.0, 100)[:, None]
    line = BayesianNetwork(
        lambda p, x: (x @ p["w"] + p["b"])[:, 0],
        {"w": np.zeros((1, 1)), "b": np.zeros(1)},
        head=Gaussian(dist.LogNormal(0.0, 1.0)),
        prior=Isotropic(dist.LogNormal(0.0, 2.0)),
    )
    y = 3 * x[:, 0] + 1 + 0.1 * np.random.default_rng(0).normal(size=100)
    posterior = credo.fit(line.given(x, y), credo.Laplace(), progress=False)
    assert posterior.verdict.figures["num_determined"] > 1.9
    assert not any("hardly depend on x" in each for each in posterior.verdict.sentences)


def test_an_earlier_posterior_leaves_nothing_to_train():
    target = linear(Isotropic(1.0), Gaussian(0.5)).given(X, Y)
    earlier = credo.fit(target, credo.Laplace(), progress=False)
    with pytest.raises(credo.CredoError, match="trains no weights"):
        credo.fit(target, credo.Laplace(prior=earlier, num_steps=10), progress=False)


def test_a_noise_alone_that_is_tuned_says_nothing_of_the_precision():
    model = linear(Isotropic(1e4), Gaussian(dist.LogNormal(0.0, 1.0)))
    posterior = credo.fit(model.given(X, Y), credo.Laplace(), progress=False)
    assert posterior.info["tuned"] == ["noise"]
    assert not any("hardly depend" in sentence for sentence in posterior.verdict.sentences)
