"""Large data and large networks in blocks of rows, so that a density of all of them fits into memory."""

import dataclasses

import jax
import numpy as np

from credo.memory import budget, bytes_of, chunk_bytes, footprint
from credo.model.data import Rows
from credo.model.target import Target
from credo.precision import abstract
from credo.traced import by_shapes

SMALL_DIM, SMALL_DATA = 1_000, 2**26  # fewer parameters and bytes of data: rows have few intermediates, none is counted
FEW = 8  # rows, by whose difference from twice as many the intermediates of one are counted
DERIVATIVES = 3  # times the intermediates of a density: what its gradient and a product with its curvature hold
MOST_ROWS = 8_192  # of a file in a block, so that a thousand densities together hold four numbers a row each
LEAST_ROWS = 16  # in a block, so that matrix products are worth their name


def in_blocks(target: Target, max_memory: int | None = None) -> Target:
    """``target``, with ``rows_at_once`` where the derivatives of all rows would take a quarter of the budget."""
    if target.source is not None:
        rows = int(chunk_bytes(max_memory) // max(DERIVATIVES * row_bytes(target) + bytes_of(target.x) / FEW, 1))
        most = min(MOST_ROWS, max(target.size, LEAST_ROWS))
        return dataclasses.replace(target, rows_at_once=int(np.clip(rows, LEAST_ROWS, most)))
    if target.size < 2 * LEAST_ROWS or target.num_terms != target.size:
        return target
    if target.dim <= SMALL_DIM and bytes_of(target.x) <= SMALL_DATA:
        return target
    needed = DERIVATIVES * row_bytes(target)
    if needed * target.size <= budget(max_memory) // 4:
        return target
    if not target.rows_stand_apart():  # a scan or a lag along the rows: blocks would cut it
        return target
    rows = max(LEAST_ROWS, int(chunk_bytes(max_memory) // max(needed, 1)))
    return target if rows >= target.size else dataclasses.replace(target, rows_at_once=rows)


@by_shapes
def row_bytes(target: Target) -> float:
    """Intermediates of the log likelihood of one row; 0 where rows cannot be evaluated apart."""
    u = abstract((target.dim,))

    def of(number: int) -> int:
        rows = Rows(target.x, target.y, target.weights)
        batch = jax.tree.map(lambda leaf: abstract((number, *np.shape(leaf)[1:]), leaf.dtype), rows)
        flat = target.flat()
        return footprint(lambda u, batch: flat.log_likelihood(u, batch), u, batch)

    try:
        return max(of(2 * FEW) - of(FEW), 0) / FEW
    except (TypeError, ValueError, IndexError):  # a likelihood that is bound to its rows
        return 0.0
