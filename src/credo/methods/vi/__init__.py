"""Variational inference: families, objectives, gradient estimators and optimisers that compose, and the fits."""

from credo.methods.vi import cavi as cavi
from credo.methods.vi.advi import ADVI
from credo.methods.vi.auto import Auto
from credo.methods.vi.deterministic.dadvi import DADVI
from credo.methods.vi.distance import Divergences, divergences
from credo.methods.vi.families.blocks import Blocks
from credo.methods.vi.families.factors import Beta, Dirichlet, Gamma
from credo.methods.vi.families.flow import Flow, NeuralSpline, RealNVP
from credo.methods.vi.families.full_rank import FullRank
from credo.methods.vi.families.low_rank import LowRank
from credo.methods.vi.families.mean_field import MeanField
from credo.methods.vi.families.mixture import MixtureOf
from credo.methods.vi.families.point import Point
from credo.methods.vi.families.scales import Exp, Softplus
from credo.methods.vi.gradients.reparameterised import Reparameterised
from credo.methods.vi.gradients.rowwise import Flipout, LocalReparameterised
from credo.methods.vi.gradients.score_function import ScoreFunction
from credo.methods.vi.gradients.second_order import SecondOrder
from credo.methods.vi.gradients.sticking_the_landing import StickingTheLanding
from credo.methods.vi.matching.batch_and_match import BatchAndMatch
from credo.methods.vi.natural.natural_gradient import NaturalGradient
from credo.methods.vi.objectives.elbo import ELBO
from credo.methods.vi.objectives.fisher import FisherDivergence
from credo.methods.vi.objectives.inclusive import InclusiveKL
from credo.methods.vi.objectives.powers import ChiUpper, ImportanceWeighted, Renyi
from credo.methods.vi.optimisers.flow_adam import FlowAdam
from credo.methods.vi.optimisers.momentum import Momentum
from credo.methods.vi.optimisers.optimiser import Optimiser
from credo.methods.vi.pathfinder.pathfinder import Pathfinder

__all__ = [
    "ADVI",
    "Auto",
    "BatchAndMatch",
    "Beta",
    "Blocks",
    "ChiUpper",
    "DADVI",
    "Dirichlet",
    "Divergences",
    "ELBO",
    "Exp",
    "FisherDivergence",
    "Flipout",
    "Flow",
    "FlowAdam",
    "FullRank",
    "Gamma",
    "ImportanceWeighted",
    "InclusiveKL",
    "LocalReparameterised",
    "LowRank",
    "MeanField",
    "MixtureOf",
    "Momentum",
    "NaturalGradient",
    "NeuralSpline",
    "Optimiser",
    "Pathfinder",
    "Point",
    "RealNVP",
    "Renyi",
    "Reparameterised",
    "ScoreFunction",
    "SecondOrder",
    "Softplus",
    "StickingTheLanding",
    "divergences",
]
