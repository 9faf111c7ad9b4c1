"""Columns that belong together row by row, as users hand them in."""

import numpy as np

from credo.arguments import unmasked
from credo.model.data import check_order


def paired(**columns) -> tuple[np.ndarray, ...]:
    """The columns as arrays, NaN where a NumPy mask lies: what stands under it is no data.

    Raises CredoError where columns of pandas have one index in two orders.
    """
    check_order(**columns)
    return tuple(np.asarray(unmasked(column)) for column in columns.values())
