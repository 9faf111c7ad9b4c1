"""What a likelihood says at made-up inputs: by this a file knows it where a model is given without its data.

Inputs are made up of shapes, dtypes and the largest whole numbers, by formulas that no version of a library changes. Of
each array of the distribution that the likelihood returns, two numbers are kept: its largest entry, and its entries
along a direction.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credo.compiling import TINY, brief
from credo.model.distributions import is_distribution
from credo.model.model import Model
from credo.model.prior import Prior
from credo.ordered import Ordered
from credo.status import CredoError

NUM_ROWS = 2
CLOSE = 1e-4  # of the largest entry: rounding of a deep network in single precision, and no other activation
NOTHING = 1e-9  # what outputs that cancel leave
CHANGED = "The model has changed since the file was written"
REMEDY = "Give the model that was fitted, with the same functions (activations, links) in it."


def saying(model: Model, position: np.ndarray, x: Any) -> dict | None:
    """What the likelihood says at ``position`` (dim,), ready for JSON. ``x``: the inputs of the fit.

    None where it cannot be evaluated at inputs that are made up, as where a parameter has one entry a row.
    """
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(x)]
    if (
        model.likelihood is None
        or not isinstance(model.prior, Prior)
        or any(leaf.dtype.kind not in "biuf" for leaf in leaves)
    ):
        return None
    largest = [int(np.max(leaf, initial=0)) if leaf.dtype.kind in "iu" else 0 for leaf in leaves]
    try:
        return {"largest": largest, **_said(model, position, x, largest)}
    except Exception:  # the user's code
        return None


def check_saying(recorded: Mapping | None, model: Model, position: np.ndarray, x: Any) -> None:
    """CredoError where the likelihood of ``model`` says something else than ``recorded``."""
    if recorded is None or not isinstance(model.prior, Prior):
        return
    try:
        found = _said(model, position, x, recorded["largest"])
    except Exception as error:  # the user's code
        reason = (str(error).strip() or type(error).__name__).split("\n")[0][:200]
        raise CredoError(
            f"{CHANGED}: its likelihood fails at inputs of the shape that it was fitted to ({reason}). {REMEDY}"
        ) from error
    if found["kinds"] != recorded["kinds"]:
        then, now = (", ".join(each["kinds"]) for each in (recorded, found))
        raise CredoError(f"{CHANGED}: its likelihood was {then} and is {now}. {REMEDY}")
    if len(found["arrays"]) != len(recorded["arrays"]):  # another version of a library's distribution
        return
    for (top, along), (top_then, along_then) in zip(found["arrays"], recorded["arrays"], strict=True):
        least = CLOSE * top_then + NOTHING
        if not np.allclose([top, along], [top_then, along_then], rtol=0, atol=least, equal_nan=True):
            raise CredoError(
                f"{CHANGED}: at the same parameters and inputs its likelihood says {along:.6g} where it said "
                f"{along_then:.6g}. {REMEDY}"
            )


def _said(model: Model, position: np.ndarray, x: Any, largest: list[int]) -> dict:
    leaves, structure = jax.tree.flatten(x)
    rows = [_rows(np.asarray(leaf), most) for leaf, most in zip(leaves, largest, strict=True)]
    kinds, arrays = _evaluated(model, np.asarray(position, np.float64), jax.tree.unflatten(structure, rows))
    with np.errstate(invalid="ignore", over="ignore"):  # made-up inputs may overflow: two NaN are alike
        pairs = [
            (float(np.max(np.abs(a), initial=0.0)), float(np.ravel(a) @ _wave(a.size) / max(a.size, 1) ** 0.5))
            for a in arrays
        ]
    return {"kinds": kinds, "arrays": pairs}


def _rows(leaf: np.ndarray, most: int) -> np.ndarray:
    shape = (NUM_ROWS, *leaf.shape[1:])
    size = int(np.prod(shape))
    values = np.arange(1, size + 1) % (most + 1) if leaf.dtype.kind in "biu" else 1.5 * _wave(size)
    return values.reshape(shape).astype(leaf.dtype)


def _wave(size: int) -> np.ndarray:
    """Numbers of both signs that do not repeat."""
    return np.cos(1.7 * np.arange(size) + 0.3)


def _evaluated(model: Model, position, x) -> tuple[list[str], list[np.ndarray]]:
    kinds: list[str] = []

    def evaluate(model, position, x):
        assert model.likelihood is not None
        found = model.likelihood(model.prior.constrain(model.structure.unravel(position)), x)
        laws = jax.tree.leaves(found, is_leaf=is_distribution)
        kinds.extend(type(law).__name__ for law in laws)
        return [jnp.asarray(leaf, float) for leaf in Ordered.of(laws).leaves]  # the same in every process

    arrays = brief(evaluate, options=TINY)(model, position, x)
    return kinds, [np.asarray(leaf) for leaf in arrays]
