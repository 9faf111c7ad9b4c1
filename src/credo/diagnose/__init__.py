"""Can an answer be trusted? Figures of a fit, and calibration of a method over many."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from credo.diagnose.convergence import nested_r_hat
    from credo.diagnose.simulation.fits import posterior_sbc, sbc
    from credo.diagnose.simulation.result import Calibration

__all__ = ["Calibration", "nested_r_hat", "posterior_sbc", "sbc"]

_PLACES = {
    "Calibration": "simulation.result",
    "nested_r_hat": "convergence",
    "posterior_sbc": "simulation.fits",
    "sbc": "simulation.fits",
}


def __getattr__(name: str):
    """On demand: fits need the figures that stand here, and calibration needs fits."""
    if name in _PLACES:
        return getattr(importlib.import_module(f"credo.diagnose.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'credo.diagnose' has no attribute {name!r}")
