"""Covariances by products with their inverse alone, against dense factorisations; and the solves behind them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credo.linalg.krylov import conjugate_gradients, gauss_rule, shifted_sum
from credo.linalg.matrix_free import MatrixFree, Product, inverse_root
from credo.precision import double, to_numpy

pytestmark = pytest.mark.usefixtures("strict")

DIM = 12
rng = np.random.default_rng(3)
ROTATION = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0]
PRECISION = ROTATION @ np.diag(np.geomspace(1e-2, 1e4, DIM)) @ ROTATION.T
COVARIANCE = ROTATION @ np.diag(np.geomspace(1e2, 1e-4, DIM)) @ ROTATION.T
Z = rng.normal(size=(3, DIM))


class Matrix(Product):
    matrix: Any

    def linear(self):
        return lambda v: jnp.matmul(self.matrix, v)


def operator(max_products=200, dtype=np.float64, tolerance=1e-12, at_once=2):
    """S of PRECISION; its variances and determinant are no concern of these tests."""
    unit = np.diag(PRECISION) ** -0.5
    λ = np.linalg.eigvalsh(unit[:, None] * PRECISION * unit)
    shifts, weights = inverse_root(λ[0], λ[-1], tolerance)
    arrays = [np.asarray(each, dtype) for each in (PRECISION, unit, shifts, weights, np.diag(COVARIANCE), 0.0)]
    return MatrixFree(Matrix(arrays[0]), *arrays[1:], tolerance, max_products, at_once)


@jax.jit
def applied(S, Z):
    return {
        "matvec": jax.vmap(S.matvec)(Z),
        "transpose_matvec": jax.vmap(S.transpose_matvec)(Z),
        "round trip": jax.vmap(lambda z: S.solve(S.matvec(z)))(Z),
        "dense": S.dense(),
    }


def test_operator_is_a_square_root():
    with double():
        found = jax.tree.map(np.asarray, applied(operator(), np.eye(DIM)))
    S, top = found["matvec"].T, np.max(np.abs(COVARIANCE))
    np.testing.assert_allclose(S @ S.T, COVARIANCE, atol=1e-9 * top)
    np.testing.assert_allclose(found["dense"], COVARIANCE, atol=1e-9 * top)
    np.testing.assert_allclose(found["transpose_matvec"].T, S.T, atol=1e-9 * np.sqrt(top))
    np.testing.assert_allclose(found["round trip"], np.eye(DIM), atol=1e-7)


def test_single_precision_loses_what_the_condition_number_says():
    with double(False):
        found = np.asarray(applied(operator(dtype=np.float32, tolerance=1e-6), np.eye(DIM, dtype=np.float32))["dense"])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, COVARIANCE, atol=1e-2 * np.max(COVARIANCE))


def test_batches_of_batches_are_what_one_vector_after_the_other_is():
    """However few are solved together; and for a batch of operators."""
    with double():
        S = operator(at_once=2)
        alone = np.stack([S.matvec(z) for z in Z])
        twice = jax.jit(jax.vmap(jax.vmap(S.matvec)))(jnp.stack([Z, 2.0 * Z]))
        np.testing.assert_allclose(twice, np.stack([alone, 2.0 * alone]), rtol=1e-9, atol=1e-9)
        pair = jax.tree.map(lambda leaf: jnp.stack([leaf, 4.0 * leaf]), S.product)

        def root(product):
            return MatrixFree(product, *jax.tree.leaves(S)[1:], S.tolerance, S.max_products, 2).matvec(Z[0])

        np.testing.assert_allclose(jax.vmap(root)(pair)[0], alone[0], rtol=1e-9, atol=1e-9)


def test_derivatives_in_the_vector_are_solves_too():
    """Networks are polished in white coordinates, u = û + S z."""
    with double():
        S = operator()
        dense = np.asarray(jax.vmap(S.matvec)(np.eye(DIM))).T
        slope = jax.jit(jax.grad(lambda z: jnp.sum(jnp.square(S.matvec(z)))))(jnp.asarray(Z[0]))
        np.testing.assert_allclose(slope, 2 * dense.T @ dense @ Z[0], rtol=1e-7, atol=1e-7)
        moved = jax.jvp(S.transpose_matvec, (jnp.asarray(Z[0]),), (jnp.asarray(Z[1]),))[1]
        np.testing.assert_allclose(moved, dense.T @ Z[1], rtol=1e-7, atol=1e-7)


def test_what_is_not_solved_is_no_number():
    with double():
        assert np.all(np.isnan(operator(max_products=1).matvec(Z[0])))
        assert np.all(np.isfinite(operator(max_products=100).matvec(Z[0])))


@pytest.mark.parametrize("condition", [1.0, 10.0, 1e4, 1e8])
def test_the_sum_over_shifts_is_the_inverse_root(condition):
    shifts, weights = inverse_root(0.5, 0.5 * condition, 1e-7)
    λ = np.random.default_rng(0).uniform(0.5, 0.5 * condition, 1_000)
    np.testing.assert_allclose(np.sum(weights / (λ[:, None] + shifts), axis=1), λ**-0.5, rtol=2e-7)
    assert np.all(np.diff(shifts) > 0)
    assert len(shifts) <= 2 + (np.log(condition) + 3) * np.log(1e8) / (2 * np.pi**2)  # the rate of the theorem


def test_solutions_of_all_shifts_come_from_one_sequence_of_products():
    shifts, weights = np.array([0.0, 0.3, 50.0, 1e9]), np.array([1.0, -2.0, 5.0, 1e8])
    with double():
        solve = jax.jit(lambda b: shifted_sum(lambda v: PRECISION @ v, b, shifts, weights, 1e-12, 200))
        found, residual = to_numpy(solve(Z[0]))
    pairs = zip(shifts, weights, strict=True)
    expected = np.sum([w * np.linalg.solve(PRECISION + s * np.eye(DIM), Z[0]) for s, w in pairs], axis=0)
    assert 0 < residual <= 1e-12
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8 * np.max(np.abs(expected)))


def test_coefficients_of_a_solution_are_a_gauss_rule():
    with double():
        found = to_numpy(conjugate_gradients(lambda v: PRECISION @ v, jnp.asarray(Z[0]), 1e-12, 200))
    np.testing.assert_allclose(found.x, COVARIANCE @ Z[0], rtol=1e-8, atol=1e-8)
    true = np.linalg.norm(Z[0] - PRECISION @ found.x) / np.linalg.norm(Z[0])
    assert found.residual <= 1e-12
    assert true <= 1e-9
    θ, τ2 = gauss_rule(found)
    assert np.sum(τ2) == pytest.approx(1.0)
    logs = ROTATION @ np.diag(np.log(np.geomspace(1e-2, 1e4, DIM))) @ ROTATION.T
    assert Z[0] @ Z[0] * np.sum(τ2 * np.log(θ)) == pytest.approx(Z[0] @ logs @ Z[0], rel=1e-9)


def test_a_direction_without_curvature_is_found():
    with double():
        indefinite = PRECISION - 1.0 * np.eye(DIM)
        found = to_numpy(conjugate_gradients(lambda v: indefinite @ v, jnp.asarray(Z[0]), 1e-8, 200))
    p = found.direction
    assert found.bend < 0
    assert p @ indefinite @ p == pytest.approx(float(found.bend) * (p @ p), rel=1e-6)
    assert np.all(np.isfinite(found.x))


def test_nothing_is_solved_for_nothing():
    with double():
        zero = jnp.zeros(DIM)
        assert np.all(np.asarray(operator().matvec(zero)) == 0)
        assert np.all(np.asarray(conjugate_gradients(lambda v: PRECISION @ v, zero, 1e-8, 9).x) == 0)
