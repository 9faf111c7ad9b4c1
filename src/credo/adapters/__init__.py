"""Somebody else's model or network as one of Credo's."""

from credo.adapters.equinox import from_equinox, to_equinox
from credo.adapters.flax import from_flax, to_flax
from credo.adapters.network import Network
from credo.adapters.numpyro import from_numpyro
from credo.adapters.torch import from_torch, to_torch

__all__ = ["Network", "from_equinox", "from_flax", "from_numpyro", "from_torch", "to_equinox", "to_flax", "to_torch"]
