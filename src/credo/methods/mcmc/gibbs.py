"""Gibbs sampling (Geman & Geman 1984; Gelfand & Smith 1990): blocks of parameters move in turn, each given the others.

for b = 1, …, B:  u_b ~ K_b(· | u_−b, D)          K_b: updates[b]; u_b: the coordinates of block b, u_−b: all others

Each K_b leaves p(u_b | u_−b, D) invariant: it draws from it, or is a step of any kernel on it (Metropolis within Gibbs:
Tierney 1994, section 2.4). Hence so does the sweep with p(u | D), whatever the order of the blocks, which is fixed.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from credo.algorithm import Algorithm


class Moved(NamedTuple):
    """What became of a block. ``position``: the whole one. ``carried``: what the update takes along to the next sweep.

    ``log_density``: at ``position``, None where the update does not know it. ``is_valid``: False where a conditional
    gave what the block cannot be, or is none; the block then stays, so that no other one is blamed for where it went.
    The rest as in ``Info``, of one block.
    """

    position: Float[Array, " dim"]
    carried: Any = None
    log_density: Float[Array, ""] | None = None
    acceptance: Any = 1
    num_steps: Any = 0
    num_densities: Any = 0
    num_undefined: Any = 0
    is_divergent: Any = False
    is_valid: Any = True


class Update(NamedTuple):
    """``init(key, position) -> carried`` and ``step(key, position, carried) -> Moved``, pure and traceable."""

    init: Callable[[Any, Any], Any]
    step: Callable[[Any, Any, Any], Moved]


class State(NamedTuple):
    """``carried``: an entry a block. ``has_moved``: which coordinates have ever changed."""

    position: Float[Array, " dim"]
    log_density: Float[Array, ""]
    carried: tuple[Any, ...]
    has_moved: Bool[Array, " dim"]


class Info(NamedTuple):
    """Of a sweep. ``num_steps``: gradients; ``num_densities``: beside those; ``num_undefined``: that are NaN or +inf.

    ``is_divergent``: whether any block is.
    """

    log_density: Float[Array, ""]
    acceptance: Float[Array, " block"]
    num_steps: Int[Array, ""]
    num_densities: Int[Array, ""]
    num_undefined: Int[Array, ""]
    is_divergent: Bool[Array, ""]
    is_valid: Bool[Array, " block"]


def gibbs(target, *, updates: Sequence[Update]) -> Algorithm:
    """A sweep through ``updates``, one a block, on ``target`` (positions in R^dim)."""
    target = target.flat()

    def init(key, position) -> State:
        carried = tuple(update.init(jax.random.fold_in(key, b), position) for b, update in enumerate(updates))
        return State(position, target.log_density(position), carried, jnp.zeros(position.shape, bool))

    def step(key, state: State) -> tuple[State, Info]:
        position, moves = state.position, []
        for b, (update, carried) in enumerate(zip(updates, state.carried, strict=True)):
            moves.append(update.step(jax.random.fold_in(key, b), position, carried))
            position = jnp.where(moves[-1].is_valid, moves[-1].position, position)
        known, dtype = moves[-1].log_density, position.dtype
        log_density = target.log_density(position) if known is None else known
        info = Info(
            log_density,
            acceptance=jnp.stack([jnp.asarray(moved.acceptance, dtype) for moved in moves]),
            num_steps=_total(moved.num_steps for moved in moves),
            num_densities=_total(moved.num_densities for moved in moves) + (known is None),
            num_undefined=_total(moved.num_undefined for moved in moves),
            is_divergent=jnp.any(jnp.stack([jnp.asarray(moved.is_divergent) for moved in moves])),
            is_valid=jnp.stack([jnp.asarray(moved.is_valid) for moved in moves]),
        )
        has_moved = state.has_moved | (position != state.position)
        return State(position, log_density, tuple(moved.carried for moved in moves), has_moved), info

    return Algorithm(init, step)


def _total(counts) -> Int[Array, ""]:
    return jnp.sum(jnp.stack([jnp.asarray(count, jnp.int32) for count in counts]), dtype=jnp.int32)
