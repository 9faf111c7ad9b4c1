"""The shape of a position: names, shapes and supports of the parameters, and the way they lie in a flat vector."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from credo.model.prior import Position, Prior, origin


class Leaf(NamedTuple):
    """One parameter: its shape in the user's space and in the unconstrained space."""

    name: str
    shape: tuple[int, ...]
    free_shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.free_shape)


class Structure(NamedTuple):
    """All parameters in the order of the prior. Hashable: it is part of what a compiled function is keyed on."""

    leaves: tuple[Leaf, ...]

    @classmethod
    def of(cls, prior: Prior) -> "Structure":
        """Read the shapes off an abstract evaluation: nothing is computed, nothing compiled."""
        leaves = []

        def visitor(name, distribution):
            u, value = origin(name, distribution)
            leaves.append(Leaf(name, tuple(value.shape), tuple(u.shape)))
            return value

        jax.eval_shape(lambda: prior.visit(visitor))
        return cls(tuple(leaves))

    @property
    def dim(self) -> int:
        return sum(leaf.size for leaf in self.leaves)

    def ravel(self, u: Position) -> jax.Array:
        return jnp.concatenate([jnp.ravel(u[leaf.name]) for leaf in self.leaves])

    def unravel(self, vector: jax.Array) -> Position:
        pieces, start = {}, 0
        for leaf in self.leaves:
            pieces[leaf.name] = jnp.reshape(vector[start : start + leaf.size], leaf.free_shape)
            start += leaf.size
        return pieces

    def scalar_names(self) -> list[str]:
        """A name for each scalar in the user's space: ``tau``, ``theta[0]``, ``net.w[1,2]``."""
        return [name for leaf in self.leaves for name in scalar_names(leaf.name, leaf.shape)]


def scalar_names(name: str, shape: tuple[int, ...]) -> list[str]:
    if not shape:
        return [name]
    indices = [()]
    for length in shape:
        indices = [(*index, i) for index in indices for i in range(length)]
    return [f"{name}[{','.join(map(str, index))}]" for index in indices]
