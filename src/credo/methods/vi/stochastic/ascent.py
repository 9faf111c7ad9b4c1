"""Variational ascent on windows of the data, for networks (Hoffman, Blei, Wang & Paisley 2013; Shen et al. 2024).

    g = ∇_ξ of the ELBO on window t at ξ = 0,   v = momentum of ρ_t F⁻¹g,   q ← move(q, v)
    ρ_t: falls by half a cosine from ρ to ρ/10 within the first FALL of the T steps; q over the others is averaged

For independent normals the natural gradient ρ F⁻¹g is IVON's step: the mean moves by ρ σ² ∇ log p, its Newton step with
σ⁻² for the curvature, and the curvature is learned as −E[∂_i log p · (u_i − m_i)/σ_i²], without second derivatives;
as there it is learned more slowly than the mean, and steps are clipped.

Windows follow each other round the shuffled data (model/windows.py) from a random place on, each pass from another: a
window is equally likely to stand anywhere, so that each step's estimate is unbiased. Noise is drawn at every other
step; the step between takes its mirror image, which is as good a draw, and together they cancel what is odd in it.

A step whose objective or result is not finite ends the ascent: q stays as it was, and ``failed_at`` tells the step.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from credo.algorithm import Algorithm
from credo.linalg.operator import Stored
from credo.methods.vi.families.family import Family, Noise
from credo.methods.vi.gradients.estimator import Estimator
from credo.methods.vi.objectives.objective import Objective
from credo.methods.vi.optimisers.optimiser import Optimiser
from credo.model.data import Rows
from credo.model.target import Target
from credo.model.windows import window
from credo.normals import fold_in
from credo.posterior.kinds import Kind
from credo.tree import where

SPREAD = 0.1  # of ρ, for widths: their gradients are noisier than those of means, and too wide a q unsettles both
LONGEST = 0.03  # standard deviations that a mean moves in a step at first, coordinate by coordinate
FALL, LOW = 0.6, 0.1
EVERY = 10  # updates a step of the loop, which records the mean of their objectives
GOLDEN = np.uint32(2_654_435_769)  # 2³² over the golden ratio


class Tuning(NamedTuple):
    """``first``: the place of the first window. ``num_updates``: T. ``step_size``: ρ.

    ``num_warm``: gradients that the start took; steps do without.
    """

    first: Int[Stored, ""]
    num_updates: Int[Stored, ""]
    step_size: Float[Stored, ""]
    num_warm: Int[Stored, ""] | int = 0


class State(NamedTuple):
    """``total``: q summed over the updates that are averaged. ``noise``: of the last update. ``count``: updates taken.

    ``failed_at``: −1, or the update that was not finite.
    """

    q: Kind
    total: Kind
    momentum: Any
    noise: Noise
    count: Int[Array, ""]
    failed_at: Int[Array, ""]


class Info(NamedTuple):
    """``objective``: its mean over the updates of this step; NaN from a failure on."""

    objective: Float[Array, ""]


@dataclass(frozen=True)
class StochasticAscent:
    """The settings that the compiled step is keyed on."""

    family: Family
    objective: Objective
    gradient: Estimator
    optimiser: Optimiser
    num_samples: int
    batch_size: int | None
    draws_at_once: int

    def begin(self, q: Kind) -> State:
        """At q, at rest; traceable, and right in shapes under ``jax.eval_shape``."""
        noise = self.gradient.noise(
            self.objective, self.family, jax.random.key(0), self.num_samples, self.family.center(q).shape[0]
        )
        momentum = self.optimiser.start(self.family.rest(q))
        total = jax.tree.map(jnp.zeros_like, q)
        return State(q, total, momentum, noise, jnp.zeros((), jnp.int32), jnp.full((), -1, jnp.int32))

    def algorithm(self, target: Target, tuning: Tuning) -> Algorithm:
        """``target``: flat and, with a ``batch_size``, shuffled. ``init(key, state)`` is the state itself."""
        dim = target.dim

        def update(key, state: State) -> tuple[State, Float[Array, ""]]:
            q, rest = state.q, self.family.rest(state.q)
            z = jax.lax.cond(
                state.count % 2 == 0,
                lambda: self.gradient.noise(self.objective, self.family, key, self.num_samples, dim),
                lambda: mirrored(state.noise),
            )
            log_density = self.gradient.on_rows(target, self.rows(target, tuning, state.count))

            def objective(tangent):
                return self.gradient.surrogate(
                    self.objective, self.family, q, tangent, log_density, z, None, self.draws_at_once
                )

            value, g = jax.value_and_grad(objective)(rest)
            along = state.count / (FALL * tuning.num_updates)
            ρ = tuning.step_size * (LOW + (1 - LOW) * 0.5 * (1 + jnp.cos(jnp.pi * jnp.minimum(along, 1.0))))
            ρ = jnp.asarray(ρ, value.dtype)
            longest = LONGEST * tuning.step_size / ρ  # once q has settled nothing is clipped, which would bias it
            direction = self.family.careful(self.family.natural(g, ρ), SPREAD, longest)
            momentum = where(state.count == 0, self.optimiser.start(rest), state.momentum)
            step, momentum = self.optimiser.update(direction, momentum, ρ)
            moved = self.family.move(q, step)
            is_fine = (state.failed_at < 0) & jnp.isfinite(value) & _all_finite(moved)
            failed_at = jnp.where(is_fine | (state.failed_at >= 0), state.failed_at, state.count)
            q, momentum = where(is_fine, (moved, momentum), (state.q, state.momentum))
            is_late = (state.count >= first_averaged(tuning.num_updates)).astype(value.dtype)
            total = jax.tree.map(lambda total, leaf: total + is_late * leaf, state.total, q)
            return State(q, total, momentum, z, state.count + 1, failed_at), jnp.where(is_fine, value, jnp.nan)

        def step(key, state: State) -> tuple[State, Info]:
            def body(i, carry):
                state, total = carry
                state, value = update(fold_in(key, i), state)
                return state, total + value

            zero = jnp.zeros((), self.family.center(state.q).dtype)

            def ascend(state):
                state, total = jax.lax.fori_loop(0, EVERY, body, (state, zero))
                return state, Info(total / EVERY)

            return jax.lax.cond(state.failed_at < 0, ascend, lambda state: (state, Info(zero + jnp.nan)), state)

        return Algorithm(lambda key, state: state, step)

    def rows(self, target: Target, tuning: Tuning, count) -> Rows | None:
        """Those of update ``count``."""
        if self.batch_size is None:
            return None
        return window(target, self.batch_size, place(tuning, target.size, self.batch_size, count))

    def record(self, state: State) -> dict[str, jax.Array]:
        return {}


def first_averaged(num_updates):
    """The first update after which q counts towards the average: ⌈FALL T⌉, by whole numbers, the same anywhere."""
    return -(-3 * num_updates // 5)


def place(tuning: Tuning, size: int, batch_size: int, count):
    """Where the window of update ``count`` begins in the shuffled data.

    Passes begin along a Weyl sequence, so that the rows that one leaves over at its end are others each time.
    """
    num_batches = size // batch_size
    turn = jnp.asarray(count // num_batches, jnp.uint32) * GOLDEN  # modulo 2³²
    shift = (turn.astype(jnp.float32) * np.float32(size / 2**32)).astype(jnp.int32)
    return (tuning.first + (count % num_batches) * batch_size + shift) % size


def mirrored(noise: Noise) -> Noise:
    """−z: numbers are normal; whole ones, which choose a component or seed a generator, stay."""
    return jax.tree.map(lambda leaf: -leaf if jnp.issubdtype(leaf.dtype, np.floating) else leaf, noise)


def _all_finite(tree):
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, np.floating)]
    return jnp.all(jnp.stack([jnp.isfinite(jnp.sum(leaf)) for leaf in leaves]))
