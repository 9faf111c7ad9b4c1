"""Layers whose weights are independent normals: w ~ N(μ, σ²), applied by local reparameterisation.

With inputs a, the sum Σ_i a_i w_ij + b_j is normal, with mean Σ_i a_i μ_ij + m_j and variance Σ_i a_i² σ_ij² + v_j
(Kingma, Salimans & Welling 2015, eq. 6): its draw, one for each row and output, has the law that drawn weights would
give it, and gradients of far less variance. Where a row applies them at several places, as a convolution does, its
outputs share weights: these are then drawn for each row, by one draw for all and signs of each row's own (flipout, Wen
et al. 2018).
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float

from credo.algorithm import Key, stream
from credo.arguments import as_key
from credo.nn.divergence import log_uniform_divergence, normal_divergence
from credo.nn.laws import LogUniformWeight
from credo.nn.priors import WEIGHTS, WeightPrior, _each
from credo.status import CredoError, is_number

INITIAL_SD = 0.01  # of a weight at first: small beside the weights, so that training begins at the network's own noise


@dataclass(frozen=True)
class LogUniform(WeightPrior):
    """p(w) ∝ 1/|w|: the same at every scale, so that weights which the data do not hold shrink to zero.

    The prior of variational dropout (Kingma, Salimans & Welling 2015). It is improper: there is no evidence under it,
    no MAP, and no posterior in the strict sense, since 1/|w| is not integrable at zero.
    """

    def of(self, params):
        return {WEIGHTS: _each(params, lambda path: LogUniformWeight())}


class VBLayer(eqx.Module):
    """What ``VBLinear`` and ``VBConv`` share. ``mean``, ``log_sd``: arrays ``w`` and, where there is a bias, ``b``."""

    mean: Any
    log_sd: Any
    prior: float | LogUniform = eqx.field(static=True)

    @abstractmethod
    def product(self, x, w) -> Float[Array, "M ... out"]:
        """Σ_i x_i w_ij, for weights of any kind."""

    def __call__(self, x, key=None) -> Float[Array, "M ... out"]:
        """Outputs (M, …, out) at inputs (M, …, in), drawn row by row; their means where ``key`` is None."""
        if key is None:
            return self._mean(x)
        if jnp.ndim(x) > 2:
            return self._mean(x) + self._flipped(x, key)
        mean, variance = self.moments(x)
        least = jnp.finfo(variance.dtype).tiny  # of a row of zeros without a bias, where √ has no derivative
        return mean + jnp.sqrt(jnp.maximum(variance, least)) * jax.random.normal(key, mean.shape, mean.dtype)

    def moments(self, x) -> tuple[Float[Array, "M ... out"], Float[Array, "M ... out"]]:
        """Mean and variance of the outputs, in closed form."""
        x = jnp.asarray(x, self.log_sd["w"].dtype)  # squares of bytes are none
        variance = self.product(jnp.square(x), jnp.exp(2 * self.log_sd["w"]))
        return self._mean(x), variance + jnp.exp(2 * self.log_sd["b"]) if "b" in self.log_sd else variance

    def kl(self) -> Float[Array, ""]:
        """KL(q ‖ prior) of all weights, nats: in closed form for a normal prior, within 4e-7 a weight for LogUniform().

        Biases have a normal prior, of sd 1 where that of the weights is LogUniform().
        """
        mean, log_sd = self.mean, self.log_sd
        total = jnp.zeros((), mean["w"].dtype)
        for name in mean:
            sd = self.prior_sd(name)
            each = (
                log_uniform_divergence(mean[name], log_sd[name])
                if sd is None
                else normal_divergence(mean[name], log_sd[name], sd)
            )
            total = total + jnp.sum(each)
        return total

    def prior_sd(self, name: str) -> float | None:
        """Of the weights ``w`` or the biases ``b``; None for LogUniform()."""
        if isinstance(self.prior, LogUniform):
            return None if name == "w" else 1.0
        return self.prior

    def laws(self) -> dict[str, dist.Distribution]:
        """The priors of the weights, as a model has them."""
        sds = {name: self.prior_sd(name) for name in self.mean}
        return {
            name: (LogUniformWeight() if sd is None else dist.Normal(0.0, sd)).expand(jnp.shape(self.mean[name]))
            for name, sd in sds.items()
        }

    def holding(self, mean, log_sd) -> Self:
        """This layer with other weights."""

        def where(layer):
            return layer.mean, layer.log_sd

        return eqx.tree_at(where, self, (mean, log_sd), is_leaf=lambda node: node is None)

    def _flipped(self, x, key) -> Float[Array, "M ... out"]:
        """What a draw of weights adds to their means: σ ε s tᵀ, of one ε for all rows, and signs s and t for each."""
        keys, dtype = jax.random.split(key, 4), self.log_sd["w"].dtype
        x = jnp.asarray(x, dtype)
        a_row = len(x), *[1] * (x.ndim - 2)
        w = jnp.exp(self.log_sd["w"]) * jax.random.normal(keys[0], self.log_sd["w"].shape, dtype)
        added = self.product(x * jax.random.rademacher(keys[1], (*a_row, x.shape[-1]), dtype), w)
        added = added * jax.random.rademacher(keys[2], (*a_row, added.shape[-1]), dtype)
        if "b" in self.log_sd:
            added = added + jnp.exp(self.log_sd["b"]) * jax.random.normal(keys[3], (*a_row, added.shape[-1]), dtype)
        return added

    def _mean(self, x):
        mean = self.product(x, self.mean["w"])
        return mean + self.mean["b"] if "b" in self.mean else mean


class VBLinear(VBLayer):
    """x ↦ x W + b, W (num_in, num_out).

    ``prior``: the sd of the weights' normal prior, or ``credo.nn.LogUniform()``. ``key``: an int or a JAX key, of the
    initial means, normal with variance 2/num_in (He et al. 2015); the initial sds are 0.01.

    >>> import jax, numpy as np, credo
    >>> layer = credo.nn.VBLinear(3, 2, prior=1.0)
    >>> layer(np.ones((5, 3), np.float32), jax.random.key(1)).shape, bool(layer.kl() > 0)
    ((5, 2), True)
    """

    def __init__(
        self, num_in: int, num_out: int, *, prior: float | LogUniform = 1.0, has_bias: bool = True, key: Key = 0
    ):
        self.mean, self.log_sd = _initial((num_in, num_out), num_in, has_bias, key)
        self.prior = _checked(prior)

    def product(self, x, w):
        return jnp.matmul(x, w)


class VBConv(VBLayer):
    """Convolution of images (M, height, width, num_in), or sequences (M, length, num_in), channels last.

    ``window``: (3, 3) and the like, one number an axis. ``stride``: of every axis. ``padding``: "SAME" or "VALID".
    ``prior``, ``key``: see ``VBLinear``.
    """

    stride: int = eqx.field(static=True)
    padding: str = eqx.field(static=True)

    def __init__(
        self,
        num_in: int,
        num_out: int,
        *,
        window: Sequence[int] = (3, 3),
        stride: int = 1,
        padding: str = "SAME",
        prior: float | LogUniform = 1.0,
        has_bias: bool = True,
        key: Key = 0,
    ):
        if padding not in ("SAME", "VALID") or not (isinstance(window, Sequence) and 1 <= len(window) <= 3):
            raise CredoError(
                "VBConv has a window of one to three axes, such as (3, 3), and padding 'SAME' or 'VALID'; got "
                f"{window!r} and {padding!r}."
            )
        if not (isinstance(stride, int | np.integer) and stride >= 1):
            raise CredoError(f"The stride of VBConv is a whole number from 1; got {stride!r}.")
        shape = (*window, num_in, num_out)
        self.mean, self.log_sd = _initial(shape, math.prod(shape[:-1]), has_bias, key)
        self.prior, self.stride, self.padding = _checked(prior), stride, padding

    def product(self, x, w):
        space = "DHW"[3 - (w.ndim - 2) :]
        numbers = (f"N{space}C", f"{space}IO", f"N{space}C")
        return jax.lax.conv_general_dilated(
            jnp.asarray(x, w.dtype), w, (self.stride,) * len(space), self.padding, dimension_numbers=numbers
        )


def _initial(shape: tuple[int, ...], num_in: int, has_bias: bool, key: Key) -> tuple[Any, Any]:
    if not all(isinstance(size, int | np.integer) and size >= 1 for size in shape):
        raise CredoError(f"A layer of weights {shape} cannot be: give whole numbers of inputs and outputs, from 1.")
    is_seed = isinstance(key, int | np.integer) and key >= 0
    random = np.random.default_rng(key if is_seed else stream(as_key(key)))
    mean = {"w": (random.normal(size=shape) * math.sqrt(2 / num_in)).astype(np.float32)}
    if has_bias:
        mean["b"] = np.zeros(shape[-1], np.float32)
    return mean, {name: np.full_like(array, math.log(INITIAL_SD)) for name, array in mean.items()}


def _checked(prior) -> float | LogUniform:
    if isinstance(prior, LogUniform):
        return prior
    if not is_number(prior) or not prior > 0:
        raise CredoError(f"The prior of a VB layer is the sd of a normal, above 0, or LogUniform(); got {prior!r}.")
    return float(prior)
