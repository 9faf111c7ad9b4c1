"""Conjugate gradients, of one system and of many that differ by a multiple of the identity (Jegerlehner 1996).

Of A x = b, A symmetric and positive definite, with x₀ = 0, r₀ = p₀ = b (Hestenes & Stiefel 1952):

    α = rᵀr / pᵀAp,  x ← x + α p,  r' = r − α A p,  β = r'ᵀr' / rᵀr,  p ← r' + β p

The residuals of (A + δ I) xᵟ = b are multiples ζ of r, so that one product a step serves every δ ≥ 0. With ρ the ratio
of ζ to the one before, α' and β' those of the step before,

    ρ = 1 / (1 + δ α + (α β' / α') (1 − ρ')),  αᵟ = ρ α,  βᵟ = ρ² β,  pᵟ ← ζ r + βᵟ pᵟ

and 0 < ζ ≤ 1: the other systems converge no later. The coefficients hold Lanczos' tridiagonal matrix of A from b, whose
eigenvalues θ and weights τ² (first components of its vectors, squared) are Gauss' rule for bᵀ f(A) b ≈ |b|² Σ τ² f(θ)
(Golub & Meurant 2010): log |A| = E[zᵀ log(A) z] over random signs z (Ubaru, Chen & Saad 2017).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float, Int

Vector = Float[Array, " dim"]


class Solution(NamedTuple):
    """x, |b − A x| / |b| as the recursion has it, the number of products; the coefficients, zero after the last step.

    ``bend``: pᵀAp / pᵀp along the last ``direction`` p; where it is not positive, x is that of the step before.
    """

    x: Vector
    residual: Float[Array, ""]
    count: Int[Array, ""]
    steps: Float[Array, " product"]
    ratios: Float[Array, " product"]
    bend: Float[Array, ""]
    direction: Vector


def conjugate_gradients(
    product: Callable[[Vector], Vector], b: Vector, tolerance: float, max_products: int
) -> Solution:
    """x with A x = b, to a residual of ``tolerance`` |b|, in ``max_products`` at most."""
    size = jnp.vdot(b, b)
    bound = size * tolerance**2

    def body(state):
        x, r, p, rr, steps, ratios, _, count = state
        Ap = product(p)
        pAp = jnp.vdot(p, Ap)
        is_positive = pAp > 0
        α = jnp.where(is_positive, rr / jnp.where(is_positive, pAp, 1), 0)
        x, r = x + α * p, r - α * Ap
        new = jnp.vdot(r, r)
        β = new / rr
        bend = pAp / jnp.vdot(p, p)
        p = jnp.where(is_positive, r + β * p, p)
        steps, ratios = steps.at[count].set(α), ratios.at[count].set(jnp.where(is_positive, β, 0))
        return x, r, p, jnp.where(is_positive, new, rr), steps, ratios, bend, count + 1

    def is_open(state):
        *_, rr, _, _, bend, count = state
        return (rr > bound) & (bend > 0) & (count < max_products)

    nothing = jnp.zeros(max_products, b.dtype)
    start = jnp.zeros_like(b), b, b, size, nothing, nothing, jnp.ones((), b.dtype), jnp.zeros((), jnp.int32)
    x, _, p, rr, steps, ratios, bend, count = jax.lax.while_loop(is_open, body, start)
    return Solution(x, _relative(rr, size), count, steps, ratios, bend, p)


def shifted_sum(
    product: Callable[[Vector], Vector],
    b: Vector,
    shifts: Float[Array, " shift"],
    weights: Float[Array, " shift"],
    tolerance: float,
    max_products: int,
) -> tuple[Vector, Float[Array, ""]]:
    """Σ wⱼ (A + σⱼ I)⁻¹ b, ``shifts`` σ rising, and the relative residual of the system of the first, the slowest."""
    size = jnp.vdot(b, b)
    bound = size * tolerance**2
    first, δ = shifts[0], shifts - shifts[0]

    def body(state):
        total, r, p, P, rr, ζ, ρ, α_before, β_before, count = state
        Ap = product(p) + first * p
        α = rr / jnp.vdot(p, Ap)
        ρ = 1 / (1 + δ * α + α * β_before / α_before * (1 - ρ))
        total = total + (weights * ρ * α) @ P
        r = r - α * Ap
        new = jnp.vdot(r, r)
        β = new / rr
        ζ = ζ * ρ
        P = ζ[:, None] * r[None, :] + (jnp.square(ρ) * β)[:, None] * P
        return total, r, r + β * p, P, new, ζ, ρ, α, β, count + 1

    def is_open(state):
        return (state[4] > bound) & (state[-1] < max_products)

    ones, one = jnp.ones_like(shifts), jnp.ones((), b.dtype)
    P = jnp.broadcast_to(b, (shifts.shape[0], *b.shape))
    start = jnp.zeros_like(b), b, b, P, size, ones, ones, one, jnp.zeros((), b.dtype), jnp.zeros((), jnp.int32)
    total, _, _, _, rr, *_ = jax.lax.while_loop(is_open, body, start)
    return total, _relative(rr, size)


def _relative(rr, size):
    return jnp.sqrt(rr / jnp.where(size > 0, size, 1))


def gauss_rule(solution: Solution) -> tuple[np.ndarray, np.ndarray]:
    """(θ, τ²) of one solution: nodes and weights, which sum to one."""
    count = int(solution.count)
    α, β = np.asarray(solution.steps, np.float64)[:count], np.asarray(solution.ratios, np.float64)[:count]
    if not count:
        return np.ones(1), np.ones(1)
    diagonal = 1 / α + np.append(0.0, β[:-1] / α[:-1])
    θ, vectors = scipy.linalg.eigh_tridiagonal(diagonal, np.sqrt(β[:-1]) / α[:-1])
    return θ, np.square(vectors[0])
