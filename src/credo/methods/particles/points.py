"""Where the points of importance sampling come from: independent draws, or scrambled Sobol sequences.

Independent points need a proposal that can be drawn from, and are independent of one another: S groups of one.

Sobol points (Sobol 1967; scrambled by random matrices and shifts: Matoušek 1998) fill the cube evenly:
    u_ri = m + S Φ⁻¹(v_ri),  r = 1 … R,  i = 1 … n,  n a power of two
for a Gaussian proposal N(m, S Sᵀ). Each v_ri is uniform on the cube, so that a mean over points is as unbiased as one
over draws; for smooth integrands its error falls almost as n^−3/2 (Owen 1997) and not as n^−½. Points of one scramble
depend on one another, scrambles do not: R groups of n, and the spread of the groups is what the error is known by.
"""

import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp, ndtri

from credo.algorithm import as_key, stream
from credo.compiling import brief, has_many_rows
from credo.methods.particles.wide_mixture import WIDE, WideMixture
from credo.model.target import Target
from credo.posterior.kinds import Flow, Gaussian, Kind
from credo.status import CredoError

MAX_SOBOL_DIM = 21_201  # direction numbers are known for so many coordinates (Joe & Kuo 2008)
BITS = 52  # of a coordinate: with half a cell added, never 0 nor 1 in float64

Weighed = tuple[Float[np.ndarray, "S dim"], Float[np.ndarray, " S"]]


@dataclass(frozen=True)
class Points(ABC):
    """A way to choose the points at which the target is weighed against the proposal."""

    @abstractmethod
    def shape(self, num_draws: int) -> tuple[int, int]:
        """(chains, draws) of the stored points, ``num_draws`` or more; several chains are independent groups."""

    @abstractmethod
    def draw_and_weigh(
        self, kind: Kind, target: Target, key, num_draws: int, batch: int, deadline: float = np.inf
    ) -> Weighed:
        """Points and the logs of their importance weights, whole groups, ``batch`` at a time.

        ``deadline``, by ``time.monotonic()``: nothing begins after it that the answer can do without.
        """


@dataclass(frozen=True)
class Independent(Points):
    """Independent draws, of any proposal that has a density.

    ``wide_share``: of a Gaussian proposal, of each component of a mixture of Gaussians, or of the Gaussian behind a
    flow, so many draws (rounded to one of a whole number but for mixtures) have sds 2, 4, 8 and 16 times as large, and
    all are weighed against the mixture (defensive: Hesterberg 1995). Few weights are then large where the Gaussian's
    tails are too light, and what lies beyond them may be met; where the density is no number at a wide draw, as after
    an overflow, it counts as zero. 0 for none.
    """

    wide_share: float = 0.1

    def __post_init__(self):
        if not 0 <= self.wide_share <= 0.5:
            raise CredoError(f"wide_share lies between 0 and 0.5; got {self.wide_share}.")

    def shape(self, num_draws: int) -> tuple[int, int]:
        return 1, num_draws

    def draw_and_weigh(self, kind, target, key, num_draws, batch, deadline=np.inf) -> Weighed:
        wide = WideMixture.of(kind, self.wide_share) if self.wide_share > 0 else None
        if wide is not None:
            return reach_and_weigh(wide, target, key, num_draws, batch, deadline)[:2]
        every = round(1 / self.wide_share) if self.wide_share > 0 else None
        return draw_and_weigh(kind, target, key, num_draws, batch, deadline, every=every)


@dataclass(frozen=True)
class Sobol(Points):
    """Scrambled Sobol points mapped to a Gaussian proposal, as ``Importance(proposal, points=Sobol())``.

    ``replications``: R independent scrambles. Their spread gives the standard errors, which are therefore known to
    1/√(2(R − 1)), 18 % for 16, and made larger by what few can tell (7 % for 16), so that normal quantiles serve; for
    R < 4, where none do, by nothing. Each holds a power of two of points, so that ``num_draws`` is rounded up: 4,000
    draws are 16 × 256.
    Raises CredoError for a proposal that is not Gaussian, and above 21,201 coordinates.
    """

    replications: int = field(default=16, metadata={"at_least": 2})

    def shape(self, num_draws: int) -> tuple[int, int]:
        return self.replications, 2 ** int(np.ceil(np.log2(max(num_draws / self.replications, 1.0))))

    def draw_and_weigh(self, kind, target, key, num_draws, batch, deadline=np.inf) -> Weighed:
        if not isinstance(kind, Gaussian):
            raise CredoError(
                f"Sobol points are mapped to a Gaussian, and the proposal is a {type(kind).__name__}: use "
                "points=Independent(), or a proposal by Laplace() or ADVI()."
            )
        if kind.mean.size > MAX_SOBOL_DIM:
            raise CredoError(
                f"The proposal has {kind.mean.size:,} coordinates and Sobol sequences {MAX_SOBOL_DIM:,} at most: use "
                "points=Independent()."
            )
        _, size = self.shape(num_draws)
        batch = min(2 ** int(np.log2(batch)), size)
        parts = []
        for num_done, white in enumerate(self._scrambles(key, size, kind.mean.size)):
            if num_done >= 2 and time.monotonic() > deadline:  # two tell a spread
                break
            for z in white.reshape(-1, batch, kind.mean.size):
                parts.append(jax.tree.map(np.asarray, _map_and_weigh(kind, target, z.astype(kind.mean.dtype))))
        u, log_weights = (np.concatenate(column) for column in zip(*parts, strict=True))
        return u, log_weights

    def _scrambles(self, key, size: int, dim: int) -> Iterator[Float[np.ndarray, "n dim"]]:
        """Standard normal points, a scramble at a time."""
        from scipy.stats import qmc

        for r in range(self.replications):
            generator = np.random.default_rng(stream(key, r).tolist())
            engine = qmc.Sobol(dim, scramble=True, bits=BITS, rng=generator)
            yield ndtri(engine.random_base2(int(np.log2(size))) + 2.0 ** -(BITS + 1))


def _is_large(_, target: Target, *__) -> bool:
    return has_many_rows(target)


@functools.partial(brief, is_large=_is_large)
def _map_and_weigh(kind: Gaussian, target: Target, z):
    """u = m + S z; log q(u) = log N(z; 0, I) − log |S| needs no solve."""
    log_scale = kind.scale.log_det() + 0.5 * kind.mean.size * jnp.log(2.0 * jnp.pi)

    def one(z):
        u: Any = kind.mean + kind.scale.matvec(z)
        return u, target.log_density(u) + 0.5 * jnp.dot(z, z) + log_scale

    return jax.vmap(one)(z)


def draw_and_weigh(
    kind: Kind, target: Target, key, num_draws: int, batch: int, deadline: float = np.inf, *, every: int | None = None
) -> Weighed:
    """Independent draws of ``kind`` and the logs of their importance weights: the same in any ``batch``.

    ``deadline``, by ``time.monotonic()``: no batch begins after it, but the first. ``every``: of a Gaussian or a flow,
    one draw of so many is a wide one, and all are weighed against the mixture.
    """
    num_batches = -(-num_draws // batch)
    batch = -(-num_draws // num_batches)  # equal batches: one program, and little drawn in vain
    noise = np.random.default_rng(stream(key).tolist())
    parts = []
    for first in range(0, num_draws, batch):
        if parts and time.monotonic() > deadline:
            break
        if isinstance(
            kind, Gaussian | Flow
        ):  # random numbers of the host: to compile JAX's takes longer than densities
            z = noise.normal(size=(batch, target.dim)) * wide_scales(batch, every, first)[:, None]
            part = *weigh_at(kind, target, z, batch), np.sum(z**2, axis=1)
        else:
            part = *_draw_and_weigh(kind, target, stream(key), np.int32(first), batch), np.zeros(batch)
            every = None
        parts.append(jax.tree.map(np.asarray, part))
    u, log_weights, squares = (np.concatenate(column)[:num_draws] for column in zip(*parts, strict=True))
    return u, log_weights if every is None else _weighed_widely(log_weights, squares, target.dim, every)


def weigh_at(kind: Gaussian | Flow, target: Target, z: Float[np.ndarray, "S dim"], batch: int) -> Weighed:
    """The images of white coordinates z, and the logs of p/q there, ``batch`` at a time."""
    num_batches = -(-len(z) // batch)
    batch = -(-len(z) // num_batches)
    program = _map_and_weigh if isinstance(kind, Gaussian) else _push_and_weigh
    dtype = kind.mean.dtype if isinstance(kind, Gaussian) else kind.affine.mean.dtype
    padded = np.resize(z, (num_batches * batch, z.shape[1])).astype(dtype)
    parts = [jax.tree.map(np.asarray, program(kind, target, part)) for part in padded.reshape(num_batches, batch, -1)]
    u, log_weights = (np.concatenate(column)[: len(z)] for column in zip(*parts, strict=True))
    return u, log_weights


def wide_scales(num_draws: int, every: int | None, first: int = 0) -> Float[np.ndarray, " S"]:
    """What white noise is multiplied by: 1, and for one draw of so many those of ``WIDE`` in turn.

    ``first``: the number of the first draw.
    """
    if every is None:
        return np.ones(num_draws)
    number = first + np.arange(num_draws)
    return np.where(number % every == every - 1, WIDE[number // every % len(WIDE)], 1.0)


def _weighed_widely(log_weights: Float[np.ndarray, " S"], squares: Float[np.ndarray, " S"], dim: int, every: int):
    """Log weights against the mixture, from those against N(z; 0, I); a wide draw without a density has no weight."""
    scales = wide_scales(len(log_weights), every)
    is_lost = (scales > 1) & (np.isnan(log_weights) | (log_weights == np.inf))
    return np.where(is_lost, -np.inf, log_weights - log_widening(squares, dim, scales))


def log_widening(
    squares: Float[np.ndarray, " S"], dim: int, scales: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " S"]:
    """log of the mean over ``scales`` s of N(z; 0, s² I), less log N(z; 0, I), where |z|² = ``squares``.

    The scales are those that draws were made with, so that their mean weight is unbiased however many there are.
    """
    values, counts = np.unique(scales, return_counts=True)
    each = 0.5 * np.asarray(squares, float)[:, None] * (1 - 1 / values**2) - dim * np.log(values)
    return np.asarray(logsumexp(each, axis=1, b=counts / len(scales)))


@functools.partial(brief, is_large=_is_large)
def _push_and_weigh(kind: Flow, target: Target, z):
    def one(z):
        u, log_q = kind.push(z)
        return u, target.log_density(u) - log_q

    return jax.vmap(one)(z)


def reach_and_weigh(
    wide: WideMixture, target: Target, key, num_draws: int, batch: int, deadline: float = np.inf
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws of r, the logs of p/r and of q/r; one that reached far, and has no density, has no weight."""
    u, log_weights = draw_and_weigh(wide, target, key, num_draws, batch, deadline)
    log_r, log_q = (np.asarray(part) for part in _log_probs(wide, u))
    is_lost = (log_q - log_r < np.log(0.5)) & (np.isnan(log_weights) | (log_weights == np.inf))
    return u, np.where(is_lost, -np.inf, log_weights), log_q - log_r


@brief
def _log_probs(wide: WideMixture, u):
    return jax.vmap(wide.log_probs)(u)


@functools.partial(brief, static_argnames=("batch",), is_large=_is_large)
def _draw_and_weigh(kind: Kind, target: Target, key, first, batch: int):
    def one(index):
        u = kind.sample_u(jax.random.fold_in(as_key(key), index))
        return u, target.log_density(u) - kind.log_prob_u(u)

    return jax.vmap(one)(first + jnp.arange(batch, dtype=jnp.int32))
