"""Every scale operator against the dense covariance that defines it, over one table of constructors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credo.linalg import lowrank
from credo.linalg.blocks import BlockDiagonal, join, take
from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.linalg.factor import DiagonalPlusFactor
from credo.linalg.grouped import Grouped
from credo.linalg.lowrank import LowRank
from credo.precision import double
from credo.status import CredoError

pytestmark = pytest.mark.usefixtures("strict")

DIM = 6
rng = np.random.default_rng(7)
SCALE = np.exp(rng.normal(size=DIM))
FACTOR = rng.normal(size=(DIM, 2))
VECTORS = np.linalg.qr(FACTOR)[0]
EIGENVALUES = np.array([25.0, 0.04])  # wider and narrower than the diagonal
ROOT = rng.normal(size=(DIM, DIM)) * np.geomspace(1, 1e-3, DIM)  # condition of the covariance about 1e6
COVARIANCE = ROOT @ ROOT.T
LOWER = np.linalg.cholesky(COVARIANCE) * np.array([1.0, -1, 1, 1, -1, 1])  # a root need not have a positive diagonal


def eigen_covariance():
    inner = np.eye(DIM) + VECTORS @ np.diag(EIGENVALUES - 1) @ VECTORS.T
    return np.diag(SCALE) @ inner @ np.diag(SCALE)


GROUPS = (((0, 1), (3, 5)), ((1, 3), (5, 6)))  # two groups of three coordinates, interleaved
MEMBERS = [0, 3, 4], [1, 2, 5]


def blocks(scale, root):
    group = np.ix_(*MEMBERS[:1] * 2)
    return BlockDiagonal((Dense.from_covariance((root @ root.T)[group]), Diagonal(take(scale, GROUPS[1]))), GROUPS)


def block_covariance():
    covariance = np.zeros((DIM, DIM))
    covariance[np.ix_(*MEMBERS[:1] * 2)] = COVARIANCE[np.ix_(*MEMBERS[:1] * 2)]
    covariance[MEMBERS[1], MEMBERS[1]] = SCALE[MEMBERS[1]] ** 2
    return covariance


def grouped(root):
    roots = [Dense.from_covariance((root @ root.T)[np.ix_(group, group)]).lower for group in MEMBERS]
    return Grouped(np.array(MEMBERS), jnp.stack(roots), DIM)


def grouped_covariance():
    covariance = np.zeros((DIM, DIM))
    for group in MEMBERS:
        covariance[np.ix_(group, group)] = COVARIANCE[np.ix_(group, group)]
    return covariance


# name: constructor, its arguments, the covariance meant
OPERATORS = {
    "diagonal": (Diagonal, (SCALE,), np.diag(SCALE**2)),
    "dense": (Dense, (LOWER,), COVARIANCE),
    "dense covariance": (Dense.from_covariance, (COVARIANCE,), COVARIANCE),
    "dense precision": (Dense.from_precision, (np.linalg.inv(COVARIANCE),), COVARIANCE),
    "low rank": (LowRank.from_factor, (SCALE, FACTOR), np.diag(SCALE**2) + FACTOR @ FACTOR.T),
    "low rank, steep": (LowRank.from_factor, (SCALE, 1e3 * FACTOR), np.diag(SCALE**2) + 1e6 * FACTOR @ FACTOR.T),
    "low rank, zero": (LowRank.from_factor, (SCALE, 0 * FACTOR), np.diag(SCALE**2)),
    "factor": (DiagonalPlusFactor, (SCALE, FACTOR), np.diag(SCALE**2) + FACTOR @ FACTOR.T),
    "blocks": (blocks, (SCALE, ROOT), block_covariance()),
    "grouped": (grouped, (ROOT,), grouped_covariance()),
    "rank zero": (LowRank.from_factor, (SCALE, FACTOR[:, :0]), np.diag(SCALE**2)),
    "low rank of eigenvectors": (LowRank.from_eigen, (SCALE, VECTORS, EIGENVALUES), eigen_covariance()),
}


@jax.jit
def everything(operator, z):
    """All the methods in one program, on a batch of vectors z (n, dim): proof that they are traceable."""
    return {
        "matvec": jax.vmap(operator.matvec)(z),
        "transpose_matvec": jax.vmap(operator.transpose_matvec)(z),
        "transpose_matvecs": operator.transpose_matvecs(z),
        "solve": jax.vmap(operator.solve)(z),
        "round trip": jax.vmap(lambda z: operator.solve(operator.matvec(z)))(z),
        "log_det": operator.log_det(),
        "diagonal": operator.diagonal(),
        "dense": operator.dense(),
    }


@pytest.mark.parametrize("traced", [False, True], ids=["host", "traced"])
@pytest.mark.parametrize("name", OPERATORS)
def test_operator_is_a_square_root(name, traced):
    constructor, arguments, covariance = OPERATORS[name]
    with double():
        operator = (jax.jit(constructor) if traced else constructor)(*arguments)
        answer = jax.tree.map(np.asarray, everything(operator, np.eye(DIM)))
    S = answer["matvec"].T
    top = np.max(np.abs(covariance))
    assert operator.dim == DIM
    np.testing.assert_allclose(S @ S.T, covariance, atol=1e-10 * top)
    np.testing.assert_allclose(answer["dense"], covariance, atol=1e-10 * top)
    np.testing.assert_allclose(answer["diagonal"], np.diag(covariance), rtol=1e-8)
    np.testing.assert_allclose(answer["transpose_matvec"].T, S.T, atol=1e-12 * np.sqrt(top))
    np.testing.assert_allclose(answer["transpose_matvecs"].T, S.T, atol=1e-12 * np.sqrt(top))
    np.testing.assert_allclose(answer["round trip"], np.eye(DIM), atol=1e-8)
    np.testing.assert_allclose(answer["solve"].T @ S, np.eye(DIM), atol=1e-8)
    np.testing.assert_allclose(answer["log_det"], 0.5 * np.linalg.slogdet(covariance)[1], atol=1e-8)


def test_variances_of_low_rank_are_found_in_blocks_on_the_host(monkeypatch):
    monkeypatch.setattr(lowrank, "AT_ONCE", 2)
    with double():
        found = LowRank.from_whitened(SCALE, FACTOR / SCALE[:, None]).diagonal()
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, SCALE**2 + np.sum(FACTOR**2, axis=1), rtol=1e-12)


def test_precision_is_not_squared():
    # P = RᵀR with R of condition 1e7: S is R⁻¹ up to a rotation, and P (condition 1e14) is never inverted
    sd = np.geomspace(1e-4, 1e3, 8)
    with double():
        operator = Dense.from_precision(np.diag(sd**-2))
    np.testing.assert_allclose(np.diag(operator.lower), sd, rtol=1e-14)


def test_factorisations_are_double_outside_the_context():
    assert Dense.from_precision(np.linalg.inv(COVARIANCE)).lower.dtype == np.float64
    draw = Dense.from_covariance(COVARIANCE).matvec(jnp.ones(DIM))  # and computes in the caller's precision
    assert draw.dtype == jnp.float32


@pytest.mark.parametrize("factor", [0 * FACTOR, np.ones((DIM, 2))], ids=["zero", "repeated columns"])
def test_low_rank_has_derivatives_everywhere(factor):
    """Low-rank variational fits start at A = 0, where singular vectors have no derivative."""

    def log_prob(scale, factor):
        operator = LowRank.from_factor(scale, factor)
        z = operator.solve(jnp.arange(1.0, DIM + 1))
        return -0.5 * jnp.dot(z, z) - operator.log_det()

    def log_prob_dense(scale, factor):
        covariance = jnp.diag(scale**2) + factor @ factor.T
        v = jnp.arange(1.0, DIM + 1)
        return -0.5 * jnp.dot(v, jnp.linalg.solve(covariance, v)) - 0.5 * jnp.linalg.slogdet(covariance)[1]

    with double():
        ours = jax.jit(jax.grad(log_prob, argnums=(0, 1)))(jnp.asarray(SCALE), jnp.asarray(factor))
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            meant = jax.jit(jax.grad(log_prob_dense, argnums=(0, 1)))(jnp.asarray(SCALE), jnp.asarray(factor))
        for one, other in zip(ours, meant, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("constructor", "arguments", "sentence"),
    [
        (Diagonal, (np.array([1.0, 0.0]),), "standard deviation of coordinate 1 is 0"),
        (Diagonal, (np.array([np.nan, 1.0]),), "coordinate 0 is nan"),
        (Diagonal, (np.array([1.0, np.inf]),), "coordinate 1 is inf"),
        (Dense.from_covariance, (np.diag([1.0, -2.0]),), "covariance is not positive definite .* from -2 to 1"),
        (Dense.from_precision, (np.diag([1.0, -2.0]),), "precision is not positive definite .* from -2 to 1"),
        (Dense.from_precision, (np.full((2, 2), np.nan),), "4 entries that are NaN"),
        (Dense.from_precision, (np.ones((2, 3)),), r"shape \(3, 2\)|shape \(2, 3\)"),
        (LowRank.from_factor, (np.array([-1.0]), np.ones((1, 1))), "standard deviation of coordinate 0 is -1"),
        (LowRank.from_factor, (np.ones(2), np.ones((3, 1))), r"shape \(2,\) and the columns \(3, 1\)"),
        (LowRank.from_eigen, (np.ones(2), np.ones((2, 1)), np.ones(1)), "not orthonormal"),
        (LowRank.from_eigen, (np.ones(2), np.eye(2)[:, :1], np.zeros(1)), "eigenvalue of coordinate 0 is 0"),
        (BlockDiagonal, ((Diagonal(np.ones(2)),), (((0, 3),),)), "operator of dimension 2 was given for 3"),
        (BlockDiagonal, ((Diagonal(np.ones(2)),), (((1, 3),),)), "cover coordinate 0 twice or not at all"),
        (BlockDiagonal, ((Diagonal(np.ones(2)),) * 2, (((0, 2),), ((1, 3),))), "cover coordinate 1 twice"),
    ],
)
def test_what_is_not_positive_definite_has_a_sentence(constructor, arguments, sentence):
    with pytest.raises(CredoError, match=sentence):
        constructor(*arguments)


def test_traced_factorisation_answers_nan():
    with double():
        assert np.all(np.isnan(jax.jit(Dense.from_covariance)(-np.eye(2)).lower[np.tril_indices(2)]))


def test_groups_are_taken_out_and_joined():
    v = np.arange(6.0)
    parts = [take(v, spans) for spans in GROUPS]
    np.testing.assert_array_equal(parts[0], MEMBERS[0])
    np.testing.assert_array_equal(join(parts, GROUPS), v)
