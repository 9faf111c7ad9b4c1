"""Weighted draws: importance sampling."""

from credo.methods.particles.importance import Importance
from credo.methods.particles.points import Independent, Sobol

__all__ = ["Importance", "Independent", "Sobol"]
