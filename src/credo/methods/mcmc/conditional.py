"""A block of parameters, and the density of its coordinates given all the others, as a kernel sees it."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credo.model.structure import Structure
from credo.model.target import Target


class Block(NamedTuple):
    """Parameters that move together. ``spans``: where their coordinates lie in a flat position, in its order."""

    names: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, structure: Structure, names) -> "Block":
        ends = np.cumsum([leaf.size for leaf in structure.leaves])
        found = zip(structure.leaves, ends, strict=True)
        return cls(tuple(names), tuple((int(end) - leaf.size, int(end)) for leaf, end in found if leaf.name in names))

    @property
    def dim(self) -> int:
        return sum(end - begin for begin, end in self.spans)

    @property
    def label(self) -> str:
        return ", ".join(self.names)

    def take(self, position):
        """The block's coordinates (…, block) of positions (…, dim)."""
        return jnp.concatenate([position[..., begin:end] for begin, end in self.spans], axis=-1)

    def put(self, position: Float[Array, " dim"], v: Float[Array, " block"]) -> Float[Array, " dim"]:
        """``position`` with ``v`` for the block's coordinates."""
        pieces, at, used = [], 0, 0
        for begin, end in self.spans:
            pieces += [position[at:begin], v[used : used + end - begin]]
            at, used = end, used + end - begin
        return jnp.concatenate([*pieces, position[at:]])

    def index(self) -> np.ndarray:
        return np.concatenate([np.arange(begin, end) for begin, end in self.spans])


class Conditional(eqx.Module):
    """log p(u_b, u_−b, D) as a function of the block's coordinates u_b. ``position``: holds u_−b."""

    target: Target
    position: Float[Array, " dim"]
    block: Block = eqx.field(static=True)

    @property
    def dim(self) -> int:
        return self.block.dim

    def flat(self) -> "Conditional":
        return self

    def whole(self, v: Float[Array, " block"]) -> Float[Array, " dim"]:
        return self.block.put(self.position, v)

    def log_density(self, v: Float[Array, " block"]) -> jax.Array:
        return self.target.log_density(self.whole(v))
