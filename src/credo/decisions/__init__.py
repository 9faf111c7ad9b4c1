"""What to do about it: losses, and the action of least expected loss (``credo.decide``)."""

from credo.decisions.acquisition import bald, choose, entropy, expected_information_gain, predictive_variance
from credo.decisions.deciding import Decision
from credo.decisions.losses import Absolute, CostMatrix, Interval, Loss, Pinball, Reject, Squared, ZeroOne
from credo.decisions.models import ModelProbabilities, model_probabilities

__all__ = [
    "Absolute",
    "CostMatrix",
    "Decision",
    "Interval",
    "Loss",
    "ModelProbabilities",
    "Pinball",
    "Reject",
    "Squared",
    "ZeroOne",
    "bald",
    "choose",
    "entropy",
    "expected_information_gain",
    "model_probabilities",
    "predictive_variance",
]
