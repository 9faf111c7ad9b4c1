"""Weighted draws: importance sampling and sequential Monte Carlo."""

from credo.methods.particles.importance import Importance
from credo.methods.particles.points import Independent, Sobol
from credo.methods.particles.smc import SMC
from credo.methods.particles.svgd import SVGD

__all__ = ["SMC", "SVGD", "Importance", "Independent", "Sobol"]
