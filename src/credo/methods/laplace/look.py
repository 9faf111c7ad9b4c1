"""How the curvature of a network is looked at: of which structure, over which coordinates, and for what.

A fit looks for the shape of its Gaussian; polishing for a metric of all coordinates, whose products cost no solve; and
the evidence of hyperparameters for the likelihood's part alone (pieces.py). Each may be another structure.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from credo.linalg.diagonal import Diagonal as DiagonalScale
from credo.memory import budget, in_words
from credo.methods.laplace.curvature import Curvature, GaussNewton, OuterProducts, SampledFisher
from credo.methods.laplace.evidence import num_outputs
from credo.methods.laplace.gram import Gram, serves
from credo.methods.laplace.kronecker import LARGEST_FACTOR, Kronecker
from credo.methods.laplace.layered import layers_or_none
from credo.methods.laplace.matrix_free import MatrixFree
from credo.methods.laplace.needs import size_of_factors
from credo.methods.laplace.pieces import BlockPieces, DensePieces, LowRankPieces, Pieces
from credo.methods.laplace.structure import Dense, Diagonal, Shape, Structure
from credo.methods.laplace.subset import All, LargestVariance, Subset, shape_of
from credo.methods.optimise.newton import Optimum, Status
from credo.methods.optimise.objective import Objective
from credo.model.target import Target
from credo.posterior.posterior import Posterior

if TYPE_CHECKING:
    from credo.methods.laplace.laplace import Laplace

UP_TO_DENSE = 1_000  # coordinates: a second or two for the matrix and its eigenvectors
UP_TO_DENSE_PART = 3_000  # of a subset: twenty seconds
LEAST_UNIT = {4: 1e-30, 8: 1e-100}  # of a prior that is none: far from what counts, and a number, by bytes of one


class Look(NamedTuple):
    """The Gaussian's shape at a position, whatever the prior."""

    structure: Structure
    subset: Subset
    curvature: Curvature
    target: Target
    chunk: int
    max_memory: int | None = None

    def __call__(self, objective: Objective, u: np.ndarray) -> Shape:
        return shape_of(
            self.structure, self.subset, self.curvature, objective, self.target, at_rest(u), self.chunk, True
        )

    def pieces(self, u: np.ndarray, num_fixed: int, groups: np.ndarray) -> Pieces:
        """H, the likelihood's curvature alone, of a structure by which hyperparameters can be tuned."""
        curvature: Any = self.curvature  # checked before: by outer products
        if isinstance(self.structure, Gram):
            s, U = self.structure.directions(curvature, self.target, u)
            return LowRankPieces.of(s, U[num_fixed:], groups)
        if isinstance(self.structure, Dense):
            H = curvature.matrix(beside_unit(0.0), self.target, at_rest(u), self.chunk)
            return DensePieces.of(H[num_fixed:, num_fixed:].astype(float), not groups.any())
        unit = LEAST_UNIT[u.dtype.itemsize]
        scale: Any = self(beside_unit(unit), u).scale
        return BlockPieces.of(scale, num_fixed, unit)

    @property
    def is_tunable(self) -> bool:
        """Whether the evidence of hyperparameters is that of this structure itself."""
        return self.tunable() is self

    def metric(self, u) -> "Look":
        """One over all coordinates, those too that are then taken for known at the mode, and whose products cost no
        solve: polishing takes two at each step."""
        is_whole = isinstance(self.subset, All)
        if is_whole and not isinstance(self.structure, MatrixFree):
            return self
        if self.target.dim <= UP_TO_DENSE:
            return self._replace(structure=Dense(), subset=All())
        if not (is_whole or isinstance(self.curvature, OuterProducts)):
            return self  # the diagonal of a Hessian takes a product for each coordinate
        has_factors = not is_whole and _why_not_kronecker(self, jnp.asarray(u), None) is None
        return self._replace(structure=Kronecker() if has_factors else Diagonal(), subset=All())

    def tunable(self) -> "Look":
        """One by which hyperparameters can be tuned: the whole matrix where data are few (gram.py) or weights are.

        A diagonal is the last resort: its log |A| counts what data say of a sum of weights once for each of them, and
        its evidence may be highest where a network of classes is constant.
        """
        is_whole = isinstance(self.subset, All)
        if is_whole and isinstance(self.structure, Dense):
            return self
        origin = np.zeros(self.target.dim)
        has_factors = _why_not_kronecker(self, jnp.asarray(origin), None) is None
        if has_factors and serves(self.target, self.curvature, num_outputs(self.target, origin)):
            return self._replace(structure=Gram(), subset=All())
        if is_whole and isinstance(self.structure, Kronecker):
            return self
        if self.target.dim <= UP_TO_DENSE:
            return self._replace(structure=Dense(), subset=All())
        if has_factors:
            return self._replace(structure=Kronecker(), subset=All())
        if is_whole and isinstance(self.structure, Diagonal):
            return self
        return self._replace(structure=Diagonal(), subset=All())


def choose(
    laplace: "Laplace", target: Target, curvature: Curvature, chunk: int, u, max_memory: int | None = None
) -> tuple[Look, tuple[str, ...]]:
    """The structure asked for, else the fullest that is cheap and possible; and a sentence where that was the least."""
    look = Look(laplace.structure or Dense(), laplace.subset, curvature, target, chunk, max_memory)
    said = _said_of(curvature) if laplace.curvature is None else ()
    if laplace.structure is not None or target.dim <= UP_TO_DENSE or isinstance(laplace.subset, LargestVariance):
        return look, said
    free = None
    if not isinstance(laplace.subset, All):
        free = laplace.subset.coordinates(target, curvature, beside_unit(1.0), at_rest(u), chunk)
        if free is None or free.size <= UP_TO_DENSE_PART:
            return look, said
    reason = _why_not_kronecker(look, jnp.asarray(u), free)
    if laplace.prior is not None and not are_independent(laplace.prior):
        reason = "the posterior given as prior has correlations, which no factors take in"
    if reason is None:
        return look._replace(structure=Kronecker()), said
    return look._replace(structure=Diagonal()), (*said, f"The weights are taken for independent: {reason}.")


def at_rest(u: np.ndarray) -> Optimum:
    """``u`` for what asks where the density has its mode."""
    nothing = np.zeros_like(u)
    return Optimum(u, 0.0, nothing, np.inf, None, nothing, nothing, Status.MAX_STEPS, 0, 0, 0)


def are_independent(prior: Posterior) -> bool:
    """Whether the coordinates of a posterior that is given as a prior are, as Kronecker() and LowRank() ask."""
    return isinstance(getattr(prior.kind, "scale", None), DiagonalScale)


def _why_not_kronecker(look: Look, u, free: np.ndarray | None) -> str | None:
    """What speaks against it, None for nothing."""
    is_factored = isinstance(look.curvature, GaussNewton | SampledFisher)
    layers = layers_or_none(look.target, u, free) if is_factored else None
    if layers is None:
        return "no layers with Kronecker factors were found in the network"
    side, needed = size_of_factors(layers)
    if side <= LARGEST_FACTOR and needed <= budget(look.max_memory):
        return None
    return (
        f"a layer has {side:,} inputs or outputs, and Kronecker() needs {in_words(needed)} (the budget is "
        f"{in_words(budget(look.max_memory))})"
    )


def _said_of(curvature: Curvature) -> tuple[str, ...]:
    """Of a curvature that was chosen by its cost."""
    if not isinstance(curvature, SampledFisher):
        return ()
    return (
        f"The curvature of the many outputs of a row is that of {curvature.num_columns} random columns: unbiased, and "
        "curvature=GaussNewton() takes them all.",
    )


def unit_density(unit, u):
    """−½ unit |u|²"""
    return -0.5 * unit * jnp.dot(u, u)


def beside_unit(unit: float) -> Objective:
    """A prior of that precision."""
    return Objective(unit_density, unit_density, unit, "")
