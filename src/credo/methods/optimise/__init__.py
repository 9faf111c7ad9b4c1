"""Modes: maximum a posteriori and maximum likelihood."""

from credo.methods.optimise.map import MAP
from credo.methods.optimise.mle import MLE, Ellipsoid, confidence_ellipsoid

__all__ = ["MAP", "MLE", "Ellipsoid", "confidence_ellipsoid"]
