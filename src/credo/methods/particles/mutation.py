"""Moves of particles that leave one member of a path invariant: Hamiltonian Monte Carlo, for all particles at once.

H(u, r) = −log γ_β(u) + ½ rᵀr,  u = S x         r ~ N(0, I), in coordinates x in which the particles are white
ε_i ~ ε · Uniform(0.8, 1.2)                     each particle's own step, so that no orbit closes for all of them
ε_i · exp(−3 max(v, 0)),  v ~ Uniform(−1, 1)    and short ones, for the narrow part of a funnel
L leapfrog steps, the end accepted with probability min(1, exp(H_0 − H_L))        (Neal 2011, section 5.3)

All particles take the same number of steps, and so none waits for another. Where ℓ is −inf, +inf or not a number γ_β
is 0, at β = 0 too, and no particle goes there. Of what is +inf or no number the moves are counted that met it on a
trajectory which had not diverged: a density may overflow where a leapfrog step too large has thrown a particle.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from credo.algorithm import as_key
from credo.batches import in_batches
from credo.compiling import LARGE, LONG, brief, has_many_rows
from credo.linalg.operator import ScaleOperator, Stored
from credo.methods.particles.path import Path
from credo.tree import where

JITTER = 0.2  # of the step size: a quarter of a period of a Gaussian keeps a correlation of 0.2 at most
MAX_ENERGY_ERROR = 1_000.0  # beyond, a trajectory has diverged: Stan's bound
QUICK = {**LARGE, **LONG}  # densities of hundreds of rows earn the emitters, and not the dearer passes
FEW = 1_000  # numbers of the data up to which they earn nothing
SHORT = 3.0  # of every other move: by how much the log of its step may be less


class Particles(NamedTuple):
    """``log_base``: log π_0; ``gain``: ℓ. −inf gain: γ is 0 there."""

    position: Float[Stored, "n dim"]
    log_base: Float[Stored, " n"]
    gain: Float[Stored, " n"]


class Kernel(NamedTuple):
    """``num_steps``: L of a move. ``num_moves``: one after the other."""

    beta: Float[Stored, ""]
    scale: ScaleOperator
    step_size: Float[Stored, ""]
    num_steps: Int[Stored, ""]
    num_moves: Int[Stored, ""]


class Moves(NamedTuple):
    """``acceptance``: mean α. ``undefined``: the share of the moves that met a density of NaN or +inf."""

    particles: Particles
    acceptance: Float[Array, ""]
    undefined: Float[Array, ""]


class Moving(NamedTuple):
    position: Float[Array, " dim"]
    log_base: Float[Array, ""]
    gain: Float[Array, ""]
    log_density: Float[Array, ""]
    gradient: Float[Array, " dim"]
    is_undefined: Bool[Array, ""]


def _is_small(path: Path, *_) -> bool:
    return sum(map(np.size, jax.tree.leaves(path))) <= FEW


def _is_large(path: Path, *_) -> bool:
    return has_many_rows(path)


@functools.partial(brief, static_argnames=("num", "at_once"), options=QUICK, is_small=_is_small, is_large=_is_large)
def begin(path: Path, key, *, num: int, at_once: int) -> Particles:
    """``num`` draws from π_0; ℓ as it comes, undefined or not. ``at_once``: evaluated together."""

    def one(index):
        u = path.draw(jax.random.fold_in(as_key(key), index))
        return Particles(u, *path.parts(u))

    return in_batches(one, jnp.arange(num, dtype=jnp.int32), at_once)


@functools.partial(brief, static_argnames=("at_once",), options=QUICK, is_small=_is_small, is_large=_is_large)
def mutate(path: Path, particles: Particles, kernel: Kernel, key, *, at_once: int) -> Moves:
    """The particles after ``kernel.num_moves`` moves each."""
    num = particles.gain.shape[0]

    def one(args):
        index, particle = args
        return _moves(path, particle, kernel, lambda i: jax.random.fold_in(as_key(key), (i + 1) * num + index))

    indices = jnp.arange(num, dtype=jnp.int32)
    moves = in_batches(one, (indices, particles), at_once)
    return moves._replace(acceptance=jnp.mean(moves.acceptance), undefined=jnp.mean(moves.undefined))


def _moves(path: Path, particle: Particles, kernel: Kernel, key_of) -> Moves:
    """Of one particle. Its arrays are those of ``Particles`` less the leading axis. ``key_of(i)``: of move i."""
    dtype, scale, num_moves = particle.position.dtype, kernel.scale, kernel.num_moves

    def log_density(u):
        log_base, gain = path.parts(u)
        is_unknown = ~(log_base + gain < jnp.inf)  # −inf is known: a density of 0
        is_inside = (gain > -jnp.inf) & ~is_unknown
        value = jnp.where(is_inside, log_base + kernel.beta * gain, -jnp.inf)
        return value, (log_base, jnp.where(is_inside, gain, -jnp.inf), is_unknown & jnp.all(jnp.isfinite(u)))

    def evaluate(u) -> Moving:
        (value, (log_base, gain, is_unknown)), gradient = jax.value_and_grad(log_density, has_aux=True)(u)
        return Moving(u, log_base, gain, value, gradient, is_unknown)

    def move(i, carry):
        """Move ``i``; number −1 stands still and evaluates where the particle is: the density is compiled once."""
        start, acceptance, num_undefined = carry
        is_first = i < 0
        # one call for all random numbers: each would compile a generator of its own
        v = jax.random.uniform(key_of(i), (start.position.size + 3,), dtype, np.nextafter(-1, 0, dtype=dtype), 1)
        momentum = np.sqrt(2).astype(dtype) * lax.erf_inv(v[:-3])
        jitter, choice, shorter = v[-2], 0.5 * (v[-1] + 1), jnp.exp(-SHORT * jnp.maximum(v[-3], 0))
        step_size = jnp.where(is_first, 0, kernel.step_size * (1 + JITTER * jitter) * shorter)

        def gained(state, r):
            return state.log_density - start.log_density + 0.5 * (jnp.sum(momentum**2) - jnp.sum(r**2))

        def leap(_, carry):
            state, r, has_met = carry
            r = r + 0.5 * step_size * scale.transpose_matvec(state.gradient)
            is_on_course = gained(state, r) > -MAX_ENERGY_ERROR
            state = evaluate(state.position + step_size * scale.matvec(r))
            r = r + 0.5 * step_size * scale.transpose_matvec(state.gradient)
            return state, r, has_met | (is_on_course & state.is_undefined)

        num_steps = jnp.where(is_first, 1, kernel.num_steps)
        end, last, has_met = lax.fori_loop(0, num_steps, leap, (start, momentum, jnp.bool_(False)))
        fall = gained(end, last)
        probability = jnp.where(fall > -jnp.inf, jnp.exp(jnp.minimum(fall, 0)), 0)  # NaN: 0
        is_taken = is_first | (choice < probability)
        num_undefined = num_undefined + (has_met & ~is_first).astype(dtype)
        return where(is_taken, end, start), acceptance + jnp.where(is_first, 0, probability), num_undefined

    zero = jnp.zeros((), dtype)
    position = jnp.asarray(particle.position)
    unknown = Moving(position, zero, zero, zero, jnp.zeros_like(position), jnp.bool_(False))
    end, acceptance, num_undefined = lax.fori_loop(-1, num_moves, move, (unknown, zero, zero))
    number = num_moves.astype(dtype)
    return Moves(Particles(end.position, end.log_base, end.gain), acceptance / number, num_undefined / number)
