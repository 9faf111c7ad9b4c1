"""Credo: a posterior by the approximation you name, and how far it can be trusted."""

from credo._version import __version__
from credo.model.data import Rows
from credo.model.model import Model
from credo.model.target import Target
from credo.status import CredoError, Estimate, Verdict

__all__ = ["__version__", "Model", "Target", "Rows", "Verdict", "Estimate", "CredoError"]
