"""Hyperparameters by the evidence (MacKay 1992): noise and prior precisions that the data themselves say.

With weights w at ŵ, hyperparameters η in unconstrained coordinates θ, g = ∇_w log p(ŵ, D, θ) and the curvature
A(θ) = c(θ) H + P(θ), H the Gauss-Newton matrix of the likelihood and P that of the prior, the model that is linear in
the weights around ŵ has

    log p(D, θ) ≈ log p(ŵ, D, θ) + ½ gᵀA⁻¹g − ½ log |A| + (d/2) log 2π

Exact where the network is linear and the noise normal: then one maximum over θ is all. Elsewhere weights and θ take
turns; where they agree g = 0, and the maximum is MacKay's. H is found once a turn: a step in θ costs one gradient and
what log |A| costs, which for Kronecker factors is a sum over products of eigenvalues, and for few data over as many
as there are outputs. The posterior of θ is Laplace's too, a normal at the maximum, independent of the weights. p(θ) is
the model's own prior of its hyperparameters.
"""

import functools
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credo.compiling import brief
from credo.linalg.blocks import BlockDiagonal
from credo.linalg.dense import Dense as DenseScale
from credo.linalg.diagonal import Diagonal as DiagonalScale
from credo.linalg.kronecker import Block
from credo.linalg.kronecker import Kronecker as KroneckerScale
from credo.linalg.lowrank import LowRank
from credo.linalg.operator import ScaleOperator
from credo.methods.optimise.newton import Evaluation, Proposal, maximise
from credo.methods.optimise.spectrum import Spectrum
from credo.methods.optimise.subproblem import Dense as DenseSolver
from credo.model.fisher import fisher_product
from credo.model.target import Target
from credo.status import CredoError

PROBES = 2**20  # outputs that the effect of θ on the likelihood's curvature is read from
EVEN = 1e-6  # relative: two directions in which that effect is the same
WIDE = 1.0  # sd of a log where the evidence has no curvature
NEAR = 1e-6  # the maximum of the evidence, in posterior sds of θ
SMALL = 1e6  # rows times weights below which a program takes milliseconds
NOTHING = 1e-10  # of the largest eigenvalue: rounding
STEP = 1e-5  # of θ, between gradients whose difference is a second derivative


@dataclass(frozen=True)
class Evidence:
    """Tune what the network's model does not know (noise, prior precisions) by the evidence, and weights with it.

    ``num_rounds``: turns at most. ``tolerance``: nats of evidence gained in a turn, below which it ends.
    """

    num_rounds: int = field(default=10, metadata={"at_least": 1})
    tolerance: float = 0.01


# the curvature as a function of the hyperparameters ------------------------------------------------------------------


class Pieces(eqx.Module):
    """c H + diag(P) over the weights, for any c and P, with the work on H done once."""

    @abstractmethod
    def log_det(self, c, P: Float[Array, " weight"]) -> Float[Array, ""]:
        """log |c H + diag(P)|."""

    @abstractmethod
    def solve(self, c, P: Float[Array, " weight"], g: Float[Array, " weight"]) -> Float[Array, " weight"]:
        """(c H + diag(P))⁻¹ g."""

    @abstractmethod
    def bend(self, c, v: Float[Array, " weight"]) -> Float[Array, ""]:
        """vᵀ c H v."""

    @abstractmethod
    def scale(self, c: float, P: np.ndarray, covariance: np.ndarray) -> ScaleOperator:
        """That of all coordinates: the hyperparameters with ``covariance`` first, then the weights."""


class DensePieces(Pieces):
    """H (weight, weight). Where the prior has one precision, its eigenvalues and vectors serve for any."""

    matrix: Array
    values: Array | None
    vectors: Array | None

    def log_det(self, c, P):
        if self.values is not None:
            return jnp.sum(jnp.log(c * self.values + P[0]))
        return 2 * jnp.sum(jnp.log(jnp.diagonal(jnp.linalg.cholesky(c * self.matrix + jnp.diag(P)))))

    def solve(self, c, P, g):
        if self.values is not None and self.vectors is not None:
            return self.vectors @ ((self.vectors.T @ g) / (c * self.values + P[0]))
        return jnp.linalg.solve(c * self.matrix + jnp.diag(P), g)

    def bend(self, c, v):
        return c * jnp.dot(v, self.matrix @ v)

    def scale(self, c, P, covariance):
        lower = np.asarray(DenseScale.from_precision(c * np.asarray(self.matrix) + np.diag(P)).lower)
        k = len(covariance)
        whole = np.zeros((k + len(lower),) * 2)
        whole[k:, k:] = lower
        whole[:k, :k] = np.linalg.cholesky(covariance) if k else 0.0
        return DenseScale(whole)


class LowRankPieces(Pieces):
    """H = U diag(s) Uᵀ, ``values`` s (r,) and ``vectors`` U (weight, r) orthonormal; with B = U s^½

        |c H + P| = |P| |I + c Bᵀ P⁻¹ B|,   (c H + P)⁻¹ = P⁻¹ − c P⁻¹ B (I + c Bᵀ P⁻¹ B)⁻¹ Bᵀ P⁻¹

    ``grams`` (G, r, r): Bᵀ B over each group of weights that have one precision, of which ``firsts`` (G,) are some;
    None where groups are many.
    """

    values: Array
    vectors: Array
    grams: Array | None
    firsts: Array

    @classmethod
    def of(cls, s: np.ndarray, U: np.ndarray, groups: np.ndarray) -> "LowRankPieces":
        """``groups`` (weight,): 0 … G − 1."""
        _, firsts = np.unique(groups, return_index=True)
        B, grams = U * np.sqrt(s), None
        if len(firsts) * len(s) <= len(U):  # no more numbers than U has
            grams = jnp.asarray(np.stack([B[groups == g].T @ B[groups == g] for g in range(len(firsts))]))
        return cls(jnp.asarray(s), jnp.asarray(U), grams, jnp.asarray(firsts))

    def log_det(self, c, P):
        return jnp.sum(jnp.log(P)) + 2 * jnp.sum(jnp.log(jnp.diagonal(self._middle(c, P))))

    def solve(self, c, P, g):
        root = jnp.sqrt(self.values)
        along = root * (self.vectors.T @ (g / P))
        along = root * jax.scipy.linalg.cho_solve((self._middle(c, P), True), along)
        return (g - c * (self.vectors @ along)) / P

    def bend(self, c, v):
        return c * jnp.dot(self.values, jnp.square(self.vectors.T @ v))

    def scale(self, c, P, covariance):
        B = np.asarray(self.vectors) * np.sqrt(c * np.asarray(self.values)) / np.sqrt(P)[:, None]
        s, V = (each[..., ::-1] for each in np.linalg.eigh(B.T @ B))  # of P^−½ c H P^−½, the largest first
        vectors, _ = np.linalg.qr(B @ V)
        own = LowRank.from_eigen(P**-0.5, vectors, 1 / (1 + np.where(s > NOTHING * s[0], s, 0.0)))
        k = len(covariance)
        blocks = DenseScale(np.linalg.cholesky(covariance)), own
        return BlockDiagonal(blocks, (((0, k),), ((k, k + len(P)),)))

    def _middle(self, c, P):
        """The Cholesky factor of I + c Bᵀ P⁻¹ B."""
        if self.grams is None:
            B = self.vectors * jnp.sqrt(self.values)
            weighed = B.T @ (B / P[:, None])
        else:
            weighed = jnp.tensordot(1 / P[self.firsts], self.grams, axes=1)
        return jnp.linalg.cholesky(jnp.eye(len(self.values)) + c * weighed)


class BlockPieces(Pieces):
    """Blocks of Kronecker form or diagonal: ``values`` (in, out), the eigenvalues of H in a block's own basis.

    The prior's curvature of a block with factors is its mean over it. ``num_fixed``: how many coordinates come before
    the weights.
    """

    blocks: tuple[Block, ...]
    values: tuple[Array, ...]
    num_fixed: int = eqx.field(static=True)
    is_diagonal: bool = eqx.field(static=True)

    def _each(self, c, P):
        """(block, precisions, whether an entry is a weight's) for each block."""
        whole = jnp.concatenate([jnp.ones(self.num_fixed, P.dtype), P])
        for block, values in zip(self.blocks, self.values, strict=True):
            τ = whole[block.index] if block.is_diagonal else jnp.mean(whole[block.index])
            yield block, c * values + τ, jnp.asarray(block.index) >= self.num_fixed

    def log_det(self, c, P):
        terms = [jnp.sum(jnp.where(is_weight, jnp.log(A), 0.0)) for _, A, is_weight in self._each(c, P)]
        return sum(terms, start=jnp.zeros(()))

    def solve(self, c, P, g):
        g = jnp.concatenate([jnp.zeros(self.num_fixed, g.dtype), g])
        out = jnp.zeros_like(g)
        for block, A, _ in self._each(c, P):
            out = out.at[block.index].set(block.rotate(block.rotate_back(g[block.index]) / A))
        return out[self.num_fixed :]

    def bend(self, c, v):
        v = jnp.concatenate([jnp.zeros(self.num_fixed, v.dtype), v])
        pairs = zip(self.blocks, self.values, strict=True)
        return c * sum(jnp.sum(values * jnp.square(block.rotate_back(v[block.index]))) for block, values in pairs)

    def scale(self, c, P, covariance):
        own = np.concatenate([np.diagonal(covariance) ** -1.0, P])
        blocks = []
        for block, values in zip(self.blocks, self.values, strict=True):
            index = np.asarray(block.index)
            H = np.where(index >= self.num_fixed, c * np.asarray(values), 0.0)
            A = H + (own[index] if block.is_diagonal else np.mean(own[index]))
            blocks.append(Block(index, A**-0.5, block.left, block.right))
        if not self.is_diagonal:
            return KroneckerScale(tuple(blocks))
        out = np.zeros(blocks[0].index.size)
        out[np.asarray(blocks[0].index)[0]] = np.asarray(blocks[0].sd)[0]
        return DiagonalScale(out)


def pieces_of(scale: ScaleOperator, num_fixed: int, groups: np.ndarray) -> Pieces:
    """From S, dense, diagonal, of low rank or of Kronecker form, with S Sᵀ = (H + I)⁻¹: the unit is taken off again.

    ``groups`` (weight,): 0 … G − 1, by which weights share a precision.
    """
    if isinstance(scale, LowRank):
        values = (1 + np.diagonal(np.asarray(scale.root))) ** -2.0 - 1
        return LowRankPieces.of(values, np.asarray(scale.factor)[num_fixed:], groups)
    if isinstance(scale, DenseScale):
        inverse = np.linalg.inv(np.asarray(scale.lower))
        H = (inverse.T @ inverse)[num_fixed:, num_fixed:] - np.eye(scale.dim - num_fixed)
        if groups.any():
            return DensePieces(jnp.asarray(H), None, None)
        values, vectors = np.linalg.eigh(H)
        return DensePieces(jnp.asarray(H), jnp.asarray(np.maximum(values, 0.0)), jnp.asarray(vectors))
    if isinstance(scale, DiagonalScale):
        sd = np.asarray(scale.scale)
        blocks: tuple[Block, ...] = (Block(np.arange(len(sd))[None], sd[None]),)
    else:
        assert isinstance(scale, KroneckerScale)
        blocks = scale.blocks
    values: Any = tuple(np.maximum(np.asarray(block.sd) ** -2.0 - 1.0, 0.0) for block in blocks)
    return BlockPieces(blocks, values, num_fixed, isinstance(scale, DiagonalScale))


# the evidence --------------------------------------------------------------------------------------------------------


class Linearised(NamedTuple):
    """What the evidence of hyperparameters is computed from: everything at ŵ and θ₀, where H was found.

    ``rows``: some inputs; ``probes`` (2, weight): directions along which θ's effect on the likelihood is read;
    ``bend``: the curvature of the likelihood along them at θ₀, over these rows.
    """

    target: Target
    weights: Any
    pieces: Any
    rows: Any
    probes: Any
    bend: Any


class Found(NamedTuple):
    """θ̂, log p(D, θ̂), the covariance of θ around it, and c and P there."""

    theta: np.ndarray
    value: float
    covariance: np.ndarray
    c: float
    P: np.ndarray


def linearise(target: Target, u: np.ndarray, num_fixed: int, scale: ScaleOperator) -> Linearised:
    """At ``u`` of the flat ``target``, whose first ``num_fixed`` coordinates are hyperparameters.

    ``scale``: S with S Sᵀ = (H + I)⁻¹. CredoError where θ changes the likelihood's curvature by more than a factor.
    """
    theta, weights = u[:num_fixed], u[num_fixed:]
    number = int(np.clip(PROBES // num_outputs(target, u), 1, min(64, target.size)))
    rows = jax.tree.map(lambda leaf: np.asarray(leaf)[:number], target.x)
    probes = np.random.default_rng(0).normal(size=(2, weights.size)).astype(u.dtype)
    found = Linearised(target, weights, None, rows, probes, np.ones(2, u.dtype))
    bend, P = map(np.asarray, _read(found, theta))
    precisions = [P]
    for i in range(num_fixed):
        further = theta.copy()
        further[i] += 0.5
        bends, P = map(np.asarray, _read(found, further))
        ratio = bends / bend
        precisions.append(P)
        if not abs(ratio[0] - ratio[1]) <= EVEN * abs(ratio).max():
            name = [leaf.name for leaf in target.structure.leaves for _ in range(leaf.size)][i]
            raise CredoError(
                f"{name} changes the curvature of the likelihood by more than one factor, and the evidence tunes one "
                "noise for all outputs: say tune=False, or give the head one noise."
            )
    return found._replace(pieces=pieces_of(scale, num_fixed, _groups(np.stack(precisions))), bend=bend)


def num_outputs(target: Target, u: np.ndarray) -> int:
    """Of a row."""
    row = jax.tree.map(lambda leaf: np.asarray(leaf)[:1], target.x)
    return jax.eval_shape(lambda u: _outputs(target, u, row)[0], jax.ShapeDtypeStruct(u.shape, u.dtype)).shape[1]


def _groups(precisions: np.ndarray) -> np.ndarray:
    """Which weights have one precision wherever (positions, weight) it was looked at: (weight,), 0 … G − 1."""
    with np.errstate(divide="ignore"):
        digits = np.round(np.log(np.abs(precisions)), 10)  # but for rounding
    return np.unique(digits, axis=1, return_inverse=True)[1].ravel()


def maximum(args: Linearised, theta: np.ndarray) -> Found:
    """Of the evidence, from ``theta``."""
    found = maximise(log_evidence, args, theta, Differences(), tolerance=NEAR, max_steps=30)
    if found is None or found.curvature is None:
        raise CredoError(
            "The evidence of the hyperparameters is not finite where they start: fix noise and precision as numbers, "
            "or start elsewhere (start=)."
        )
    is_peak = Spectrum(found.curvature, STEP).is_positive
    covariance = np.linalg.inv(found.curvature) if is_peak else np.diag(np.full(len(theta), WIDE**2))
    return at(args, found.position)._replace(covariance=covariance)


def at(args: Linearised, theta: np.ndarray) -> Found:
    """The evidence at ``theta``, of which nothing is known around it."""
    (value, (c, P)), _ = _slope(log_evidence, args, theta)
    return Found(theta, float(value), np.diag(np.full(len(theta), WIDE**2)), float(c), np.asarray(P))


def log_evidence(args: Linearised, theta) -> tuple[Float[Array, ""], tuple[Array, Array]]:
    """log p(D, θ) of the model linearised at ŵ, with c(θ) and P(θ); θ unconstrained, Jacobian included."""

    def likelihood(w):
        return jnp.sum(args.target.log_likelihood(jnp.concatenate([theta, w])))

    def prior(w):
        return args.target.log_prior(jnp.concatenate([theta, w]))

    value, slope = jax.value_and_grad(likelihood)(args.weights)
    bend, P = _curvatures(args, theta)
    c = bend[0] / args.bend[0]
    step = args.pieces.solve(c, P, slope + jax.grad(prior)(args.weights))
    # ½ gᵀA⁻¹g in parts that stay small where a precision is huge: the prior at the end of the step, not its slope here
    value = value + jnp.dot(slope, step) - 0.5 * args.pieces.bend(c, step) + prior(args.weights + step)
    return value - 0.5 * args.pieces.log_det(c, P) + 0.5 * step.size * jnp.log(2 * jnp.pi), (c, P)


@dataclass(frozen=True)
class Differences:
    """A few dimensions: second derivatives are differences of gradients, whose program compiles in half the time."""

    def evaluate(self, objective, args, u, minimum, last) -> Evaluation:
        (value, _), gradient = _slope(objective, args, u)
        steps = STEP * np.eye(len(u), dtype=u.dtype)
        gradient = np.asarray(gradient)
        A = np.asarray([gradient - _slope(objective, args, u + h)[1] for h in steps], np.float64) / STEP
        return Evaluation(float(value), gradient, 0.5 * (A + A.T), (), float(np.finfo(gradient.dtype).eps), 0)

    def propose(self, at: Evaluation, radius, scale) -> Proposal:
        return DenseSolver(1).propose(at, radius, scale)


def _is_small(args: Linearised) -> bool:
    return args.target.size * args.target.dim <= SMALL


@functools.partial(brief, static_argnames="objective", is_small=lambda _, args, *__: _is_small(args))
def _slope(objective, args: Linearised, theta):
    return jax.value_and_grad(lambda theta: objective(args, theta), has_aux=True)(theta)


def _curvatures(args: Linearised, theta) -> tuple[Float[Array, "2"], Float[Array, " weight"]]:
    """Σ (J v)ᵀ F(θ) (J v) over the rows, for each probe v; and the prior's diagonal −∇² log p(w | θ).

    Weights are independent given θ, so that one product of the latter with ones gives it.
    """
    target = args.target
    z, d = _outputs(target, jnp.concatenate([theta, args.weights]), args.rows)
    assert target.head is not None  # checked by the curvature
    product = fisher_product(target.head, z, d)

    def outputs(w):
        return _outputs(target, jnp.concatenate([theta, w]), args.rows)[0]

    def along(v):
        moved = jax.jvp(outputs, (args.weights,), (v,))[1]
        return jnp.sum(moved * product(moved))

    def log_prior(w):
        return target.log_prior(jnp.concatenate([theta, w]))

    P = -jax.jvp(jax.grad(log_prior), (args.weights,), (jnp.ones_like(args.weights),))[1]
    return jax.vmap(along)(args.probes), P


_read = brief(_curvatures, is_small=lambda args, _: _is_small(args))


def _outputs(target: Target, u, rows):
    head = target.head
    assert head is not None  # checked by the curvature
    d = target.likelihood_distribution(target.constrain(u), rows)
    return head.split(d), d
