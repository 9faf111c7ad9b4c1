"""Log densities of numpyro's distributions, right where its own are not.

*Truncated normals.* With a = (low − loc)/scale and b = (high − loc)/scale the mass between the bounds is
    Φ(b) − Φ(a) = Φ(−a) − Φ(−b),    log: log Φ(b) + log(1 − exp(−δ)),  δ = log Φ(b) − log Φ(a)
of which the side in the lower tail has digits. numpyro's two-sided one takes the first throughout: its log density is
0.07 off where the location lies 8 sds below both bounds, and +inf from 9 sds on; in its one-sided ones from 38 sds on.

*Probabilities of 0 and 1*, as of an animal at a site where there is none: numpyro takes the logarithm of the least
number there, whose square is 0, and second derivatives are NaN. They are those of a constant here, of the same value.

*Rates of 0*, as of counts at such a site: the derivative of numpyro's x log λ is 0/0 there, where no count is certain
and its log density is −λ.

*Logits that are NaN*: numpyro's log probability of 0 is 0 there, as if that were certain.

*Student's t, negative binomials* and their kin of large parameters are in compound.py.

*Truncated Cauchy laws* between two bounds have a mean and a variance, which numpyro says are NaN.

*Censored outcomes* ask for the distribution function of the law within, which numpyro's expanded laws lack. Those that
they expand have it, and rows broadcast.
"""

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, log_ndtr
from numpyro.distributions import (
    BernoulliLogits,
    BernoulliProbs,
    BinomialProbs,
    Cauchy,
    Distribution,
    ExpandedDistribution,
    LeftTruncatedDistribution,
    Normal,
    Poisson,
    RightTruncatedDistribution,
    TwoSidedTruncatedDistribution,
)

from credo.model.compound import COMPOUND
from credo.model.distributions import CENSORED

SHORT = 1e-4  # of an interval in white units: shorter ones leave no digits of a variance


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
    if type(node) in OF_EVENTS:
        return True
    if type(node) is TwoSidedTruncatedDistribution and isinstance(node.base_dist, Cauchy):
        return True
    return isinstance(node, CENSORED) or (type(node) in TRUNCATED and isinstance(node.base_dist, Normal))


def _mend(node):
    if type(node) in OF_EVENTS:
        return OF_EVENTS[type(node)](node)
    if type(node) in TRUNCATED:
        return (TwoSidedTruncatedCauchy if isinstance(node.base_dist, Cauchy) else TRUNCATED[type(node)])(node)
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


class Bernoulli(BernoulliProbs):
    def __init__(self, of: Any):
        super().__init__(of.probs, validate_args=False)

    def log_prob(self, value):
        log_p, log_q = _logs(self.probs)
        value = jnp.asarray(value, log_p.dtype)
        return value * log_p + (1 - value) * log_q


class Binomial(BinomialProbs):
    def __init__(self, of: Any):
        super().__init__(of.probs, of.total_count, validate_args=False)

    def log_prob(self, value):
        log_p, log_q = _logs(self.probs)
        n, value = jnp.asarray(self.total_count), jnp.asarray(value, log_p.dtype)
        ways = gammaln(n + 1) - gammaln(value + 1) - gammaln(n - value + 1)
        return ways + value * log_p + (n - value) * log_q


class Counts(Poisson):
    def __init__(self, of: Any):
        super().__init__(of.rate, is_sparse=of.is_sparse, validate_args=False)

    def log_prob(self, value):
        rate = jnp.asarray(self.rate, jnp.result_type(float))
        is_none = rate == 0
        of_some = Poisson(jnp.where(is_none, 1.0, rate), is_sparse=self.is_sparse).log_prob(value)
        return jnp.where(is_none, jnp.where(jnp.asarray(value) == 0, -rate, -jnp.inf), of_some)


def _logs(probs):
    """log p and log(1 − p), with p within the numbers that numpyro keeps it to."""
    least = jnp.finfo(jnp.result_type(probs, float)).tiny
    most = 1 - jnp.finfo(jnp.result_type(probs, float)).eps
    is_low, is_high = probs < least, probs > most
    p = jnp.where(is_low | is_high, 0.5, probs)

    def within(log, low, high):
        return jnp.where(is_low, low, jnp.where(is_high, high, log))

    return within(jnp.log(p), np.log(least), np.log(most)), within(jnp.log1p(-p), -least, np.log1p(-most))


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


class TwoSidedTruncatedCauchy(TwoSidedTruncatedDistribution):
    """Moments between a and b in white units, of which θ = arctan b − arctan a is the mass times π:

    E z = log((1 + b²) / (1 + a²)) / 2θ,  E z² = (b − a)/θ − 1; of a short interval those of a uniform law.
    """

    def __init__(self, of: Any):
        super().__init__(of.base_dist, of.low, of.high)

    @property
    def mean(self):
        return jnp.asarray(self.base_dist.loc) + jnp.asarray(self.base_dist.scale) * self._white_moments[0]

    @property
    def variance(self):
        return jnp.square(jnp.asarray(self.base_dist.scale)) * self._white_moments[1]

    @property
    def _white_moments(self):
        a, b = (jnp.asarray(_white(self.base_dist, bound)) for bound in (self.low, self.high))
        is_short = b - a < SHORT
        end = jnp.where(is_short, a + 1.0, b)
        theta = jnp.arctan2(end - a, 1.0 + a * end)
        mean = 0.5 * jnp.log1p((end - a) * (end + a) / (1.0 + a * a)) / theta
        variance = (end - a) / theta - 1.0 - jnp.square(mean)
        return jnp.where(is_short, 0.5 * (a + b), mean), jnp.where(is_short, jnp.square(b - a) / 12.0, variance)


OF_EVENTS: dict[type, Any] = {
    BernoulliLogits: Logits,
    BernoulliProbs: Bernoulli,
    BinomialProbs: Binomial,
    Poisson: Counts,
    **COMPOUND,
}
TRUNCATED: dict[type, Any] = {
    LeftTruncatedDistribution: LeftTruncatedNormal,
    RightTruncatedDistribution: RightTruncatedNormal,
    TwoSidedTruncatedDistribution: TwoSidedTruncatedNormal,
}


def _white(base, bound):
    return (bound - base.loc) / base.scale
