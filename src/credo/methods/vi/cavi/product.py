"""Factors as a posterior: the distributions of a model's parameters, held against its shapes and supports."""

from typing import Any

import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import Distribution

from credo.methods.vi.cavi.sweeps import Factors
from credo.model.distributions import transform_to
from credo.model.structure import Leaf
from credo.model.target import Target
from credo.posterior.product import Product
from credo.precision import to_numpy
from credo.status import CredoError


def product_of(factors: Factors, target: Target) -> tuple[Product, tuple[str, ...]]:
    """The factors that are parameters of the model as a ``Product``, and their names.

    CredoError where a parameter has no factor, or one of another shape or support than its prior's.
    """
    leaves = target.structure.leaves
    for leaf in leaves:
        if leaf.name not in factors:
            raise CredoError(
                f"The model's parameter {leaf.name!r} has no factor; there are {', '.join(map(repr, factors))}. Add "
                "its update: factors are named as the parameters are."
            )
        if not isinstance(factors[leaf.name], Distribution):
            raise CredoError(
                f"The factor {leaf.name!r} is a {type(factors[leaf.name]).__name__}: its update returns a numpyro "
                "distribution, since it is a parameter of the model."
            )
        _check(leaf, factors[leaf.name])
    _check_supports(factors, target)
    named = {leaf.name: to_numpy(factors[leaf.name]) for leaf in leaves}
    return Product(named, target.structure), tuple(named)


def _check(leaf: Leaf, factor: Any) -> None:
    if isinstance(factor, dist.Delta):
        raise CredoError(
            f"The factor {leaf.name!r} is a point (Delta), which has no density: fit MAP() for a point, or give it a "
            "distribution."
        )
    if factor.shape() != leaf.shape:
        raise CredoError(
            f"The factor {leaf.name!r} has shape {factor.shape()} (batch and event together); in the model it has "
            f"{leaf.shape}."
        )


def _check_supports(factors: Factors, target: Target) -> None:
    """Each factor must carry unconstrained positions where the prior does, here at one position of no symmetry."""
    u = np.random.default_rng(0).normal(size=target.dim)
    here = target.model.prior.leaves(target.constrain(u))
    for leaf, position in zip(target.structure.leaves, target.structure.unravel(u).values(), strict=True):
        support: Any = factors[leaf.name].support
        try:
            is_same = np.allclose(transform_to(factors[leaf.name])(position), here[leaf.name], rtol=1e-6)
        except (ValueError, TypeError):  # shapes that do not meet
            is_same = False
        if not is_same:
            raise CredoError(
                f"The factor {leaf.name!r} is a {type(factors[leaf.name]).__name__} with support {support}, which is "
                "not that of its prior: give a distribution over the same set."
            )
