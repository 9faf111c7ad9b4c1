"""Where the members of an ensemble begin: apart from each other, each at a new initialisation."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from credo.algorithm import as_key, stream
from credo.model.target import Target
from credo.status import CredoError

STREAM = (1 << 20) + 1
APART = 4.0  # standard errors of a mean that is not zero
SPREAD = 0.1  # of coordinates that nobody has initialised


def fresh_positions(target: Target, num: int, init: Callable | None, key) -> Float[np.ndarray, "member dim"]:
    """(num, dim). ``init(key)``: the parameters of a member, or of a network its weights.

    Without it each array that the model starts from is drawn anew, normal with the spread of its entries, about zero or
    about their mean where that is not zero (gains near one): an initialisation keeps its scale layer by layer, and
    trained weights theirs; arrays of one value stay, unless all are of one.
    """
    start = target.model.start
    if init is not None:
        return np.stack([_given(target, init, as_key(stream(key, STREAM, i)), start) for i in range(num)])
    random = np.random.default_rng(stream(key, STREAM))
    if start is None:
        return random.normal(scale=SPREAD, size=(num, target.dim))
    center = np.asarray(target.unconstrain(start))
    mean, spread, first = np.zeros(target.dim), np.zeros(target.dim), 0
    for leaf in target.structure.leaves:
        rows = slice(first, first + leaf.size)
        middle, sd = np.mean(center[rows]), np.std(center[rows]) if np.ptp(center[rows]) > 0 else 0.0  # not by rounding
        mean[rows] = middle if abs(middle) > APART * sd / np.sqrt(max(leaf.size, 1)) else 0.0
        spread[rows] = sd
        first += leaf.size
    z = random.normal(size=(num, target.dim))
    z *= spread if spread.any() else SPREAD
    z += mean
    return z


def _given(target: Target, init: Callable, key, start) -> np.ndarray:
    params: Any = init(key)
    names = target.model.prior.names or ()
    if not (isinstance(params, dict) and set(params) == set(names)):
        if start is None or "weights" not in names:
            raise CredoError(
                f"init(key) returns the parameters of the model, a dict of {', '.join(names)}; got "
                f"{type(params).__name__}."
            )
        params = {**start, "weights": params}
    try:
        position = np.asarray(target.unconstrain(jax.tree.map(np.asarray, params)))
    except (KeyError, TypeError, ValueError) as error:
        raise CredoError(f"init(key) gives parameters of another structure than the model's: {error}.") from error
    if position.shape != (target.dim,):
        raise CredoError(
            f"init(key) gives {position.size} numbers, and the model has {target.dim}: return arrays of its shapes."
        )
    return position
