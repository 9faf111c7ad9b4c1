"""Integrals of an observation model over Gaussian outputs, p(y) = ∫ p(y | z) N(z; m, C) dz, for one head each.

``moments(m, C, d, number)`` gives the mean, E[Var(y | z)] and Var(E[y | z]); ``components(m, C, d, y, number)`` a
mixture (Q, M) with log weights that stands for p(y) near y. ``d`` holds what is not in z (the trials of a binomial).

One-dimensional integrals are trapezoidal sums, which converge exponentially (Trefethen & Weideman 2014), after
z = c + a sinh(x): nodes then lie a apart around c, where p(y | z) bends, and as far apart as N(z; m, s²) allows
elsewhere. So s may be a thousand times as wide as the bend, or as narrow. MacKay's formula stands here too.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions import Distribution

from credo.linalg.dense import root
from credo.model.heads import COLUMN_HEADS, Head, column_rows

REACH = 8.5  # sds to either side that the nodes cover: 2e-17 of the mass is outside
NUM_HALVINGS = 50  # of where an outlier's scale may lie
NUM_SCALE_NODES = 64  # of the log scale of a t distribution
NUM_MIXING_NODES = 128  # of the log precision that makes a normal distribution a t
RANK = 1e-12  # of the largest eigenvalue: directions below it are rounding
PI = math.pi


class Link(NamedTuple):
    """``width(number, K)``: how many components ``number`` nodes a dimension give.

    ``column``: the link of each column alone, where outcomes have several.
    """

    moments: Callable
    components: Callable
    width: Callable[[int, int], int]
    column: "Link | None" = None


def sinh_nodes(mean, sd, centre, width, pull, number: int) -> tuple[Array, Array]:
    """(z, log weights), each (number, *shape), of N(z; mean, sd²), dense within ``width`` of ``centre``.

    ``pull``: |∂ log p(y | z) / ∂z| at the mean. The integrand's mode lies at most sd² · pull from the mean, and between
    it and the centre, for a log-concave p(y | z); the nodes reach as far.
    """
    sd = jnp.maximum(sd, 1e-10 * (1.0 + jnp.abs(mean)))  # a node's worth of spread, so that sd = 0 needs no other path
    shift = jnp.minimum(sd**2 * pull, jnp.abs(centre - mean)) * jnp.sign(centre - mean)
    lower = mean - REACH * sd + jnp.minimum(shift, 0.0)
    upper = mean + REACH * sd + jnp.maximum(shift, 0.0)
    start, end = jnp.arcsinh((lower - centre) / width), jnp.arcsinh((upper - centre) / width)
    x = start + (end - start) * jnp.linspace(0.0, 1.0, number).reshape(-1, *(1,) * jnp.ndim(start))
    z = centre + width * jnp.sinh(x)
    log_weights = -0.5 * ((z - mean) / sd) ** 2 + jnp.log(jnp.cosh(x))
    return z, jax.nn.log_softmax(log_weights, axis=0)


def normal_nodes(number: int) -> tuple[np.ndarray, np.ndarray]:
    """(t, log weights), each (number,), of N(0, 1), evenly spaced."""
    t = np.linspace(-REACH, REACH, number) if number > 1 else np.zeros(1)
    weights = np.exp(-0.5 * t**2)
    return t, np.log(weights / weights.sum())


def normal_points(number: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """(points (Q, dim), log weights (Q,)) of N(0, I): a grid in one and two dimensions, 8 · ``number`` Sobol points in
    more."""
    if dim == 1:
        t, log_weights = normal_nodes(number)
        return t[:, None], log_weights
    if dim == 2:
        t, log_weights = normal_nodes(_side(number))
        return np.stack(np.meshgrid(t, t), -1).reshape(-1, 2), np.add.outer(log_weights, log_weights).ravel()
    from scipy.special import ndtri
    from scipy.stats import qmc

    size = num_points(number, dim)
    points = ndtri(qmc.Sobol(dim, rng=0).random(size))  # scrambled (Owen 1998), always alike
    return points, np.full(size, -math.log(size))


def num_points(number: int, dim: int) -> int:
    """How many ``normal_points`` there are."""
    if dim <= 2:
        return number if dim == 1 else _side(number) ** 2
    return 2 ** math.ceil(math.log2(8 * number))


def _side(number: int) -> int:
    return max(2, number // 3)


def _average(log_weights, values) -> Array:
    return jnp.sum(jnp.exp(log_weights) * values, axis=0)


# logistic -----------------------------------------------------------------------------------------------------------


def _logistic_split(mean, covariance, number: int):
    """E σ, E σ(1 − σ) and Var σ of z ~ N(mean, covariance). σ has its poles at ±iπ, hence the width π."""
    m, s = mean[:, 0], jnp.sqrt(covariance[:, 0, 0])
    z, log_weights = sinh_nodes(m, s, jnp.zeros_like(m), PI, 1.0, number)
    p = jax.nn.sigmoid(z)
    expected = _average(log_weights, p)
    return expected, _average(log_weights, p * jax.nn.sigmoid(-z)), _average(log_weights, (p - expected) ** 2)


def _bernoulli_moments(mean, covariance, d, number):
    return _logistic_split(mean, covariance, number)


def _bernoulli_components(mean, covariance, d, y, number):
    m, s = mean[:, 0], jnp.sqrt(covariance[:, 0, 0])
    z, log_weights = sinh_nodes(m, s, jnp.zeros_like(m), PI, 1.0, number)
    return dist.BernoulliLogits(z), log_weights


def _binomial_moments(mean, covariance, d, number):
    expected, within, between = _logistic_split(mean, covariance, number)
    return d.total_count * expected, d.total_count * within, d.total_count**2 * between


def _binomial_components(mean, covariance, d, y, number):
    m, s, n = mean[:, 0], jnp.sqrt(covariance[:, 0, 0]), d.total_count
    p = (jnp.clip(y, 0, n) + 0.5) / (n + 1.0)
    width = 1.5 / jnp.sqrt(n * p * (1.0 - p) + 0.1)
    pull = jnp.abs(y - n * jax.nn.sigmoid(m))
    z, log_weights = sinh_nodes(m, s, jnp.log(p) - jnp.log1p(-p), width, pull, number)
    return dist.BinomialLogits(z, n), log_weights


# log rates: moments of a log-normal variable ------------------------------------------------------------------------


def _log_normal(m, v):
    """Mean and variance of exp(z), z ~ N(m, v)."""
    return jnp.exp(m + 0.5 * v), jnp.expm1(v) * jnp.exp(2.0 * m + v)


def _poisson_moments(mean, covariance, d, number):
    expected, between = _log_normal(mean[:, 0], covariance[:, 0, 0])
    return expected, expected, between


def _poisson_components(mean, covariance, d, y, number):
    m, s = mean[:, 0], jnp.sqrt(covariance[:, 0, 0])
    count = jnp.maximum(y, 0.0) + 0.5
    z, log_weights = sinh_nodes(m, s, jnp.log(count), 1.5 / jnp.sqrt(count), jnp.abs(y - jnp.exp(m)), number)
    return dist.Poisson(jnp.exp(z)), log_weights


def _exponential_moments(mean, covariance, d, number):
    expected, between = _log_normal(-mean[:, 0], covariance[:, 0, 0])
    return expected, jnp.exp(-2.0 * mean[:, 0] + 2.0 * covariance[:, 0, 0]), between


def _exponential_components(mean, covariance, d, y, number):
    m, s = mean[:, 0], jnp.sqrt(covariance[:, 0, 0])
    y = jnp.maximum(y, 1e-300)
    z, log_weights = sinh_nodes(m, s, -jnp.log(y), 1.5, jnp.abs(1.0 - y * jnp.exp(m)), number)
    return dist.Exponential(jnp.exp(z)), log_weights


# location and log scale ---------------------------------------------------------------------------------------------


def _location_scale(mean, covariance, y, number):
    """At the nodes of the log scale (Q, M): the location's mean and variance, the scale, and the log weights (Q, M).

    Nodes reach as far above as y pulls the scale: the integrand of an outlier has its mode t* beyond what the scale's
    own law reaches, where d/dt [−t²/2 + log N(y; location(t), variance + scale(t)²)] = 0.
    """
    sd = jnp.sqrt(covariance[:, 1, 1])
    slope = jnp.where(sd > 0, covariance[:, 0, 1] / jnp.where(sd > 0, sd, 1.0), 0.0)
    variance = jnp.maximum(covariance[:, 0, 0] - slope**2, 0.0)

    def at(t):
        return mean[:, 0] + slope * t, jnp.exp(mean[:, 1] + sd * t)

    def rise(t):
        location, scale = at(t)
        total, away = variance + scale**2, y - location
        return slope * away / total + sd * (scale**2 / total) * (away**2 / total - 1.0) - t

    def halve(_, ends):
        low, high = ends
        middle = 0.5 * (low + high)
        is_below = rise(middle) > 0
        return jnp.where(is_below, middle, low), jnp.where(is_below, high, middle)

    nodes, log_weights = normal_nodes(number)
    t, log_weights = nodes[:, None], log_weights[:, None]
    if y is not None and number > 1:
        farthest = jnp.log1p(jnp.abs(y - mean[:, 0]) / jnp.exp(mean[:, 1]))  # a scale larger than the distance
        high = jnp.where(sd > 0, jnp.abs(slope) + farthest / jnp.where(sd > 0, sd, 1.0), 0.0)
        _, mode = jax.lax.fori_loop(0, NUM_HALVINGS, halve, (jnp.zeros_like(high), high))
        stretch = 1.0 + jnp.where(rise(jnp.zeros_like(high)) > 0, mode, 0.0) / (2.0 * REACH)
        t = stretch * (t + REACH) - REACH
        log_weights = log_weights + jnp.log(stretch) + 0.5 * nodes[:, None] ** 2 - 0.5 * t**2
    location, scale = at(t)
    return location, variance, scale, log_weights


def _square_scale(mean, covariance):
    return jnp.exp(2.0 * mean[:, 1] + 2.0 * covariance[:, 1, 1])


def _normal_moments(mean, covariance, d, number):
    return mean[:, 0], _square_scale(mean, covariance), covariance[:, 0, 0]


def _normal_components(mean, covariance, d, y, number):
    location, variance, scale, log_weights = _location_scale(mean, covariance, y, number)
    return dist.Normal(location, jnp.sqrt(variance + scale**2)), log_weights


def _student_moments(mean, covariance, d, number):
    df = jnp.broadcast_to(d.df, mean[:, 0].shape)
    spread = jnp.where(df > 2, df / jnp.where(df > 2, df - 2.0, 1.0), jnp.inf)
    return jnp.where(df > 1, mean[:, 0], jnp.nan), spread * _square_scale(mean, covariance), covariance[:, 0, 0]


def _student_components(mean, covariance, d, y, number):
    """t is a normal with its precision multiplied by w ~ Gamma(ν/2, ν/2), so that the location has a closed form.

    The other integral is over x = log w, of density ∝ exp(−(ν/2) (e^x − x − 1)).
    """
    location, variance, scale, log_weights = _location_scale(mean, covariance, y, min(number, NUM_SCALE_NODES))
    half_df = 0.5 * jnp.broadcast_to(d.df, mean[:, 0].shape)
    c = 25.0 / half_df  # ends where the exponent is −25 or below, and as far as y's own distance pulls w down
    distance = half_df / (half_df + 0.5 * ((y - location) / scale) ** 2)
    start = jnp.minimum(-c - jnp.sqrt(2.0 * c), jnp.log(distance) - jnp.sqrt(2.0 * c))
    end = jnp.minimum(jnp.sqrt(2.0 * c), jnp.log1p(c) + 1.0)
    x = start + (end - start) * jnp.linspace(0.0, 1.0, NUM_MIXING_NODES)[:, None, None]
    log_mixing = jax.nn.log_softmax(half_df * (x - jnp.exp(x)), axis=0)
    sd = jnp.sqrt(variance + scale**2 * jnp.exp(-x))
    flat = (-1, mean.shape[0])
    log_weights = jnp.broadcast_to(log_mixing + log_weights, sd.shape).reshape(flat)
    return dist.Normal(jnp.broadcast_to(location, sd.shape).reshape(flat), sd.reshape(flat)), log_weights


# classes ------------------------------------------------------------------------------------------------------------


def _class_logits(mean, covariance, number):
    """Logits (Q, M, K) at the nodes. The softmax knows only z_k − z_K, so K − 1 dimensions are integrated over."""
    num_contrasts = mean.shape[1] - 1
    m = mean[:, :-1] - mean[:, -1:]
    C = covariance[:, :-1, :-1] - covariance[:, :-1, -1:] - covariance[:, -1:, :-1] + covariance[:, -1:, -1:]
    if num_contrasts == 1:
        z, log_weights = sinh_nodes(m[:, 0], jnp.sqrt(jnp.maximum(C[:, 0, 0], 0.0)), jnp.zeros(len(m)), PI, 1.0, number)
        z = z[..., None]
    else:
        points, log_weights = normal_points(number, num_contrasts)
        log_weights = log_weights[:, None]
        z = m + jnp.einsum("mij,qj->qmi", root(C), points)
    return jnp.concatenate([z, jnp.zeros_like(z[..., :1])], axis=-1), log_weights


def _categorical_moments(mean, covariance, d, number):
    z, log_weights = _class_logits(mean, covariance, number)
    p = jax.nn.softmax(z)
    log_weights = log_weights[..., None]
    expected = _average(log_weights, p)
    return expected, _average(log_weights, p * (1.0 - p)), _average(log_weights, (p - expected) ** 2)


def _categorical_components(mean, covariance, d, y, number):
    z, log_weights = _class_logits(mean, covariance, number)
    return dist.CategoricalLogits(z), log_weights


def _line(number: int, num_outputs: int) -> int:
    return number


def _student_width(number: int, num_outputs: int) -> int:
    return min(number, NUM_SCALE_NODES) * NUM_MIXING_NODES


def _class_width(number: int, num_outputs: int) -> int:
    return number if num_outputs <= 2 else num_points(number, num_outputs - 1)


LINKS: dict[str, Link] = {
    "bernoulli": Link(_bernoulli_moments, _bernoulli_components, _line),
    "binomial": Link(_binomial_moments, _binomial_components, _line),
    "poisson": Link(_poisson_moments, _poisson_components, _line),
    "exponential": Link(_exponential_moments, _exponential_components, _line),
    "normal": Link(_normal_moments, _normal_components, _line),
    "student_t": Link(_student_moments, _student_components, _student_width),
    "categorical": Link(_categorical_moments, _categorical_components, _class_width),
}


# several columns, independent given z -------------------------------------------------------------------------------


def by_column(mean, covariance, d: Distribution) -> tuple[Array, Array, Distribution]:
    """Each column of each row as a row of its own: (M · C, k), (M · C, k, k), and what is not in z likewise."""
    z, rows = column_rows(mean, d)
    num_columns, size = d.shape()[-1], z.shape[-1]
    blocks = jnp.reshape(covariance, (-1, num_columns, size, num_columns, size))
    blocks = jnp.moveaxis(jnp.diagonal(blocks, axis1=1, axis2=3), -1, 1)
    return z, jnp.reshape(blocks, (-1, size, size)), rows


def _columns_moments(link: Link, mean, covariance, d, number):
    return tuple(jnp.reshape(each, d.shape()) for each in link.moments(*by_column(mean, covariance, d), number))


def _normal_columns(mean, covariance, d, y, number):
    """Locations in closed form given the log scales, which stand at points of their own normal distribution."""
    m, a, C_ma, C_aa = mean[:, ::2], mean[:, 1::2], covariance[:, ::2, 1::2], covariance[:, 1::2, 1::2]
    points, log_weights = _column_points(number, m.shape[1])
    values, vectors = jnp.linalg.eigh(C_aa)
    sds = jnp.sqrt(jnp.where(values > RANK * values[:, -1:], values, jnp.inf))  # ∞: no direction of the scales
    slopes = C_ma @ vectors / sds[:, None, :]
    location = m + jnp.einsum("mij,qj->qmi", slopes, points)
    scale = jnp.exp(a + jnp.einsum("mij,qj->qmi", C_aa @ vectors / sds[:, None, :], points))
    left = covariance[:, ::2, ::2] - slopes @ jnp.swapaxes(slopes, 1, 2)
    noise = jnp.square(scale)[..., None] * jnp.eye(m.shape[1])
    return dist.MultivariateNormal(location, left + noise), log_weights[:, None]


def _drawn_columns(head: Head, mean, covariance, d, y, number):
    points, log_weights = _column_points(number, mean.shape[1])
    z = mean + jnp.einsum("mij,qj->qmi", root(covariance), points)
    found: Any = head.join(z, d)
    return found if d.event_shape else found.to_event(1), log_weights[:, None]


def _column_points(number: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    return (np.zeros((1, dim)), np.zeros(1)) if number == 1 else normal_points(number, dim)


def _columns_link(head: Head) -> Link:
    assert head.column is not None
    link, is_normal = LINKS[head.column], head.column == "normal"

    def width(number: int, num_outputs: int) -> int:
        return 1 if number == 1 else _class_width(number, (num_outputs // 2 if is_normal else num_outputs) + 1)

    components = _normal_columns if is_normal else functools.partial(_drawn_columns, head)
    return Link(functools.partial(_columns_moments, link), components, width, link)


LINKS |= {head.name: _columns_link(head) for head in COLUMN_HEADS.values()}


# MacKay -------------------------------------------------------------------------------------------------------------


def mackay(mean: Float[Array, "M K"], covariance: Float[Array, "M K *K"], head: str) -> Distribution:
    """σ(κ m) with κ = (1 + π s² / 8)^−½ (MacKay 1992, equation 10); for classes softmax(κ_k m_k) (Gibbs 1998).

    ``covariance``: (M, K, K), or the variances (M, K) alone.
    """
    variance = jnp.diagonal(covariance, axis1=1, axis2=2) if covariance.ndim == 3 else covariance
    scaled = mean / jnp.sqrt(1.0 + PI / 8.0 * variance)
    return dist.BernoulliLogits(scaled[:, 0]) if head == "bernoulli" else dist.CategoricalLogits(scaled)
