"""Markov chain Monte Carlo: draws from the exact posterior."""

from credo.methods.mcmc.conjugate import Conjugate
from credo.methods.mcmc.cross_chain import ChEES
from credo.methods.mcmc.enumerated import Enumerated
from credo.methods.mcmc.gibbs_sampling import Gibbs
from credo.methods.mcmc.metric import AutomaticMetric, DenseMetric, DiagonalMetric, LowRankMetric
from credo.methods.mcmc.proposals import MALA, EllipticalSlice, IndependenceMH, RandomWalkMetropolis, Slice
from credo.methods.mcmc.sampling import HMC, NUTS
from credo.methods.mcmc.tempered import ParallelTempering

__all__ = [
    "HMC",
    "MALA",
    "NUTS",
    "AutomaticMetric",
    "ChEES",
    "Conjugate",
    "DenseMetric",
    "DiagonalMetric",
    "EllipticalSlice",
    "Enumerated",
    "Gibbs",
    "IndependenceMH",
    "LowRankMetric",
    "ParallelTempering",
    "RandomWalkMetropolis",
    "Slice",
]
