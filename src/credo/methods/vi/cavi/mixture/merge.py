"""Merging components, exactly: the move that single sweeps cannot make (Ueda et al. 2000; Hughes & Sudderth 2013).

With the best q(π, μ, Λ) for given responsibilities the bound is a sum over components and an entropy,

    ELBO(r) = Σ_k v(T_k) + H(r) + const.

To give the responsibilities of k to j changes it by

    Δ = v(T_j + T_k) + v(0) − v(T_j) − v(T_k) − Σ_n [h(r_nj) + h(r_nk) − h(r_nj + r_nk)],   h(r) = −r log r,

in which the sum is never negative: pairs are tried in the order of Δ without it, and rows are read for few of them.
"""

import numpy as np
from jaxtyping import Float
from scipy.special import entr

from credo.methods.vi.cavi.mixture.factors import NormalWishartFactor

EMPTY = 0.5  # rows: components below own nothing to merge
LOOKAHEAD = 3  # merges beyond the best: three parts of one cluster may lose by the first merge and gain by the second


def merge(
    factor: NormalWishartFactor,
    r: Float[np.ndarray, "K row"],
    statistics: Float[np.ndarray, "K P"],
    num_left: int,
    *,
    is_exact: bool = False,
) -> tuple[Float[np.ndarray, "num_left P"], int]:
    """Statistics of the highest bound among those that merging two by two passes by, and how many merges led there.

    Each merge is the one with the largest Δ; no more than ``num_left`` components stay in use, whatever it costs, and
    where ``is_exact`` no fewer by merging.
    ``r``: the responsibilities, each row of which counts N/rows times in ``statistics``.
    """
    r, T = r.copy(), statistics.copy()
    weight = float(np.sum(T[:, 0]) / r.shape[1])
    value, best_value, best, best_at, num_merges = 0.0, -np.inf, T.copy(), 0, 0
    while True:
        used = np.flatnonzero(T[:, 0] >= EMPTY)
        if len(used) <= num_left and value > best_value:
            best_value, best, best_at = value, T.copy(), num_merges
        is_enough = len(used) <= num_left and (is_exact or num_merges - best_at >= LOOKAHEAD)
        if len(used) < 2 or is_enough:
            break
        change, j, k = _best(factor, r, T, used, weight)
        value += change
        r[j] += r[k]
        T[j] += T[k]
        r[k] = T[k] = 0.0
        num_merges += 1
    largest = np.argsort(-best[:, 0], kind="stable")[:num_left]
    return best[largest], best_at


def _best(factor, r, T, used, weight: float) -> tuple[float, int, int]:
    """The largest Δ, and its pair."""
    first, second = np.triu_indices(len(used), 1)
    j, k = used[first], used[second]
    value, empty = factor.values(T), factor.values(np.zeros((1, T.shape[1])))[0]
    at_most = factor.values(T[j] + T[k]) + empty - value[j] - value[k]
    best = -np.inf, 0, 0
    for i in np.argsort(-at_most):
        if at_most[i] <= best[0]:
            break
        a, b = r[j[i]], r[k[i]]
        overlap = float(np.sum(entr(a) + entr(b) - entr(a + b)))
        change = float(at_most[i]) - weight * overlap
        if change > best[0]:
            best = change, int(j[i]), int(k[i])
    return best
