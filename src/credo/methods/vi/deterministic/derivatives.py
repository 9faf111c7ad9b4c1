"""Value, gradient and second derivatives of one density at many positions: the one program that a small fit compiles.

The mode and every evaluation of the deterministic objective come from it, whatever the number of draws: positions
fill a buffer of fixed length, and the loop over them ends where they do; the buffer of their Hessians, which most calls
do without, is shorter. Around one position nothing is vectorised where the model is small, so that the whole becomes
one native function (native.py); where data are large, several positions read them together.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Float

from credo.cores import in_groups, num_cores
from credo.linalg.products import second_order
from credo.methods.optimise.newton import Evaluation, Proposal
from credo.methods.optimise.subproblem import Dense, columns
from credo.model.target import Target
from credo.native import jit
from credo.precision import double

VALUE, GRADIENT, HESSIAN = range(3)  # what is asked for, with what comes before
BUFFER = 512  # positions a call
HESSIANS = 32, 256  # of them a call, at least and at most
BUFFER_BYTES = 2 * 2**20  # of the Hessians
LARGE = 5e6  # positions times numbers of data, times dimensions for Hessians: about ten milliseconds
SMALL = 20_000  # rows times dimensions up to which columns of a Hessian come one after the other
TOGETHER = 8, 100_000  # positions that read the data at once, from so many rows times dimensions on


class Derivatives(NamedTuple):
    """At K positions. ``hessians``: (K, dim, dim), or None where they were not asked for."""

    values: Float[np.ndarray, " K"]
    gradients: Float[np.ndarray, "K dim"]
    hessians: Float[np.ndarray, "K dim dim"] | None


@dataclass(frozen=True)
class AtPositions:
    """How the program is compiled. ``length``: Hessians a call; ``chunk``: columns at once, 1 for a loop over them;
    ``block``: positions at once where no Hessians are asked for.

    It also is a solver of trust-region problems (newton.py), so that the mode needs no program of its own.
    """

    length: int
    chunk: int
    block: int = 1

    @classmethod
    def suited(cls, target: Target, chunk: int) -> "AtPositions":
        length = int(np.clip(BUFFER_BYTES // (8 * max(target.dim, 1) ** 2), *HESSIANS))
        size, (block, large) = target.size * target.dim, TOGETHER
        return cls(length, 1 if size <= SMALL else chunk, 1 if size <= large else min(block, chunk))

    def derivatives(self, objective, args, positions: np.ndarray, *, with_hessians: bool) -> Derivatives:
        """Of ``objective(args, u)``, a module-level function, at ``positions`` (K, dim)."""
        (num, dim), dtype, first = positions.shape, positions.dtype, 0
        whole = [np.empty((num, *shape), dtype) for shape in ((), (dim,), (dim, dim))[: 3 if with_hessians else 2]]
        for rows, found in self._calls(objective, args, positions, HESSIAN if with_hessians else GRADIENT):
            for each, part in zip(whole, found, strict=False):
                each[first : first + len(rows)] = np.asarray(part)[: len(rows)]
            first += len(rows)
        return Derivatives(*whole, *(() if with_hessians else (None,)))

    def values(self, objective, args, positions: np.ndarray, deadline: float = math.inf) -> Float[np.ndarray, " K"]:
        """Values alone; of the first positions where ``deadline``, by ``time.monotonic()``, comes before the last."""
        parts = []
        for rows, found in self._calls(objective, args, positions, VALUE):
            parts.append(np.asarray(found[0])[: len(rows)])
            if time.monotonic() > deadline:
                break
        return np.concatenate(parts)

    def _calls(self, objective, args, positions: np.ndarray, order: int) -> Iterator[tuple]:
        """(rows, what the program gives for them), in order; by all cores where the work is worth the threads."""
        num, dim = positions.shape
        with_hessians = order == HESSIAN
        work = num * sum(np.size(leaf) for leaf in jax.tree.leaves(args)) * (dim if with_hessians else 1)
        cores = num_cores() if work > LARGE else 1
        size = min(self.length if with_hessians else BUFFER, -(-num // cores))
        is_double = jnp.result_type(float) == jnp.float64

        def call(rows: np.ndarray):
            buffer = np.concatenate([rows, np.zeros((BUFFER - len(rows), dim), rows.dtype)])
            count, asked = np.int32(len(rows)), np.int32(order)
            with double(is_double):  # a thread has its own
                shape = {"length": self.length, "chunk": self.chunk, "block": self.block}
                found = _derivatives(args, buffer, count, asked, objective=objective, **shape)
                return jax.block_until_ready(found)

        parts = [positions[first : first + size] for first in range(0, num, size)]
        yield from zip(parts, in_groups(call, parts, cores), strict=True)  # none that a deadline would not want

    def evaluate(self, objective, args, u: np.ndarray, minimum: float, last: Proposal | None) -> Evaluation:
        is_open = minimum == -math.inf
        at = self.derivatives(objective, args, u[None], with_hessians=is_open)
        if not is_open and at.values[0] >= minimum:
            at = self.derivatives(objective, args, u[None], with_hessians=True)
        curvature = np.zeros((u.size, u.size), u.dtype) if at.hessians is None else -at.hessians[0]
        resolution = float(np.finfo(u.dtype).eps)
        return Evaluation(float(at.values[0]), at.gradients[0], curvature, (), resolution, u.size)

    def propose(self, at: Evaluation, radius, scale) -> Proposal:
        return Dense(self.chunk).propose(at, radius, scale)


def _at_positions(args, positions, count, order, *, objective, length: int, chunk: int, block: int):
    """The first ``count`` of ``positions`` (num, dim), of which at most ``length`` if Hessians are asked for."""
    num, dim = positions.shape
    with_hessians = order == HESSIAN

    def at(u):
        """A value alone takes a fraction of the time: nothing is kept for derivatives."""
        none = jnp.zeros_like(u), jnp.zeros((dim, dim), u.dtype)
        return lax.cond(order == VALUE, lambda: (objective(args, u), *none), lambda: derivatives(u))

    def derivatives(u):
        value, gradient, product = second_order(lambda v: objective(args, v), u)

        def column(i, matrix):
            return lax.dynamic_update_index_in_dim(matrix, product(jnp.zeros_like(u).at[i].set(1.0)), i, 0)

        none = jnp.zeros((dim, dim), u.dtype)
        if chunk == 1:
            return value, gradient, lax.fori_loop(0, jnp.where(with_hessians, dim, 0), column, none)
        return value, gradient, lax.cond(with_hessians, lambda: columns(product, u, chunk), lambda: none)

    def body(i, buffers):
        found = at(lax.dynamic_index_in_dim(positions, i, keepdims=False))
        return jax.tree.map(lambda buffer, each: lax.dynamic_update_index_in_dim(buffer, each, i, 0), buffers, found)

    def together(i, buffers):
        rows = lax.dynamic_slice_in_dim(positions, i * block, block)
        found = jax.vmap(jax.value_and_grad(lambda u: objective(args, u)))(rows)
        put = [lax.dynamic_update_slice_in_dim(*pair, i * block, 0) for pair in zip(buffers, found, strict=False)]
        return (*put, buffers[2])

    blank = jnp.zeros(num), jnp.zeros((num, dim)), jnp.zeros((length, dim, dim))
    blank = jax.tree.map(lambda leaf: leaf.astype(positions.dtype), blank)
    if block == 1:
        return lax.fori_loop(0, count, body, blank)
    done = lax.fori_loop(0, jnp.where(with_hessians, 0, -(-count // block)), together, blank)
    return lax.fori_loop(0, jnp.where(with_hessians, count, 0), body, done)


_derivatives = jit(_at_positions, static_argnames=("objective", "length", "chunk", "block"))
