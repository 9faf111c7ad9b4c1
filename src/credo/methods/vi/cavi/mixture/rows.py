"""Rows of numbers as float64, or a sentence that says what is wrong with them."""

import numpy as np
from jaxtyping import Float

from credo.arguments import unmasked
from credo.status import CredoError


def as_rows(x, dim: int | None = None) -> Float[np.ndarray, "row dim"]:
    """``x`` (rows, D), or (rows,) for D = 1; ``dim``: the D expected. CredoError with the row and the remedy."""
    try:
        array = np.asarray(unmasked(x))
        if np.iscomplexobj(array):
            raise TypeError
        array = array.astype(np.float64, copy=False)
    except (TypeError, ValueError):
        raise CredoError("x holds values that are no numbers: give a mixture numeric columns only.") from None
    if array.ndim == 1 and dim in (None, 1):
        array = array[:, None]
    if array.ndim != 2 or 0 in array.shape:
        raise CredoError(f"x has shape {array.shape}, and must be (rows, columns) with at least one of each.")
    if dim is not None and array.shape[1] != dim:
        raise CredoError(f"x has {array.shape[1]} columns, and the mixture was fitted to {dim}: give the same columns.")
    is_bad = ~np.isfinite(array)
    if np.any(is_bad):
        row, column = (int(i) for i in np.argwhere(is_bad)[0])
        raise CredoError(
            f"x holds {int(is_bad.sum())} values that are missing or not finite (the first, {array[row, column]}, in "
            f"row {row}, column {column}): drop or impute those rows; a mixture does not impute them."
        )
    return array
