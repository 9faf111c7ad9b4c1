"""Tempered sequential Monte Carlo as a method of ``credo.fit``: islands on threads, a verdict, the evidence."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp

from credo.algorithm import Options, stream
from credo.cores import num_cores
from credo.course import Course
from credo.diagnose.sd_error import sd_figures
from credo.diagnose.verdict import RULES, judge
from credo.memory import Need, budget, footprint, require_count
from credo.methods.particles.bridge import bridge
from credo.methods.particles.importance import MEMORY, has_evidence
from credo.methods.particles.mutation import Kernel, Moves, Particles, begin, mutate
from credo.methods.particles.path import Path, path_to
from credo.methods.particles.tempering import (
    MAX_TEMPERATURES,
    Moved,
    Population,
    Tempered,
    columns_of,
    scale_of,
    temper,
)
from credo.model.structure import Structure
from credo.model.target import Target
from credo.posterior.kinds import Draws
from credo.posterior.marginals import mcse_of_weighted_mean, student_variance
from credo.posterior.posterior import Posterior
from credo.precision import double
from credo.status import CredoError, Estimate, Verdict, is_number
from credo.stopping import Stopping

BEGIN, RESAMPLE, MOVE = 0, 1, 2  # streams of the key
CERTAIN = 3.0  # standard errors
FEWEST = 8  # islands: K know their own spread to 1/√(2(K − 1)), 27 % for 8, and of two errors the smaller is taken
COPIES = 10  # of all particles: before a temperature, resampled, moved island by island and together; what judges them


@dataclass(frozen=True)
class SMC:
    """Adaptive tempered sequential Monte Carlo: particles go from the prior to the posterior, with the evidence.

    ``num_particles`` in all, ``islands`` independent parts of one size each (rounded up), by whose spread every error
    is known: 8 or more, as fewer cannot tell it. ``ess_share``: what a step of the temperature leaves of the particles'
    effective number; more is slower and steadier. ``max_moves``: of a particle at one temperature; they double up to
    it. ``reference``: a posterior with a density to begin at in place of the prior, for priors that cannot be drawn
    from; a posterior given as ``start`` serves too. It should be wider than the target.

    The answer holds weighted draws (islands, particles, dim), equal within an island; ``mcse_mean`` in its summary;
    ``log_evidence`` with its Monte Carlo error (None under an improper prior). Both errors allow for how few the
    islands are: ± 1.96 of them cover 95 %. The evidence is known twice, by the path's weights and by bridge sampling
    between the draws and a Gaussian (bridge.py): the answer is the one of smaller error, and where they differ the
    verdict says so. ``info``: ``temperatures`` (beta), ``acceptance``, ``num_moves`` and ``correlation`` at each;
    ``path_evidence``, ``log_evidence_islands``, ``bridge_evidence``. Modes that no draw of the prior comes near stay
    unseen, here as everywhere.
    Raises CredoError for fewer than 8 islands, and where the prior is improper, the likelihood nowhere finite, or the
    time limit comes before the end: what there is then is no posterior, but beside a checkpoint ``credo.resume`` goes
    on from there.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"rate": dist.Gamma(2.0, 1.0)}, lambda params, x: dist.Poisson(params["rate"]))
    >>> target = model.given(y=np.array([3, 5, 1, 4]))
    >>> posterior, exact = credo.fit(target, credo.SMC()), credo.fit(target, credo.Exact())
    >>> abs(posterior.log_evidence.value - exact.log_evidence.value) < 4 * posterior.log_evidence.error
    True
    """

    num_particles: int = field(default=4_096, metadata={"at_least": 64})
    islands: int = field(default=16, metadata={"at_least": 1})
    ess_share: float = 0.5
    max_moves: int = field(default=64, metadata={"at_least": 1})
    reference: Posterior | None = None

    own_start: ClassVar[str] = "begins at draws of the prior, or of a posterior given as start"
    takes_posterior: ClassVar[bool] = True

    def __post_init__(self):
        if not (is_number(self.ess_share) and 0.01 <= self.ess_share <= 0.99):
            raise CredoError(f"ess_share lies between 0.01 and 0.99; got {self.ess_share!r}.")

    def fit(self, target: Target, *, key, start, options: Options) -> Posterior:
        if self.islands < FEWEST:
            raise CredoError(
                f"SMC(islands={self.islands}): errors are known by the spread of the islands, which fewer than "
                f"{FEWEST} cannot tell: take {FEWEST} or more. They share num_particles: more of them cost little."
            )
        size = -(-self.num_particles // self.islands)
        if size < 4:
            raise CredoError(
                f"{self.num_particles} particles on {self.islands} islands are {size} each: take fewer islands, or "
                "more particles."
            )
        target = target.flat()
        _check_memory(self.num_particles, target.dim, options.max_memory)
        given, role = (start, "start") if self.reference is None else (self.reference, "reference")
        if isinstance(given, Posterior) and options.checkpoint is not None:
            raise CredoError(
                "A checkpoint holds names and numbers, and not the posterior that SMC() begins at: fit without "
                "checkpoint=, or begin at the prior."
            )
        path = jax.device_put(path_to(target, given if isinstance(given, Posterior) else None, role))
        begun = time.monotonic()
        with _Islands(path, self.islands, size, key, options) as islands:
            population = islands.begin()
            share = _undefined_share(population, path)
            population = _inside(population)
            generator = np.random.default_rng(stream(key, RESAMPLE).tolist())
            done = islands.temper(Tempered.begin(population), generator, self.ess_share, self.max_moves)
            bridged = None
            if has_evidence(target):
                bridged = bridge(done.population, done.log_z, islands.evaluate, generator)
        log_weights = np.repeat((done.log_z - logsumexp(done.log_z))[:, None] - np.log(size), size, axis=1)
        along = log_evidence(done.log_z)
        evidence = along if bridged is None or not bridged.error < along.error else bridged
        info = {
            "num_gradients": int(done.each("num_gradients").sum()),
            "num_densities": self.islands * size,
            "temperatures": done.each("beta"),
            "acceptance": done.each("acceptance"),
            "correlation": done.each("correlation"),
            "num_moves": done.each("num_moves"),
            "log_evidence_islands": done.log_z,
            "path_evidence": along,
            "bridge_evidence": bridged,
            "seconds": {"tempering": time.monotonic() - begun},
        }
        return Posterior(
            Draws(done.population.position, log_weights.astype(done.population.position.dtype)),
            target,
            verdict=_verdict(done, log_weights, along, bridged, share, target.structure),
            info=info,
            log_evidence=evidence if has_evidence(target) else None,
        )


def log_evidence(log_z) -> Estimate:
    """log p(D) from log Ẑ_k of independent islands: the mean of Ẑ_k, and its standard error in the log."""
    share = np.exp(log_z - logsumexp(log_z)) * len(log_z)
    error = float(np.std(share, ddof=1) * np.sqrt(student_variance(len(log_z) - 1) / len(log_z)))
    return Estimate(float(logsumexp(log_z) - np.log(len(log_z))), error, "monte carlo")


class _Islands:
    """Threads on which the islands move, one thread a core. An island's keys are its own: no timing changes a draw."""

    def __init__(self, path: Path, number: int, size: int, key, options: Options):
        self.path, self.number, self.size, self.key, self.options = path, number, size, key, options
        self.deadline, self.beta = options.deadline(), 0.0
        self.num_threads = min(number, num_cores())
        memory = min(MEMORY, budget(options.max_memory) // 4)
        self.at_once = particles_at_once(path, size, memory // self.num_threads)
        self.is_compiled: set[str] = set()
        self.is_double = jnp.result_type(float) == jnp.float64

    def __enter__(self):
        self.stop = Stopping().__enter__()
        self.pool = ThreadPoolExecutor(self.num_threads)
        return self

    def __exit__(self, *error):
        self.pool.shutdown(cancel_futures=True)
        self.stop.__exit__(*error)

    def begin(self) -> Population:
        def one(island: int) -> Particles:
            return begin(self.path, stream(self.key, BEGIN, island), num=self.size, at_once=self.at_once)

        return self._stack("begin", one)

    def temper(self, begun: Tempered, generator, ess_share: float, max_moves: int) -> Tempered:
        """All temperatures, or those that are left of a run to be continued."""
        course = Course("tempering", _on_file(begun), self.options)
        if course.journal:
            self.stop.kept = course.journal.kept

        def keep(done: Tempered) -> None:
            course.state, course.done = _on_file(done), len(done.moved)
            if course.is_due:
                course.save()

        done = _from_file(course.state, course.done)
        try:
            return temper(done, self.move, generator, ess_share=ess_share, max_moves=max_moves, keep=keep)
        finally:
            course.save()

    def move(self, population: Population, kernel: Kernel, index: int, call: int) -> Moves:
        self.beta = float(kernel.beta)

        def one(island: int):
            particles, key = Particles(*(array[island] for array in population)), (MOVE, index, call, island)
            return mutate(self.path, particles, kernel, stream(self.key, *key), at_once=self.at_once)

        moves = self._stack(type(kernel.scale).__name__, one)
        return moves._replace(acceptance=np.mean(moves.acceptance), undefined=np.mean(moves.undefined))

    def evaluate(self, position: np.ndarray) -> Population:
        """Particles at positions (island, particle, dim), by moves that are none: their program is there already."""
        shape, dtype = position.shape[:2], position.dtype
        scale = scale_of(position, np.full(shape, 1 / np.prod(shape)))
        one, none = np.ones((), dtype), np.zeros((), np.int32)
        still = Kernel(one, scale, one, none, none)
        unknown = np.zeros(shape, dtype)
        return self.move(Population(position, unknown, unknown), still, 0, 0).particles

    def _stack(self, program: str, function):
        """The answers for all islands as NumPy arrays with the island in front."""

        def one(k: int):
            self.stop.check()
            if time.monotonic() > self.deadline:
                remedy = "raise time_limit, take fewer particles, or begin nearer, with reference= a fit by Laplace()."
                if self.options.checkpoint is not None:
                    remedy = f"credo.resume goes on from what is kept in {self.options.checkpoint}."
                raise CredoError(
                    f"The time limit of {self.options.limit:g} s came at beta = {self.beta:.2g}, on the way from "
                    f"0 (prior) to 1 (posterior), before which nothing is a posterior: {remedy}"
                )
            with double(self.is_double):
                return jax.tree.map(np.asarray, function(k))

        first = [] if program in self.is_compiled else [one(0)]  # alone, so that threads compile nothing twice
        self.is_compiled.add(program)
        rest = list(self.pool.map(one, range(len(first), self.number)))
        return jax.tree.map(lambda *rows: np.stack(rows), *first, *rest)


def _on_file(done: Tempered) -> tuple:
    """Arrays of the same shapes at every temperature."""
    table = np.full((MAX_TEMPERATURES, len(Moved._fields)), np.nan)
    table[: len(done.moved)] = np.reshape(done.moved, (-1, table.shape[1]))
    return done.population, done.log_z, done.ancestors, done.tails, table


def _from_file(state: tuple, number: int) -> Tempered:
    population, log_z, ancestors, tails, table = state
    rows = [dict(zip(Moved._fields, row, strict=True)) for row in table[:number].tolist()]
    counts = ("num_moves", "num_gradients")
    moved = (Moved(**row | {name: int(row[name]) for name in counts}) for row in rows)
    return Tempered(population, log_z, ancestors, tails, tuple(moved))


def _check_memory(num_particles: int, dim: int, max_memory: int | None) -> None:
    """CredoError, with how many particles would fit, where these do not."""

    def need(num_particles: int) -> Need:
        return Need(f"SMC(num_particles={num_particles})", COPIES * np.dtype(float).itemsize * num_particles * dim)

    require_count(need, num_particles, f"{dim:,} parameters", max_memory, least=64)


def particles_at_once(path: Path, size: int, memory: int) -> int:
    """How many of an island's particles may move together in ``memory`` bytes."""

    def gradient(path: Path, u):
        return jax.grad(lambda u: sum(path.parts(u)))(u)

    num_bytes = footprint(gradient, path, np.zeros(path.target.dim, jnp.result_type(float)))
    return int(np.clip(memory // num_bytes, 1, size))


def _undefined_share(population: Population, path: Path) -> float:
    """Of the first draws, those at which the density is no number, or +inf; CredoError where it is finite at none."""
    values = population.log_base + population.gain
    is_undefined = np.isnan(values) | (values == np.inf) | ~np.isfinite(population.position).all(axis=-1)
    num_inside = np.sum(~is_undefined & (population.gain > -np.inf), axis=1)
    if num_inside.min() == 0:
        raise CredoError(
            f"The log density is finite at {num_inside.sum():,} of {values.size:,} draws of the "
            f"{'prior' if path.reference is None else 'reference'}, and at none of one island: give priors nearer to "
            "the data, take more particles, or begin at another SMC(reference=…)."
        )
    return float(np.mean(is_undefined))


def _inside(population: Population) -> Population:
    """Draws at which the density is zero or undefined get a gain of −inf."""
    values = population.log_base + population.gain
    is_inside = np.isfinite(values) & np.isfinite(population.position).all(axis=-1)
    return population._replace(gain=np.where(is_inside, population.gain, -np.inf).astype(population.gain.dtype))


def _verdict(
    done: Tempered, log_weights, along: Estimate, bridged: Estimate | None, undefined_share: float, structure: Structure
) -> Verdict:
    position, shares = np.asarray(done.population.position), np.exp(log_weights)
    u, weights = position.reshape(-1, position.shape[-1]).astype(float), shares.ravel()
    variance = weights @ (u - weights @ u) ** 2
    error = mcse_of_weighted_mean(u, weights, len(position))
    with np.errstate(divide="ignore", invalid="ignore"):
        num_effective = np.minimum(variance / error**2, len(u))
    figures = {
        "island_ess": float(np.min(num_effective)),
        "evidence_error": along.error if bridged is None else min(along.error, bridged.error),
        "mutation_correlation": float(np.max(done.each("correlation"))),
        "tail_memory": done.tails.reached(columns_of(done.population)),
        "mutation_acceptance": float(np.min(done.each("acceptance"))),
        "num_ancestors": int(done.is_ancestor.sum()),
        "undefined_share": undefined_share,
        "undefined_proposals": float(np.max(done.each("undefined"))),
        "acceptance_rate": float(np.mean(done.each("acceptance"))),
        "step_size": done.moved[-1].step_size,
        "num_temperatures": len(done.moved),
        "num_draws": len(u),
    }
    figures |= sd_figures(position, num_effective, structure, shares)
    if bridged is not None and bridged.error <= RULES["evidence_error"].passes:  # beyond, it can tell nothing
        figures["evidence_gap"] = _gap(along, bridged)
    return judge(figures)


def _gap(a: Estimate, b: Estimate) -> float:
    """What is certain of the difference, in nats."""
    return max(0.0, abs(a.value - b.value) - CERTAIN * float(np.hypot(a.error, b.error)))
