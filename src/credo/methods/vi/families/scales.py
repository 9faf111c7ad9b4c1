"""How a coordinate b of the tangent moves a standard deviation: s ← s · g(b), with g(0) = g′(0) = 1 and g > 0.

    Exp:       g(b) = eᵇ                                   every step is a factor
    Softplus:  g(b) = log(1 + eˣ),  x = ω + κb,  ω = log(e − 1),  κ = e/(e − 1)
                                                           s grows by a sum, and shrinks by a factor

The second is the positive map of Blundell, Cornebise, Kavukcuoglu & Wierstra (2015, section 3.2), laid through the q at
hand: g multiplies s, so that the units of a parameter make no difference as they would in s = log(1 + eʳ), and the
Fisher information at b = 0 is the same 2 for both. They differ in the way to the optimum, not in where it is.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

OFFSET = math.log(math.expm1(1.0))  # ω: softplus(ω) = 1
SLOPE = math.e / math.expm1(1.0)  # κ: 1/softplus′(ω)
DEEP = -30.0  # x below which log(1 + eˣ) is eˣ to the last digit


class Scale(ABC):
    """A map g from all numbers to positive ones, of value and slope one at zero."""

    @abstractmethod
    def factor(self, b: Float[Array, "..."]) -> Float[Array, "..."]:
        """g(b)."""

    @abstractmethod
    def log_factor(self, b: Float[Array, "..."]) -> Float[Array, "..."]:
        """log g(b), what b adds to the entropy; finite wherever b is."""


@dataclass(frozen=True)
class Exp(Scale):
    """Standard deviations move by eᵇ: the logarithm of a scale is the coordinate, as in most of the literature."""

    def factor(self, b):
        return jnp.exp(b)

    def log_factor(self, b):
        return b


@dataclass(frozen=True)
class Softplus(Scale):
    """Standard deviations move by a softplus of b, which grows no faster than b itself.

    >>> import numpy as np, numpyro.distributions as dist, credo
    >>> model = credo.Model({"mean": dist.Normal(0.0, 1.0)}, lambda params, x: dist.Normal(params["mean"], 1.0))
    >>> family = credo.MeanField(scale=credo.vi.Softplus())
    >>> posterior = credo.fit(model.given(y=np.array([3.0, 5.0, 1.0])), credo.ADVI(family=family))
    >>> round(float(posterior.sd()["mean"]), 2)  # 1/√(1 + 3)
    0.5
    """

    def factor(self, b):
        return jax.nn.softplus(OFFSET + SLOPE * b)

    def log_factor(self, b):
        x = OFFSET + SLOPE * b
        return jnp.where(x < DEEP, x, jnp.log(jax.nn.softplus(jnp.maximum(x, DEEP))))
