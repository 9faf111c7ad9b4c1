"""Whether the outputs of a row lean on the rows beside it: a batch normalisation in training mode, a mean over x.

A likelihood needs each row's output to be its own. The program is read for equations along the axis of rows, or that
merge it with another one; only where there are some is the network run, since that has to be compiled.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex

from credo.equations import equations
from credo.status import CredoError

NUM_ROWS, CLOSE = 8, 1e-3  # of the largest output
ALONG = ("axes", "axis", "dimension", "dimensions")  # what equations call the axes that they run along


def check_alone(apply: Callable, params: Any, x: Any, program: jex.ClosedJaxpr, num_rows: int) -> None:
    """``program``: that of ``apply(params, x)``, of so many rows."""
    if num_rows < 2 or not any(_runs_along(equation, num_rows) for equation in equations(program.jaxpr)):
        return

    def together_and_alone(params, x):
        return apply(params, x), apply(params, jax.tree.map(lambda leaf: leaf[:1], x))

    few = jax.tree.map(lambda leaf: np.asarray(leaf[:NUM_ROWS]), x)
    try:
        found = jax.jit(together_and_alone)(params, few)
    except (TypeError, ValueError):  # a network of all rows at once, such as a graph's: methods for rows refuse it
        return
    for together, alone in zip(*map(jax.tree.leaves, found), strict=True):
        together, alone = np.asarray(together), np.asarray(alone)
        largest = np.max(np.abs(together), initial=0.0, where=np.isfinite(together))
        if not np.allclose(together[:1], alone, rtol=0, atol=CLOSE * largest, equal_nan=True):
            shown = f"{together.ravel()[0]:.3g} among {len(together)}, {alone.ravel()[0]:.3g} alone"
            raise CredoError(
                f"The output of a row changes with the rows beside it (the first one's is {shown}): a batch "
                "normalisation without statistics of training, or a mean over the batch. Freeze its statistics first: "
                "a likelihood needs each row's output to be its own."
            )


def _runs_along(equation: jex.JaxprEqn, num_rows: int) -> bool:
    """Whether it may bring rows together: it runs along, cuts or moves a first axis as long as there are rows."""
    shapes = [getattr(atom.aval, "shape", ()) for atom in equation.invars]
    if not any(shape[:1] == (num_rows,) for shape in shapes):
        return False
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        contracted, _ = params["dimension_numbers"]
        return any(0 in axes and shape[:1] == (num_rows,) for axes, shape in zip(contracted, shapes, strict=True))
    if name == "transpose":  # whatever follows
        return params["permutation"][0] != 0
    if name in ("reshape", "slice", "dynamic_slice"):
        return getattr(equation.outvars[0].aval, "shape", ())[:1] != (num_rows,)
    if name in ("gather", "scatter", "scatter-add", "pad"):
        return True
    if name in ("broadcast_in_dim", "squeeze", "expand_dims", "iota"):
        return False
    axes = [params[each] for each in ALONG if each in params]
    return any(0 in (each if isinstance(each, tuple | list) else (each,)) for each in axes)
