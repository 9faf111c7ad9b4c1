"""Log densities of numpyro's laws that mix over a scale or a rate, right at any size of parameters and counts.

Student's t of many degrees of freedom is nearly normal, a negative binomial of high concentration nearly a Poisson law,
a beta-binomial a binomial one. numpyro takes the difference log Γ(x + n) − log Γ(x) of numbers of the size of x log x:
from x = 10¹³ on its rounding is of the size of the density, and rows add it up to hundreds of nats, which make modes
where there are none. By Stirling's series, s(x) = 1/12x − 1/360x³ + 1/1260x⁵ − 1/1680x⁷,

    log Γ(x + n) − log Γ(x) = (x + n − ½) log(1 + n/x) + n log x − n + s(x + n) − s(x)

Of a count y and a parameter x the larger of y + 1 and x is taken for the base, so that digits stay where y is the large
one, too:  Γ(x + y) / (Γ(x) y!) = [Γ(y + 1 + x − 1) / Γ(y + 1)] / Γ(x).
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln, xlog1py
from numpyro.distributions import (
    BetaBinomial,
    DirichletMultinomial,
    GammaPoisson,
    NegativeBinomial2,
    NegativeBinomialLogits,
    NegativeBinomialProbs,
    StudentT,
)

LARGE = 20.0  # from which the series has all digits of a double: its next term is 2e-15


def log_rising(x, n):
    """log Γ(x + n) − log Γ(x), of positive x and x + n. Where n is far above x the slope in x loses digits."""
    x, n = _floats(x, n)
    is_large = x >= LARGE
    large, small = jnp.where(is_large, x, LARGE), jnp.where(is_large, 1.0, x)
    grown = large + n
    by_series = (grown - 0.5) * jnp.log1p(n / large) + n * jnp.log(large) - n + _series(grown) - _series(large)
    return jnp.where(is_large, by_series, gammaln(small + n) - gammaln(small))


def _series(x):
    y = jnp.square(1 / x)  # the square of x itself may overflow
    return (1 / 12 - y * (1 / 360 - y * (1 / 1260 - y / 1680))) / x


def log_ways(size, count):
    """log Γ(size + count) − log Γ(size) − log count!"""
    size, after = _floats(size, count + 1)
    is_more = after > size
    base, other = jnp.where(is_more, after, size), jnp.where(is_more, size, after)
    return log_rising(base, other - 1) - gammaln(other)


def _floats(*numbers: Any) -> list[Any]:
    return [jnp.asarray(each, jnp.result_type(float)) for each in numbers]


class Student(StudentT):
    def __init__(self, of: Any):
        super().__init__(of.df, of.loc, of.scale, validate_args=False)

    def log_prob(self, value):
        value, df, loc, scale = _floats(value, self.df, self.loc, self.scale)
        half, squares = 0.5 * df, jnp.square((value - loc) / scale)
        size = 0.5 * (jnp.log(half) + jnp.log(2 * jnp.pi)) + jnp.log(scale)
        return log_rising(half, 0.5) - size - (half + 0.5) * jnp.log1p(0.5 * squares / half)


class GammaMixed(GammaPoisson):
    """Of each way to write it."""

    def __init__(self, of: Any):
        super().__init__(of.concentration, of.rate, validate_args=False)

    def log_prob(self, value):
        value, size, rate = _floats(value, self.concentration, self.rate)
        return log_ways(size, value) - xlog1py(size, 1 / rate) - xlog1py(value, rate)


class GammaMixedLogits(NegativeBinomialLogits):
    def __init__(self, of: Any):
        super().__init__(of.total_count, of.logits, validate_args=False)

    def log_prob(self, value):
        value, size, logits = _floats(value, self.total_count, self.logits)
        return log_ways(size, value) - size * jax.nn.softplus(logits) - value * jax.nn.softplus(-logits)


class BetaMixed(BetaBinomial):
    def __init__(self, of: Any):
        super().__init__(of.concentration1, of.concentration0, of.total_count, validate_args=False)

    def log_prob(self, value):
        value, n, a, b = _floats(value, self.total_count, self.concentration1, self.concentration0)
        return log_ways(a, value) + log_ways(b, n - value) - log_ways(a + b, n)


class DirichletMixed(DirichletMultinomial):
    def __init__(self, of: Any):
        counts = {"total_count": of.total_count, "total_count_max": of.total_count_max}
        super().__init__(of.concentration, **counts, validate_args=False)

    def log_prob(self, value):
        value, concentration = _floats(value, self.concentration)
        of_all = log_ways(jnp.sum(concentration, -1), jnp.sum(value, -1))
        return jnp.sum(log_ways(concentration, value), -1) - of_all


COMPOUND: dict[type, Any] = {
    StudentT: Student,
    GammaPoisson: GammaMixed,
    NegativeBinomial2: GammaMixed,
    NegativeBinomialProbs: GammaMixed,
    NegativeBinomialLogits: GammaMixedLogits,
    BetaBinomial: BetaMixed,
    DirichletMultinomial: DirichletMixed,
}
