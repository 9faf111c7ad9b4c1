"""Stochastic ascent of a variational objective (Kucukelbir et al. 2017), in natural coordinates.

    z_1 … z_K ~ N(0, I) in pairs ±z;  g = ∇_ξ objective(log weights) at ξ = 0   (objectives/, gradients/)
    v = momentum of ρ F⁻¹g;  q ← move(q, v)                                   (optimisers/, families/)

Iterates are averaged (Polyak & Juditsky 1992) over a *stretch* of steps, in NUM_PARTS running sums, one a part. The
end of a stretch is a review (review.py): how far the parts differ says whether it was stationary and what the average
still lacks; then the fit is done, or the step size changes and a stretch of twice the length begins. Once done, a
step does nothing.

A step whose gradient or result is not finite is not taken: the momentum is dropped and q contracts about its mean,
until its draws keep to where the density is finite.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from credo.algorithm import Algorithm
from credo.compiling import sound
from credo.linalg.operator import Stored
from credo.methods.vi.families.family import Family
from credo.methods.vi.gradients.estimator import Estimator
from credo.methods.vi.minibatch import Anchor, lay_anchor
from credo.methods.vi.objectives.objective import Objective
from credo.methods.vi.optimisers.optimiser import Optimiser
from credo.methods.vi.review import NUM_PARTS, Review, review
from credo.methods.vi.start import Begun
from credo.model.target import Target
from credo.posterior.kinds import Kind
from credo.tree import where


class Tuning(NamedTuple):
    """``known``: what the gradient estimator prepared. ``begun``: for the end of the fit; steps do without.

    ``largest_sd``: where an sd of q is beyond it, or its middle lies so far out, q is escaping to infinity.
    """

    known: Any
    largest_sd: Float[Stored, ""]
    begun: Begun | None = None


class State(NamedTuple):
    """``momentum``: the optimiser's state, which begins anew in each stretch. ``sums``: q summed over the steps of each
    part, leaves (NUM_PARTS, …).

    ``count``: steps of this stretch. ``reviewed``: what the last review kept.
    ``anchor``: that of minibatches, else None.
    """

    q: Kind
    momentum: Any
    sums: Kind
    count: Float[Array, ""]
    part_length: Float[Array, ""]
    step_size: Float[Array, ""]
    reviewed: Review
    anchor: Anchor | None


class Info(NamedTuple):
    """``objective``: its estimate before the step, NaN once done. ``is_taken``: the step was, its gradient finite."""

    objective: Float[Array, ""]
    is_taken: Bool[Array, ""]


@dataclass(frozen=True)
class Ascent:
    """The settings that the compiled step is keyed on."""

    family: Family
    objective: Objective
    gradient: Estimator
    optimiser: Optimiser
    num_samples: int
    batch_size: int | None
    tolerance: float
    draws_at_once: int

    @property
    def has_anchor(self) -> bool:
        return self.batch_size is not None and self.gradient.has_paths

    def blank(self, target: Target) -> State:
        """Zeros in the shapes of a state, on the host: nothing is compiled."""

        def build(target):
            q = self.family.start(jnp.zeros(target.dim), jnp.ones(target.dim))
            return State(
                q=q,
                momentum=self.optimiser.start(self.family.rest(q)),
                sums=_no_sums(q),
                count=jnp.zeros((), jnp.int32),
                part_length=jnp.zeros((), jnp.int32),
                step_size=jnp.zeros(()),
                reviewed=Review.none(q),
                anchor=lay_anchor(target, self.family.center(q)) if self.has_anchor else None,
            )

        return jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), jax.eval_shape(build, target))

    def begin(self, target: Target, q: Kind, step_size: float, part_length: int) -> State:
        """At q, at rest, with nothing summed."""
        blank = self.blank(target)
        q = jax.tree.map(lambda leaf, like: np.asarray(leaf, like.dtype), q, blank.q)
        infinity = _like(blank.step_size, np.inf)
        return blank._replace(
            q=q,
            part_length=_like(blank.part_length, part_length),
            step_size=_like(blank.step_size, step_size),
            reviewed=blank.reviewed._replace(q=q, objective=-infinity, gap=infinity, is_drifting=np.ones((), bool)),
            anchor=sound(lay_anchor)(target, self.family.center(q)) if self.has_anchor else None,
        )

    def algorithm(self, target: Target, tuning: Tuning) -> Algorithm:
        """``init(key, state)`` is the state itself: it was begun on the host."""

        def ascend(key, state: State) -> tuple[State, Info]:
            k_noise, k_batch = jax.random.split(key)
            rest = self.family.rest(state.q)
            z = self.gradient.noise(self.objective, self.family, k_noise, self.num_samples, target.dim)
            log_density = self.gradient.density(target, state.anchor, self.batch_size, k_batch)

            def objective(tangent):
                return self.gradient.surrogate(
                    self.objective, self.family, state.q, tangent, log_density, z, tuning.known, self.draws_at_once
                )

            value, g = jax.value_and_grad(objective)(rest)
            direction = self.family.natural(g, state.step_size)
            still = self.optimiser.start(rest)
            momentum = where(state.count == 0, still, state.momentum)
            step, momentum = self.optimiser.update(direction, momentum, state.step_size)
            q = self.family.move(state.q, step)
            is_finite = jnp.isfinite(value) & _all_finite((momentum, q))
            q = where(is_finite, q, self.family.contract(state.q))
            momentum = where(is_finite, momentum, still)
            part = jnp.minimum(state.count // state.part_length, NUM_PARTS - 1).astype(jnp.int32)
            sums = jax.tree.map(lambda total, leaf: total.at[part].add(leaf), state.sums, q)
            state = state._replace(q=q, momentum=momentum, sums=sums, count=state.count + 1)
            return state, Info(value, is_finite)

        def conclude(key, state: State) -> State:
            parts = jax.tree.map(lambda total: total / state.part_length, state.sums)
            reviewed, step_size = review(self, target, tuning, key, parts, state)
            return State(
                q=reviewed.q,
                momentum=state.momentum,
                sums=_no_sums(state.q),
                count=jnp.zeros_like(state.count),
                part_length=2 * state.part_length,
                step_size=step_size,
                reviewed=reviewed,
                anchor=None if state.anchor is None else lay_anchor(target, self.family.center(reviewed.q)),
            )

        def step(key, state: State) -> tuple[State, Info]:
            k_step, k_review = jax.random.split(key)
            idle = Info(jnp.full_like(state.step_size, jnp.nan), jnp.zeros((), bool))
            state, info = jax.lax.cond(
                state.reviewed.is_done, lambda state: (state, idle), lambda state: ascend(k_step, state), state
            )
            is_over = (state.count >= NUM_PARTS * state.part_length) & ~state.reviewed.is_done
            return jax.lax.cond(is_over, lambda state: conclude(k_review, state), lambda state: state, state), info

        return Algorithm(lambda key, state: state, step)

    def record(self, state: State) -> dict[str, jax.Array]:
        return {}


def _like(array, value) -> np.ndarray:
    return np.asarray(value, array.dtype)


def _no_sums(q: Kind) -> Kind:
    return jax.tree.map(lambda leaf: jnp.zeros((NUM_PARTS, *leaf.shape), leaf.dtype), q)


def _all_finite(tree) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))
