"""Blocks of Kronecker form: Σ = ⊕ (U ⊗ V) diag(sd²) (U ⊗ V)ᵀ, a block for each matrix of weights.

A block's coordinates, laid out as a matrix Z (in, out), are mapped by S Z = U (sd ∘ Z) Vᵀ with orthogonal U (in, in)
and V (out, out): the eigenvectors of the two factors of its precision. Without V the block is diagonal, without U alone
its rows are independent of each other.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from credo.compiling import TINY, brief
from credo.linalg.operator import ScaleOperator, Stored


class Block(eqx.Module):
    """``index``: the coordinate of each entry. ``left``, ``right``: U and V, or None for a unit matrix."""

    index: Int[Stored, "in out"]
    sd: Float[Stored, "in out"]
    left: Float[Stored, "in in"] | None = None
    right: Float[Stored, "out out"] | None = None

    @property
    def is_diagonal(self) -> bool:
        return self.left is None and self.right is None

    def rotate(self, Z):
        """U Z Vᵀ: on the host, without a program, if all are NumPy's."""
        Z = Z if self.left is None else self.left @ Z
        return Z if self.right is None else Z @ self.right.T

    def rotate_back(self, Z):
        """Uᵀ Z V."""
        Z = Z if self.left is None else self.left.T @ Z
        return Z if self.right is None else Z @ self.right


class Kronecker(ScaleOperator):
    """``blocks`` that cover every coordinate once."""

    blocks: tuple[Block, ...]

    @property
    def dim(self) -> int:
        return sum(int(np.prod(block.sd.shape)) for block in self.blocks)

    def matvec(self, z) -> Float[Array, " dim"]:
        return self._each(z, lambda block, Z: block.rotate(block.sd * Z))

    def transpose_matvec(self, v) -> Float[Array, " dim"]:
        return self._each(v, lambda block, V: block.sd * block.rotate_back(V))

    def solve(self, v) -> Float[Array, " dim"]:
        return self._each(v, lambda block, V: block.rotate_back(V) / block.sd)

    def log_det(self) -> Float[Array, ""]:
        return _sum_of_logs(tuple(block.sd for block in self.blocks))

    def diagonal(self) -> Float[Array, " dim"]:
        return _diagonal(self)

    def dense(self) -> Float[Array, "dim dim"]:
        return _dense(self)

    def _each(self, vector, function) -> Float[Array, " dim"]:
        vector = jnp.asarray(vector)
        out = jnp.zeros_like(vector)
        for block in self.blocks:
            out = out.at[block.index].set(function(block, vector[block.index]))
        return out


# on the host each operation of these would be a program of its own


@functools.partial(brief, options=TINY)  # its logarithms take LLVM's optimiser a second, and run for microseconds
def _sum_of_logs(arrays):
    return sum(jnp.sum(jnp.log(array)) for array in arrays)


@functools.partial(brief, options=TINY)
def _dense(scale: Kronecker):
    root = jax.vmap(scale.matvec)(jnp.eye(scale.dim))  # row i: S e_i
    return root.T @ root


@brief
def _diagonal(scale: Kronecker):
    def variances(block: Block, _):
        found = jnp.square(block.sd) if block.left is None else jnp.square(block.left) @ jnp.square(block.sd)
        return found if block.right is None else found @ jnp.square(block.right).T

    return scale._each(jnp.zeros(scale.dim), variances)
