"""Independent groups of coordinates, each with an operator of its own: S is block diagonal once they are sorted.

A group is a tuple of *spans* (first, end) of the vector, in order: parameters lie in spans, so that picking a group out
is slicing, and putting all groups together is concatenation. Spans are static: part of what compiled code is keyed on.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credo.linalg.operator import ScaleOperator, Stored, is_known
from credo.status import CredoError

Spans = tuple[tuple[int, int], ...]


class BlockDiagonal(ScaleOperator):
    """``BlockDiagonal(blocks, spans)``: operator ``blocks[i]`` acts on the coordinates in ``spans[i]``.

    CredoError where the groups do not cover every coordinate once, or an operator has another dimension than its group.
    """

    blocks: tuple[ScaleOperator, ...]
    spans: tuple[Spans, ...] = eqx.field(static=True)

    def __check_init__(self):
        check_spans(self.spans)
        for block, spans in zip(self.blocks, self.spans, strict=True):
            if block.dim != size_of(spans):
                raise CredoError(f"An operator of dimension {block.dim} was given for {size_of(spans)} coordinates.")

    @property
    def dim(self) -> int:
        return sum(size_of(spans) for spans in self.spans)

    def matvec(self, z) -> Float[Array, " dim"]:
        return self._each(lambda block, part: block.matvec(part), z)

    def transpose_matvec(self, v) -> Float[Array, " dim"]:
        return self._each(lambda block, part: block.transpose_matvec(part), v)

    def solve(self, v) -> Float[Array, " dim"]:
        return self._each(lambda block, part: block.solve(part), v)

    def log_det(self) -> Float[Stored, ""]:
        return sum((block.log_det() for block in self.blocks[1:]), start=self.blocks[0].log_det())

    def diagonal(self) -> Float[Stored, " dim"]:
        return join([block.diagonal() for block in self.blocks], self.spans)

    def dense(self) -> Float[Array, "dim dim"]:
        where = np.concatenate([np.arange(*span) for spans in self.spans for span in spans])
        matrix, first = jnp.zeros((self.dim, self.dim)), 0
        for block in self.blocks:
            group = where[first : first + block.dim]
            matrix, first = matrix.at[np.ix_(group, group)].set(block.dense()), first + block.dim
        return matrix

    def _each(self, function, vector) -> Float[Array, " dim"]:
        parts = [function(block, take(vector, spans)) for block, spans in zip(self.blocks, self.spans, strict=True)]
        return join(parts, self.spans)


def take(vector: Float[Stored, " dim"], spans: Spans) -> Any:
    """The coordinates of one group (size,); on the host where their values are known there."""
    pieces = [vector[first:end] for first, end in spans]
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces) if isinstance(vector, np.ndarray) else jnp.concatenate(pieces)


def join(parts: Sequence[Any], spans: Sequence[Spans]) -> Any:
    """The vector (dim,) whose groups are ``parts``: the inverse of ``take``, group by group."""
    pieces = []
    for part, own in zip(parts, spans, strict=True):
        first = 0
        for start, end in own:
            pieces.append((start, part[first : first + end - start]))
            first += end - start
    ordered = [piece for _, piece in sorted(pieces, key=lambda piece: piece[0])]
    return np.concatenate(ordered) if all(is_known(p) for p in ordered) else jnp.concatenate(ordered)


def size_of(spans: Spans) -> int:
    """The number of coordinates in a group."""
    return sum(end - first for first, end in spans)


def check_spans(groups: Sequence[Spans]) -> None:
    """CredoError where ``groups`` do not cover the coordinates from 0 on once each."""
    expected = 0
    for first, end in sorted(span for spans in groups for span in spans):
        if first != expected or end <= first:
            raise CredoError(f"The groups cover coordinate {min(first, expected)} twice or not at all: {groups}.")
        expected = end
