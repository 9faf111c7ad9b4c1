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

One uniform number decides all choices of a doubling: given that leaf i was kept, or not, it is again uniform on the
part of (0, 1) that said so. The binary digits of one more say in which direction each doubling goes.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from credo.algorithm import Algorithm, Stages
from credo.gradients import value_and_gradient
from credo.linalg.diagonal import Diagonal
from credo.linalg.operator import ScaleOperator
from credo.methods.mcmc.integrators import LEAPFROG, Integrator, Point, Reference, starting_point
from credo.methods.mcmc.noise import start_of_transition
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
    momentum_sum: Float[Array, " dim"]  # ρ of the whole
    is_turning: Bool[Array, ""]
    is_divergent: Bool[Array, ""]
    is_discarded: Bool[Array, ""]  # the doubling under way, for a turn or a divergence within
    # the doubling under way
    side: Int[Array, ""]  # the end that grows: 0 backward, 1 forward
    leaf: Int[Array, ""]  # n; −1 between two doublings
    new_proposal: State
    new_weight: Float[Array, ""]  # W'
    new_momentum_sum: Float[Array, " dim"]
    uniform: Float[Array, ""]
    open: Open
    # what does not change
    kinetic: Float[Array, ""]  # of the start
    log_density: Float[Array, ""]
    sides: Int[Array, ""]  # a binary digit a doubling
    choices: Float[Array, " max_depth"]


def nuts(
    target,
    *,
    step_size: float | Float[Array, ""],
    metric: ScaleOperator | None = None,
    max_depth: int = 10,
    depth_limit: Int[Array, ""] | None = None,
    integrator: Integrator = LEAPFROG,
    reference: Reference | None = None,
) -> Algorithm:
    """NUTS on ``target`` (positions in R^dim). ``metric``: S, whose S Sᵀ resembles the covariance; identity if None.

    ``max_depth``: at most 2^max_depth leaves; ``depth_limit``: the same as an argument of the compiled program, where
    it is smaller for a while. ``reference``: the Gaussian whose paths are solved exactly, if any.
    """
    target = target.flat()
    evaluate = value_and_gradient(target.log_density)

    def init(key, position) -> State:
        return State(position, *evaluate(position))

    def scale_of(state: State) -> ScaleOperator:
        return Diagonal(jnp.ones_like(state.position)) if metric is None else metric

    def begin(key, state: State, previous: Trajectory | None) -> Trajectory:
        """The trajectory of one leaf of weight one."""
        dim, dtype = state.position.size, state.position.dtype
        momentum, choices = start_of_transition(key, dim, (1 + max_depth,), dtype)
        rows = jnp.zeros((max_depth + 1, dim), dtype)
        zero, false, none = jnp.zeros((), dtype), jnp.bool_(False), jnp.int32(0)
        point = starting_point(state, momentum, scale_of(state), reference)
        return Trajectory(
            ends=jax.tree.map(lambda v: jnp.stack([v, v]), point),
            proposal=state, weight=zero + 1, num_doublings=none, sum_acceptance=zero, num_leaves=none,
            momentum_sum=momentum, is_turning=false, is_divergent=false, is_discarded=false,
            side=none, leaf=none - 1, new_proposal=state, new_weight=zero, new_momentum_sum=jnp.zeros(dim, dtype),
            uniform=zero, open=Open(rows, rows, rows) if previous is None else previous.open,
            kinetic=0.5 * jnp.sum(momentum * momentum), log_density=state.log_density,
            sides=jnp.floor(choices[0] * (1 << max_depth)).astype(jnp.int32), choices=choices[1:],
        )  # fmt: skip

    def double(t: Trajectory, is_due: bool | Bool[Array, ""] = True) -> Trajectory:
        """Begin a doubling, a subtree of as many leaves as there are, if one ``is_due``."""
        k = jnp.minimum(t.num_doublings, max_depth - 1)
        side = jnp.where(is_due, t.sides >> k & 1, t.side)
        row = jnp.where(is_due, 0, max_depth)  # the last row takes what nobody asks for
        first = _put(t.open.first, _at(t.ends.momentum, 1 - side), row)
        sum_before = _put(t.open.sum_before, -t.momentum_sum, row)
        zero = jnp.zeros_like(t.weight), jnp.zeros_like(t.momentum_sum)
        new_weight, new_momentum_sum = where(jnp.asarray(is_due), zero, (t.new_weight, t.new_momentum_sum))
        return t._replace(
            side=side,
            leaf=jnp.where(is_due, 0, t.leaf),
            new_weight=new_weight,
            new_momentum_sum=new_momentum_sum,
            uniform=jnp.where(is_due, _at(t.choices, k), t.uniform),
            open=t.open._replace(first=first, sum_before=sum_before),
        )

    def grow(t: Trajectory) -> Trajectory:
        """One leaf more."""
        dtype = t.weight.dtype
        bounds = (-700.0, 500.0) if dtype == jnp.float64 else (-80.0, 50.0)  # no weight is 0, and no sum overflows
        old = jax.tree.map(lambda end: _at(end, t.side), t.ends)
        signed = step_size * jnp.where(t.side == 1, 1, -1).astype(dtype)
        new, gradient = integrator.step(evaluate, scale_of(t.proposal), old, signed, reference)
        kinetic = 0.5 * jnp.sum(new.momentum * new.momentum)
        log_weight = (new.log_density - t.log_density) + (t.kinetic - kinetic)  # large ones first: small differences
        is_divergent = ~(log_weight > -MAX_ENERGY_ERROR)  # NaN is one too
        weight = jnp.exp(jnp.clip(log_weight, *bounds))
        new_weight = t.new_weight + weight
        share = t.uniform * new_weight
        is_kept = share < weight
        uniform = jnp.where(is_kept, share, share - weight) / jnp.where(is_kept, weight, t.new_weight)
        candidate = State(new.position, new.log_density, gradient)
        momentum_sum = t.new_momentum_sum + new.momentum

        num_ones, num_rows = _trailing_ones(t.leaf), lax.population_count(t.leaf >> 1) + 1
        is_even = num_ones == 0
        opened = Open(new.momentum, old.momentum, t.new_momentum_sum)
        row = jnp.where(is_even, num_rows, max_depth)
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
            new_momentum_sum=momentum_sum,
            uniform=uniform,
            open=stretches,
        )

    def is_doubled(t: Trajectory):
        return (t.leaf >= 1 << t.num_doublings) | t.is_turning | t.is_discarded

    def join(t: Trajectory, is_due: bool | Bool[Array, ""] = True) -> Trajectory:
        """Take the doubling, or not, if it ``is_due``."""
        is_taken = is_due & ~t.is_discarded & (t.uniform * t.weight < t.new_weight)
        return t._replace(
            proposal=where(is_taken, t.new_proposal, t.proposal),
            weight=jnp.where(is_due, t.weight + t.new_weight, t.weight),
            momentum_sum=jnp.where(is_due, t.momentum_sum + t.new_momentum_sum, t.momentum_sum),
            num_doublings=jnp.where(is_due, t.num_doublings + 1, t.num_doublings),
            leaf=jnp.where(is_due, -1, t.leaf),
        )

    def is_done(t: Trajectory):
        limit = max_depth if depth_limit is None else depth_limit
        limit = limit if reference is None else jnp.minimum(limit, reference.max_depth(step_size))
        return (t.leaf < 0) & ((t.num_doublings >= limit) | t.is_turning | t.is_discarded)

    def end(t: Trajectory) -> tuple[State, Info]:
        num_gradients = t.num_leaves * integrator.num_gradients
        acceptance = t.sum_acceptance / t.num_leaves.astype(t.weight.dtype)
        step, energy = jnp.asarray(step_size, t.weight.dtype), t.kinetic - t.log_density
        return t.proposal, Info(acceptance, num_gradients, t.is_divergent, energy, t.num_doublings, step)

    def advance(t: Trajectory) -> Trajectory:
        """One leaf, with the doubling that it begins or ends."""
        t = grow(double(t, t.leaf < 0))
        return join(t, is_doubled(t))

    def step(key, state: State) -> tuple[State, Info]:
        """The same in two loops, which leave out what ``advance`` does at each leaf in vain."""

        def doubling(t: Trajectory) -> Trajectory:
            return join(lax.while_loop(lambda t: ~is_doubled(t), grow, double(t)))

        return end(lax.while_loop(lambda t: ~is_done(t), doubling, begin(key, state, None)))

    return Algorithm(init, step, Stages(begin, advance, is_done, end))


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
