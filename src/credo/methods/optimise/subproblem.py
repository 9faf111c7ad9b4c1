"""The step of a trust-region method: argmax gᵀs − ½ sᵀAs over ‖D s‖ ≤ Δ, A not necessarily positive definite.

``Dense`` solves it exactly from the eigenvectors of D⁻¹AD⁻¹ (Moré & Sorensen 1983), with D² = |diag A|, so that the
units of the parameters do not matter. ``ConjugateGradients`` needs only products A v (Steihaug 1983), with D = I.
"""

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from credo.compiling import BRIEF, TINY, brief
from credo.linalg.products import second_order
from credo.methods.optimise.newton import Evaluation, Proposal
from credo.methods.optimise.spectrum import Spectrum

NUM_BISECTIONS = 60
DECAY = 0.1  # how fast D may fall from one step to the next
SMALL = 1_000_000  # numbers of data times dimension: an evaluation takes milliseconds however it is compiled
FIRST = 1  # products, by whose time those that follow are counted out
HARD = 1e-6  # the least part of g along the eigenvector that leads away from a saddle


@dataclass(frozen=True)
class Dense:
    """A is formed, ``chunk`` columns at a time."""

    chunk: int

    def evaluate(self, objective, args, u, minimum, last) -> Evaluation:
        evaluate = _value_gradient_curvature(_size(args) * len(u) <= SMALL)
        value, gradient, A = evaluate(objective, self.chunk, args, u, minimum)
        return _evaluation(value, gradient, np.asarray(A), (), len(u))

    def propose(self, at: Evaluation, radius, scale) -> Proposal:
        assert at.curvature is not None
        g = at.gradient.astype(np.float64)
        spectrum = Spectrum(at.curvature, at.resolution, least_scale=DECAY * scale)
        D = spectrum.scale
        if spectrum.factor is not None:
            free = spectrum.solve(g / D)
            decrement = float(np.sqrt(max((g / D) @ free, 0.0)))
            length = float(np.linalg.norm(free))
            if np.isinf(radius):  # the first step: Newton's own
                radius = max(1.0, length)
            if length <= radius:
                s = free / D
                return Proposal(s, float(g @ s), decrement**2, length, radius, s, decrement, False, D)
        λ, Q, floor = spectrum.eigenvalues, spectrum.vectors, spectrum.floor
        γ = Q.T @ (g / D)
        free = γ / np.maximum(np.abs(λ), floor)
        if np.isinf(radius):
            radius = max(1.0, float(np.linalg.norm(γ if spectrum.is_indefinite else free)))
        is_inside = not spectrum.is_indefinite and np.linalg.norm(free) <= radius
        p = free if is_inside else _to_edge(λ, γ, radius, floor)
        s = (Q @ p) / D
        return Proposal(
            step=s,
            slope=float(g @ s),
            bend=float(np.sum(λ * p * p)),
            length=float(np.linalg.norm(p)),
            radius=radius,
            newton=(Q @ free) / D,
            decrement=float(np.sqrt(np.sum(γ**2 / np.where(np.abs(λ) > floor, np.abs(λ), 1.0)))),
            is_indefinite=spectrum.is_indefinite,
            scale=D,
        )


def _to_edge(λ, γ, radius: float, floor: float) -> np.ndarray:
    """p = (Λ + μI)⁻¹γ with ‖p‖ = Δ and Λ + μI positive definite, by bisection on μ."""
    γ = γ.copy()
    low = max(0.0, -λ[0])
    if low > 0:
        γ[0] = np.copysign(max(abs(γ[0]), HARD * (1 + np.linalg.norm(γ))), γ[0])
    high = low + np.linalg.norm(γ) / radius + floor
    for _ in range(NUM_BISECTIONS):
        μ = 0.5 * (low + high)
        is_long = np.linalg.norm(γ / np.maximum(λ + μ, floor)) > radius
        low, high = (μ, high) if is_long else (low, μ)
    return γ / np.maximum(λ + high, floor)


@dataclass(frozen=True)
class ConjugateGradients:
    """At most ``max_products`` products a step; the residual asked for falls with the distance to the mode.

    ``deadline``, by ``time.monotonic()``: a step that it cuts short is the one found so far. Products are counted out
    so that it is kept, whatever one costs, and come to the same numbers as those that no clock counts.
    """

    max_products: int = 250
    deadline: float = math.inf

    def evaluate(self, objective, args, u, minimum, last) -> Evaluation:
        radius = np.sqrt(len(u)) if last is None else last.radius  # positions are of order one
        # superlinear near the mode; and a loose solution could hide what is left in directions of small curvature
        forcing = 0.1 if last is None else np.clip(last.decrement, 1e-6, 0.1)
        bounds = minimum, u.dtype.type(radius), u.dtype.type(forcing)
        num, most, at = self.max_products, self.max_products, _begun(u)
        if self.deadline < math.inf:
            num = min(FIRST, most)
        while True:
            began = time.monotonic()
            value, gradient, at = jax.block_until_ready(
                _value_gradient_step(objective, args, u, *bounds, at, np.int32(num))
            )
            now, done = time.monotonic(), int(at.count)
            if at.is_done or done >= most or now >= self.deadline:
                break
            in_time = (self.deadline - now) / (now - began) * num
            num = done + int(np.clip(in_time, 1, min(2 * num, most - done)))
        extra = (np.asarray(at.s), np.asarray(at.As), bool(at.is_solved), bool(at.is_indefinite), radius)
        return _evaluation(value, gradient, None, extra, done)

    def propose(self, at: Evaluation, radius, scale) -> Proposal:
        s, As, is_solved, is_indefinite, radius_used = at.extra
        s, As, g = s.astype(np.float64), As.astype(np.float64), at.gradient.astype(np.float64)
        slope, length = float(g @ s), float(np.linalg.norm(s))
        radius = radius_used if np.isinf(radius) else radius
        decrement = (
            float(np.sqrt(max(slope, 0.0))) if is_solved else np.inf
        )  # a step cut short says nothing of the distance
        found = Proposal(s, slope, float(s @ As), length, radius, s, decrement, is_indefinite, 1.0)
        # found before f(u) was compared with its prediction: held in the region that the comparison gave
        return found.times(radius / length) if length > radius else found


def _evaluation(value, gradient, A, extra, num_products) -> Evaluation:
    gradient = np.asarray(gradient)
    return Evaluation(float(value), gradient, A, extra, float(np.finfo(gradient.dtype).eps), num_products)


def _size(args) -> int:
    return sum(np.size(leaf) for leaf in jax.tree.leaves(args))


def _at_once(objective: Callable, chunk: int, args, u, minimum):
    value, gradient, product = second_order(lambda v: objective(args, v), u)

    def curvature():
        return -columns(product, u, chunk)

    return value, gradient, jax.lax.cond(value >= minimum, curvature, lambda: jnp.zeros((u.size, u.size), u.dtype))


@functools.cache
def _value_gradient_curvature(is_small: bool) -> Callable:
    """A small model's ten evaluations earn nothing of what LLVM's optimiser costs: half of the time to compile."""
    return brief(_at_once, static_argnames=("objective", "chunk"), options=TINY if is_small else BRIEF)


def columns(product: Callable, u, chunk: int):
    """The symmetric matrix of ``product`` on vectors like u, ``chunk`` columns at a time."""
    rows = _by_chunks(product, u, chunk)
    return 0.5 * (rows + rows.T)


def diagonal(product: Callable, u, chunk: int):
    """Its diagonal, the matrix never formed."""
    return _by_chunks(lambda e: jnp.dot(e, product(e)), u, chunk)


def _by_chunks(function: Callable, u, chunk: int):
    """``function`` of each unit vector, ``chunk`` of them at a time; a single chunk needs no loop."""
    dim = u.size
    chunk = -(-dim // -(-dim // chunk))  # equal chunks: what fills up the last is cut off again

    def some(first):
        return jax.vmap(lambda i: function(jnp.zeros_like(u).at[i].set(1.0)))(first + jnp.arange(chunk))

    if chunk == dim:
        return some(0)
    parts = jax.lax.map(some, jnp.arange(0, dim, chunk))
    return parts.reshape(-1, *parts.shape[2:])[:dim]


class Solving(NamedTuple):
    """On the way: the step s and A s, what is left of g, and the next direction; whether A s = g to the residual asked
    for, whether A is indefinite; the number of products."""

    s: Any
    As: Any
    residual: Any
    direction: Any
    is_done: Any
    is_solved: Any
    is_indefinite: Any
    count: Any


def _begun(u: np.ndarray) -> Solving:
    """None of it: ``count`` is −1 where s is still to be begun."""
    zero, no = np.zeros_like(u), np.bool_(False)
    return Solving(zero, zero, zero, zero, no, no, no, np.int32(-1))


@functools.partial(brief, static_argnames=("objective",))
def _value_gradient_step(objective: Callable, args, u, minimum, radius, forcing, at: Solving, most):
    """f and g, and s after ``most`` products, of which ``at.count`` were done before."""
    value, g, product = second_order(lambda v: objective(args, v), u)
    size = jnp.linalg.norm(g)
    bound = forcing * size

    def body(at: Solving) -> Solving:
        s, As, r, p, *_ = at
        Ap = -product(p)
        bend, rr = jnp.dot(p, Ap), jnp.dot(r, r)
        α = rr / bend
        is_indefinite = bend <= 0
        is_outside = is_indefinite | (jnp.linalg.norm(s + α * p) >= radius)
        # to the edge along p: ‖s + τ p‖ = Δ
        sp, pp, ss = jnp.dot(s, p), jnp.dot(p, p), jnp.dot(s, s)
        τ = (jnp.sqrt(jnp.maximum(sp * sp + pp * (radius * radius - ss), 0.0)) - sp) / pp
        α = jnp.where(is_outside, τ, α)
        s, As, residual = s + α * p, As + α * Ap, r - α * Ap
        is_solved = ~is_outside & (jnp.linalg.norm(residual) <= bound)
        p = residual + (jnp.dot(residual, residual) / rr) * p
        return Solving(s, As, residual, p, is_outside | is_solved, is_solved, is_indefinite, at.count + 1)

    zero, no = jnp.zeros_like(g), jnp.zeros((), bool)
    is_flat = size == 0
    first = Solving(zero, zero, g, g, is_flat | ~(value >= minimum), is_flat, no, jnp.zeros((), jnp.int32))
    at = jax.tree.map(lambda new, old: jnp.where(at.count < 0, new, old), first, at)
    return value, g, jax.lax.while_loop(lambda at: ~at.is_done & (at.count < most), body, at)
