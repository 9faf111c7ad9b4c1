"""Which coordinates the Gaussian leaves free; the others stay at the mode, known.

The Gaussian is then that of log p(u_s | u_r = û_r, D), with the curvature A_ss, and the evidence that of the model
whose other parameters are û_r:

    log p(D | û_r) ≈ log p(û, D) − log p(û_r) + (s/2) log 2π − ½ log |A_ss|

log p(u_r) = ∫ p(u) du_s is taken where the prior of u_s is normal given the rest: a Gaussian integral.
Subnetworks of largest variance: Daxberger et al. 2021, Bayesian deep learning via subnetwork inference.
"""

import fnmatch
import functools
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from credo.compiling import TINY, brief
from credo.linalg.embedded import Embedded
from credo.linalg.operator import ScaleOperator
from credo.linalg.products import second_order
from credo.methods.laplace.curvature import Curvature, Free, GaussNewton
from credo.methods.laplace.layered import layers_of
from credo.methods.laplace.structure import Diagonal, Shape, Structure
from credo.methods.optimise.newton import Optimum
from credo.methods.optimise.objective import Objective
from credo.methods.optimise.subproblem import columns
from credo.model.last_layer import last_layers
from credo.model.target import Target
from credo.status import CredoError, Verdict
from credo.traced import by_shapes

MAX_NAMES = 5  # that a sentence tells
MAX_COUPLED = 2_000  # free coordinates whose prior may couple them: a matrix of 32 MB
EXACT = 1e-6  # relative error of a prior's gradient that is taken for linear


@runtime_checkable
class Subset(Protocol):
    """Which coordinates vary."""

    def coordinates(
        self, target: Target, curvature: Curvature, objective: Objective, optimum: Optimum, chunk: int
    ) -> Free:
        """Ascending; None for all. CredoError where there are none such."""
        ...


@dataclass(frozen=True)
class All:
    """Every parameter."""

    def coordinates(self, target, curvature, objective, optimum, chunk):
        return None


@dataclass(frozen=True)
class LastLayer:
    """The weights and the bias from which the network's outputs come: generalised linear regression on its features.

    Found by tracing the network, whatever module it came from. Several layers where several add up to the outputs.
    """

    def coordinates(self, target, curvature, objective, optimum, chunk):
        if target.head is None:
            raise CredoError("LastLayer() needs the natural outputs of the likelihood: use Named(…) instead.")
        found = _of_last_layer(target, jnp.asarray(optimum.position))
        if found is None:
            raise CredoError(
                "No matrix of weights gives the outputs of this model (it may be shared with another place, worked out "
                "from other parameters, or stand in a loop or a branch): name the parameters, "
                "subset=credo.laplace.Named(…)."
            )
        return found


@by_shapes
def _of_last_layer(target: Target, u) -> np.ndarray | None:
    found = last_layers(layers_of(target, u, "LastLayer()", "subset=Named(…)"))
    return np.unique(np.concatenate([layer.index.ravel() for layer in found])) if found else None


@dataclass(frozen=True, init=False)
class Named:
    """The parameters that match one of ``patterns``: ``Named("weights.out.*", "noise")``. ``*`` stands for any text.

    A pattern also takes what lies under it: ``"weights.out"`` takes ``weights.out.kernel``.
    """

    patterns: tuple[str, ...]

    def __init__(self, *patterns: str):
        object.__setattr__(self, "patterns", patterns)

    def coordinates(self, target, curvature, objective, optimum, chunk):
        leaves = target.structure.leaves
        known = ", ".join(leaf.name for leaf in leaves)
        if not self.patterns or not all(isinstance(pattern, str) for pattern in self.patterns):
            raise CredoError(f"Named(…) takes names of parameters; got {self.patterns!r}. The model has {known}.")
        taken = np.zeros(len(leaves), bool)
        for pattern in self.patterns:
            own = np.array([_matches(leaf.name, pattern) for leaf in leaves])
            if not own.any():
                raise CredoError(f"No parameter is named {pattern!r}. The model has {known}.")
            taken |= own
        return np.flatnonzero(np.repeat(taken, [leaf.size for leaf in leaves]))


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"{pattern}.*")


@dataclass(frozen=True)
class LargestVariance:
    """The ``size`` coordinates of largest variance under a diagonal Laplace: 1 / Aᵢᵢ."""

    size: int

    def coordinates(self, target, curvature, objective, optimum, chunk):
        if not 1 <= self.size <= target.dim:
            raise CredoError(
                f"LargestVariance({self.size}) of a model with {target.dim} coordinates: give 1 to {target.dim}."
            )
        cheap = GaussNewton() if target.head is not None and target.y is not None else curvature
        variances = Diagonal().shape(cheap, objective, target, optimum, chunk).scale.diagonal()
        return np.sort(np.argsort(-np.asarray(variances), kind="stable")[: self.size])


def shape_of(
    structure: Structure,
    subset: Subset,
    curvature: Curvature,
    objective: Objective,
    target: Target,
    optimum: Optimum,
    chunk: int,
    is_mode: bool,
) -> Shape:
    """The structure's shape over the subset's coordinates, among all."""
    free = subset.coordinates(target, curvature, objective, optimum, chunk)
    shape = structure.shape(curvature, objective, target, optimum, chunk, is_mode, free)
    if free is None or free.size == target.dim:
        return shape
    log_fixed = log_prior_of_fixed(objective, jnp.asarray(optimum.position), free)
    sentences = shape.sentences
    if log_fixed is None:
        sentences = (*sentences, "The free parameters have no normal prior given the fixed ones: no evidence.")
    return shape._replace(
        scale=Embedded.at(free, shape.scale, target.dim),
        coordinate=int(free[shape.coordinate]),
        sentences=sentences,
        log_fixed=log_fixed,
    )


def of_part(verdict: Verdict, scale: ScaleOperator, target: Target) -> Verdict:
    """Never a pass where parameters are taken for known: what they add to every spread is left out."""
    if not isinstance(scale, Embedded):
        return verdict
    sentence = (
        f"Only {scale.rank:,} of {scale.dim:,} parameters vary ({_names(target, scale)}), and the others are taken for "
        "known at the mode: spreads of parameters and predictions leave theirs out. Compare with subset=All(), or by "
        "held-out scores."
    )
    status = "doubtful" if verdict.status == "pass" else verdict.status
    return replace(verdict, status=status, sentences=tuple(dict.fromkeys((*verdict.sentences, sentence))))


def _names(target: Target, scale: Embedded) -> str:
    """Of the parameters that vary, in whole or in part."""
    is_free = np.isin(np.arange(scale.dim), scale.index)
    ends = np.cumsum([leaf.size for leaf in target.structure.leaves])
    names = [
        leaf.name
        for leaf, end in zip(target.structure.leaves, ends, strict=True)
        if is_free[end - leaf.size : end].any()
    ]
    return ", ".join(names[:MAX_NAMES]) + (", …" if len(names) > MAX_NAMES else "")


# what is left of the prior -------------------------------------------------------------------------------------------


def log_prior_of_fixed(objective: Objective, position, free: np.ndarray) -> float | None:
    """log p(u_r), the free coordinates integrated out; None where their prior, given the others, is not normal."""
    z = np.random.default_rng(0).normal(size=free.size).astype(position.dtype)  # where linearity is looked at
    for is_coupled in (False, True)[: 1 + (free.size <= MAX_COUPLED)]:
        found = _integral(objective.log_prior, objective.args, position, free, z, is_coupled)
        value, log_det, residual = map(float, found)
        if residual <= max(EXACT, float(np.sqrt(np.finfo(position.dtype).eps))):
            return value + 0.5 * free.size * float(np.log(2 * np.pi)) - 0.5 * log_det
    return None


@functools.partial(
    brief, static_argnames=("log_prior", "is_coupled"), options=TINY
)  # of vectors, and run once a fit: sooner compiled than optimised
def _integral(log_prior, args, u, free, z, is_coupled: bool):
    """(log p at the prior's mean m of u_s, log |P|, the error of ∇ log p = −P (u_s − m)), P a matrix or a diagonal."""

    def density(v):
        return log_prior(args, u.at[free].set(v))

    start = u[free]
    _, gradient, product = second_order(density, start)
    if is_coupled:
        P = -columns(product, start, min(start.size, 128))
        mean, step = start + jnp.linalg.solve(P, gradient), jnp.linalg.solve(P, z)
        log_det, is_positive = jnp.linalg.slogdet(P)[1], jnp.linalg.eigvalsh(P)[0] > 0
    else:
        p = -product(jnp.ones_like(start))
        mean, step, log_det, is_positive = start + gradient / p, z / p, jnp.sum(jnp.log(p)), jnp.all(p > 0)
    value, slope = jax.value_and_grad(density)(mean)
    moved = jax.grad(density)(mean + step)
    residual = (jnp.linalg.norm(slope) + jnp.linalg.norm(moved + z)) / jnp.linalg.norm(z)
    return value, log_det, jnp.where(is_positive, residual, jnp.inf)
