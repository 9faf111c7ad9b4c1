"""Fixed draws of white noise: pairs z, −z, which average what they can exactly.

With P pairs in d dimensions and Z (P, d), *whitened* draws have ZᵀZ/P = I where P ≥ d, by Z ← Z (ZᵀZ/P)^−½, the
nearest such draws, so that their mean of any quadratic is its expectation. Where P < d no draws do that, and each
coordinate alone is given unit mean square. To first order in 1/√P, whitening takes from the error of a mean what the
second Hermite polynomials explain of it: by Stein's lemma E[zᵢ ∂ⱼg] is the covariance of g with zᵢzⱼ − δᵢⱼ.
"""

import numpy as np
from jaxtyping import Float


def fixed_draws(seed, num_pairs: int, dim: int, *, is_whitened: bool) -> Float[np.ndarray, "K dim"]:
    """(2 ``num_pairs``, dim): the pairs' first members, then their negatives. ``seed``: key data."""
    z = np.random.default_rng(np.asarray(seed).ravel().tolist()).normal(size=(num_pairs, dim))
    if is_whitened:
        z = whitened(z)
    return np.concatenate([z, -z])


def whitened(z: Float[np.ndarray, "P dim"]) -> Float[np.ndarray, "P dim"]:
    """The nearest draws with ZᵀZ/P = I, or with its diagonal, where there are fewer than dimensions."""
    num_pairs, dim = z.shape
    if num_pairs < dim:
        return z / np.sqrt(np.mean(z**2, axis=0))
    left, _, right = np.linalg.svd(z, full_matrices=False)  # Z (ZᵀZ)^−½ = U Vᵀ
    return np.sqrt(num_pairs) * left @ right


def is_quadrature(z: Float[np.ndarray, "K dim"]) -> bool:
    """Whether quadratics are averaged exactly."""
    return bool(np.max(np.abs(z.T @ z / len(z) - np.eye(z.shape[1]))) < 1e-10)


def has_unit_squares(z: Float[np.ndarray, "K dim"]) -> bool:
    """Whether quadratics in each coordinate alone are."""
    return bool(np.max(np.abs(np.mean(z**2, axis=0) - 1)) < 1e-10)
