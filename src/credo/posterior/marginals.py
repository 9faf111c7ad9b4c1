"""Mean, sd and quantiles of a posterior in the user's space: exact where a formula or a quadrature is, else by draws.

A parameter whose transform is elementwise has, under a Gaussian, a marginal that is a function of one normal
variable: its moments are a Gauss-Hermite sum and its quantiles the function of the normal's quantiles. Where that
variable spreads over many units, a logistic function of it is a step of width 1/s, s its sd, which nodes at a spacing
of 1/s see: the trapezoid rule errs by exp(−2π²/(s h)), the poles being π/s away. And exp of it has named moments.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from scipy.special import ndtr, ndtri

from credo.batches import in_batches
from credo.compiling import brief, sound
from credo.linalg.diagonal import Diagonal
from credo.model.missing import impute
from credo.model.target import Target
from credo.posterior.factors import LogGamma, Sticks
from credo.posterior.kinds import Draws, Gaussian, Independent, Kind, Mixture, Point
from credo.posterior.masked import Masked
from credo.posterior.named_laws import named_laws, parts_of, within
from credo.posterior.product import Product, moments_of, quantiles_of
from credo.storage import by_columns, gather, is_stored, release, row_blocks, stored

NUM_NODES = 64  # of the quadrature: exact for polynomials up to degree 127
WIDE = 2.0  # sds of u up to here: of a logistic function of u the sum then errs by 1e-9
NODES_AN_SD = 20  # of u, in ±8.5 sds and evenly, above: s h = 0.85, and an error of 1e-9
MOST_NODES = 2**15
NUM_HALVINGS = 60  # of an interval: to rounding
NUM_DRAWS = 8_192  # where no formula is: the mean's Monte Carlo error is then 1.1 % of an sd

AT_ONCE = 10_000_000  # numbers: 80 MB in float64

Report = dict[str, Any]  # leaf or derived name -> array


@brief
def report_positions(target: Target, positions):
    """Parameters and derived quantities at positions (n, dim): arrays (n, *shape)."""
    return _each(lambda u: target.model.report(target.constrain(u)), positions)


def report_stored(report: Callable[[Any, Any], Report], positions: np.ndarray, keys) -> Report:
    """``report(positions (n, dim), keys (n,))`` of all draws (chain, draw, dim): arrays on disk, as the draws are."""
    chains, draws, dim = positions.shape
    answer: Report = {}
    for chain in range(chains):
        for rows in row_blocks(draws, dim):
            own = None if keys is None else keys[chain * draws : (chain + 1) * draws][rows]
            found = report(np.ascontiguousarray(positions[chain, rows]), own)
            for name, values in found.items():
                if name not in answer:
                    answer[name] = stored((chains, draws, *values.shape[1:]), values.dtype)
                answer[name][chain, rows] = values
            release(positions, *answer.values())
    return {name: values.reshape(-1, *values.shape[2:]) for name, values in answer.items()}


@sound
def impute_positions(target: Target, positions, keys):
    """The missing outcomes drawn at positions (n, dim), by keys (n,) of their own: (n, K, …)."""
    return in_batches(lambda pair: impute(target, *pair), (positions, keys), 256)


def sample_positions(kind: Kind, key, n: int):
    """``n`` draws (n, dim) of a kind."""
    if isinstance(kind, Draws) and is_stored(kind.positions):  # the same rows, without all the others in memory
        chains, draws, dim = kind.positions.shape
        rows = Draws(np.arange(chains * draws).reshape(chains, draws, 1), kind.log_weights)
        return gather(np.asarray(kind.positions).reshape(-1, dim), np.asarray(_sample_positions(rows, key, n))[:, 0])
    return _sample_positions(kind, key, n)


@functools.partial(sound, static_argnames=("n",))
def _sample_positions(kind: Kind, key, n: int):
    return _each(kind.sample_u, jax.random.split(key, n), kind)


def _each(function: Callable, rows, kind: Kind | None = None):
    """``function`` of each row: at once where that is small (half the program to compile), else in batches."""
    size = rows.size if kind is None else rows.shape[0] * max(leaf.size for leaf in jax.tree.leaves(kind))
    return in_batches(function, rows, rows.shape[0] if size <= AT_ONCE else min(256, AT_ONCE * rows.shape[0] // size))


def moments(kind: Kind, target: Target, drawn: Callable[[], Report]) -> tuple[Report, Report]:
    """(mean, sd) by name. ``drawn()`` gives draws (n, *shape) for what has no formula."""
    exact = _exact_moments(kind, target)
    if _covers(exact, target):
        return {n: m for n, (m, _) in exact.items()}, {n: s for n, (_, s) in exact.items()}
    rest = {n: v for n, v in drawn().items() if n not in exact}
    weights = draw_weights(kind)
    both = {n: by_columns(lambda v: np.stack(_mean_and_sd(v, weights)), v) for n, v in rest.items()}
    mean, sd = ({n: v[i] for n, v in both.items()} for i in (0, 1))
    return {**mean, **{n: m for n, (m, _) in exact.items()}}, {**sd, **{n: s for n, (_, s) in exact.items()}}


def quantiles(kind: Kind, target: Target, drawn: Callable[[], Report], p: np.ndarray) -> Report:
    """Quantiles by name: arrays (*p.shape, *shape)."""
    exact = _exact_quantiles(kind, target, p)
    if _covers(exact, target):
        return exact
    weights = draw_weights(kind)
    rest = {n: v for n, v in drawn().items() if n not in exact}
    return {**{n: by_columns(lambda v: weighted_quantile(v, p, weights), v) for n, v in rest.items()}, **exact}


def draw_weights(kind: Kind) -> np.ndarray | None:
    """The normalised weights of stored draws, flat; None where draws count alike."""
    if isinstance(kind, Draws) and kind.log_weights is not None:
        log_weights = np.asarray(kind.log_weights).ravel()
        weights = np.exp(log_weights - log_weights.max())
        return weights / weights.sum()
    return None


def student_variance(degrees: int) -> float:
    """Variance of Student's t with so many degrees of freedom: what makes a square error known by few groups honest.

    For normal groups E[(estimate − truth)² / s²] = ν/(ν−2), s² the plain square error: by s² ν/(ν−2) the mean square of
    standardised errors is one, and ± 1.96 errors cover 95 % (94.7 % for ν = 7). One for ν < 3, where there is no such
    variance: intervals must then take t itself.
    """
    return degrees / (degrees - 2) if degrees > 2 else 1.0


def mcse_of_weighted_mean(values, weights, num_groups: int) -> np.ndarray:
    """Monte Carlo standard error of Σ w f, (*shape), of values f (n, *shape) with weights w that sum to one.

    Draws fall into ``num_groups`` independent groups of one size, one after the other: n of one draw, or fewer. The
    square is G/(G−1) Σ_g (Σ_{s∈g} w_s (f_s − Σ w f))², the delta method for a ratio of sums (Cochran 1977, chapter 6),
    times ``student_variance(G − 1)``.
    """
    if num_groups < 2:
        return np.full(np.shape(values)[1:], np.nan)
    values = _counted(values, weights)
    weights = weights.reshape(-1, *(1,) * (np.ndim(values) - 1))
    deviations = weights * (values - np.sum(weights * values, axis=0))
    sums = deviations.reshape(num_groups, -1, *np.shape(values)[1:]).sum(axis=1)
    factor = num_groups / (num_groups - 1) * student_variance(num_groups - 1)
    return np.sqrt(factor * np.sum(sums**2, axis=0))


def weighted_quantile(values, p, weights=None) -> np.ndarray:
    """Quantiles over the leading axis, NaN where a value is; with ``weights``, the inverse of the weighted distribution
    function."""
    if weights is None:
        return np.quantile(values, p, axis=0)
    values = _counted(values, weights)
    order = np.argsort(values, axis=0)
    cumulative = np.cumsum(weights[order], axis=0) - 0.5 * weights[order]
    ordered = np.take_along_axis(values, order, axis=0)
    flat = [
        np.interp(p, c, v)
        for c, v in zip(cumulative.reshape(len(values), -1).T, ordered.reshape(len(values), -1).T, strict=True)
    ]
    found = np.moveaxis(np.asarray(flat), 0, -1).reshape((*np.shape(p), *np.shape(values)[1:]))
    return np.where(np.isnan(ordered[-1]), np.nan, found)  # NaN sorts last


def _covers(exact: Report, target: Target) -> bool:
    return {*(leaf.name for leaf in target.structure.leaves), *target.derived_names} <= set(exact)


def _counted(values, weights) -> np.ndarray:
    """Values (n, *shape) with those of no weight where the heaviest is: what is no number times 0 would be none."""
    values = np.asarray(values)
    if weights is None or np.all(weights > 0):
        return values
    return np.where(weights.reshape(-1, *(1,) * (values.ndim - 1)) > 0, values, values[np.argmax(weights)])


def _mean_and_sd(values, weights):
    values = _counted(values, weights)
    mean = np.average(values, axis=0, weights=weights)
    with np.errstate(over="ignore"):  # of draws that ran away the sd is infinite
        return mean, np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weights))


def _exact_moments(kind: Kind, target: Target) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    if isinstance(kind, Point):
        at = {n: np.asarray(v)[0] for n, v in report_positions(target, kind.position[None]).items()}
        return {n: (v, np.zeros_like(v)) for n, v in at.items()}
    if isinstance(kind, Masked):  # masked coordinates are weights: their own values in the user's space
        at, sd = report_positions(target, kind.position[None]), target.structure.unravel(kind.sd())
        return {leaf.name: (np.asarray(at[leaf.name])[0], sd[leaf.name]) for leaf in target.structure.leaves}
    if isinstance(kind, Product):
        return moments_of(kind.distributions)
    if isinstance(kind, Gaussian):
        sds = _sd_of(kind)
        centre, sd = (target.structure.unravel(np.asarray(each)) for each in (kind.mean, sds))
        named = {n: (np.asarray(centre[n], float), np.asarray(sd[n], float)) for n in _transformed(target)}
        widest = max((np.max(s, initial=0.0) for _, s in named.values()), default=0.0)
        nodes, weights = _nodes(widest, target.dim)
        found = {}
        with np.errstate(over="ignore", invalid="ignore"):  # exp(u) overflows at nodes that hold nothing
            for n, v in _along_sd(kind, target, sds, nodes).items():
                mean = np.tensordot(weights, v, axes=1)
                found[n] = mean, np.sqrt(np.tensordot(weights, (v - mean) ** 2, axes=1))
            if widest > WIDE:
                found |= _log_normal_moments(target, named)
        return found | {n: (centre[n], sd[n]) for n in _untransformed(target)}
    if isinstance(kind, Mixture):
        return _mixed_moments(kind, [_exact_moments(component, target) for component in kind.components])
    if isinstance(kind, Independent | LogGamma | Sticks):
        normal, names = _normal_part(kind, target)
        found = _exact_moments(normal, target) if names else {}
        return {n: v for n, v in found.items() if n in names} | moments_of(named_laws(kind, target.structure))
    return {}


def _nodes(widest: float, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Of a quadrature over z ~ N(0, 1) of functions of z times an sd, the largest of ``dim`` of them the ``widest``."""
    if widest > WIDE:
        doubled = 2.0 ** np.ceil(np.log2(NODES_AN_SD * widest))  # few sizes, each compiled once
        nodes = np.linspace(-8.5, 8.5, int(min(doubled, MOST_NODES, max(NUM_NODES, AT_ONCE // dim))))
        weights = np.exp(-0.5 * nodes**2)
    else:
        nodes, weights = np.polynomial.hermite_e.hermegauss(NUM_NODES)
    return nodes, weights / weights.sum()


def _log_normal_moments(target: Target, named: dict[str, tuple[np.ndarray, np.ndarray]]):
    """Of the parameters a + b exp(u): mean a + b exp(m + s²/2), sd |b| exp(m + s²/2) √(exp(s²) − 1), from (m, s)."""
    found, unit = {}, np.ones(target.dim)
    for n, values in _moved(target, 0 * unit, unit, np.array([-1e3, 10.0, 20.0]), tuple(sorted(named))).items():
        a, middle, high = np.asarray(values)
        m, s = named[n]
        b = (high - a) * np.exp(-20.0)
        if np.allclose(middle - a, b * np.exp(10.0), rtol=1e-5, atol=0.0):
            size = b * np.exp(m + 0.5 * s**2)
            found[n] = a + size, np.abs(size) * np.sqrt(np.expm1(s**2))
    return found


def _normal_part(kind: Kind, target: Target) -> tuple[Gaussian, set[str]]:
    """A Gaussian with the marginals of those parts that are Gaussian, and of which parameters they are."""
    mean, sd, names = np.zeros(target.dim), np.ones(target.dim), set()
    for part, spans in parts_of(kind, target.structure):
        if isinstance(part, Gaussian):
            own = np.concatenate([np.arange(first, end) for first, end in spans])
            mean[own], sd[own] = np.asarray(part.mean), _sd_of(part)
            names |= {leaf.name for leaf, _ in within(target.structure, spans)}
    return Gaussian(mean, Diagonal(sd)), names


def _mixed_moments(kind: Mixture, each: list[dict[str, tuple[np.ndarray, np.ndarray]]]):
    """Those that are known of every component, by the law of total variance."""
    weights = np.exp(np.asarray(kind.log_weights, np.float64) - np.max(kind.log_weights))
    weights, found = weights / weights.sum(), {}
    for n in (n for n in each[0] if all(n in one for one in each)):
        means, sds = (np.stack([one[n][i] for one in each]) for i in (0, 1))
        mean = np.tensordot(weights, means, axes=1)
        found[n] = mean, np.sqrt(np.tensordot(weights, sds**2 + (means - mean) ** 2, axes=1))
    return found


def _exact_quantiles(kind: Kind, target: Target, p: np.ndarray) -> Report:
    if isinstance(kind, Point):
        at = {n: np.asarray(v)[0] for n, v in report_positions(target, kind.position[None]).items()}
        return {n: np.broadcast_to(v, (*p.shape, *v.shape)).copy() for n, v in at.items()}
    if isinstance(kind, Gaussian):
        z, sds = ndtri(np.asarray(p, np.float64).ravel()), _sd_of(kind)
        # an elementwise bijection is monotone: ascending order is right whether it rises or falls
        values = _along_sd(kind, target, sds, np.concatenate([z, -z, [-1.0, 1.0]]))
        found = {
            n: np.where(v[-1] >= v[-2], v[: p.size], v[p.size : 2 * p.size]).reshape(p.shape + v.shape[1:])
            for n, v in values.items()
        }
        centre, sd = (target.structure.unravel(np.asarray(each)) for each in (kind.mean, sds))
        return found | {n: centre[n] + np.multiply.outer(z.reshape(p.shape), sd[n]) for n in _untransformed(target)}
    if isinstance(kind, Mixture) and all(isinstance(component, Gaussian) for component in kind.components):
        return _mixed_quantiles(kind, target, p)
    if isinstance(kind, Product):
        return quantiles_of(kind.distributions, p)
    if isinstance(kind, Independent | LogGamma | Sticks):
        normal, names = _normal_part(kind, target)
        found = _exact_quantiles(normal, target, p) if names else {}
        return {n: v for n, v in found.items() if n in names} | quantiles_of(named_laws(kind, target.structure), p)
    return {}


def _mixed_quantiles(kind: Mixture, target: Target, p: np.ndarray) -> Report:
    """Of a mixture of Gaussians, at which its distribution function, Σ w_k Φ((u − m_k) / s_k), is p."""
    parts = [component for component in kind.components if isinstance(component, Gaussian)]
    means, sds = np.stack([np.asarray(part.mean) for part in parts]), np.stack([_sd_of(part) for part in parts])
    weights = np.exp(np.asarray(kind.log_weights, np.float64) - np.max(kind.log_weights))
    levels = np.asarray(p, np.float64).ravel()
    ends = [_mixed_quantile(means, sds, weights / weights.sum(), level) for level in [*levels, *(1 - levels)]]
    names = _transformed(target)
    ordered = np.stack([*ends, *(np.mean(means, axis=0) + z for z in (-1.0, 1.0))])
    found = {}
    for n, v in (_reported(target, ordered, names) if names else {}).items():
        v = np.asarray(v)
        rising = np.where(v[-1] >= v[-2], v[: p.size], v[p.size : 2 * p.size])
        found[n] = rising.reshape(p.shape + v.shape[1:])
    at = [target.structure.unravel(end) for end in ends[: p.size]]
    for n in _untransformed(target):
        own = np.array([each[n] for each in at])
        found[n] = own.reshape(p.shape + own.shape[1:])
    return found


def _mixed_quantile(means, sds, weights, level: float) -> np.ndarray:
    """(dim,), between the least and the largest quantile of a component, by halving."""
    each = means + ndtri(level) * sds
    lower, upper = each.min(axis=0), each.max(axis=0)
    if not 0 < level < 1:
        return lower
    for _ in range(NUM_HALVINGS):
        middle = 0.5 * (lower + upper)
        is_below = weights @ ndtr((middle - means) / sds) < level
        lower, upper = np.where(is_below, middle, lower), np.where(is_below, upper, middle)
    return 0.5 * (lower + upper)


def _sd_of(kind: Gaussian) -> np.ndarray:
    return np.sqrt(np.asarray(kind.scale.diagonal()))


def _untransformed(target: Target) -> list[str]:
    """Parameters that are their own coordinates."""
    leaves = target.structure.leaves
    return [leaf.name for leaf in leaves if leaf.is_elementwise and leaf.support == "real"]


def _transformed(target: Target) -> tuple[str, ...]:
    """The other elementwise parameters."""
    own = _untransformed(target)
    return tuple(sorted(leaf.name for leaf in target.structure.leaves if leaf.is_elementwise and leaf.name not in own))


def _along_sd(kind: Gaussian, target: Target, sd: np.ndarray, z: np.ndarray) -> Report:
    """The other elementwise parameters at mean + z·sd, all coordinates moved at once: each depends on its own only."""
    names = _transformed(target)
    found = _moved(target, kind.mean, sd, z, names) if names else {}
    return {n: np.asarray(v) for n, v in found.items()}


@functools.partial(sound, static_argnames="names")
def _moved(target: Target, mean, sd, z, names: tuple[str, ...]) -> Report:
    def at(z):
        return _at(target, mean + z * sd, names)

    if z.size * mean.size <= AT_ONCE:
        return jax.vmap(at)(z)
    return jax.lax.map(at, z)  # the others are as many numbers as there are weights


@functools.partial(sound, static_argnames="names")
def _reported(target: Target, positions, names: tuple[str, ...]) -> Report:
    """Parameters at positions (n, dim), one after the other."""
    return jax.lax.map(lambda position: _at(target, position, names), positions)


def _at(target: Target, position, names: tuple[str, ...]) -> Report:
    values = target.model.report(target.constrain(position))
    return {n: values[n] for n in names}
