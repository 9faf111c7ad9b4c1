"""Where the points of importance sampling come from: independent draws, or scrambled Sobol sequences.

Independent points need a proposal that can be drawn from, and are independent of one another: S groups of one.

Sobol points (Sobol 1967; scrambled by random matrices and shifts: Matoušek 1998) fill the cube evenly:
    u_ri = m + S Φ⁻¹(v_ri),  r = 1 … R,  i = 1 … n,  n a power of two
for a Gaussian proposal N(m, S Sᵀ). Each v_ri is uniform on the cube, so that a mean over points is as unbiased as one
over draws; for smooth integrands its error falls almost as n^−3/2 (Owen 1997) and not as n^−½. Points of one scramble
depend on one another, scrambles do not: R groups of n, and the spread of the groups is what the error is known by.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field

import jax
import numpy as np
from jaxtyping import Float
from scipy.special import ndtri

from credo.algorithm import stream
from credo.methods.particles.reach import SHARE, drawn_far
from credo.methods.particles.weighing import Drawn, draw_and_weigh, map_and_weigh
from credo.model.target import Target
from credo.posterior.kinds import Gaussian, Kind
from credo.status import CredoError

MAX_SOBOL_DIM = 21_201  # direction numbers are known for so many coordinates (Joe & Kuo 2008)
BITS = 52  # of a coordinate: with half a cell added, never 0 nor 1 in float64


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
    """Scrambled Sobol points mapped to a Gaussian proposal, as ``Importance(proposal, points=Sobol())``.

    ``replications``: R independent scrambles. Their spread gives the standard errors, which are therefore known to
    1/√(2(R − 1)), 18 % for 16, and made larger by what few can tell (7 % for 16), so that normal quantiles serve; for
    R < 4, where none do, by nothing. Each holds a power of two of points, so that ``num_draws`` is rounded up: 4,000
    draws are 16 × 256. None reaches far, as some of ``Independent()`` do: where the proposal's tails are too light (k̂
    above 0.3 or so) sums of weights are skewed, and errors too small.
    Raises CredoError for a proposal that is not Gaussian, and above 21,201 coordinates.
    """

    replications: int = field(default=16, metadata={"at_least": 2})

    def shape(self, num_draws: int) -> tuple[int, int]:
        return self.replications, 2 ** int(np.ceil(np.log2(max(num_draws / self.replications, 1.0))))

    def draw_and_weigh(self, kind, target, key, num_draws, batch, deadline=np.inf) -> Drawn:
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
                parts.append(jax.tree.map(np.asarray, map_and_weigh(kind, target, z.astype(kind.mean.dtype))))
        return Drawn(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _scrambles(self, key, size: int, dim: int) -> Iterator[Float[np.ndarray, "n dim"]]:
        """Standard normal points, a scramble at a time."""
        from scipy.stats import qmc

        for r in range(self.replications):
            generator = np.random.default_rng(stream(key, r).tolist())
            engine = qmc.Sobol(dim, scramble=True, bits=BITS, rng=generator)
            yield ndtri(engine.random_base2(int(np.log2(size))) + 2.0 ** -(BITS + 1))
