"""Approximations of every library as one thing, and their ELBO by one estimate on the same noise.

    ELBO(q) = E_q[log p(u, D) − log q(u)],  u = T(z),  z from one scrambled Sobol sequence

in float64, log p that of Credo's target: constants and coordinates are then the same for all, and what noise is left is
mostly common to all.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

LOG_NUM_DRAWS = 12
SEED = 20_260_101  # of the scramble
CHUNK = 64  # log densities at once


@dataclass(frozen=True)
class Gaussian:
    """N(mean, S Sᵀ) over named blocks of coordinates; ``root`` S (dim, dim), or its diagonal (dim,)."""

    mean: np.ndarray
    root: np.ndarray

    @classmethod
    def ordered(cls, mean, root, names, target) -> "Gaussian":
        """From coordinates in the order of ``names``, each with its shape, to those of Credo's position."""
        order, mean, root = order_of(names, target), np.asarray(mean, float), np.asarray(root, float)
        if root.ndim == 1:
            return cls(mean[order], root[order])
        root = root[order]
        return cls(mean[order], np.linalg.cholesky(root @ root.T))

    def draw(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(draws, their log q)."""
        is_diagonal = self.root.ndim == 1
        u = self.mean + (z * self.root if is_diagonal else z @ self.root.T)
        log_det = np.sum(np.log(np.abs(self.root if is_diagonal else np.diagonal(self.root))))
        return u, -0.5 * np.sum(z * z, axis=1) - 0.5 * z.shape[1] * math.log(2 * math.pi) - log_det


@dataclass(frozen=True)
class Sampled:
    """Any q: ``push``, noise (S, dim) -> (draws in the order of Credo's position, log q)."""

    push: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

    def draw(self, z):
        return self.push(z)


def order_of(names: list[tuple[str, int]], target) -> np.ndarray:
    """Where each of Credo's coordinates lies among the library's: ``names`` are its blocks and their sizes, in turn."""
    starts, at = {}, 0
    for name, size in names:
        starts[name], at = (at, size), at + size
    own = [(leaf.name, leaf.size) for leaf in target.structure.leaves]
    if dict(own) != dict(names):
        raise ValueError(f"Not the same parameters: {names} and {own}.")
    return np.concatenate([starts[name][0] + np.arange(size) for name, size in own])


class Evaluation:
    """The ELBO of any q under one target; nobody's time."""

    def __init__(self, target):
        import jax
        from scipy.stats import norm, qmc

        self.target = target.flat()
        points = qmc.Sobol(self.target.dim, seed=SEED).random_base2(LOG_NUM_DRAWS)
        self.z = norm.ppf(np.clip(points, 1e-12, 1 - 1e-12))
        self.log_density = jax.jit(lambda target, u: jax.lax.map(target.log_density, u, batch_size=CHUNK))

    def __call__(self, q) -> float:
        from credo.precision import double

        u, log_q = q.draw(self.z)
        if not (np.all(np.isfinite(u)) and np.all(np.isfinite(log_q))):
            return -math.inf
        with double():
            log_p = np.asarray(self.log_density(self.target, np.asarray(u, np.float64)))
        value = float(np.mean(log_p - np.asarray(log_q, np.float64)))
        return value if math.isfinite(value) else -math.inf
