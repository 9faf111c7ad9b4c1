"""Whether the outputs of a row lean on the rows beside it: a batch normalisation in training mode, a mean over x.

A likelihood needs each row's output to be its own. The program is read for equations that may bring rows together; only
where there are some is the network run, since that has to be compiled. The last of a few rows shows what is carried
from one to the next, the first what comes of all.
"""

import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex

from credo.compiling import sound
from credo.equations import equations, runs_along
from credo.status import CredoError

NUM_ROWS, CLOSE = 8, 1e-3  # of the largest output
ENDS = slice(1), slice(-1, None)


def check_alone(apply: Callable, params: Any, x: Any, program: jex.ClosedJaxpr, num_rows: int) -> None:
    """``program``: that of ``apply(params, x)``, of so many rows."""
    if num_rows < 2 or not any(runs_along(equation, num_rows) for equation in equations(program.jaxpr)):
        return

    def together_and_alone(params, x):
        ends = [jax.tree.map(operator.itemgetter(end), x) for end in ENDS]
        return apply(params, x), *(apply(params, end) for end in ends)

    few = jax.tree.map(lambda leaf: np.asarray(leaf[:NUM_ROWS]), x)
    try:
        found = sound(together_and_alone)(params, few)
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
