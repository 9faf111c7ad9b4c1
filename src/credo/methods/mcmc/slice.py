"""Slice sampling (Neal 2003, figures 3 and 5) along the columns of a metric, one after another (Tibbits et al. 2014).

For each column s of S, with e ~ Exponential(1) and v, v' ~ Uniform(0, 1):
    {t: log p(u + t s) − log p(u) > −e}       the slice; drop: −e
    L = −w v,  R = L + w                      left, right: an interval round t = 0; w: width
    J = ⌊m v'⌋,  K = m − 1 − J                left_steps, right_steps; m: max_widths
    step out:  L ← L − w while J > 0 and L lies in the slice, J ← J − 1; then R likewise with K
    shrink:    t ~ Uniform(L, R); in the slice u ← u + t s, else t takes the place of the end on its side of 0

The slice is one of differences, since log p(u) − e is rounded where log p(u) is large: about −3·10⁶ float32 has
multiples of ¼. The random split of the m − 1 steps makes an interval as likely from its new point as from the old. A
shrinkage that finds nothing leaves u where it is: the ways there and back are equally long, so that stopping them both
is fair.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from credo.algorithm import Algorithm, Stages
from credo.linalg.diagonal import Diagonal
from credo.linalg.operator import ScaleOperator
from credo.methods.mcmc.random_walk import State, is_undefined
from credo.tree import where

MAX_SHRINKS = 200  # each takes a quarter off on average, or more: 200 leave 1e-25 of an interval


class Info(NamedTuple):
    """``num_densities``: evaluated; ``num_undefined``: of these, NaN or +inf."""

    num_densities: Int[Array, ""]
    num_undefined: Int[Array, ""]


class Slice(NamedTuple):
    """One column's update under way."""

    drop: Float[Array, ""]  # −e
    direction: Float[Array, " dim"]  # s
    left: Float[Array, ""]
    right: Float[Array, ""]
    left_steps: Int[Array, ""]
    right_steps: Int[Array, ""]
    num_shrinks: Int[Array, ""]


class Sweep(NamedTuple):
    """A step under way: one density for each ``advance``, whatever it is for."""

    key: Array
    state: State
    column: Int[Array, ""]
    is_open: Bool[Array, ""]  # whether the slice is that of the column, or of one before it
    slice: Slice
    num_densities: Int[Array, ""]
    num_undefined: Int[Array, ""]


def slice_sampling(
    target, *, metric: ScaleOperator | None = None, width: float = 3.0, max_widths: int = 16
) -> Algorithm:
    """A sweep through all columns of ``metric`` on ``target`` (positions in R^dim).

    ``metric``: S, whose S Sᵀ resembles the covariance; identity if None. ``width``: w, in lengths of the column.
    """
    target = target.flat()

    def init(key, position) -> State:
        return State(position, target.log_density(position))

    def begin(key, state: State, previous) -> Sweep:
        zero, none = jnp.zeros_like(state.log_density), jnp.int32(0)
        blank = Slice(zero, state.position, zero, zero, none, none, none)
        return Sweep(key, state, none, jnp.bool_(False), blank, none, none)

    def open_slice(state: State, column, uniform) -> Slice:
        scale = Diagonal(jnp.ones_like(state.position)) if metric is None else metric
        direction = scale.matvec(
            (jnp.arange(state.position.size, dtype=jnp.int32) == column).astype(state.position.dtype)
        )
        left = -width * uniform[1]
        left_steps = jnp.floor(max_widths * uniform[2]).astype(jnp.int32)
        drop = jnp.log1p(-uniform[0])
        return Slice(drop, direction, left, left + width, left_steps, max_widths - 1 - left_steps, jnp.int32(0))

    def advance(sweep: Sweep) -> Sweep:
        state, count = sweep.state, sweep.num_densities + 1
        uniform = jax.random.uniform(jax.random.fold_in(sweep.key, count), (4,), state.position.dtype)
        s = lax.cond(sweep.is_open, lambda: sweep.slice, lambda: open_slice(state, sweep.column, uniform))
        is_left = s.left_steps > 0
        is_right = ~is_left & (s.right_steps > 0)
        is_draw = ~is_left & ~is_right
        t = jnp.where(is_left, s.left, jnp.where(is_right, s.right, s.left + uniform[3] * (s.right - s.left)))
        position = state.position + t * s.direction
        new = State(position, target.log_density(position))
        is_unknown = is_undefined(new.log_density)
        is_inside = (new.log_density - state.log_density > s.drop) & ~is_unknown
        is_out = is_draw & ~is_inside
        s = s._replace(
            left=jnp.where(is_left & is_inside, s.left - width, jnp.where(is_out & (t < 0), t, s.left)),
            right=jnp.where(is_right & is_inside, s.right + width, jnp.where(is_out & (t >= 0), t, s.right)),
            left_steps=jnp.where(is_left, jnp.where(is_inside, s.left_steps - 1, 0), s.left_steps),
            right_steps=jnp.where(is_right, jnp.where(is_inside, s.right_steps - 1, 0), s.right_steps),
            num_shrinks=s.num_shrinks + is_out.astype(jnp.int32),
        )
        is_found = is_draw & is_inside
        is_over = is_found | (s.num_shrinks >= MAX_SHRINKS)
        column = sweep.column + is_over.astype(jnp.int32)
        num_undefined = sweep.num_undefined + is_unknown.astype(jnp.int32)
        return Sweep(sweep.key, where(is_found, new, state), column, ~is_over, s, count, num_undefined)

    def is_done(sweep: Sweep):
        return sweep.column >= sweep.state.position.size

    def end(sweep: Sweep) -> tuple[State, Info]:
        return sweep.state, Info(sweep.num_densities, sweep.num_undefined)

    stages = Stages(begin, advance, is_done, end)
    return Algorithm(init, stages.step, stages)
