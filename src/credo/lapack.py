"""Batches of matrices are factored one after the other on a CPU: in parallel they may never end.

The LAPACK kernels of jaxlib 0.10 cut a batch into parts for XLA's pool of threads and wait for them in a thread of that
pool. Where as many such calls run at once as the pool has threads, each waits for the others: two threads that sample,
two independent factors in one program, and two cores hang for ever, where neither Ctrl-C nor a time limit is heard
(tests/test_lapack.py). Matrix by matrix there is no batch to cut, nor another core to help.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import mlir
from jax.lax import linalg

FACTORS = ("cholesky", "lu", "eigh", "eig", "svd", "hessenberg", "schur", "tridiagonal")
MATRICES = (*FACTORS, "triangular_solve", "householder_product", "ormqr")
RANK = {f"{name}_p": 2 for name in MATRICES} | {"tridiagonal_solve_p": 1}  # of the first operand, without a batch


def one_by_one() -> None:
    """For every program that is compiled from here on, in this process. Does nothing where JAX is built otherwise."""
    try:
        from jax._src.interpreters.mlir import _platform_specific_lowerings as lowerings
        from jax._src.lax.linalg import geqp3_p, geqrf_p
    except ImportError:
        return
    known = lowerings.get("cpu", {})
    ranks = {getattr(linalg, name): rank for name, rank in RANK.items() if hasattr(linalg, name)}
    for primitive, rank in (ranks | {geqrf_p: 2, geqp3_p: 2}).items():
        of_one = getattr(known.get(primitive), "rule", None)
        if of_one is not None and not hasattr(of_one, "of_one"):
            mlir.register_lowering(primitive, _rule(primitive, rank, of_one), platform="cpu")


def _rule(primitive: Any, rank: int, of_one: Callable) -> Callable:
    """``of_one`` where there is one matrix, else a loop over them."""

    def rule(context, *operands, **settings):
        shape = context.avals_in[0].shape
        batch = shape[: len(shape) - rank]
        if not all(isinstance(size, int) for size in batch) or math.prod(batch) <= 1:  # or exported for any batch
            return of_one(context, *operands, **settings)

        def each(*arrays):
            flat = [jnp.reshape(array, (-1, *array.shape[len(batch) :])) for array in arrays]
            found = jax.lax.map(lambda one: primitive.bind(*one, **settings), tuple(flat))
            return jax.tree.map(lambda leaf: jnp.reshape(leaf, (*batch, *leaf.shape[1:])), found)

        return mlir.lower_fun(each, multiple_results=primitive.multiple_results)(context, *operands)

    rule.of_one = of_one  # type: ignore[attr-defined]
    return rule
