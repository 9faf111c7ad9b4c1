"""Rows at which the likelihood has no numbers: kept apart from outcomes, and told by row.

A network or a formula may be NaN at new inputs. A float drawn there is NaN too, but NumPyro's class is then 0 and its
count −1, which nobody could tell from an outcome: of whole numbers the lowest there is stands in their place.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credo.algorithm import stream as stream_of
from credo.algorithm import streams
from credo.model.draws import draw
from credo.precision import double
from credo.predict.outcome import moments, num_classes
from credo.status import CredoError

NUM_LOOKS = 32  # outcomes a row, where a prediction is NaN


class UndefinedPredictionError(CredoError):
    """Rows, or draws of a failed posterior, at which the likelihood is undefined."""


def drawn(d: Any, key, shape: tuple[int, ...] = ()) -> jax.Array:
    """``shape`` draws of a distribution, each a hole (``is_hole``) where its parameters are NaN."""
    y = draw(d, key, shape)
    if not jnp.issubdtype(y.dtype, jnp.integer):
        return y
    try:
        mean, _ = moments(d)
    except NotImplementedError:  # a user's own law without a mean, whose parameters nothing here can read
        return y
    is_undefined = jnp.isnan(mean if num_classes(d) is None else mean.sum(axis=-1))
    return jnp.where(is_undefined, jnp.iinfo(y.dtype).min, y)


def is_hole(values: Any) -> Any:
    """Which entries of an array are no numbers, and no outcomes."""
    if values.dtype.kind == "i":
        return values == np.iinfo(values.dtype).min
    return values != values if values.dtype.kind == "f" else np.zeros(values.shape, bool)


def explain_holes(stream, key, *, is_failed: bool) -> None:
    """UndefinedPredictionError where outcomes are no numbers; nothing where a law only has no mean, say.

    ``stream``: that of a predictive. ``is_failed``: its posterior's verdict.
    """
    holes = _rows(stream, key)
    if holes.any() and not (is_failed and holes.all()):
        raise UndefinedPredictionError(
            f"The likelihood is undefined at {holes.sum():,} of {len(holes):,} rows of x (the first is row "
            f"{int(np.argmax(holes))}): what the network or the formula gives there is NaN. Look for the log or root "
            "of a negative number, 0/0, or an index beyond a table, which jnp.take and flax's Embed let pass."
        )
    if is_failed:
        raise UndefinedPredictionError(
            "The predictions are no numbers: the posterior, whose verdict is failed, has draws at which the likelihood "
            "is undefined. See posterior.verdict for the cause, or use NUTS()."
        )


def _rows(stream, key) -> np.ndarray:
    """Which rows have a hole among some outcomes that are drawn at each."""
    shared = stream.law.shared(np.random.default_rng(stream_of(key, 0).tolist()), NUM_LOOKS)

    def look(law, rows, *, key):
        return _draws(law, rows, shared, streams(key, NUM_LOOKS))

    with double():
        draws = jax.tree.leaves(stream(look, key=stream_of(key, 1), axis=1))
    by_row = [is_hole(leaf).any(axis=(0, *range(2, leaf.ndim))) for leaf in draws]
    return np.any(by_row, axis=0) if len({each.shape for each in by_row}) == 1 else np.concatenate(by_row)


@jax.jit
def _draws(law, rows, shared, keys):
    return law.sample(rows, shared, keys)
