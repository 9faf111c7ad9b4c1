"""The shape of a position: names, shapes and supports of the parameters, and the way they lie in a flat vector."""

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from numpyro.distributions import Delta, Distribution, constraints
from numpyro.distributions.transforms import IndependentTransform

from credo.model.distributions import bounds_of, is_moved, transform_to, unwrapped
from credo.model.visit import AbstractPrior, Position
from credo.status import CredoError


class Leaf(NamedTuple):
    """One parameter: its shape in the user's space and in the unconstrained space.

    ``is_elementwise``: each of its scalars is a function of one unconstrained coordinate and of nothing else.
    ``support``: the name of its constraint in numpyro.distributions, without bounds.
    """

    name: str
    shape: tuple[int, ...]
    free_shape: tuple[int, ...]
    is_elementwise: bool
    is_discrete: bool = False
    support: str = ""

    @property
    def size(self) -> int:
        return math.prod(self.free_shape)


class Structure(NamedTuple):
    """All parameters in the order of the prior. Hashable: it is part of what a compiled function is keyed on."""

    leaves: tuple[Leaf, ...]
    treedef: Any
    tree_names: tuple[str, ...]  # leaf names in the order of ``treedef``

    @classmethod
    def of(cls, prior: AbstractPrior) -> "Structure":
        """Read the shapes off an abstract evaluation: nothing is computed, nothing compiled."""
        leaves = []

        def see(name, distribution, value):
            if isinstance(unwrapped(distribution), Delta):
                raise CredoError(
                    f"Parameter {name!r} has a Delta prior, which makes it a constant: write the value into the model, "
                    "or report it as a derived quantity."
                )
            free_shape = transform_to(distribution).inverse_shape(value.shape)
            is_elementwise, is_discrete = _is_elementwise(distribution), bool(distribution.support.is_discrete)
            support = _support(distribution)
            leaves.append(Leaf(name, tuple(value.shape), tuple(free_shape), is_elementwise, is_discrete, support))

        params = prior.survey(see)
        twice = [leaf.name for i, leaf in enumerate(leaves) if leaf.name in {each.name for each in leaves[:i]}]
        if twice:
            raise CredoError(
                f"Two parameters are called {twice[0]!r}: a dot joins the name of a dict to those within it. Rename "
                "one of them."
            )
        brackets = {leaf.name for leaf in leaves if "[" in leaf.name}
        for leaf in leaves if brackets else ():
            shared = brackets.intersection(scalar_names(leaf.name, leaf.shape)) - {leaf.name}
            if shared:
                raise CredoError(f"A parameter is called {shared.pop()!r}, as an entry of {leaf.name!r} is: rename it.")
        names = {id(leaf): name for name, leaf in prior.leaves(params).items()}
        tree_leaves, treedef = jax.tree.flatten(params)
        return cls(tuple(leaves), treedef, tuple(names[id(leaf)] for leaf in tree_leaves))

    def assemble(self, values: Mapping[str, Any]):
        """Parameters in the structure of the prior from a dict by leaf name."""
        return jax.tree.unflatten(self.treedef, [values[name] for name in self.tree_names])

    @property
    def dim(self) -> int:
        return sum(leaf.size for leaf in self.leaves)

    @property
    def discrete_names(self) -> tuple[str, ...]:
        """The parameters whose values are whole numbers: so they lie in the position, and only Gibbs moves them."""
        return tuple(leaf.name for leaf in self.leaves if leaf.is_discrete)

    def ravel(self, u: Position) -> jax.Array:
        return jnp.concatenate([jnp.ravel(u[leaf.name]) for leaf in self.leaves])

    def unravel(self, vector: jax.Array | np.ndarray) -> Position:
        pieces, start = {}, 0
        for leaf in self.leaves:
            pieces[leaf.name] = jnp.reshape(vector[start : start + leaf.size], leaf.free_shape)
            start += leaf.size
        return pieces

    def check_same(self, other: "Structure", role: str) -> None:
        """CredoError where ``other``, that of a posterior in the ``role`` named, is not this one, a target's."""
        if other != self:
            raise CredoError(
                f"The {role} has other parameters than this target ({self._difference(other)}): fit it on the same "
                "model."
            )

    def _difference(self, other: "Structure") -> str:
        """Where they differ, in words."""
        here, there = ({leaf.name: leaf for leaf in each.leaves} for each in (self, other))
        for name, where in [*((n, "there") for n in there if n not in here), *((n, "here") for n in here)]:
            if name not in here or name not in there:
                return f"{name!r} exists {where} alone"
        for name, leaf in here.items():
            for what in ("shape", "support", "is_discrete"):
                before, now = getattr(there[name], what), getattr(leaf, what)
                if before != now:
                    return f"the {what.removeprefix('is_')} of {name!r} is {before} there and {now} here"
        return f"they come as {', '.join(there)} there and as {', '.join(here)} here"

    def scalar_names(self) -> list[str]:
        """A name for each scalar in the user's space: ``tau``, ``theta[0]``, ``net.w[1,2]``."""
        return [name for leaf in self.leaves for name in scalar_names(leaf.name, leaf.shape)]

    def leaf_at(self, coordinate: int) -> tuple[Leaf, int]:
        """(the parameter of this coordinate, which of its coordinates it is)."""
        for leaf in self.leaves:
            if coordinate < leaf.size:
                return leaf, coordinate
            coordinate -= leaf.size
        raise IndexError(f"no coordinate {coordinate}")

    def coordinate_name(self, coordinate: int) -> str:
        """The scalar of this coordinate; where a transform mixes them, the parameter that it belongs to."""
        leaf, inner = self.leaf_at(coordinate)
        return scalar_names(leaf.name, leaf.shape)[inner] if leaf.is_elementwise else leaf.name


def somewhere(size: int) -> np.ndarray:
    """An arbitrary position (size,) at which to look what depends on what: at 0 the effect of inputs may vanish."""
    return 0.5 * np.cos(np.arange(size))


def _is_elementwise(distribution: Distribution) -> bool:
    transform = transform_to(distribution)
    while isinstance(transform, IndependentTransform):
        transform = transform.base_transform
    depends = any(isinstance(leaf, Tracer) for leaf in bounds_of(distribution))
    return transform.domain.event_dim == 0 and not depends


def _support(distribution: Distribution) -> str:
    if is_moved(distribution):
        return "transformed"
    support = distribution.support
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(support).__name__.strip("_")).lower()


def scalar_names(name: str, shape: tuple[int, ...]) -> list[str]:
    if not shape:
        return [name]
    indices = [()]
    for length in shape:
        indices = [(*index, i) for index in indices for i in range(length)]
    return [f"{name}[{','.join(map(str, index))}]" for index in indices]
