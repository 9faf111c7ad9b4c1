"""Are ranks uniform? A test by their distribution function and first moments, and simultaneous bands for a picture.

Säilynoja, Bürkner & Vehtari (2022, Statistics and Computing 32). Of S ranks in 0 … K − 1, uniform if all is right:
    C_i = #{ranks < i} ~ Binomial(S, i/K),  i = 1 … K − 1
    t_i = 2 min(Pr(C_i ≤ c_i), Pr(C_i ≥ c_i))       how unusual the count c_i would be by itself
    T = min_i t_i,  p = Pr(T ≤ t)                   how unusual the most unusual one is among K − 1
A simultaneous band of probability 1 − α holds the counts with t_i > γ, γ the largest number with Pr(T > γ) ≥ 1 − α.

Pr(T > γ) is the probability that the path C_1 … C_{K−1} stays between bounds. It is computed exactly and not
simulated: counts of uniform ranks are those of a Poisson process given its total, so that with π the probabilities
of Poisson(S/K),
    v_i(c) = Σ_{c' ≤ c} v_{i−1}(c') π(c − c')  for c within the bounds of i,    Pr = v_K(S) / Pr(Poisson(S) = S).

The distribution function sees anything, if late. That draws are too high or too narrow shows sooner in the mean of v,
with v = z or z² and z in (−1, 1) the rank's distance from the middle. By Chernoff's bound, for any S,
    Pr(v̄ at least as far to the side of x) ≤ exp(−S I(x)),  I(x) = max_t (t x − log E exp(t v)).
The p-value is 3 times the smallest of the three (Bonferroni), each with two sides: never too small.
"""

import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import bdtr, gammaln

ROUNDING = 1e-10  # far above the error of the exact probability
SLACK = 1e-9  # relative: tail areas that are equal by symmetry differ in their last digits


class Manner(NamedTuple):
    """In what way ranks are not uniform, in standard errors under uniformity.

    ``shift``: of the mean rank; negative where the draws lie above the true values. ``spread``: of the mean squared
    distance from the middle; positive where true values lie in the tails, so that the draws are too narrow.
    """

    shift: Float[np.ndarray, "..."]
    spread: Float[np.ndarray, "..."]


def p_values(ranks: Int[np.ndarray, "simulation ..."], num_ranks: int) -> Float[np.ndarray, "..."]:
    """The probability of ranks at least as far from uniform, one for each column of ``ranks`` in 0 … num_ranks − 1."""
    z = (np.arange(num_ranks) + 0.5) / num_ranks * 2 - 1
    columns = ranks.reshape(len(ranks), -1).T
    found = [min(_p_of_mean(z, r), _p_of_mean(z**2, r), _p_of_ecdf(r, num_ranks)) for r in columns]
    return np.minimum(1.0, 3 * np.array(found)).reshape(ranks.shape[1:])


def ecdf_p_values(ranks: Int[np.ndarray, "simulation ..."], num_ranks: int) -> Float[np.ndarray, "..."]:
    """The same by the distribution function alone: at most α where it leaves the band of probability 1 − α."""
    columns = ranks.reshape(len(ranks), -1).T
    return np.array([_p_of_ecdf(column, num_ranks) for column in columns]).reshape(ranks.shape[1:])


def manner(ranks: Int[np.ndarray, "simulation ..."], num_ranks: int) -> Manner:
    """How far the first two moments of the ranks are from those of uniform ones."""
    z = (np.arange(num_ranks) + 0.5) / num_ranks * 2 - 1
    shift, spread = (_standardised(values[ranks], values) for values in (z, z**2))
    return Manner(shift, spread)


def band(num_simulations: int, num_ranks: int, probability: float) -> tuple[np.ndarray, np.ndarray]:
    """(lowest, highest) counts of ranks below i, for i = 0 … num_ranks, between which all lie with ``probability``.

    With at least that probability: counts are whole numbers.
    """
    tails = _tails(num_simulations, num_ranks)
    low, high = -745.0, 0.0  # of log γ
    for _ in range(40):
        middle = 0.5 * (low + high)
        is_wide = _inside(np.exp(middle), num_simulations, num_ranks) >= probability
        low, high = (middle, high) if is_wide else (low, middle)
    least, most = _bounds(tails, np.exp(low))
    ends = np.array([0]), np.array([num_simulations])
    return np.concatenate([ends[0], least, ends[1]]), np.concatenate([ends[0], most, ends[1]])


def _p_of_ecdf(ranks: Int[np.ndarray, " simulation"], num_ranks: int) -> float:
    return _p_of_counts(np.bincount(ranks, minlength=num_ranks))


def _p_of_mean(values: Float[np.ndarray, " rank"], ranks: Int[np.ndarray, " simulation"]) -> float:
    """Chernoff's bound for the mean of ``values`` at the ranks, both sides."""
    excess = values - np.mean(values[ranks])
    sign = 1.0 if np.mean(excess) < 0 else -1.0  # towards the observed mean

    def tilted(t: float) -> tuple[float, float]:
        """(log E exp(t·excess), its slope in t)."""
        exponent = sign * t * excess
        largest = exponent.max()
        weights = np.exp(exponent - largest)
        return largest + float(np.log(np.mean(weights))), float(sign * excess @ weights / weights.sum())

    low, high = 0.0, 1.0
    while tilted(high)[1] < 0 and high < 1e6:
        high *= 2
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if tilted(middle)[1] < 0 else (low, middle)
    return min(1.0, 2 * float(np.exp(len(ranks) * min(0.0, tilted(high)[0]))))


def _p_of_counts(counts: Int[np.ndarray, " rank"]) -> float:
    num_simulations, num_ranks = int(counts.sum()), len(counts)
    below = np.cumsum(counts)[:-1]
    t = float(np.min(_tails(num_simulations, num_ranks)[np.arange(num_ranks - 1), below]))
    if t < ROUNDING:  # the subtraction would lose it: its upper bound, the sum over i, is next to it there
        return (num_ranks - 1) * t
    return 1.0 - _inside(t, num_simulations, num_ranks)


@functools.lru_cache(maxsize=4)
def _tails(num_simulations: int, num_ranks: int) -> Float[np.ndarray, "point count"]:
    """t_i of every count 0 … S."""
    share = np.arange(1, num_ranks)[:, None] / num_ranks
    at_most = bdtr(np.arange(num_simulations + 1.0), num_simulations, share)
    at_least = bdtr(np.arange(num_simulations + 1.0), num_simulations, 1 - share)[:, ::-1]  # of S − C, from the left
    return np.minimum(1.0, 2 * np.minimum(at_most, at_least))


def _bounds(tails, gamma: float) -> tuple[Int[np.ndarray, " point"], Int[np.ndarray, " point"]]:
    """The least and the largest count with t_i > γ: tail areas rise to the middle and fall from it."""
    is_inside = tails > gamma * (1 + SLACK)
    return np.argmax(is_inside, axis=1), tails.shape[1] - 1 - np.argmax(is_inside[:, ::-1], axis=1)


@functools.lru_cache(maxsize=1024)
def _inside(gamma: float, num_simulations: int, num_ranks: int) -> float:
    """Pr(T > γ)."""
    tails = _tails(num_simulations, num_ranks)
    if np.any(np.all(tails <= gamma * (1 + SLACK), axis=1)):
        return 0.0
    least, most = _bounds(tails, gamma)
    poisson = _poisson(num_simulations / num_ranks, num_simulations)
    start, path = 0, np.ones(1)
    for low, high in zip(least, most, strict=True):
        steps = poisson[: high - start + 1]
        path = np.convolve(path, steps)[low - start : high - start + 1]
        start = low
    last = poisson[num_simulations - start - np.arange(len(path))]
    total = _poisson(float(num_simulations), num_simulations)[num_simulations]
    return float(min(1.0, path @ last / total))


def _poisson(mean: float, largest: int) -> Float[np.ndarray, " count"]:
    k = np.arange(largest + 1.0)
    return np.exp(k * np.log(mean) - mean - gammaln(k + 1))


def _standardised(values, all_values):
    if not all_values.std() > 0:  # of two ranks, the second moment is one number
        return np.zeros(values.shape[1:])
    return np.asarray((values.mean(axis=0) - all_values.mean()) / (all_values.std() / np.sqrt(len(values))))
