"""Have the chains converged, and how many independent draws are they worth?

Rank-normalised split R-hat and effective sample sizes (Vehtari, Gelman, Simpson, Carpenter & Bürkner 2021,
Bayesian Analysis 16), Monte Carlo standard errors, E-BFMI (Betancourt 2016) and stuck chains. Every function takes
draws x of shape (chain, draw, k) and answers k scalars at once; the work goes through blocks of scalars, so memory
stays bounded whatever k is. A scalar that has NaN, infinite or constant draws gets NaN everywhere: nothing is known
about its mixing, and NaN never passes a verdict. (ArviZ calls constant draws perfectly effective; a frozen chain
would pass.) Compute these on unconstrained positions, where no scalar is constant by construction.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import betaincinv, ndtri

from credo.cores import in_groups, num_cores
from credo.status import CredoError
from credo.storage import column_blocks, release

Draws = Float[np.ndarray, "chain draw k"]
Figures = Float[np.ndarray, " k"]

MIN_DRAWS = 4  # two draws a half chain: the least that has a variance
BLOCK = 2**20  # draws worked on at once by all cores (8 MB an array: stays in cache, and bounds memory)
ROUNDING = 1e-26  # variance within chains that stand still, relative to that between them
WORTHWHILE = 2**16  # draws for a thread


class Convergence(NamedTuple):
    """What a verdict asks of every scalar, each of shape (k,)."""

    r_hat: Figures
    ess_bulk: Figures
    ess_tail: Figures


def convergence(x: Draws) -> Convergence:
    """R-hat, bulk and tail effective sample size; cheaper than the three calls apart, since they share a ranking."""

    def block(b):
        ranks = _Ranks(_split(b))
        ordered = ranks.ordered if b.shape[-1] % 2 == 0 else None  # else halves lack a draw
        return np.stack([_r_hat(ranks), _ess(ranks.bulk), _ess_tail(b, ordered)])

    return Convergence(*_by_blocks(block, x, rows=3))


def r_hat(x: Draws) -> Figures:
    """Rank-normalised split R-hat, the larger of bulk and folded (Vehtari et al. 2021).

    NaN with fewer than two chains or four draws.
    """
    return _by_blocks(lambda b: _r_hat(_Ranks(_split(b))), x)


def nested_r_hat(x: Draws, num_superchains: int) -> Figures:
    """Nested R-hat of many short chains (Margossian et al. 2024, eq. 8), rank-normalised as ``r_hat`` is.

    ``x``: (chain, draw, k), the chains of a superchain, which started from one point, next to each other; one draw a
    chain is enough. With K superchains of M chains of N draws,
        B = 1/(K−1) Σ_k (x̄_k − x̄)²,    W = 1/K Σ_k (B_k + W_k),    √(1 + B/W)
    where B_k is the variance of the M means of chains in superchain k, and W_k the mean of their N draws' variances.
    Chains that have forgotten where they started give about √(1 + 1/M) for N = 1, and less for longer ones: that, and
    not 1.01, is what to hold it against. Chains of four draws or more are split. NaN where W would have no term.

    Raises CredoError where ``num_superchains`` is below two or does not divide the chains.

    >>> import numpy as np
    >>> nested_r_hat(np.random.default_rng(0).normal(size=(1000, 1, 1)), num_superchains=10).round(2)
    array([1.01])
    """
    x = _checked(x)
    if isinstance(num_superchains, bool) or not isinstance(num_superchains, int | np.integer):
        raise CredoError(f"num_superchains is a whole number; got {num_superchains!r}.")
    if x.shape[0] == num_superchains and x.shape[1] == 1:
        return np.full(x.shape[2], np.nan)  # a draw a superchain: nothing varies within
    if num_superchains < 2 or x.shape[0] % num_superchains:
        raise CredoError(
            f"{x.shape[0]} chains cannot be {num_superchains} superchains of equal size: give at least 2, and a number "
            "that divides that of the chains."
        )

    def block(b):
        half = b.shape[-1] // 2
        if b.shape[-1] >= MIN_DRAWS:
            b = np.stack([b[..., :half], b[..., -half:]], axis=2).reshape(b.shape[0], -1, half)
        ranks = _Ranks(b)
        return np.fmax(_nested(ranks.bulk, num_superchains), _nested(ranks.folded(), num_superchains))  # as in _r_hat

    return _by_blocks(block, x, least=1)


def ess_bulk(x: Draws) -> Figures:
    """Effective sample size of the rank-normalised draws (Vehtari et al. 2021)."""
    return _by_blocks(lambda b: _ess(_Ranks(_split(b)).bulk), x)


def ess_tail(x: Draws) -> Figures:
    """The smaller effective sample size of the 5 % and 95 % quantiles (Vehtari et al. 2021)."""
    return _by_blocks(_ess_tail, x)


def ess_mean(x: Draws) -> Figures:
    """Effective sample size for the mean."""
    return _by_blocks(lambda b: _ess(_split(b)), x)


def ess_quantile(x: Draws, p: float) -> Figures:
    """Effective sample size for the quantile at probability ``p``."""
    return _by_blocks(lambda b: _ess_quantile(b, p), x)


def mcse_mean(x: Draws) -> Figures:
    """Monte Carlo standard error of the mean: sd / √ESS."""

    def block(b):
        return np.std(_pool(b), axis=-1, ddof=1) / np.sqrt(_ess(_split(b)))

    return _by_blocks(block, x)


def mcse_sd(x: Draws) -> Figures:
    """Monte Carlo standard error of the standard deviation.

    By the delta method sd(s) = sd(s²) / 2s, and s² is a mean of squared deviations: the effective sample size that
    counts is theirs, not that of x. (Antithetic chains such as NUTS's are worth more than N draws for the mean and
    fewer than N for the variance; with the ESS of the mean the error comes out too small.)
    """

    def block(b):
        squares = (b - np.mean(b, axis=(1, 2), keepdims=True)) ** 2
        variance = np.mean(squares, axis=(1, 2))
        variance_of_squares = np.mean(squares**2, axis=(1, 2)) - variance**2
        return np.sqrt(variance_of_squares / _ess(_split(squares)) / variance / 4)

    return _by_blocks(block, x)


def mcse_quantile(x: Draws, p: float) -> Figures:
    """Monte Carlo standard error of the quantile at probability ``p``.

    Half the distance between the order statistics at the 16 % and 84 % points of the Beta distribution of the
    quantile's rank (Vehtari et al. 2021, section 4.4).
    """

    def block(b):
        ordered = np.sort(_pool(b), axis=-1)
        size, ess = ordered.shape[-1], _ess_quantile(b, p)
        low, high = (betaincinv(ess * p + 1, ess * (1 - p) + 1, q) * size - 1 for q in (0.1586553, 0.8413447))
        with np.errstate(invalid="ignore"):  # an ESS that is NaN gives rank 0; put back to NaN below
            first = np.nan_to_num(np.floor(np.maximum(low, 0))).astype(int)
            last = np.nan_to_num(np.ceil(np.minimum(high, size - 1))).astype(int)
        width = _at(ordered, last) - _at(ordered, first)
        return np.where(np.isnan(ess), np.nan, width / 2)

    return _by_blocks(block, x)


def e_bfmi(energy: Float[np.ndarray, "chain draw"]) -> Float[np.ndarray, " chain"]:
    """Energy Bayesian fraction of missing information of each chain (Betancourt 2016, arXiv 1604.00695).

    E[(E_n − E_{n−1})²] / Var[E]: low where momentum resampling moves too slowly through the energies.
    NaN for a chain whose energies are constant, not finite or fewer than four.
    """
    energy = np.asarray(energy, float)
    if energy.ndim != 2:
        raise CredoError(f"Energies have shape {energy.shape}: give them as (chain, draw).")
    if energy.shape[1] < MIN_DRAWS:
        return np.full(energy.shape[0], np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        fraction = np.mean(np.diff(energy, axis=1) ** 2, axis=1) / np.var(energy, axis=1, ddof=1)
    return np.where(np.isfinite(fraction), fraction, np.nan)


def longest_stay(x: Draws) -> np.ndarray:
    """The largest number of successive draws each chain spent at one position, shape (chain,): 1 if it always moved."""
    x = _checked(x)
    still = np.ones((x.shape[0], max(x.shape[1] - 1, 0)), bool)
    for columns in column_blocks(x.shape[0] * x.shape[1], x.shape[2], BLOCK):
        block = x[..., columns]
        is_same = (block[:, 1:] == block[:, :-1]) | (np.isnan(block[:, 1:]) & np.isnan(block[:, :-1]))
        still &= np.all(is_same, axis=-1)
        release(x)
        if not still.any():
            return np.ones(x.shape[0], int)
    moves = [np.flatnonzero(np.concatenate([[True], ~stayed, [True]])) for stayed in still]
    return np.array([np.max(np.diff(each)) for each in moves])


def stuck_chains(x: Draws) -> Bool[np.ndarray, " chain"]:
    """Which chains stood still: for all their draws, or for a tenth of them and at least 50 in a row.

    A healthy random walk that accepts one proposal in four stays put 50 times with probability 6e-7. One draw tells
    nothing.
    """
    num_draws = np.shape(x)[1]
    return (longest_stay(x) >= min(max(50, num_draws / 10), num_draws)) & (num_draws > 1)


# The blocks: (scalar, chain, draw), contiguous, so that sorts and Fourier transforms run along the last axis.


def _checked(x) -> np.ndarray:
    x = np.asarray(x)
    if x.ndim != 3:
        raise CredoError(f"Draws have shape {x.shape}: give them as (chain, draw, k), one column a scalar.")
    return x


def _by_blocks(
    figure: Callable[[np.ndarray], np.ndarray], x: Draws, rows: int | None = None, least: int = MIN_DRAWS
) -> np.ndarray:
    """Apply ``figure`` to blocks of scalars; NaN where the draws of a scalar say nothing.

    ``least``: draws a chain that the figure needs.
    """
    x = _checked(x)
    num_chains, num_draws, k = x.shape
    answer = np.full((rows or 1, k), np.nan)

    def fill(columns: slice) -> None:
        block = np.ascontiguousarray(np.moveaxis(x[:, :, columns], 2, 0), dtype=float)
        release(x)
        pooled = _pool(block)
        usable = np.all(np.isfinite(pooled), axis=-1) & np.any(pooled != pooled[:, :1], axis=-1)
        if usable.any():
            block = block if usable.all() else block[usable]
            answer[:, columns][:, usable] = figure(block)

    if num_draws >= least and num_chains:
        threads = min(num_cores(), max(BLOCK // WORTHWHILE, 1))
        each = list(column_blocks(num_chains * num_draws, k, BLOCK // threads))
        list(in_groups(fill, each, threads))
    return answer if rows else answer[0]


def _pool(block: np.ndarray) -> np.ndarray:
    return block.reshape(block.shape[0], -1)


def _split(block: np.ndarray) -> np.ndarray:
    """Halves of chains as chains of their own; the middle draw of an odd number is dropped."""
    half = block.shape[-1] // 2
    return np.concatenate([block[..., :half], block[..., -half:]], axis=1)


def _at(rows: np.ndarray, index: np.ndarray) -> np.ndarray:
    return np.take_along_axis(rows, index[:, None], axis=-1)[:, 0]


class _Ranks:
    """Normal scores of the pooled draws of each scalar, from one sort."""

    def __init__(self, block: np.ndarray):
        pooled = _pool(block)
        self.shape, self.size = block.shape, pooled.shape[-1]
        self.order = np.argsort(pooled, axis=-1)
        self.ordered = np.take_along_axis(pooled, self.order, axis=-1)
        self.scores = _scores(self.size)

    @functools.cached_property
    def bulk(self) -> np.ndarray:
        return self._scatter(self.order, self.ordered)

    def folded(self) -> np.ndarray:
        """Scores of the distance to the median: they tell chains of different spread apart."""
        middle = self.size // 2
        median = np.mean(self.ordered[:, self.size - 1 - middle : middle + 1], axis=-1, keepdims=True)
        distance = np.abs(self.ordered - median)
        # Falls to the median and rises from it: a stable (merging) sort of two runs takes linear time.
        inner = np.argsort(distance, axis=-1, kind="stable")
        order = np.take_along_axis(self.order, inner, axis=-1)
        return self._scatter(order, np.take_along_axis(distance, inner, axis=-1))

    def _scatter(self, order: np.ndarray, ordered: np.ndarray) -> np.ndarray:
        scores = np.broadcast_to(self.scores[::2], ordered.shape)
        rows, first = np.nonzero(ordered[:, 1:] == ordered[:, :-1])
        if len(rows):
            scores = scores.copy()
            scores[rows, first] = scores[rows, first + 1] = self.scores[_sums_of_places(rows, first)]
        z = np.empty(ordered.shape)
        np.put_along_axis(z, order, scores, axis=-1)
        return z.reshape(self.shape)


def _sums_of_places(rows: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Of each place ``first`` of a row that holds the same as the next: the least such place plus the largest."""
    is_new = np.ones(len(rows), bool)
    is_new[1:] = (rows[1:] != rows[:-1]) | (first[1:] != first[:-1] + 1)
    begins = np.flatnonzero(is_new)
    lengths = np.diff(begins, append=len(rows))
    return np.repeat(2 * first[begins] + lengths, lengths)


@functools.lru_cache(maxsize=1)
def _scores(size: int) -> np.ndarray:
    """A rank is an average over ties, hence a half integer: all scores there can be, from 1 on, lie in a table."""
    return ndtri((np.arange(2, 2 * size + 1) / 2 - 3 / 8) / (size + 1 / 4))


def _r_hat(ranks: _Ranks) -> np.ndarray:
    if ranks.shape[1] < 4:  # halves of one chain
        return np.full(ranks.shape[0], np.nan)
    # two values, each of half the draws, lie equally far from their median: folded, they say nothing
    return np.fmax(_potential_scale(ranks.bulk), _potential_scale(ranks.folded()))


def _potential_scale(z: np.ndarray) -> np.ndarray:
    """√(var⁺ / W) of Gelman & Rubin (1992), in the form of Vehtari et al. (2021)."""
    n = z.shape[-1]
    within = np.mean(np.var(z, axis=-1, ddof=1), axis=-1)
    between = n * np.var(np.mean(z, axis=-1), axis=-1, ddof=1)
    within[within < ROUNDING * between] = 0
    with np.errstate(divide="ignore", invalid="ignore"):  # chains that do not move at all: infinite
        return np.sqrt((between / within + n - 1) / n)


def _nested(z: np.ndarray, num_superchains: int) -> np.ndarray:
    """√(1 + B/W) of chains (scalar, chain, draw), a superchain's next to each other."""
    z = z.reshape(z.shape[0], num_superchains, -1, z.shape[-1])
    mean, within = np.mean(z, axis=-1), 0.0
    if z.shape[3] > 1:
        within = np.mean(np.var(z, axis=-1, ddof=1), axis=(1, 2))
    if z.shape[2] > 1:
        within = within + np.mean(np.var(mean, axis=-1, ddof=1), axis=-1)
    between = np.var(np.mean(mean, axis=-1), axis=-1, ddof=1)
    within = np.where(within < ROUNDING * between, 0.0, within)
    with np.errstate(divide="ignore", invalid="ignore"):  # superchains that each stand still: infinite
        return np.sqrt(1 + between / within)


def _ess_tail(block: np.ndarray, ordered: np.ndarray | None = None) -> np.ndarray:
    """``ordered``: the pooled draws of each scalar in order, where they are known."""
    return np.minimum(_ess_quantile(block, 0.05, ordered), _ess_quantile(block, 0.95, ordered))


def _ess_quantile(block: np.ndarray, p: float, ordered: np.ndarray | None = None) -> np.ndarray:
    if ordered is None:
        quantile = np.quantile(_pool(block), p, axis=-1)
    else:  # the draw below the quantile tells the same draws from those above
        quantile = ordered[:, int(p * (ordered.shape[-1] - 1))]
    return _ess(_split(block <= quantile[:, None, None]).astype(float))


def _ess(z: np.ndarray) -> np.ndarray:
    """Effective sample size of chains (scalar, chain, draw), by Geyer's initial monotone sequence.

    Vehtari et al. (2021), section 3.2; Geyer (1992). With ρ_t the autocorrelation combined over chains,
    P_j = ρ_{2j} + ρ_{2j+1} is positive and decreasing in j for a reversible chain: the sum stops before the first
    P_m ≤ 0, and each P_j is brought down to its predecessors. τ = −1 + 2 Σ_{j<m} P_j + ρ_{2m}, the last term where it
    is positive. N / τ is held below N log₁₀ N. An indicator that never changes (a quantile on a tie) counts all its
    draws.
    """
    _, num_chains, n = z.shape
    size = num_chains * n
    constant = np.ptp(_pool(z), axis=-1) == 0
    mean = np.mean(z, axis=-1, keepdims=True)
    length = next_fast_len(2 * n, real=True)  # padded with zeros, so that the ends of a chain do not meet
    spectrum: Any = rfft(z - mean, n=length, axis=-1)
    power = np.mean(spectrum.real**2 + spectrum.imag**2, axis=1)  # linear from here on: chains are averaged first
    autocovariance = np.asarray(irfft(power, n=length, axis=-1))[:, :n] / n
    within = autocovariance[:, :1] * n / (n - 1)
    total = autocovariance[:, :1] + np.var(mean[..., 0], axis=1, ddof=1)[:, None]
    with np.errstate(invalid="ignore"):
        rho = 1 - (within - autocovariance) / total
    rho[:, 0] = 1
    last = max((n - 3) // 2, 0) + 1  # pairs looked at; the last lags are left out, since they rest on too few draws
    pairs = rho[:, 0 : 2 * last : 2] + rho[:, 1 : 2 * last : 2]
    m = np.sum(np.logical_and.accumulate(pairs[:, :-1] > 0, axis=-1), axis=-1)
    counted = np.arange(last) < m[:, None]
    monotone = np.sum(np.where(counted, np.minimum.accumulate(pairs, axis=-1), 0), axis=-1)
    tail = _at(rho, 2 * m)
    tau = -1 + 2 * monotone + np.where((tail > 0) | (_at(pairs, m) >= 0), tail, 0)
    return np.where(constant, size, size / np.maximum(tau, 1 / np.log10(size)))
