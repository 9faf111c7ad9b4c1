"""A deterministic fit of any family, by automatic differentiation: products with the Hessian of F and nothing larger.

    F(ξ) = (1/K) Σ_k log p(T_ξ(z_k), D) + H(q_ξ),   ξ the tangent at the start;  where H has no closed form it is
    sampled by the same draws, −(1/K) Σ_k log q_ξ(T_ξ(z_k))

The error of the draws takes one solution by conjugate gradients a pair (Giordano, Ingram & Broderick 2024, section 4).
"""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from credo.algorithm import Options
from credo.batches import in_batches
from credo.compiling import sound
from credo.linalg.diagonal import Diagonal
from credo.linalg.products import second_order
from credo.memory import Need, bytes_of, require
from credo.methods.optimise.newton import Status
from credo.methods.optimise.subproblem import ConjugateGradients
from credo.methods.particles.importance import evaluations_at_once
from credo.methods.vi.deterministic.climb import Problem, climb
from credo.methods.vi.deterministic.draws import has_unit_squares, is_quadrature
from credo.methods.vi.deterministic.fitted import Fitted
from credo.methods.vi.families.family import Family
from credo.methods.vi.families.low_rank import LowRank
from credo.methods.vi.families.mean_field import MeanField
from credo.methods.vi.start import find_start
from credo.model.target import Target
from credo.posterior.kinds import Gaussian, Kind
from credo.status import CredoError

SOLVED, MAX_PRODUCTS = 1e-2, 100  # of the conjugate gradients that give the error: two digits are plenty
VECTORS, COPIES = 20, 4  # of a point of F, and of the draws, that a fit holds
MOST_PAIRS = 50  # by which the spread of pairs is known to a tenth


@dataclass(frozen=True)
class Composed:
    """F(args, ξ), ``args`` the target, q and the draws z (K, dim).

    Where draws are not all evaluated at once, what they pass through is computed again for each derivative, not kept.
    """

    family: Family
    draws_at_once: int

    def __call__(self, args, point):
        target, q, z = args
        tangent = _unravelled(self.family, q, point)
        entropy = self.family.entropy(q, tangent)
        moved = self.family.move(q, tangent) if entropy is None else None

        def one(z):
            u = self.family.draw(q, tangent, z).u
            log_density = target.log_density(u)
            return log_density if moved is None else log_density - moved.log_prob_u(u)

        is_kept = len(z) <= self.draws_at_once
        value = jnp.mean(in_batches(one if is_kept else jax.checkpoint(one), z, self.draws_at_once))
        return value if entropy is None else value + entropy


def fit_composed(
    target: Target,
    family: Family,
    draw: Callable[[int, int], np.ndarray],
    num_pairs: int,
    *,
    key,
    start,
    options: Options,
    more_pairs: Callable[[Fitted], int | None],
    max_steps: int,
) -> Fitted:
    """Arguments as for ``fit_small``."""
    size = _noise_size(family, target.dim, key)
    _check_memory(family, target.dim, 2 * num_pairs * size, options.max_memory)
    deadline, dtype = options.deadline(), np.dtype(jnp.result_type(float))
    begun = find_start(target, family, key, start, options)
    q, num_gradients, path = begun.q, begun.num_gradients, []
    at_once = max(evaluations_at_once(target, options.max_memory) // 8, 1)  # tangents of a gradient keep as much again
    while True:
        drawn = draw(num_pairs, size)
        noise = drawn.astype(dtype)
        objective = Composed(family, min(at_once, len(noise)))
        problem = _begun_at(objective, target, noise, deadline)
        q, _, optimum = climb(problem, family, q, target, max_steps=max_steps, deadline=deadline)
        path += [optimum.value] * optimum.num_gradients
        q = family.move(q, _unravelled(family, q, jnp.asarray(optimum.position)))  # type: ignore[arg-type]
        errors = _unknown(target.dim)
        if optimum.status.is_converged:  # else they are those of no maximum
            args = (target, q, noise)
            errors = _errors(objective, args, np.zeros_like(optimum.position), _averages(q, drawn), deadline)
        num_gradients += len(noise) * (optimum.num_gradients + optimum.num_products + errors.num_products)
        fitted = Fitted(
            q=q,
            start=begun.q,
            responding=None,
            response_variances=None,
            error_of_mean=errors.of_mean / np.sqrt(np.asarray(family.variances(q))),
            error_of_log_sd=errors.of_log_sd,
            loss=errors.loss,
            value=optimum.value,
            lacks=0.5 * float(optimum.gradient_norm) ** 2,
            status=Status.TIME if errors.is_cut else optimum.status,
            path=path,
            num_draws=len(noise),
            num_gradients=num_gradients,
            free=begun.free,
        )
        wanted = more_pairs(fitted)
        if wanted is None:
            return fitted
        num_pairs = wanted


def bytes_of_vectors(family: Family, dim: int, noise: int) -> int:
    """Of Newton's method, and of ``noise`` numbers of draws."""
    rest = jax.eval_shape(lambda mean: family.rest(family.start(mean, mean)), jnp.zeros(dim))
    return VECTORS * bytes_of(rest) + 8 * COPIES * noise


def _check_memory(family: Family, dim: int, noise: int, max_memory: int | None) -> None:
    def need(family: Family) -> Need:
        return Need(f"DADVI(family={type(family).__name__}())", bytes_of_vectors(family, dim, noise))

    require(need(family), f"{dim:,} parameters", max_memory, map(need, (LowRank(), MeanField())))


def _begun_at(objective: Composed, target: Target, noise: np.ndarray, deadline: float) -> Callable[[Kind], Problem]:
    """Of q: the problem whose origin it is."""

    def problem(q: Kind) -> Problem:
        point = np.zeros(ravel_pytree(objective.family.rest(q))[0].size, noise.dtype)
        return Problem(objective, (target, q, noise), point, ConjugateGradients(deadline=deadline))

    return problem


def _noise_size(family: Family, dim: int, key) -> int:
    """How many numbers a draw is made from; CredoError where they are not one vector of normal noise."""
    name = type(family).__name__
    if not family.has_density:
        raise CredoError(
            f"DADVI maximises a bound of the evidence, and points, which {name}() has, have no density that would give "
            "one: give their parameters a family with a density, or fit MAP()."
        )
    noise = jax.eval_shape(lambda key: family.noise(key, 2, dim), key)
    if isinstance(noise, jax.ShapeDtypeStruct) and jnp.issubdtype(noise.dtype, jnp.floating):
        return noise.shape[-1]
    raise CredoError(
        f"DADVI keeps draws of one vector of normal noise, and those of {name}() are made otherwise (mixtures choose a "
        "component first, gammas and Dirichlets draw by rejection, blocks have noise of their own): use "
        f"ADVI(family={name}(…)) for it, or DADVI() with a family such as FullRank()."
    )


def _averages(q: Kind, noise: np.ndarray) -> bool:
    """Whether the draws average log q exactly."""
    if not isinstance(q, Gaussian):
        return False
    return is_quadrature(noise) or (isinstance(q.scale, Diagonal) and has_unit_squares(noise))


class Errors(NamedTuple):
    """Standard errors (dim,) by the draws being fixed, of means and log sds; nats that this costs in expectation
    (response.py). NaN of fewer than two pairs. ``is_cut``: by the time limit."""

    of_mean: np.ndarray
    of_log_sd: np.ndarray
    loss: float
    num_products: int
    is_cut: bool


def _unknown(dim: int) -> Errors:
    return Errors(np.full(dim, np.nan), np.full(dim, np.nan), np.nan, 0, False)


def _errors(objective: Composed, args, rest, averages_q: bool, deadline: float) -> Errors:
    """From some pairs of draws, none of which begins after ``deadline``. ``args`` has q at the optimum, where the
    tangent is ``rest``, zero."""
    pairs = np.stack(np.split(args[2], 2), axis=1)
    num_pairs, pairs = len(pairs), pairs[:MOST_PAIRS]
    found, of_move, of_gradient, of_product, num_products = [], 0.0, 0.0, 0.0, 0
    for pair in pairs:
        if time.monotonic() > deadline:
            break
        move, gradient, *moments, count = jax.tree.map(np.asarray, _moves(objective, args, rest, pair, averages_q))
        found.append(moments)
        of_move, of_gradient = of_move + move, of_gradient + gradient
        of_product = of_product + np.sum(move * gradient, axis=1)
        num_products += int(count)
    num, is_cut = len(found), len(found) < len(pairs)
    if num < 2:
        return _unknown(args[0].dim)._replace(num_products=num_products, is_cut=is_cut)
    losses = 0.5 * (of_product - np.sum(of_move * of_gradient, axis=1) / num) / (num_pairs * (num - 1))
    of_mean, of_log_sd = (_spread(np.stack(each), num_pairs) for each in zip(*found, strict=True))
    return Errors(of_mean, of_log_sd, float(np.min(losses)), num_products, is_cut)


@functools.partial(sound, static_argnames=("objective", "averages_q"))
def _moves(objective: Composed, args, rest, pair, averages_q: bool):
    """How far a pair of draws pulls the optimum, the gradients on it, (ways, n) each; how far means and log sds,
    (ways, dim) each; and the number of products that took."""
    target, q, _ = args
    family = objective.family
    product = second_order(lambda v: objective(args, v), rest)[2]

    def moments(point):
        moved = family.move(q, _unravelled(family, q, point))
        return family.center(moved), 0.5 * jnp.log(family.variances(moved))

    def log_q(point):
        tangent = _unravelled(family, q, point)
        return jnp.mean(jax.vmap(lambda z: family.draw(q, tangent, z).path_log_prob)(pair))

    gradient = jax.grad(Composed(family, 2), argnums=1)((target, q, pair), rest)
    gradients = gradient[None]
    if averages_q:  # log q may be taken from log p, as in sticking the landing
        gradients = jnp.stack([gradient, gradient - jax.grad(log_q)(rest)])
    moves, counts = jax.lax.map(lambda g: _solve(lambda v: -product(v), g), gradients)
    of_mean, of_log_sd = jax.lax.map(lambda move: jax.jvp(moments, (rest,), (move,))[1], moves)
    return moves, gradients, of_mean, of_log_sd, jnp.sum(counts, dtype=counts.dtype)


def _spread(moves: np.ndarray, num_pairs: int) -> np.ndarray:
    """The standard error (dim,) of a mean of ``num_pairs``, from ``moves`` (P, ways, dim) of some: of several ways, all
    of them upper bounds (response.py), the least."""
    return np.min(np.std(moves, axis=0, ddof=1), axis=0) / np.sqrt(num_pairs)


def _solve(product: Callable, b):
    """A⁻¹b by conjugate gradients, and how many products that took."""
    bound = SOLVED * jnp.linalg.norm(b)

    def body(state):
        x, r, p, count = state
        Ap, rr = product(p), jnp.dot(r, r)
        α = rr / jnp.dot(p, Ap)
        residual = r - α * Ap
        return x + α * p, residual, residual + jnp.dot(residual, residual) / rr * p, count + 1

    def goes_on(state):
        return (jnp.linalg.norm(state[1]) > bound) & (state[3] < MAX_PRODUCTS)

    x, _, _, count = jax.lax.while_loop(goes_on, body, (jnp.zeros_like(b), b, b, jnp.zeros((), jnp.int32)))
    return x, count


def _unravelled(family: Family, q: Kind, point):
    return ravel_pytree(family.rest(q))[1](point)
