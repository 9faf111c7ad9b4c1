"""How much the data say of each group: which decides the coordinates of its effects, and nothing else.

Effects b_g = diag(σ) L z_g are sampled well as z where the data say little of each group, and as b where they say much:
there z would have to move with σ (Papaspiliopoulos, Roberts & Sköld, 2007). With θ_g the weighted least-squares effects
of group g alone and V_g their variance, the ratio τ²/V_g, τ² between groups by DerSimonian & Laird (1986), counts
how often the data are as informative as the prior. The posterior is the same in either coordinates.
"""

import numpy as np

from credo.models.family import Family

ENOUGH = 10.0  # data worth as many priors: z passed at 1 and crawled at 1,000, where b passed quickly


def is_informed(
    family: Family, y: np.ndarray, offset: np.ndarray | None, x: np.ndarray, groups: np.ndarray, z: np.ndarray
) -> bool:
    """Whether the groups are known by their own data: ``x`` (N, D) fixed columns, ``groups`` (N,), ``z`` (N, K)."""
    codes = np.unique(groups, return_inverse=True)[1]
    residual, weight = _working(family, y, offset, x)
    effects, precision = _group_effects(codes, z, residual, weight)
    if family == "gaussian":
        spare = len(y) - effects.size
        if spare <= 0:
            return False
        within = residual - np.sum(z * effects[codes], axis=1)
        precision = precision * spare / max(float(np.sum(within**2)), np.finfo(float).tiny)
    return all(_ratio(effects[:, k], precision[:, k]) > ENOUGH for k in range(z.shape[1]))


def _working(family: Family, y, offset, x) -> tuple[np.ndarray, np.ndarray]:
    """Residuals on the link's scale and their weights, one scoring step from a model without groups."""
    rate = np.ones(len(y)) if offset is None else np.exp(offset)
    if family == "gaussian":
        rest = y if offset is None else y - offset
        design = np.column_stack([np.ones(len(y)), x])
        return rest - design @ np.linalg.lstsq(design, rest)[0], np.ones(len(y))
    if family == "poisson":
        mean = rate * (y.sum() + 0.5) / rate.sum()
        return (y - mean) / mean, mean
    share = (y.sum() + 0.5) / (len(y) + 1.0)
    return (y - share) / (share * (1 - share)), np.full(len(y), share * (1 - share))


def _group_effects(codes, z, residual, weight) -> tuple[np.ndarray, np.ndarray]:
    """Each group's own effects (G, K) and the inverses of their variances (G, K)."""
    num_groups, k = codes.max() + 1, z.shape[1]
    information, score = np.zeros((num_groups, k, k)), np.zeros((num_groups, k))
    np.add.at(information, codes, weight[:, None, None] * z[:, :, None] * z[:, None, :])
    np.add.at(score, codes, (weight * residual)[:, None] * z)
    size = np.trace(information, axis1=1, axis2=2).mean() + np.finfo(float).tiny
    covariance = np.linalg.inv(information + 1e-9 * size * np.eye(k))  # a group without data of its own: nearly flat
    return np.einsum("gij,gj->gi", covariance, score), 1.0 / np.diagonal(covariance, axis1=1, axis2=2)


def _ratio(effect: np.ndarray, precision: np.ndarray) -> float:
    """τ² times the median precision."""
    total = precision.sum()
    spread = np.sum(precision * (effect - np.sum(precision * effect) / total) ** 2)
    free = total - np.sum(precision**2) / total
    between = max(0.0, (spread - (len(effect) - 1)) / free) if free > 0 else 0.0
    return float(between * np.median(precision))
