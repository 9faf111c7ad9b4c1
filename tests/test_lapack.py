"""Factors of many matrices at once: right, and they end, however many threads ask for them."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credo.compiling  # noqa: F401  (the rule is there from here on)
from credo.precision import double

RANDOM = np.random.default_rng(0)
ROOTS = RANDOM.normal(size=(3, 4, 5, 5))
MATRICES = ROOTS @ np.swapaxes(ROOTS, -1, -2) + np.eye(5)

TWO_AT_ONCE = """
import jax, numpy as np, jax.numpy as jnp, credo.compiling
from concurrent.futures import ThreadPoolExecutor

jax.config.update("jax_enable_x64", True)
roots = np.random.default_rng(0).normal(size=(4, 64, 25, 25))
matrices = roots @ np.swapaxes(roots, -1, -2) + np.eye(25)

@jax.jit
def work(A):
    def body(i, total):
        L = [jnp.linalg.cholesky(each + i * 1e-3 * jnp.eye(25)) for each in A]
        return total + sum(jax.scipy.linalg.solve_triangular(each, each, lower=True).sum() for each in L)
    return jax.lax.fori_loop(0, 20, body, 0.0)

with ThreadPoolExecutor(2) as pool:
    list(pool.map(lambda _: work(matrices).block_until_ready(), range(40)))
"""


def test_many_systems_are_solved():
    right = RANDOM.normal(size=(3, 4, 5, 2))
    with double():
        lower = jnp.linalg.cholesky(MATRICES)
        found = jax.jit(lambda L, b: jax.scipy.linalg.solve_triangular(L, b, lower=True))(lower, right)
        banded = jax.lax.linalg.tridiagonal_solve(*(jnp.ones((6, 5)) * s for s in (0.0, 2.0, 0.0)), jnp.ones((6, 5, 1)))
    np.testing.assert_allclose(np.asarray(lower) @ np.asarray(found), right, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(banded, 0.5)


@pytest.mark.parametrize("function", ["cholesky", "inv", "slogdet", "eigvalsh", "svdvals", "qr"])
def test_a_batch_is_what_its_matrices_are(function):
    with double():
        found = jax.jit(getattr(jnp.linalg, function))(MATRICES)
        of_vmap = jax.jit(jax.vmap(getattr(jnp.linalg, function)))(MATRICES)
    expected = getattr(np.linalg, function)(MATRICES)
    for each, other, own in zip(*map(jax.tree.leaves, (found, of_vmap, expected)), strict=True):
        np.testing.assert_allclose(np.abs(each), np.abs(own), rtol=1e-9, atol=1e-12)  # columns of q up to their signs
        np.testing.assert_allclose(other, each, rtol=1e-12)


def test_no_batch_reaches_the_kernels():
    text = jax.jit(jnp.linalg.cholesky).lower(jnp.asarray(MATRICES, jnp.float32)).as_text()
    assert "tensor<5x5xf32>" in next(line for line in text.splitlines() if "potrf" in line)
    assert "while" in text
    alone = jax.jit(jnp.linalg.cholesky).lower(jnp.asarray(MATRICES[0, 0], jnp.float32)).as_text()
    assert "while" not in alone


def test_a_matrix_that_is_not_positive_is_nan_alone():
    with double():
        found = np.asarray(jnp.linalg.cholesky(jnp.asarray([np.eye(2), -np.eye(2), np.eye(2)])))
    assert np.isnan(found).any(axis=(1, 2)).tolist() == [False, True, False]


def test_gradients_pass_through_a_batch():
    with double():

        def half_as_much_again(A):
            roots = jnp.diagonal(jnp.linalg.cholesky(A), axis1=-2, axis2=-1)
            return jnp.sum(jnp.linalg.slogdet(A)[1]) + jnp.sum(jnp.log(roots))

        found = jax.grad(half_as_much_again)(jnp.asarray(MATRICES))
    np.testing.assert_allclose(found, 1.5 * np.linalg.inv(MATRICES), rtol=1e-6, atol=1e-9)


def test_two_threads_end():
    """Without the rule this hangs on two cores, and hears no signal."""
    subprocess.run([sys.executable, "-c", TWO_AT_ONCE], timeout=120, check=True)


def test_programs_for_any_batch_are_exported_as_before():
    from jax import export

    shape = jax.ShapeDtypeStruct(export.symbolic_shape("b, 5, 5"), jnp.float32)
    found = export.export(jax.jit(jnp.linalg.cholesky))(shape).call(jnp.asarray(MATRICES[0], jnp.float32))
    np.testing.assert_allclose(found, np.linalg.cholesky(MATRICES[0]), rtol=1e-4, atol=1e-4)
