"""Stochastic-gradient Markov chains: samplers that look at a minibatch a step and never accept or reject."""

from credo.methods.sgmcmc.methods import SGHMC, SGLD, SGNHT
from credo.methods.sgmcmc.preconditioner import CurvatureScale, GradientScale, UnitScale
from credo.methods.sgmcmc.schedule import Constant, Cyclical, Decaying

__all__ = [
    "SGHMC",
    "SGLD",
    "SGNHT",
    "Constant",
    "CurvatureScale",
    "Cyclical",
    "Decaying",
    "GradientScale",
    "UnitScale",
]
