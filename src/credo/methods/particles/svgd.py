"""Stein variational gradient descent (Liu & Wang 2016): particles that climb the density and push each other apart.

    u_i ← u_i + ε φ(u_i),   φ(v) = (1/n) Σ_j [k(u_j, v) ∇ log p(u_j, D) + ∇_{u_j} k(u_j, v)]        (their eq. 8)
    k(u, v) = exp(−‖u − v‖² / h),   h = med² / log n,  med: the median distance of two particles      (section 5)

One particle is gradient ascent. The second terms cancel in Σ_i φ(u_i): where φ = 0 the scores ∇ log p, weighted by
w_j = Σ_i k(u_j, u_i), sum to zero, so that on a Gaussian the mean of the particles so weighted is exact. Their variance
is not: where n is no multiple of the dimension d the particles collapse towards the mode (Ba et al. 2021). How far,
Stein's identity tells: at the target E[−(u − ū)ᵀ ∇ log p(u)] = d, and ``variance_share`` is the particles' share of it.
Of the unweighted mean another tells: at the target E[∇ log p(u)] = 0, and ``mean_offset`` is how far the particles'
mean score of all rows lies from it, as a step of Newton's from their mean.
"""

import functools
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from credo.algorithm import Options, as_key, stream, streams
from credo.batches import in_batches
from credo.compiling import brief, sound
from credo.course import Course
from credo.diagnose.startup import explain
from credo.diagnose.verdict import judge
from credo.memory import Need, at_once, footprint, require_count
from credo.methods.optimise.objective import generator, positions_given
from credo.methods.optimise.training import NOT_FINITE, Training, batch_asked, which_batch
from credo.model.target import Target
from credo.model.windows import random_window, rows_at, shuffled
from credo.posterior.kinds import Draws, Point
from credo.posterior.posterior import Posterior
from credo.status import CredoError

STREAM = (1 << 20) + 7
WIDTH, NEAR = 1.0, 0.1  # of the first particles: round the origin, and round a start that was given
COPIES = 14  # of the particles that a step holds: gradients, the optimiser's moments, a step back
KERNELS = 12  # of all pairs: distances, those that are ordered for their median and where these stand, the kernel
NO_SAMPLE = (
    "The particles of SVGD are placed and not drawn: nothing bounds their error, and where there are more dimensions "
    "than particles their variance is too small (Ba et al. 2021). Beside variance_share and mean_offset, judge them by "
    "held-out scores (credo.compare)."
)


@dataclass(frozen=True)
class SVGD:
    """``num_particles`` particles moved together by ``num_steps`` steps of Adam along φ.

    ``step_size``: of Adam in unconstrained coordinates, falling to zero by a cosine. ``batch_size``: rows that each
    step looks at, the same for all particles; None for all. Particles begin at draws of a posterior given as ``start``,
    such as an ensemble; else round the start, or round the origin.

    Verdict: ``variance_share``, the spread of the particles beside that of the target by Stein's identity, and
    ``mean_offset``, how far the worst mean is off by the scores of all rows; ``doubtful`` at best, since no figure
    bounds the error. Raises CredoError where the density is not finite at the start.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"mean": dist.Normal(0.0, 10.0)}, lambda params, x: dist.Normal(params["mean"], 2.0))
    >>> posterior = credo.fit(model.given(y=np.array([1.0, 2.0, 3.0])), credo.SVGD(num_particles=20))
    >>> round(float(posterior.mean()["mean"]), 1)
    2.0
    """

    num_particles: int = field(default=100, metadata={"at_least": 1})
    num_steps: int = field(default=2_000, metadata={"at_least": 1})
    step_size: float = 0.1
    batch_size: int | None = None

    takes_source: ClassVar[bool] = True

    def fit(self, target: Target, *, key, start: Any, options: Options) -> Posterior:
        target = target.flat()
        if not self.step_size > 0:
            raise CredoError(f"step_size is {self.step_size}: give a positive number.")
        batch_size = batch_asked(target, self.batch_size)
        deadline = options.deadline()
        itemsize = np.dtype(jnp.result_type(float)).itemsize

        def need(num_particles: int) -> Need:
            numbers = num_particles * (COPIES * target.dim + KERNELS * num_particles)
            return Need(f"SVGD(num_particles={num_particles})", itemsize * numbers)

        require_count(need, self.num_particles, f"{target.dim:,} parameters", options.max_memory)
        u = first_particles(target, self.num_particles, key, start)
        data = jax.device_put(shuffled(target, batch_size, np.random.default_rng(stream(key, STREAM))))
        optimiser = adam(self.step_size, self.num_steps)
        needed = 3 * footprint(lambda target, u: target.log_density(u), target, u[0])
        together = at_once(needed, self.num_particles, options.max_memory)
        if not np.all(np.isfinite(_scores(target, u, together)[1])):
            raise CredoError(explain(target, u[0].astype(float)))

        def advance(state, first: int, last: int):
            return _advance(data, state, stream(key, STREAM, 1), first, last, optimiser, batch_size, together)

        course = Course("particles", _begin(optimiser, u), options)
        course.run(advance, [self.num_steps], deadline, is_over=lambda state: bool(state.failed_at >= 0))
        ended: Training = course.state
        u, done, failed_at = np.asarray(ended.position), course.done, int(ended.failed_at)
        if failed_at >= 0:
            return _failed(target, u, failed_at, self._failure(target, key, failed_at))
        densities, scores = map(np.asarray, _scores(target, u, together))
        if not (np.all(np.isfinite(u)) and np.all(np.isfinite(scores))):
            raise CredoError(
                f"The particles are no longer where the density is finite after {done:,} steps: lower step_size from "
                f"{self.step_size:g}, or start near a mode (start=)."
            )
        if np.any(densities == -np.inf):
            raise CredoError(
                f"{np.sum(densities == -np.inf)} of {len(u)} particles stand where the density is zero, whose border "
                "gradients do not tell: does a parameter move the support of the data or of another one? Use "
                "NUTS(), or Slice()."
            )
        figures = {"num_members": float(len(u))}
        if len(u) > 1:
            figures |= {"variance_share": variance_share(u, scores), "mean_offset": mean_offset(u, scores)}
        sentences = [NO_SAMPLE]
        if done < self.num_steps:
            sentences.insert(0, f"The time limit came after {done:,} of {self.num_steps:,} steps.")
        return Posterior(
            Draws(u[None]),
            target,
            verdict=judge(figures, sentences, at_best="doubtful"),
            info={
                "num_gradients": (done + 2) * len(u),
                "num_steps": done,
                "is_complete": done == self.num_steps,
                "direction_norm": float(np.sqrt(np.mean(np.square(direction(jnp.asarray(u), jnp.asarray(scores)))))),
            },
        )

    def _failure(self, target: Target, key, i: int) -> str:
        """Which step it was, and which rows it saw."""
        where, batch_size = "", batch_asked(target, self.batch_size)
        if batch_size is not None:
            random, order = np.random.default_rng(stream(key, STREAM)), as_key(stream(key, STREAM, 1))
            rows = rows_at(target, batch_size, random, order, i, is_independent=True)
            where = f" ({which_batch(target, rows, 1, i)})"
        return (
            f"The density of a particle, or its gradient, was not finite at step {i + 1:,}{where}: the particles stand "
            f"where all were finite the last time. {NOT_FINITE[0].upper()}{NOT_FINITE[1:]}"
        )


def _failed(target: Target, u: np.ndarray, failed_at: int, sentence: str) -> Posterior:
    """The last particles that could move."""
    return Posterior(
        Draws(u[None]),
        target,
        verdict=judge({"num_members": float(len(u))}, [sentence], at_best="failed"),
        info={"num_gradients": failed_at * len(u), "num_steps": failed_at, "failed_at": failed_at, "is_complete": True},
    )


def direction(u: Float[Array, "n dim"], scores: Float[Array, "n dim"]) -> Float[Array, "n dim"]:
    """φ at each particle."""
    n = u.shape[0]
    if n == 1:
        return scores
    centred = u - jnp.mean(u, axis=0)  # differences are the same, and lose fewer digits
    squares = jnp.sum(jnp.square(centred), axis=1)
    distances = jnp.maximum(squares[:, None] + squares[None, :] - 2 * centred @ centred.T, 0.0)
    pairs = np.flatnonzero(np.triu(np.ones((n, n), bool), 1))
    h = jnp.median(distances.ravel()[pairs]) / np.log(n)
    k = jnp.exp(-distances / jnp.maximum(h, jnp.finfo(u.dtype).tiny))
    repulsion = (2 / jnp.maximum(h, jnp.finfo(u.dtype).tiny)) * (jnp.sum(k, axis=1)[:, None] * centred - k @ centred)
    return (k @ scores + repulsion) / n


def variance_share(u: np.ndarray, scores: np.ndarray) -> float:
    """−Σ (u − ū)ᵀ ∇ log p(u) / (d (n − 1)): 1 in expectation for independent draws of the target."""
    n, dim = u.shape
    return float(-np.sum((u - u.mean(axis=0)) * scores) / (dim * (n - 1)))


def mean_offset(u: np.ndarray, scores: np.ndarray) -> float:
    """max_i |Σ̂ḡ|_i / σ̂_i, ḡ the mean score and Σ̂ the particles' covariance. On a Gaussian ḡ = −Σ⁻¹(ū − μ): where Σ̂ is
    the target's, this is the worst |ū − μ|_i / σ_i; where the particles have collapsed, less."""
    centred = u - u.mean(axis=0)
    sd = centred.std(axis=0, ddof=1)
    along = centred @ scores.mean(axis=0)  # Σ̂ḡ without a matrix of the parameters
    step = centred.T @ along / (len(u) - 1)
    return float(np.max(np.abs(step) / np.maximum(sd, np.finfo(sd.dtype).tiny)))


def first_particles(target: Target, number: int, key, start: Any) -> Float[np.ndarray, "n dim"]:
    """Draws of a posterior; else normal round a position, or round the origin."""
    dtype = np.dtype(jnp.result_type(float))
    noise = generator(key, STREAM).normal(size=(number, target.dim))
    if isinstance(start, Posterior):
        kind = start.kind
        if isinstance(kind, Draws) and kind.log_weights is None and kind.positions[..., 0].size >= number:
            flat = np.asarray(kind.positions).reshape(-1, target.dim)
            return flat[np.linspace(0, len(flat) - 1, number).round().astype(int)].astype(dtype)
        drawn = np.asarray(_drawn(kind, streams(key, number, STREAM, 2)))
        is_repeated = isinstance(kind, Draws | Point)  # two particles at one place would stay together
        return (drawn + (NEAR * noise if is_repeated else 0.0)).astype(dtype)
    if start is None:
        return (WIDTH * noise).astype(dtype)
    positions = positions_given(start, number, target.dim)
    if positions.ndim == 2:
        return positions.astype(dtype)
    return (positions + NEAR * noise).astype(dtype)


@functools.lru_cache(maxsize=32)  # a compiled program is keyed on the object
def adam(step_size: float, num_steps: int) -> optax.GradientTransformation:
    """Adam, ascending."""
    return optax.chain(optax.scale(-1.0), optax.adam(optax.cosine_decay_schedule(step_size, num_steps)))


@functools.partial(brief, static_argnames="together")
def _scores(target: Target, u, together: int):
    """Log densities and their gradients."""
    return in_batches(jax.value_and_grad(target.log_density), u, together)


@functools.partial(sound, static_argnames="optimiser")
def _begin(optimiser, u) -> Training:
    return Training.begin(optimiser, u)


@functools.partial(sound, static_argnames=("optimiser", "batch_size", "together"))
def _advance(
    target: Target, state: Training, key, first, last, optimiser, batch_size: int | None, together: int
) -> Training:
    def body(i, state: Training) -> Training:
        u, batch = state.position, None
        if batch_size is not None:
            batch = random_window(target, batch_size, jax.random.fold_in(as_key(key), i))
        values, scores = in_batches(jax.value_and_grad(lambda u: target.log_density(u, batch)), u, together)
        known = jnp.where(jnp.any(jnp.isnan(values)), jnp.nan, 0.0)  # -inf is told at the end
        return state.update(optimiser, i, known, direction(u, scores))[0]

    return jax.lax.fori_loop(first, last, body, state)


@sound
def _drawn(kind, keys):
    return jax.lax.map(lambda key: kind.sample_u(as_key(key)), keys)
