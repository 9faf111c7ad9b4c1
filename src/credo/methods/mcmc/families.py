"""Families of conjugate conditionals, over unconstrained coordinates u, and how a log density f tells their parameters.

    normal         −½ (u − m)ᵀ P (u − m)               P = −∇²f,  m = u + P⁻¹ ∇f        at any u
    log-gamma      Σ_i a_i w_i − b_i exp(w_i)          ∂f/∂w_i = a_i − b_i exp(w_i)     w = u: gamma; w = −u: inverse
    logistic-beta  Σ_i a_i log p_i + b_i log(1 − p_i)  ∂f/∂u_i = a_i − (a_i + b_i) p_i  p = σ(u − c): beta

where θ = exp(u) and p = σ(u) bring their Jacobians, so that a and b are the parameters of the gamma or beta variable.
Gradients at two points, or a Hessian at one, give all of them. A Dirichlet variable is a product of beta variables, the
shares broken off a stick; c_j = log(number of sticks from j on) is numpyro's offset.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

STEP = 0.7  # half of what is between two points of gradients, at least: enough for digits
TOLD = 0.1  # of a gradient, by which two places differ that tell a scale
MOST_PLACES = 8  # where gradients are taken, each twice as far up as the last
WIDEST = 4.0  # sd of a logit, among places to look at: beyond four of these shares leave no digits


def floor(dtype):
    """The least logarithm of a gamma variable, or logit of a share, that is drawn: 10⁻¹⁰² in double precision.

    At a shape of 0.02 one draw in 10⁶ lies below the smallest number, 10⁻³⁰⁸. The model would see 0 in its place, or in
    that of its product with what is left of a stick, and have no density for any block. Lower draws stand here, where
    the third powers that derivatives form are numbers still.
    """
    return jnp.log(jnp.finfo(dtype).tiny) / 3


@runtime_checkable
class Family(Protocol):
    """Distributions over a block's coordinates v. ``name``: of those of the parameters.

    ``fit(conditional, v)``: the parameters that the conditional must have if it is one of them, found from v.
    ``spread(found, z)``: places where such a one has its mass, the mode at z = 0.
    """

    @property
    def name(self) -> str: ...

    def fit(self, conditional, v) -> Any: ...

    def sample(self, key, found) -> Array: ...

    def spread(self, found, z) -> Array: ...

    def log_prob(self, found, v) -> Array:
        """Up to a constant."""
        ...

    def has_digits(self, v) -> Array:
        """Whether the model's own numbers, and so its log density, are more than rounding at v."""
        ...

    def num_gradients(self, dim: int) -> int: ...


@dataclass(frozen=True)
class Normal:
    """``is_apart``: the elements are independent, so that one product with the Hessian holds its diagonal."""

    is_apart: bool

    @property
    def name(self) -> str:
        return "normal"

    class Found(NamedTuple):
        mean: Float[Array, " block"]
        root: Array  # of P, lower triangular: (block, block), or its diagonal

    def fit(self, conditional, v) -> Found:
        gradient_at = jax.grad(conditional.log_density)
        if self.is_apart:
            gradient, minus_p = jax.jvp(gradient_at, (v,), (jnp.ones_like(v),))
            return self.Found(v - gradient / minus_p, jnp.sqrt(-minus_p))
        gradient = gradient_at(v)
        p = -lax.map(lambda e: jax.jvp(gradient_at, (v,), (e,))[1], jnp.eye(v.size, dtype=v.dtype))
        root = jnp.linalg.cholesky(0.5 * (p + p.T))
        white = solve_triangular(root, gradient, lower=True)
        return self.Found(v + solve_triangular(root, white, lower=True, trans=1), root)

    def sample(self, key, found: Found):
        return self.spread(found, jax.random.normal(key, found.mean.shape, found.mean.dtype))

    def spread(self, found: Found, z):
        return found.mean + (z / found.root if self.is_apart else solve_triangular(found.root, z, lower=True, trans=1))

    def log_prob(self, found: Found, v):
        deviation = v - found.mean
        white = found.root * deviation if self.is_apart else found.root.T @ deviation
        return -0.5 * jnp.sum(white * white)

    def has_digits(self, v):
        return jnp.ones((), bool)

    def num_gradients(self, dim: int) -> int:
        return 2 if self.is_apart else dim + 1


class Shapes(NamedTuple):
    a: Float[Array, " block"]
    b: Float[Array, " block"]


@dataclass(frozen=True)
class LogGamma:
    """``sign``: 1 for the logarithm of a gamma variable, −1 for that of an inverse gamma variable."""

    sign: int

    @property
    def name(self) -> str:
        return "gamma" if self.sign == 1 else "inverse gamma"

    def fit(self, conditional, v) -> Shapes:
        # far below the mode a gradient is a itself, and tells nothing of b: w = 0 does, or a place further up
        w = self.sign * v
        gradient = jax.grad(conditional.log_density)

        def is_told(first, second):
            return jnp.abs(first - second) > TOLD * jnp.maximum(jnp.abs(first), jnp.abs(second))

        def is_blind(state):
            turn, first, _, second = state
            return (turn < 2) | ((turn < MOST_PLACES) & ~jnp.all(is_told(first, second)))

        def look(state):
            turn, first, place, second = state
            up = jnp.maximum(w, place) + STEP * 2.0 ** turn.astype(v.dtype)
            place = jnp.where((turn < 2) | is_told(first, second), place, up)
            found = self.sign * gradient(self.sign * jnp.where(turn == 0, w, place))
            return turn + 1, jnp.where(turn == 0, found, first), place, found

        zero, beside = jnp.zeros_like(w), jnp.where(jnp.abs(w) < STEP, w + 2 * STEP, 0.0)
        _, first, place, second = lax.while_loop(is_blind, look, (jnp.int32(0), zero, beside, zero))
        x, y = jnp.exp(w), jnp.exp(place)
        b = (first - second) / (y - x)
        return Shapes(first + b * x, b)

    def sample(self, key, found: Shapes):
        standard = jax.random.loggamma(key, found.a)
        if self.sign == 1:  # the inverse of a variable that is hardly zero is huge, and has no mean
            standard = jnp.maximum(standard, floor(standard.dtype))
        return self.sign * (standard - jnp.log(found.b))

    def spread(self, found: Shapes, z):
        return self.sign * (jnp.log(found.a / found.b) + z / jnp.sqrt(found.a))

    def log_prob(self, found: Shapes, v):
        w = self.sign * v
        return jnp.sum(found.a * w - found.b * jnp.exp(w))

    def has_digits(self, v):
        return jnp.ones((), bool)

    def num_gradients(self, dim: int) -> int:
        return 2


@dataclass(frozen=True)
class LogisticBeta:
    """``offsets``: c, one a coordinate."""

    offsets: tuple[float, ...]

    @property
    def name(self) -> str:
        return "Dirichlet" if any(self.offsets) else "beta"

    def fit(self, conditional, v) -> Shapes:
        centre = jnp.asarray(self.offsets, v.dtype)
        first, second = lax.map(jax.grad(conditional.log_density), jnp.stack([centre - STEP, centre + STEP]))
        p = jax.nn.sigmoid(jnp.asarray([-STEP, STEP], v.dtype))
        total = (first - second) / (p[1] - p[0])
        a = first + total * p[0]
        return Shapes(a, total - a)

    def sample(self, key, found: Shapes):
        k_a, k_b = jax.random.split(key)
        logit = jax.random.loggamma(k_a, found.a) - jax.random.loggamma(k_b, found.b)
        return jnp.maximum(logit, floor(logit.dtype)) + jnp.asarray(self.offsets, logit.dtype)

    def spread(self, found: Shapes, z):
        logit = jnp.log(found.a / found.b) + z * jnp.minimum(jnp.sqrt(1 / found.a + 1 / found.b), WIDEST)
        return logit + jnp.asarray(self.offsets, logit.dtype)

    def log_prob(self, found: Shapes, v):
        logit = v - jnp.asarray(self.offsets, v.dtype)
        return jnp.sum(found.a * jax.nn.log_sigmoid(logit) + found.b * jax.nn.log_sigmoid(-logit))

    def has_digits(self, v):
        """A share p next to 1 leaves 1 − p with half of its digits at a logit of −½ log ε."""
        return jnp.all(v - jnp.asarray(self.offsets, v.dtype) < -0.5 * jnp.log(jnp.finfo(v.dtype).eps))

    def num_gradients(self, dim: int) -> int:
        return 2
