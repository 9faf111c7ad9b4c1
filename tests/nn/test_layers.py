"""Layers of independent normal weights: moments, divergences, and networks of them trained by minibatches."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from scipy import integrate, special, stats

import credo
from credo.linalg.diagonal import Diagonal
from credo.methods.networks.variational_layers import Bound, Parameters
from credo.model.windows import shuffled, window
from credo.nn import Categorical, Gaussian, LogUniform, VBConv, VBLinear, VBNetwork, prune, sparsity_table
from credo.nn.divergence import log_uniform_divergence, normal_divergence
from credo.nn.vb_network import InTurn
from credo.posterior.kinds import Gaussian as Normal
from credo.precision import double

RANDOM = np.random.default_rng(0)
N, NOISE = 96, 0.5
X = RANDOM.normal(size=(N, 2)) @ np.array([[1.0, 0.6], [0.0, 0.8]])
Y = X @ np.array([1.0, -2.0]) + NOISE * RANDOM.normal(size=N)
PRECISION = X.T @ X / NOISE**2 + np.eye(2)
MEAN = np.linalg.solve(PRECISION, X.T @ Y / NOISE**2)


def spread(layer, sd: float = 0.3):
    """A layer with sds of order ``sd``."""
    random = np.random.default_rng(3)
    log_sd = {name: np.log(sd) + 0.3 * random.normal(size=array.shape) for name, array in layer.log_sd.items()}
    mean = {name: random.normal(size=array.shape) for name, array in layer.mean.items()}
    return layer.holding(mean, log_sd)


def linear(head: Gaussian | None = None) -> credo.Target:
    return VBNetwork([VBLinear(2, 1, has_bias=False)], head=head or Gaussian(NOISE)).given(X, Y)


# moments ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (VBLinear(3, 2), (2, 3)),
        (VBConv(2, 3, window=(3, 2), stride=2, padding="VALID"), (1, 5, 4, 2)),
        (VBConv(1, 2, window=(3,)), (2, 4, 1)),
    ],
    ids=["linear", "image", "sequence"],
)
def test_moments_are_those_of_drawn_weights(layer, shape):
    num = 20_000
    with double():
        layer, x = spread(layer), np.random.default_rng(4).normal(size=shape)

        def draw(key):
            noise = {
                n: jax.random.normal(jax.random.fold_in(key, i), m.shape) for i, (n, m) in enumerate(layer.mean.items())
            }
            weights = jax.tree.map(lambda m, s, z: m + jnp.exp(s) * z, layer.mean, layer.log_sd, noise)
            return layer.holding(weights, layer.log_sd)(x)

        by_weights = np.asarray(jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), num)))
        by_outputs = np.asarray(jax.jit(jax.vmap(lambda key: layer(x, key)))(jax.random.split(jax.random.key(1), num)))
        mean, variance = map(np.asarray, layer.moments(x))
    by_row = [np.cov(drawn[:, 0].reshape(num, -1), rowvar=False) for drawn in (by_weights, by_outputs)]
    sd = np.sqrt(np.diag(by_row[0]))  # outputs at several places of a row share weights
    assert np.all(np.abs(by_row[1] - by_row[0]) < 6 * np.outer(sd, sd) * np.sqrt(4 / num))
    for drawn in (by_weights, by_outputs):
        assert drawn.shape[1:] == mean.shape
        # five standard errors; the outputs are normal
        assert np.all(np.abs(drawn.mean(axis=0) - mean) < 5 * np.sqrt(variance / num))
        assert np.all(np.abs(drawn.var(axis=0) / variance - 1) < 5 * np.sqrt(2 / num))


# divergences ------------------------------------------------------------------------------------------------------


def test_divergence_from_a_normal_prior():
    mean, sd, prior_sd = 0.7, 0.4, 1.7

    def integrand(w):
        log_q = -0.5 * ((w - mean) / sd) ** 2 - np.log(sd)
        return np.exp(log_q) / np.sqrt(2 * np.pi) * (log_q + 0.5 * (w / prior_sd) ** 2 + np.log(prior_sd))

    expected, _ = integrate.quad(integrand, mean - 12 * sd, mean + 12 * sd, epsabs=1e-13)
    with double():
        assert float(normal_divergence(mean, np.log(sd), prior_sd)) == pytest.approx(expected, abs=1e-10)


def test_divergence_from_the_log_uniform_prior():
    """E[log q(w) + log |w|], by quadrature, beside what it is for mean 0: −(γ + log 2)/2 for E log |ε|."""
    alphas = np.array([1e-6, 1e-3, 0.02, 0.1, 0.5, 1.0, 3.0, 20.0, 1e3, 1e8])
    sd = 0.37
    for alpha in alphas:
        mean = sd / np.sqrt(alpha)
        expected, _ = integrate.quad(lambda s: 2 * special.dawsn(s), 0, 1 / np.sqrt(2 * alpha), limit=500, epsabs=1e-11)
        with double():
            assert float(log_uniform_divergence(mean, np.log(sd))) == pytest.approx(expected, abs=4e-7)
    z = (np.arange(400_000) + 0.5) / 400_000
    by_draws = np.mean(np.log(np.abs(1.0 / np.sqrt(0.5) + special.ndtri(z)))) + 0.5 * (np.euler_gamma + np.log(2))
    with double():
        assert float(log_uniform_divergence(sd / np.sqrt(0.5), np.log(sd))) == pytest.approx(by_draws, abs=1e-4)


def test_a_layers_divergence_is_the_sum_of_its_weights():
    with double():
        layer = spread(VBLinear(3, 2, prior=LogUniform()))
        parts = log_uniform_divergence(layer.mean["w"], layer.log_sd["w"]).sum()
        parts += normal_divergence(layer.mean["b"], layer.log_sd["b"], 1.0).sum()
        assert float(layer.kl()) == pytest.approx(float(parts), rel=1e-12)
        gradient = jax.grad(lambda m: log_uniform_divergence(m, 0.0))(jnp.asarray(1.3))
        assert float(gradient) == pytest.approx(np.sqrt(2) * special.dawsn(1.3 / np.sqrt(2)), abs=1e-4)


def test_the_log_uniform_prior_falls_as_one_over_a_weight():
    """And biases beside it are standard normal."""
    target = VBNetwork([VBLinear(2, 1, prior=LogUniform())], head=Gaussian(NOISE)).given(X, Y)
    w, b = np.array([0.5, -3.0]), 0.7
    with double():
        u = target.unconstrain({"weights": {"layer0": {"w": w[:, None], "b": np.array([b])}}})
        found = float(target.log_density(u))
    likelihood = stats.norm(X @ w + b, NOISE).logpdf(Y).sum()
    assert found == pytest.approx(stats.norm.logpdf(b) - np.log(np.abs(w)).sum() + likelihood, rel=1e-10)


def test_layers_begin_at_the_scale_of_their_inputs():
    """Variance 2 over the number of inputs (He et al. 2015), windows included, and sds of 0.01."""
    for layer, num_in in ((VBLinear(50, 200), 50), (VBConv(5, 200, window=(5, 2)), 50)):
        w = layer.mean["w"]
        assert abs(np.mean(w**2) * num_in / 2 - 1) < 5 * np.sqrt(2 / w.size)
        np.testing.assert_allclose(np.exp(layer.log_sd["w"]), 0.01, rtol=1e-5)


# training ---------------------------------------------------------------------------------------------------------


def test_training_begins_at_the_mode():
    """The loss of the means alone is −log density but for a constant, rows of weight included."""
    network = VBNetwork([VBLinear(2, 1, prior=0.3)], head=Gaussian(NOISE))
    with double():
        target = network.given(X, Y, weights=np.arange(N) % 3).flat()

        def loss(mean):
            return Bound(is_warm=True)(Parameters(mean, jnp.zeros(3)), target, target.rows(), jax.random.key(0))

        here, there = jnp.asarray([0.2, -0.5, 1.1]), jnp.asarray([-0.4, 0.3, 0.6])
        expected = float(target.log_density(here) - target.log_density(there))
        assert float(loss(there) - loss(here)) == pytest.approx(expected, rel=1e-10)


def test_sds_of_a_posterior_are_where_training_begins(fitted):
    still = credo.VariationalLayers(num_steps=1, optimiser=optax.sgd(0.0), num_draws=2)
    again = credo.fit(linear(), still, start=fitted, progress=False)
    np.testing.assert_allclose(again.kind.scale.scale, fitted.kind.scale.scale, rtol=1e-12)


def test_the_mean_over_all_windows_is_the_full_loss():
    """Without noise: the training of the means, and its gradient."""
    with double():
        target = linear().flat()
        data, q = shuffled(target, 20, np.random.default_rng(5)), Parameters(jnp.asarray([0.3, -0.4]), jnp.zeros(2))
        of_rows = jax.jit(jax.value_and_grad(lambda q, rows: Bound(is_warm=True)(q, target, rows, jax.random.key(0))))
        values, gradients = jax.vmap(lambda i: of_rows(q, window(data, 20, i)))(jnp.arange(N))
        value, gradient = of_rows(q, target.rows())
        values, gradients = np.asarray(values), np.asarray(gradients.mean)
    np.testing.assert_allclose(values.mean(), float(value), rtol=1e-12)
    np.testing.assert_allclose(gradients.mean(axis=0), np.asarray(gradient.mean), rtol=1e-10)


def test_noise_leaves_the_gradient_of_the_bound_unbiased():
    """In a linear model the bound is a formula: log-likelihoods at the mean, less x² σ² / 2 noise² each, and the KL."""
    with double():
        target = linear().flat()
        data = shuffled(target, 16, np.random.default_rng(5))
        q = Parameters(jnp.asarray([0.3, -0.4]), jnp.log(jnp.asarray([0.2, 0.5])))

        def exact(q):
            error = jnp.square(Y - X @ q.mean) + jnp.square(X) @ jnp.exp(2 * q.log_sd)
            likelihood = -0.5 * jnp.sum(error) / NOISE**2 - N * np.log(NOISE * np.sqrt(2 * np.pi))
            return jnp.sum(normal_divergence(q.mean, q.log_sd, 1.0)) - likelihood

        def one(i, key):
            return jax.value_and_grad(lambda q: Bound()(q, target, window(data, 16, i), key))(q)

        def sweep(key):  # all windows once
            return jax.tree.map(lambda a: a.mean(axis=0), jax.vmap(one)(jnp.arange(N), jax.random.split(key, N)))

        values, gradients = jax.jit(lambda keys: jax.lax.map(sweep, keys))(jax.random.split(jax.random.key(6), 400))
        value, gradient = jax.value_and_grad(exact)(q)
        values, gradients, value, gradient = jax.tree.map(np.asarray, (values, gradients, value, gradient))
    for found, expected in zip(jax.tree.leaves((values, gradients)), jax.tree.leaves((value, gradient)), strict=True):
        error = np.std(found, axis=0) / np.sqrt(len(found))
        assert np.all(np.abs(np.mean(found, axis=0) - expected) < 5 * error)


@pytest.fixture(scope="module")
def fitted():
    method = credo.VariationalLayers(num_steps=4_000, batch_size=32, num_draws=64)
    return credo.fit(linear(), method, key=1, progress=False)


def test_a_linear_model_has_the_factorised_optimum(fitted):
    """Means are exact and variances those of the conditionals, 1/Λ_ii; the bound is below the evidence by a formula."""
    sd = 1 / np.sqrt(np.diag(PRECISION))
    np.testing.assert_array_less(np.abs(fitted.mean()["weights"]["layer0"]["w"][:, 0] - MEAN), 0.15 * sd)
    np.testing.assert_allclose(fitted.sd()["weights"]["layer0"]["w"][:, 0], sd, rtol=0.1)
    covariance = X @ X.T + NOISE**2 * np.eye(N)
    evidence = -0.5 * (Y @ np.linalg.solve(covariance, Y) + np.linalg.slogdet(covariance)[1] + N * np.log(2 * np.pi))
    gap = -0.5 * (np.linalg.slogdet(PRECISION)[1] - np.log(np.diag(PRECISION)).sum())
    assert abs(fitted.log_evidence.value - (evidence - gap)) < 5 * fitted.log_evidence.error + 0.05
    assert fitted.log_evidence.kind == "lower bound"


def test_the_answer_is_a_posterior_like_any_other(fitted, tmp_path):
    assert fitted.verdict.status == "doubtful"
    assert any("leave the correlations" in sentence for sentence in fitted.verdict.sentences)
    assert np.isfinite(fitted.log_prob(fitted.mean()))
    predictive = fitted.predict(X[:5], rule=credo.Linearised())
    np.testing.assert_allclose(predictive.epistemic, X[:5] ** 2 @ fitted.sd()["weights"]["layer0"]["w"][:, 0] ** 2)
    fitted.save(tmp_path / "fit.credo")
    again = credo.load(tmp_path / "fit.credo", linear())
    np.testing.assert_array_equal(again.mean()["weights"]["layer0"]["w"], fitted.mean()["weights"]["layer0"]["w"])
    assert fitted.info["failed_at"] == -1
    assert fitted.info["loss_path"][-1] < fitted.info["loss_path"][0]


def test_the_loss_is_the_bound_with_the_noise_as_well():
    """A coordinate of the head has an entropy too, in full."""
    target = linear(Gaussian(dist.LogNormal(-1.0, 0.5)))
    method = credo.VariationalLayers(num_steps=6_000, batch_size=None, num_draws=2_000)
    found = credo.fit(target, method, key=1, progress=False)
    losses = found.info["loss_path"][-10:]  # each of many updates
    assert abs(np.mean(losses) + found.log_evidence.value) < 0.5


@pytest.mark.slow
def test_convolutions_and_learned_noise_train_together():
    images = RANDOM.normal(size=(40, 4, 4, 1))
    layers = [
        VBConv(1, 2, window=(2, 2)),
        jax.nn.relu,
        lambda h: h.mean(axis=(1, 2)),
        VBLinear(2, 1, prior=LogUniform()),
    ]
    target = VBNetwork(layers, head=Gaussian()).given(images, images.mean(axis=(1, 2, 3)))
    posterior = credo.fit(target, credo.VariationalLayers(num_steps=40, batch_size=10), progress=False)
    assert posterior.log_evidence is None  # under an improper prior
    assert set(posterior.mean()) == {"noise", "weights"}
    assert np.all(np.isfinite(posterior.predict(images[:3]).mean))


@pytest.mark.parametrize("what", ["value", "gradient"])
def test_a_loss_that_fails_on_the_way_stops_there_and_says_where(what):
    """Outputs beyond 0.5 have no finite loss, or none of its gradient: the one row that reaches them is named."""

    def broken(h):
        if what == "value":
            return jnp.where(jnp.abs(h) > 0.5, jnp.nan, h)
        return h + 0.0 * jnp.sqrt(jnp.maximum(0.5 - h, 0.0))

    model = VBNetwork([VBLinear(1, 1, has_bias=False), broken], head=Gaussian(0.5))
    x = np.linspace(-0.2, 0.2, 50)[:, None]
    x[31] = 1.0
    method = credo.VariationalLayers(num_steps=1_000, batch_size=5, optimiser=optax.sgd(0.05))
    start = {"weights": {"layer0": {"w": np.array([[0.1]])}}}
    posterior = credo.fit(model.given(x, 2 * x[:, 0]), method, start=start, progress=False)
    (sentence,) = [s for s in posterior.verdict.sentences if "not finite at update" in s]
    rows = re.search(r"epoch \d+, batch \d+ of 10: rows ([\d, ]+)\)", sentence)
    assert rows
    assert "31" in rows[1].split(", ")
    assert posterior.info["failed_at"] > 0
    assert np.all(np.isfinite(posterior.kind.mean))  # type: ignore[attr-defined]


# requests that cannot be answered -----------------------------------------------------------------------------------


def test_what_cannot_be_a_vb_network():
    with pytest.raises(credo.CredoError, match="no VB layer"):
        VBNetwork([jnp.tanh], head=Categorical())
    with pytest.raises(credo.CredoError, match="outside of its VB"):
        VBNetwork([VBLinear(2, 2), np.ones(3)], head=Categorical())
    with pytest.raises(credo.CredoError, match="above 0, or LogUniform"):
        VBLinear(2, 2, prior=-1.0)
    with pytest.raises(credo.CredoError, match="whole numbers of inputs and outputs, from 1"):
        VBLinear(3.0, 2)
    with pytest.raises(credo.CredoError, match="whole numbers of inputs and outputs, from 1"):
        VBLinear(0, 2)
    with pytest.raises(credo.CredoError, match="'SAME' or 'VALID'"):
        VBConv(1, 1, padding="FULL")
    plain = credo.nn.BayesianNetwork(lambda w, x: x @ w, np.ones(2), head=Gaussian(0.5)).given(X, Y)
    with pytest.raises(credo.CredoError, match="trains a credo.nn.VBNetwork"):
        credo.fit(plain, credo.VariationalLayers(), progress=False)
    with pytest.raises(credo.CredoError, match="warm_share lies in"):
        credo.fit(linear(), credo.VariationalLayers(warm_share=1.0), progress=False)


# pruning ----------------------------------------------------------------------------------------------------------


def digits():
    """(x, y) of 1,200 to learn from and (x, y) of the others, in random order."""
    datasets = pytest.importorskip("sklearn.datasets")
    x, y = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x / 16)[order], y[order]
    return (x[:1200], y[:1200]), (x[1200:], y[1200:])


def test_keys_of_layers_are_ints_or_those_of_jax():
    keys = 0, 1, np.int64(2), jax.random.key(0), jax.random.key(1), jax.random.PRNGKey(2)
    means = [VBLinear(1, 1, key=key).mean["w"].item() for key in keys]
    assert len(set(means)) == len(keys)
    assert VBLinear(1, 1, key=jax.random.key(1)).mean["w"].item() == means[4]
    for wrong in ("a", None, 0.5):
        with pytest.raises(credo.CredoError, match="key is an int or a JAX key such as"):
            VBLinear(1, 1, key=wrong)


def test_a_layer_at_two_places_is_refused():
    layer = VBLinear(2, 2)
    for module in ([layer, jax.nn.relu, layer], [layer, InTurn((jax.nn.relu, layer))]):
        with pytest.raises(credo.CredoError, match="One VB layer stands in the network at two places"):
            VBNetwork(module, head=Gaussian(NOISE))


def test_what_was_a_point_stays_one():
    """Biases of Gaussian dropout have no spread: with a variance of zero the pruned posterior had no density."""
    params = {"w": np.ones((2, 1)), "b": np.zeros(1)}
    network = credo.nn.BayesianNetwork(lambda p, x: (x @ p["w"] + p["b"])[:, 0], params, head=Gaussian(0.5))
    fitted = credo.fit(network.given(X, Y), credo.GaussianDropout(num_steps=50), progress=False)
    pruned = prune(fitted, np.inf)
    assert np.isfinite(pruned.kind.scale.log_det())
    at_mean = jax.tree.map(np.asarray, fitted.mean())
    assert pruned.log_prob(at_mean) == pytest.approx(fitted.log_prob(at_mean))


def test_pruned_weights_are_exactly_zero(fitted, tmp_path):
    mean, sd = (value["weights"]["layer0"]["w"][:, 0] for value in (fitted.mean(), fitted.sd()))
    log_alpha = 2 * np.log(sd / np.abs(mean))
    pruned = prune(fitted, float(log_alpha.mean()))  # between the two
    kept = int(np.argmin(log_alpha))
    draws = pruned.sample(0, 50)["weights"]["layer0"]["w"][:, :, 0]
    np.testing.assert_array_equal(draws[:, 1 - kept], 0.0)
    assert abs(draws[:, kept].std() / sd[kept] - 1) < 5 / np.sqrt(2 * 50)
    assert pruned.info["sparsity"] == {"all": 0.5, "layer0.w": 0.5}
    assert any("50% of the weights were set to zero" in sentence for sentence in pruned.verdict.sentences)
    pruned.save(tmp_path / "pruned.credo")
    again = credo.load(tmp_path / "pruned.credo", linear())
    np.testing.assert_array_equal(again.mean()["weights"]["layer0"]["w"], pruned.mean()["weights"]["layer0"]["w"])
    twice = prune(pruned, float(log_alpha.mean()))
    np.testing.assert_array_equal(twice.kind.mean, pruned.kind.mean)  # type: ignore[attr-defined]
    table = sparsity_table(fitted, X, Y, (np.float32(np.inf), float(log_alpha.mean())))
    assert list(table["sparsity"]) == [0.0, 0.5]
    assert table["log_score"][0] > table["log_score"][1]


@pytest.mark.parametrize("log_alpha", ["a", np.nan, None, [1.0]])
def test_a_threshold_is_a_number(fitted, log_alpha):
    with pytest.raises(credo.CredoError, match=r"log_alpha is a number, 3\.0 by default"):
        prune(fitted, log_alpha)


def test_biases_stay_and_shares_are_those_of_each_layer():
    """What was zero before is counted again."""
    weights = {"a": {"b": np.ones(3), "w": np.ones((2, 3))}, "c": np.ones((3, 2))}
    network = credo.nn.BayesianNetwork(
        lambda p, x: jnp.tanh(x @ p["a"]["w"] + p["a"]["b"]) @ p["c"], weights, head=Categorical()
    )
    target = network.given(X, np.arange(N) % 2).flat()
    noise = np.array([10, 10, 10, 0.1, 0.1, 0.1, 10, 10, 10, 10, 0.1, 0.1, 0.1, 0.1, 0.1])  # log alpha 4.6 or −4.6
    posterior = credo.Posterior(Normal(np.ones(15), Diagonal(noise)), target, verdict=credo.Verdict("doubtful"))
    pruned = prune(posterior)
    np.testing.assert_array_equal(pruned.kind.mean[:3], 1.0)  # type: ignore[attr-defined]
    assert pruned.info["sparsity"] == {"all": 4 / 12, "a.w": 3 / 6, "c": 1 / 6}
    assert prune(pruned).info["sparsity"] == pruned.info["sparsity"]
    y = np.argmax(posterior.predict(X).mean, axis=1)
    assert list(sparsity_table(posterior, X, y, (np.inf,))["accuracy"]) == [1.0]


def test_what_cannot_be_pruned(fitted):
    dense = credo.fit(linear(), credo.Laplace(), progress=False)
    with pytest.raises(credo.CredoError, match="independent coordinates"):
        prune(dense)
    with pytest.raises(credo.CredoError, match="nothing would be left"):
        prune(fitted, -1e6)


@pytest.mark.slow
def test_most_weights_of_a_digits_network_can_go():
    """Measured: 96 % of the weights at log alpha 3, for 0.2 points of accuracy."""
    (x, y), (x_new, y_new) = digits()
    prior = LogUniform()
    layers = [
        VBLinear(64, 50, prior=prior),
        jax.nn.relu,
        VBLinear(50, 50, prior=prior, key=1),
        jax.nn.relu,
        VBLinear(50, 10, prior=prior, key=2),
    ]
    target = VBNetwork(layers, head=Categorical()).given(x, y)
    posterior = credo.fit(target, credo.VariationalLayers(num_steps=6_000), progress=False, precision="float32")
    table = sparsity_table(posterior, x_new, y_new, (np.inf, 3.0))
    assert table["sparsity"][1] > 0.8
    assert table["accuracy"][1] > table["accuracy"][0] - 0.01
    assert table["accuracy"][0] > 0.95


@pytest.mark.slow
def test_a_network_of_normal_layers_learns_digits():
    (x, y), (x_new, y_new) = digits()
    target = VBNetwork([VBLinear(64, 50), jax.nn.relu, VBLinear(50, 10, key=1)], head=Categorical()).given(x, y)
    posterior = credo.fit(target, credo.VariationalLayers(), progress=False, precision="float32")
    predictive = posterior.predict(x_new)
    assert np.mean(np.argmax(predictive.mean, axis=-1) == y_new) > 0.95
    assert np.mean(predictive.log_prob(y_new)) > -0.2


def test_rows_of_zeros_train_layers_without_bias():
    """Their outputs have no variance, whose root has no derivative there."""
    x = np.random.default_rng(0).normal(size=(60, 3))
    x[0] = 0
    network = credo.nn.VBNetwork([credo.nn.VBLinear(3, 1, has_bias=False)], head=credo.nn.Gaussian(0.1))
    posterior = credo.fit(network.given(x, 2 * x[:, 0]), credo.VariationalLayers(num_steps=3_000), key=0)
    assert float(posterior.mean()["weights"]["layer0"]["w"][0, 0]) == pytest.approx(2.0, abs=0.1)


def test_bytes_have_the_variances_of_numbers():
    layer = credo.nn.VBLinear(2, 1)
    x = np.array([[255, 16]], np.uint8)
    np.testing.assert_allclose(layer.moments(x)[1], layer.moments(x.astype(np.float32))[1], rtol=1e-6)


def test_wrong_settings_of_a_convolution_have_a_sentence():
    for settings, said in (({"stride": 0}, "stride of VBConv"), ({"window": 3}, "window of one to three axes")):
        with pytest.raises(credo.CredoError, match=said):
            credo.nn.VBConv(1, 1, **settings)
    assert credo.nn.VBLinear(2, 1, prior=np.float32(2.0)).prior == 2.0


def test_pruning_leaves_layers_that_are_points():
    """As those of a VBLL below its last layer: log α of a weight without spread is −∞, and not +∞."""
    random = np.random.default_rng(0)
    x = random.normal(size=(100, 2))
    start = {"a": random.normal(size=(2, 5)), "out": random.normal(size=(5, 1))}
    network = credo.nn.BayesianNetwork(lambda p, x: jnp.tanh(x @ p["a"]) @ p["out"], start, head=credo.nn.Gaussian(0.2))
    posterior = credo.fit(
        network.given(x, np.sin(x[:, 0])), credo.VBLL(covariance="diagonal", num_steps=300), key=0, progress=False
    )
    pruned = credo.nn.prune(posterior, 50.0)
    assert pruned.info["sparsity"]["all"] == 0
    np.testing.assert_allclose(pruned.predict(x).mean, posterior.predict(x).mean, rtol=1e-5)


@pytest.mark.parametrize("layer", [VBConv(2, 1, window=(1,), has_bias=False), VBLinear(2, 1, has_bias=False)])
def test_sds_of_weights_at_several_places_are_those_of_the_optimum(layer):
    """Of a sum over six places: that of a linear model of sums, whose mean-field optimum is in closed form."""
    random = np.random.default_rng(1)
    x = random.normal(size=(120, 6, 2)) + 0.5
    y = x.sum(axis=1) @ [0.3, -0.4] + 0.5 * random.normal(size=120)
    network = VBNetwork([layer, lambda h: h[..., 0].sum(axis=1)], head=Gaussian(0.5))
    posterior = credo.fit(network.given(x, y), credo.VariationalLayers(num_steps=4_000), progress=False)
    optimum = 1 / np.sqrt(1 + np.sum(x.sum(axis=1) ** 2, axis=0) / 0.5**2)
    np.testing.assert_allclose(np.ravel(posterior.sd()["weights"]["layer0"]["w"]), optimum, rtol=0.1)
