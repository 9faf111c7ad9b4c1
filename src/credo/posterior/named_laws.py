"""Factors that have a name in the user's space, for the moments and quantiles that such laws have in closed form.

A ``LogGamma`` of a positive parameter is a gamma, ``Sticks`` of a probability a beta, of a simplex a Dirichlet. For
other supports, shifted and stretched by bounds that a structure does not know, draws have to do.
"""

import itertools

import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import Distribution

from credo.linalg.blocks import Spans
from credo.model.structure import Leaf, Structure
from credo.posterior.factors import LogGamma, Sticks
from credo.posterior.kinds import Independent, Kind

POSITIVE = "positive", "nonnegative"


def named_laws(kind: Kind, structure: Structure) -> dict[str, Distribution]:
    """By the names of the parameters."""
    found = {}
    for part, spans in parts_of(kind, structure):
        for leaf, own in within(structure, spans):
            law = _law(part, leaf, own)
            if law is not None:
                found[leaf.name] = law
    return found


def parts_of(kind: Kind, structure: Structure) -> list[tuple[Kind, Spans]]:
    """The independent parts of ``kind``, and the spans of their coordinates."""
    if isinstance(kind, Independent):
        return list(zip(kind.parts, kind.spans, strict=True))
    return [(kind, ((0, structure.dim),))]


def within(structure: Structure, spans: Spans) -> list[tuple[Leaf, np.ndarray]]:
    """The parameters of which all coordinates lie in ``spans``, and where these stand in their part."""
    coordinates = np.concatenate([np.arange(first, end) for first, end in spans])
    ends = list(itertools.accumulate(leaf.size for leaf in structure.leaves))
    places = [
        (leaf, np.flatnonzero((coordinates >= end - leaf.size) & (coordinates < end)))
        for leaf, end in zip(structure.leaves, ends, strict=True)
    ]
    return [(leaf, own) for leaf, own in places if own.size == leaf.size > 0]


def _law(part: Kind, leaf: Leaf, own: np.ndarray) -> Distribution | None:
    if isinstance(part, LogGamma) and leaf.support in POSITIVE:
        shape, mean = (np.exp(np.asarray(each, float)[own]) for each in (part.log_shape, part.log_mean))
        return dist.Gamma(shape.reshape(leaf.shape), (shape / mean).reshape(leaf.shape))
    if not isinstance(part, Sticks):
        return None
    alpha = np.exp(np.asarray(part.log_alpha, float))
    if leaf.support == "unit_interval":
        return dist.Beta(*np.moveaxis(alpha[own].reshape(*leaf.shape, 2), -1, 0))
    num_pieces = alpha.shape[1] - 1
    if leaf.support == "simplex":
        return dist.Dirichlet(alpha[own[::num_pieces] // num_pieces].reshape(leaf.shape))
    return None
