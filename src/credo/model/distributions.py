"""Small questions about numpyro distributions, and one that numpyro lacks: a log density counted several times."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import (
    AsymmetricLaplace,
    AsymmetricLaplaceQuantile,
    Distribution,
    ExpandedDistribution,
    ImproperUniform,
    Independent,
    IntervalCensoredDistribution,
    Laplace,
    LeftCensoredDistribution,
    MaskedDistribution,
    RightCensoredDistribution,
    TransformedDistribution,
    biject_to,
    constraints,
)
from numpyro.distributions.transforms import AffineTransform, ComposeTransform, IndependentTransform, Transform

CENSORED = LeftCensoredDistribution, RightCensoredDistribution, IntervalCensoredDistribution


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


def transform_to(distribution: Distribution) -> Transform:
    """From coordinates of the position to the support of ``distribution``: a bijection, or ``Rounding`` if discrete.

    numpyro's bijection to the support as a rule; to the base's, and then the transforms, of one that is_moved().
    NotImplementedError for a support from which none is known.
    """
    support: Any = distribution.support
    if support is None:
        raise NotImplementedError
    if support.is_discrete:
        return Rounding()
    if not is_moved(distribution):
        return biject_to(support)
    inner: Any = distribution
    if isinstance(inner, TransformedDistribution):
        return ComposeTransform([transform_to(inner.base_dist), *inner.transforms])
    transform = transform_to(inner.base_dist)
    own = inner.reinterpreted_batch_ndims if isinstance(inner, Independent) else 0
    return IndependentTransform(transform, own) if own else transform


def is_moved(distribution: Distribution) -> bool:
    """Whether this is a transformed distribution whose ``support`` is not to be trusted.

    numpyro takes it for the image of the last transform's nominal domain. That is all numbers for a scaled half-normal,
    and the wrong side for a reflected one whose scale is traced. By types alone, so that traced or not, it is the same.
    """
    inner: Any = bare(distribution)
    if getattr(type(inner), "support", None) is not TransformedDistribution.support:
        return False
    before = inner.base_dist.support
    for transform in inner.transforms:
        # an interval keeps its bijection if its ends change places
        turns = isinstance(transform, AffineTransform) and _kind(transform.domain) not in KEPT
        if turns or _kind(before) is not _kind(transform.domain):
            return True
        before = transform.codomain
    return is_moved(inner.base_dist)


def on_the_way(distribution: Distribution, u) -> list | None:
    """What each transform of a transformed distribution is given at the coordinates ``u``, as numpyro takes them.

    Found forwards, where its last transforms are those of the coordinates: back from the value digits are lost, those
    of the gaps of an ordered vector or of what is near one. None where that tells nothing.
    """
    inner: Any = distribution
    while isinstance(inner, Independent | ExpandedDistribution):
        inner = inner.base_dist
    if getattr(type(inner), "log_prob", None) is not TransformedDistribution.log_prob:
        return None
    way: Any = transform_to(distribution)
    while isinstance(way, IndependentTransform):
        way = way.base_transform
    parts = way.parts if isinstance(way, ComposeTransform) else [way]
    num = 0
    for part, own in zip(reversed(parts), reversed(inner.transforms), strict=False):
        if not _is_same(part, own):
            break
        num += 1
    if num == 0:
        return None
    given = [u]
    for part in parts[:-1]:
        given.append(part(given[-1]))
    given = given[len(parts) - num :]
    for own in reversed(inner.transforms[:-num]):
        given.insert(0, own.inv(given[0]))
    return [[x, None] for x in given]


def _is_same(one: Transform, other: Transform) -> bool:
    structure = jax.tree.structure(one)
    return one is other or (structure.num_leaves == 0 and structure == jax.tree.structure(other))


KEPT = type(constraints.real), type(constraints.unit_interval)


def _kind(support) -> type:
    while isinstance(support, type(constraints.independent(constraints.real, 1))):
        support = support.base_constraint
    return type(constraints.real) if isinstance(support, type(constraints.real_vector)) else type(support)


def contains(distribution: Distribution, value):
    """Whether ``value`` lies in the support."""
    inner: Any = distribution
    if not is_moved(inner):
        return inner.support(value)
    if isinstance(inner, TransformedDistribution):
        return contains(inner.base_dist, ComposeTransform(inner.transforms).inv(value))
    inside = contains(inner.base_dist, value)
    own = inner.reinterpreted_batch_ndims if isinstance(inner, Independent) else 0
    return jnp.all(inside, axis=tuple(range(-own, 0))) if own else inside


def bounds_of(distribution: Distribution) -> list:
    """The numbers that say where it lives."""
    inner: Any = distribution
    if not is_moved(inner):
        return jax.tree.leaves(inner.support)
    own = inner.transforms if isinstance(inner, TransformedDistribution) else ()
    return [*jax.tree.leaves(own), *bounds_of(inner.base_dist)]


def flat_like(distribution: Distribution) -> Distribution:
    """Log density zero on the same support."""
    if is_moved(distribution):
        return MaskedDistribution(distribution, False)
    return ImproperUniform(distribution.support, distribution.batch_shape, distribution.event_shape)


def unscaled(distributions):
    """A distribution, or a dict of them, as predictions need it: each datum counts once."""
    return jax.tree.map(
        lambda d: d.base_dist if isinstance(d, Scaled) else d,
        distributions,
        is_leaf=is_distribution,
    )


def unwrapped(distribution: Distribution) -> Distribution:
    """The distribution inside expansions, independent axes, masks, scales and transforms: it has the arguments."""
    inner: Any = distribution
    while hasattr(inner, "base_dist") and not inner.arg_constraints:
        inner = inner.base_dist
    return inner


def without_mask(distribution: Distribution) -> Distribution:
    """The same without the masks around it, or within expansions of it."""
    if isinstance(distribution, ExpandedDistribution | MaskedDistribution):
        return without_mask(distribution.base_dist).expand(distribution.batch_shape)
    return distribution


def bare(distribution: Distribution) -> Distribution:
    """The distribution inside expansions, independent axes, masks and scales; a transformed one as it is."""
    inner: Any = distribution
    while isinstance(inner, Independent | ExpandedDistribution | MaskedDistribution | Scaled):
        inner = inner.base_dist
    return inner


def in_jax(distribution: Distribution) -> Distribution:
    """The same with JAX arrays, whose arithmetic has inf and NaN where Python's and NumPy's raise or warn."""
    return jax.tree.map(jnp.asarray, distribution)


def has_kink(distribution: Distribution) -> bool:
    """Whether the log density has a slope that jumps, and no curvature beside the jump."""
    return isinstance(unwrapped(distribution), (Laplace, AsymmetricLaplace, AsymmetricLaplaceQuantile))


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


def layers(distribution: Distribution) -> list:
    """The masks and scales around it, each with one axis more for each that it is joint over: how often it counts."""
    inner: Any = distribution
    found = []
    while hasattr(inner, "base_dist"):
        if isinstance(inner, MaskedDistribution | Scaled):
            times = jnp.asarray(inner._mask if isinstance(inner, MaskedDistribution) else inner.scale, float)
            found.append(times.reshape(times.shape + (1,) * inner.event_dim))
        inner = inner.base_dist
    return found


def broadcast(d: Distribution, like) -> Distribution:
    """``d`` for all data of ``like``, values or a number of rows: what it lacks of them are independent copies.

    A joint distribution of all rows stays what it is, and so does any where ``like`` is None.
    """
    if like is None:
        return d
    if isinstance(like, int):
        return rowwise(d, like)
    batch = np.broadcast_shapes(d.batch_shape, like.shape[: like.ndim - len(d.event_shape)])
    return d if batch == d.batch_shape else d.expand(batch)


def rowwise(d: Distribution, num_rows: int) -> Distribution:
    """A distribution of one row stands for every row alike, unless it is joint over the rows."""
    is_of_one = d.batch_shape[:1] == (1,) or (not d.batch_shape and d.event_shape[:1] != (num_rows,))
    batch = (num_rows, *d.batch_shape[1:])
    return d.expand(batch) if is_of_one and batch != d.batch_shape else d
