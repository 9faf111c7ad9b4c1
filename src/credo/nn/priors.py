"""Priors of weights: from the weights' shapes to numpyro distributions, with hyperparameters where these are unknown.

A prior of weights is a rule: ``of(params)`` gives the entries that it adds to the model's dict of priors, the last of
which is ``"weights"``, a pytree in the structure of ``params``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.tree_util import tree_map_with_path
from numpyro.distributions import Distribution

from credo.model.distributions import is_distribution, transform_to, unwrapped
from credo.model.visit import leaf_name
from credo.nn.laws import CauchySlash, TwoNormals
from credo.precision import double
from credo.status import CredoError, is_number

WEIGHTS, PRECISION = "weights", "precision"
OFF_ZERO = 0.01  # of the scale
FAR = 40.0  # in unconstrained coordinates: next to the ends of a support


@dataclass(frozen=True)
class WeightPrior(ABC):
    """A rule that gives each weight a prior."""

    @abstractmethod
    def of(self, params: Any) -> dict[str, Any]:
        """Entries of the model's prior, in order, ``weights`` last."""

    def start(self, params: Any) -> Any:
        """Where fits begin: ``params``, moved only where the prior is not finite."""
        return params


@dataclass(frozen=True)
class Isotropic(WeightPrior):
    """w ~ N(0, 1/α), one α for all. ``precision``: α, or its prior; it is then the parameter ``precision``."""

    precision: float | Distribution = 1.0

    def of(self, params):
        weights = NormalWeights.like(params, None)
        if is_distribution(self.precision):
            _check_precision(self.precision)
            return {PRECISION: self.precision, WEIGHTS: weights}
        return {WEIGHTS: weights(_positive("precision", self.precision))}


@dataclass(frozen=True)
class PerLayer(WeightPrior):
    """w ~ N(0, 1/α_l), one α a layer (the first part of a weight's path), or one a leaf.

    ``precision``: a number for all; a dict by layer; or a prior that each α_l has on its own, which makes them the
    parameters ``precision.LAYER``. ``by``: "layer" or "leaf".
    """

    precision: Any = 1.0
    by: str = "layer"

    def __post_init__(self):
        if self.by not in ("layer", "leaf"):
            raise CredoError(f"PerLayer(by={self.by!r}): say 'layer' or 'leaf'.")

    def of(self, params):
        weights = NormalWeights.like(params, self._layer)
        names = list(dict.fromkeys(weights.layers))
        if is_distribution(self.precision):
            _check_precision(self.precision)
            return {PRECISION: dict.fromkeys(names, self.precision), WEIGHTS: weights}
        return {WEIGHTS: weights(self._known(names))}

    def _known(self, names: list[str]) -> dict[str, Any]:
        """Precisions by layer, where they are numbers."""
        given: Any = self.precision
        by_name = dict(given) if isinstance(given, Mapping) else dict.fromkeys(names, given)
        if set(by_name) != set(names):
            odd = sorted(set(by_name) ^ set(names))[0]
            raise CredoError(
                f"PerLayer(precision=…) and the network disagree about {odd!r}: the layers are {', '.join(names)}."
            )
        return {name: _positive("precision", value) for name, value in by_name.items()}

    def _layer(self, path) -> str:
        return leaf_name(path if self.by == "leaf" else path[:1])


@dataclass(frozen=True)
class LaplacePrior(WeightPrior):
    """w ~ Laplace(0, scale): the mode has zeros."""

    scale: float = 1.0

    def __post_init__(self):
        _positive("scale", self.scale)

    def of(self, params):
        return {WEIGHTS: _each(params, lambda path: dist.Laplace(0.0, self.scale))}


@dataclass(frozen=True)
class ScaleMixture(WeightPrior):
    """w ~ π N(0, σ₁²) + (1 − π) N(0, σ₂²) (Blundell et al. 2015, eq. 7): a spike and a slab."""

    weight: float = 0.5
    scales: tuple[float, float] = (1.0, 0.05)

    def __post_init__(self):
        are_two = np.shape(self.scales) == (2,) and all(is_number(scale) and scale > 0 for scale in self.scales)
        if not (is_number(self.weight) and 0 < self.weight < 1 and are_two):
            raise CredoError(
                f"A mixture of two normals has a weight inside (0, 1) and two positive scales; got {self}."
            )

    def of(self, params):
        return {WEIGHTS: _each(params, lambda path: TwoNormals(self.weight, *self.scales))}


@dataclass(frozen=True)
class HorseshoeLike(WeightPrior):
    """Infinitely high at zero, with tails as 1/w²: few weights matter, hardly shrunk (Bhadra et al. 2019).

    ``scale``: of the weights that matter. At zero the density is infinite, so that it has no MAP: sample instead. Fits
    begin a hundredth of ``scale`` off it, to either side in turn, where a weight is zero, as the biases of most new
    networks are.
    """

    scale: float = 1.0

    def __post_init__(self):
        _positive("scale", self.scale)

    def of(self, params):
        return {WEIGHTS: _each(params, lambda path: CauchySlash(self.scale))}

    def start(self, params):
        def off_zero(leaf):
            leaf = np.asarray(leaf)
            sides = np.resize([1.0, -1.0], leaf.size).reshape(leaf.shape)
            return np.where(leaf == 0, OFF_ZERO * self.scale * sides, leaf).astype(leaf.dtype)

        return jax.tree.map(off_zero, params)


@dataclass(frozen=True)
class NormalWeights:
    """precision -> N(0, 1/α) of each weight; α is ``precision`` itself, or that of its layer where ``layers`` has one a
    leaf.

    Equal for networks of one shape, whatever their weights: compiled programs are keyed on it.
    """

    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    layers: tuple[str, ...]

    @classmethod
    def like(cls, params: Any, layer: Callable | None) -> "NormalWeights":
        leaves, structure = jax.tree_util.tree_flatten_with_path(params)
        shapes = tuple(jnp.shape(leaf) for _, leaf in leaves)
        return cls(structure, shapes, tuple(layer(path) for path, _ in leaves) if layer else ())

    def __call__(self, precision) -> Any:
        each = [precision[name] for name in self.layers] if self.layers else [precision] * len(self.shapes)
        laws = [dist.Normal(0.0, alpha**-0.5).expand(shape) for alpha, shape in zip(each, self.shapes, strict=True)]
        return jax.tree.unflatten(self.structure, laws)


def _each(params, distribution) -> Any:
    """``distribution(path)`` expanded to the shape of each leaf."""
    return tree_map_with_path(lambda path, leaf: distribution(path).expand(jnp.shape(leaf)), params)


def check_support(name: str, prior: Distribution) -> None:
    """CredoError where the prior of a noise or a precision allows zero or less."""
    transform = transform_to(prior)
    with jax.ensure_compile_time_eval(), double():
        ends = [transform(jnp.full(transform.inverse_shape(prior.shape()), u)) for u in (-FAR, FAR)]
        is_positive = jnp.all(jnp.stack(ends) > 0)
    if not is_positive:
        raise CredoError(
            f"The prior of {name}, {type(unwrapped(prior)).__name__}, is not on the positive numbers alone: give "
            "HalfNormal, Gamma or LogNormal."
        )


def _check_precision(prior: Any) -> None:
    if prior.shape():
        raise CredoError(
            f"The prior of precision is of one number, and this one has shape {prior.shape()}: give one of shape (); "
            "PerLayer() has a number for each layer."
        )
    check_support("precision", prior)


def _positive(what: str, value: Any) -> float:
    if not (is_number(value) and value > 0):
        raise CredoError(f"A prior {what} is a positive, finite number; got {value!r}.")
    return float(value)
