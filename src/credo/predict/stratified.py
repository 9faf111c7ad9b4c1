"""Draws of a posterior that are spread evenly in every coordinate (Latin hypercubes: McKay, Beckman & Conover 1979).

    v_sj = (π_j(s) + t_sj) / n,  π_j a random permutation of 0 … n−1 for each coordinate j, t_sj uniform

Each v_s is uniform on the cube, so that each draw, a quantile function of it, has the law of the posterior; and each
n-th of a coordinate's mass holds one draw. The mean of a sum of functions of one coordinate each is then known to
O(n^−3/2), and no mean is known worse than to √(n/(n−1)) of the error of independent draws (Owen 1997).
"""

import jax
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import biject_to
from scipy.special import betaincinv, gammaincinv, ndtri

from credo.compiling import sound
from credo.posterior.kinds import Gaussian, Kind
from credo.posterior.product import Product

MAX_NUMBERS = 2**23  # 64 MB for each array of the work; independent draws above
AT_ONCE = 2**19  # numbers, of which several arrays are held
MAX_QUANTILES = 2**18  # of distributions whose quantiles cost microseconds each: at most a second
TINY, ALMOST_ONE = np.finfo(np.float64).tiny, 1.0 - 2.0**-53


def stratified_positions(kind: Kind, generator: np.random.Generator, number: int, dim: int) -> np.ndarray | None:
    """Positions (number, dim) in float64; None for kinds without quantile functions, and where they would be many."""
    if number * dim > MAX_NUMBERS:
        return None
    if isinstance(kind, Gaussian):
        return _moved(kind, _white(generator, number, dim))
    if isinstance(kind, Product) and number * dim <= MAX_QUANTILES:
        values = {name: _draw(d, generator, number) for name, d in kind.distributions.items()}
        if all(value is not None for value in values.values()):
            return np.asarray(_from_values(kind, values))
    return None


def hypercube(generator: np.random.Generator, number: int, dim: int) -> np.ndarray:
    """v (number, dim), inside (0, 1)."""
    strata = generator.permuted(np.tile(np.arange(number), (dim, 1)), axis=1).T
    return np.clip((strata + generator.uniform(size=(number, dim))) / number, 2.0**-60, ALMOST_ONE)


def _white(generator: np.random.Generator, number: int, dim: int) -> np.ndarray:
    """Standard normal numbers from hypercubes, some coordinates at a time."""
    white, columns = np.empty((number, dim)), max(1, AT_ONCE // number)
    for first in range(0, dim, columns):
        part = white[:, first : first + columns]
        part[:] = ndtri(hypercube(generator, number, part.shape[1]))
    return white


def _moved(kind: Gaussian, white: np.ndarray) -> np.ndarray:
    """Positions in the place of white noise, some draws at a time."""
    number, dim = white.shape
    at_once = -(-number // -(-number * dim // AT_ONCE))
    for first in range(0, number, at_once):
        part = white[first : first + at_once]
        part[:] = np.asarray(_from_white(kind, np.resize(part, (at_once, dim))))[: len(part)]
    return white


@sound
def _from_white(kind: Gaussian, white):
    return jax.vmap(lambda z: kind.mean + kind.scale.matvec(z))(white)


@sound
def _from_values(kind: Product, values):
    def one(values):
        return kind.structure.ravel(
            {name: biject_to(d.support)._inverse(values[name]) for name, d in kind.distributions.items()}
        )

    return jax.vmap(one)(values)


def _draw(d, generator: np.random.Generator, number: int) -> np.ndarray | None:
    shape = d.batch_shape + d.event_shape
    while isinstance(d, dist.Independent | dist.ExpandedDistribution):
        d = d.base_dist
    quantile = QUANTILES.get(type(d))
    if quantile is None:
        return None
    levels = hypercube(generator, number, int(np.prod(shape))).reshape(number, *shape)
    return np.asarray(quantile(d, levels), np.float64)


def _shares(d, v):
    """Stick by stick (Sethuraman 1994): share k of what is left after the k−1 before it is Beta(α_k, Σ_{j>k} α_j)."""
    own = np.asarray(d.concentration, np.float64)
    after = np.cumsum(own[..., ::-1], axis=-1)[..., ::-1] - own
    taken = betaincinv(own[..., :-1], after[..., :-1], v[..., :-1])
    left = np.cumprod(1.0 - taken, axis=-1)
    ends = np.ones((*left.shape[:-1], 1))
    return np.maximum(np.concatenate([taken, ends], axis=-1) * np.concatenate([ends, left], axis=-1), TINY)


QUANTILES = {  # in SciPy: exact in the tails, and nothing to compile
    dist.Normal: lambda d, v: d.loc + d.scale * ndtri(v),
    dist.Beta: lambda d, v: np.clip(betaincinv(d.concentration1, d.concentration0, v), TINY, ALMOST_ONE),
    dist.Gamma: lambda d, v: np.maximum(gammaincinv(d.concentration, v) / d.rate, TINY),
    dist.Dirichlet: _shares,
    dist.MultivariateNormal: lambda d, v: d.loc + np.einsum("...ij,...j->...i", d.scale_tril, ndtri(v)),
    dist.InverseGamma: lambda d, v: d.rate / np.maximum(gammaincinv(d.concentration, v), TINY),
}
