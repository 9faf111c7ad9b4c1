"""What a likelihood's distribution says about outcomes: moments, distribution function, log probability of a datum.

A likelihood returns one distribution, or a dict of them by name of the outcome; ``over`` applies a function to each.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax
from jax.core import Tracer
from jax.scipy.special import erfc
from numpyro.distributions import Distribution, constraints
from numpyro.distributions.discrete import ZeroInflatedProbs
from numpyro.distributions.transforms import AffineTransform, ComposeTransform

from credo.model import mended
from credo.model.distributions import CENSORED, bare, contains, is_moved, unwrapped
from credo.predict.incomplete import beta_share, gamma_shares

FEW_COUNTS = 32

Outcomes = Distribution | dict[str, Distribution]


def over(function: Callable, first, *rest):
    """``function(first, *rest)``, or the dict of its values where the outcomes are a dict."""
    if isinstance(first, Mapping):
        return {name: function(first[name], *(tree[name] for tree in rest)) for name in first}
    return function(first, *rest)


def num_classes(d: Distribution) -> int | None:
    """The number of classes of a categorical outcome; None for any other."""
    inner: Any = unwrapped(d)
    if isinstance(inner, dist.CategoricalLogits | dist.CategoricalProbs):
        return np.shape(getattr(inner, "logits" if isinstance(inner, dist.CategoricalLogits) else "probs"))[-1]
    return None


def moments(d: Any) -> tuple[jax.Array, jax.Array]:
    """Mean and variance of each outcome (M, …); of the one-hot vector (M, …, K) for a categorical one.

    NotImplementedError, as numpyro raises it, where none is known.
    """
    shape = d.batch_shape + d.event_shape
    if num_classes(d) is None:
        mean, variance = _moments_behind(d, shape) if isinstance(unwrapped(d), CENSORED) else _moments(d)
        return jnp.broadcast_to(mean, shape), jnp.broadcast_to(variance, shape)
    inner: Any = unwrapped(d)
    probs = jnp.broadcast_to(inner.probs, (*shape, inner.probs.shape[-1]))
    return probs, probs * (1.0 - probs)


def _moments(d: Any) -> tuple[Any, Any]:
    d = mended.mended(d)
    return d.mean, d.variance


def _moments_behind(d: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Those of the law of what is foretold: censoring is of the data alone. None of an interval, whose outcomes have
    two columns, or where one law stands for all rows."""
    while isinstance(unwrapped(d), CENSORED):
        d = d.base_dist
    try:
        known = _moments(d)
    except ValueError as error:
        raise NotImplementedError from error
    if {np.shape(each) for each in known} != {shape}:
        raise NotImplementedError
    return known


def log_prob(d: Any, y) -> jax.Array:
    """One log probability a datum (M,), −∞ outside the support; trailing batch dimensions fold into the datum."""
    terms = mended.log_prob(d, y)
    # a masked datum counts nothing, whatever stands in its place; of an interval numpyro's support is that of one end
    if not isinstance(d, dist.MaskedDistribution | dist.IntervalCensoredDistribution):
        terms = jnp.where(contains(d, y), terms, -jnp.inf)
    return jnp.reshape(terms, (terms.shape[0] if terms.ndim else 1, -1)).sum(axis=-1)


def log_prob_of_all(d: Any, y) -> jax.Array:
    """The same of several outcomes (dicts), which add up row by row; where their numbers differ they are one datum."""
    if not isinstance(d, Mapping):
        return log_prob(d, y)
    parts = [log_prob(d[name], y[name]) for name in d]
    is_aligned = len({part.shape for part in parts}) == 1
    return jnp.stack(parts if is_aligned else [jnp.sum(part, keepdims=True) for part in parts]).sum(axis=0)


def cdf(d: Any, y) -> jax.Array:
    """Pr(Y ≤ y) for each scalar outcome, right outside the support too; NotImplementedError where none is known."""
    if isinstance(d, dist.Independent):  # its events are marginals that the base knows
        return cdf(d.base_dist, y)
    if d.event_shape:
        raise NotImplementedError
    lower, upper = (None, None) if is_moved(d) else _bounds(d.support)
    inside = y if lower is None else jnp.maximum(y, lower)
    inside = inside if upper is None else jnp.minimum(inside, upper)
    value = jnp.where(jnp.isinf(y), jnp.greater(y, 0), _cdf_inside(d, inside))
    value = value if lower is None else jnp.where(y < lower, 0.0, value)
    return value if upper is None else jnp.where(y >= upper, 1.0, value)


def _bounds(support: Any) -> tuple[Any, Any]:
    return getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)


def _cdf_inside(d: Any, y) -> jax.Array:
    for family, function in _CDF.items():
        if isinstance(d, family):
            return function(d, y)
    is_transformed = getattr(type(d), "cdf", None) is dist.TransformedDistribution.cdf
    return _transformed(d, y) if is_transformed else d.cdf(y)


def _transformed(d, y):
    """Back through monotone transforms to the law within, which is asked outside of its support too."""
    is_increasing: Any = True
    for transform in reversed(_one_by_one(d.transforms)):
        is_affine = AffineTransform in (type(transform), type(transform.inv))  # onto all numbers, whatever it is told
        lower, upper = (None, None) if is_affine else _bounds(transform.codomain)
        y = y if lower is None else jnp.maximum(y, lower)
        y = transform.inv(y if upper is None else jnp.minimum(y, upper))
        is_increasing = jnp.equal(is_increasing, transform.sign > 0)
    below = cdf(d.base_dist, y)
    return jnp.where(is_increasing, below, 1.0 - below)


def _levy(d, y):
    away = y - d.loc
    return jnp.where(away > 0, erfc(jnp.sqrt(0.5 * d.scale / jnp.where(away > 0, away, 1.0))), 0.0)


def _one_by_one(transforms) -> list:
    parts = (_one_by_one(each.parts) if isinstance(each, ComposeTransform) else [each] for each in transforms)
    return [each for some in parts for each in some]


def _mixture(d, y):
    # each component outside of its own support too, which may be a part of the whole one
    return jnp.sum(d.mixing_distribution.probs * cdf(d.component_distribution, jnp.asarray(y)[..., None]), axis=-1)


def _general_mixture(d, y):
    below = jnp.stack([cdf(each, y) for each in d.component_distributions], axis=-1)
    return jnp.sum(d.mixing_distribution.probs * below, axis=-1)


def _bernoulli(d, y):
    at_zero = jnp.subtract(1.0, d.probs)
    return jnp.where(y < 0, 0.0, jnp.where(y < 1, at_zero, 1.0))


def _beta(d, y):
    return beta_share(d.concentration1, d.concentration0, y, 1.0 - y)


def _gamma(d, y):
    return gamma_shares(d.concentration, d.rate * y)[0]


def _inverse_gamma(d, y):
    return gamma_shares(d.concentration, d.rate / y)[1]


def _student(d, y):
    # Pr(|Z| ≤ z) = I_w(½, ν/2), w = z² / (ν + z²)
    z = (y - d.loc) / d.scale
    ratio = jnp.square(z) / d.df
    both = beta_share(0.5, 0.5 * d.df, 1.0 / (1.0 + 1.0 / ratio), 1.0 / (1.0 + ratio))
    return 0.5 + 0.5 * jnp.sign(z) * both


def _binomial(d, y):
    # Pr(Y ≤ k) = I_{1−p}(n − k, k + 1) for k < n; the bounds of the support give the rest
    n, k, p = jnp.asarray(d.total_count), jnp.floor(y), jnp.asarray(d.probs)
    inside = jnp.minimum(k, n - 1.0)
    return jnp.where(k >= n, 1.0, beta_share(jnp.maximum(n - inside, 1.0), inside + 1.0, 1.0 - p, p))


def _poisson(d, y):
    # Pr(Y ≤ k) = Q(k + 1, λ)
    k, rate = jnp.broadcast_arrays(*(jnp.asarray(v, jnp.result_type(float)) for v in (jnp.floor(y), d.rate)))
    is_few = k <= FEW_COUNTS
    summed = _sum_of_few(k, jnp.exp(-rate), lambda i: rate / (i + 1.0))
    rate = jnp.where(is_few, 0.0, rate)
    return _unless_few(summed, is_few, lambda: gamma_shares(jnp.where(is_few, 0.0, k) + 1.0, rate)[1])


def _gamma_poisson(d, y):
    # Pr(Y ≤ k) = I_q(α, k + 1), q = β / (1 + β)
    given = (jnp.asarray(v, jnp.result_type(float)) for v in (jnp.floor(y), d.concentration, d.rate))
    k, alpha, beta = jnp.broadcast_arrays(*given)
    is_few = k <= FEW_COUNTS
    at_zero = jnp.exp(-alpha * jnp.log1p(1.0 / beta))
    summed = _sum_of_few(k, at_zero, lambda i: (i + alpha) / ((i + 1.0) * (1.0 + beta)))
    q = jnp.where(is_few, 0.5, jnp.where(jnp.isinf(beta), 1.0, beta / (1.0 + beta)))
    alpha, k = jnp.where(is_few, 1.0, alpha), jnp.where(is_few, 0.0, k)
    rest = jnp.where(is_few, 0.5, 1.0 / (1.0 + beta))
    return _unless_few(summed, is_few, lambda: beta_share(alpha, k + 1.0, q, rest))


def _unless_few(summed, is_few, beyond: Callable):
    """``summed``, and ``beyond()`` of the counts that are not few, which costs several times as much."""
    return lax.cond(jnp.all(is_few), lambda: summed, lambda: jnp.where(is_few, summed, beyond()))


def _sum_of_few(k, at_zero, ratio: Callable):
    """Σ_{i ≤ k} p_i of counts up to ``FEW_COUNTS``, p_{i+1} = ratio(i) p_i: cheaper than a special function."""
    most = jnp.max(jnp.where(k <= FEW_COUNTS, k, 0.0), initial=0.0)  # of those that are few: not of NaN

    def add(carry):
        i, term, total = carry
        return i + 1.0, ratio(i) * term, total + jnp.where(i <= k, term, 0.0)

    return jnp.minimum(lax.while_loop(lambda c: c[0] <= most, add, (0.0 * most, at_zero, 0.0 * at_zero * k))[2], 1.0)


def _geometric(d, y):
    return -jnp.expm1((jnp.floor(y) + 1.0) * jnp.log1p(-d.probs))


# Of the base law of a truncated one, symmetric about its location: its upper tail is a lower one, which does not round
# to nothing 8 sds away. Where even that is 0, 37 sds away for a normal law, the outcome stands at its bound.


def _left_truncated(d, y):
    return 1.0 - _share(_upper_tail(d.base_dist, y), _upper_tail(d.base_dist, d.low))


def _right_truncated(d, y):
    below, high = _cdf_inside(d.base_dist, y), _cdf_inside(d.base_dist, d.high)
    return jnp.where(high > 0, _share(below, high), y >= d.high)


def _two_sided_truncated(d, y):
    base = d.base_dist
    low, high = _cdf_inside(base, d.low), _cdf_inside(base, d.high)
    tail, end = _upper_tail(base, d.low), _upper_tail(base, d.high)
    of_tails = _share(tail - _upper_tail(base, y), tail - end)
    return jnp.where(d.low > base.loc, of_tails, _share(_cdf_inside(base, y) - low, high - low))


def _upper_tail(base, y):
    return _cdf_inside(base, 2 * base.loc - y)


def _share(part, whole):
    return jnp.where(whole > 0, part / jnp.where(whole > 0, whole, 1.0), 0.0)


def _zero_inflated(d, y):
    return d.gate + (1.0 - d.gate) * cdf(d.base_dist, y)


def _censored(d, y):
    # of what is foretold; an interval has two ends, and its law one column
    value = cdf(d.base_dist, y)
    if np.shape(value) != np.shape(y):
        raise NotImplementedError
    return value


_CDF: dict[type | tuple, Callable] = {
    dist.Beta: _beta,
    dist.Gamma: _gamma,
    dist.InverseGamma: _inverse_gamma,
    dist.StudentT: _student,
    (dist.BernoulliLogits, dist.BernoulliProbs): _bernoulli,
    (dist.BinomialLogits, dist.BinomialProbs): _binomial,
    dist.Poisson: _poisson,
    dist.GammaPoisson: _gamma_poisson,
    (dist.GeometricLogits, dist.GeometricProbs): _geometric,
    ZeroInflatedProbs: _zero_inflated,
    dist.LeftTruncatedDistribution: _left_truncated,
    dist.RightTruncatedDistribution: _right_truncated,
    dist.TwoSidedTruncatedDistribution: _two_sided_truncated,
    (dist.ExpandedDistribution, dist.MaskedDistribution): lambda d, y: cdf(d.base_dist, y),
    CENSORED: _censored,
    dist.Levy: _levy,
    dist.MixtureSameFamily: _mixture,
    dist.MixtureGeneral: _general_mixture,
}


class Outcome(NamedTuple):
    """What is known of an outcome before any number is: ``shape`` (M, …) of y, and which questions have an answer."""

    family: str
    shape: tuple[int, ...]
    event_dim: int
    is_joint: bool
    is_discrete: bool
    num_classes: int | None
    lower: float | None  # the support's bounds, where they are constants
    upper: float | None
    has_moments: bool
    has_cdf: bool
    is_circular: bool  # an angle
    is_censored: bool  # y holds what is known of an outcome, in some rows not the outcome

    @property
    def is_ordered(self) -> bool:
        """Whether its classes have an order."""
        return self.num_classes is not None and self.family.startswith("Ordered")

    @property
    def is_of_classes(self) -> bool:
        """Whether it has ``probs``: a class, or a binary outcome."""
        return self.num_classes is not None or self.family.startswith("Bernoulli")

    @classmethod
    def of(cls, d: Distribution) -> "Outcome":
        shape = d.batch_shape + d.event_shape
        return cls(
            family=type(bare(d)).__name__,
            shape=shape,
            event_dim=d.event_dim,
            is_joint=not d.batch_shape,
            is_discrete=bool(d.is_discrete),
            num_classes=num_classes(d),
            lower=_constant(_bounds(d.support)[0]),
            upper=_constant(_bounds(d.support)[1]),
            has_moments=_is_defined(lambda: moments(d)),
            is_circular=_is_circular(d),
            is_censored=isinstance(unwrapped(d), CENSORED),
            has_cdf=num_classes(d) is None and _is_defined(lambda: cdf(d, jnp.zeros(shape))),
        )


def _is_circular(d: Distribution) -> bool:
    support: Any = d.support
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    return isinstance(support, type(constraints.circular))


def _constant(bound) -> float | None:
    return None if bound is None or isinstance(bound, Tracer) or np.ndim(bound) else float(bound)


def _is_defined(question: Callable[[], Any]) -> bool:
    """Whether numpyro implements an answer; nothing is computed."""
    try:
        jax.eval_shape(question)
    except (NotImplementedError, AttributeError):
        return False
    return True
