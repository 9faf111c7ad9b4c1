"""Pictures of posteriors and of what they predict, as matplotlib figures: ``credo.plots``."""

from credo.reporting.plots.chains import elbo_path, ranks, traces
from credo.reporting.plots.joint import pairs
from credo.reporting.plots.parameters import marginals, prior_posterior
from credo.reporting.plots.plane import approximations
from credo.reporting.plots.predictions import decision_boundary, predictive_bands
from credo.reporting.plots.scores import calibration, decision_curve, predictive_check
from credo.reporting.plots.simulated import rank_ecdf

__all__ = [
    "approximations",
    "calibration",
    "decision_boundary",
    "decision_curve",
    "elbo_path",
    "marginals",
    "pairs",
    "predictive_bands",
    "predictive_check",
    "prior_posterior",
    "rank_ecdf",
    "ranks",
    "traces",
]
