"""Draws of which some reach far along a coordinate, for what the draws of q alone cannot tell.

Where weights p/q are worth nearly all of their draws and still have a heavy tail, two things look alike: a density that
outgrows q where it has no mass itself (log-concave posteriors on one side), and a part of the posterior, far out, that
makes its sds (outliers, a prior with a wide component). In white coordinates z, of which the image is u,

    r(u) / q(u) = (1 − a) + a/2 (1 / 4dim Σ_js N(z_j; 0, s²) / N(z_j; 0, 1) + ¼ Σ_s N(z; 0, s²I) / N(z; 0, I)),
    s = 2, 4, 8, 16

are the draws of a defensive mixture (Hesterberg 1995). Against it p has light weights in the first case, and in the
second they show what lies there: along a coordinate or, in few dimensions, along all of them together.
"""

import functools
from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import logsumexp

from credo.algorithm import stream
from credo.methods.particles.weighing import Drawn, reach_and_weigh, weigh_at
from credo.methods.particles.wide_mixture import WIDE, WideMixture
from credo.model.target import Target
from credo.posterior.kinds import Flow, Gaussian, Kind

SHARE = 0.2  # a
STREAM = 3_000  # of the key's random numbers, apart from those of rounds of q
MANY = 20  # dimensions: beyond, a coordinate gets few draws whatever their number, and a quarter of them has to do
LEAST = 200  # draws of a round, where q has so many
AT_ONCE = 200_000  # numbers of an array
LARGEST = 1_000  # dimensions: along one of them a draw takes 4 dim exponentials


def reaching(kind: Kind, target: Target, key, num_draws: int, at_once: int) -> Callable[[int], Drawn] | None:
    """The i-th round of such draws of a Gaussian, a mixture of them or a flow; None of another kind, and in many
    dimensions."""
    size, wide = of_round(num_draws, target.dim), WideMixture.of(kind, SHARE)
    if wide is not None and target.dim <= MANY:
        return lambda i: reach_and_weigh(wide, target, stream(key, STREAM + i), size, at_once)
    if not isinstance(kind, Gaussian | Flow) or target.dim > LARGEST:
        return None
    return functools.partial(
        reach, lambda z: weigh_at(kind, target, z, at_once), num_draws=size, dim=target.dim, key=key
    )


def drawn_far(
    kind: Kind, target: Target, key, num_draws: int, batch: int, deadline: float = np.inf, share: float = SHARE
) -> Drawn | None:
    """Draws of which a ``share`` reaches far; None of a kind that has none. ``log_own`` where each coordinate has many.

    ``deadline``, by ``time.monotonic()``: no batch begins after it, but the first.
    """
    if isinstance(kind, Gaussian | Flow):

        def weigh(z):
            return weigh_at(kind, target, z, batch, deadline)

        found = _reach(weigh, np.random.default_rng(stream(key).tolist()), num_draws, target.dim, share)
        return found if target.dim <= MANY else found._replace(log_own=None)
    wide = WideMixture.of(kind, share)
    found = None if wide is None else reach_and_weigh(wide, target, key, num_draws, batch, deadline)
    return found and found._replace(log_own=None)


def of_round(num_draws: int, dim: int) -> int:
    """How many draws reach far beside ``num_draws`` of q."""
    return num_draws if dim <= MANY else max(num_draws // 4, min(num_draws, LEAST))


def reach(weigh: Callable, i: int, *, num_draws: int, dim: int, key) -> Drawn:
    """The i-th round of them where ``weigh(z)`` gives (u, log p/q) at white coordinates (S, dim)."""
    return _reach(weigh, np.random.default_rng(stream(key, STREAM + i).tolist()), num_draws, dim, SHARE)


def _reach(weigh: Callable, noise: np.random.Generator, num_draws: int, dim: int, share: float) -> Drawn:
    """``weigh(z)`` may give the first of the draws alone."""
    choice = noise.random(num_draws)
    z = widened(noise.normal(size=(num_draws, dim)), choice, share)
    u, log_weights = weigh(z)
    return defended(u, log_weights, z[: len(u)], (choice >= 1 - share)[: len(u)], share)


def widened(z: Float[np.ndarray, "S dim"], choice: Float[np.ndarray, " S"], share: float) -> Float[np.ndarray, "S dim"]:
    """Draws of r from those of q: the last ``share`` of ``choice``, uniform on (0, 1), reaches far and says along what,
    and how far."""
    is_far, dim = np.flatnonzero(choice >= 1 - share), z.shape[1]
    place = (choice[is_far] - (1 - share)) / max(share, 1e-300) * 2 * len(WIDE)
    cell = np.minimum(place.astype(int), 2 * len(WIDE) - 1)
    coordinate = np.minimum(((place - cell) * dim).astype(int), dim - 1)
    is_along_all = ((cell >= len(WIDE)) | (dim > LARGEST))[:, None]
    is_along = is_along_all | (np.arange(dim) == coordinate[:, None])
    z = z.copy()
    z[is_far] *= np.where(is_along, WIDE[cell % len(WIDE)][:, None], 1.0)
    return z


def defended(u, log_weights, z: Float[np.ndarray, "S dim"], is_far: Bool[np.ndarray, " S"], share: float) -> Drawn:
    """Draws of r with their weights, from the logs of p/q at the white coordinates z."""
    is_lost = is_far & (np.isnan(log_weights) | (log_weights == np.inf))  # an overflow far out has no weight
    widening = log_widening(z, share)
    return Drawn(u, np.where(is_lost, -np.inf, log_weights) - widening, -widening)


def log_widening(z: Float[np.ndarray, "S dim"], share: float = SHARE) -> Float[np.ndarray, " S"]:
    """log r/q."""
    rows = max(1, AT_ONCE // max(z.shape[1], 1))
    return np.concatenate([_log_widening(z[i : i + rows], share) for i in range(0, len(z), rows)])


def _log_widening(z: Float[np.ndarray, "S dim"], share: float) -> Float[np.ndarray, " S"]:
    dim = z.shape[1]
    parts = [(np.sum(z**2, axis=1)[:, None], dim)]
    if dim <= LARGEST:
        parts.append((z**2, 1))
    total = []
    for square, size in parts:
        by_scale = [logsumexp(0.5 * square * (1 - 1 / s**2) - size * np.log(s), axis=1) for s in WIDE]
        total.append(logsumexp(by_scale, axis=0) - np.log(len(WIDE) * square.shape[1]))
    return np.logaddexp(np.log1p(-share), np.log(share / len(parts)) + logsumexp(total, axis=0))
