"""Gaussians at the mode."""

from credo.methods.laplace.curvature import EmpiricalFisher, ExactHessian, GaussNewton, SampledFisher
from credo.methods.laplace.evidence import Evidence
from credo.methods.laplace.kronecker import Kronecker
from credo.methods.laplace.laplace import Laplace
from credo.methods.laplace.lowrank import LowRank
from credo.methods.laplace.matrix_free import MatrixFree
from credo.methods.laplace.mixture import MixtureOfLaplaces
from credo.methods.laplace.structure import Dense, Diagonal
from credo.methods.laplace.subset import All, LargestVariance, LastLayer, Named

__all__ = [
    "All",
    "Dense",
    "Diagonal",
    "EmpiricalFisher",
    "Evidence",
    "ExactHessian",
    "GaussNewton",
    "Kronecker",
    "Laplace",
    "LargestVariance",
    "LastLayer",
    "LowRank",
    "MatrixFree",
    "MixtureOfLaplaces",
    "Named",
    "SampledFisher",
]
