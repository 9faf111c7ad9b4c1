"""Where each public name lives: read by type checkers, and by ``credo/__init__.py`` to load names on demand."""

from . import adapters, decisions, diagnose, estimators, exact, laplace, mcmc, nn, plots, sgmcmc, vi
from ._version import __version__
from .decisions.deciding import Decision, decide
from .fitting import fit, load, resume
from .methods.ensemble import SWAG, DeepEnsemble, MultiSWAG, StochasticWeightSnapshots
from .methods.exact import Exact, Grid
from .methods.laplace import ExactHessian, GaussNewton, Laplace, MixtureOfLaplaces
from .methods.mcmc import (
    HMC,
    MALA,
    NUTS,
    ChEES,
    Conjugate,
    EllipticalSlice,
    Enumerated,
    Gibbs,
    IndependenceMH,
    ParallelTempering,
    RandomWalkMetropolis,
    Slice,
)
from .methods.mcmc.enough import StoppingRule
from .methods.networks import VBLL, GaussianDropout, MCDropout, VariationalLayers
from .methods.optimise import MAP, MLE, confidence_ellipsoid
from .methods.particles.importance import Importance
from .methods.particles.points import Independent, Sobol
from .methods.particles.smc import SMC
from .methods.particles.svgd import SVGD
from .methods.sgmcmc import SGHMC, SGLD, SGNHT, ConstantSGD
from .methods.vi import ADVI, DADVI, Auto, BatchAndMatch, FullRank, MeanField, NaturalGradient, Pathfinder
from .model.data import Rows
from .model.model import Model
from .model.source import Loader
from .model.target import Target
from .models.regression import prepare
from .models.table import read_table
from .posterior.posterior import Posterior
from .predict import Augmented, Linearised, MonteCarlo, Predictive, Probit, Quadrature
from .reporting.comparison import compare
from .reporting.recipe import load_prepared
from .reporting.report import report
from .status import CredoError, Estimate, Verdict

__all__ = [
    "__version__",
    # what is believed
    "Model",
    "Target",
    "Rows",
    "Loader",
    "adapters",
    "read_table",
    "prepare",
    "load_prepared",
    # how to infer
    "fit",
    "resume",
    "load",
    "exact",
    "laplace",
    "mcmc",
    "sgmcmc",
    "vi",
    "nn",
    "Exact",
    "Grid",
    "MAP",
    "MLE",
    "confidence_ellipsoid",
    "Laplace",
    "MixtureOfLaplaces",
    "ExactHessian",
    "GaussNewton",
    "ADVI",
    "Auto",
    "BatchAndMatch",
    "Pathfinder",
    "DADVI",
    "NaturalGradient",
    "MeanField",
    "FullRank",
    "HMC",
    "ChEES",
    "ParallelTempering",
    "NUTS",
    "StoppingRule",
    "MALA",
    "RandomWalkMetropolis",
    "Slice",
    "EllipticalSlice",
    "IndependenceMH",
    "Gibbs",
    "Conjugate",
    "Enumerated",
    "SGLD",
    "SGHMC",
    "SGNHT",
    "ConstantSGD",
    "DeepEnsemble",
    "SWAG",
    "MultiSWAG",
    "StochasticWeightSnapshots",
    "MCDropout",
    "GaussianDropout",
    "VariationalLayers",
    "VBLL",
    "Importance",
    "Independent",
    "Sobol",
    "SVGD",
    "SMC",
    # what is now believed, and how far
    "Posterior",
    "Verdict",
    "Estimate",
    "diagnose",
    "compare",
    "report",
    "plots",
    "estimators",
    # what will be seen
    "Predictive",
    "MonteCarlo",
    "Augmented",
    "Linearised",
    "Probit",
    "Quadrature",
    # what to do
    "decide",
    "Decision",
    "decisions",
    # what went wrong
    "CredoError",
]
