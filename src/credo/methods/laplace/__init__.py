"""Gaussians at the mode."""

from credo.methods.laplace.curvature import ExactHessian, GaussNewton
from credo.methods.laplace.kronecker import Kronecker
from credo.methods.laplace.laplace import Laplace
from credo.methods.laplace.structure import Dense, Diagonal

__all__ = ["Dense", "Diagonal", "ExactHessian", "GaussNewton", "Kronecker", "Laplace"]
