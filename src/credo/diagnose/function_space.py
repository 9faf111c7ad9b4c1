"""What chains of a network are compared by: its predictions, for its weights have no names.

Hidden units that trade places, and signs that flip together, leave every prediction as it was: chains in two such modes
agree on all that a network says and on none of its weights. R-hat and effective sizes are therefore those of the
predicted mean (of classes: the probabilities) at some rows of the data and half way between them, where there may be no
data, and of the parameters beside the weights.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credo.batches import in_batches
from credo.compiling import brief
from credo.model.target import Target
from credo.storage import AT_ONCE, release, row_blocks

NUM_ROWS = 20  # of the data, evenly spaced
MOST_NUMBERS = 2**24  # predictions in memory: 128 MB
SENTENCE = (
    "R-hat and effective sizes are those of the predictions at {rows} rows of the data and between them, and of the "
    "parameters beside the weights: single weights trade places between modes that predict the same."
)


def observed(target: Target, positions: np.ndarray) -> tuple[np.ndarray, str | None]:
    """(chain, draw, k) to compare chains by, and what to say of it. Not of a network: the positions themselves."""
    is_weight = weights_of(target)
    if is_weight is None or target.y is None or not jax.tree.leaves(target.x):
        return positions, None
    chains, draws, _ = positions.shape
    size = len(jax.tree.leaves(target.x)[0])
    index = np.unique(np.linspace(0, size - 1, min(NUM_ROWS, size)).astype(int))
    rows, places = jax.tree.map(lambda leaf: _with_places_between(np.asarray(leaf)[index]), target.x), None
    first = positions[0, :1]
    try:
        shape = jax.eval_shape(_predicted, target, first, rows, places).shape
    except (TypeError, ValueError):  # a network of all rows at once, such as a graph's
        rows, places = target.x, index
        shape = jax.eval_shape(_predicted, target, first, rows, places).shape
    most = max(1, MOST_NUMBERS // (chains * draws))  # of a row's thousand outputs a few, evenly spaced, tell as much
    columns = None if shape[1] <= most else np.linspace(0, shape[1] - 1, most).astype(int)
    predicted = _in_blocks(lambda some: _predicted(target, some, rows, places, columns), positions)
    if not np.all(np.isfinite(predicted)):  # a law without a mean
        return positions, None
    return np.concatenate([predicted, positions[..., ~is_weight]], axis=-1), SENTENCE.format(rows=len(index))


def _with_places_between(rows: np.ndarray) -> np.ndarray:
    """``rows``, and the middle between each and the next; of whole numbers the next again."""
    between = 0.5 * (rows[1:] + rows[:-1]) if rows.dtype.kind == "f" else rows[1:]
    return np.concatenate([rows, between.astype(rows.dtype)])


def _in_blocks(function, positions: np.ndarray) -> np.ndarray:
    """``function`` of positions (n, dim), which may be far more than memory holds, as (chain, draw, k)."""
    chains, draws, dim = positions.shape
    if positions.size <= AT_ONCE:
        return np.asarray(function(positions.reshape(-1, dim))).reshape(chains, draws, -1)
    found = None
    for chain in range(chains):
        for some in row_blocks(draws, dim):
            part = np.asarray(function(np.ascontiguousarray(positions[chain, some])))
            found = np.empty((chains, draws, part.shape[1]), part.dtype) if found is None else found
            found[chain, some] = part
            release(positions)
    assert found is not None
    return found


def weights_of(target: Target) -> np.ndarray | None:
    """Which coordinates (dim,) are weights of a network; None where the model is no network."""
    name = getattr(target.model, "weights_name", None)
    if name is None:
        return None
    return np.concatenate([np.full(leaf.size, leaf.name.split(".")[0] == name) for leaf in target.structure.leaves])


@brief
def _predicted(target: Target, positions, rows, places, columns=None):
    """(n, k): the mean of each row's outcomes at each position; of classes their probabilities. ``places``: of the
    rows that are wanted; ``columns``: the numbers; None for all."""

    def one(u):
        distribution: Any = target.flat().likelihood_distribution(target.flat().constrain(u), rows)
        parts = list(distribution.values()) if isinstance(distribution, Mapping) else [distribution]
        found = [part.probs if hasattr(part, "probs") else part.mean for part in parts]
        every = jnp.concatenate([jnp.ravel(each if places is None else each[places]) for each in found])
        return every if columns is None else every[columns]

    return in_batches(one, positions, 64)
