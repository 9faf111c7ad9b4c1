"""Densities for bare kernels, with exact draws of them: the part of a target that a kernel sees."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from credo.methods.mcmc.elliptical_slice import elliptical_slice
from credo.posterior.kinds import Gaussian

LOWER = np.linalg.cholesky(np.array([[1.0, 0.6, 0.0], [0.6, 2.0, -0.3], [0.0, -0.3, 0.5]]))
ROTATION = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))[0]
ROOT = ROTATION * np.logspace(0, -1.5, 5)  # of a covariance whose condition number is 1,000


class Density(eqx.Module):
    """The part of a target that kernels see."""

    function: object = eqx.field(static=True)

    def flat(self):
        return self

    def log_density(self, u):
        return self.function(u)


class WithLikelihood(eqx.Module):
    """The same density as a prior and a likelihood, of which elliptical slice sampling sees the second."""

    function: object = eqx.field(static=True)
    prior: Gaussian
    y: float = 0.0  # there are data

    @property
    def model(self):
        return self

    @property
    def likelihood(self):
        return self.function

    def flat(self):
        return self

    def log_likelihood(self, u):
        return (self.function(u) - self.prior.log_prob_u(u))[None]


def elliptical(target, *, prior, num_steps=1):
    return elliptical_slice(WithLikelihood(target.function, prior), prior=prior, num_steps=num_steps)


def gaussian(u):
    z = jnp.matmul(np.linalg.inv(LOWER), u)
    return -0.5 * jnp.sum(z * z)


def ill_conditioned(u):
    z = jnp.matmul(np.linalg.inv(ROOT), u)
    return -0.5 * jnp.sum(z * z)


def gumbel(u):  # skewed, so that a reversed sign shows
    return jnp.sum(-u - jnp.exp(-u))


def half_line(u):  # −inf on one side and NaN beyond
    return jnp.where(u[0] > -1, -jnp.sum(u) - 1.0, jnp.where(u[0] > -2, -jnp.inf, jnp.nan))


DRAWS = {
    gaussian: lambda rng, n: rng.normal(size=(n, 3)) @ LOWER.T,
    ill_conditioned: lambda rng, n: rng.normal(size=(n, 5)) @ ROOT.T,
    gumbel: lambda rng, n: rng.gumbel(size=(n, 2)),
    half_line: lambda rng, n: rng.exponential(size=(n, 1)) - 1,
}
