"""Left singular vectors by products of matrices, where singular values reach over five orders and where some are 0."""

import numpy as np

from credo.linalg.singular import along


def test_they_are_those_of_the_singular_value_decomposition():
    random = np.random.default_rng(0)
    U, V = (np.linalg.qr(random.normal(size=(n, 8)))[0] for n in (40, 8))
    s = np.array([1.0, 0.3, 1e-2, 1e-3, 1e-6, 1e-9, 0.0, 0.0])
    found = along((U * np.sqrt(s)) @ V.T, s, V)
    np.testing.assert_allclose(found.T @ found, np.eye(8), atol=1e-13)
    np.testing.assert_allclose(found[:, :6], U[:, :6], atol=1e-9)
