"""Linear response of the factors of linear_regression.py (Giordano, Broderick & Jordan 2018, eq. 14).

The log joint is tilted by tᵀw + t_β β + t_αᵀα; means of the factors move by the covariance that is sought. In the
notation there, with G = XᵀX, g = Xᵀy − G m, E (D, K) the features of each α (the identity, or a column of ones), and
differentials of the equations of the factors at their solution,

    dm = S dt + S g dβ − S diag(m) E dα,    dS = −S (G dβ + diag(E dα)) S
    (2b'/E β) dβ = 2 dt_β + 2 gᵀ dm − tr(G dS)
    (2d'_k/E α_k) dα_k = 2 dt_α,k − Σ_{j of k} (2 m_j dm_j + dS_jj)

The last two are M (dβ, dα) = 2 dt_(β,α) + 2 Wᵀ dt with W = [S g, −S diag(m) E] and the symmetric matrix

    M = diag(2b'/E β, 2d'/E α) − 2 [g, −diag(m) E]ᵀ W − [tr(SGSG), uᵀE; Eᵀu, Eᵀ(S ∘ S) E],  u = diag(SGS),

so that the covariance of (w, β, α) is [S, 0; 0, 0] + 2 [W; I] M⁻¹ [W; I]ᵀ.
"""

from typing import Any

import numpy as np

from credo.methods.vi.cavi.gamma import Gamma


def linear_response(rows: Any, weights: Any, beta: Gamma, alpha: Gamma) -> dict[str, np.ndarray]:
    """``rows``: the triangle of the data. Covariances by name; those of precisions have the shape of their factor."""
    S, m, size = weights.half @ weights.half.T, weights.mean, len(weights.mean)
    features = np.eye(size) if np.ndim(alpha.mean) else np.ones((size, 1))
    spread = rows.x @ S
    SGS = spread.T @ spread
    pull = np.column_stack([rows.x.T @ (rows.y - rows.x @ m), -m[:, None] * features])  # [g, −diag(m) E]
    W = S @ pull
    u = features.T @ np.diagonal(SGS)
    M = np.diag(2 * np.append(beta.rate / beta.mean, alpha.rate / alpha.mean)) - 2 * pull.T @ W
    M[0, 0] -= np.sum((rows.x @ SGS) * rows.x)
    M[0, 1:] -= u
    M[1:, 0] -= u
    M[1:, 1:] -= features.T @ (S**2) @ features
    inverse = np.linalg.inv(M)
    return {
        "weights": S + 2 * W @ inverse @ W.T,
        "noise_precision": 2 * inverse[0, 0],
        "weight_precision": 2 * (inverse[1:, 1:] if np.ndim(alpha.mean) else inverse[1, 1]),
    }
