"""Where the points of importance sampling come from: independent draws, or scrambled Sobol sequences.

Independent points need a proposal that can be drawn from, and are independent of one another: S groups of one.

Sobol points (Sobol 1967; scrambled by random matrices and shifts: Matoušek 1998) fill the cube evenly:
    u_ri = m + S Φ⁻¹(v_ri),  r = 1 … R,  i = 1 … n,  n a power of two
for a Gaussian proposal N(m, S Sᵀ). Each v_ri is uniform on the cube, so that a mean over points is as unbiased as one
over draws; for smooth integrands its error falls almost as n^−3/2 (Owen 1997) and not as n^−½. Points of one scramble
depend on one another, scrambles do not: R groups of n, and the spread of the groups is what the error is known by.

Where the Gaussian's tails are too light p/q has no bound, few groups meet a large weight, and the spread of the others
is too small. Each group then gets n points more, of one dimension more, whose first coordinate says which part of r
(reach.py) the others belong to: 2n points of a defensive mixture, weighed against it as one, with q/r as a control
variate (Owen & Zhou 2000; a regression, of a bias as 1/n). Where p/q is bounded it would cost what smooth integrands
gain: r's parts are steps. Which it is, points tell that reach far and are not in the answer: the weights themselves are
small where none was met.
"""

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri

from credo.algorithm import stream
from credo.methods.particles.reach import MANY, SHARE, defended, drawn_far, widened
from credo.methods.particles.weighing import Drawn, draw_and_weigh, weigh_at
from credo.model.target import Target
from credo.posterior.kinds import Flow, Gaussian, Kind
from credo.status import CredoError

MAX_SOBOL_DIM = 21_200  # direction numbers are known for one coordinate more (Joe & Kuo 2008)
BITS = 52  # of a coordinate: with half a cell added, never 0 nor 1 in float64
FEWEST = 2  # groups that tell a spread
HEAVY = np.log(20.0)  # log p/q far out, above that of half of the points, from where it counts as unbounded
HALF = 0.5  # of the points that are added then
FEWEST_CALIBRATED = 64  # points of a scramble, below which a regression on them has a bias


@dataclass(frozen=True)
class Points(ABC):
    """A way to choose the points at which the target is weighed against the proposal."""

    @property
    def reaches_far(self) -> bool:
        """Whether some of them lie where a proposal with light tails has hardly a point."""
        return False

    @abstractmethod
    def shape(self, num_draws: int) -> tuple[int, int]:
        """(chains, draws) of the stored points, ``num_draws`` or more; several chains are independent groups."""

    @abstractmethod
    def draw_and_weigh(
        self, kind: Kind, target: Target, key, num_draws: int, batch: int, deadline: float = np.inf
    ) -> Drawn:
        """Points and their weights, whole groups, ``batch`` at a time.

        ``deadline``, by ``time.monotonic()``: nothing begins after it that the answer can do without.
        """


@dataclass(frozen=True)
class Independent(Points):
    """Independent draws, of any proposal that has a density.

    ``wide_share``: so many of the draws of a Gaussian proposal, or of the Gaussian behind a flow, have sds 2, 4, 8 and
    16 times as large, in one coordinate or in all of them, those of a mixture of Gaussians in all of them, and all are
    weighed against the mixture (defensive: Hesterberg 1995; reach.py). Few weights are then large where the Gaussian's
    tails are too light, and what lies beyond them may be met; where the density is no number at a wide draw, as after
    an overflow, it counts as zero. 0 for none.
    """

    wide_share: float = SHARE

    def __post_init__(self):
        if not 0 <= self.wide_share <= 0.5:
            raise CredoError(f"wide_share lies between 0 and 0.5; got {self.wide_share}.")

    @property
    def reaches_far(self):
        return self.wide_share > 0

    def shape(self, num_draws: int) -> tuple[int, int]:
        return 1, num_draws

    def draw_and_weigh(self, kind, target, key, num_draws, batch, deadline=np.inf) -> Drawn:
        far = drawn_far(kind, target, key, num_draws, batch, deadline, self.wide_share) if self.reaches_far else None
        return far or Drawn(*draw_and_weigh(kind, target, key, num_draws, batch, deadline))


@dataclass(frozen=True)
class Sobol(Points):
    """Scrambled Sobol points mapped to a Gaussian proposal, or to the Gaussian behind a flow, as
    ``Importance(proposal, points=Sobol())``.

    ``replications``: R independent scrambles. Their spread gives the standard errors, which are therefore known to
    1/√(2(R − 1)), 18 % for 16, and made larger by what few can tell (7 % for 16), so that normal quantiles serve; for
    R < 4, where none do, by nothing. Each holds a power of two of points, so that ``num_draws`` is rounded up: 4,000
    draws are 16 × 256. Where the target is not bounded by 20 times the proposal, as by tails that are too light, each
    gets as many points again, half of which reach far, as some of ``Independent()`` do; all are weighed against the
    mixture.
    Raises CredoError for another proposal, and above 21,200 coordinates.
    """

    replications: int = field(default=16, metadata={"at_least": 2})

    @property
    def reaches_far(self):
        return True

    def shape(self, num_draws: int) -> tuple[int, int]:
        return self.replications, 2 ** int(np.ceil(np.log2(max(num_draws / self.replications, 1.0))))

    def draw_and_weigh(self, kind, target, key, num_draws, batch, deadline=np.inf) -> Drawn:
        if not isinstance(kind, Gaussian | Flow):
            raise CredoError(
                f"Sobol points are mapped to a Gaussian or a flow, and the proposal is a {type(kind).__name__}: use "
                "points=Independent(), or a proposal by Laplace() or ADVI()."
            )
        if target.dim > MAX_SOBOL_DIM:
            raise CredoError(
                f"The proposal has {target.dim:,} coordinates and Sobol points {MAX_SOBOL_DIM:,} at most: use "
                "points=Independent()."
            )
        _, size = self.shape(num_draws)
        near, groups = [], []
        for r in range(self.replications):
            if r >= FEWEST and time.monotonic() > deadline:
                break
            z = ndtri(_scramble(stream(key, r), size, target.dim))
            near.append((z, np.zeros(size, bool), *weigh_at(kind, target, z, batch)))
        _, _, u, log_weights = _joined(near)
        if not self._is_unbounded(kind, target, key, size, batch, float(np.median(log_weights))):
            return Drawn(u, log_weights, num_groups=len(near))
        for r, group in enumerate(near):
            if r >= FEWEST and time.monotonic() > deadline:
                break
            z, choice = _far(stream(key, self.replications + r), size, target.dim, HALF)
            groups.append(_joined([group, (z, choice >= 1 - HALF, *weigh_at(kind, target, z, batch))]))
        z, is_far, u, log_weights = _joined(groups)
        u, log_weights, log_own, _ = defended(u, log_weights, z, is_far, HALF / 2)
        if size >= FEWEST_CALIBRATED:
            log_weights += _calibration(np.exp(np.asarray(log_own).reshape(len(groups), -1))).ravel()
        return Drawn(u, log_weights, log_own if target.dim <= MANY else None, len(groups))

    def _is_unbounded(self, kind: Gaussian | Flow, target: Target, key, size: int, batch: int, usual: float) -> bool:
        """Whether p/q is far larger than ``usual`` at some point that reaches far."""
        z, _ = _far(stream(key, 2 * self.replications), size, target.dim, 1.0)
        _, log_weights = weigh_at(kind, target, z, batch)
        return bool(np.any(log_weights[log_weights < np.inf] > usual + HEAVY))


def _scramble(seed, size: int, dim: int) -> Float[np.ndarray, "n dim"]:
    """Points of the cube, ``size`` of them a power of two."""
    from scipy.stats import qmc

    engine = qmc.Sobol(dim, scramble=True, bits=BITS, rng=np.random.default_rng(seed.tolist()))
    return engine.random_base2(int(np.log2(size))) + 2.0 ** -(BITS + 1)


def _far(seed, size: int, dim: int, share: float) -> tuple[Float[np.ndarray, "n dim"], Float[np.ndarray, " n"]]:
    """Points of which the last ``share`` of the second numbers, uniform on (0, 1), reaches far."""
    choice, *v = _scramble(seed, size, dim + 1).T
    return widened(ndtri(np.stack(v, axis=1)), choice, share), choice


def _calibration(own: Float[np.ndarray, "R S"]) -> Float[np.ndarray, "R S"]:
    """Logs of factors near one under which q/r has mean one in each group, as it has under r.

    1 + λ (q/r − mean q/r), λ = (1 − mean q/r) / var q/r: the regression of p/r on the control variate q/r.
    """
    deviation = own - own.mean(axis=1, keepdims=True)
    slope = (1 - own.mean(axis=1, keepdims=True)) / np.maximum(own.var(axis=1, keepdims=True), 1e-12)
    return np.log1p(np.clip(slope * deviation, -0.5, 0.5))


def _joined(parts: list) -> tuple[np.ndarray, ...]:
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))
