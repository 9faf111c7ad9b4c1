"""Markov chain Monte Carlo: draws from the exact posterior. The bare kernels are in the modules of their names."""

from credo.methods.mcmc.metric import DenseMetric, DiagonalMetric
from credo.methods.mcmc.sampling import HMC, NUTS

__all__ = ["HMC", "NUTS", "DenseMetric", "DiagonalMetric"]
