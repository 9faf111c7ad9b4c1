"""Tables of embeddings as layers whose inputs choose a row: curvature, covariances and predictions without one-hots."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import credo
from credo.linalg.kronecker import Block, Kronecker
from credo.methods.laplace.pieces import BlockPieces
from credo.nn import BayesianNetwork, Categorical, Gaussian, Isotropic
from credo.precision import double
from credo.predict.linearised import Linearised

RANDOM = np.random.default_rng(3)
TOKENS = RANDOM.integers(0, 6, (40, 5))  # of nine: three are never met
LABELS = RANDOM.integers(0, 3, 40)
PARAMS = {"table": RANDOM.normal(size=(9, 4)), "w": RANDOM.normal(size=(4, 3)), "b": np.zeros(3)}


def words(p, tokens):
    return jnp.mean(jnp.tanh(p["table"][tokens]), axis=1) @ p["w"] + p["b"]


def network(**options):
    return BayesianNetwork(words, PARAMS, head=Categorical(), **options)


def fitted(structure, **options):
    method = credo.Laplace(structure=structure, num_steps=0)
    return credo.fit(network(**options).given(TOKENS, LABELS), method, key=0, progress=False)


def covariance(posterior) -> np.ndarray:
    with double():
        return np.asarray(posterior.kind.scale.dense())


def test_the_diagonal_is_that_of_the_matrix():
    found, full = (covariance(fitted(each)) for each in (credo.laplace.Diagonal(), credo.laplace.Dense()))
    np.testing.assert_allclose(1 / np.diag(found), np.diag(np.linalg.inv(full)), rtol=1e-6)


def test_rows_of_a_table_have_their_counts_and_the_derivatives_of_all():
    posterior = fitted(credo.laplace.Kronecker())
    assert not any("exact diagonal" in sentence for sentence in posterior.verdict.sentences)
    u = np.asarray(posterior.kind.mean)
    with double():
        weights = jax.tree.map(np.asarray, posterior.target.flat().constrain(jnp.asarray(u, float))["weights"])
    table, w = (np.asarray(weights[name], float) for name in ("table", "w"))
    z = np.mean(np.tanh(table[TOKENS]), axis=1) @ w + np.asarray(weights["b"])
    p = np.asarray(jax.nn.softmax(z, axis=1))
    F = p[:, :, None] * np.eye(3) - p[:, :, None] * p[:, None, :]
    g = (1 - np.tanh(table[TOKENS]) ** 2)[..., None] * w / 5  # (row, place, column of the table, output)
    B = np.einsum("nsik,nkl,nsjl->ij", g, F, g)
    counts = np.bincount(TOKENS.ravel(), minlength=9)
    places = np.arange(3, 3 + 36).reshape(9, 4)  # b, then table
    found = np.linalg.inv(covariance(posterior))
    for row, index in enumerate(places):
        expected = counts[row] / TOKENS.size * B + np.eye(4)
        np.testing.assert_allclose(found[np.ix_(index, index)], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[np.ix_(places[0], places[1])], 0.0, atol=1e-8)


@pytest.mark.parametrize("shared", ["expand", "reduce"])
def test_a_table_alone_is_exact(shared):
    """Group means with known noise: the posterior is a product of normals."""
    model = BayesianNetwork(lambda p, x: p["mu"][x], {"mu": np.zeros(9)}, head=Gaussian(0.5))
    x, y = RANDOM.integers(0, 7, 30), RANDOM.normal(size=30)
    method = credo.Laplace(structure=credo.laplace.Kronecker(shared=shared))
    posterior = credo.fit(model.given(x, y), method, key=0, progress=False)
    precision = np.bincount(x, minlength=9) / 0.25 + 1.0
    np.testing.assert_allclose(covariance(posterior), np.diag(1 / precision), atol=1e-6)
    mean = np.bincount(x, weights=y, minlength=9) / 0.25 / precision
    np.testing.assert_allclose(posterior.mean()["weights"]["mu"], mean, atol=1e-3)


@pytest.mark.parametrize("structure", [credo.laplace.Kronecker(), credo.laplace.Diagonal(), credo.laplace.LowRank(3)])
def test_predictions_are_those_by_jacobians(structure):
    target = BayesianNetwork(words, PARAMS, head=Gaussian(0.5)).given(TOKENS, RANDOM.normal(size=(40, 3)))
    posterior = credo.fit(target, credo.Laplace(structure=structure, num_steps=0), key=0, progress=False)
    new = RANDOM.integers(0, 9, (6, 5))
    with double():
        u = jnp.asarray(posterior.kind.mean)
        J = np.asarray(jax.jit(jax.jacrev(lambda u: words(target.flat().constrain(u)["weights"], new)))(u))
        expected = np.einsum("mkp,pq,mkq->mk", J, covariance(posterior), J) + 0.25
    np.testing.assert_allclose(posterior.predict(new, Linearised()).variance, expected, rtol=1e-5)


def test_the_evidence_of_a_table_is_that_of_its_matrix():
    index, right = np.arange(12).reshape(4, 3), np.linalg.qr(RANDOM.normal(size=(3, 3)))[0]
    with double():
        scale = Kronecker((Block(index, 1 / np.sqrt(1 + RANDOM.uniform(size=(4, 3))), None, right),))
        pieces = BlockPieces.of(scale, 0, 1.0)
        H = np.linalg.inv(np.asarray(scale.dense())) - np.eye(12)
        A, g = 2.0 * H + 3.0 * np.eye(12), RANDOM.normal(size=12)
        P = jnp.full(12, 3.0)
        assert float(pieces.log_det(2.0, P)) == pytest.approx(np.linalg.slogdet(A)[1])
        np.testing.assert_allclose(pieces.solve(2.0, P, jnp.asarray(g)), np.linalg.solve(A, g), rtol=1e-9)
        np.testing.assert_allclose(pieces.scale(2.0, np.asarray(P), np.zeros((0, 0))).dense(), np.linalg.inv(A))


@pytest.mark.slow
def test_unknown_precisions_are_tuned_beside_a_table():
    posterior = fitted(credo.laplace.Kronecker(), prior=Isotropic(dist.LogNormal(0.0, 2.0)))
    assert posterior.info["tuned"] == ["precision"]
    assert posterior.log_evidence is None or np.isfinite(posterior.log_evidence.value)


def test_a_large_table_needs_no_matrix_of_its_rows():
    """50,000 words: 20 GB, were their counts a matrix."""
    params = {"table": RANDOM.normal(size=(50_000, 2)).astype(np.float32), "w": np.ones((2, 3), np.float32)}
    model = BayesianNetwork(lambda p, x: jnp.mean(p["table"][x], axis=1) @ p["w"], params, head=Categorical())
    target = model.given(RANDOM.integers(0, 50_000, (20, 3)), RANDOM.integers(0, 3, 20))
    method = credo.Laplace(structure=credo.laplace.Kronecker(), num_steps=0)
    posterior = credo.fit(target, method, key=0, progress=False, precision="float32")
    assert posterior.predict(np.array([[1, 2, 2]])).probs.shape == (1, 3)


def test_padding_is_no_use_of_the_table():
    """One place in five chooses a row: the curvature is that of these places, and of the words without padding."""
    tokens = np.full((40, 5), 0)
    tokens[:, 0] = 1 + RANDOM.integers(0, 4, 40)
    table, y = RANDOM.normal(size=(5, 1)), RANDOM.normal(size=40)

    def masked(p, x):
        rows = jnp.concatenate([jnp.zeros((1, 1)), p["table"][1:]])
        return jnp.sum(jnp.where(x > 0, rows[x][..., 0], 0.0), axis=1)

    posterior = credo.fit(
        BayesianNetwork(masked, {"table": table}, head=Gaussian(0.5)).given(tokens, y),
        credo.Laplace(structure=credo.laplace.Kronecker(), num_steps=0),
        progress=False,
    )
    precision = np.r_[0, np.bincount(tokens[:, 0], minlength=5)[1:]] / 0.25 + 1.0
    np.testing.assert_allclose(np.diag(covariance(posterior)), 1 / precision, rtol=1e-6)
