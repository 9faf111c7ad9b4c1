"""A dense Laplace from one factor of the curvature: S, the smallest eigenvalue, and in which precision."""

import numpy as np
import pytest

from credo.methods.laplace.factored import SINGLE, factored
from credo.predict.by_layers import TILE, _square

RANDOM = np.random.default_rng(0)


def curvature(dim: int, least: float) -> np.ndarray:
    """Symmetric, with a smallest eigenvalue of about ``least``, coordinates of very different scales."""
    J = RANDOM.normal(size=(dim, dim // 2))
    scale = 10 ** RANDOM.uniform(-2, 2, dim)
    return (J @ J.T / dim + least * np.eye(dim)) * scale[:, None] * scale


@pytest.mark.parametrize(("dtype", "error"), [(np.float64, 1e-10), (np.float32, 1e-3)])
def test_the_root_is_lower_triangular_and_its_square_the_inverse(dtype, error):
    A = curvature(150, 0.1)
    found = factored(A.astype(dtype))
    assert found is not None
    S = np.asarray(found.scale.lower, np.float64)
    assert found.scale.lower.dtype == dtype
    assert not np.any(np.triu(S, 1))
    unit = np.sqrt(np.diagonal(A))  # S Sᵀ A = I in units of the diagonal
    np.testing.assert_allclose((S @ S.T @ A) * unit[:, None] / unit, np.eye(150), atol=error)
    np.testing.assert_allclose(found.scale.log_det(), -0.5 * np.linalg.slogdet(A)[1], rtol=error)


def test_the_smallest_eigenvalue_is_that_of_the_matrix_and_its_coordinate_leads():
    A = np.diag(np.linspace(2.0, 9.0, 210))
    A[77, 77] = 0.5
    found = factored(A)
    assert found is not None
    np.testing.assert_allclose(found.smallest, 0.5, rtol=1e-3)
    assert found.coordinate == 77


def test_single_precision_serves_until_its_rounding_would_show():
    def pair(apart: float) -> np.ndarray:  # correlated 1 − apart, exact in float32
        return np.array([[1.0, 1.0 - apart], [1.0 - apart, 1.0]], np.float32)

    for apart, dtype in ((2.0**-10, np.float32), (2.0**-22, np.float64)):
        found = factored(pair(apart))
        assert found is not None
        assert found.scale.lower.dtype == dtype
        assert (apart > SINGLE) == (dtype == np.float32)
        np.testing.assert_allclose(np.square(found.scale.lower[0, 0]), 1 / (2 * apart - apart**2), rtol=1e-3)


@pytest.mark.parametrize("A", [np.diag([1.0, -1.0, 2.0]), np.ones((3, 3)), np.diag([1.0, np.nan, 1.0])])
def test_what_is_not_safely_positive_has_no_factor(A):
    assert factored(A) is None


@pytest.mark.parametrize("dim", [1, 2, TILE, TILE + 1, 2 * TILE + 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_square_of_a_root_in_tiles(dim, dtype):
    lower = np.tril(RANDOM.normal(size=(dim, dim))).astype(dtype)
    kept = lower.copy()
    wide = lower.astype(np.float64)
    np.testing.assert_allclose(_square(lower), wide @ wide.T, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(lower, kept)
