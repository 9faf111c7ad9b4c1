"""Can an answer be trusted? Figures of a fit, and calibration of a method over many."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from credo.diagnose.calibration import negative_log_likelihood
    from credo.diagnose.checks import Check, check_prior
    from credo.diagnose.convergence import nested_r_hat
    from credo.diagnose.intervals import interval_coverage, pit
    from credo.diagnose.novelty import novelty_scores
    from credo.diagnose.ranking import Measured, auroc
    from credo.diagnose.reliability import BrierDecomposition, CalibrationError, brier_decomposition, calibration_error
    from credo.diagnose.selective import RiskCoverage, risk_coverage
    from credo.diagnose.simulation.fits import posterior_sbc, sbc
    from credo.diagnose.simulation.result import Calibration

__all__ = [
    "Calibration",
    "Check",
    "check_prior",
    "nested_r_hat",
    "posterior_sbc",
    "sbc",
    # predictions on held-out rows
    "BrierDecomposition",
    "CalibrationError",
    "Measured",
    "RiskCoverage",
    "auroc",
    "brier_decomposition",
    "calibration_error",
    "interval_coverage",
    "negative_log_likelihood",
    "novelty_scores",
    "pit",
    "risk_coverage",
]

_PLACES = {
    "BrierDecomposition": "reliability",
    "Calibration": "simulation.result",
    "CalibrationError": "reliability",
    "Check": "checks",
    "Measured": "ranking",
    "RiskCoverage": "selective",
    "auroc": "ranking",
    "brier_decomposition": "reliability",
    "calibration_error": "reliability",
    "check_prior": "checks",
    "interval_coverage": "intervals",
    "negative_log_likelihood": "calibration",
    "nested_r_hat": "convergence",
    "novelty_scores": "novelty",
    "pit": "intervals",
    "posterior_sbc": "simulation.fits",
    "risk_coverage": "selective",
    "sbc": "simulation.fits",
}


def __getattr__(name: str):
    """On demand: fits need the figures that stand here, and calibration needs fits."""
    if name in _PLACES:
        return getattr(importlib.import_module(f"credo.diagnose.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'credo.diagnose' has no attribute {name!r}")
