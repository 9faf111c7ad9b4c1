"""Sets of trained networks, and Gaussians from the path of training: posteriors for the price of training."""

from credo.methods.ensemble.deep_ensemble import DeepEnsemble
from credo.methods.ensemble.snapshots import StochasticWeightSnapshots
from credo.methods.ensemble.swag import SWAG, MultiSWAG

__all__ = ["SWAG", "DeepEnsemble", "MultiSWAG", "StochasticWeightSnapshots"]
