"""Coordinate ascent variational inference: mean-field variational Bayes with an exact bound that never falls."""

from credo.methods.vi.cavi.cavi import CAVI
from credo.methods.vi.cavi.linear_regression import LinearRegression
from credo.methods.vi.cavi.mixture import (
    Diagonal,
    Full,
    GaussianMixture,
    MixturePosterior,
    NormalWishart,
    PointMass,
    Stochastic,
)
from credo.methods.vi.cavi.normal import NormalMeanPrecision
from credo.methods.vi.cavi.probit import ProbitRegression
from credo.methods.vi.cavi.sweeps import Ascent

__all__ = [
    "CAVI",
    "Ascent",
    "Diagonal",
    "Full",
    "GaussianMixture",
    "LinearRegression",
    "MixturePosterior",
    "NormalMeanPrecision",
    "NormalWishart",
    "PointMass",
    "ProbitRegression",
    "Stochastic",
]
