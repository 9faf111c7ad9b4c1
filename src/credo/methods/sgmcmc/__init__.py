"""Stochastic-gradient Markov chains: samplers that look at a minibatch a step and never accept or reject."""

from credo.methods.sgmcmc.methods import SGHMC, SGLD, SGNHT, ConstantSGD
from credo.methods.sgmcmc.preconditioner import CurvatureScale, GradientScale, NoiseScale, UnitScale
from credo.methods.sgmcmc.schedule import Constant, Cyclical, Decaying

__all__ = [
    "SGHMC",
    "SGLD",
    "SGNHT",
    "Constant",
    "ConstantSGD",
    "CurvatureScale",
    "Cyclical",
    "Decaying",
    "GradientScale",
    "NoiseScale",
    "UnitScale",
]
