"""Rows at which the likelihood has no numbers: kept apart from outcomes, and told by row.

A network or a formula may be NaN at new inputs. A float drawn there is NaN too, but NumPyro's class is then 0 and its
count −1, which nobody could tell from an outcome: of whole numbers the lowest there is stands in their place.

Or it may be what its law does not take: a rate a + b x below zero beyond the data, a probability above one. NumPyro
computes with these all the same; here they are NaN.
"""

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution

from credo.algorithm import stream as stream_of
from credo.algorithm import streams
from credo.compiling import sound
from credo.model.draws import draw
from credo.precision import double
from credo.predict.outcome import moments, num_classes
from credo.status import CredoError

NUM_LOOKS = 32  # outcomes a row, where a prediction is NaN; then as many as there are draws
ROUNDING = 1e-6  # of parameters that have two bounds, as probabilities have


class UndefinedPredictionError(CredoError):
    """Rows, or draws of a failed posterior, at which the likelihood is undefined."""


def only_defined(d: Any) -> Any:
    """A law, or a dict of such, with NaN for its parameters that are outside of their bounds."""
    if isinstance(d, dict):
        return {name: only_defined(each) for name, each in d.items()}
    known, changed = vars(d), {}
    for name, constraint in (getattr(d, "arg_constraints", None) or {}).items():
        low, high = getattr(constraint, "lower_bound", None), getattr(constraint, "upper_bound", None)
        if low is None or name not in known or not jnp.issubdtype(jnp.result_type(known[name]), jnp.floating):
            continue
        value = jnp.asarray(known[name])
        is_outside = value < low if high is None else (value < low - ROUNDING) | (value > high + ROUNDING)
        changed[name] = jnp.where(is_outside, jnp.nan, value)
    if isinstance(known.get("base_dist"), Distribution):
        changed["base_dist"] = only_defined(known["base_dist"])
    found = copy.copy(d)
    vars(found).update(changed)
    return found


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
            f"{int(np.argmax(holes))}): what the network or the formula gives there, at some draws at least, is NaN or "
            "outside of what the distribution takes, as a negative rate or sd or a probability above 1. Look for the "
            "log or root of a negative number, 0/0, an index beyond a table, which jnp.take and flax's Embed let pass, "
            "or a line that leaves its bounds beyond the data (a link, such as jnp.exp, keeps it)."
        )
    if is_failed:
        raise UndefinedPredictionError(
            "The predictions are no numbers: the posterior, whose verdict is failed, has draws at which the likelihood "
            "is undefined. See posterior.verdict for the cause, or use NUTS()."
        )


def _rows(stream, key) -> np.ndarray:
    """Which rows have a hole among some outcomes that are drawn at each."""
    for number in sorted({NUM_LOOKS, max(NUM_LOOKS, getattr(stream.law, "width", 0))}):
        shared = stream.law.shared(np.random.default_rng(stream_of(key, 0).tolist()), number)

        def look(law, rows, *, key, shared=shared, number=number):
            return _draws(law, rows, shared, streams(key, number))

        with double():
            draws = jax.tree.leaves(stream(look, key=stream_of(key, 1), axis=1))
        by_row = [is_hole(leaf).any(axis=(0, *range(2, leaf.ndim))) for leaf in draws]
        holes = np.any(by_row, axis=0) if len({each.shape for each in by_row}) == 1 else np.concatenate(by_row)
        if holes.any():
            break
    return holes


@sound
def _draws(law, rows, shared, keys):
    return law.sample(rows, shared, keys)
