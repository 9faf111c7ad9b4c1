"""The no-U-turn sampler (Hoffman & Gelman 2014), multinomial (Betancourt 2017, appendix A), grown leaf by leaf.

A trajectory doubles, forwards or backwards in time at random, until it turns back on itself:
    H(u, r) = −log p(u) + ½ rᵀr       energy; r is the momentum in the metric's white coordinates (integrators.py)
    w_i = exp(H_0 − H_i)              weight of leaf i; H_0 is the energy at the start
    within a doubling, leaf i is kept with probability w_i / Σ_{j≤i} w_j
    a doubling of weight W' replaces the proposal of the W before it with probability min(1, W'/W)
    a stretch from leaf a to leaf b turns where r_a·ρ ≤ 0 or r_b·ρ ≤ 0, with ρ = Σ r over the stretch,
and so it does where either half turns with the leaf of the other half next to it (Stan's additional checks).

A doubling of 2^k leaves is not recursive (Phan et al. 2019; Lao & Dillon 2019): of all the stretches that begin at an
even leaf only those still open need their first momentum, at most k, and leaf n closes as many as n ends in ones in
binary. Row 0 of the open stretches is the whole trajectory, so that one loop checks everything.

One uniform number decides all choices of leaves within a doubling: given that leaf i was kept, or not, it is again
uniform on the part of (0, 1) that said so.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from credo.linalg.diagonal import Diagonal
from credo.linalg.operator import ScaleOperator
from credo.methods.mcmc.integrators import LEAPFROG, Integrator, Point
from credo.methods.mcmc.noise import start_of_transition
from credo.native import value_and_gradient
from credo.run import Algorithm
from credo.tree import where

MAX_ENERGY_ERROR = 1_000.0  # Stan's bound of a divergence. A fall is none: from a far start energies fall by millions


class State(NamedTuple):
    position: Float[Array, " dim"]
    log_density: Float[Array, ""]
    gradient: Float[Array, " dim"]

    @classmethod
    def like(cls, position) -> "State":
        """Right in shapes and types alone."""
        return cls(position, position.sum(), position)


class Info(NamedTuple):
    """``acceptance``: mean of min(1, w_i). ``num_steps``: gradients. ``energy``: H_0. ``depth``: doublings."""

    acceptance: Float[Array, ""]
    num_steps: Int[Array, ""]
    is_divergent: Bool[Array, ""]
    energy: Float[Array, ""]
    depth: Int[Array, ""]
    step_size: Float[Array, ""]


class Open(NamedTuple):
    """Stretches that are not closed yet, a row each: r of the first leaf, r of the leaf before it, ρ up to there."""

    first: Float[Array, "row dim"]
    before: Float[Array, "row dim"]
    sum_before: Float[Array, "row dim"]


class Trajectory(NamedTuple):
    ends: Point  # its backward and its forward end: arrays (2, …)
    proposal: State
    weight: Float[Array, ""]  # W
    num_doublings: Int[Array, ""]
    sum_acceptance: Float[Array, ""]
    num_leaves: Int[Array, ""]
    is_turning: Bool[Array, ""]
    is_divergent: Bool[Array, ""]
    is_discarded: Bool[Array, ""]  # the doubling under way, for a turn or a divergence within
    # the doubling under way
    side: Int[Array, ""]  # the end that grows: 0 backward, 1 forward
    leaf: Int[Array, ""]  # n
    new_proposal: State
    new_weight: Float[Array, ""]  # W'
    uniform: Float[Array, ""]
    open: Open
    momentum_sum: Float[Array, " dim"]  # ρ of the doubling


def nuts(
    target,
    *,
    step_size: float | Float[Array, ""],
    metric: ScaleOperator | None = None,
    max_depth: int = 10,
    integrator: Integrator = LEAPFROG,
) -> Algorithm:
    """NUTS on ``target`` (positions in R^dim). ``metric``: S, whose S Sᵀ resembles the covariance; identity if None."""
    target = target.flat()
    evaluate = value_and_gradient(target.log_density)

    def init(key, position) -> State:
        return State(position, *evaluate(position))

    def step(key, state: State) -> tuple[State, Info]:
        dim, dtype = state.position.size, state.position.dtype
        scale = Diagonal(jnp.ones(dim, dtype)) if metric is None else metric
        bounds = (-700.0, 500.0) if dtype == jnp.float64 else (-80.0, 50.0)  # no weight is 0, and no sum overflows
        momentum, (side, leaf_choice, doubling_choice) = start_of_transition(key, dim, (3, max_depth), dtype)
        energy = 0.5 * jnp.sum(momentum * momentum) - state.log_density

        def grow(t: Trajectory) -> Trajectory:
            """One leaf more."""
            old = Point(*(_at(end, t.side) for end in t.ends))
            signed = step_size * jnp.where(t.side == 1, 1, -1).astype(dtype)
            new, gradient = integrator.step(evaluate, scale, old, signed)
            log_weight = energy + new.log_density - 0.5 * jnp.sum(new.momentum * new.momentum)
            is_divergent = ~(log_weight > -MAX_ENERGY_ERROR)  # NaN is one too
            weight = jnp.exp(jnp.clip(log_weight, *bounds))
            new_weight = t.new_weight + weight
            share = t.uniform * new_weight
            is_kept = share < weight
            uniform = jnp.where(is_kept, share, share - weight) / jnp.where(is_kept, weight, t.new_weight)
            candidate = State(new.position, new.log_density, gradient)
            momentum_sum = t.momentum_sum + new.momentum

            num_ones, num_rows = _trailing_ones(t.leaf), lax.population_count(t.leaf >> 1) + 1
            is_even = num_ones == 0
            opened = Open(new.momentum, old.momentum, t.momentum_sum)
            row = jnp.where(is_even, num_rows, max_depth)  # the last row takes what nobody asks for
            stretches = jax.tree.map(lambda rows, r: _put(rows, r, row), t.open, opened)
            is_last = t.leaf + 1 == 1 << t.num_doublings
            smallest = num_rows - is_even.astype(jnp.int32)
            largest = jnp.where(is_last, 0, num_rows - num_ones + 1)
            turned = _closing_turns(stretches, momentum_sum, new.momentum, smallest, largest, num_rows)
            return t._replace(
                ends=jax.tree.map(lambda end, v: _put(end, v, t.side), t.ends, new),
                sum_acceptance=t.sum_acceptance + jnp.where(is_divergent, 0, jnp.minimum(1, weight)),
                num_leaves=t.num_leaves + 1,
                is_turning=turned == 0,
                is_divergent=is_divergent,
                is_discarded=is_divergent | (turned > 0),
                leaf=t.leaf + 1,
                new_proposal=where(is_kept, candidate, t.new_proposal),
                new_weight=new_weight,
                uniform=uniform,
                open=stretches,
                momentum_sum=momentum_sum,
            )

        def double(t: Trajectory) -> Trajectory:
            """One doubling more: a subtree of as many leaves as there are."""
            k = t.num_doublings
            grown = (side[k] >= 0.5).astype(jnp.int32)
            far = _at(t.ends.momentum, 1 - grown)
            sum_far = t.open.sum_before[0] - t.momentum_sum
            whole = t.open._replace(first=_put(t.open.first, far, 0), sum_before=_put(t.open.sum_before, sum_far, 0))
            zero = jnp.zeros((), dtype)
            t = t._replace(
                side=grown, leaf=jnp.int32(0), new_weight=zero, uniform=leaf_choice[k], open=whole,
                momentum_sum=jnp.zeros(dim, dtype),
            )  # fmt: skip
            t = lax.while_loop(lambda t: (t.leaf < 1 << k) & ~t.is_turning & ~t.is_discarded, grow, t)
            is_taken = ~t.is_discarded & (doubling_choice[k] * t.weight < t.new_weight)
            return t._replace(
                proposal=where(is_taken, t.new_proposal, t.proposal),
                weight=t.weight + t.new_weight,
                num_doublings=k + 1,
            )

        t = _trivial(state, momentum, scale.transpose_matvec(state.gradient), max_depth)
        t = lax.while_loop(lambda t: (t.num_doublings < max_depth) & ~t.is_turning & ~t.is_discarded, double, t)
        num_gradients = t.num_leaves * integrator.num_gradients
        acceptance = t.sum_acceptance / t.num_leaves.astype(dtype)
        return t.proposal, Info(
            acceptance, num_gradients, t.is_divergent, energy, t.num_doublings, jnp.asarray(step_size, dtype)
        )

    return Algorithm(init, step)


def _trivial(state: State, momentum, force, max_depth: int) -> Trajectory:
    """The trajectory of one leaf of weight one. ρ of the doubling so far is that of the start."""
    zero, false, none = jnp.zeros_like(state.log_density), jnp.bool_(False), jnp.int32(0)
    point = Point(state.position, momentum, force, state.log_density)
    rows = jnp.zeros((max_depth + 1, momentum.size), momentum.dtype)
    return Trajectory(
        ends=jax.tree.map(lambda v: jnp.stack([v, v]), point),
        proposal=state, weight=zero + 1, num_doublings=none, sum_acceptance=zero, num_leaves=none,
        is_turning=false, is_divergent=false, is_discarded=false,
        side=none, leaf=none, new_proposal=state, new_weight=zero, uniform=zero,
        open=Open(rows, rows, rows), momentum_sum=momentum,
    )  # fmt: skip


def _closing_turns(open: Open, momentum_sum, momentum, row, largest, num_rows) -> Int[Array, ""]:
    """Check the stretches that end here, from the smallest (``row``) to the ``largest`` -> the row that turns, or −1.

    ``num_rows``: the row of the smallest stretch, of two leaves, which has no halves to check.
    """

    def check(carry):
        i, _ = carry
        first, sum_first = _at(open.first, i), _at(open.sum_before, i)
        middle, before_middle, sum_middle = (_at(rows, i + 1) for rows in open)
        whole = momentum_sum - sum_first
        left, right = sum_middle - sum_first + middle, momentum_sum - sum_middle + before_middle
        of_whole, of_left, of_right = _min_dots(
            (first, whole), (momentum, whole), (first, left), (middle, left), (before_middle, right), (momentum, right)
        )
        is_straight = (of_whole > 0) & ((i == num_rows) | ((of_left > 0) & (of_right > 0)))
        return jnp.where(is_straight, i - 1, i), ~is_straight

    row, is_turning = lax.while_loop(lambda c: (c[0] >= largest) & ~c[1], check, (row, jnp.bool_(False)))
    return jnp.where(is_turning, row, -1)


def _min_dots(*pairs):
    """The smaller inner product of each two pairs, all of them in one pass over memory."""
    products = [a * b for a, b in pairs]
    zeros = [jnp.zeros((), p.dtype) for p in products]
    dots = lax.reduce(products, zeros, lambda x, y: [a + b for a, b in zip(x, y, strict=True)], [0])
    return [jnp.minimum(a, b) for a, b in zip(dots[::2], dots[1::2], strict=True)]


def _at(rows, i):
    return lax.dynamic_index_in_dim(rows, i, keepdims=False)


def _put(rows, row, i):
    return lax.dynamic_update_index_in_dim(rows, row, i, 0)


def _trailing_ones(n: Int[Array, ""]) -> Int[Array, ""]:
    return lax.population_count(n & ~(n + 1))
