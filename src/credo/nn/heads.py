"""Heads: from the outputs z of a network to p(y | z), with the parameters that the head has of its own.

``outcome(z, own)`` takes outputs (M, K) or (M,) and the head's own parameters by name, and returns one distribution a
row; ``priors()`` says what these are believed to be. A single output belongs to outcomes (M,), K of them to (M, K).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import Distribution

from credo.model.distributions import is_distribution
from credo.model.shared import shared
from credo.nn.priors import check_support
from credo.status import CredoError, is_number

LEAST_SCALE = 1e-6  # of an input-dependent noise: below it a single row would outweigh all others


@dataclass(frozen=True)
class Head(ABC):
    """What is observed, given a network's outputs. ``takes_pairs``: outputs may be several arrays.

    ``takes``: what the outputs are, the last where they are several; ``applies``: what the head itself does to them,
    and a network must not have done before.
    """

    takes_pairs: ClassVar[bool] = False
    takes: ClassVar[str] = "outputs"
    applies: ClassVar[tuple[str, ...]] = ()

    def priors(self) -> dict[str, Distribution]:
        """The head's own parameters: their priors by name."""
        return {}

    @abstractmethod
    def outcome(self, z: Any, own: Mapping[str, Any]) -> Distribution:
        """p(y | z), one factor a row."""

    def check(self, z: Any, y: np.ndarray) -> None:
        """CredoError where outputs of these shapes cannot belong to outcomes ``y``. ``z``: abstract arrays."""
        return

    def check_ending(self, ending: str) -> None:
        """CredoError where the last output ends in (``endings``) what this head applies to it."""
        if ending in self.applies:
            raise CredoError(
                f"The network's outputs end in {ending}, and {type(self).__name__}() takes {self.takes}, to which it "
                f"applies {self.applies[0]} itself: let the network return what goes into {ending}."
            )


@dataclass(frozen=True)
class Gaussian(Head):
    """y = z + noise, one sd for all rows.

    ``noise``: the sd, a number where it is known, or its prior; it is then the parameter ``noise`` of the model. The
    default prior suits outcomes of about unit scale.
    """

    noise: float | Distribution = field(default_factory=lambda: dist.HalfNormal(1.0))

    def __post_init__(self):
        _check_number("noise", self.noise)

    def priors(self):
        return {"noise": self.noise} if is_distribution(self.noise) else {}

    def outcome(self, z, own):
        return dist.Normal(sole(z), own.get("noise", self.noise))

    def check(self, z, y):
        _same_shape(self, z, y)
        _check_columns("noise", self.noise, y)


@dataclass(frozen=True)
class StudentT(Head):
    """y = z + noise of heavy tails, so that outliers pull less. ``scale``: as ``Gaussian.noise``."""

    df: float = 4.0
    scale: float | Distribution = field(default_factory=lambda: dist.HalfNormal(1.0))

    def __post_init__(self):
        if not (is_number(self.df) and self.df > 0):
            raise CredoError(
                f"df is a positive number; got {self.df!r}. Where it is unknown, write the head: "
                "credo.nn.Custom(lambda z, df: dist.StudentT(df, z[:, 0], 1.0), {'df': dist.Gamma(2.0, 0.1)})."
            )
        _check_number("scale", self.scale)

    def priors(self):
        return {"scale": self.scale} if is_distribution(self.scale) else {}

    def outcome(self, z, own):
        return dist.StudentT(self.df, sole(z), own.get("scale", self.scale))

    def check(self, z, y):
        _same_shape(self, z, y)
        _check_columns("scale", self.scale, y)


@dataclass(frozen=True)
class HeteroscedasticGaussian(Head):
    """Mean and sd both depend on the input (Nix & Weigend 1994).

    The network gives 2 K outputs for K outcomes, means first, or a pair (means, raw scales) from two networks; one raw
    scale a row, (M, 1), then serves all outcomes of the row. sd = softplus(raw scale), which is 0.69 at zero.
    """

    takes_pairs: ClassVar[bool] = True
    takes: ClassVar[str] = "raw scales"
    applies: ClassVar[tuple[str, ...]] = ("softplus", "exp")

    def outcome(self, z, own):
        mean, raw = self._split(z)
        return dist.Normal(mean, LEAST_SCALE + jax.nn.softplus(raw))

    def check(self, z, y):
        if isinstance(z, tuple | list) and [hasattr(each, "shape") for each in z] != [True, True]:
            raise CredoError(
                f"HeteroscedasticGaussian() takes one array of outputs, or a pair of arrays (means, raw scales); the "
                f"network returns {len(z)}: {', '.join(str(getattr(each, 'shape', each)) for each in z)}."
            )
        if not isinstance(z, tuple | list) and (len(z.shape) < 2 or z.shape[-1] % 2):
            raise CredoError(
                f"HeteroscedasticGaussian() needs an even number of outputs, means and then scales; the network gives "
                f"{z.shape}. Let its last layer have {2 * (1 if y.ndim == 1 else y.shape[-1])}, or return a pair."
            )
        mean, raw = jax.eval_shape(self._split, z)
        if raw.shape != mean.shape and (len(mean.shape) < 2 or raw.shape != (*mean.shape[:-1], 1)):
            raise CredoError(
                f"HeteroscedasticGaussian() takes one raw scale an outcome, or one a row, (M, 1): the network gives "
                f"means {mean.shape} and raw scales {raw.shape}."
            )
        _same_shape(self, mean, y, None if isinstance(z, tuple | list) else z.shape)

    @staticmethod
    def _split(z):
        """(means, raw scales), both (M,) or both with columns."""
        is_pair = isinstance(z, tuple | list)
        mean, raw = z if is_pair else (z[..., : z.shape[-1] // 2], z[..., z.shape[-1] // 2 :])
        mean = sole(mean)
        return mean, raw if raw.ndim == mean.ndim else sole(raw)


@dataclass(frozen=True)
class Categorical(Head):
    """One of K classes, labels 0 … K − 1; the K outputs are logits."""

    takes: ClassVar[str] = "logits"
    applies: ClassVar[tuple[str, ...]] = ("softmax", "sigmoid")

    def outcome(self, z, own):
        return dist.Categorical(logits=z)

    def check(self, z, y):
        if len(z.shape) < 2 or z.shape[-1] < 2:
            raise CredoError(
                f"Categorical() needs one output a class; the network gives {z.shape}: use Bernoulli() for a single "
                "logit, or widen the last layer."
            )
        if y.ndim == len(z.shape) and y.shape[-1] in (1, z.shape[-1]):
            is_sole = y.shape[-1] == 1
            what, remedy = ("", "y.ravel()") if is_sole else (", as for labels one-hot", "y.argmax(axis=1)")
            raise CredoError(f"y has shape {y.shape}{what}, and Categorical() takes one label a row: give {remedy}.")
        _whole(y)
        if y.size and not (y.min() >= 0 and y.max() < z.shape[-1]):
            wrong = y[(y < 0) | (y >= z.shape[-1])].ravel()[0]
            wider = f", or give the last layer {int(y.max()) + 1} outputs" if wrong > 0 else ""
            raise CredoError(
                f"A label is {wrong:g}, and the network has {z.shape[-1]} classes, 0 to {z.shape[-1] - 1}: recode y "
                f"(scikit-learn's LabelEncoder){wider}."
            )
        _same_shape(self, jax.ShapeDtypeStruct(z.shape[:-1], z.dtype), y)


@dataclass(frozen=True)
class Bernoulli(Head):
    """0 or 1; the output is a logit."""

    takes: ClassVar[str] = "logits"
    applies: ClassVar[tuple[str, ...]] = ("sigmoid", "softmax")

    def outcome(self, z, own):
        return dist.Bernoulli(logits=sole(z))

    def check(self, z, y):
        if not np.isin(y, (0, 1)).all():
            wrong = y[~np.isin(y, (0, 1))].ravel()[0]
            raise CredoError(f"A label is {wrong}, and Bernoulli() knows 0 and 1: recode y, or use Categorical().")
        _same_shape(self, z, y)


@dataclass(frozen=True)
class Poisson(Head):
    """Counts; the output is the log of the rate."""

    takes: ClassVar[str] = "log rates"
    applies: ClassVar[tuple[str, ...]] = ("exp", "softplus")

    def outcome(self, z, own):
        return dist.Poisson(jnp.exp(sole(z)))

    def check(self, z, y):
        _whole(y)
        _same_shape(self, z, y)


@dataclass(frozen=True)
class Custom(Head):
    """``function(z, **own)`` returns a numpyro distribution, one factor a row, or a dict of them for several outcomes.

    ``own``: priors of the head's own parameters, by name. Where Credo knows no formula for the Fisher information of
    these outcomes, ``Laplace()`` has it by autodiff: as a sum over all of them where they can be listed, exactly where
    they are normal with a covariance of up to three columns (up to six of few rows), else over draws, 2¹⁶ of all rows
    or 32 of each, by which an entry is known to a percent or two, and less well where rare outcomes tell most. Of a
    distribution that cannot be drawn, or a function that reads an array of all rows (an offset belongs to the network's
    outputs), it takes the Hessian, and says so. ``own`` is not tuned by the evidence, as a noise would be, but part of
    the Gaussian.

    >>> import jax.numpy as jnp, numpy as np, numpyro.distributions as dist, credo
    >>> head = credo.nn.Custom(  # counts with more spread than a Poisson's
    ...     lambda z, shape: dist.NegativeBinomial2(jnp.exp(z[:, 0]), shape), {"shape": dist.LogNormal(1.0, 1.0)}
    ... )
    >>> network = credo.nn.BayesianNetwork(lambda params, x: x @ params["w"], {"w": np.zeros((2, 1))}, head=head)
    >>> network.given(np.ones((4, 2)), np.array([0, 3, 1, 7])).dim
    3
    """

    takes_pairs: ClassVar[bool] = True

    function: Callable
    own: tuple[tuple[str, Distribution], ...] = ()

    def __init__(self, function: Callable, own: Mapping[str, Distribution] | None = None):
        object.__setattr__(self, "function", shared(function))
        object.__setattr__(self, "own", tuple((own or {}).items()))

    def priors(self):
        return dict(self.own)

    def outcome(self, z, own):
        return self.function(z, **own)


def sole(z):
    """Outputs (M, 1) as (M,): a single output belongs to outcomes without a second axis."""
    return z[..., 0] if z.ndim > 1 and z.shape[-1] == 1 else z


def _check_number(name: str, value: Any) -> None:
    """CredoError where ``value`` is neither a positive number nor the prior of one: heads are told apart by it."""
    if is_distribution(value):
        check_support(name, value)
    elif not (is_number(value) and value > 0):
        shown = f"an array of shape {np.shape(value)}" if np.ndim(value) else repr(value)
        raise CredoError(
            f"{name} is a positive number, or its prior where it is unknown; got {shown}. Noise that differs from row "
            "to row is an output of the network (HeteroscedasticGaussian()), or a column of x and head= a function."
        )


def _check_columns(name: str, value: Any, y: np.ndarray) -> None:
    """CredoError where ``value`` is the prior of several numbers, and not of one for each column of ``y``."""
    shape = value.shape() if is_distribution(value) else ()
    if shape not in ((), y.shape[1:] or (1,)):
        each = f", or {y.shape[1:]} for one a column" if y.ndim > 1 else ""
        raise CredoError(
            f"The prior of {name} has shape {shape} for outcomes of shape {y.shape}: give one of shape (){each}."
        )


def _same_shape(head: Head, z, y: np.ndarray, both: tuple[int, ...] | None = None) -> None:
    """CredoError where ``z`` does not have the shape of ``y``; ``both``: that of the outputs z is the first half of."""
    shape = z.shape[:-1] if len(z.shape) > 1 and z.shape[-1] == 1 else z.shape
    if shape != y.shape:
        number = (1 if both is None else 2) * (y.shape[-1] if y.ndim > 1 else 1)
        hint = f"a last layer of {number} outputs" if number > 1 else "a last layer of one output"
        if y.shape[1:] == (1,):
            raise CredoError(
                f"The outcomes have shape {y.shape}, and those of a network with one output have shape ({len(y)},): "
                "give y[:, 0]."
            )
        raise CredoError(
            f"The network gives outputs of shape {both or z.shape} for outcomes of shape {y.shape}, and "
            f"{type(head).__name__}() needs {'two' if both else 'one'} an outcome: use {hint}."
        )


def _whole(y: np.ndarray) -> None:
    if not np.issubdtype(y.dtype, np.integer) and not np.all(y == np.round(y)):
        raise CredoError(f"The outcomes must be whole numbers; one is {y[y != np.round(y)].ravel()[0]:g}.")
