"""Networks as models: any function of weights and inputs, a head for its outputs and a prior for its weights."""

from credo.nn.heads import Bernoulli, Categorical, Custom, Gaussian, HeteroscedasticGaussian, Poisson, StudentT
from credo.nn.network import BayesianNetwork
from credo.nn.priors import HorseshoeLike, Isotropic, LaplacePrior, PerLayer, ScaleMixture

__all__ = [
    "BayesianNetwork",
    "Bernoulli",
    "Categorical",
    "Custom",
    "Gaussian",
    "HeteroscedasticGaussian",
    "HorseshoeLike",
    "Isotropic",
    "LaplacePrior",
    "PerLayer",
    "Poisson",
    "ScaleMixture",
    "StudentT",
]
