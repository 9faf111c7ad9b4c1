"""Credo: a posterior by the approximation you name, and how far it can be trusted.

The road: a ``Model`` and data give a ``Target``; a method fits it; the ``Posterior`` carries its own verdict, predicts,
and stands beside others on one table.

>>> import numpy as np, numpyro.distributions as dist, credo
>>> model = credo.Model({"p": dist.Beta(1.0, 1.0)}, lambda params, x: dist.Bernoulli(params["p"]))
>>> posterior = credo.fit(model.given(y=np.array([1, 1, 0, 1])), credo.Exact())
>>> float(posterior.mean()["p"])
0.6666666666666666
"""

import sys

from credo import adapters, decisions, diagnose
from credo._version import __version__
from credo.decisions.deciding import Decision, decide
from credo.fitting import fit, load, resume
from credo.methods import exact, vi
from credo.methods.exact import Exact, Grid
from credo.methods.laplace import ExactHessian, GaussNewton, Laplace
from credo.methods.mcmc import (
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
from credo.methods.mcmc import kernels as mcmc
from credo.methods.mcmc.enough import StoppingRule
from credo.methods.optimise import MAP, MLE, confidence_ellipsoid
from credo.methods.particles.importance import Importance
from credo.methods.particles.points import Independent, Sobol
from credo.methods.particles.smc import SMC
from credo.methods.vi import ADVI, FullRank, MeanField
from credo.model.data import Rows
from credo.model.model import Model
from credo.model.target import Target
from credo.models.regression import prepare
from credo.models.table import read_table
from credo.posterior.posterior import Posterior
from credo.predict import Linearised, MonteCarlo, Predictive, Probit, Quadrature
from credo.reporting import plots
from credo.reporting.comparison import compare
from credo.reporting.recipe import load_prepared
from credo.reporting.report import report
from credo.status import CredoError, Estimate, Verdict

# The families live in methods/; these are their public addresses.
sys.modules[f"{__name__}.exact"] = exact
sys.modules[f"{__name__}.mcmc"] = mcmc
sys.modules[f"{__name__}.plots"] = plots
sys.modules[f"{__name__}.vi"] = vi

__all__ = [
    "__version__",
    # what is believed
    "Model",
    "Target",
    "Rows",
    "adapters",
    "read_table",
    "prepare",
    "load_prepared",
    # how to infer
    "fit",
    "resume",
    "load",
    "exact",
    "mcmc",
    "vi",
    "Exact",
    "Grid",
    "MAP",
    "MLE",
    "confidence_ellipsoid",
    "Laplace",
    "ExactHessian",
    "GaussNewton",
    "ADVI",
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
    "Importance",
    "Independent",
    "Sobol",
    "SMC",
    # what is now believed, and how far
    "Posterior",
    "Verdict",
    "Estimate",
    "diagnose",
    "compare",
    "report",
    "plots",
    # what will be seen
    "Predictive",
    "MonteCarlo",
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


def __getattr__(name: str):
    """``credo.estimators`` on demand: its base classes are scikit-learn's, which take a second to load."""
    if name == "estimators":
        import importlib

        return importlib.import_module("credo.estimators")
    raise AttributeError(f"module 'credo' has no attribute {name!r}")
