"""Columns that belong together row by row, as users hand them in."""

import numpy as np

from credo.arguments import unmasked
from credo.model.data import check_order
from credo.status import CredoError


def paired(**columns) -> tuple[np.ndarray, ...]:
    """The columns as arrays, NaN where a NumPy mask lies: what stands under it is no data.

    Raises CredoError where columns of pandas have one index in two orders, and for predictives, which are no columns.
    """
    for name, column in columns.items():
        if hasattr(type(column), "mutual_information"):
            raise CredoError(f"{name} is a predictive: give an array, such as its mean or, of classes, its probs.")
    check_order(**columns)
    return tuple(np.asarray(unmasked(column)) for column in columns.values())
