"""How q takes a matching step: a full covariance as it is, one of few directions by the nearest of its kind."""

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credo.algorithm import Options
from credo.compiling import MANY_ROWS, brief
from credo.linalg.dense import Dense
from credo.linalg.factor import DiagonalPlusFactor
from credo.linalg.operator import ScaleOperator
from credo.methods.optimise.objective import generator, starting_position
from credo.methods.vi.families.family import Family
from credo.methods.vi.families.full_rank import FullRank
from credo.methods.vi.families.low_rank import LowRank
from credo.methods.vi.families.mean_field import MeanField
from credo.methods.vi.matching.draws import fits_blocks
from credo.methods.vi.matching.update import Match
from credo.methods.vi.start import Start, find_start
from credo.model.target import Target
from credo.posterior.kinds import Gaussian
from credo.posterior.posterior import Posterior
from credo.status import CredoError

NUM_PATCHES = 10  # steps of EM after each step: they begin where the last ended
LEAST = 1e-6  # of a variance that is the coordinate's own, at least
WIDE = 1.0  # sd of a start without a mode: matching learns of a width from draws that see it
NUM_LOOKS = 4  # draws by which a start is judged
NEAR = 1.0  # of F a dimension: half a nat


@dataclass(frozen=True)
class Form(ABC):
    """A family of Gaussians that can take matching steps. Compiled code is keyed on it."""

    family: Family

    def find_start(self, target: Target, key, start, options: Options) -> Start:
        return find_start(target, self.family, key, start, options, sd=WIDE)

    def root(self, q: Gaussian) -> ScaleOperator:
        """S, made once a step."""
        return q.scale

    @abstractmethod
    def noise_per_square(self, dim: int) -> float:
        """Nats that q lacks after one effective draw, for each unit of r² (update.py)."""

    def noise(self, noise, scores, r2) -> Float[Array, ""]:
        """Nats that q lacks after one effective draw, by a batch of ε and γ drawn near the optimum."""
        return self.noise_per_square(noise.shape[1]) * r2

    @abstractmethod
    def direction(self, step: Match) -> Float[Array, " n"]:
        """Where the step goes, as a vector whose square is twice its length in nats."""

    @abstractmethod
    def take(self, q: Gaussian, step: Match) -> Gaussian:
        """q after the step."""


@dataclass(frozen=True)
class FullForm(Form):
    """Σ ← S X Sᵀ: the lower triangular root becomes S chol(X)."""

    def find_start(self, target: Target, key, start, options: Options) -> Start:
        """N(start, I) where that is near already, as for scales and standardised effects: their mode lies apart."""
        if not isinstance(start, Posterior) and fits_blocks(target.dim):
            position = starting_position(target, key, start)
            looks = _looks(key, target.dim).astype(position.dtype)
            if float(_distance(target, position, looks)) <= NEAR * target.dim:
                return Start(self.family.around(position, np.eye(target.dim, dtype=position.dtype)), len(looks))
        return find_start(target, self.family, key, start, options, sd=WIDE)

    def noise_per_square(self, dim: int) -> float:
        """½ for the mean. ε rᵀ + r εᵀ has 2 d r² of squares, of which Σ takes a half as change: ¼ ‖·‖² / 4."""
        return 0.5 + dim / 8

    def noise(self, noise, scores, r2):
        """½ |γ + ε|² + ‖εεᵀ − γγᵀ‖²/16 where that is more, as under heavy tails: a step moves Σ by half of it."""
        ε, γ = (jnp.sum(jnp.square(v), axis=1) for v in (noise, scores))
        both = jnp.sum(noise * scores, axis=1)
        direct = jnp.mean(0.5 * (ε + 2 * both + γ) + (ε**2 - 2 * both**2 + γ**2) / 16)
        return jnp.maximum(direct, super().noise(noise, scores, r2))

    def direction(self, step: Match):
        change = step.covariance() - jnp.eye(step.mean.size, dtype=step.mean.dtype)
        return jnp.concatenate([step.mean, jnp.ravel(change) / np.sqrt(2)])

    def take(self, q: Gaussian, step: Match) -> Gaussian:
        lower = q.scale.lower  # type: ignore[attr-defined]  # members of FullRank have a Dense scale
        root = jnp.linalg.cholesky(step.covariance())
        return Gaussian(q.mean + jnp.matmul(lower, step.mean), Dense(jnp.tril(jnp.matmul(lower, root))))


@dataclass(frozen=True)
class LowRankForm(Form):
    """The nearest diag(δ²) + A Aᵀ in KL(N(·, S X Sᵀ) ‖ ·), by steps of EM (Modi, Cai & Saul 2024, section 3.2).

    With Σ' = S X Sᵀ in units of δ, B the factor and ψ the variances in these units, the steps of factor analysis for a
    covariance that is known (Rubin & Thayer 1982) are

        M = (I + Bᵀψ⁻¹B)⁻¹,  β = M Bᵀψ⁻¹,  Y = Σ'βᵀ,  B ← Y (M + β Y)⁻¹,  ψ ← diag(Σ' − B Yᵀ)

    Σ' is known by its factors, so that a step costs dim × rank × (rank + batch).
    """

    def find_start(self, target: Target, key, start, options: Options) -> Start:
        """By the diagonal of the curvature alone: matching finds the rest for fewer gradients than its columns take."""
        if isinstance(start, Posterior) and isinstance(start.kind, Gaussian):
            return find_start(target, self.family, key, start, options, sd=WIDE)
        found = find_start(target, MeanField(), key, start, options, sd=WIDE)
        sd = np.sqrt(np.asarray(MeanField().variances(found.q)))  # type: ignore[arg-type]
        return found._replace(q=self.family.start(np.asarray(MeanField().center(found.q)), sd))  # type: ignore[arg-type]

    def root(self, q: Gaussian) -> ScaleOperator:
        return q.scale.rooted()  # type: ignore[attr-defined]  # members of LowRank have a DiagonalPlusFactor

    def noise_per_square(self, dim: int) -> float:
        """As of a full covariance, or of the rank + 1 numbers a coordinate where these are fewer than d/2."""
        return 0.5 + min(dim / 8, (self.family.rank + 1) / 4)  # type: ignore[attr-defined]

    def direction(self, step: Match):
        return jnp.concatenate([step.mean, step.excess() / np.sqrt(2)])

    def take(self, q: Gaussian, step: Match) -> Gaussian:
        S, δ = self.root(q), q.scale.scale  # type: ignore[attr-defined]
        B = q.scale.factor / δ[:, None]  # type: ignore[attr-defined]

        def rooted(columns):
            return jax.vmap(S.matvec, in_axes=1, out_axes=1)(columns) / δ[:, None]

        wide, narrow = jnp.concatenate([B, rooted(step.widened)], axis=1), rooted(step.narrowed)
        diagonal = 1 + jnp.sum(jnp.square(wide), axis=1) - jnp.sum(jnp.square(narrow), axis=1)

        def patch(_, now):
            ψ, B = now
            F = B / ψ[:, None]
            M = jnp.linalg.inv(jnp.eye(B.shape[1], dtype=B.dtype) + jnp.matmul(B.T, F))
            G = jnp.matmul(F, M)
            Y = G + jnp.matmul(wide, jnp.matmul(wide.T, G)) - jnp.matmul(narrow, jnp.matmul(narrow.T, G))
            B = jnp.linalg.solve(M + jnp.matmul(G.T, Y), Y.T).T
            return jnp.maximum(diagonal - jnp.sum(B * Y, axis=1), LEAST * diagonal), B

        ψ, B = jax.lax.fori_loop(0, NUM_PATCHES, patch, (jnp.ones_like(δ), B))
        return Gaussian(q.mean + S.matvec(step.mean), DiagonalPlusFactor(δ * jnp.sqrt(ψ), δ[:, None] * B))


def _looks(key, dim: int) -> Float[np.ndarray, "looks dim"]:
    """Some draws of a block (draws.py), by NumPy: nothing to compile."""
    noise = generator(key).normal(size=(dim, min(dim, NUM_LOOKS // 2)))
    directions = math.sqrt(dim) * np.linalg.qr(noise)[0].T
    return np.concatenate([directions, -directions])


@functools.partial(brief, is_small=lambda target, *_: target.size <= MANY_ROWS)
def _distance(target: Target, position, looks):
    """F of N(position, I) (matching.py), by these draws; infinite where the density is no number at one of them."""
    values, scores = jax.vmap(jax.value_and_grad(target.log_density))(position + looks)
    distance = jnp.mean(jnp.sum(jnp.square(scores + looks), axis=1))
    return jnp.where(jnp.all(jnp.isfinite(values)), distance, jnp.inf)


def form_of(family: Family) -> Form:
    """CredoError for families other than full and low-rank Gaussians."""
    if isinstance(family, FullRank):
        return FullForm(family)
    if isinstance(family, LowRank):
        return LowRankForm(family)
    raise CredoError(
        f"BatchAndMatch fits FullRank() and LowRank(); got {family!r}: its steps have a closed form there. "
        "Use ADVI(family=...) for others."
    )
