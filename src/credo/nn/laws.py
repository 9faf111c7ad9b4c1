"""Laws of a single weight that numpyro lacks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.distributions import Distribution, constraints


class TwoNormals(Distribution):
    """weight · N(0, wide²) + (1 − weight) · N(0, narrow²); the arguments are numbers."""

    arg_constraints = {
        "weight": constraints.unit_interval,
        "wide": constraints.positive,
        "narrow": constraints.positive,
    }
    support: Any = constraints.real
    pytree_data_fields = ("weight", "wide", "narrow")

    def __init__(self, weight: float, wide: float, narrow: float, *, validate_args=None):
        self.weight, self.wide, self.narrow = weight, wide, narrow
        super().__init__((), validate_args=validate_args)

    def sample(self, key, sample_shape=()):
        assert key is not None
        k_choice, k_normal = jax.random.split(key)
        is_wide = jax.random.uniform(k_choice, sample_shape) < self.weight
        return jnp.where(is_wide, self.wide, self.narrow) * jax.random.normal(k_normal, sample_shape)

    def log_prob(self, value, intermediates=None):
        of_wide = jnp.log(self.weight) + dist.Normal(0.0, self.wide).log_prob(value)
        of_narrow = jnp.log1p(-self.weight) + dist.Normal(0.0, self.narrow).log_prob(value)
        return jnp.logaddexp(of_wide, of_narrow)


class CauchySlash(Distribution):
    """scale · U · C with U uniform on (0, 1) and C Cauchy: p(w) = log(1 + (scale / w)²) / (2π scale).

    The integral of s / (π (s² + w²)) over s in (0, scale), divided by scale. It is the horseshoe-like prior of Bhadra,
    Datta, Polson & Willard (2019), which has in closed form what the horseshoe has not.
    """

    arg_constraints = {"scale": constraints.positive}
    support: Any = constraints.real
    pytree_data_fields = ("scale",)
    is_infinite_at_zero = True

    def __init__(self, scale: float = 1.0, *, validate_args=None):
        self.scale = scale
        super().__init__((), validate_args=validate_args)

    def sample(self, key, sample_shape=()):
        assert key is not None
        k_uniform, k_cauchy = jax.random.split(key)
        return self.scale * jax.random.uniform(k_uniform, sample_shape) * jax.random.cauchy(k_cauchy, sample_shape)

    def log_prob(self, value, intermediates=None):
        return jnp.log(jnp.log1p(jnp.square(self.scale / value))) - jnp.log(2 * jnp.pi * self.scale)


class LogUniformWeight(dist.ImproperUniform):
    """p(w) ∝ 1/|w| on the line: improper at zero and at infinity."""

    def __init__(self, *, validate_args=None):
        super().__init__(constraints.real, (), (), validate_args=validate_args)

    def log_prob(self, value, intermediates=None):
        return -jnp.log(jnp.abs(value))

    def tree_flatten(self):
        return (), ()

    @classmethod
    def tree_unflatten(cls, aux_data, params):
        return cls()
