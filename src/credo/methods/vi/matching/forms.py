"""How q takes a matching step."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credo.algorithm import Options
from credo.linalg.dense import Dense
from credo.linalg.operator import ScaleOperator
from credo.methods.vi.families.family import Family
from credo.methods.vi.families.full_rank import FullRank
from credo.methods.vi.matching.update import Match
from credo.methods.vi.start import Start, find_start
from credo.model.target import Target
from credo.posterior.kinds import Gaussian
from credo.status import CredoError


@dataclass(frozen=True)
class Form(ABC):
    """A family of Gaussians that can take matching steps. Compiled code is keyed on it."""

    family: Family

    def find_start(self, target: Target, key, start, options: Options) -> Start:
        return find_start(target, self.family, key, start, options)

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


def form_of(family: Family) -> Form:
    """CredoError for families other than full Gaussians."""
    if isinstance(family, FullRank):
        return FullForm(family)
    raise CredoError(
        f"BatchAndMatch fits FullRank(); got {family!r}: its steps have a closed form there. "
        "Use ADVI(family=...) for others."
    )
