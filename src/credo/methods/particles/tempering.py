"""Adaptive tempered sequential Monte Carlo (Del Moral, Doucet & Jasra 2006; Jasra, Stephens, Doucet & Tsagaris 2011).

Along γ_β = π_0 exp(β ℓ) (path.py), from draws of π_0 at β_0 = 0, until β_t = 1:
    1. choose   β_t: the largest at which  ESS(w) = (Σ w)² / Σ w² ≥ ess_share · N,  w_i = exp((β_t − β_{t−1}) ℓ_i)
    2. weigh    log Ẑ_k += log mean_{i ∈ k} w_i           in each island k
    3. resample systematically within each island (Kitagawa 1996)
    4. move     by a kernel that leaves γ_{β_t} invariant (mutation.py), until the particles have forgotten where they
                were: scale S from their weighted covariance, ε from their acceptance, the number of moves from jumps
Particles have equal weights before step 1, so that the conditional ESS of Zhou, Johansen & Aston (2016) is this ESS.

K islands of N/K particles share β_t, S and ε and nothing else. Given these, Ẑ_k are independent and unbiased, so that
    Ẑ = mean Ẑ_k,  error of log Ẑ = sd(Ẑ_k) / (√K Ẑ),  weight of island k ∝ Ẑ_k        (islands: Vergé et al. 2015)

Moves are judged by d(m), for each coordinate and for the ranks of ℓ, which may spread over a hundred orders of
magnitude, the squared median of |x_i(m) − x_i(0)|, and by d_∞, that of particles of different islands: what is left of
the correlation with where they were is |1 − d(m)/d_∞|. Where modes are apart it does not fall to 0, and need not;
medians do not see the few that change modes. For what can be forgotten, with ρ^m left of it after m moves,
d(2m)/d(m) = 1 + ρ^m: so moves double until the square of that rest is below CORRELATION, and until the tails, of which
medians know nothing, have forgotten as well (tails.py).
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import logsumexp

from credo.diagnose.rules import RULES
from credo.linalg.dense import Dense
from credo.linalg.diagonal import Diagonal
from credo.linalg.operator import ScaleOperator, Stored
from credo.methods.particles.mutation import Kernel, Moves, Particles
from credo.methods.particles.tails import Tails, tails
from credo.status import CredoError

Population = Particles  # NumPy arrays with axes (island, particle) in front
Move = Callable[[Population, Kernel, int, int], Moves]  # (…, temperature, call)

CORRELATION = 0.1  # with where they were: as good as independent beside the noise of resampling
ACCEPTANCE = 0.8  # of a move: Hamiltonian moves of a quarter period cost least there
QUARTER = 0.5 * np.pi  # of the period of a white Gaussian: where it ends does not depend on where it began
MAX_STEPS = 32  # of a move: more where scales differ so much is better spent on moves
PER_COORDINATE = 10  # effective particles a coordinate for which a whole covariance is known
MAX_DENSE = 500  # coordinates: beyond, its factor costs more than the moves
MAX_TEMPERATURES = 2_000
ALMOST_ONE = 1 - 2.0**-53
MEMORY = RULES["tail_memory"].passes


class Moved(NamedTuple):
    """What the moves at ``beta`` came to. ``correlation``: left with where they were.

    ``undefined``: the share of moves that met a density of NaN or +inf. ``step_size``: for the next.
    """

    beta: float
    acceptance: float
    correlation: float
    num_moves: int
    num_gradients: int
    undefined: float
    step_size: float


class Tempered(NamedTuple):
    """``log_z``: log Ẑ_k. ``ancestors``: the draw of π_0 that each descends from. ``moved``: at each temperature.

    ``tails``: what the moves left, of each coordinate and of ℓ, at the temperatures where that is too much.
    """

    population: Population
    log_z: Float[np.ndarray, " K"]
    ancestors: Int[np.ndarray, "K n"]
    tails: Tails
    moved: tuple[Moved, ...] = ()

    @classmethod
    def begin(cls, population: Population) -> "Tempered":
        """At draws of π_0, whose gains are −inf where γ_β is 0."""
        num_islands, size = population.gain.shape
        tails = Tails.forgotten(population.position.shape[-1] + 1)
        return cls(population, np.zeros(num_islands), np.tile(np.arange(size), (num_islands, 1)), tails)

    @property
    def beta(self) -> float:
        return self.moved[-1].beta if self.moved else 0.0

    @property
    def is_ancestor(self) -> Bool[np.ndarray, "K n"]:
        """The draws of π_0 with descendants."""
        found = np.zeros(self.ancestors.shape, bool)
        np.put_along_axis(found, self.ancestors, True, axis=1)
        return found

    def each(self, name: str) -> np.ndarray:
        """One figure of ``moved`` at all temperatures."""
        return np.array([getattr(moved, name) for moved in self.moved])


def temper(
    done: Tempered,
    move: Move,
    generator: np.random.Generator,
    *,
    ess_share: float,
    max_moves: int,
    keep: Callable[[Tempered], None] = lambda done: None,
) -> Tempered:
    """To particles of γ_1. ``move`` does step 4; ``keep`` sees what is done after each temperature."""
    generator.uniform(size=(len(done.moved), len(done.log_z)))  # those that the temperatures behind have used
    while done.beta < 1:
        if len(done.moved) == MAX_TEMPERATURES:
            raise CredoError(
                f"After {MAX_TEMPERATURES:,} temperatures beta is {done.beta:.2g}, far from 1: the likelihood varies "
                "too much over the prior. Give priors on the scale of the data, or begin at SMC(reference=…)."
            )
        done = _next(done, move, generator, ess_share, max_moves)
        keep(done)
    return done


def _next(done: Tempered, move: Move, generator: np.random.Generator, ess_share: float, max_moves: int) -> Tempered:
    """One temperature further."""
    population, log_z, ancestors, before, moved = done
    num_islands, size = population.gain.shape
    step_size = moved[-1].step_size if moved else population.position.shape[-1] ** -0.25
    gain = np.asarray(population.gain, np.float64)
    if np.all(gain > -np.inf):
        beta = next_beta(gain.ravel(), done.beta, ess_share)
        log_w = (beta - done.beta) * gain
    else:  # first to the draws that count at all: γ at the smallest β > 0
        beta, log_w = 0.0, np.where(gain > -np.inf, 0.0, -np.inf)
    total = np.asarray(logsumexp(log_w, axis=1, keepdims=True))
    weights = np.exp(log_w - total)
    scale = scale_of(population.position, weights / num_islands)
    index = systematic(weights, generator.uniform(size=num_islands))
    population, told, left = forget(take(population, index), move, beta, scale, step_size, len(moved), max_moves)
    log_z = log_z + total[:, 0] - np.log(size)
    left = before.innermost(left, MEMORY)
    return Tempered(population, log_z, np.take_along_axis(ancestors, index, axis=1), left, (*moved, told))


def next_beta(gain: Float[np.ndarray, " N"], beta: float, ess_share: float) -> float:
    """The largest β in (beta, 1] at which the weights keep ``ess_share`` of N; by bisection, as ESS falls with β."""

    def share(new: float) -> float:
        w = np.exp((new - beta) * (gain - np.max(gain)))
        return np.sum(w) ** 2 / np.sum(w**2) / len(w)

    if share(1.0) >= ess_share:
        return 1.0
    low, high = beta, 1.0
    while high - low > 1e-6 * (high - beta) and low < (middle := 0.5 * (low + high)) < high:
        low, high = (middle, high) if share(middle) >= ess_share else (low, middle)
    if low == beta:
        raise CredoError(
            f"The likelihood differs so much between particles, at beta = {beta:.2g}, that no smaller step of beta can "
            "be written: give priors on the scale of the data, or begin at SMC(reference=…)."
        )
    return low


def systematic(weights: Float[np.ndarray, "K n"], uniform: Float[np.ndarray, " K"]) -> Int[np.ndarray, "K n"]:
    """Indices of offspring: particle i of island k has ⌊n w⌋ or ⌈n w⌉ of them, n w on average. Weights sum to one."""
    size = weights.shape[1]
    cumulative = np.cumsum(weights, axis=1)
    cumulative /= cumulative[:, -1:]
    levels = np.minimum((np.arange(size) + uniform[:, None]) / size, ALMOST_ONE)
    rows = [np.searchsorted(c, v, side="right") for c, v in zip(cumulative, levels, strict=True)]
    return np.stack(rows)


def take(population: Population, index: Int[np.ndarray, "K n"]) -> Population:
    """The particles ``index`` of each island."""
    island = np.arange(len(index))[:, None]
    return Particles(*(array[island, index] for array in population))


def scale_of(position: Float[Stored, "K n dim"], weights: Float[np.ndarray, "K n"]) -> ScaleOperator:
    """S with S Sᵀ the weighted covariance of all particles; the sds alone where these cannot know a covariance."""
    dim, dtype = position.shape[-1], position.dtype
    inside = weights.ravel() > 0  # what counts for nothing may be anything
    w, deviations = weights.ravel()[inside], position.reshape(-1, dim)[inside].astype(np.float64, copy=False)
    deviations -= w @ deviations
    num_effective = 1 / np.sum(w**2)
    sd = np.sqrt(np.einsum("n,nd,nd->d", w, deviations, deviations))
    sd = np.where(sd > 0, sd, 1.0)
    if num_effective >= PER_COORDINATE * dim and dim <= MAX_DENSE:
        deviations /= sd
        correlation = deviations.T @ (w[:, None] * deviations)
        smallest = np.linalg.eigvalsh(correlation)[0]
        if smallest > dim * np.finfo(dtype).eps:
            return Dense((sd[:, None] * np.linalg.cholesky(correlation)).astype(dtype))
    return Diagonal(sd.astype(dtype))


def forget(
    population: Population, move: Move, beta: float, scale: ScaleOperator, step_size: float, index: int, max_moves: int
) -> tuple[Population, Moved, Tails]:
    """Moves at one temperature, which is number ``index``, until they have forgotten where they were."""
    dtype = population.position.dtype
    first, jump = population, None
    num_moves, num_gradients, call, correlation, acceptance, num_undefined = 0, 0, 0, np.inf, 0.0, 0.0
    left, is_forgotten = Tails.forgotten(first.position.shape[-1] + 1), False
    while not is_forgotten and num_moves + (more := max(num_moves, 1)) <= max_moves:
        num_steps = int(np.clip(np.ceil(QUARTER / step_size), 1, MAX_STEPS))
        step_size = min(step_size, QUARTER / num_steps)
        kernel = Kernel(
            np.asarray(beta, dtype),
            scale,
            np.asarray(step_size, dtype),
            np.asarray(num_steps, np.int32),
            np.asarray(more, np.int32),
        )
        population, acceptance, undefined = move(population, kernel, index, call)
        acceptance, num_undefined = float(acceptance), num_undefined + more * float(undefined)
        num_gradients += population.gain.size * (1 + more * num_steps)
        step_size *= float(np.exp(np.clip(3 * (acceptance - ACCEPTANCE), -1.5, 1.5)))
        num_moves, call, before = num_moves + more, call + 1, jump
        jump, apart = _jumps(first, population)
        correlation = _correlation(jump, apart, before)
        left = tails(columns_of(first), columns_of(population))
        is_forgotten = correlation <= CORRELATION and np.max(left.memory) <= MEMORY
    share = num_undefined / max(num_moves, 1)
    return population, Moved(beta, acceptance, correlation, num_moves, num_gradients, share, step_size), left


def columns_of(p: Population) -> Iterator[Float[np.ndarray, " N"]]:
    """Each coordinate, and ℓ: one at a time, as particles may fill the memory."""
    for column in (*p.position.reshape(p.gain.size, -1).T, p.gain.ravel()):
        yield np.array(column, np.float64)


def _jumps(first: Population, last: Population) -> Float[np.ndarray, "2 dim+1"]:
    """d and d_∞ of each coordinate and of ℓ, this by its ranks."""
    dim, jumps = first.position.shape[-1], []
    for i, (a, b) in enumerate(zip(columns_of(first), columns_of(last), strict=True)):
        if i == dim:
            a, b = np.split(np.unique(np.concatenate([a, b]), return_inverse=True)[1], 2)
        others = np.roll(b, len(b) // 2)
        jumps.append([np.median(np.abs(b - each)) ** 2 for each in (a, others)])
    return np.transpose(jumps)


def _correlation(jump, apart, before) -> float:
    """The worst correlation left, of what can be forgotten and varies at all."""
    left = np.abs(1 - np.divide(jump, apart, out=np.ones_like(jump), where=apart > 0))
    if before is not None:
        growth = np.divide(jump, before, out=np.full_like(jump, np.inf), where=before > 0)
        growth = np.maximum(growth, 1 / np.maximum(growth, 1e-300))  # a fall: they swing about
        left = np.minimum(left, (growth - 1) ** 2)
    return float(np.max(left))
