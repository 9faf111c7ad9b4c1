"""Exact answers: conjugate families, linear regression, whole models recognised as one of them, and grids."""

from credo.methods.exact.beta import BetaBernoulli
from credo.methods.exact.dirichlet import DirichletCategorical
from credo.methods.exact.evidence import EvidenceLinearRegression
from credo.methods.exact.exact import Exact
from credo.methods.exact.gamma import GammaPoisson
from credo.methods.exact.grid import Grid
from credo.methods.exact.linear_regression import LinearRegression, NormalInverseGammaLinearRegression
from credo.methods.exact.normal import NormalInverseGamma, NormalKnownVariance

__all__ = [
    "BetaBernoulli",
    "DirichletCategorical",
    "EvidenceLinearRegression",
    "Exact",
    "GammaPoisson",
    "Grid",
    "LinearRegression",
    "NormalInverseGamma",
    "NormalInverseGammaLinearRegression",
    "NormalKnownVariance",
]
