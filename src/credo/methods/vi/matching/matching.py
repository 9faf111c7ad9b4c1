"""Batch and match as steps (Cai, Modi, Pillaud-Vivien, Margossian, Gower, Blei & Saul 2024, algorithm 1).

    ε_1 … ε_B of N(0, I) (draws.py);  u_b = μ + S ε_b;  γ_b = Sᵀ ∇ log p(u_b);  q ← match(ε, γ, λ), whitened (update.py)

*The rate.* λ = B/M, with M the draws that q remembers: a step then counts the batch beside them as it would in an
average. With c r² the nats that one draw leaves open (forms.py) and F = mean |γ_b + ε_b|², of which q may lack a half,
M = 2 c r² / F is what the start is worth (Kalman's gain). M grows by the batch whenever a step goes against the trend
of those before (Kesten 1958), and by half of it where M is less than a batch, since such a step went far and q will
move on: under drift steps agree and the rate stays, about the optimum they do not and it falls as 1/t. At the optimum
F is 2 r² at most where E[−∇² log p] is positive (2 r²/(1 + k) in one dimension where that is k/Σ).
Where averages of F exceed those of r² ``FAR`` times q is far, and worth 2 c r² / (F − FAR r²) at most. Averages forget
what came before a fall of F by ``FALL``. On Gaussian targets r² = 0: the rate is the largest, and q exact in a few
steps.

*The end.* What q lacks is c r² / M nats, or more under heavy tails (forms.py), averaged since q was far: done once that
is within ``tolerance``.

A step whose scores or result are not finite is not taken: q contracts about its mean instead.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from credo.algorithm import Algorithm
from credo.batches import in_batches
from credo.linalg.operator import Stored
from credo.methods.vi.matching.draws import draws
from credo.methods.vi.matching.forms import Form
from credo.methods.vi.matching.update import inconsistency, match, weights
from credo.methods.vi.start import Begun
from credo.model.target import Target
from credo.posterior.kinds import Gaussian, Kind
from credo.tree import where

LARGEST_RATE = 1e3  # beyond it a step gains nothing, and digits are lost
FAR = 4.0  # times r², where F says that q is far: at the optimum it is 2 r² at most
TREND = 0.8  # of the trend kept each step
FALL = 30.0  # the factor by which F has fallen where its average says nothing of today's
RECENT = 0.3  # weight of a batch in the averages
EXACT = 0.85  # power of the precision's ε, a coordinate: a distance in scores that is rounding


class Tuning(NamedTuple):
    """``largest_sd``: beyond it q is escaping to infinity. ``begun``: for the end of the fit; steps do without."""

    largest_sd: Float[Stored, ""]
    begun: Begun


class State(NamedTuple):
    """``memory`` M, in draws. Averages: ``noise``, nats a draw, ``residual`` r², ``distance`` F. ``gap``: nats left."""

    q: Gaussian
    trend: Float[Array, " n"]
    memory: Float[Array, ""]
    noise: Float[Array, ""]
    residual: Float[Array, ""]
    distance: Float[Array, ""]
    is_far: Bool[Array, ""]
    count: Int[Array, ""]
    gap: Float[Array, ""]
    is_done: Bool[Array, ""]
    is_escaping: Bool[Array, ""]


class Info(NamedTuple):
    """``elbo``: its estimate from the batch before the step, NaN once done. ``is_taken``: all was finite."""

    elbo: Float[Array, ""]
    is_taken: Bool[Array, ""]


@dataclass(frozen=True)
class Matching:
    """The settings that the compiled step is keyed on."""

    form: Form
    num_samples: int
    tolerance: float
    draws_at_once: int

    def blank(self, target: Target) -> State:
        """Zeros in the shapes of a state, on the host: nothing is compiled."""

        def build(target):
            q = self.form.family.start(jnp.zeros(target.dim), jnp.ones(target.dim))
            ε = jnp.zeros((self.num_samples, target.dim))
            zero, no = jnp.zeros(()), jnp.zeros((), bool)
            trend = self.form.direction(match(ε, ε, ε[:, 0], zero))
            assert isinstance(q, Gaussian)
            return State(q, trend, zero, zero, zero, zero, no, jnp.zeros((), jnp.int32), zero, no, no)

        return jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), jax.eval_shape(build, target))

    def begin(self, target: Target, q: Kind) -> State:
        blank = self.blank(target)
        q = jax.tree.map(lambda like, leaf: np.asarray(leaf, like.dtype), blank.q, q)
        return blank._replace(q=q, gap=np.asarray(np.inf, blank.gap.dtype))

    def algorithm(self, target: Target, tuning: Tuning) -> Algorithm:
        """``init(key, state)`` is the state itself: it was begun on the host."""
        c, B, dim = self.form.noise_per_square(target.dim), self.num_samples, target.dim
        density = jax.value_and_grad(target.log_density)

        def climb(key, state: State) -> tuple[State, Info]:
            S = self.form.root(state.q)
            ε = draws(key, B, dim)

            def one(ε):
                value, score = density(state.q.mean + S.matvec(ε))
                return value + 0.5 * jnp.dot(ε, ε), S.transpose_matvec(score)

            log_ratios, γ = in_batches(one, ε, self.draws_at_once)
            elbo = jnp.mean(log_ratios) + S.log_det() + 0.5 * dim * jnp.log(2 * jnp.pi)
            r2, f = inconsistency(ε, γ), jnp.mean(jnp.sum(jnp.square(γ + ε), axis=1))
            is_first = state.count == 0
            has_fallen = FALL * f < state.distance
            residual, distance = _averaged(is_first | has_fallen, (state.residual, state.distance), (r2, f))
            to_go = distance - jnp.where(is_first, 0.0, FAR) * residual
            worth = jnp.where(to_go > 0, 2 * c * residual / to_go, jnp.inf)
            memory = jnp.maximum(jnp.where(is_first, worth, jnp.minimum(state.memory, worth)), B / LARGEST_RATE)
            step = match(ε, γ, weights(ε, γ), B / memory)
            direction = self.form.direction(step)
            is_against = jnp.dot(direction, state.trend) < 0
            q = self.form.take(state.q, step)
            memory = memory + jnp.where(is_against, B, jnp.where(memory < B, B / 2, 0.0))
            is_far = distance > FAR * residual
            (noise,) = _averaged(is_first | state.is_far, (state.noise,), (self.form.noise(ε, γ, r2),))
            gap = jnp.maximum(noise / memory, jnp.where(is_far, f, 0.0))
            is_exact = f <= dim * jnp.finfo(f.dtype).eps ** EXACT
            is_escaping = jnp.max(self.form.family.variances(q)) > tuning.largest_sd**2
            taken = State(
                q=q,
                trend=TREND * state.trend + direction,
                memory=memory,
                noise=noise,
                residual=residual,
                distance=distance,
                is_far=is_far,
                count=state.count + 1,
                gap=jnp.where(is_exact, f, gap),
                is_done=is_escaping | is_exact | (~is_far & (gap <= self.tolerance)),
                is_escaping=is_escaping,
            )
            contracted = state._replace(q=self.form.family.contract(state.q), trend=jnp.zeros_like(state.trend))
            is_finite = jnp.all(jnp.isfinite(log_ratios)) & _all_finite((q, noise, memory))
            return where(is_finite, taken, contracted), Info(elbo, is_finite)

        def step(key, state: State) -> tuple[State, Info]:
            idle = Info(jnp.full_like(state.gap, jnp.nan), jnp.zeros((), bool))
            return jax.lax.cond(state.is_done, lambda s: (s, idle), lambda s: climb(key, s), state)

        return Algorithm(lambda key, state: state, step)

    def record(self, state: State) -> dict[str, jax.Array]:
        return {}


def _averaged(is_anew, averages: tuple, now: tuple) -> tuple:
    """Averages over batches, the last of which counts for ``RECENT`` of them, or for all."""
    weight = jnp.where(is_anew, 1.0, RECENT).astype(now[0].dtype)
    return tuple(before + weight * (value - before) for before, value in zip(averages, now, strict=True))


def _all_finite(tree) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))
