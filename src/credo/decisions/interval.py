"""The interval of least expected loss 1 − F(h) + F(l) + γ (h − l), γ the price of a unit of length.

On ordered points y_1 ≤ … ≤ y_n of weights w and running totals W, an interval from y_i to y_j loses
1 − (W_j − γ y_j) + (W_{i−1} − γ y_i): with the running maximum of the last bracket the best pair is found in O(n), of
all modes. Draws place its ends with an error of n^(−1/3), for the loss is flat there; counts are therefore weighed by
their probabilities, and where a density is known the ends are moved to f = γ.
"""

import jax
import numpy as np
from jaxtyping import Float, Shaped

from credo.decisions.belief import RARE, Belief, OfPosterior

NUM_LEVELS = 4_001  # of the quantile function of a posterior
NEVER = 1e-12  # tails of counts that are left out at any price
WIDENINGS = 6  # of the bracket round an end: from 2 % of the spread of y to 64 %
BISECTIONS = 50


def best_interval(belief: Belief, price: float):
    """(low, high) for each row, in the structure of the outcome."""
    if isinstance(belief, OfPosterior):
        levels = (np.arange(NUM_LEVELS) + 0.5) / NUM_LEVELS
        return _on_tree(belief.quantile(levels), np.full((NUM_LEVELS, 1), 1.0 / NUM_LEVELS), price)
    # an end of the best interval is as probable as the price at least, or it is the mode alone
    if (points := belief.points(float(np.clip(price, NEVER, RARE)))) is not None:
        return highest_density(*points, price)
    low, high, spread = belief.each(lambda drawn: _of_draws(drawn.values, np.asarray(drawn.weights), price))
    return refine(belief.log_prob, low, high, spread, np.log(price)) if belief.has_density else (low, high)


def _of_draws(values, weights, price: float):
    low, high = _on_tree(values, weights, price)
    return low, high, jax.tree.map(lambda y: np.ptp(np.quantile(y, [0.05, 0.95], axis=0), axis=0), values)


def _on_tree(values, weights, price: float):
    leaves, structure = jax.tree.flatten(values)
    pairs = [highest_density(np.asarray(leaf), weights, price) for leaf in leaves]
    return tuple(jax.tree.unflatten(structure, side) for side in zip(*pairs, strict=True))


def highest_density(y: Shaped[np.ndarray, "n m ..."], weights: Float[np.ndarray, "n m"], price: float):
    """The best (low, high) on weighted points, over the leading axis, for each entry of (m, …)."""
    order = np.argsort(y, axis=0, kind="stable")
    weights = np.broadcast_to(weights.reshape(weights.shape + (1,) * (y.ndim - weights.ndim)), y.shape)
    w, y = np.take_along_axis(weights, order, axis=0), np.take_along_axis(y, order, axis=0)
    total = np.cumsum(w, axis=0)
    start = total - w - price * y  # smallest where an interval best begins
    best_start = np.minimum.accumulate(start, axis=0)
    end = np.argmax(total - price * y - best_start, axis=0, keepdims=True)
    reached = np.where(np.arange(len(y)).reshape((-1,) + (1,) * (y.ndim - 1)) <= end, start, np.inf)
    begin = np.argmin(reached, axis=0, keepdims=True)
    return np.take_along_axis(y, begin, axis=0)[0], np.take_along_axis(y, end, axis=0)[0]


def refine(log_prob, low, high, spread, log_price: float):
    """The ends moved to where the density crosses the price; an interval that is nowhere so dense is empty."""
    low, low_found = _crossing(log_prob, low, -0.02 * spread, log_price)
    high, high_found = _crossing(log_prob, high, 0.02 * spread, log_price)
    middle = 0.5 * (low + high)
    empty = ~low_found & ~high_found & (log_prob(middle) < log_price)
    return np.where(empty, middle, low), np.where(empty, middle, high)


def _crossing(log_prob, at, outward, log_price: float):
    """Where the density falls through the price on the way ``outward``, and whether it does."""
    inner, outer, found = at.copy(), at.copy(), np.zeros(at.shape, bool)
    for widening in range(WIDENINGS):
        inside, outside = at - outward * 2.0**widening, at + outward * 2.0**widening
        new = ~found & (log_prob(inside) > log_price) & (log_prob(outside) < log_price)
        inner, outer = np.where(new, inside, inner), np.where(new, outside, outer)
        found |= new
        if found.all():
            break
    for _ in range(BISECTIONS):
        middle = 0.5 * (inner + outer)
        is_dense = log_prob(middle) > log_price
        inner, outer = np.where(is_dense, middle, inner), np.where(is_dense, outer, middle)
    return np.where(found, inner, at), found
