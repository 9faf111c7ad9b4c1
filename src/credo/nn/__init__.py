"""Networks as models: any function of weights and inputs, a head for its outputs and a prior for its weights."""

from credo.nn.heads import Bernoulli, Categorical, Custom, Gaussian, HeteroscedasticGaussian, Poisson, StudentT
from credo.nn.layers import LogUniform, VBConv, VBLinear
from credo.nn.network import BayesianNetwork
from credo.nn.priors import HorseshoeLike, Isotropic, LaplacePrior, PerLayer, ScaleMixture
from credo.nn.pruning import prune, sparsity_table
from credo.nn.vb_network import VBNetwork

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
    "LogUniform",
    "PerLayer",
    "Poisson",
    "ScaleMixture",
    "StudentT",
    "VBConv",
    "VBLinear",
    "VBNetwork",
    "prune",
    "sparsity_table",
]
