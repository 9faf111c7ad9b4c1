"""A Bayesian mixture of Gaussians: variational Bayes, EM and stochastic inference on the same two pages."""

from credo.methods.vi.cavi.mixture.answer import MixturePosterior
from credo.methods.vi.cavi.mixture.mixture import GaussianMixture
from credo.methods.vi.cavi.mixture.priors import NormalWishart, PointMass
from credo.methods.vi.cavi.mixture.statistics import Diagonal, Full
from credo.methods.vi.cavi.mixture.stochastic import Stochastic

__all__ = ["Diagonal", "Full", "GaussianMixture", "MixturePosterior", "NormalWishart", "PointMass", "Stochastic"]
