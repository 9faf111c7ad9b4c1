"""How far an approximation's means and sds lie from the target's, by importance weights, with limits to be trusted.

Draws u_s ~ q with weights w_s = p/q of mean one; f, a scalar of the parameters, standardised over the draws. Then

    E_q f^r: mean(f^r − xᵀα);  (E_p − E_q) f^r: mean(w f^r − f^r − xᵀβ),  r = 1, 2

give mean and variance of both, where the controls x have mean zero. Moments of q are subtracted draw by draw, so that
an exact q leaves no error. Where s = bᵀz, the direction in which f changes, is standard normal under q, its Hermite
polynomials are controls. Gradients g = ∇ log p give controls of the target, by Stein's identity: E_p[div h + hᵀg] = 0
for the fields h = φ(s) C b, φ = 1, s, s², s³ (Mira, Solgi & Imparato 2013), with C the inverse of the slope of −g on z.
Where the target is Gaussian these leave no error, whatever q is: C g = −(z − its mean). Coefficients come of one half
of the draws and serve the other, so that they cost no bias. Errors are those of ratios of means (delta method), limits
have the first correction for skewness (Hall 1992, section 3).
"""

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from jaxtyping import Float
from scipy.special import ndtri

from credo.cores import workers
from credo.diagnose.rules import RULES
from credo.linalg.blas import ONE_THREAD

SURE = 3.0  # standard errors: what a pass holds by; wrong once in 740 at the bound
ALARM = 0.05  # how often an exact approximation shows any shift at all
CHANCE = 0.02  # how often draws of the target itself break one of Stein's identities
NUM_POWERS = 4  # φ, and Hermite polynomials
AT_ONCE = 1_000_000  # numbers of an array of controls
RIDGE = 1e-12  # of the controls' own squares: two of them may be the same
FLAT = 1e-6  # slopes below this share of the middle one have no inverse worth having


LEAST, MOST = ("mean_shift", "log_sd_shift"), ("mean_limit", "log_sd_limit")  # their names in a verdict


class Shift(NamedTuple):
    """The target less the approximation, a figure for each scalar.

    ``least``: what is sure, for all scalars together: nothing in 95 % of cases where q is exact. ``most``: what cannot
    be ruled out for this scalar, by ``SURE`` standard errors.
    """

    value: Float[np.ndarray, " K"]
    error: Float[np.ndarray, " K"]
    least: Float[np.ndarray, " K"]
    most: Float[np.ndarray, " K"]


class Shifts(NamedTuple):
    """Of means, in posterior sds, and of log sds."""

    mean: Shift
    log_sd: Shift


class Weighed(NamedTuple):
    """Draws z in sds of q about its mean, smoothed log weights that sum to one, and scalars with their directions in z.

    ``directions``: b, (dim, K), may be sparse. ``gradient``: ∇ log p in z; None without. ``spread``: the sds of bᵀz
    under q, where z is normal under it; else None.
    """

    z: Float[np.ndarray, "S dim"]
    log_weights: Float[np.ndarray, " S"]
    scalars: Float[np.ndarray, "S K"]
    directions: Any
    gradient: Float[np.ndarray, "S dim"] | None = None
    spread: Float[np.ndarray, " K"] | None = None


class _Draws(NamedTuple):
    """Arrays of draws as they came, of which the work on some scalars takes ``_halves`` of what it needs."""

    z: Float[np.ndarray, "S dim"]
    weights: Float[np.ndarray, " S"]  # in halves
    scalars: Float[np.ndarray, "S K"]
    directions: Any
    gradient: Float[np.ndarray, "S dim"] | None
    is_normal: bool  # the directions have variance one under q then

    @classmethod
    def of(cls, weighed: Weighed) -> "_Draws":
        log_weights = np.concatenate([weighed.log_weights[::2], weighed.log_weights[1::2]])
        directions, length = scipy.sparse.csc_array(weighed.directions), weighed.spread
        if length is None:
            length = np.sqrt(directions.multiply(directions).sum(axis=0))
        return cls(
            z=weighed.z,
            weights=np.exp(log_weights) * len(log_weights),
            scalars=weighed.scalars,
            directions=directions.multiply(1 / length).tocsc(),
            gradient=weighed.gradient,
            is_normal=weighed.spread is not None,
        )


def _halves(rows: Float[np.ndarray, "S K"]) -> Float[np.ndarray, "K S"]:
    """Every other draw first, then the rest, along the last axis, so that those of a scalar are one piece."""
    halves = np.empty(rows.T.shape)
    return np.concatenate([rows[::2].T, rows[1::2].T], axis=1, out=halves)


def shifts(weighed: Weighed) -> Shifts:
    """How far means and log sds of the scalars move under the weights; NaN where weights or scalars are unknown, or
    where nothing varies."""
    num_draws, num_scalars = weighed.scalars.shape
    if not num_scalars:
        unknown = Shift(*4 * (np.array([np.nan]),))
        return Shifts(unknown, unknown)
    with np.errstate(all="ignore"):
        draws = _Draws.of(weighed)

    def of_half(first: int):
        return None if draws.gradient is None else _inverse_slope(draws.gradient[first::2], draws.z[first::2])

    def of_block(block: slice) -> list[Shift]:
        with np.errstate(all="ignore"):
            figures = _shifts(*_moments(draws, inverses, block))
            return [_limits(value, influence, num_scalars) for value, influence in figures]

    with np.errstate(all="ignore"):
        inverses = [of_half(1), of_half(0)]  # the other half
    with ONE_THREAD:
        parts = list(workers().map(of_block, _blocks(num_draws, num_scalars)))
    return _whole(parts)


def _whole(parts: list[list[Shift]]) -> Shifts:
    """From the blocks of scalars."""
    return Shifts(*(Shift(*map(np.concatenate, zip(*each, strict=True))) for each in zip(*parts, strict=True)))


def figures_of(moved: Shifts) -> dict[str, float]:
    """For a verdict, of the worst scalar: what is sure; where that passes, also what cannot be ruled out."""
    least = {name: float(np.max(shift.least)) for name, shift in zip(LEAST, moved, strict=True)}
    if not all(value <= RULES[name].passes for name, value in least.items()):
        return least
    return least | figures_of_errors(moved)


def figures_of_errors(found: Shifts) -> dict[str, float]:
    """For a verdict, of the worst scalar: what cannot be ruled out."""
    return {name: float(np.max(shift.most)) for name, shift in zip(MOST, found, strict=True)}


def shifts_between(
    scalars: Float[np.ndarray, "S K"], log_target: Float[np.ndarray, " S"], log_approximation: Float[np.ndarray, " S"]
) -> Shifts:
    """As ``shifts``, of draws that are neither's: weighed to the target, and to the approximation.

    Log weights that sum to one, both. No controls: where the two are near each other so are their moments' errors.
    """
    num_draws, num_scalars = scalars.shape
    weights = [np.exp(np.asarray(log_weights, float))[:, None] for log_weights in (log_approximation, log_target)]
    parts = []
    for block in _blocks(num_draws, num_scalars):
        with np.errstate(all="ignore"):
            f = np.where(weights[0] + weights[1] > 0, scalars[:, block], 0.0)  # what has no weight may have overflowed
            f = f - np.sum(weights[0] * f, axis=0)
            f = f / np.sqrt(np.sum(weights[0] * np.square(f), axis=0))
            powers = np.stack([f, np.square(f)])
            moments = [np.sum(w * powers, axis=1) for w in weights]
            by_draw = [num_draws * w * (powers - m[:, None]) for w, m in zip(weights, moments, strict=True)]
            figures = _shifts(*zip(moments, by_draw, strict=True))
            parts.append([_limits(value, influence, num_scalars) for value, influence in figures])
    return _whole(parts)


def errors(scalars: Float[np.ndarray, "S K"], log_weights: Float[np.ndarray, " S"]) -> Shifts:
    """How far the weighed means and log sds of the scalars may be from the target's: the central limit theorem's.

    ``log_weights``: they sum to one.
    """
    w = np.exp(np.asarray(log_weights, float))
    num_draws, num_scalars = scalars.shape
    parts = []
    for block in _blocks(num_draws, num_scalars):
        with np.errstate(all="ignore"):
            f = np.where(w[:, None] > 0, scalars[:, block], 0.0)  # what has no weight may have overflowed
            f = f / np.max(np.abs(f), axis=0)  # its square, too, is a number
            f = f - w @ f
            f = f / np.sqrt(w @ np.square(f))
            shares = w[:, None] * num_draws
            influences = shares * f, 0.5 * shares * (np.square(f) - 1)
            parts.append([_limits(np.zeros(f.shape[1]), each, num_scalars) for each in influences])
    return _whole(parts)


def stein_gap(
    u: Float[np.ndarray, "S dim"], log_weights: Float[np.ndarray, " S"], gradient: Float[np.ndarray, "S dim"]
) -> float:
    """The worst of Stein's identities over weighed draws, as a share of what chance explains: above 1 once in fifty.

    E_p[φ'(z) + φ(z) ∂ log p/∂z] = 0 of each coordinate, φ = 1, z, z². NaN where a gradient is no number.
    """
    w, worst = np.exp(np.asarray(log_weights, float))[:, None], 0.0
    for block in _blocks(*u.shape):
        with np.errstate(all="ignore"):
            z = u[:, block] - np.sum(w * u[:, block], axis=0)
            sd = np.sqrt(np.sum(w * np.square(z), axis=0))
            z, g = z / sd, gradient[:, block] * sd
            for field, slope in ((1.0, 0.0), (z, 1.0), (np.square(z), 2 * z)):
                terms = np.where(w > 0, slope + field * g, 0.0)
                value = np.sum(w * terms, axis=0)
                error = np.sqrt(np.sum(np.square(w * (terms - value)), axis=0))
                worst = np.maximum(worst, np.max(np.abs(value) / error))
    return float(worst / -ndtri(CHANCE / 2 / (3 * u.shape[1])))


def draws_needed(shift: Shift, bound: float, num_draws: int) -> float:
    """By how many draws a pass would be certain, were each shift as small as it may be; +inf where it cannot be."""
    room = bound - shift.least
    if not np.all(room > 0):  # or NaN
        return np.inf
    return float(num_draws * np.max((SURE * shift.error / room) ** 2))


def slopes(f: Float[np.ndarray, "S K"], z: Float[np.ndarray, "S dim"]) -> Float[np.ndarray, "dim K"]:
    """The slope of each column of ``f`` on ``z``, by least squares."""
    z = z - z.mean(axis=0)
    square = z.T @ z
    square[np.diag_indices_from(square)] *= 1 + RIDGE
    return np.linalg.lstsq(square, z.T @ (f - f.mean(axis=0)), rcond=None)[0]


def _limits(value: np.ndarray, influence: np.ndarray, num_scalars: int) -> Shift:
    """``influence`` (S, K): what each draw adds to the error of the mean. ``num_scalars``: of all blocks."""
    num_draws = len(influence)
    influence = influence - influence.mean(axis=0)
    sd = np.sqrt(np.mean(influence**2, axis=0))
    error = sd / np.sqrt(num_draws)
    skewness = np.where(sd > 0, np.mean(influence * influence**2, axis=0) / sd**3, 0.0) / np.sqrt(num_draws)
    stretch = (2 * SURE**2 + 1) / 6 * skewness
    above, below = (error * (SURE + np.maximum(sign * stretch, 0.0)) for sign in (1, -1))
    c = -ndtri(ALARM / 4 / num_scalars)
    least = np.maximum(np.abs(value) - c * error, 0.0)
    return Shift(value, error, least, np.maximum(value + above, below - value))


def _blocks(num_draws: int, num_scalars: int) -> list[slice]:
    size = max(1, AT_ONCE // (num_draws * (1 + 2 * NUM_POWERS)))
    return [slice(i, min(i + size, num_scalars)) for i in range(0, num_scalars, size)]


def _shifts(of_q: tuple, of_p: tuple):
    """From the first two moments of both, and their influences: the two shifts, and theirs (delta method)."""
    (first_q, second_q), (by_first_q, by_second_q) = of_q
    (first, second), (by_first, by_second) = of_p
    variance_q, variance = second_q - first_q**2, second - first**2
    variance_q, variance = (np.where(v > 0, v, np.nan) for v in (variance_q, variance))
    by_log_sd_q = (by_second_q - 2 * first_q * by_first_q) / (2 * variance_q)
    by_log_sd = (by_second - 2 * first * by_first) / (2 * variance)
    shift = (first - first_q) / np.sqrt(variance)
    by_shift = (by_first - by_first_q) / np.sqrt(variance) - shift * by_log_sd
    return (shift, by_shift), (0.5 * np.log(variance / variance_q), by_log_sd - by_log_sd_q)


def _moments(draws: _Draws, inverses: list, block: slice):
    """(E f, E f²) of some scalars (2, K), and what each draw adds to their errors (2, S, K): of q and of the target.

    ``inverses``: by draws of the other half.
    """
    f, w = _halves(draws.scalars[:, block]), draws.weights
    f = (f - f.mean(axis=1, keepdims=True)) / f.std(axis=1, keepdims=True)
    directions = draws.directions[:, block]
    moving = np.unique(directions.indices)
    powers = np.stack([f, f * f], axis=1)  # (K, 2, S)
    change = (w - 1) * powers
    own, added = powers.copy(), change.copy()  # less what the controls explain
    s = np.asarray(directions.tocsr()[moving].T @ _halves(draws.z[:, moving]))
    hermite = _hermite(s) if draws.is_normal else []
    for (here, other), inverse in zip(_both_ways(f.shape[1]), inverses, strict=True):
        own[:, :, here] -= _explained(hermite, powers, np.ones_like(w), here, other)
        controls = hermite if inverse is None else [*hermite, *_stein(draws, directions, inverse, s)]
        added[:, :, here] -= _explained(controls, change, w, here, other)
    moments_q = own.mean(axis=2)
    moments = moments_q + added.mean(axis=2)
    by_q = own - moments_q[:, :, None]
    by_change = added - (w * moments[:, :, None] - moments_q[:, :, None])  # a ratio: w has mean one by its own sum
    return (moments_q.T, by_q.transpose(1, 2, 0)), (moments.T, (by_q + by_change).transpose(1, 2, 0))


def _both_ways(num_draws: int) -> tuple[tuple[slice, slice], ...]:
    """(here, other) for each half, in turn."""
    first, last = slice(0, (num_draws + 1) // 2), slice((num_draws + 1) // 2, num_draws)
    return (first, last), (last, first)


def _hermite(s: np.ndarray) -> list[np.ndarray]:
    """Polynomials of mean zero where s is standard normal."""
    square = s * s
    return [s, square - 1, s * (square - 3), square * (square - 6) + 3]


def _stein(draws: _Draws, directions, inverse, s) -> list[np.ndarray]:
    """w (div h + hᵀg) for h = φ(s) C b."""
    field, w = np.asarray(inverse @ directions), draws.weights
    spread = np.asarray(directions.multiply(field).sum(axis=0))[:, None]
    along, power = w * _halves(draws.gradient @ field), w
    found = [along]
    for p in range(1, NUM_POWERS):
        along = s * along
        found.append(along + p * spread * power)
        power = s * power
    return found


def _explained(controls: list, wanted: np.ndarray, w: np.ndarray, here: slice, other: slice) -> np.ndarray | float:
    """What the controls, (K, S) each, explain of ``wanted`` (K, 2, S) ``here``, with coefficients found on ``other``.

    Least squares with two more columns, 1 and w, for the means themselves; a draw of weight w counts 1/(1 + w).
    """
    if not controls:
        return 0.0
    columns = [*(x[:, other] for x in controls), np.ones_like(w[other]), w[other]]
    a = np.stack([np.broadcast_to(x, controls[0][:, other].shape) for x in columns], axis=1)  # (K, M, S)
    counted = a / (1 + w[other])
    square = counted @ a.transpose(0, 2, 1)
    scale = np.sqrt(np.maximum(np.diagonal(square, axis1=1, axis2=2), np.finfo(float).tiny))
    square = square / scale[:, :, None] / scale[:, None, :] + RIDGE * np.eye(a.shape[1])
    right = counted @ wanted[:, :, other].transpose(0, 2, 1) / scale[:, :, None]  # (K, M, 2)
    coefficients = np.linalg.solve(square, right) / scale[:, :, None]
    explained = np.zeros_like(wanted[:, :, here])
    for m, x in enumerate(controls):
        explained += coefficients[:, m, :, None] * x[:, None, here]
    return explained


def _inverse_slope(gradient: np.ndarray, z: np.ndarray) -> Float[np.ndarray, "dim dim"]:
    """C, positive definite: for a Gaussian target its covariance."""
    slope = -slopes(gradient.astype(float), z.astype(float))
    values, Q = np.linalg.eigh(0.5 * (slope + slope.T))
    values = np.abs(values)
    return (Q / np.maximum(values, FLAT * np.median(values))) @ Q.T
