"""Weighted draws: importance sampling."""

from credo.methods.particles.importance import Importance

__all__ = ["Importance"]
