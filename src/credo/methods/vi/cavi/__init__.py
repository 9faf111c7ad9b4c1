"""Coordinate ascent variational inference: mean-field variational Bayes with an exact bound that never falls."""

from credo.methods.vi.cavi.cavi import CAVI
from credo.methods.vi.cavi.sweeps import Ascent

__all__ = ["CAVI", "Ascent"]
