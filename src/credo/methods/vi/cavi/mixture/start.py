"""Rows divided among centres that lie far apart (Arthur & Vassilvitskii 2007), then a few sweeps of Lloyd's (1982).

Centres are drawn one by one with probability proportional to the squared distance from those drawn so far; of a few
candidates the one that leaves the least is kept. Data are in units of their standard deviations.
"""

import numpy as np
from jaxtyping import Float, Int

NUM_LLOYD = 10  # sweeps of k-means: they cost a tenth of those of the mixture, and most of the way is made by then


def divide(x: Float[np.ndarray, "row dim"], num_components: int, rng: np.random.Generator) -> Int[np.ndarray, " row"]:
    """The component of each row."""
    centres = spread(x, num_components, rng)
    labels = _nearest(x, centres)
    for _ in range(NUM_LLOYD):
        counts = np.bincount(labels, minlength=num_components)
        sums = np.stack([np.bincount(labels, column, minlength=num_components) for column in x.T], axis=1)
        centres = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centres)
        before, labels = labels, _nearest(x, centres)
        if np.array_equal(before, labels):
            break
    return labels


def spread(
    x: Float[np.ndarray, "row dim"], num_components: int, rng: np.random.Generator
) -> Float[np.ndarray, "K dim"]:
    """Rows that lie far apart; fewer than K different rows are repeated."""
    num_candidates = 2 + int(np.log(num_components))
    square = np.einsum("nd,nd->n", x, x)

    def distances(rows):
        return np.maximum(square - 2 * (x[rows] @ x.T) + square[rows, None], 0.0)

    chosen = [int(rng.integers(len(x)))]
    nearest = distances(chosen)[0]
    for _ in range(num_components - 1):
        total = np.sum(nearest)
        if not total > 0:
            chosen.append(int(rng.integers(len(x))))
            continue
        candidates = rng.choice(len(x), num_candidates, p=nearest / total)
        left = np.minimum(nearest, distances(candidates))
        best = int(np.argmin(left.sum(axis=1)))
        chosen.append(int(candidates[best]))
        nearest = left[best]
    return x[chosen]


def one_hot(labels: Int[np.ndarray, " row"], num_components: int) -> Float[np.ndarray, "row K"]:
    """Responsibilities of a division."""
    r = np.zeros((len(labels), num_components))
    r[np.arange(len(labels)), labels] = 1.0
    return r


def _nearest(x, centres) -> np.ndarray:
    return np.argmin(0.5 * np.einsum("kd,kd->k", centres, centres) - x @ centres.T, axis=1)
