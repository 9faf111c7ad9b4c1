"""Variational Bayesian last layers: moments, bounds, linear regression exactly, and models that have none."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from scipy import special

import credo
from credo.methods.networks.vbll import LastLayerBound, Parameters, expected_log_lik, find_last_layer, moments
from credo.model.windows import shuffled, window
from credo.nn import BayesianNetwork, Categorical, Gaussian, HeteroscedasticGaussian, Isotropic, LaplacePrior
from credo.precision import double

RANDOM = np.random.default_rng(0)
N, NOISE = 96, 0.5
X = RANDOM.normal(size=(N, 2)) @ np.array([[1.0, 0.6], [0.0, 0.8]])
Y = X @ np.array([1.0, -2.0]) + 0.3 + NOISE * RANDOM.normal(size=N)
CLASSES = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)


def weights(num_out: int):
    random = np.random.default_rng(1)
    return {
        "in": random.normal(size=(2, 4)),
        "out": {"w": 0.5 * random.normal(size=(4, num_out)), "b": 0.1 * random.normal(size=num_out)},
    }


def apply(params, x):
    return jnp.tanh(x @ params["in"]) @ params["out"]["w"] + params["out"]["b"]


def classifier(prior=None) -> credo.Target:
    return BayesianNetwork(apply, weights(3), head=Categorical(), prior=prior).given(X, CLASSES)


@functools.cache
def linear(scale: float = 1.0) -> credo.Target:
    def line(params, x):
        return scale * (x @ params["w"]) + params["b"]

    return BayesianNetwork(line, {"w": np.zeros((2, 1)), "b": np.zeros(1)}, head=Gaussian(NOISE)).given(X, Y)


def some(target, is_dense: bool = True) -> Parameters:
    """Parameters away from the start."""
    random = np.random.default_rng(2)
    last = find_last_layer(target, target.rows())
    num_out, n = last.index.shape
    lower = jnp.asarray(0.3 * random.normal(size=(num_out, n, n))) if is_dense else None
    u = jnp.asarray(target.unconstrain(target.model.start))
    return Parameters(u, jnp.asarray(-1.0 + 0.3 * random.normal(size=(num_out, n))), lower)


# the bound --------------------------------------------------------------------------------------------------------


def test_moments_of_the_outputs_are_those_of_drawn_last_layers():
    num = 20_000
    with double():
        target = classifier().flat()
        q, last = some(target), find_last_layer(target, target.rows())
        assert last.index.shape == (3, 5)
        mean, variance = map(np.asarray, moments(q, target, last, target.x[:4]))
        roots = jnp.tril(q.lower, -1) + jax.vmap(jnp.diag)(jnp.exp(q.log_sd))

        def outputs(key):
            moved = jnp.einsum("jnm,jm->jn", roots, jax.random.normal(key, last.index.shape))
            return target.outputs(target.constrain(q.position.at[last.index].add(moved)), target.x[:4])

        drawn = np.asarray(jax.jit(jax.vmap(outputs))(jax.random.split(jax.random.key(0), num)))
    assert np.all(np.abs(drawn.mean(axis=0) - mean) < 5 * np.sqrt(variance / num))
    assert np.all(np.abs(drawn.var(axis=0) / variance - 1) < 5 * np.sqrt(2 / num))


@pytest.mark.parametrize(("name", "y"), [("normal", 0.7), ("categorical", 1), ("bernoulli", 1), ("poisson", 3)])
def test_terms_are_expectations_or_below_them(name, y):
    mean, sd = np.array([0.4, -0.6]), np.array([0.5, 0.0 if name == "normal" else 0.8])
    z = mean + sd * np.random.default_rng(3).normal(size=(400_000, 2))
    log_prob = {
        "normal": lambda: -0.5 * (y - z[:, 0]) ** 2 * np.exp(-2 * z[:, 1]) - z[:, 1] - 0.5 * np.log(2 * np.pi),
        "categorical": lambda: z[:, y] - special.logsumexp(z, axis=1),
        "bernoulli": lambda: y * z[:, 0] - np.logaddexp(0, z[:, 0]),
        "poisson": lambda: y * z[:, 0] - np.exp(z[:, 0]) - special.gammaln(y + 1),
    }[name]()
    with double():
        (found,) = np.asarray(expected_log_lik(name, mean[None], sd[None] ** 2, np.array([y])))
    error = log_prob.std() / np.sqrt(len(log_prob))
    if name in ("normal", "poisson"):
        assert abs(found - log_prob.mean()) < 5 * error
    else:
        assert log_prob.mean() - 0.1 < found < log_prob.mean() + 5 * error
        # by Jensen's inequality: E log Σ eᶻ (of two classes the other is z = 0) at most log E Σ eᶻ, by quadrature
        nodes, weights = np.polynomial.hermite_e.hermegauss(60)
        each = np.exp(mean[:, None] + sd[:, None] * nodes) @ weights / weights.sum()
        total = 1 + each[0] if name == "bernoulli" else each.sum()
        np.testing.assert_allclose(found, mean[y if name == "categorical" else 0] - np.log(total), rtol=1e-10)


def test_the_mean_over_all_windows_is_the_full_loss():
    with double():
        target = classifier(Isotropic(dist.Gamma(2.0, 2.0))).flat()
        data, q = shuffled(target, 20, np.random.default_rng(5)), some(target)
        one = jax.jit(jax.value_and_grad(lambda q, rows: LastLayerBound()(q, target, rows, None)))
        found = jax.vmap(lambda i: one(q, window(data, 20, i)))(jnp.arange(N))
        found = jax.tree.map(lambda a: np.asarray(a).mean(axis=0), found)
        expected = jax.tree.map(np.asarray, one(q, target.rows()))
    for drawn, full in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(drawn, full, rtol=1e-9, atol=1e-9)


def test_the_bound_of_a_gaussian_is_the_elbo():
    """KL from the prior by its formula, and the expected log-likelihood, at another precision of the prior than one."""
    with double():
        target = linear().flat()
        q = some(target)
        last = find_last_layer(target, target.rows())
        (index,) = last.index
        root = np.asarray(jnp.tril(q.lower[0], -1) + jnp.diag(jnp.exp(q.log_sd[0])))
        found = float(LastLayerBound()(q, target, target.rows(), None))
        mean = np.asarray(q.position)[index]
    S, A = root @ root.T, np.column_stack([X, np.ones(N)])
    kl = 0.5 * (np.trace(S) + mean @ mean - 3 - np.linalg.slogdet(S)[1])
    error = (Y - A @ mean) ** 2 + np.einsum("ij,jk,ik->i", A, S, A)
    assert found == pytest.approx(kl + 0.5 * error.sum() / NOISE**2 + N * np.log(NOISE * np.sqrt(2 * np.pi)), rel=1e-9)


# the fit ----------------------------------------------------------------------------------------------------------


def test_an_epoch_sees_each_row_once():
    """With steps of no length the mean loss of an epoch is that of all rows, and each part of the path is an epoch."""
    method = credo.VBLL(optimiser=optax.sgd(0.0), batch_size=16, num_steps=120)
    posterior = credo.fit(classifier(), method, key=2, progress=False)
    np.testing.assert_allclose(posterior.info["loss_path"], -posterior.info["bound"], rtol=1e-9)


def test_a_step_is_along_the_gradient_of_the_loss_a_datum():
    method = credo.VBLL(optimiser=optax.sgd(1.0), batch_size=None, num_steps=1)
    posterior = credo.fit(classifier(), method, progress=False)
    with double():
        target = classifier().flat()
        u = jnp.asarray(target.unconstrain(target.model.start))
        begun = Parameters(u, jnp.full((3, 5), np.log(0.03)), jnp.zeros((3, 5, 5)))
        slope = jax.jit(jax.grad(lambda q: LastLayerBound()(q, target, target.rows(), None)))(begun).position
        np.testing.assert_allclose(posterior.kind.mean, u - slope / N, rtol=1e-10)


def test_a_row_of_weight_w_is_w_rows():
    """Of classes in the bound, and of numbers in their regression."""
    count = np.arange(N) % 4
    model = classifier().model
    with double():
        weighted = model.given(X, CLASSES, weights=count).flat()
        repeated = model.given(np.repeat(X, count, 0), np.repeat(CLASSES, count)).flat()
        bound = jax.jit(lambda target: LastLayerBound()(some(weighted), target, target.rows(), None))
        assert float(bound(weighted)) == pytest.approx(float(bound(repeated)), rel=1e-12)
    posterior = credo.fit(linear().model.given(X, Y, weights=count), credo.VBLL(num_steps=1), progress=False)
    A = np.column_stack([X, np.ones(N)])
    mean = np.linalg.solve(A.T @ (A * count[:, None]) / NOISE**2 + np.eye(3), A.T @ (count * Y) / NOISE**2)
    np.testing.assert_allclose([*posterior.mean()["weights"]["w"][:, 0], posterior.mean()["weights"]["b"][0]], mean)


def test_regression_is_drawn_to_the_mean_of_the_prior():
    prior = {"w": dist.Normal(np.array([2.0, -1.0]), 0.5)}
    model = credo.Model(prior, lambda p, x: dist.Normal(x @ p["w"], NOISE))
    posterior = credo.fit(model.given(X[:8], Y[:8]), credo.VBLL(num_steps=5), progress=False)
    precision = X[:8].T @ X[:8] / NOISE**2 + 4 * np.eye(2)
    mean = np.linalg.solve(precision, X[:8].T @ Y[:8] / NOISE**2 + 4 * np.array([2.0, -1.0]))
    np.testing.assert_allclose(posterior.mean()["w"], mean, rtol=1e-8)
    step = np.array([0.1, -0.3])  # along correlated coordinates
    fall = posterior.log_prob({"w": mean}) - posterior.log_prob({"w": mean + step})
    assert fall == pytest.approx(0.5 * step @ precision @ step, rel=1e-6)
    height = 0.5 * np.linalg.slogdet(precision / (2 * np.pi))[1]
    assert posterior.log_prob({"w": mean}) == pytest.approx(height, rel=1e-6)


@pytest.mark.parametrize(("covariance", "scale"), [("dense", 1.0), ("diagonal", 1.0), ("dense", 0.3)])
def test_linear_regression_is_exact(covariance, scale):
    """Also where products are scaled before the bias is added."""
    posterior = credo.fit(linear(scale), credo.VBLL(covariance=covariance, num_steps=20), progress=False)
    A = np.column_stack([scale * X, np.ones(N)])
    precision = A.T @ A / NOISE**2 + np.eye(3)
    mean = np.linalg.solve(precision, A.T @ Y / NOISE**2)
    found = posterior.mean()["weights"]
    np.testing.assert_allclose([*found["w"][:, 0], found["b"][0]], mean, rtol=1e-6)
    S = np.linalg.inv(precision) if covariance == "dense" else np.diag(1 / np.diag(precision))
    predictive = posterior.predict(X[:5], rule=credo.Linearised())
    np.testing.assert_allclose(predictive.epistemic, np.einsum("ij,jk,ik->i", A[:5], S, A[:5]), rtol=1e-5)
    evidence = dist.MultivariateNormal(0.0, A @ A.T + NOISE**2 * np.eye(N))
    with double():
        assert posterior.info["bound"] <= float(evidence.log_prob(Y)) + 1e-3
    if covariance == "dense":
        with double():
            assert posterior.info["bound"] == pytest.approx(float(evidence.log_prob(Y)), abs=1e-3)


def test_little_noise_and_directions_of_the_prior_alone_in_single_precision():
    """Precisions from 1 to 1e10: a factorisation in single precision gave NaN for every spread, without a word."""
    random = np.random.default_rng(4)
    x = random.normal(size=(300, 2)) @ np.array([[1.0, 1.0, 0.5], [0.0, 1e-4, 0.3]])
    y, noise = x[:, 0] + 1e-4 * random.normal(size=300), 1e-4
    model = credo.nn.BayesianNetwork(
        lambda p, x: (x @ p["w"])[:, 0], {"w": np.ones((3, 1))}, head=Gaussian(noise), prior=Isotropic(1.0)
    )
    target = model.given(x, y)
    posterior = credo.fit(target, credo.VBLL(num_steps=20), precision="float32", key=0, progress=False)
    sds = np.sqrt(np.diag(np.linalg.inv(x.T @ x / noise**2 + np.eye(3))))
    np.testing.assert_allclose(posterior.sd()["weights"]["w"][:, 0], sds, rtol=1e-3)


@pytest.fixture(scope="module")
def fitted():
    return credo.fit(classifier(), credo.VBLL(num_steps=300, batch_size=32), key=1, progress=False)


def test_features_are_points_and_the_last_layer_is_not(fitted, tmp_path):
    sd = fitted.sd()["weights"]
    np.testing.assert_allclose(sd["in"], 0.0, atol=1e-12)
    assert np.all(sd["out"]["w"] > 0)
    assert np.all(sd["out"]["b"] > 0)
    mean = fitted.mean()["weights"]
    assert np.isfinite(fitted.log_prob({"weights": mean}))
    assert fitted.log_prob({"weights": mean | {"in": mean["in"] + 0.1}}) == -np.inf
    assert fitted.info["loss_path"][-1] < fitted.info["loss_path"][0]
    assert fitted.verdict.status == "doubtful"
    assert any("last layer alone" in sentence for sentence in fitted.verdict.sentences)
    probabilities = fitted.predict(X).mean
    assert np.mean(np.argmax(probabilities, axis=-1) == CLASSES) > 0.8
    fitted.save(tmp_path / "fit.credo")
    again = credo.load(tmp_path / "fit.credo", classifier())
    np.testing.assert_array_equal(again.sample(1, 4)["weights"]["out"]["w"], fitted.sample(1, 4)["weights"]["out"]["w"])


def test_modules_that_compute_in_single_precision_are_linear_all_the_same():
    """Flax and torch modules do, whatever they are given: their outputs are linear to seven digits."""

    def single(params, x):
        return apply(jax.tree.map(jnp.float32, params), jnp.float32(1e3 + x))

    target = BayesianNetwork(single, weights(3), head=Categorical()).given(X, CLASSES)
    assert credo.fit(target, credo.VBLL(num_steps=5), progress=False).verdict.status != "pass"


# requests that cannot be answered -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        (lambda: classifier(LaplacePrior(1.0)), "normal prior"),
        (
            lambda: BayesianNetwork(apply, weights(2), head=HeteroscedasticGaussian()).given(X, Y),
            "not linear in the last layer",
        ),
        (
            lambda: BayesianNetwork(lambda w, x: x @ w, np.ones((2, 4)), head=credo.nn.HeteroscedasticGaussian()).given(
                X, np.stack([Y, Y], axis=1)
            ),
            "not linear in the last layer",
        ),
        (
            lambda: BayesianNetwork(lambda w, x: jnp.tanh(x @ w), np.ones((2, 3)), head=Categorical()).given(
                X, CLASSES
            ),
            "not linear in the last layer",
        ),
        (
            lambda: BayesianNetwork(lambda p, x: x * p, np.ones(2), head=Categorical()).given(X, CLASSES > 0),
            "0 products",
        ),
        (
            lambda: BayesianNetwork(lambda w, x: jnp.sqrt(x) @ w, np.ones((2, 3)), head=Categorical()).given(
                X, CLASSES
            ),
            "log likelihood of y is nan in",
        ),
        (
            lambda: credo.Model({"a": dist.Normal()}, lambda p, x: dist.Gamma(1.0, jnp.exp(p["a"] * x))).given(
                X[:, 0], np.abs(Y)
            ),
            "knows outcomes",
        ),
    ],
    ids=["laplace", "heteroscedastic", "heteroscedastic columns", "tanh", "no product", "nan", "gamma"],
)
def test_models_without_a_last_layer_of_normal_weights(target, sentence):
    with pytest.raises(credo.CredoError, match=sentence):
        credo.fit(target(), credo.VBLL(num_steps=5), progress=False)
