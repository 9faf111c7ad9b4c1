"""Scales of the coordinates, found once where the chains begin: the dynamics run in u / s.

A preconditioner that changed with the position would change the stationary law by a term that nobody computes (Ma, Chen
& Fox 2015); this one is frozen before the first draw, and so leaves the law as it is.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from credo.linalg.products import hvp
from credo.methods.sgmcmc.gradient import Gradient
from credo.methods.sgmcmc.moments import mean_and_variance, mean_of, variance_of
from credo.model.windows import random_window

NUM_PROBES, NUM_ROUNDS = 32, 3  # random products: a diagonal to about a fifth
NUM_GRADIENTS = 64
FLAT = 1e-4  # of the largest noise: a flatter coordinate counts as so flat


@dataclass(frozen=True)
class Preconditioner(ABC):
    """How the scales are found."""

    @abstractmethod
    def scale(self, target, batch_size: int | None, gradient: Gradient, key, u) -> Float[Array, " dim"]:
        """s at position ``u``, traceable. ``target``: flat and shuffled; ``gradient``: its stochastic gradient."""


@dataclass(frozen=True)
class UnitScale(Preconditioner):
    """s = 1: the coordinates as they are."""

    def scale(self, target, batch_size, gradient, key, u):
        return jnp.ones_like(u)


@dataclass(frozen=True)
class CurvatureScale(Preconditioner):
    """s = |diag H|^−½, H the Hessian of the log density, by random products E[v ∘ Hv] with signs v on minibatches.

    Other coordinates' curvature is noise in E[v ∘ Hv], above all to one in small units: so rounds follow each other in
    the scale of the last, and what the noise hides counts as its standard error. s stays 1 where there is no curvature.
    """

    def scale(self, target, batch_size, gradient, key, u):
        def improve(scale, key):
            def probe(key):
                k_batch, k_sign = jax.random.split(key)
                batch = None if batch_size is None else random_window(target, batch_size, k_batch)
                v = scale * jax.random.rademacher(k_sign, u.shape, u.dtype)
                return v * hvp(lambda u: target.log_density(u, batch), u, v)

            mean, variance = mean_and_variance(probe, jax.random.split(key, NUM_PROBES))
            size = jnp.maximum(jnp.abs(mean), jnp.sqrt(variance / NUM_PROBES))
            return scale * jnp.where(size == 0, 1, size) ** -0.5, None

        return jax.lax.scan(improve, jnp.ones_like(u), jax.random.split(key, NUM_ROUNDS))[0]


@dataclass(frozen=True)
class GradientScale(Preconditioner):
    """s² = 1 / (λ + √V), V the mean square of stochastic gradients (RMSprop: Li, Chen, Carlson & Carin 2016).

    ``damping``: λ as a share of the largest √V.
    """

    damping: float = 1e-5

    def scale(self, target, batch_size, gradient, key, u):
        size = jnp.sqrt(mean_of(lambda key: gradient(key, u) ** 2, jax.random.split(key, NUM_GRADIENTS)))
        return (self.damping * jnp.max(size) + size) ** -0.5


@dataclass(frozen=True)
class NoiseScale(Preconditioner):
    """s = V^−½, V the variance of the stochastic gradients: where N is large it is in proportion to the curvature."""

    def scale(self, target, batch_size, gradient, key, u):
        variance = variance_of(lambda key: gradient(key, u), jax.random.split(key, NUM_GRADIENTS))
        return jnp.maximum(variance, FLAT * jnp.max(variance)) ** -0.5
