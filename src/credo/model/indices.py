"""Indices among the data: where one lies past the rows of a parameter, JAX reads the last row and says nothing.

A traced program is walked through. What no parameter reaches can be computed, so the indices that come of the data.
Of ``a[i]`` JAX is promised that it lies within, or brings it there under vmap; ``jnp.take`` gives NaN, which is heard.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex
from jax.lax import GatherScatterMode

from credo.equations import equations
from credo.model.data import column_name
from credo.model.program import Path, bind, called, run
from credo.model.structure import Structure, somewhere
from credo.status import CredoError

FILLINGS = -1.9, 0.4, 1_000.0  # of any sign and size, also as whole numbers


class _Value(NamedTuple):
    """In a program: which parameters and columns reach it, and what gives it where no parameter does."""

    parameters: frozenset[str] = frozenset()
    columns: frozenset[str] = frozenset()
    value: Callable[[], Any] | None = None


class _Read(NamedTuple):
    """An array and the index it is read at, (…, K) along K of its axes, of ``widths`` entries at once."""

    array: _Value
    index: _Value
    path: Path
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    widths: tuple[int, ...]


def check_indices(program: jex.ClosedJaxpr, structure: Structure, u: dict, **data) -> None:
    """CredoError where ``program``, traced at ``u`` and one argument after the other of ``data``, indexes past an end.

    ``u``: an array for each parameter.
    """
    if not has_reads(program):
        return
    columns = [
        _named(path, name) for name, tree in data.items() for path, _ in jax.tree_util.tree_leaves_with_path(tree)
    ]
    leaves = jax.tree.leaves(list(data.values()))
    arguments = [_Value(parameters=frozenset([name])) for name in sorted(u)]
    arguments += [_Value(columns=names, value=_is(leaf)) for names, leaf in zip(columns, leaves, strict=True)]
    reads: list[_Read] = []
    _walk(program.jaxpr, list(map(_constant, program.consts)), arguments, (), reads)
    for read in reads:
        said = _beyond(read, structure)
        if said is not None and _matters(read, program, [*map(_somewhere, jax.tree.leaves(u)), *leaves]):
            raise CredoError(said)


def has_reads(program: jex.ClosedJaxpr) -> bool:
    """Whether there is anything in ``program`` for ``check_indices`` to look at."""
    return any(_reads_the_last(equation) for equation in equations(program.jaxpr))


def _somewhere(leaf) -> np.ndarray:
    """In the shape of ``leaf``: where weights are zero nothing that they multiply matters."""
    return somewhere(np.size(leaf)).reshape(np.shape(leaf))


def _is(value) -> Callable[[], Any]:
    return lambda: value


def _constant(value) -> _Value:
    return _Value(value=_is(value))


def _named(path, root: str) -> frozenset[str]:
    """The name of a column; of what is held in another way there is none."""
    is_column = all(isinstance(key, jax.tree_util.DictKey) for key in path)
    return frozenset([column_name(path, root)] if is_column else [])


def _reads_the_last(equation) -> bool:
    """Whether an array is read, and past its end the last entry in place of what is not there."""
    is_read = equation.primitive.name == "gather"
    return is_read and equation.params["mode"] in (GatherScatterMode.PROMISE_IN_BOUNDS, GatherScatterMode.CLIP)


def _walk(jaxpr, constants: list[_Value], arguments: list[_Value], path: Path, reads: list[_Read]) -> list[_Value]:
    """The outputs; ``reads`` gets what is read at an index that is known, of an array that parameters reach."""
    values: dict[Any, _Value] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *arguments), strict=True))

    def value_of(atom) -> _Value:
        return _constant(atom.val) if isinstance(atom, jex.Literal) else values[atom]

    for i, equation in enumerate(jaxpr.eqns):
        given = [value_of(atom) for atom in equation.invars]
        inner = called(equation)
        if _reads_the_last(equation) and given[0].value is None and given[1].value is not None:
            axes = equation.params["dimension_numbers"].start_index_map
            widths = tuple(equation.params["slice_sizes"][axis] for axis in axes)
            reads.append(_Read(given[0], given[1], (*path, i), equation.invars[0].aval.shape, axes, widths))
        if inner is not None:
            own, given = list(map(_constant, inner.consts)), given[-len(inner.jaxpr.invars) :]
            outputs = _walk(inner.jaxpr, own, given, (*path, i), reads)
        else:
            outputs = _outputs(equation, given)
        values.update(zip(equation.outvars, outputs, strict=True))
    return [value_of(atom) for atom in jaxpr.outvars]


def _outputs(equation, given: list[_Value]) -> list[_Value]:
    """What gives them is asked for an index alone, and computes once."""
    parameters = frozenset().union(*(each.parameters for each in given))
    columns = frozenset().union(*(each.columns for each in given))
    makers = [each.value for each in given]
    if any(make is None for make in makers):
        return [_Value(parameters, columns)] * len(equation.outvars)

    @functools.cache
    def found() -> list:
        operands = [make() for make in makers if make is not None]
        on_host = ON_HOST.get(equation.primitive.name)
        return bind(equation, operands) if on_host is None else [on_host(*map(np.asarray, operands), **equation.params)]

    return [_Value(parameters, columns, lambda i=i: found()[i]) for i in range(len(equation.outvars))]


def _spread(x: np.ndarray, *, shape, broadcast_dimensions, **_):
    kept = np.ones(len(shape), int)
    kept[list(broadcast_dimensions)] = x.shape
    return np.broadcast_to(x.reshape(kept), shape)


ON_HOST = {  # what an index mostly passes through: to compile each for JAX would take a hundred times as long
    "lt": lambda a, b: np.less(a, b),
    "add": lambda a, b: np.add(a, b),
    "sub": lambda a, b: np.subtract(a, b),
    "select_n": lambda which, *cases: np.choose(which.astype(int), cases),
    "convert_element_type": lambda x, *, new_dtype, **_: x.astype(new_dtype),
    "broadcast_in_dim": _spread,
    "concatenate": lambda *x, dimension: np.concatenate(x, axis=dimension),
}


def _matters(read: _Read, program: jex.ClosedJaxpr, arguments: list) -> bool:
    """Whether the outputs change with what stands in the place of what is not there; else it is masked, as by where."""

    def outputs(filling, *arguments):
        def filled(equation, operands):
            how = {name: equation.params[name] for name in ("dimension_numbers", "slice_sizes")}
            there = jax.lax.gather(*operands, **how, mode=GatherScatterMode.FILL_OR_DROP, fill_value=0)
            ones = jnp.ones_like(operands[0])
            is_there = jax.lax.gather(ones, operands[1], **how, mode=GatherScatterMode.FILL_OR_DROP, fill_value=0)
            return [jnp.where(is_there != 0, there, filling.astype(there.dtype))]

        return run(program, list(arguments), {read.path: filled})

    one, *others = (jax.jit(outputs)(np.asarray(filling), *arguments) for filling in FILLINGS)
    return any(not np.array_equal(a, b, equal_nan=True) for other in others for a, b in zip(one, other, strict=True))


def _beyond(read: _Read, structure: Structure) -> str | None:
    """What is to be said of an index past the end; None where there is none."""
    assert read.index.value is not None
    index = np.asarray(read.index.value())
    for k, (axis, width) in enumerate(zip(read.axes, read.widths, strict=True)):
        size, along = read.shape[axis], index[..., k]
        is_outside = (along < 0) | (along > size - width)
        if not is_outside.any():
            continue
        place = np.unravel_index(np.argmax(is_outside), along.shape)
        value = int(along[place])
        value = value - size if value < 0 else value  # from the end, as Python counts
        names = [leaf.name for leaf in structure.leaves if leaf.name in read.array.parameters]
        fitting = [leaf.name for leaf in structure.leaves if leaf.name in names and size in leaf.shape]
        what = " and ".join(map(repr, fitting or names))
        columns = sorted(read.index.columns)
        who = f"{' and '.join(columns)} {'index' if len(columns) > 1 else 'indexes'}" if columns else "The data index"
        where = f" (in row {place[0]})" if place else ""
        is_from_one = along.min() == 1 and along.max() == size
        remedy = (
            "subtract 1, since they count from 0"
            if is_from_one
            else f"give 0 to {size - 1}, make the prior longer, or name a column of levels in groups="
        )
        return (
            f"{who} {what} at {value}{where}, and there are {size} entries, 0 to {size - 1}, of which JAX would read "
            f"the last in silence: {remedy}."
        )
    return None
