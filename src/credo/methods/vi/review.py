"""Has the ascent become stationary, and what does its average still lack? In nats, from the iterates themselves.

A stretch has four parts, of which q̄_1 … q̄_4 are the averages, h_1 and h_2 those of its halves, q̄ that of all. With
f the objective on S draws of the same noise z_s for every q; for the ELBO

    f(q) = (1/S) Σ_s log p(T_q(z_s), D) + H(q)

the gap  f(q̄) − ½ (f(h_1) + f(h_2))  is ½ δᵀHδ for δ half the distance of h_1 and h_2 and H the curvature of f. If the
stretch was stationary, h_1 and h_2 are independent and δ has the covariance of q̄'s own error: the expected gap *is*
what q̄ lacks to the optimum of f, whatever f is. q̄ lies in the middle of h_1 and h_2, so that first-order noise
cancels in the gap draw by draw.
Quarters within their halves give the same figure twice over: the larger of the two estimates counts, since in few
dimensions halves may meet by chance. If the stretch drifted, halves differ more than quarters: by four times under a
steady drift, by half when stationary. (R-hat compares the same variances, coordinate by coordinate; Dhaka et al.
2020, section 4.)
"""

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from credo.algorithm import as_key
from credo.batches import in_batches
from credo.methods.vi.gradients.estimator import grouped_noise
from credo.methods.vi.objectives.fisher import FisherDivergence
from credo.methods.vi.objectives.objective import WeightObjective
from credo.model.target import Target
from credo.posterior.kinds import Kind
from credo.tree import where

if TYPE_CHECKING:
    from credo.methods.vi.ascent import Ascent, State, Tuning

NUM_PARTS = 4
AVERAGE, LAST, BEFORE, HALVES, PARTS = 0, 1, 2, slice(3, 5), slice(5, 9)  # where members stand
MEMORY = 1.5  # times 1/ρ, the steps that q remembers: the shortest part that can tell drift
NUM_DRAWS = 64  # S: the gap's own error is then a few percent
NUM_GROUPS = 16  # at least, of an objective whose draws come in groups
LOSS = 1.0  # nats below the last review's q at which the ascent counts as unstable
NUM_ERRORS = 3.0  # standard errors that make a difference of two q's certain
DRIFT = 1.0  # of halves over quarters
SHRINK_UNSTABLE, SHRINK_NOISY = 0.25, 0.7  # of the step size


class Review(NamedTuple):
    """What a review keeps.

    ``q``: the average, or the last iterate where it is better beyond doubt; ``objective`` f(q). ``gap``: nats that the
    average lacks. ``is_drifting``: the stretch was not stationary. ``is_done``: the gap is within tolerance, or q
    ``is_escaping``: it widens without end, as under an improper posterior.
    """

    q: Kind
    objective: Float[Array, ""]
    gap: Float[Array, ""]
    is_drifting: Bool[Array, ""]
    is_done: Bool[Array, ""]
    is_escaping: Bool[Array, ""]

    @classmethod
    def none(cls, q: Kind) -> "Review":
        """Before the first review."""
        zero, no = jnp.zeros(()), jnp.zeros((), bool)
        return cls(q, zero - jnp.inf, zero + jnp.inf, ~no, no, no)


def review(
    ascent: "Ascent", target: Target, tuning: "Tuning", key, parts: Kind, state: "State"
) -> tuple[Review, Float[Array, ""]]:
    """Review a stretch of averages ``parts``, leaves (NUM_PARTS, …), that ended at ``state``; the next step size."""
    before, step_size = state.reviewed, state.step_size
    halves = jax.tree.map(lambda leaf: 0.5 * (leaf[0::2] + leaf[1::2]), parts)
    average = jax.tree.map(lambda leaf: 0.5 * (leaf[0] + leaf[1]), halves)
    single = jax.tree.map(
        lambda *leaves: jnp.stack(leaves), average, state.q, before.q
    )  # in the order of the names above
    members = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), single, halves, parts)
    compared = _along_paths if ascent.gradient.has_paths else _by_weights
    draws = compared(ascent, target, key, members)
    values = jnp.mean(draws, axis=1)
    f_halves, f_parts = values[HALVES], values[PARTS]
    outer = values[AVERAGE] - jnp.mean(f_halves)
    inner = jnp.mean(f_halves) - jnp.mean(f_parts)
    gap = jnp.maximum(jnp.abs(outer), 0.5 * jnp.abs(inner))
    is_drifting = (outer > DRIFT * inner) | (outer < -ascent.tolerance)  # below zero f is not concave

    # the average, unless it is not finite or what came last is better beyond doubt, as it is under drift
    is_last = ~jnp.isfinite(values[AVERAGE]) | (_lead(draws[LAST] - draws[AVERAGE]) > 0)
    best = jnp.where(is_last, LAST, AVERAGE)
    q = jax.tree.map(lambda leaf: leaf[best], members)
    is_worse = ~jnp.isfinite(values[best]) | (_lead(draws[BEFORE] - draws[best]) > LOSS)
    has_moved = step_size * state.part_length > MEMORY  # else parts agree because nothing could happen
    center, variances = ascent.family.location(q)
    is_far = jnp.max(jnp.abs(center)) > tuning.largest_sd
    is_escaping = ~is_worse & (is_far | (jnp.max(variances) > tuning.largest_sd**2))
    reviewed = Review(
        q=where(is_worse, before.q, q),
        objective=jnp.where(is_worse, values[BEFORE], values[best]),
        gap=jnp.where(is_worse, jnp.inf, gap),
        is_drifting=is_worse | is_drifting,
        is_done=is_escaping | (~is_worse & has_moved & (gap <= ascent.tolerance)),
        is_escaping=is_escaping,
    )
    factor = jnp.where(is_worse, SHRINK_UNSTABLE, jnp.where(is_drifting, 1.0, SHRINK_NOISY))
    return reviewed, factor * step_size


def _num_draws(ascent: "Ascent") -> int:
    return ascent.objective.num_samples(max(NUM_DRAWS, NUM_GROUPS * ascent.objective.group_size))


def _along_paths(ascent: "Ascent", target: Target, key, members: Kind) -> Float[Array, "members S"]:
    """The terms of f at each member, made of the same noise; one a mirrored pair, since pairs are independent."""
    objective, family = ascent.objective, ascent.family
    z = grouped_noise(objective, family, key, _num_draws(ascent), target.dim)

    def terms(q):
        rest = family.rest(q)
        if isinstance(objective, FisherDivergence):
            return objective.on_paths(family, q, rest, target.log_density, z, ascent.draws_at_once)
        assert isinstance(objective, WeightObjective)
        entropy = family.entropy(q, rest) if objective.is_linear else None

        def one(z):
            draw = family.settled(q, z)
            log_q = draw.path_log_prob if entropy is None else -entropy
            return target.log_density(draw.u) - log_q, draw.log_share

        return objective.terms(*in_batches(one, z, ascent.draws_at_once))

    found = jax.lax.map(terms, members)
    if objective.group_size == 1:
        return jnp.mean(found.reshape(len(found), 2, -1), axis=1)
    return jnp.mean(found.reshape(len(found), -1, 2), axis=2)


def _by_weights(ascent: "Ascent", target: Target, key, members: Kind) -> Float[Array, "members S"]:
    """The terms of f at each member where draws do not move with q.

    The average, the last iterate and the last review's q have draws of their own. Halves and parts, which lie about
    the average, take its draws with the weights q_part/q̄: so f is smooth in the part, and its first order cancels in
    the gap as it does along paths.
    """
    objective, num = ascent.objective, _num_draws(ascent)
    assert isinstance(objective, WeightObjective)
    keys = jax.random.key_data(jax.random.split(key, 3 * num)).reshape(3, num, -1)

    def one(q, key):
        u = q.sample_u(as_key(key))
        return u, target.log_density(u), q.log_prob_u(u)

    def own(pair):
        q, keys = pair
        return in_batches(lambda key: one(q, key), keys, ascent.draws_at_once)

    u, log_p, log_q = jax.lax.map(own, (jax.tree.map(lambda leaf: leaf[:3], members), keys))
    singles = jax.vmap(lambda found: objective.terms(found, jnp.zeros(num, found.dtype)))(log_p - log_q)
    u, log_p, log_q = (each[AVERAGE] for each in (u, log_p, log_q))
    middle = jnp.mean(log_p - log_q)

    def near(q):
        log_prob = jax.vmap(q.log_prob_u)(u)
        return objective.terms(log_p - log_prob - middle, log_prob - log_q) + objective.shift * middle

    about = jax.lax.map(near, jax.tree.map(lambda leaf: leaf[3:], members))
    return jnp.concatenate([singles, about])


def _lead(differences: Float[Array, " S"]) -> Float[Array, ""]:
    """What is left of the mean of paired differences when its noise is taken off; −inf where one is not a number."""
    error = jnp.std(differences) / jnp.sqrt(differences.size)
    return jnp.nan_to_num(jnp.mean(differences) - NUM_ERRORS * error, nan=-jnp.inf)
