"""Log densities of numpyro's distributions, right where its own are not.

*Truncated normals.* With a = (low − loc)/scale and b = (high − loc)/scale the mass between the bounds is
    Φ(b) − Φ(a) = Φ(−a) − Φ(−b),    log: log Φ(b) + log(1 − exp(−δ)),  δ = log Φ(b) − log Φ(a)
of which the side in the lower tail has digits. numpyro's two-sided one takes the first throughout: its log density is
0.07 off where the location lies 8 sds below both bounds, and +inf from 9 sds on; in its one-sided ones from 38 sds on.

*Logits that are NaN*: numpyro's log probability of 0 is 0 there, as if that were certain.

*Censored outcomes* ask for the distribution function of the law within, which numpyro's expanded laws lack. Those that
they expand have it, and rows broadcast.
"""

import copy
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import log_ndtr
from numpyro.distributions import (
    BernoulliLogits,
    Distribution,
    ExpandedDistribution,
    LeftTruncatedDistribution,
    Normal,
    RightTruncatedDistribution,
    TwoSidedTruncatedDistribution,
)

from credo.model.distributions import CENSORED


def log_prob(distribution: Distribution, value, on_the_way: list | None = None):
    """``on_the_way``: what its transforms are given, where that is known."""
    found = mended(distribution)
    return found.log_prob(value) if on_the_way is None else found.log_prob(value, on_the_way)


def mended(distribution: Distribution) -> Any:
    """The same distribution, whose log density, mean and variance are right."""
    if not any(map(_is_wrong, jax.tree.leaves(distribution, is_leaf=_is_wrong))):
        return distribution
    return jax.tree.map(lambda node: _mend(node) if _is_wrong(node) else node, distribution, is_leaf=_is_wrong)


def _is_wrong(node) -> bool:
    if type(node) is BernoulliLogits:
        return True
    return isinstance(node, CENSORED) or (type(node) in TRUNCATED and isinstance(node.base_dist, Normal))


def _mend(node):
    if type(node) is BernoulliLogits:
        return Logits(node)
    if type(node) in TRUNCATED:
        return TRUNCATED[type(node)](node)
    inner: Any = node.base_dist
    while isinstance(inner, ExpandedDistribution):
        inner = inner.base_dist
    node = copy.copy(node)
    node.base_dist = mended(inner)
    return node


class Logits(BernoulliLogits):
    def __init__(self, of: Any):
        super().__init__(of.logits, validate_args=False)

    def log_prob(self, value):
        return jnp.where(jnp.isnan(self.logits), jnp.nan, super().log_prob(value))


class LeftTruncatedNormal(LeftTruncatedDistribution):
    def __init__(self, of: Any):
        super().__init__(of.base_dist, of.low)

    def log_prob(self, value, intermediates=None):
        return self.base_dist.log_prob(value) - log_ndtr(-_white(self.base_dist, self.low))


class RightTruncatedNormal(RightTruncatedDistribution):
    def __init__(self, of: Any):
        super().__init__(of.base_dist, of.high)

    def log_prob(self, value, intermediates=None):
        return self.base_dist.log_prob(value) - log_ndtr(_white(self.base_dist, self.high))


class TwoSidedTruncatedNormal(TwoSidedTruncatedDistribution):
    def __init__(self, of: Any):
        super().__init__(of.base_dist, of.low, of.high)

    def log_prob(self, value, intermediates=None):
        low, high = _white(self.base_dist, self.low), _white(self.base_dist, self.high)
        a, b = jnp.where(low > 0, -high, low), jnp.where(low > 0, -low, high)
        delta = log_ndtr(b) - log_ndtr(a)
        return self.base_dist.log_prob(value) - (log_ndtr(b) + jnp.log(-jnp.expm1(-delta)))


TRUNCATED: dict[type, Any] = {
    LeftTruncatedDistribution: LeftTruncatedNormal,
    RightTruncatedDistribution: RightTruncatedNormal,
    TwoSidedTruncatedDistribution: TwoSidedTruncatedNormal,
}


def _white(base, bound):
    return (bound - base.loc) / base.scale
