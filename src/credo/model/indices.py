"""Indices among the data: where one lies past the rows of a parameter, JAX reads the last row, or the first.

Where one is negative JAX counts from the end, as Python does: right of a constant, and of data nobody's intention.

A traced program is walked through. What no parameter reaches can be computed, so the indices that come of the data. In
the body of a scan that is done for all its steps at once: values there have an axis more in front.
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

from credo.compiling import sound
from credo.equations import bind, equations
from credo.model.data import column_name
from credo.model.program import Path, called, parts_of_scan, run
from credo.model.structure import Structure, somewhere
from credo.status import CredoError

FILLINGS = -1.9, 0.4, 1_000.0  # of any sign and size, also as whole numbers


class _Value(NamedTuple):
    """In a program: which parameters and leaves of the data reach it, and what gives it where no parameter does.

    ``written``: the same, but for the lines that JAX adds to an index, i if i ≥ 0 else i + n; None without such lines.
    ``sign_of``, ``shifted``: the value of which this is "i < 0", or to which this adds a constant. ``depth``: of the
    scans that hold it, the outermost first, how many it differs by step of.
    """

    parameters: frozenset[str] = frozenset()
    columns: frozenset[int] = frozenset()
    value: Callable[[], Any] | None = None
    written: Callable[[], Any] | None = None
    sign_of: Any = None
    shifted: Any = None
    depth: int = 0


class _Read(NamedTuple):
    """An array and the index it is read at, (…, K) along K of its axes, of ``widths`` entries at once."""

    array: _Value
    index: _Value
    path: Path
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    widths: tuple[int, ...]
    reads_an_end: bool


def check_indices(program: jex.ClosedJaxpr, structure: Structure, u: dict, **data) -> None:
    """CredoError where ``program``, traced at ``u`` and one argument after the other of ``data``, indexes past an end.

    ``u``: an array for each parameter.
    """
    if not has_reads(program):
        return
    names = [_named(path, name) for name, tree in data.items() for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    leaves = jax.tree.leaves(list(data.values()))
    arguments = [_Value(parameters=frozenset([name])) for name in sorted(u)]
    arguments += [_Value(columns=frozenset([k]), value=_is(leaf)) for k, leaf in enumerate(leaves)]
    reads: list[_Read] = []
    _walk(program.jaxpr, list(map(_constant, program.consts)), arguments, (), reads)
    for read in reads:
        positions = [*map(_somewhere, jax.tree.leaves(u)), *leaves]
        said = _beyond(read, structure, names) if read.reads_an_end else None
        if said is not None and _matters(read, program, positions):
            raise CredoError(said)
        said = _from_the_end(read, structure, names, leaves)
        if said is not None and _matters(read, program, positions, read.index.written):
            raise CredoError(said)


def has_reads(program: jex.ClosedJaxpr) -> bool:
    """Whether there is anything in ``program`` for ``check_indices`` to look at."""
    return any(equation.primitive.name in ("gather", "dynamic_slice") for equation in equations(program.jaxpr))


def _somewhere(leaf) -> np.ndarray:
    """In the shape of ``leaf``: where weights are zero nothing that they multiply matters."""
    return somewhere(np.size(leaf)).reshape(np.shape(leaf))


def _is(value) -> Callable[[], Any]:
    return lambda: value


def _constant(value) -> _Value:
    return _Value(value=_is(value))


def _named(path, root: str) -> str | None:
    """The name of a column; of what is held in another way there is none."""
    is_column = all(isinstance(key, jax.tree_util.DictKey) for key in path)
    return column_name(path, root) if is_column else None


def _read_by(equation, given: list[_Value], path: Path) -> _Read | None:
    """What ``equation`` reads of an array that parameters reach, at an index that is known; None where it does not."""
    name = equation.primitive.name
    if name not in ("gather", "dynamic_slice") or given[0].value is not None:
        return None
    shape, sizes = equation.invars[0].aval.shape, equation.params["slice_sizes"]
    if name == "gather":
        numbers, mode = equation.params["dimension_numbers"], equation.params["mode"]
        index, axes = given[1], numbers.start_index_map
        # past an end the entry there is read: mode="clip" asks for it; a slice under vmap, with no axis collapsed, not
        is_slice = mode == GatherScatterMode.CLIP and not numbers.collapsed_slice_dims
        reads_an_end = is_slice or mode == GatherScatterMode.PROMISE_IN_BOUNDS
    else:  # of one number, as in theta[x[i]]
        axes = tuple(axis for axis, size in enumerate(sizes) if size < shape[axis])
        index, reads_an_end = _joined([given[1 + axis] for axis in axes]), True
    if index.value is None:
        return None
    return _Read(given[0], index, path, shape, axes, tuple(sizes[axis] for axis in axes), reads_an_end)


def _joined(starts: list[_Value]) -> _Value:
    """Where a slice begins, along one axis after the other, as the index (K,) of one read."""
    makers = [start.value for start in starts if start.value is not None]
    written = [start.written or start.value for start in starts if start.value is not None]
    columns = frozenset().union(*(start.columns for start in starts))
    if len(makers) < len(starts):
        return _Value(columns=columns)
    return _Value(
        columns=columns,
        value=lambda: _numbers(makers),
        written=None if written == makers else lambda: _numbers(written),
        depth=max((start.depth for start in starts), default=0),
    )


def _walk(
    jaxpr,
    constants: list[_Value],
    arguments: list[_Value],
    path: Path,
    reads: list[_Read],
    lengths: tuple[int, ...] = (),
) -> list[_Value]:
    """The outputs; ``reads`` gets what is read at an index that is known, of an array that parameters reach.

    ``lengths``: of the scans that hold ``jaxpr``.
    """
    values: dict[Any, _Value] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *arguments), strict=True))

    def value_of(atom) -> _Value:
        return _constant(atom.val) if isinstance(atom, jex.Literal) else values[atom]

    for i, equation in enumerate(jaxpr.eqns):
        given = [value_of(atom) for atom in equation.invars]
        inner = called(equation)
        read = _read_by(equation, given, (*path, i))
        if read is not None:
            reads.append(read)
        if inner is not None:
            own, given = list(map(_constant, inner.consts)), given[-len(inner.jaxpr.invars) :]
            outputs = _walk(inner.jaxpr, own, given, (*path, i), reads, lengths)
        else:
            outputs = _outputs(equation, given)
            if equation.primitive.name == "scan" and any(each.value is None for each in given):
                _walk_steps(equation, given, (*path, i), reads, lengths)
        values.update(zip(equation.outvars, outputs, strict=True))
    return [value_of(atom) for atom in jaxpr.outvars]


def _walk_steps(scan, given: list[_Value], path: Path, reads: list[_Read], lengths: tuple[int, ...]) -> None:
    """Through the body of a scan, for all steps at once; of what is carried along only what counts them is known."""
    body, length = scan.params["jaxpr"], scan.params["length"]
    consts, carry, rows = parts_of_scan(scan, given)
    unknown = _Value(*_behind(given))
    arguments = list(consts)
    for k, value in enumerate(carry):
        by = _counts_by(body.jaxpr, len(consts) + k, k)
        along = (by or 0) * np.arange(length)[:: -1 if scan.params["reverse"] else 1]
        is_known = by is not None and value.value is not None
        arguments.append(_by_step(value, lengths, functools.partial(_add_last, along)) if is_known else unknown)
    arguments += [value if value.value is None else _by_step(value, lengths, np.asarray) for value in rows]
    _walk(body.jaxpr, list(map(_constant, body.consts)), arguments, path, reads, (*lengths, length))


def _counts_by(body, argument: int, output: int) -> int | None:
    """By how much a number that is carried along grows in each step; None where that differs."""
    before, after = body.invars[argument], body.outvars[output]
    for equation in body.eqns:
        is_sum = equation.primitive.name == "add" and _is_number(equation.invars[1])
        if is_sum and equation.invars[0] is before and equation.outvars[0] is after and not before.aval.shape:
            return equation.invars[1].val
    return None


def _add_last(along: np.ndarray, first: np.ndarray) -> np.ndarray:
    return first[..., None] + along


def _by_step(value: _Value, lengths: tuple[int, ...], steps: Callable) -> _Value:
    """What differs by step of one scan more than ``lengths``: ``steps`` gives it from what differs by all of these."""

    make = value.value
    assert make is not None

    def found():
        made = np.asarray(make())
        missing, own = lengths[value.depth :], made.shape[value.depth :]
        whole = made.reshape((*made.shape[: value.depth], *(1 for _ in missing), *own))
        return steps(np.broadcast_to(whole, (*lengths, *own)))

    return value._replace(value=functools.cache(found), written=None, depth=len(lengths) + 1)


def _numbers(makers) -> np.ndarray:
    """Scalars, that differ by step or do not, side by side."""
    return np.stack(np.broadcast_arrays(*(np.asarray(make(), int) for make in makers)), axis=-1)


def _behind(given: list[_Value]) -> tuple[frozenset[str], frozenset[int]]:
    """The parameters and columns that reach any of ``given``."""
    return frozenset().union(*(each.parameters for each in given)), frozenset().union(*(each.columns for each in given))


def _outputs(equation, given: list[_Value]) -> list[_Value]:
    """What gives them is asked for an index alone, and computes once."""
    parameters, columns = _behind(given)
    makers, depths = [each.value for each in given], [each.depth for each in given]
    if any(make is None for make in makers):
        return [_Value(parameters, columns)] * len(equation.outvars)
    found = _computed(equation, makers, depths)
    known = _Value(parameters, columns, depth=max(depths, default=0))
    values = [known._replace(value=lambda i=i: found()[i]) for i in range(len(equation.outvars))]
    name = equation.primitive.name
    if name == "lt" and _is_number(equation.invars[1], 0):
        return [values[0]._replace(sign_of=given[0])]
    if name == "select_n" and len(given) == 3 and given[0].sign_of is given[1] is given[2].shifted:
        return [values[0]._replace(written=given[1].value)]
    if name == "add" and _is_number(equation.invars[1]):
        return [values[0]._replace(shifted=given[0])]
    if any(each.written is not None for each in given):
        as_written = _computed(equation, [each.written or each.value for each in given], depths)
        return [value._replace(written=lambda i=i: as_written()[i]) for i, value in enumerate(values)]
    return values


def _is_number(atom, number: int | None = None) -> bool:
    return isinstance(atom, jex.Literal) and np.ndim(atom.val) == 0 and number in (None, atom.val)


def _computed(equation, makers, depths: list[int]) -> Callable[[], list]:
    """The outputs, once they are asked for; at all steps of the scans by which an operand differs."""

    @functools.cache
    def found() -> list:
        operands, name, depth = [make() for make in makers], equation.primitive.name, max(depths, default=0)
        if name in ON_HOST and (depth == 0 or name in BY_ELEMENT):
            arrays = list(map(np.asarray, operands))
            if depth:
                rank = depth + len(equation.outvars[0].aval.shape)
                arrays = [_in_line(each, own, rank) for each, own in zip(arrays, depths, strict=True)]
            return [ON_HOST[name](*arrays, **equation.params)]
        compute = functools.partial(_bound, equation)
        for level in range(depth, 0, -1):
            compute = jax.vmap(compute, in_axes=tuple(0 if own >= level else None for own in depths))
        return compute(*operands)

    return found


def _bound(equation, *operands) -> list:
    return bind(equation, list(operands))


def _in_line(x: np.ndarray, own: int, rank: int) -> np.ndarray:
    """With ``rank`` axes: of steps ``own`` in front, and the others last."""
    return x.reshape((*x.shape[:own], *(1,) * (rank - x.ndim), *x.shape[own:]))


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
    "stack": lambda *x, axis: np.stack(x, axis=axis),
}
BY_ELEMENT = {"lt", "add", "sub", "select_n", "convert_element_type"}


def _matters(read: _Read, program: jex.ClosedJaxpr, arguments: list, index: Callable | None = None) -> bool:
    """Whether the outputs change with what stands in the place of what is not there; else it is masked, as by where.

    ``index``: gives another index than that of the program, by which it is not there.
    """
    others = None if index is None else jnp.asarray(index())

    def outputs(filling, *arguments):
        def filled(equation, operands, *steps):
            other = None if others is None else others[steps[: read.index.depth]]
            if equation.primitive.name == "dynamic_slice":
                return [_slice_or(filling, *operands, sizes=equation.params["slice_sizes"], read=read, index=other)]
            how = {name: equation.params[name] for name in ("dimension_numbers", "slice_sizes")}
            operands = operands if other is None else [operands[0], other]
            there = jax.lax.gather(*operands, **how, mode=GatherScatterMode.FILL_OR_DROP, fill_value=0)
            ones = jnp.ones_like(operands[0])
            is_there = jax.lax.gather(ones, operands[1], **how, mode=GatherScatterMode.FILL_OR_DROP, fill_value=0)
            return [jnp.where(is_there != 0, there, filling.astype(there.dtype))]

        return run(program, list(arguments), {read.path: filled})

    one, *rest = (sound(outputs)(np.asarray(filling), *arguments) for filling in FILLINGS)
    return any(not np.array_equal(a, b, equal_nan=True) for each in rest for a, b in zip(one, each, strict=True))


def _slice_or(filling, array, *starts, sizes: tuple[int, ...], read: _Read, index: jax.Array | None):
    """The slice, or ``filling`` where it does not begin within the array; ``index``: where else it begins."""
    if index is not None:
        moved = dict(zip(read.axes, index, strict=True))
        starts = tuple(moved.get(axis, start) for axis, start in enumerate(starts))
    pairs = zip(starts, sizes, array.shape, strict=True)
    is_there = jnp.all(jnp.array([(start >= 0) & (start <= length - size) for start, size, length in pairs]))
    return jnp.where(is_there, jax.lax.dynamic_slice(array, starts, sizes), filling.astype(array.dtype))


def _beyond(read: _Read, structure: Structure, names: list[str | None]) -> str | None:
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
        end = "first" if value < 0 else "last"
        value = value - size if value < 0 else value  # from the end, as Python counts
        where = f" (in row {place[0]})" if place else ""
        is_from_one = along.min() == 1 and along.max() == size
        remedy = (
            "subtract 1, since they count from 0"
            if is_from_one
            else f"give 0 to {size - 1}, make the prior longer, or name a column of levels in groups="
        )
        return (
            f"{_who(read, size, structure, names)} at {value}{where}, and there are {size} entries, 0 to {size - 1}, "
            f"of which JAX would read the {end} in silence: {remedy}."
        )
    return None


def _from_the_end(read: _Read, structure: Structure, names: list[str | None], leaves: list) -> str | None:
    """What is to be said of negative numbers in the data that index; None where there are none.

    An index that the likelihood itself made negative, as by x − 6 of positive data, counts from the end on purpose.
    """
    held = [np.asarray(leaves[k]) for k in read.index.columns]
    if read.index.written is None or not any(leaf.dtype.kind in "if" and np.any(leaf < 0) for leaf in held):
        return None
    index = np.asarray(read.index.written())
    for k, axis in enumerate(read.axes):
        size, along = read.shape[axis], index[..., k]
        if not (along < 0).any():
            continue
        place = np.unravel_index(np.argmax(along < 0), along.shape)
        where = f" (in row {place[0]})" if place else ""
        return (
            f"{_who(read, size, structure, names)} at {along[place]}{where}, which JAX would count from the end in "
            f"silence: give 0 to {size - 1}, and where a negative number stands for what is not there let jnp.where "
            "put something else in its place."
        )
    return None


def _who(read: _Read, size: int, structure: Structure, names: list[str | None]) -> str:
    parameters = [leaf.name for leaf in structure.leaves if leaf.name in read.array.parameters]
    fitting = [leaf.name for leaf in structure.leaves if leaf.name in parameters and size in leaf.shape]
    columns = sorted({name for k in read.index.columns if (name := names[k]) is not None})
    who = f"{' and '.join(columns)} {'index' if len(columns) > 1 else 'indexes'}" if columns else "The data index"
    if fitting:
        return f"{who} {' and '.join(map(repr, fitting))}"
    made_of = [leaf.name for leaf in structure.leaves if leaf.name in parameters and leaf.shape] or parameters
    return f"{who} a table of {size} entries made of {' and '.join(map(repr, made_of))}"
