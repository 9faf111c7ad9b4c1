"""Markov chain Monte Carlo: draws from the exact posterior."""

from credo.methods.mcmc.metric import AutomaticMetric, DenseMetric, DiagonalMetric
from credo.methods.mcmc.proposals import MALA, EllipticalSlice, IndependenceMH, RandomWalkMetropolis, Slice
from credo.methods.mcmc.sampling import HMC, NUTS

__all__ = [
    "HMC",
    "MALA",
    "NUTS",
    "AutomaticMetric",
    "DenseMetric",
    "DiagonalMetric",
    "EllipticalSlice",
    "IndependenceMH",
    "RandomWalkMetropolis",
    "Slice",
]
