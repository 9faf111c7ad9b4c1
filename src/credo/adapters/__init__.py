"""Somebody else's model as a Credo model."""

from credo.adapters.numpyro import from_numpyro

__all__ = ["from_numpyro"]
