"""Kronecker-factored Laplace: layers found in any program, blocks that are exact where theory says so, predictions."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree

import credo
from cases import first_of
from credo.linalg.dense import Dense
from credo.linalg.kronecker import Block, Kronecker
from credo.model.layers import find_layers
from credo.nn import BayesianNetwork, Bernoulli, Categorical, Gaussian, Isotropic
from credo.posterior.kinds import Gaussian as Normal
from credo.precision import double

RANDOM = np.random.default_rng(0)


def normal(*shape):
    return RANDOM.normal(size=shape)


# layers --------------------------------------------------------------------------------------------------------------


def convolve(image, kernel, strides=(1, 1)):
    return jax.lax.conv_general_dilated(image, kernel, strides, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def dense(p, x):
    return jax.nn.relu(x @ p["a"] + p["b"]) @ p["c"].T + p["d"]


def convolutional(p, x):
    h = jnp.tanh(p["scale"] * convolve(jax.nn.relu(convolve(x[None], p["k"]) + p["b"]), p["k2"], (2, 2)))
    return (h.reshape(1, -1) @ p["w"])[0]


def attention(p, tokens):
    x = p["table"][tokens]
    q, k, v = x @ p["q"], x @ p["k"], x @ p["v"]
    return jnp.mean(jax.nn.softmax(q @ k.T / 3.0) @ v @ p["o"], axis=0)


def padded(p, tokens):
    """The row of padding is a constant, and so it is beside a table that is chosen from by columns."""
    table = jnp.concatenate([p["table"][:2], np.full((1, 4), 0.5), p["table"][2:]])
    return (jnp.take(table, tokens, axis=0) * p["columns"][:, tokens].T).sum(0)


def recurrent(p, x):
    h = jnp.zeros(3)
    for t in range(4):
        h = jnp.tanh(jax.jit(lambda h, x: h @ p["h"] + x @ p["i"])(h, x[t]))
    return h @ p["o"]


def tied(p, x):
    return jnp.tanh(x @ p["w"]) @ p["w"].T


def scanned(p, x, reverse=False):
    """The same, and the states at all steps count."""

    def step(h, x):
        h = jnp.tanh(jax.jit(lambda h, x: h @ p["h"] + x @ p["i"] + p["b"])(h, x))
        return h, h @ p["o"]

    h, out = jax.lax.scan(step, jnp.zeros(3), x, reverse=reverse)
    return jnp.sum(out, axis=0) + h @ p["o"]


def stacked(p, x):
    """Blocks with weights of their own, one after the other, and a step that all of them share."""

    def block(h, own):
        w, b = own
        return jnp.tanh(h @ w + b) @ p["shared"], None

    return jax.lax.scan(block, x, (p["w"], p["b"]))[0]


def nested(p, x):
    """A stack of recurrences, over a table of embeddings."""

    def layer(x, own):
        h, i = own
        out = jax.lax.scan(lambda state, x: (jnp.tanh(state @ h + x @ i),) * 2, jnp.zeros(3), x)[1]
        return out, None

    def embed(total, token):
        return total, p["table"][token]

    first = jax.lax.scan(embed, 0.0, x)[1]
    return jax.lax.scan(layer, first, (p["h"], p["i"]))[0][-1]


def filtered(p, x):
    """A convolution at each step."""

    def step(h, image):
        return h + image, jnp.sum(jnp.tanh(jnp.convolve(image + h, p["k"], mode="valid")), keepdims=True)

    return jnp.sum(jax.lax.scan(step, jnp.zeros(6), x)[1], axis=0)


def carried(p, x):
    """A weight in the state, and one that leaves as it came; both are used outside as well."""

    def step(state, x):
        w, h = state
        return (0.9 * w, jnp.tanh(h @ w + x @ p["i"])), p["s"]

    (_, h), s = jax.lax.scan(step, (p["w"], jnp.zeros(3)), x)
    return h * jnp.sum(s) + h @ p["w"] @ p["o"] + jnp.sum(x[0] + p["s"])


def indexed(p, x):
    """By the number of a step: a row of a table, a matrix, which is no row, and numbers of too few bits for rows."""

    def block(i, h):
        own = jax.lax.dynamic_slice(p["t"], ((i + 100).astype(jnp.uint8), jnp.uint8(0)), (1, 3))[0]
        return jnp.tanh(h @ p["w"][i] + p["b"][i] + own)

    return jax.lax.fori_loop(0, 4, block, x)


def never(p, x):
    """A scan of no step, and one of more steps than layers of their own are worth."""
    h, _ = jax.lax.scan(lambda h, x: (jnp.tanh(h @ p["w"] + p["b"] + x), None), x, jnp.zeros((0, 3)))
    steps = (jnp.ones((40, 2)), p["places"])
    return (
        jax.lax.scan(lambda h, own: (jnp.tanh(h @ p["h"] + own[0] @ p["i"] + own[1]), None), h, steps)[0]
        + p["places"][5]
    )


NETWORKS = {
    "dense": (dense, {"a": normal(4, 5), "b": normal(5), "c": normal(3, 5), "d": normal(3)}, normal(4), 0),
    "convolutional": (
        convolutional,
        {"k": normal(3, 3, 2, 4), "b": normal(4), "k2": normal(3, 3, 4, 3), "scale": normal(3), "w": normal(48, 5)},
        normal(8, 8, 2),
        3,
    ),
    "attention": (
        attention,
        {"q": normal(6, 8), "k": normal(6, 8), "v": normal(6, 8), "o": normal(8, 3), "table": normal(10, 6)},
        RANDOM.integers(0, 10, 7),
        0,
    ),
    "padded": (padded, {"table": normal(5, 4), "columns": normal(4, 6)}, np.array([0, 2, 5, 5, 1]), 0),
    "recurrent": (recurrent, {"h": normal(3, 3), "i": normal(2, 3), "o": normal(3, 2)}, normal(4, 2), 0),
    "scanned": (scanned, {"h": normal(3, 3), "i": normal(2, 3), "b": normal(3), "o": normal(3, 2)}, normal(4, 2), 0),
    "reversed": (
        lambda p, x: scanned(p, x, reverse=True),
        {"h": normal(3, 3), "i": normal(2, 3), "b": normal(3), "o": normal(3, 2)},
        normal(4, 2),
        0,
    ),
    "stacked": (stacked, {"w": normal(5, 3, 4), "b": normal(5, 4), "shared": normal(4, 3)}, normal(3), 0),
    "nested": (
        nested,
        {"table": normal(6, 3), "h": normal(2, 3, 3), "i": normal(2, 3, 3)},
        np.array([1, 4, 1, 7]),  # beyond the end is the last row
        0,
    ),
    "filtered": (filtered, {"k": normal(3)}, normal(4, 6), 0),
    "indexed": (indexed, {"w": normal(4, 3, 3), "b": normal(4, 3), "t": normal(300, 3)}, normal(3), 36 + 900),
    "never": (
        never,
        {"w": normal(3, 3), "b": normal(3), "h": normal(3, 3), "i": normal(2, 3), "places": normal(40, 3)},
        normal(3),
        12 + 120,
    ),
    "carried": (carried, {"w": normal(3, 3), "i": normal(2, 3), "s": normal(2), "o": normal(3, 3)}, normal(4, 2), 11),
    "tied": (tied, {"w": normal(4, 3)}, normal(4), 12),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_inputs_and_derivatives_of_layers_make_the_jacobian(name):
    apply, params, row, num_rest = NETWORKS[name]
    with double():
        u, unravel = ravel_pytree(jax.tree.map(jnp.asarray, params))
        layers = find_layers(lambda u, row: apply(unravel(u), row), u, row)

        @jax.jit
        def both(u):
            z, inputs, back = layers.linearised(u, row)
            direct = apply(unravel(u), row), jax.jacrev(lambda u: apply(unravel(u), row))(u)
            return direct, z, inputs, jax.vmap(back)(jnp.eye(len(z)))

        (outputs, jacobian), z, inputs, derivatives = jax.tree.map(np.asarray, both(u))
        np.testing.assert_allclose(z, outputs, atol=1e-12)
    found = np.full_like(jacobian, np.nan)
    for layer, a_uses, g_uses in zip(layers.layers, inputs, derivatives, strict=True):
        found[:, layer.index] = sum(np.einsum("si,kso->kio", a, g) for a, g in zip(a_uses, g_uses, strict=True))
    assert len(layers.rest) == num_rest
    covered = np.setdiff1d(np.arange(u.size), layers.rest)
    np.testing.assert_allclose(found[:, covered], jacobian[:, covered], atol=1e-12)


# the operator --------------------------------------------------------------------------------------------------------


def test_the_operator_is_a_square_root_of_its_covariance():
    index = RANDOM.permutation(20)
    U, V = np.linalg.qr(normal(3, 3))[0], np.linalg.qr(normal(4, 4))[0]
    sd, rest = np.abs(normal(3, 4)) + 0.1, np.abs(normal(1, 8)) + 0.1
    with double():
        scale = Kronecker((Block(index[:12].reshape(3, 4), sd, U, V), Block(index[12:][None], rest)))
        S = np.asarray(jax.vmap(scale.matvec)(jnp.eye(20))).T
        expected = np.zeros((20, 20))
        expected[np.ix_(index[:12], index[:12])] = np.kron(U, V) @ np.diag(sd.ravel() ** 2) @ np.kron(U, V).T
        expected[index[12:], index[12:]] = rest.ravel() ** 2
        v = normal(20)
        np.testing.assert_allclose(S @ S.T, expected, atol=1e-12)
        np.testing.assert_allclose(scale.dense(), expected, atol=1e-12)
        np.testing.assert_allclose(scale.diagonal(), np.diag(expected), atol=1e-12)
        np.testing.assert_allclose(scale.transpose_matvec(v), S.T @ v, atol=1e-12)
        np.testing.assert_allclose(scale.solve(v), np.linalg.solve(S, v), atol=1e-10)
        assert float(scale.log_det()) == pytest.approx(0.5 * np.linalg.slogdet(expected)[1])


# exact where it can be -----------------------------------------------------------------------------------------------


def laplace(target, structure, **options):
    method = credo.Laplace(structure=structure, curvature=credo.GaussNewton(), **options)
    return credo.fit(target, method, key=0, progress=False)


def covariance(posterior) -> np.ndarray:
    with double():
        return np.asarray(posterior.kind.scale.dense())


def test_a_linear_network_is_bayesian_linear_regression():
    X = normal(40, 3)
    y = X @ np.array([1.0, -2.0, 0.5]) + 0.3 * normal(40)
    network = BayesianNetwork(lambda w, x: x @ w, np.zeros((3, 1)), head=Gaussian(0.3), prior=Isotropic(2.0))
    posterior = laplace(network.given(X, y), credo.laplace.Kronecker())
    precision = X.T @ X / 0.09 + 2.0 * np.eye(3)
    np.testing.assert_allclose(covariance(posterior), np.linalg.inv(precision), rtol=1e-6)
    np.testing.assert_allclose(posterior.mean()["weights"][:, 0], np.linalg.solve(precision, X.T @ y / 0.09), rtol=1e-6)
    predictive = posterior.predict(X, rule=credo.Linearised())
    np.testing.assert_allclose(
        predictive.epistemic, np.einsum("ij,jk,ik->i", X, np.linalg.inv(precision), X), rtol=1e-6
    )
    exact = credo.fit(network.given(X, y), credo.Exact(), progress=False)
    assert posterior.log_evidence.value == pytest.approx(exact.log_evidence.value, rel=1e-8)


@pytest.mark.parametrize("shared", ["expand", "reduce"])
def test_one_layer_and_one_datum_have_the_full_curvature(shared):
    network = BayesianNetwork(lambda p, x: x @ p["w"], {"w": normal(4, 3)}, head=Categorical())
    target = network.given(normal(1, 4), np.array([2]))
    kronecker = laplace(target, credo.laplace.Kronecker(shared=shared), num_steps=0)
    full = laplace(target, credo.laplace.Dense(), num_steps=0)
    np.testing.assert_allclose(covariance(kronecker), covariance(full), rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_biases_have_their_full_block_and_other_coordinates_their_diagonal():
    params = {"w": normal(2, 4), "b": normal(4), "scale": normal(4), "v": normal(4, 1), "c": normal(1)}
    network = BayesianNetwork(
        lambda p, x: (p["scale"] * jnp.tanh(x @ p["w"] + p["b"])) @ p["v"] + p["c"], params, head=Bernoulli()
    )
    X = normal(30, 2)
    target = network.given(X, RANDOM.integers(0, 2, 30))
    found = np.linalg.inv(covariance(laplace(target, credo.laplace.Kronecker(), num_steps=0)))
    full = np.linalg.inv(covariance(laplace(target, credo.laplace.Dense(), num_steps=0)))
    first = np.cumsum([0, *(leaf.size for leaf in target.structure.leaves)])
    place = {leaf.name: slice(a, b) for leaf, a, b in zip(target.structure.leaves, first, first[1:], strict=False)}
    b, scale, w = place["weights.b"], place["weights.scale"], place["weights.w"]
    np.testing.assert_allclose(found[b, b], full[b, b], rtol=1e-6)
    np.testing.assert_allclose(np.diag(found[scale, scale]), np.diag(full[scale, scale]), rtol=1e-6)
    np.testing.assert_allclose(found[b, w], 0.0, atol=1e-9)


@pytest.mark.parametrize("shared", first_of(["expand", "reduce"]))
@pytest.mark.parametrize("name", first_of(["dense", "convolutional", "attention", "padded"]))
def test_a_row_of_weight_w_is_w_rows(name, shared):
    """Also where w = 0, as of the rows that fill up a table."""
    function, params, row, _ = NETWORKS[name]
    X = np.stack([RANDOM.permutation(row.ravel()).reshape(row.shape) for _ in range(6)])
    y, weights = np.array([0, 1, 1, 2, 0, 1]), np.array([1, 0, 3, 2, 1, 2])
    network = BayesianNetwork(lambda p, x: jax.vmap(lambda row: function(p, row)[:3])(x), params, head=Categorical())
    structure = credo.laplace.Kronecker(shared=shared)
    weighted = laplace(network.given(X, y, weights=weights), structure, num_steps=0)
    repeated = laplace(network.given(np.repeat(X, weights, 0), np.repeat(y, weights)), structure, num_steps=0)
    np.testing.assert_allclose(covariance(weighted), covariance(repeated), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("shared", ["expand", "reduce"])
def test_factors_of_a_convolution_follow_their_formula(shared):
    kernel = normal(3, 3, 2, 4)

    def apply(p, x):
        return jnp.sum(jnp.tanh(convolve(x, p["k"])), axis=(1, 2))

    X, y = normal(6, 5, 5, 2), RANDOM.integers(0, 4, 6)
    network = BayesianNetwork(apply, {"k": kernel}, head=Categorical(), prior=Isotropic(1.0))
    posterior = laplace(network.given(X, y), credo.laplace.Kronecker(shared=shared), num_steps=0)
    A, B = np.zeros((18, 18)), np.zeros((4, 4))
    for image in X:
        patches = np.stack(
            [np.pad(image, ((1, 1), (1, 1), (0, 0)))[i : i + 3, j : j + 3] for i in range(5) for j in range(5)]
        )
        a = np.moveaxis(patches, 3, 1).reshape(25, 18)  # channel, then place: the order of the layer's inputs
        out = np.einsum("snij,ijno->so", np.moveaxis(patches, 3, 1), kernel)
        p = np.exp(np.tanh(out).sum(0))
        p /= p.sum()
        values, vectors = np.linalg.eigh(np.diag(p) - np.outer(p, p))
        g = np.einsum("so,ok->kso", 1 - np.tanh(out) ** 2, vectors * np.sqrt(np.maximum(values, 0)))
        if shared == "reduce":
            a, g = a.mean(0, keepdims=True), g.sum(1, keepdims=True)
        A += a.T @ a
        B += np.einsum("ksi,ksj->ij", g, g)
    places = 25 if shared == "expand" else 1
    expected = np.linalg.inv(np.kron(A, B) / (6 * places) + np.eye(72))
    order = np.moveaxis(np.arange(72).reshape(3, 3, 2, 4), 2, 0).reshape(
        -1
    )  # (height, width, in, out) by layer's order
    np.testing.assert_allclose(covariance(posterior)[np.ix_(order, order)], expected, rtol=1e-6, atol=1e-9)


# predictions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "structure", [credo.laplace.Kronecker(), credo.laplace.Diagonal()], ids=["kronecker", "diagonal"]
)
@pytest.mark.parametrize("name", first_of(["scanned", "dense", "convolutional", "recurrent", "stacked"]))
def test_predictions_by_layers_are_those_by_jacobians(name, structure):
    apply, params, row, _ = NETWORKS[name]
    X = normal(8, *row.shape)
    network = BayesianNetwork(jax.vmap(apply, in_axes=(None, 0)), params, head=Categorical())
    num_classes = np.asarray(apply(params, row)).size
    target = network.given(X, RANDOM.integers(0, num_classes, 8))
    posterior = laplace(target, structure, num_steps=0)
    with double():
        generic = Normal(posterior.kind.mean, Dense.from_covariance(covariance(posterior)))
    plain = credo.Posterior(generic, posterior.target, verdict=posterior.verdict)
    for rule in (credo.Probit(), credo.Linearised()):
        found, expected = posterior.predict(X, rule=rule), plain.predict(X, rule=rule)
        np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(found.epistemic, expected.epistemic, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(
    "structure",
    [
        credo.laplace.Kronecker(),
        credo.laplace.Kronecker(shared="reduce"),
        credo.laplace.Diagonal(),
        credo.laplace.Dense(),
    ],
    ids=["expand", "reduce", "diagonal", "dense"],
)
def test_a_scan_is_its_steps_one_after_the_other(structure):
    def unrolled(p, x):
        h, total = jnp.zeros(3), 0.0
        for row in x:
            h = jnp.tanh(h @ p["h"] + row @ p["i"] + p["b"])
            total = total + h @ p["o"]
        return total + h @ p["o"]

    _, params, row, _ = NETWORKS["scanned"]
    X, y = normal(8, *row.shape), RANDOM.integers(0, 2, 8)
    scan, steps = (
        laplace(
            BayesianNetwork(jax.vmap(apply, (None, 0)), params, head=Categorical()).given(X, y), structure, num_steps=0
        )
        for apply in (scanned, unrolled)
    )
    np.testing.assert_allclose(covariance(scan), covariance(steps), rtol=1e-8, atol=1e-12)
    assert not any("exact diagonal" in sentence for sentence in scan.verdict.sentences)
    for rule in (credo.Probit(), credo.Linearised()):
        np.testing.assert_allclose(scan.predict(X, rule=rule).mean, steps.predict(X, rule=rule).mean, rtol=1e-6)


def test_a_saved_posterior_predicts_the_same(tmp_path):
    apply, params, *_ = NETWORKS["dense"]
    X = normal(20, 4)
    network = BayesianNetwork(apply, params, head=Categorical())
    posterior = laplace(network.given(X, RANDOM.integers(0, 3, 20)), credo.laplace.Kronecker(), num_steps=0)
    posterior.save(tmp_path / "posterior")
    again = credo.load(tmp_path / "posterior", network)
    rule = credo.Probit()
    np.testing.assert_array_equal(posterior.predict(X, rule=rule).mean, again.predict(X, rule=rule).mean)


# requests that cannot be answered ------------------------------------------------------------------------------------


def test_wrong_requests_are_said(monkeypatch):
    network = BayesianNetwork(lambda p, x: x @ p, normal(2, 3), head=Categorical())
    target = network.given(normal(5, 2), np.array([0, 1, 2, 0, 1]))
    exact = credo.Laplace(structure=credo.laplace.Kronecker(), curvature=credo.ExactHessian())
    with pytest.raises(credo.CredoError, match="say curvature=GaussNewton"):
        credo.fit(target, exact, progress=False)
    with pytest.raises(credo.CredoError, match="shared"):
        laplace(target, credo.laplace.Kronecker(shared="sum"))  # type: ignore[arg-type]
    model = credo.Model({"a": dist.Normal(0, 1)}, lambda params, x: dist.VonMises(params["a"], 1.0))
    with pytest.raises(credo.CredoError, match="natural outputs"):
        laplace(model.given(y=np.array([0.3])), credo.laplace.Kronecker())
    monkeypatch.setattr("credo.methods.laplace.kronecker.LARGEST_FACTOR", 2)
    with pytest.raises(credo.CredoError, match="A layer has 3 inputs or outputs, and Kronecker"):
        laplace(target, credo.laplace.Kronecker())
