"""Small questions about numpyro distributions, and one that numpyro lacks: a log density counted several times."""

from typing import Any

import jax
import jax.numpy as jnp
from numpyro.distributions import Distribution, ImproperUniform, MaskedDistribution, biject_to, constraints
from numpyro.distributions.transforms import Transform


class Scaled(Distribution):
    """log density = ``scale`` × that of ``base_dist``; samples are those of ``base_dist``.

    ``scale``: positive, broadcastable to the batch shape. It weighs evidence and says nothing about new data.
    """

    arg_constraints = {}
    pytree_data_fields = ("base_dist", "scale")

    def __init__(self, base_dist: Distribution, scale):
        self.base_dist, self.scale = base_dist, scale
        super().__init__(base_dist.batch_shape, base_dist.event_shape)

    @property
    def support(self):
        return self.base_dist.support

    @property
    def has_rsample(self) -> bool:
        return self.base_dist.has_rsample

    def sample(self, key, sample_shape=()):
        return self.base_dist.sample(key, sample_shape)

    def log_prob(self, value, intermediates=None):
        return self.scale * self.base_dist.log_prob(value)


class Rounding(Transform):
    """The way of a discrete parameter into the position: its value as a real number, rounded on the way back.

    It is no bijection and has no Jacobian: the density of such a coordinate is a probability at the whole numbers.
    """

    domain: Any = constraints.real
    codomain: Any = constraints.real

    def __call__(self, x):
        return jnp.round(x).astype(int)

    def _inverse(self, y):
        return jnp.asarray(y).astype(float)

    def log_abs_det_jacobian(self, x, y, intermediates=None):
        return jnp.zeros_like(x)

    def tree_flatten(self):
        return (), ((), {})

    def __eq__(self, other):
        return isinstance(other, Rounding)

    def __hash__(self):
        return hash(Rounding)


def transform_to(support) -> Transform:
    """From coordinates of the position to ``support``: a bijection, or ``Rounding`` where that is discrete.

    NotImplementedError for a support from which none is known.
    """
    return Rounding() if support.is_discrete else biject_to(support)


def unscaled(distributions):
    """A distribution, or a dict of them, as predictions need it: each datum counts once."""
    return jax.tree.map(
        lambda d: d.base_dist if isinstance(d, Scaled) else d,
        distributions,
        is_leaf=is_distribution,
    )


def unwrapped(distribution: Distribution) -> Distribution:
    """The distribution inside expansions, independent axes, masks and scales: the one with the arguments."""
    inner: Any = distribution
    while hasattr(inner, "base_dist") and not inner.arg_constraints:
        inner = inner.base_dist
    return inner


def is_distribution(node) -> bool:
    return isinstance(node, Distribution)


def is_improper(distribution: Distribution) -> bool:
    """Whether it integrates to infinity: a flat one, or one that is masked somewhere."""
    return isinstance(unwrapped(distribution), ImproperUniform) or any(mask is not True for mask in masks(distribution))


def masks(distribution: Distribution) -> list:
    """The masks around a distribution: booleans or boolean arrays, False where it does not count."""
    inner: Any = distribution
    found = []
    while inner is not unwrapped(inner):
        found += [inner._mask] if isinstance(inner, MaskedDistribution) else []
        inner = inner.base_dist
    return found
