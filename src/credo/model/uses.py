"""Reading a traced program for the places where entries of the position are applied as the weights of a layer.

A *view* is an array of entries of the position, given by the coordinate of each; ``CONSTANT`` marks entries that are
something else, such as the row of an embedding that stands for padding. Reshaping, slicing, transposing and joining
views make views. A matrix product, a convolution, a sum or a lookup of rows with a view is a *use* of a layer; in a
scan at all steps, or at one of them where each step has weights of its own, as in a stack of layers.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex
from jax.lax import GatherScatterMode

from credo.model.program import Path, called, parts_of_scan
from credo.places import cut, fitting, padded, scaled

CONSTANT = -1  # in a view
MOST_OF_STACK = 64  # layers of a stack that is scanned


class Use(NamedTuple):
    """A place in the program where a weight matrix is applied: ``take(other) -> (places, in)`` the inputs there.

    ``give(g) -> (places, out)``: an array of the equation's output as rows of the layer's outputs. In scans both are of
    arrays with an axis in front for each scan.
    """

    path: Path
    side: int  # which operand is the weight
    take: Callable
    give: Callable
    places: int = 1
    is_bias: bool = False  # added to something, not multiplied by it
    is_lookup: bool = False  # rows are chosen: each place has one input that is 1, or none, and others that are 0
    is_in_scan: bool = False
    beside: Path | None = None  # of a bias: the product that it is added to, where the derivatives of both are the same

    def at_all_steps(self, length: int) -> "Use":
        """That of the body of a scan, of so many steps. A bias is one at all of them: its derivative is their sum."""

        def take(other):
            return self.take(other[0]) if self.is_bias else _rows_of(jax.vmap(self.take)(other))

        def give(g):
            each = jax.vmap(self.give)(g)
            return jnp.sum(each, axis=0) if self.is_bias else _rows_of(each)

        places = self.places if self.is_bias else length * self.places
        return self._replace(take=take, give=give, places=places, is_in_scan=True, beside=None)

    def at_step(self, step: int) -> "Use":
        """That of one step of a scan."""
        take, give = (lambda array, of=of: of(array[step]) for of in (self.take, self.give))
        return self._replace(take=take, give=give, is_in_scan=True, beside=None)


def _rows_of(array):
    """(step, place, n) -> (step · place, n)."""
    return array.reshape(-1, array.shape[-1])


def search(jaxpr, inputs: list, path: Path, uses: list, tainted: np.ndarray, fixed: tuple = ()) -> list:
    """Views among the outputs of ``jaxpr``, given those among its inputs; what it meets goes to ``uses``.

    ``fixed``: the inputs that are constants of the whole program.
    """
    views: dict[Any, np.ndarray] = {v: i for v, i in zip(jaxpr.invars, inputs, strict=True) if i is not None}
    constants = {*jaxpr.constvars, *fixed}

    def of(atom):
        return None if isinstance(atom, jex.Literal) else views.get(atom)

    def is_fixed(atom) -> bool:
        return isinstance(atom, jex.Literal) or atom in constants

    readers = Counter(id(atom) for atoms in (*(eqn.invars for eqn in jaxpr.eqns), jaxpr.outvars) for atom in atoms)
    products: dict[int, Path] = {}  # by what they give, where one equation reads it
    alive = _alive(jaxpr)
    for i, eqn in enumerate(jaxpr.eqns):
        given = [of(atom) for atom in eqn.invars]
        if all(map(is_fixed, eqn.invars)):
            constants.update(eqn.outvars)
        if i not in alive or all(index is None for index in given):
            continue
        inner = called(eqn)
        if inner is not None:
            number = len(inner.jaxpr.invars)
            known = zip(inner.jaxpr.invars, eqn.invars[-number:], strict=True)
            own = tuple(variable for variable, atom in known if is_fixed(atom))
            found = search(inner.jaxpr, given[-number:], (*path, i), uses, tainted, own)
            views.update({v: f for v, f in zip(eqn.outvars, found, strict=True) if f is not None})
            continue
        if eqn.primitive.name == "scan":
            _search_scan(eqn, given, (*path, i), uses, tainted, is_fixed)
            continue
        moved = _joined(eqn, given, is_fixed) or moved_entries(eqn, given)
        if moved is not None:
            views.update(zip(eqn.outvars, moved, strict=True))
            continue
        use = _use(eqn, given, (*path, i))
        if use is not None:
            if use[1].is_bias:
                use = _with_product(eqn, given, use, products)
            elif readers[id(eqn.outvars[0])] == 1:
                products[id(eqn.outvars[0])] = (*path, i)
            uses.append(use)
            continue
        _taint(tainted, given)
    return [of(atom) for atom in jaxpr.outvars]


def _taint(tainted: np.ndarray, views: list) -> None:
    """Their entries are weights of no layer."""
    for index in views:
        if index is not None:
            tainted[index[index != CONSTANT]] = True


def _search_scan(eqn, given: list, path: Path, uses: list, tainted: np.ndarray, is_fixed: Callable) -> None:
    """In the body of a scan: weights that stay are used at all steps, and those of which each step has its own at one.

    What is carried along, or leaves the body as it came, is followed no further, nor are stacks of many layers: each is
    a part of the programs that go by layers, which a scan is written to avoid.
    """
    jaxpr, length = eqn.params["jaxpr"].jaxpr, eqn.params["length"]
    consts, carry, rows = parts_of_scan(eqn, given)
    _taint(tainted, carry)
    fixed = tuple(v for v, atom in zip(jaxpr.invars, eqn.invars[: len(consts)], strict=False) if is_fixed(atom))

    def search_step(own: list) -> list[tuple[np.ndarray, Use]]:
        found: list[tuple[np.ndarray, Use]] = []
        out = search(jaxpr, [*consts, *[None] * len(carry), *own], path, found, tainted, fixed)
        _taint(tainted, out)
        return found

    def own(step: int) -> list:
        return [None if index is None else index[step] for index in rows]

    if not length:
        _taint(tainted, given)
        return
    steps, is_stack = [search_step(own(0))], any(index is not None for index in rows)
    if is_stack and length * len(steps[0]) <= MOST_OF_STACK:
        steps += [search_step(own(i)) for i in range(1, length)]
    elif is_stack:
        _taint(tainted, rows)
        steps = [search_step([None] * len(rows))]
    for same in zip(*steps, strict=True):  # at each step the same use
        index, use = same[0]
        if all(np.array_equal(index, other) for other, _ in same):
            uses.append((index, use.at_all_steps(length)))
        else:
            uses += [(index, use.at_step(i)) for i, (index, use) in enumerate(same)]


def _alive(jaxpr) -> set[int]:
    """The equations that an output rests on: a model's program also computes its prior."""
    needed = {id(atom) for atom in jaxpr.outvars}
    alive = set()
    for i in reversed(range(len(jaxpr.eqns))):
        eqn = jaxpr.eqns[i]
        if any(id(v) in needed for v in eqn.outvars):
            alive.add(i)
            needed.update(id(atom) for atom in eqn.invars)
    return alive


def moved_entries(eqn, given: list) -> list[np.ndarray] | None:
    """The views that an equation makes of a view, or of any array, where it only moves entries."""
    name, index, params = eqn.primitive.name, given[0], eqn.params
    if index is None:
        return None
    if name == "split":
        return np.split(index, np.cumsum(params["sizes"])[:-1], axis=params["axis"])
    if name == "unstack":
        return list(np.moveaxis(index, params["axis"], 0))
    moved = _moved_whole(name, index, params, eqn.outvars[0].aval.shape)
    return None if moved is None else [moved]


def _joined(eqn, given: list, is_fixed: Callable) -> list[np.ndarray] | None:
    """The view that an equation makes of views and constants, where it puts them side by side."""
    name, parts = eqn.primitive.name, []
    if name not in ("concatenate", "stack"):
        return None
    for index, atom in zip(given, eqn.invars, strict=True):
        if index is None and not is_fixed(atom):
            return None
        aval: Any = atom.aval
        parts.append(np.full(aval.shape, CONSTANT) if index is None else index)
    return [side_by_side(eqn, parts)]


def side_by_side(eqn, parts: list[np.ndarray]) -> np.ndarray:
    """What an equation that joins arrays makes of them."""
    if eqn.primitive.name == "stack":
        return np.stack(parts, axis=eqn.params["axis"])
    return np.concatenate(parts, axis=eqn.params["dimension"])


def _moved_whole(name: str, index: np.ndarray, params, shape) -> np.ndarray | None:
    if name == "convert_element_type":  # rounded to whole numbers a weight has no derivative
        return index if jnp.issubdtype(params["new_dtype"], jnp.floating) else None
    if name in ("copy", "copy_p"):
        return index
    if name == "squeeze" or (name == "reshape" and params["dimensions"] is None):
        return index.reshape(shape)
    if name == "transpose":
        return np.transpose(index, params["permutation"])
    if name == "rev":
        return np.flip(index, params["dimensions"])
    if name == "tile":
        return np.tile(index, params["reps"])
    if name == "slice":
        steps = params["strides"] or (1,) * index.ndim
        cuts = zip(params["start_indices"], params["limit_indices"], steps, strict=True)
        return index[tuple(slice(a, b, s) for a, b, s in cuts)]
    if name == "broadcast_in_dim":
        shape = [1] * len(params["shape"])
        for axis, size in zip(params["broadcast_dimensions"], index.shape, strict=True):
            shape[axis] = size
        return np.broadcast_to(index.reshape(shape), params["shape"])
    return None


def _use(eqn, given: list, path: Path) -> tuple[np.ndarray, Use] | None:
    """A layer that an equation is, or None."""
    name = eqn.primitive.name
    if name == "dynamic_slice" and given[0] is not None:
        return _of_one_row(eqn, given[0], path)
    if len(given) != 2 or all(index is not None for index in given):
        return None
    side = 0 if given[0] is not None else 1
    index = given[side]
    if name == "gather" and side == 0:
        return _of_lookup(eqn, index, path)
    if np.any(index == CONSTANT):
        return None
    if name == "dot_general":
        return _of_dot(eqn, index, side, path)
    if name == "conv_general_dilated" and side == 1:
        return _of_convolution(eqn, index, path)
    if name in ("add", "add_any") or (name == "sub" and side == 0):
        return _of_bias(np.broadcast_to(index, eqn.outvars[0].aval.shape), side, path)
    return None


def _of_dot(eqn, index: np.ndarray, side: int, path: Path):
    (contracted, batched) = eqn.params["dimension_numbers"]
    if batched[0] or batched[1]:
        return None
    own, others = contracted[side], contracted[1 - side]
    free = [axis for axis in range(index.ndim) if axis not in own]
    num_in, num_out = _size(index, own), _size(index, free)
    matrix = np.transpose(index, (*own, *free)).reshape(num_in, num_out)
    num_free = len(free)

    def take(other):
        rest = [axis for axis in range(other.ndim) if axis not in others]
        return jnp.transpose(other, (*rest, *others)).reshape(-1, num_in)

    def give(g):
        g = jnp.moveaxis(g, tuple(range(num_free)), tuple(range(g.ndim - num_free, g.ndim))) if side == 0 else g
        return g.reshape(-1, num_out)

    return matrix, Use(path, side, take, give, eqn.outvars[0].aval.size // num_out)


def _of_convolution(eqn, index: np.ndarray, path: Path):
    p, shape = eqn.params, eqn.invars[1].aval.shape
    if p["feature_group_count"] != 1 or p["batch_group_count"] != 1:
        return None
    lhs, rhs, out = p["dimension_numbers"]
    num_out, window = shape[rhs[0]], [shape[axis] for axis in rhs[2:]]
    matrix = np.transpose(index, (*rhs[2:], rhs[1], rhs[0])).reshape(-1, num_out)
    strides, steps = p["window_strides"], p["rhs_dilation"]

    def take(image):
        image = padded(jnp.transpose(image, (lhs[0], *lhs[2:], lhs[1])), p["padding"], p["lhs_dilation"])
        answer = fitting(image.shape[1:-1], window, strides, steps)
        seen = [cut(image, scaled(at, steps), answer, strides) for at in np.ndindex(*window)]
        return jnp.concatenate(seen, axis=-1).reshape(-1, matrix.shape[0])

    def give(g):
        return jnp.moveaxis(jnp.transpose(g, out), 1, -1).reshape(-1, num_out)

    return matrix, Use(path, 1, take, give, eqn.outvars[0].aval.size // num_out)


def _of_lookup(eqn, index: np.ndarray, path: Path):
    """Rows of a table along one axis, each by a number: a product with inputs of which one is 1."""
    p, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    apart = [axis for axis, size in enumerate(index.shape) if sizes[axis] != size]
    if p.operand_batching_dims or len(apart) != 1 or sizes[apart[0]] != 1 or apart[0] not in p.start_index_map:
        return None
    axis, size, shape = apart[0], index.shape[apart[0]], eqn.outvars[0].aval
    table = np.moveaxis(index, axis, 0).reshape(size, -1)
    is_constant = np.all(table == CONSTANT, axis=1)
    kept = np.flatnonzero(~is_constant)
    if not kept.size or np.any(table[kept] == CONSTANT):
        return None
    is_clipped = eqn.params["mode"] == GatherScatterMode.CLIP  # elsewhere no row is meant by a number beyond them

    def take(numbers):
        numbers = jnp.ravel(numbers[..., p.start_index_map.index(axis)])
        numbers = jnp.clip(numbers, 0, size - 1) if is_clipped else numbers
        return (numbers[:, None] == kept).astype(shape.dtype)

    def give(g):
        g = jnp.moveaxis(g, p.offset_dims, range(g.ndim - len(p.offset_dims), g.ndim))
        return g.reshape(-1, table.shape[1])

    return table[kept], Use(path, 0, take, give, shape.size // table.shape[1], is_lookup=True)


def _of_one_row(eqn, index: np.ndarray, path: Path):
    """One row of a table, by a number, as ``table[i]`` is: the nearest one where the number is beyond them."""
    size, shape = len(index), eqn.outvars[0].aval
    is_vector = shape.shape == (1, *index.shape[1:]) and index.ndim < 3  # not a matrix of each step's own, by number
    is_counted = np.iinfo(eqn.invars[1].aval.dtype).max >= size  # else JAX clips it by another number
    if not (is_vector and is_counted) or np.any(index == CONSTANT):
        return None

    def take(number):
        return (jnp.clip(number, 0, size - 1) == np.arange(size)).astype(shape.dtype)[None]

    def give(g):
        return g.reshape(1, -1)

    return index.reshape(size, -1), Use(path, 0, take, give, is_lookup=True)


def _with_product(eqn, given: list, use: tuple[np.ndarray, Use], products: dict[int, Path]) -> tuple[np.ndarray, Use]:
    """A bias with what it is ``beside``, where its entries, in their order, are added to one number each."""
    entries, bias = use
    added = np.broadcast_to(given[bias.side], eqn.outvars[0].aval.shape)
    is_each_once = eqn.primitive.name != "sub" and np.array_equal(added.ravel(), entries.ravel())
    return entries, bias._replace(beside=products.get(id(eqn.invars[1 - bias.side])) if is_each_once else None)


def _of_bias(index: np.ndarray, side: int, path: Path):
    entries, place = np.unique(index, return_inverse=True)
    place = place.reshape(index.shape)
    shared = tuple(axis for axis in range(place.ndim) if np.all(place == np.take(place, [0], axis)))
    apart = place[tuple(slice(1) if axis in shared else slice(None) for axis in range(place.ndim))]
    is_plain = np.array_equal(apart.ravel(), np.arange(len(entries)))  # each entry along whole axes, as it mostly is

    def take(other):
        return jnp.ones((1, 1), other.dtype)

    def give(g):
        if is_plain:  # not the loop that a scatter is
            return jnp.sum(g.reshape(place.shape), axis=shared).reshape(1, -1)
        return jax.ops.segment_sum(g.ravel(), place.ravel(), len(entries))[None]

    return entries[None], Use(path, side, take, give, is_bias=True)


def _size(index: np.ndarray, axes) -> int:
    return int(np.prod([index.shape[axis] for axis in axes], dtype=int))
