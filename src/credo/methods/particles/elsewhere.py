"""Modes that an approximation leaves out, looked for by climbing to them from far away.

An approximation of one of several modes passes every test on its own draws. So Newton's method begins again at a few
places: 10 and 30 sds of the draws from their middle, and about the origin, each with its mirror image, and at draws of
the prior. Where it ends at a maximum m, of curvature A, near which there is none of the draws, the posterior's share
there is weighed by draws of g = N(m, A⁻¹), and of q for the scale:

    Z_m = E_g[p/g; p/q > 100 Z],  Z = median_q p/q, or E_q[p/q] of weighed draws;   share = Σ_m Z_m / (Z + Σ_m Z_m)

so that what q has itself is not counted. m is another mode where log p has a valley on the straight lines to draws of
q, drawn in towards their middle; else a peak of the same one, as the joint mode in the neck of a hierarchy, or a spike
in a slab. Where m has heavier tails than g its share comes out somewhat low. A mode to which no such place leads stays
unseen.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.linalg import solve_triangular
from scipy.special import expit

from credo.batches import in_batches
from credo.compiling import brief
from credo.methods.from_prior import from_prior
from credo.methods.optimise.newton import Solver, maximise
from credo.methods.optimise.objective import Objective, chunk_size, log_density
from credo.methods.optimise.subproblem import Dense
from credo.model.target import Target
from credo.notes import note
from credo.posterior.kinds import Kind

DISTANCES = 10.0, 30.0  # sds from the middle of the draws
ABSOLUTE = 4.0  # from the origin
NUM_PRIOR = 6  # draws: a basin of half of it is missed by one set in sixty-four
TOLERANCE = 0.3  # sds from the mode
MAX_STEPS = 30
BEYOND = 2.0  # times the way back to the draws is the longest step
LARGEST = 200  # dimensions: beyond, directions at random lead nowhere in particular
WORK, FEWEST = 3e7, 2  # (rows + 10 dim) dim² of each start: in all a tenth of a second; and how many starts at least
NEAR = 4.0  # standard deviations of chi-square within which a draw is near a mode
FAR = np.log(100.0)
NUM_DRAWS, NUM_OWN = 2_048, 64  # of g, of q
NUM_LINES, NUM_POINTS = 16, 16  # from a mode to draws of q, and on each
VALLEY, SOME = 0.5, 0.25  # nats; of the same mode a quarter of the lines has none
INWARDS = 0.3  # of the way from the middle to the draws, where lines end
NAMES = "mode_share", "peak_share"
PLACE = "elsewhere"  # the note of where the mode with the largest share lies
AT_ONCE = 16


class Mode(NamedTuple):
    """``root``: L with A = LLᵀ."""

    position: Float[np.ndarray, " dim"]
    root: Float[np.ndarray, "dim dim"]

    def is_near(self, u: Float[np.ndarray, "S dim"]) -> bool:
        """Whether any of ``u`` is."""
        squares = np.sum(np.square((u - self.position) @ self.root), axis=1)
        return bool(np.min(squares) <= self.position.size + NEAR * np.sqrt(2 * self.position.size))

    def draw(self, z: Float[np.ndarray, "S dim"]):
        """Draws of N(m, A⁻¹) from white noise, and their log densities."""
        u = self.position + solve_triangular(self.root.T, z.T).T
        log_det = np.sum(np.log(np.diagonal(self.root)))
        return u, log_det - 0.5 * np.sum(z**2, axis=1) - 0.5 * z.shape[1] * np.log(2 * np.pi)

    def lines(self, u: Float[np.ndarray, "S dim"]) -> Float[np.ndarray, "points dim"]:
        """Points on the straight lines to ``u``, one line after the other."""
        along = np.linspace(0.0, 1.0, NUM_POINTS)[:, None]
        return np.concatenate([self.position + along * (each - self.position) for each in u])


class Climber(NamedTuple):
    """The log density ``function(args, u)`` over positions, and what the fit has compiled to climb it by."""

    function: Callable
    args: Any
    solver: Solver

    @classmethod
    def of(cls, target: Target, objective: Objective | None = None) -> "Climber":
        """Of the posterior's own density, or of ``objective``, by the program that most fits find their start with."""
        function, args = (log_density, target) if objective is None else (objective.function, objective.args)
        return cls(function, args, Dense(chunk_size(target)))

    def climb(self, u: Float[np.ndarray, " dim"], deadline: float, longest: float) -> Mode | None:
        options = {"tolerance": TOLERANCE, "max_steps": MAX_STEPS, "deadline": deadline, "longest": longest}
        end = maximise(self.function, self.args, u, self.solver, **options)
        if end is None or not end.status.is_converged or end.curvature is None:
            return None
        try:
            return Mode(end.position, np.linalg.cholesky(np.asarray(end.curvature, float)))
        except np.linalg.LinAlgError:
            return None


def shares_elsewhere(
    climber: Climber,
    kind: Kind,
    target: Target,
    u: Float[np.ndarray, "S dim"],
    deadline: float,
    log_z: float | None = None,
) -> dict[str, float]:
    """Shares of the posterior, as figures of the verdict: about modes elsewhere, and about peaks. None where they would
    be dear. ``u``: draws of ``kind``.

    ``log_z``: log Z where it is known better than by a median, as of draws that are weighed.
    """
    num_starts = int(WORK // max((target.size + 10.0 * target.dim) * target.dim**2, 1.0))
    if num_starts < FEWEST or target.dim > LARGEST:
        return {}
    modes: list[Mode] = []
    middle = np.median(u, axis=0)
    for _, start in zip(range(num_starts), _starts(u, target), strict=False):
        # a step far beyond the draws may lead to where an equation that is solved numerically takes minutes
        mode = climber.climb(start.astype(u.dtype), deadline, BEYOND * float(np.max(np.abs(start - middle))))
        if mode is not None and not mode.is_near(u) and not any(mode.is_near(m.position[None]) for m in modes):
            modes.append(mode)
    return _shares(climber, kind, modes, u, log_z) if modes else {"mode_share": 0.0}


def _starts(u: Float[np.ndarray, "S dim"], target: Target) -> Iterator[Float[np.ndarray, " dim"]]:
    """In mirrored pairs, along directions at random, orthogonal to each other as long as there are such; then draws of
    the prior, some of which lie in basins that no place far away leads to."""
    low, middle, high = np.quantile(u, [0.16, 0.5, 0.84], axis=0)  # some draws may have been sent far out
    sd = 0.5 * (high - low)
    ways = np.linalg.qr(np.random.default_rng(0).normal(size=(middle.size, 3)))[0] * np.sqrt(middle.size)
    near, far = ((middle, distance * sd) for distance in DISTANCES)
    for (center, width), way in zip((near, (0.0, ABSOLUTE), far), itertools.cycle(ways.T), strict=False):
        yield from (center + width * way, center - width * way)
    yield from from_prior(target, NUM_PRIOR)


def _shares(
    climber: Climber, kind: Kind, modes: list[Mode], u: Float[np.ndarray, "S dim"], log_z: float | None
) -> dict[str, float]:
    own, random = u[:NUM_OWN], np.random.default_rng(1)
    drawn = [mode.draw(random.normal(size=(NUM_DRAWS, u.shape[1]))) for mode in modes]
    middle = np.median(u, axis=0)  # in many dimensions draws lie far below what is between them
    lines = [mode.lines(middle + INWARDS * (own[:NUM_LINES] - middle)) for mode in modes]
    every = np.concatenate([own, *(draws for draws, _ in drawn), *lines]).astype(u.dtype)
    log_p, log_q = (np.asarray(each, float) for each in _densities(climber.function, climber.args, kind, every))
    log_g = np.concatenate([log_density for _, log_density in drawn])
    of_g = slice(len(own), len(own) + len(log_g))
    is_apart = np.array(
        [_has_valley(each.reshape(-1, NUM_POINTS)) for each in np.split(log_p[of_g.stop :], len(modes))]
    )
    with np.errstate(invalid="ignore"):
        log_ratio = np.where(np.isfinite(log_p), log_p - log_q, -np.inf)  # +inf where q has nothing at all
        log_z = np.median(log_ratio[: len(own)]) if log_z is None else log_z
        log_weights = np.where(log_ratio[of_g] > log_z + FAR, log_p[of_g] - log_g, -np.inf).reshape(-1, NUM_DRAWS)
        each = np.logaddexp.reduce(log_weights, axis=1) - np.log(NUM_DRAWS)
        if is_apart.any():
            note(PLACE, modes[int(np.argmax(np.where(is_apart, each, -np.inf)))].position)
        sums = (np.logaddexp.reduce(each[are], initial=-np.inf) for are in (is_apart, ~is_apart))
        return {name: float(expit(total - log_z)) for name, total in zip(NAMES, sums, strict=True)}


def _has_valley(log_p: Float[np.ndarray, "lines points"]) -> bool:
    """Whether the lines, all but some, sink below what is on both sides."""
    log_p = np.where(np.isfinite(log_p), log_p, np.finfo(float).min)
    left, right = (np.maximum.accumulate(each, axis=1) for each in (log_p, log_p[:, ::-1]))
    depth = np.max(np.minimum(left, right[:, ::-1]) - log_p, axis=1)
    return bool(np.quantile(depth, SOME) > VALLEY)


@functools.partial(brief, static_argnames="function")
def _densities(function: Callable, args, kind: Kind, u):
    return in_batches(lambda v: (function(args, v), kind.log_prob_u(v)), u, AT_ONCE)
