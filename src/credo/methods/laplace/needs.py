"""What each structure of a Laplace approximation holds at its peak, by shapes alone."""

from typing import Any

from credo.memory import Need, budget, require
from credo.methods.laplace.kronecker import Kronecker, sides
from credo.methods.laplace.layered import layers_or_none
from credo.methods.laplace.lowrank import LowRank
from credo.methods.laplace.matrix_free import VECTORS as OF_A_SOLVE
from credo.methods.laplace.matrix_free import MatrixFree
from credo.methods.laplace.structure import Dense, Diagonal
from credo.methods.laplace.subset import All
from credo.model.layers import Layers
from credo.model.target import Target
from credo.precision import abstract

NUMBER = 8  # bytes: structures are worked out in float64
MATRICES = 5  # of a matrix: itself, its eigenvectors and their workspace, its inverse and the factor of that
VECTORS = 24  # positions, gradients, the prior's curvature, the sds; four pairs of L-BFGS and what it works on


def check_memory(
    structure: Any, subset: Any, target: Target, max_memory: int | None, *, has_factors: bool = True
) -> None:
    """CredoError, with the structures that would fit, where ``structure`` does not. ``subset``: checked by itself.

    ``has_factors``: whether the curvature is one that ``Kronecker()`` factors.
    """
    if not (subset is None or isinstance(subset, All)):
        of_positions = Need("Laplace() of some parameters", NUMBER * VECTORS * target.dim)
        require(of_positions, f"{target.dim:,} parameters", max_memory)
        return
    wanted = num_bytes(structure, target)
    if wanted is None or wanted <= budget(max_memory):
        return
    others = (Kronecker(), Diagonal()) if has_factors else (Diagonal(),)
    others = [Need(f"{type(each).__name__}()", num_bytes(each, target) or 0.0) for each in others]
    others = [each for each in others if each.name != f"{type(structure).__name__}()"]
    require(Need(f"{type(structure).__name__}()", wanted), f"{target.dim:,} parameters", max_memory, others)


def size_of_factors(layers: Layers) -> tuple[int, float]:
    """The longest side of a layer's weights, and the bytes of Kronecker factors of all of them."""
    found = [size for layer in layers.layers for size in sides(layer)]
    return max(found), NUMBER * MATRICES * float(sum(size**2 for size in found))


def num_bytes(structure: Any, target: Target) -> float | None:
    """Bytes at the peak; None for a structure that is not known here."""
    dim = target.dim
    of_positions = NUMBER * VECTORS * dim
    if isinstance(structure, Dense):
        return of_positions + NUMBER * MATRICES * dim**2
    if isinstance(structure, Diagonal):
        return of_positions
    if isinstance(structure, LowRank):
        return of_positions + 3 * NUMBER * structure.rank * dim
    if isinstance(structure, MatrixFree):
        return of_positions + NUMBER * OF_A_SOLVE * dim
    if isinstance(structure, Kronecker):
        layers = layers_or_none(target, abstract((dim,)), None)
        return of_positions + (0.0 if layers is None else size_of_factors(layers)[1])
    return None
