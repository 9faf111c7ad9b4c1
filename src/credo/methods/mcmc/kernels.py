"""The samplers' parts, for programs of one's own: bare kernels, metrics and integrators (public as ``credo.mcmc``).

A kernel is a pair of pure functions, ``init(key, position) -> state`` and ``step(key, state) -> (state, info)``, over
flat unconstrained positions; it adapts nothing and works in the precision of its caller.

>>> import jax, jax.numpy as jnp, numpyro.distributions as dist, credo
>>> model = credo.Model({"x": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["x"], 1.0))
>>> kernel = credo.mcmc.hmc(model.given(y=[0.3]), step_size=0.8, num_steps=4)
>>> state = kernel.init(jax.random.key(0), jnp.zeros(1))
>>> state, infos = jax.lax.scan(lambda s, k: kernel.step(k, s), state, jax.random.split(jax.random.key(1), 100))
>>> infos.acceptance.shape
(100,)
"""

from credo.methods.mcmc.chees import chees
from credo.methods.mcmc.elliptical_slice import elliptical_slice
from credo.methods.mcmc.hmc import hmc
from credo.methods.mcmc.independence import independence
from credo.methods.mcmc.integrators import LEAPFROG, MINIMUM_ERROR, SPLIT, Integrator, Reference
from credo.methods.mcmc.mala import mala
from credo.methods.mcmc.metric import AutomaticMetric, DenseMetric, DiagonalMetric, LowRankMetric
from credo.methods.mcmc.nuts import nuts
from credo.methods.mcmc.parallel_tempering import parallel_tempering
from credo.methods.mcmc.random_walk import random_walk
from credo.methods.mcmc.slice import slice_sampling

__all__ = [
    "LEAPFROG",
    "MINIMUM_ERROR",
    "SPLIT",
    "AutomaticMetric",
    "DenseMetric",
    "DiagonalMetric",
    "Integrator",
    "LowRankMetric",
    "Reference",
    "chees",
    "elliptical_slice",
    "hmc",
    "independence",
    "mala",
    "nuts",
    "parallel_tempering",
    "random_walk",
    "slice_sampling",
]
