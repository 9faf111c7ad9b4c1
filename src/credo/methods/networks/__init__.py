"""Posteriors of networks that are trained by minibatches: by their layers, by dropout, and in the last layer alone."""

from credo.methods.networks.dropout import GaussianDropout, MCDropout
from credo.methods.networks.variational_layers import VariationalLayers
from credo.methods.networks.vbll import VBLL

__all__ = ["VBLL", "GaussianDropout", "MCDropout", "VariationalLayers"]
