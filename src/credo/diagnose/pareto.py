"""Pareto-smoothed importance weights (Vehtari, Simpson, Gelman, Yao & Gabry 2024, JMLR 25; arXiv 1507.02646).

The M largest of S weights are replaced by the expected order statistics of the generalised Pareto distribution
fitted to them, whose density at excess x is (1/σ)(1 + k x/σ)^(−1/k − 1). Its shape k̂ says how many moments the
weights have (those of order below 1/k) and so whether any importance sampling estimate can be trusted.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from credo.diagnose.moments import Weighed, figures_of, shifts
from credo.diagnose.rules import RULES
from credo.status import CredoError

MIN_TAIL = 6  # with fewer points the first quartile, which the fit rests on, is the smallest of them
EQUAL = 1e-8  # log weights this close differ by rounding only
NEARLY_EQUAL = 0.99  # of the draws: what weights are worth whose tail moves nothing
NEARLY_ALL = 0.9  # seen: 0.97 where a Gaussian is right at a k-hat of 1.2, below 0.6 where a twentieth lies elsewhere
UNDERFLOW = -700.0  # exp() of less is zero or subnormal


class Smoothed(NamedTuple):
    """Normalised log weights (their exponentials sum to one) and the shape of their tail."""

    log_weights: Float[np.ndarray, " S"]
    k_hat: float


def smooth(log_weights: Float[np.ndarray, " S"], *, relative_efficiency: float = 1.0) -> Smoothed:
    """Smooth and normalise log importance weights, shape (S,).

    ``relative_efficiency`` is ESS / S of the proposal's draws: 1 where they are independent.

    Weights that are not finite keep their meaning. −inf: the draw lies outside the target; it keeps weight zero and
    its place among the S draws. +inf or NaN: the weight is unknown (a density overflowed or is undefined there);
    it is left out, with k̂ = NaN, so that no verdict passes. Nothing finite at all: NaN weights and k̂ = +inf.
    k̂ = NaN as well, and nothing is smoothed, with fewer than 30 draws (a tail of six) and where a quarter of the tail
    is one repeated value, which is far from any Pareto tail. Weights all equal to rounding have no tail: k̂ = 0.
    """
    log_weights = np.array(log_weights, float)  # a copy, changed below
    if log_weights.ndim != 1:
        raise CredoError(f"Log weights have shape {log_weights.shape}: give one a draw, shape (S,).")
    if not relative_efficiency > 0:
        raise CredoError(f"The relative efficiency is {relative_efficiency}: give ESS / S, which is positive.")
    unknown = np.isnan(log_weights) | (log_weights == np.inf)
    log_weights[unknown] = -np.inf
    if not np.any(log_weights > -np.inf):
        return Smoothed(np.full(log_weights.shape, np.nan), np.inf)
    log_weights -= np.max(log_weights)
    size = _tail_size(len(log_weights), relative_efficiency)
    k_hat = np.nan
    if size >= MIN_TAIL:
        order = np.argsort(log_weights)
        order = order[log_weights[order] > -np.inf]
        tail, body = order[-size:], order[:-size]
        log_cutoff = np.max(log_weights[body], initial=-np.inf)
        k_hat, log_weights[tail] = _smooth_tail(log_weights[tail], log_cutoff)
    return Smoothed(log_weights - np.log(np.sum(np.exp(log_weights))), np.nan if unknown.any() else k_hat)


def effective_sample_size(log_weights: Float[np.ndarray, " S"]) -> float:
    """(Σ w)² / Σ w²: the number of equal weights with the same variance (Kong 1992). NaN where one is unknown."""
    log_weights = np.asarray(log_weights, float)
    if not np.max(log_weights) < np.inf:  # or NaN
        return np.nan
    weights = np.exp(log_weights - max(np.max(log_weights), np.finfo(float).min))
    return float(np.sum(weights) ** 2 / np.sum(weights**2)) if weights.any() else 0.0


def judged_shape(
    log_weights: Float[np.ndarray, " S"], k_hat: float, log_own: Float[np.ndarray, " S"] | None = None
) -> float:
    """k̂ for a verdict: that of the tail, or 0 where raw ``log_weights`` are worth 99 % of their draws.

    ``log_own``: log q/r, of draws some of which reach far by another r than the approximation q. What weights p/r
    differ in from q/r then has hardly a share of the mass where they are worth 90 % as many draws as those, which
    p = q would give. So have the weights by which chains accepted draws of q (zeros, then), if nothing was missed.

    With χ² = E_q[(p/q − 1)²], about S/ESS − 1, any mean obeys |E_p f − E_q f| ≤ χ sd_q f (Cauchy & Schwarz): below
    0.1 sd there. Such weights differ in a few draws far out only, to which k̂ alone would give the word, or take a few
    values only, as those of discrete parameters, whose tail has no shape. Fewer draws than have a tail tell nothing.
    """
    if _tail_size(len(log_weights), 1.0) < MIN_TAIL:
        return k_hat
    worth = NEARLY_EQUAL * len(log_weights) if log_own is None else NEARLY_ALL * effective_sample_size(log_own)
    return 0.0 if effective_sample_size(log_weights) >= worth else k_hat


def threshold(num_draws: int) -> float:
    """The largest k̂ at which ``num_draws`` draws give a reliable estimate (Vehtari et al. 2024)."""
    return min(1 - 1 / np.log10(num_draws), 0.7) if num_draws > 1 else -np.inf


def proposal_figures(z: Float[np.ndarray, "S dim"], log_weights: Float[np.ndarray, " S"]) -> dict[str, float]:
    """What raw log weights say of an approximation whose standardised draws are ``z``, for its verdict.

    Beyond k̂ = 1 the weights have no mean and move nothing that could be believed: k̂ alone then says so.
    """
    smoothed = smooth(log_weights)
    k_hat = float(judged_shape(log_weights, smoothed.k_hat))
    if not k_hat <= RULES["pareto_k"].doubtful:
        return {"pareto_k": k_hat}
    return {"pareto_k": k_hat, **figures_of(shifts(Weighed(z, smoothed.log_weights, z, np.eye(z.shape[1]))))}


def fit_generalised_pareto(excess: Float[np.ndarray, " M"]) -> tuple[float, float]:
    """Shape k and scale σ of a generalised Pareto distribution (Zhang & Stephens 2009, Technometrics 51).

    With b = −k/σ, the shape that maximises the likelihood at a given b is k(b) = mean log(1 − b x), which leaves the
    profile log likelihood ℓ(b) = M (log(−b / k(b)) − k(b) − 1). b is the mean of its posterior under their
    data-based prior, by a grid of that prior's quantiles; at last k is drawn to 1/2 by a prior worth ten
    observations (Vehtari et al. 2024). ``excess``: ascending and positive from the first quartile on.
    """
    m, largest, quartile = len(excess), excess[-1], excess[_quartile(len(excess))]
    num_points = 30 + int(np.sqrt(m))
    j = np.arange(1, num_points + 1)
    b = 1 / largest + (1 - np.sqrt(num_points / (j - 0.5))) / (3 * quartile)

    def shape(b):
        return np.mean(np.log1p(-np.multiply.outer(b, excess)), axis=-1)

    k = shape(b)
    log_likelihood = m * (np.log(-b / k) - k - 1)
    weights = np.exp(log_likelihood - np.max(log_likelihood))
    b_mean = np.sum(b * weights) / np.sum(weights)
    k_mean = float(shape(b_mean))
    return float((m * k_mean + 10 * 0.5) / (m + 10)), float(-k_mean / b_mean)


def _quartile(size: int) -> int:
    return int(size / 4 + 0.5) - 1


def _tail_size(num_draws: int, relative_efficiency: float) -> int:
    """The smaller of S/5 and 3√(S / r) (Vehtari et al. 2024), r the relative efficiency."""
    return int(min(num_draws / 5, 3 * np.sqrt(num_draws / relative_efficiency)))


def _smooth_tail(log_tail: np.ndarray, log_cutoff: float) -> tuple[float, np.ndarray]:
    """The shape of the tail, and its log weights (ascending, the largest 0) replaced by quantiles of the fit."""
    if len(log_tail) < MIN_TAIL:  # nearly every draw lies outside the target
        return np.inf, log_tail
    if log_tail[0] > -EQUAL:
        return 0.0, log_tail
    if log_tail[_quartile(len(log_tail))] < UNDERFLOW:  # heavier than a double can hold
        return np.inf, log_tail
    cutoff = np.exp(log_cutoff)
    excess = np.exp(log_tail) - cutoff
    if log_tail[_quartile(len(log_tail))] - log_tail[0] <= EQUAL * (log_tail[-1] - log_tail[0]):
        return np.nan, log_tail
    k, sigma = fit_generalised_pareto(excess)
    p = (np.arange(len(log_tail)) + 0.5) / len(log_tail)
    growth = -np.log1p(-p)
    with np.errstate(over="ignore", divide="ignore"):
        log_quantiles = np.log(cutoff + sigma * (np.expm1(k * growth) / k if k != 0 else growth))
    return k, np.minimum(log_quantiles, 0.0)  # no weight above the largest seen
