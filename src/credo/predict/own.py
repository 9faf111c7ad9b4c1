"""Whether what is predicted of a new row is its own, and a warning where it is not: no number would show it.

A parameter with one entry a row, which no column of x indexes, is that of the rows of the fit: as many new rows take
their entries, one after the other. A mean over x inside the likelihood is one over the new rows: a single one is its
own mean. What is carried from a row to later ones, as in a series, is meant. A joint likelihood may know more of a new
row by the outcomes seen than by the parameters.
"""

import dataclasses
import functools
import warnings

import jax
import numpy as np

from credo.compiling import TINY, brief, sound
from credo.equations import equations, runs_along
from credo.model.distributions import is_distribution, unwrapped
from credo.model.same_data import inputs_differ
from credo.model.structure import somewhere
from credo.model.target import Target
from credo.predict.inputs import Table
from credo.status import CredoError
from credo.traced import by_shapes

FEW = 8  # rows that are looked at together
REFUSED = CredoError, TypeError, ValueError, IndexError  # by a likelihood, of which predictions have the sentence


def warn_of_shared_rows(target: Target, table: Table) -> None:
    """Of rows in ``table`` that are not those of the fit."""
    if table.size is None or target.model.weights_name is not None:
        return  # networks were looked at when they met their data
    if target.num_terms == 1 < target.size and _covary(target):
        warnings.warn(
            "The likelihood is joint, one factor for all rows: these rows are predicted as a data set of their own, by "
            f"the parameters alone, and what the {target.size} outcomes seen say of rows beside them, as in a Gaussian "
            "process, is left out. To condition on them make the function's values parameters of the model.",
            stacklevel=4,
        )
        return
    if table.size < 2:
        return
    if table.size == target.size and _needs_all(target, table.x, size=table.size):
        if inputs_differ(target, dataclasses.replace(target, x=table.x)):
            warnings.warn(
                f"The model has a parameter with one entry for each of the {target.size} rows of the fit, which no "
                f"column of x indexes: these {table.size} rows are taken for the same ones, in the same order. Where "
                "they are others, give the rows a column of x that indexes the parameter.",
                stacklevel=4,
            )
    elif _may_lean(target, table.x, size=table.size) and _changes(target, table.x, is_last=False):
        warnings.warn(
            "The likelihood of a row changes with the rows beside it (a mean over x inside the model?), so that these "
            "predictions hang on which rows are asked for together: compute that of the data of the fit, and give it "
            "as a column of x or a constant.",
            stacklevel=4,
        )


def stands_alone(target: Target, x, size: int) -> bool:
    """Whether a row's outcome is the same without the rows beside it: not after a mean over them, a scan or a lag."""
    if target.model.weights_name is not None or size < 2 or not _may_lean(target, x, size=size):
        return True
    return not any(_changes(target, x, is_last=is_last) for is_last in (False, True))


def _outcomes(target: Target, u, x) -> list:
    found = target.likelihood_distribution(target.constrain(u), x)
    return jax.tree.leaves(found, is_leaf=is_distribution)


def _covary(target: Target) -> bool:
    """Whether rows of a joint outcome depend on each other given the parameters: unless its covariance says no."""

    def look(target, u):
        joint = [d for d in map(unwrapped, _outcomes(target.flat(), u, target.x)) if d.event_dim]
        return [getattr(d, "covariance_matrix", None) for d in joint]

    try:
        found = sound(look)(target, somewhere(target.dim))
    except REFUSED:
        return False
    return any(each is None or np.any(each != each * np.eye(each.shape[-1])) for each in found)


@by_shapes
def _needs_all(target: Target, x, *, size: int) -> bool:
    """Whether the likelihood cannot take one row less."""
    lengths: list[tuple[int, ...]] = []

    def look(target, u, x):
        lengths.extend((*d.batch_shape, *d.event_shape)[:1] for d in _outcomes(target, u, x))

    try:
        jax.eval_shape(look, target.flat(), np.zeros(target.dim), jax.tree.map(lambda leaf: leaf[1:], x))
    except REFUSED:
        return True
    return any(length != (size - 1,) for length in lengths)


@by_shapes
def _may_lean(target: Target, x, *, size: int) -> bool:
    """Whether its program holds an equation that may bring rows together, and its outcomes are one a row."""
    shapes: list[tuple[int, ...]] = []

    def look(target, u, x):
        found = _outcomes(target, u, x)
        shapes.extend(d.batch_shape for d in found)
        return jax.tree.leaves(found)

    try:
        program = jax.make_jaxpr(look)(target.flat(), np.zeros(target.dim), x)
    except REFUSED:
        return False
    is_by_row = all(shape[:1] == (size,) for shape in shapes)
    return is_by_row and any(runs_along(equation, size) for equation in equations(program.jaxpr))


def _changes(target: Target, x, *, is_last: bool) -> bool:
    """Whether what the likelihood says of the first of a few rows, or the last, hangs on the others, by its values."""
    few = jax.tree.map(lambda leaf: leaf[:FEW], x)
    try:
        together, alone = _end(target.flat(), somewhere(target.dim), few, is_last)
    except REFUSED:
        return False
    return not all(
        np.allclose(among, one, rtol=1e-3, atol=1e-6, equal_nan=True)
        for among, one in zip(together, alone, strict=True)
    )


@functools.partial(brief, static_argnames="is_last", options=TINY)
def _end(target: Target, u, x, is_last: bool):
    """What the likelihood says of the first row, or the last, among others, and alone."""
    end = slice(-1, None) if is_last else slice(1)
    each = [
        [leaf for d in _outcomes(target, u, rows) for leaf in jax.tree.leaves(d)]
        for rows in (x, jax.tree.map(lambda leaf: leaf[end], x))
    ]
    return tuple([leaf[end] if np.ndim(leaf) else leaf for leaf in leaves] for leaves in each)
