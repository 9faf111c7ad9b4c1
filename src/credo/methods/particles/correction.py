"""What importance weights say of an approximation: the figures that its verdict rests on.

The tail of the weights (k̂), and how far they move the mean and the sd of each parameter in the user's space
(diagnose/moments.py). Draws are added until it is certain that all lie within the bounds of a pass, or clear that no
affordable number would show it; gradients of the log density are asked for only where densities alone cannot tell.
"""

import functools
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float
from scipy.sparse import eye_array

from credo.compiling import brief
from credo.diagnose.moments import (
    LEAST,
    MOST,
    Shifts,
    Weighed,
    draws_needed,
    figures_of,
    shifts,
    shifts_between,
)
from credo.diagnose.pareto import effective_sample_size, judged_shape, smooth
from credo.diagnose.rules import RULES
from credo.diagnose.verdict import all_pass
from credo.methods.particles.elsewhere import Climber
from credo.methods.particles.left_out import left_out
from credo.methods.particles.scalars import judged_values, scalars, varying_among
from credo.methods.particles.weighing import Drawn
from credo.model.target import Target
from credo.posterior.kinds import Gaussian, Kind
from credo.timing import counted

MOST_ROUNDS = 32
MOST_NUMBERS = 2**24  # coordinates of draws held at once: 128 MB, and as much again for gradients
MOST_BYTES = 2**39  # of data that all densities together read, once a few rounds are done
FEW_ROUNDS = 4  # so many more draws are dearer than a program for gradients
DRAWS_A_DIMENSION = 8  # before the slope of the gradient can be inverted
LARGEST = 1_000  # dimensions: the inverse takes as long as thousands of densities
FEW = 4  # dimensions of a flow, whose tails are as light as its base's while its draws fit everywhere else
FAR, WORTH = 3, 0.5  # where all weights but 3 are worth half of the draws, these few have the say, which lie far out
STEEP_ROUNDS = 8  # with gradients: what they leave open then is close to the bound

Draws = tuple[Float[np.ndarray, "S dim"], Float[np.ndarray, " S"]]


class Corrected(NamedTuple):
    """``figures`` for the judge; how many log densities and how many gradients they took."""

    figures: dict[str, float]
    num_draws: int
    num_gradients: int
    has_far_tail: bool = False  # weights that are worth most of their draws, and are heavy far out


@counted("verdict")
def correct(
    draw: Callable[[int], Draws],
    gradient: Callable[[np.ndarray], np.ndarray],
    kind: Kind,
    target: Target,
    deadline: float = np.inf,
    most_rounds: int = MOST_ROUNDS,
    least_rounds: int = 1,
    reach: Callable[[int], Drawn] | None = None,
    climber: Climber | None = None,
) -> Corrected:
    """``draw(i)``: the i-th round of draws of ``kind`` with raw log weights; ``gradient(u)``: ∇ log p at (S, dim).

    ``least_rounds``: that are drawn before anything is judged, where so many are affordable. ``reach(i)``: a round of
    draws that reach far (reach.py), for the figures where a few of the others would have the say.

    Beyond k̂ = 1 the weights have no mean and move nothing that could be believed: k̂ alone then says so. Nothing begins
    after ``deadline``, by ``time.monotonic()``, but the first round. Where all would pass, what draws cannot see is
    looked for, other modes by ``climber`` (left_out.py).
    """
    first: list[np.ndarray] = []

    def remembered(i: int) -> Draws:
        round_of = draw(i)
        first.extend([round_of[0]] if i == 0 else [])
        return round_of

    far_k = np.nan
    found = _by_weights(remembered, gradient, kind, target, deadline, most_rounds, least_rounds, reach is not None)
    if reach is not None and time.monotonic() <= deadline:
        if found.has_far_tail:
            found = _by_reach(reach, target, deadline, most_rounds, found.num_draws)
        elif all(found.figures.get(name, np.inf) <= RULES[name].passes for name in MOST):
            is_few = not isinstance(kind, Gaussian) and target.dim <= FEW
            found, far_k = _also_by_reach(reach, target, deadline, most_rounds if is_few else 1, found)
    unseen = left_out(kind, target, first[0], found.figures, deadline, climber=climber)
    figures = found.figures | unseen
    if all_pass(unseen):  # else it is another mode that draws that reach far have met, and that is said
        figures["pareto_k"] = float(np.fmax(figures["pareto_k"], far_k))
    return found._replace(figures=figures)


def _by_weights(
    draw: Callable[[int], Draws],
    gradient: Callable[[np.ndarray], np.ndarray],
    kind: Kind,
    target: Target,
    deadline: float,
    most_rounds: int,
    least_rounds: int,
    can_reach: bool,
) -> Corrected:
    rounds, steep, promised = [draw(0)], None, np.inf
    size, dim = rounds[0][0].shape
    most = _most_draws(target, size, dim, most_rounds)
    while len(rounds) < min(least_rounds, most // size) and time.monotonic() < deadline:
        rounds.append(draw(len(rounds)))
    num_rounds = len(rounds)
    while True:
        u, log_weights = _joined(rounds)
        rounds, num_draws = [(u, log_weights)], len(u)
        smoothed = smooth(log_weights)
        is_heavy = smoothed.k_hat > RULES["pareto_k"].passes
        if can_reach and is_heavy and effective_sample_size(np.sort(log_weights)[:-FAR]) >= WORTH * num_draws:
            return Corrected({"pareto_k": smoothed.k_hat}, num_draws, 0, has_far_tail=True)
        has_shape = can_reach and not np.isnan(smoothed.k_hat)  # in single precision weights near one are of few values
        k_hat = smoothed.k_hat if has_shape else float(judged_shape(log_weights, smoothed.k_hat))
        if not k_hat <= RULES["pareto_k"].doubtful:
            return Corrected({"pareto_k": k_hat}, num_draws, 0)
        if steep is not None:
            steep = np.concatenate([steep, gradient(u[len(steep) :])])
        moved = shifts_of(kind, target, u, smoothed.log_weights, steep)
        figures = {"pareto_k": k_hat, **figures_of(moved)}
        answer = Corrected(figures, num_draws, 0 if steep is None else num_draws)
        if k_hat > RULES["pareto_k"].passes:  # no pass: where a parameter is too noisy to say, its coordinate may tell
            inner = figures_of(shifts_of(kind, target, u, smoothed.log_weights, is_users=False))
            figures = {"pareto_k": k_hat} | {name: max(figures[name], inner[name]) for name in LEAST}
            answer = answer._replace(figures=figures)
        is_settled = MOST[0] not in figures or all(figures[name] <= RULES[name].passes for name in MOST)
        if is_settled or time.monotonic() > deadline:
            return answer
        bounds = (RULES[name].passes for name in MOST)
        needed = max(draws_needed(shift, bound, num_draws) for shift, bound in zip(moved, bounds, strict=True))
        can_be_steep = dim <= LARGEST and num_draws >= DRAWS_A_DIMENSION * dim
        # there are that many draws and it is not certain: some shift is larger than the least that it may be
        is_misjudged, promised = num_draws >= promised, min(promised, needed)
        if steep is None and can_be_steep and (is_misjudged or needed > FEW_ROUNDS * num_draws):
            steep = np.zeros((0, dim))
            continue
        allowed = most if steep is None else max(min(most, STEEP_ROUNDS * size), num_draws)
        if num_draws >= allowed or (needed > allowed and (steep is not None or dim > LARGEST)):
            return answer
        promises_hold = steep is not None  # as they rarely do of densities alone
        wanted = max(2 * num_rounds, math.ceil(needed / size) if promises_hold else 0)
        rounds += [draw(i) for i in range(num_rounds, min(wanted, -(-allowed // size)))]
        num_rounds += len(rounds) - 1


def _joined(rounds: list[Draws]) -> Draws:
    """All draws; of one round these themselves."""
    if len(rounds) == 1:
        return rounds[0]
    u, log_weights = (np.concatenate(part) for part in zip(*rounds, strict=True))
    return u, log_weights


def _most_draws(target: Target, size: int, dim: int, most_rounds: int) -> int:
    """As many as memory holds and data allow, one round of ``size`` at least."""
    affordable = max(FEW_ROUNDS * size, MOST_BYTES // max(target.data_bytes, 1))
    return max(size, min(most_rounds * size, MOST_NUMBERS // dim, affordable))


def _by_reach(
    reach: Callable[[int], Drawn], target: Target, deadline: float, most_rounds: int, num_draws: int
) -> Corrected:
    """From draws that reach far: k̂ of p/r, and how the moments under p/r differ from those under q/r."""
    rounds = [reach(0)]
    size, dim = rounds[0].u.shape
    most = _most_draws(target, size, dim, most_rounds) // size
    while True:
        columns = zip(*(each[:3] for each in rounds), strict=True)
        u, log_target, log_approximation = (np.concatenate(column) for column in columns)
        smoothed = smooth(log_target)
        k_hat = min(smoothed.k_hat, judged_shape(log_target, smoothed.k_hat, log_approximation))
        figures = {"pareto_k": k_hat}
        answer = Corrected(figures, num_draws + len(u), 0, has_far_tail=True)
        if not k_hat <= RULES["pareto_k"].doubtful:
            return answer
        moved = shifts_between(judged_values(target, u), smoothed.log_weights, smooth(log_approximation).log_weights)
        figures |= figures_of(moved)
        is_settled = MOST[0] not in figures or all(figures[name] <= RULES[name].passes for name in MOST)
        if is_settled or len(rounds) >= most or time.monotonic() > deadline:
            return answer
        rounds += [reach(i) for i in range(len(rounds), min(2 * len(rounds), most))]


def _also_by_reach(
    reach: Callable[[int], Drawn], target: Target, deadline: float, most_rounds: int, found: Corrected
) -> tuple[Corrected, float]:
    """``found``, which passes, with what draws that reach far are sure of; of several rounds, what they leave open too.
    And the k̂ of their own weights.

    Of one round the limits are wider than those of ``found``, which are to be held to.
    """
    seen = _by_reach(reach, target, deadline, most_rounds, found.num_draws)
    names = LEAST if most_rounds == 1 else LEAST + MOST
    figures = found.figures | {n: float(np.fmax(found.figures[n], seen.figures.get(n, np.nan))) for n in names}
    figures |= {most: max(figures[most], figures[least]) for least, most in zip(LEAST, MOST, strict=True)}
    is_outgrown = any(figures[name] > RULES[name].passes for name in LEAST)
    return Corrected(figures, seen.num_draws, found.num_gradients, is_outgrown), seen.figures["pareto_k"]


def gradients(function: Callable, args, u: Float[np.ndarray, "S dim"], chunk: int) -> Float[np.ndarray, "S dim"]:
    """∇ ``function(args, u)`` at each row, ``chunk`` at a time. ``function`` is a module's: programs are kept by it."""
    padded = np.resize(u, (-(-len(u) // chunk) * chunk, u.shape[1]))
    parts = [np.asarray(_gradients(function, args, part)) for part in padded.reshape(-1, chunk, u.shape[1])]
    return np.concatenate(parts)[: len(u)]


@functools.partial(brief, static_argnames=("function",))
def _gradients(function: Callable, args, u):
    return jax.vmap(jax.grad(lambda u: function(args, u)))(u)


def shifts_of(
    kind: Kind,
    target: Target,
    u,
    log_weights,
    gradients: np.ndarray | None = None,
    *,
    is_users: bool = True,
    also_derived: bool = True,
) -> Shifts:
    """Of every scalar in the user's space (scalars.py), by smoothed log weights that sum to one.

    ``is_users`` False: of the unconstrained coordinates. ``also_derived`` False: of the parameters alone.
    """
    is_normal = isinstance(kind, Gaussian)
    center = np.asarray(kind.mean) if is_normal else u.mean(axis=0)
    sd = np.sqrt(np.asarray(kind.scale.diagonal())) if is_normal else u.std(axis=0)
    z = u - center
    z /= np.where(sd > 0, sd, 1.0)
    values, directions = scalars(target, u, z, also_derived) if is_users else (u, eye_array(u.shape[1], format="csc"))
    spread = _spread(kind, sd, directions) if isinstance(kind, Gaussian) else None
    gradients = None if gradients is None else gradients * sd
    if not np.all(sd > 0):  # some coordinates are fixed, and with them the scalars that change with these alone
        free = np.flatnonzero(sd > 0)
        z, directions = z[:, free], directions.tocsr()[free]
        gradients = None if gradients is None else gradients[:, free]
        moving = np.flatnonzero(abs(directions).sum(axis=0))
        values, directions, spread = _among(moving, values, directions, spread)
    varying = varying_among(values)  # an entry that is always the same is known, whatever q
    if 0 < varying.size < values.shape[1]:
        values, directions, spread = _among(varying, values, directions, spread)
    return shifts(Weighed(z, log_weights, values, directions, gradients, spread))


def _among(index: np.ndarray, values: np.ndarray, directions, spread: np.ndarray | None):
    """The same of some scalars."""
    return values[:, index], directions.tocsc()[:, index], None if spread is None else spread[index]


def _spread(kind: Gaussian, sd: np.ndarray, directions) -> Float[np.ndarray, " K"]:
    """The sds under q of the ``directions`` b, (dim, K) sparse, in units of the coordinates' own: |Sᵀ (b / sd)|."""
    directions = directions.tocsc()
    found = np.sqrt(directions.multiply(directions).sum(axis=0))  # of a single coordinate, whatever its neighbours do
    joint = np.flatnonzero(np.diff(directions.indptr) > 1)
    size = max(1, MOST_NUMBERS // len(sd))
    for some in (joint[first : first + size] for first in range(0, joint.size, size)):
        rows = (directions[:, some].toarray() / np.where(sd > 0, sd, np.inf)[:, None]).T
        found[some] = np.linalg.norm(jax.vmap(kind.scale.transpose_matvec)(rows), axis=1)
    return found
