"""Dropout: masks of inputs are masks of weights, their moments, and the optimum that training must reach."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo.methods.networks.dropout import Bernoulli, DropoutLoss, Normal
from credo.model.noisy import likelihood_layers, masking, sites_of, spreading, terms
from credo.model.windows import shuffled, window
from credo.nn import BayesianNetwork, Categorical, Gaussian, HorseshoeLike, Isotropic, LaplacePrior
from credo.posterior.masked import Masked
from credo.precision import double

RANDOM = np.random.default_rng(0)
N, NOISE, RATE = 96, 0.5, 0.3
X = RANDOM.normal(size=(N, 2)) @ np.array([[1.0, 0.6], [0.0, 0.8]])
Y = X @ np.array([1.0, -2.0]) + NOISE * RANDOM.normal(size=N)
IMAGES = RANDOM.normal(size=(4, 3, 3, 2))


def linear(prior=None) -> credo.Target:
    return BayesianNetwork(lambda w, x: x @ w, np.array([0.3, -0.1]), head=Gaussian(NOISE), prior=prior).given(X, Y)


def convolutional(params, x):
    h = jax.lax.conv_general_dilated(x, params["conv"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    h = jax.nn.relu(h + params["b"])
    return jnp.einsum("mhwc,ck->mk", h, params["out"])


def images() -> credo.Target:
    params = {"conv": RANDOM.normal(size=(2, 2, 2, 3)), "b": RANDOM.normal(size=3), "out": RANDOM.normal(size=(3, 2))}
    return BayesianNetwork(convolutional, params, head=Categorical()).given(IMAGES, np.array([0, 1, 1, 0]))


# masks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["channel", "element"])
def test_a_mask_of_inputs_is_a_mask_of_weights(by):
    with double():
        target = images().flat()
        rows = target.rows()
        layers = likelihood_layers(target, rows)
        sites = sites_of(layers, by)
        assert [len(site.groups) for site in sites] == [{"channel": 2, "element": 8}[by], 3]
        u, random = np.asarray(target.unconstrain(target.model.start)), np.random.default_rng(1)
        masks = [random.normal(size=len(site.groups)) for site in sites]
        hooks, masked = {}, u.copy()
        for site, mask in zip(sites, masks, strict=True):
            hooks |= masking(site, jnp.asarray(mask))
            masked[site.groups] *= mask[:, None]
        found = jax.vmap(lambda row: terms(layers, hooks, jnp.asarray(u), row)[0])(rows)
        np.testing.assert_allclose(found, target.log_likelihood(masked), rtol=1e-10)


def test_moments_of_masks():
    num, position = 20_000, np.array([1.0, -2.0, 3.0, 0.5, 4.0])
    kind = Masked(position, (np.array([[0, 1], [2, 3]]),), np.array([RATE]))
    with double():
        draws = np.asarray(jax.vmap(kind.sample_u)(jax.random.split(jax.random.key(0), num)))
    sd = np.abs(position) * np.sqrt(RATE / (1 - RATE)) * np.array([1, 1, 1, 1, 0])
    np.testing.assert_allclose(kind.sd(), sd)
    assert np.all(np.abs(draws.mean(axis=0) - position) <= 5 * sd / np.sqrt(num))
    np.testing.assert_allclose(draws.std(axis=0), sd, rtol=0.05)
    np.testing.assert_allclose(draws[:, 0] / position[0], draws[:, 1] / position[1])  # one mask for a row
    assert abs(np.corrcoef(draws[:, 0], draws[:, 2])[0, 1]) < 5 / np.sqrt(num)


def test_gaussian_noise_of_outputs_is_that_of_weights():
    """Moments of a layer's outputs, seen in the log-likelihood of a linear model: E (y − z)² = (y − m)² + α x² w²."""
    num, alpha = 20_000, 0.4
    with double():
        target, w = linear().flat(), jnp.asarray([0.8, -1.1])
        rows = jax.tree.map(lambda leaf: leaf[:1], target.rows())
        layers = likelihood_layers(target, rows)
        (site,) = sites_of(layers)
        row = jax.tree.map(lambda leaf: leaf[0], rows)

        def one(key):
            return terms(layers, spreading(site, alpha, key), w, row)[0]

        found = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(2), num)))
        w = np.asarray(w)
    error = (Y[0] - X[0] @ w) ** 2 + alpha * np.sum(X[0] ** 2 * w**2)
    expected = -0.5 * error / NOISE**2 - np.log(NOISE * np.sqrt(2 * np.pi))
    assert abs(found.mean() - expected) < 5 * found.std() / np.sqrt(num)


# the objective ----------------------------------------------------------------------------------------------------


def test_the_loss_is_unbiased_over_windows_and_masks():
    """Weight decay w² / (2 s² (1 − p)), and of a linear model E (y − z)² = (y − m)² + p / (1 − p) Σ x² w²."""
    with double():
        target = linear(Isotropic(4.0)).flat()
        data, loss = shuffled(target, 16, np.random.default_rng(5)), DropoutLoss(Bernoulli, "channel", (RATE,))
        u = jnp.asarray([0.7, -1.2])

        def exact(u):
            error = jnp.sum(jnp.square(Y - X @ u)) + RATE / (1 - RATE) * jnp.sum(jnp.square(X) @ jnp.square(u))
            decay = 0.5 * 4.0 * jnp.sum(u**2) / (1 - RATE) - np.log(4.0 / (2 * np.pi))
            return decay + 0.5 * error / NOISE**2 + N * np.log(NOISE * np.sqrt(2 * np.pi))

        def sweep(key):
            def one(i, key):
                return jax.value_and_grad(lambda u: loss(u, target, window(data, 16, i), key))(u)

            return jax.tree.map(lambda a: a.mean(axis=0), jax.vmap(one)(jnp.arange(N), jax.random.split(key, N)))

        found = jax.jit(lambda keys: jax.lax.map(sweep, keys))(jax.random.split(jax.random.key(6), 300))
        found, expected = jax.tree.map(np.asarray, (found, jax.value_and_grad(exact)(u)))
    for drawn, truth in zip(found, expected, strict=True):
        assert np.all(np.abs(drawn.mean(axis=0) - truth) < 5 * drawn.std(axis=0) / np.sqrt(len(drawn)))


def test_masks_of_two_layers_are_independent():
    """z = m₂ w₂ m₁ w₁ x has E z = w₂ w₁ x, and E z² = (w₂ w₁ x)² / (1 − p)²: the masks' E m² = 1 / (1 − p) each."""
    with double():
        weights = {"a": np.ones((1, 1)), "b": np.ones((1, 1))}
        network = BayesianNetwork(lambda p, x: x @ p["a"] @ p["b"], weights, head=Gaussian(NOISE))
        target, u = network.given(X[:, :1], Y).flat(), jnp.asarray([0.7, -1.2])
        loss = DropoutLoss(Bernoulli, "channel", (RATE, RATE))
        keys = jax.random.split(jax.random.key(3), 4_000)
        found = np.asarray(jax.jit(jax.vmap(lambda key: loss(u, target, target.rows(), key)))(keys))
        z = X[:, 0] * float(u[0] * u[1])
        error = np.sum(Y**2 - 2 * Y * z + z**2 / (1 - RATE) ** 2)
        prior = 0.5 * float(jnp.sum(u**2)) / (1 - RATE) + np.log(2 * np.pi)
    expected = prior + 0.5 * error / NOISE**2 + N * np.log(NOISE * np.sqrt(2 * np.pi))
    assert abs(found.mean() - expected) < 5 * found.std() / np.sqrt(len(found))


@pytest.mark.parametrize("prior", [Isotropic(4.0), LaplacePrior(1.5)], ids=["normal", "laplace"])
def test_the_expected_log_prior_is_the_sum_over_masks(prior):
    with double():
        target, u = linear(prior).flat(), jnp.asarray([0.7, -1.2])
        sites = [(site, RATE) for site in sites_of(likelihood_layers(target, target.rows()))]
        found = DropoutLoss(Bernoulli, "channel", (RATE,)).expected_log_prior(u, target, sites)
        expected = 0.0
        for kept in itertools.product([0, 1], repeat=2):
            probability = np.prod([1 - RATE if each else RATE for each in kept])
            expected += probability * float(target.log_prior(u * np.array(kept) / (1 - RATE)))
        assert float(found) == pytest.approx(expected, rel=1e-12)


def test_the_expected_log_prior_of_gaussian_noise_has_its_variance():
    with double():
        target, u = linear(Isotropic(4.0)).flat(), jnp.asarray([0.7, -1.2])
        sites = [(site, RATE) for site in sites_of(likelihood_layers(target, target.rows()), "element")]
        found = DropoutLoss(Normal, "element", (RATE,)).expected_log_prior(u, target, sites)
        variance = RATE / (1 - RATE) * u**2
        expected = target.log_prior(u) - 0.5 * 4.0 * jnp.sum(variance) + jnp.sum(jnp.log(jnp.abs(u)))
        assert float(found) == pytest.approx(float(expected), rel=1e-12)


@pytest.fixture(scope="module")
def fitted():
    return credo.fit(linear(), credo.MCDropout(rate=RATE, num_steps=4_000, batch_size=32), key=1, progress=False)


def test_training_reaches_the_optimum_of_a_linear_model(fitted):
    ridge = X.T @ X + RATE / (1 - RATE) * np.diag(np.sum(X**2, axis=0))
    expected = np.linalg.solve(ridge / NOISE**2 + np.eye(2) / (1 - RATE), X.T @ Y / NOISE**2)
    np.testing.assert_allclose(fitted.kind.position, expected, atol=0.02)
    np.testing.assert_allclose(fitted.mean()["weights"], fitted.kind.position)
    np.testing.assert_allclose(fitted.sd()["weights"], np.abs(fitted.kind.position) * np.sqrt(RATE / (1 - RATE)))


def test_the_answer_is_a_posterior_like_any_other(fitted, tmp_path):
    assert fitted.verdict.status == "doubtful"
    assert any("does not narrow as data grow" in sentence for sentence in fitted.verdict.sentences)
    draws = fitted.sample(3, 500)["weights"]
    assert {len(np.unique(draws[:, i])) for i in range(2)} == {2}  # there or not
    predictive = fitted.predict(X[:4], rule=credo.MonteCarlo(num_draws=4_000))
    expected = RATE / (1 - RATE) * X[:4] ** 2 @ fitted.kind.position**2
    np.testing.assert_allclose(predictive.epistemic, expected, rtol=0.1)
    np.testing.assert_allclose(predictive.variance, expected + NOISE**2, rtol=0.1)
    with pytest.raises(credo.CredoError, match="no density"):
        fitted.log_prob(fitted.mean())
    fitted.save(tmp_path / "fit.credo")
    again = credo.load(tmp_path / "fit.credo", linear())
    np.testing.assert_array_equal(again.sample(3, 500)["weights"], draws)


def test_weights_that_were_trained_with_dropout_are_taken_as_they_are():
    posterior = credo.fit(images(), credo.MCDropout(rate={"out": 0.5}, num_steps=0), progress=False)
    assert len(posterior.kind.groups) == 1  # type: ignore[attr-defined]
    assert posterior.info["num_gradients"] == 0
    conv = posterior.sample(1, 3)["weights"]["conv"]
    np.testing.assert_array_equal(conv, np.broadcast_to(conv[0], conv.shape))


def test_gaussian_dropout_reaches_a_stationary_point_of_its_bound():
    """Of ½ Σ (y − m)² / s² + ½ α Σ x² w² / s² + ½ (1 + α) w² − log |w| in a linear model."""
    posterior = credo.fit(
        linear(), credo.GaussianDropout(rate=RATE, num_steps=4_000, batch_size=32), key=2, progress=False
    )
    w, alpha = posterior.mean()["weights"], RATE / (1 - RATE)
    precision = (X.T @ X + alpha * np.diag(np.sum(X**2, axis=0))) / NOISE**2 + (1 + alpha) * np.eye(2)
    gradient = precision @ w - X.T @ Y / NOISE**2 - 1 / w
    hessian = precision + np.diag(1 / w**2)
    np.testing.assert_allclose(np.linalg.solve(hessian, gradient), 0.0, atol=0.02)
    np.testing.assert_allclose(posterior.sd()["weights"], np.sqrt(alpha) * np.abs(w), rtol=1e-6)
    assert np.isfinite(posterior.log_prob(posterior.mean()))


# requests that cannot be answered -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "method", "sentence"),
    [
        (linear, credo.MCDropout(rate=1.0), "between 0 and 1"),
        (linear, credo.MCDropout(rate=0.0), "between 0 and 1"),
        (images, credo.MCDropout(rate={"out": None}), "between 0 and 1.*'out': None"),
        (images, credo.MCDropout(rate={"middle": 0.1}), "the layers of the model are conv, out"),
        (lambda: linear(HorseshoeLike()), credo.MCDropout(num_steps=5), "infinite at zero"),
        (
            lambda: credo.Model({"a": dist.Normal(0.0, 1.0)}, lambda p, x: dist.Normal(p["a"] + x, 1.0)).given(Y, Y),
            credo.MCDropout(),
            "no matrix product",
        ),
    ],
)
def test_wrong_requests_are_said(target, method, sentence):
    with pytest.raises(credo.CredoError, match=sentence):
        credo.fit(target(), method, progress=False)


def in_a_loop(params, x):
    h = jnp.tanh(x @ params["in"])
    return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), h, params["loop"])[0] @ params["out"]


@pytest.mark.parametrize("method", [credo.MCDropout(num_steps=0), credo.GaussianDropout(num_steps=0)])
def test_what_stays_without_dropout_is_named(method):
    params = {"in": RANDOM.normal(size=(2, 3)), "loop": RANDOM.normal(size=(2, 3, 3)), "out": RANDOM.normal(size=3)}
    posterior = credo.fit(BayesianNetwork(in_a_loop, params, head=Gaussian(NOISE)).given(X, Y), method, progress=False)
    assert any(s.startswith("Without dropout are weights.loop:") for s in posterior.verdict.sentences)
    assert np.all(np.asarray(posterior.sd()["weights"]["loop"]) == 0)
    other = credo.fit(linear(), method, progress=False)
    assert not any("Without dropout" in sentence for sentence in other.verdict.sentences)
