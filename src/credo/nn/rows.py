"""Whether the outputs of a row lean on the rows beside it: a batch normalisation in training mode, a mean over x.

A likelihood needs each row's output to be its own. The program is read for equations along the axis of rows, that merge
it with another one, count rows or draw numbers; only where there are some is the network run, since that has to be
compiled. The last of a few rows shows what is carried from one to the next, the first what comes of all.
"""

import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex

from credo.equations import equations
from credo.status import CredoError

NUM_ROWS, CLOSE = 8, 1e-3  # of the largest output
ENDS = slice(1), slice(-1, None)
DRAWS = "random_bits", "threefry2x32", "rng_bit_generator"
ALONG = ("axes", "axis", "dimension", "dimensions")  # what equations call the axes that they run along


def check_alone(apply: Callable, params: Any, x: Any, program: jex.ClosedJaxpr, num_rows: int) -> None:
    """``program``: that of ``apply(params, x)``, of so many rows."""
    if num_rows < 2 or not any(_runs_along(equation, num_rows) for equation in equations(program.jaxpr)):
        return

    def together_and_alone(params, x):
        ends = [jax.tree.map(operator.itemgetter(end), x) for end in ENDS]
        return apply(params, x), *(apply(params, end) for end in ends)

    few = jax.tree.map(lambda leaf: np.asarray(leaf[:NUM_ROWS]), x)
    try:
        found = jax.jit(together_and_alone)(params, few)
    except (TypeError, ValueError):  # a network of all rows at once, such as a graph's: methods for rows refuse it
        return
    for together, *each in zip(*map(jax.tree.leaves, found), strict=True):
        together = np.asarray(together)
        largest = np.max(np.abs(together), initial=0.0, where=np.isfinite(together))
        for end, alone in zip(ENDS, map(np.asarray, each), strict=True):
            if np.allclose(together[end], alone, rtol=0, atol=CLOSE * largest, equal_nan=True):
                continue
            which = "first" if end is ENDS[0] else "last"
            shown = f"{together[end].ravel()[0]:.3g} among {len(together)}, {alone.ravel()[0]:.3g} alone"
            raise CredoError(
                f"The output of a row changes with the rows beside it (the {which} one's is {shown}): a batch "
                "normalisation without statistics of training, dropout left on, a mean over the batch or a recurrence "
                "along it. Freeze its statistics, leave dropout out, put rows first: a likelihood needs each row's "
                "output to be its own."
            )


def _runs_along(equation: jex.JaxprEqn, num_rows: int) -> bool:
    """Whether it may bring rows together: it runs along, cuts or moves a first axis as long as there are rows.

    So does what numbers them, and what draws a number for each.
    """
    shapes = [getattr(atom.aval, "shape", ()) for atom in equation.invars]
    name = equation.primitive.name
    if name in DRAWS or (name == "iota" and equation.params["shape"][equation.params["dimension"]] == num_rows):
        return True
    if not any(shape[:1] == (num_rows,) for shape in shapes):
        return False
    params = equation.params
    if name == "dot_general":
        contracted, _ = params["dimension_numbers"]
        return any(0 in axes and shape[:1] == (num_rows,) for axes, shape in zip(contracted, shapes, strict=True))
    if name == "transpose":  # whatever follows
        return params["permutation"][0] != 0
    if name in ("reshape", "slice", "dynamic_slice"):
        return getattr(equation.outvars[0].aval, "shape", ())[:1] != (num_rows,)
    if name in ("gather", "scatter", "scatter-add", "pad", "scan"):
        return True
    if name == "broadcast_in_dim":  # else the rows stand behind another axis, as those of x[None]
        return params["broadcast_dimensions"][:1] != (0,)
    if name in ("squeeze", "expand_dims"):
        return False
    axes = [params[each] for each in ALONG if each in params]
    return any(0 in (each if isinstance(each, tuple | list) else (each,)) for each in axes)
