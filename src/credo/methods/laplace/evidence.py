"""Hyperparameters by the evidence (MacKay 1992): noise and prior precisions that the data themselves say.

With weights w at ŵ, hyperparameters η in unconstrained coordinates θ, g = ∇_w log p(ŵ, D, θ) and the curvature
A(θ) = c(θ) H + P(θ), H the Gauss-Newton matrix of the likelihood and P that of the prior, the model that is linear in
the weights around ŵ has

    log p(D, θ) ≈ log p(ŵ, D, θ) + ½ gᵀA⁻¹g − ½ log |A| + (d/2) log 2π

Exact where the network is linear and the noise normal: then one maximum over θ is all. Elsewhere weights and θ take
turns; where they agree g = 0, and the maximum is MacKay's. H is found once a turn: a step in θ costs one gradient, one
product with H and what log |A| costs (pieces.py). Where factors stand for H, the gain ½ gᵀA⁻¹g could exceed all that
is left of the outcomes: it is taken along s = A⁻¹g alone, (gᵀs)² / 2 (c sᵀHs + sᵀPs) with H itself, which is the same
where A is exact. The posterior of θ is Laplace's too, a normal at the maximum, independent of the weights. p(θ) is the
model's own prior of its hyperparameters.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credo.compiling import TINY, brief
from credo.methods.laplace.curvature import GaussNewton, likelihood_product
from credo.methods.laplace.pieces import Pieces
from credo.methods.optimise.hyperparameters import num_own
from credo.methods.optimise.newton import Evaluation, Proposal, maximise
from credo.methods.optimise.spectrum import Spectrum
from credo.methods.optimise.subproblem import Dense as DenseSolver
from credo.model.fisher import fisher_product
from credo.model.target import Target
from credo.model.user_head import UserHead
from credo.precision import abstract, double
from credo.status import CredoError

PROBES = 2**20  # outputs that the effect of θ on the likelihood's curvature is read from
FEW = 8  # rows by which it is seen which outputs the weights move
EVEN = 1e-6  # relative: two directions in which that effect is the same
WIDE = 1.0  # sd of a log where the evidence has no curvature
NEAR = 1e-6  # the maximum of the evidence, in posterior sds of θ
SMALL = 1e6  # rows times weights below which a program takes milliseconds
LONGEST = 50.0  # a step of θ, logarithms: where the evidence is straight in them Newton's has no end
LEAST = 1e-6  # curvature of the prior of a parameter of a user's head
STEP = 1e-5  # of θ, at least: see _step
ROUNDING = 30.0  # times that of the outcomes: a noise below it is none
LEAST_BEND = 1e-100  # along a step of no length: its square is a number yet
NOISY = "normal", "student_t"  # heads of a location and a log scale


@dataclass(frozen=True)
class Evidence:
    """Tune what the network's model does not know (noise, prior precisions) by the evidence, and weights with it.

    ``num_rounds``: turns at most. ``tolerance``: nats of evidence gained in a turn, below which it ends.
    """

    num_rounds: int = field(default=10, metadata={"at_least": 1})
    tolerance: float = 0.01


# the evidence --------------------------------------------------------------------------------------------------------


class Linearised(NamedTuple):
    """What the evidence of hyperparameters is computed from: everything at ŵ and θ₀, where H was found.

    ``rows``: some inputs; ``probes`` (2, weight): directions along which θ's effect on the likelihood is read;
    ``bend``: the curvature of the likelihood along them at θ₀, over these rows. ``resolution``: ε of the fit's
    precision.
    """

    target: Target
    theta: Any
    weights: Any
    pieces: Any
    rows: Any
    probes: Any
    bend: Any
    resolution: float


class Found(NamedTuple):
    """θ̂, log p(D, θ̂), the covariance of θ around it, and c and P there."""

    theta: np.ndarray
    value: float
    covariance: np.ndarray
    c: float
    P: np.ndarray


def linearise(
    target: Target, u: np.ndarray, num_fixed: int, pieces: Callable[[Float[np.ndarray, "positions weight"]], Pieces]
) -> Linearised:
    """At ``u`` of the flat ``target``, whose first ``num_fixed`` coordinates are hyperparameters.

    ``pieces``: of H, given the prior's precisions at some θ. What follows is in float64, whatever the fit: log |A| of a
    matrix whose rounding is larger than P is no number in single precision.
    CredoError where θ changes the likelihood's curvature by more than a factor.
    """
    resolution = float(np.finfo(u.dtype).eps)
    if u.dtype != np.float64:
        target, u = target.cast(np.float64), u.astype(np.float64)
    theta, weights = u[:num_fixed], u[num_fixed:]
    number = int(np.clip(PROBES // num_outputs(target, u), 1, min(64, target.size)))
    rows = _some_rows(target, number)
    probes = np.random.default_rng(0).normal(size=(2, weights.size))
    found = Linearised(target, theta, weights, None, rows, probes, np.ones(2), resolution)
    with double():
        bend, P = map(np.asarray, _read(found, theta))
        precisions = [P]
        for i in range(num_fixed):
            further = theta.copy()
            further[i] += 0.5
            bends, P = map(np.asarray, _read(found, further))
            ratio = np.where(bend > 0, bends / np.where(bend > 0, bend, 1), 1.0)
            precisions.append(P)
            if not abs(ratio[0] - ratio[1]) <= EVEN * abs(ratio).max():
                name = [leaf.name for leaf in target.structure.leaves for _ in range(leaf.size)][i]
                raise CredoError(
                    f"{name} changes the curvature of the likelihood by more than one factor, and the evidence tunes "
                    "one noise for all outputs: say tune=False, or give the head one noise."
                )
    return found._replace(pieces=pieces(np.stack(precisions)), bend=bend)


def num_outputs(target: Target, u: np.ndarray) -> int:
    """Of a row."""
    row = jax.tree.map(lambda leaf: np.asarray(leaf)[:1], target.x)
    return jax.eval_shape(lambda u: _outputs(target, u, row)[0], abstract(u.shape, u.dtype)).shape[1]


def num_moved(target: Target, u: np.ndarray, num_fixed: int) -> int:
    """The outputs of a row that change with the weights: a noise is one for all rows, and does not."""
    rows = _some_rows(target, FEW)
    direction = np.where(np.arange(u.size) < num_fixed, 0.0, np.random.default_rng(0).normal(size=u.size))
    return int(np.count_nonzero(np.any(_moved(target, u, direction.astype(u.dtype), rows), axis=0)))


def _some_rows(target: Target, number: int):
    """Inputs from end to end of the data, of files from the first: sorted ones may begin where weights say nothing."""
    held = len(jax.tree.leaves(target.x)[0])
    place = np.linspace(0, held - 1, min(number, held)).astype(int)
    return jax.tree.map(lambda leaf: np.asarray(leaf)[place], target.x)


def maximum(args: Linearised, theta: np.ndarray, deadline: float = np.inf) -> Found:
    """Of the evidence, from ``theta``; the best place so far at ``deadline``."""
    with double():
        theta = theta.astype(np.float64)
        found = maximise(
            log_evidence, args, theta, Differences(), tolerance=NEAR, max_steps=30, deadline=deadline, longest=LONGEST
        )
        if found is None or found.curvature is None:
            raise CredoError(_why_not_finite(np.asarray(_read(args, theta)[1])))
        _check_noise(args, found.position)
    is_peak = Spectrum(found.curvature, _step(theta.dtype)).is_positive
    covariance = np.linalg.inv(found.curvature) if is_peak else np.diag(np.full(len(theta), WIDE**2))
    return at(args, found.position)._replace(covariance=covariance)


def _why_not_finite(P: np.ndarray) -> str:
    """``P``: the prior's curvature at each weight."""
    number = int(np.sum(P <= 0))
    if not number:
        return (
            "The evidence of the hyperparameters is not finite where they start: fix noise and precision as numbers, "
            "or start elsewhere (start=)."
        )
    return (
        f"The evidence of the hyperparameters has no value here: the prior has no curvature at {number:,} of "
        f"{P.size:,} weights (a Laplace prior is straight on either side of zero), and the data leave some of these "
        "free, so that no Gaussian is near. Give the weights a normal prior, such as credo.nn.Isotropic(1.0), or use "
        "NUTS() or ADVI(), which need no curvature."
    )


def _check_noise(args: Linearised, theta: np.ndarray) -> None:
    """CredoError where the noise is below the rounding of the outcomes: the evidence rises for ever as it falls."""
    target, u = args.target, np.concatenate([theta, args.weights])
    if target.head is None or (target.head.column or target.head.name) not in NOISY:
        return
    z, _ = _outputs(target, jnp.asarray(u), args.rows)
    noise = float(np.exp(np.min(np.asarray(z)[:, 1::2])))  # location and log scale of each column
    largest = float(np.nanmax(np.abs(target.y))) or 1.0
    if noise > ROUNDING * args.resolution * largest:
        return
    raise CredoError(
        f"The evidence of the noise rises without end as it goes to zero (to {noise:.1g}, of outcomes up to "
        f"{largest:.3g}): the network gives the outcomes exactly, as where they are constant or computed without "
        "noise. Give the noise as a number, or a prior that keeps away from zero."
    )


def at(args: Linearised, theta: np.ndarray) -> Found:
    """The evidence at ``theta``, of which nothing is known around it."""
    with double():
        (value, (c, P)), _ = _slope(log_evidence, args, theta.astype(np.float64))
    return Found(theta, float(value), np.diag(np.full(len(theta), WIDE**2)), float(c), np.asarray(P))


def log_evidence(args: Linearised, theta) -> tuple[Float[Array, ""], tuple[Array, Array]]:
    """log p(D, θ) of the model linearised at ŵ, with c(θ) and P(θ); θ unconstrained, Jacobian included."""

    def likelihood(w):
        return jnp.sum(args.target.log_likelihood(jnp.concatenate([theta, w])))

    def prior(w):
        return args.target.log_prior(jnp.concatenate([theta, w]))

    value, slope = jax.value_and_grad(likelihood)(args.weights)
    bends, P = _curvatures(args, theta)
    c = bends[0] / args.bend[0]
    gradient = slope + jax.grad(prior)(args.weights)
    step = args.pieces.solve(c, P, gradient)
    bend = c * _bend(args, step)
    t = jnp.dot(gradient, step) / jnp.maximum(bend + jnp.dot(step, P * step), LEAST_BEND)
    # in parts that stay small where a precision is huge: the prior at the end of the step, not its slope here
    value = value + t * jnp.dot(slope, step) - 0.5 * t**2 * bend + prior(args.weights + t * step)
    return value - 0.5 * args.pieces.log_det(c, P) + 0.5 * step.size * jnp.log(2 * jnp.pi), (c, P)


@dataclass(frozen=True)
class Differences:
    """A few dimensions: second derivatives are differences of gradients, whose program compiles in half the time."""

    def evaluate(self, objective, args, u, minimum, last) -> Evaluation:
        (value, _), gradient = _slope(objective, args, u)
        step = _step(u.dtype)
        steps = step * np.eye(len(u), dtype=u.dtype)
        gradient = np.asarray(gradient)
        A = np.asarray([gradient - _slope(objective, args, u + h)[1] for h in steps], np.float64) / step
        return Evaluation(float(value), gradient, 0.5 * (A + A.T), (), float(np.finfo(gradient.dtype).eps), 0)

    def propose(self, at: Evaluation, radius, scale) -> Proposal:
        return DenseSolver(1).propose(at, radius, scale)


def _step(dtype) -> float:
    """Of θ, between gradients whose difference is a second derivative: its rounding and its bend then weigh alike."""
    return max(STEP, float(np.cbrt(np.finfo(dtype).eps)))


def _is_small(args: Linearised) -> bool:
    return args.target.size * args.target.dim <= SMALL


@functools.partial(brief, static_argnames="objective", is_small=lambda _, args, *__: _is_small(args))
def _slope(objective, args: Linearised, theta):
    return jax.value_and_grad(lambda theta: objective(args, theta), has_aux=True)(theta)


def _bend(args: Linearised, v) -> Float[Array, ""]:
    """vᵀ H v, H as it is and not as the pieces have it; its slope, 2 H v, takes no other product."""
    u = jnp.concatenate([args.theta, args.weights])
    product = likelihood_product(GaussNewton(), args.target, u, np.arange(len(args.theta), len(u)))
    fixed = jax.lax.stop_gradient(v)
    return jnp.dot(2 * v - fixed, jax.lax.stop_gradient(product(fixed)))


def _curvatures(args: Linearised, theta) -> tuple[Float[Array, "2"], Float[Array, " weight"]]:
    """Σ (J v)ᵀ F(θ) (J v) over the rows, for each probe v; and the prior's diagonal −∇² log p(w | θ).

    Weights are independent given θ, so that one product of the latter with ones gives it. A head that a user wrote has
    its parameters among the weights, and its likelihood does not change with θ.
    """
    target, head = args.target, args.target.head

    def log_prior(w):
        return target.log_prior(jnp.concatenate([theta, w]))

    P = -jax.jvp(jax.grad(log_prior), (args.weights,), (jnp.ones_like(args.weights),))[1]
    if isinstance(head, UserHead):
        own = jnp.arange(P.size) < num_own(target)  # whose prior may not be concave: what bends there is the likelihood
        return jnp.ones(2, P.dtype), jnp.where(own, jnp.maximum(P, LEAST), P)

    def outputs(w):
        return _outputs(target, jnp.concatenate([theta, w]), args.rows)

    z, d = outputs(args.weights)
    assert head is not None  # checked by the curvature
    product = fisher_product(head, z, d)

    def along(v):
        moved = jax.jvp(lambda w: outputs(w)[0], (args.weights,), (v,))[1]
        return jnp.sum(moved * product(moved))

    return jax.vmap(along)(args.probes), P


_read = brief(_curvatures, is_small=lambda args, _: _is_small(args))


@functools.partial(brief, options=TINY)
def _moved(target: Target, u, direction, rows):
    return jax.jvp(lambda u: _outputs(target, u, rows)[0], (u,), (direction,))[1]


def _outputs(target: Target, u, rows):
    head, params = target.head, target.constrain(u)
    assert head is not None  # checked by the curvature
    d = target.likelihood_distribution(params, rows)
    return head.natural(d, params, rows), d
