"""Where the parameters enter a network's outputs as the weights of matrix products, convolutions and biases.

The outputs of one row are traced once as a function of the position. An array whose entries are those of the position,
reshaped, sliced or transposed, is a *view*; a matrix product of a view with anything else is a linear layer, whatever
module it came from. For a weight matrix W (in, out) and the places s where it is applied (one in a dense layer, a pixel
or a token elsewhere), with inputs a_s and the outputs' derivatives g_ks at these places, the Jacobian of output k is

    ∂z_k / ∂W = Σ_s a_s g_ksᵀ,        of a bias Σ_s g_ks

Coordinates that enter otherwise (the scale of a normalisation, an embedding table) are named, and left to autodiff.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

from credo.model.program import Hook, Path, bind, called, run

WORTH = 4  # times the numbers of two Jacobians that the products of inputs and of derivatives may take


class Use(NamedTuple):
    """A place in the program where a weight matrix is applied: ``take(other) -> (places, in)`` the inputs there.

    ``give(g) -> (places, out)``: an array of the equation's output as rows of the layer's outputs.
    """

    path: Path
    side: int  # which operand is the weight
    take: Callable
    give: Callable
    places: int = 1
    is_bias: bool = False  # added to something, not multiplied by it


class Layer(NamedTuple):
    """``index`` (in, out): the coordinates of the weights; a bias has one input, which is 1."""

    index: np.ndarray
    uses: tuple[Use, ...]

    @property
    def is_bias(self) -> bool:
        """Whether the weights are added to something, and multiply nothing."""
        return all(use.is_bias for use in self.uses)


class Layers(NamedTuple):
    """What is linear in the outputs of one row. ``rest``: the other coordinates."""

    layers: tuple[Layer, ...]
    rest: np.ndarray
    program: Any  # closed jaxpr of (u, *leaves of x) -> z

    def linearised(self, u, row) -> tuple[Any, list[list[Any]], Callable]:
        """(z (K,), the inputs a (places, in) of each use of each layer, cotangent (K,) -> g (places, out) likewise)."""
        uses = {use.path: use for layer in self.layers for use in layer.uses}
        shapes = self._shapes()
        zeros = [jnp.zeros(shapes[path].shape, shapes[path].dtype) for path in uses]

        def shifted(offsets):
            return _interpret(self.program, [u, *jax.tree.leaves(row)], uses, offsets)

        z, pull, others = jax.vjp(shifted, zeros, has_aux=True)
        beside = dict(zip(uses, others, strict=True))

        def back(cotangent):
            found = dict(zip(uses, pull(cotangent)[0], strict=True))
            return [[use.give(found[use.path]) for use in layer.uses] for layer in self.layers]

        return z, [[use.take(beside[use.path]) for use in layer.uses] for layer in self.layers], back

    def perturbed(self, u, row, noises: list[Callable]):
        """The outputs of one row; ``noises[l](a)``, of inputs a (places, in), is added to (places, out) of layer l."""
        shapes = self._shapes()
        uses, added = {}, []
        for layer, noise in zip(self.layers, noises, strict=True):
            for use in layer.uses:
                uses[use.path] = use
                back = jax.linear_transpose(use.give, shapes[use.path])
                added.append(lambda other, use=use, noise=noise, back=back: back(noise(use.take(other)))[0])
        return _interpret(self.program, [u, *jax.tree.leaves(row)], uses, added)[0]

    def within(self, free: np.ndarray) -> "Layers":
        """What is left where only the coordinates ``free`` vary: whole layers, and other coordinates."""
        is_free = np.zeros(self.dim, bool)
        is_free[free] = True
        kept = tuple(layer for layer in self.layers if is_free[layer.index].all())
        for layer in kept:
            is_free[layer.index] = False
        return self._replace(layers=kept, rest=np.flatnonzero(is_free))

    @property
    def num_outputs(self) -> int:
        """Of a row: K."""
        return self.program.out_avals[0].size

    @property
    def places(self) -> list[list[int]]:
        """At how many places a row is in each use of each layer."""
        return [[use.places for use in layer.uses] for layer in self.layers]

    @property
    def dim(self) -> int:
        """Of the position."""
        return self.program.jaxpr.invars[0].aval.shape[0]

    def _shapes(self) -> dict[Path, Any]:
        """Of the first output of every equation."""
        found: dict[Path, Any] = {}

        def look(jaxpr, path):
            for i, eqn in enumerate(jaxpr.eqns):
                found[(*path, i)] = eqn.outvars[0].aval
                inner = called(eqn)
                if inner is not None:
                    look(inner.jaxpr, (*path, i))

        look(self.program.jaxpr, ())
        return found


def find_layers(outputs: Callable, u, row) -> Layers:
    """``outputs(u, row) -> (K,)``; ``u`` (dim,) and ``row``: abstract arrays serve."""
    leaves, structure = jax.tree.flatten(row)
    program = jax.make_jaxpr(lambda u, *leaves: outputs(u, jax.tree.unflatten(structure, leaves)))(u, *leaves)
    dim = u.shape[0]
    uses: list[tuple[np.ndarray, Use]] = []
    tainted = np.zeros(dim, bool)
    _search(program.jaxpr, [np.arange(dim), *[None] * len(leaves)], (), uses, tainted)
    groups: dict[tuple, list[tuple[np.ndarray, Use]]] = {}
    for index, use in uses:
        groups.setdefault((index.shape, index.tobytes()), []).append((index, use))
    counts = np.zeros(dim, int)
    for members in groups.values():
        counts += np.bincount(members[0][0].ravel(), minlength=dim)
    layers = []
    for members in groups.values():
        index = members[0][0]
        if not tainted[index].any() and np.all(counts[index] == 1):  # nowhere else, nor twice in here
            layers.append(Layer(index, tuple(use for _, use in members)))
    covered = np.zeros(dim, bool)
    for layer in layers:
        covered[layer.index] = True
    return Layers(tuple(layers), np.flatnonzero(~covered), program)


def separable(shapes: list[tuple[int, ...]], is_single: list[bool], num_outputs: int) -> tuple[tuple[int, int], ...]:
    """The pairs of layers, of these shapes (in, out), whose part of a matrix is had from products of their inputs.

    Layers that a row uses once, and only where in · in' + out · out' numbers a row are not far more than their
    Jacobians': without these it is ``num_outputs`` times less work.
    """
    found = []
    for i, (a, b) in enumerate(shapes):
        for j, (c, d) in enumerate(shapes[i:], start=i):
            if is_single[i] and is_single[j] and a * c + b * d <= WORTH * num_outputs * (a * b + c * d):
                found.append((i, j))
    return tuple(found)


def symmetric_places(size: int) -> np.ndarray:
    """(size, size): where among the pairs i ≤ j of ``triu_indices`` the entries of a symmetric matrix stand."""
    found = np.zeros((size, size), int)
    i, j = np.triu_indices(size)
    found[i, j] = found[j, i] = np.arange(len(i))
    return found


def corner(matrix: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The entries of a matrix at these rows and columns: a view where both are spans, as a layer's mostly are."""
    is_view = _is_span(rows) and _is_span(columns)
    return matrix[_span(rows), _span(columns)] if is_view else matrix[np.ix_(rows, columns)]


def set_corner(matrix: np.ndarray, rows: np.ndarray, columns: np.ndarray, values: np.ndarray) -> None:
    """The same entries, set."""
    if _is_span(rows) and _is_span(columns):
        matrix[_span(rows), _span(columns)] = values
    else:
        matrix[np.ix_(rows, columns)] = values


def _is_span(index: np.ndarray) -> bool:
    return bool(np.all(np.diff(index) == 1))


def _span(index: np.ndarray) -> slice:
    return slice(int(index[0]), int(index[-1]) + 1)


# reading the program ------------------------------------------------------------------------------------------------


def _search(jaxpr, inputs: list, path: Path, uses: list, tainted: np.ndarray) -> list:
    """Views among the outputs of ``jaxpr``, given those among its inputs; what it meets goes to ``uses``."""
    views: dict[Any, np.ndarray] = {v: i for v, i in zip(jaxpr.invars, inputs, strict=True) if i is not None}

    def of(atom):
        return None if isinstance(atom, jex.Literal) else views.get(atom)

    alive = _alive(jaxpr)
    for i, eqn in enumerate(jaxpr.eqns):
        given = [of(atom) for atom in eqn.invars]
        if i not in alive or all(index is None for index in given):
            continue
        inner = called(eqn)
        if inner is not None:
            found = _search(inner.jaxpr, given[-len(inner.jaxpr.invars) :], (*path, i), uses, tainted)
            views.update({v: f for v, f in zip(eqn.outvars, found, strict=True) if f is not None})
            continue
        moved = _moved(eqn, given)
        if moved is not None:
            views.update(zip(eqn.outvars, moved, strict=True))
            continue
        use = _use(eqn, given, (*path, i))
        if use is not None:
            uses.append(use)
            continue
        for index in given:
            if index is not None:
                tainted[index.ravel()] = True
    return [of(atom) for atom in jaxpr.outvars]


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


def _moved(eqn, given: list) -> list[np.ndarray] | None:
    """The views that an equation makes of a view, where it only moves entries."""
    name, index, params = eqn.primitive.name, given[0], eqn.params
    if index is None:
        return None
    if name == "split":
        return np.split(index, np.cumsum(params["sizes"])[:-1], axis=params["axis"])
    moved = _moved_whole(name, index, params, eqn.outvars[0].aval.shape)
    return None if moved is None else [moved]


def _moved_whole(name: str, index: np.ndarray, params, shape) -> np.ndarray | None:
    if name in ("convert_element_type", "copy", "copy_p"):
        return index
    if name == "squeeze" or (name == "reshape" and params["dimensions"] is None):
        return index.reshape(shape)
    if name == "transpose":
        return np.transpose(index, params["permutation"])
    if name == "rev":
        return np.flip(index, params["dimensions"])
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
    if len(given) != 2 or all(index is not None for index in given):
        return None
    side = 0 if given[0] is not None else 1
    index = given[side]
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
    matrix = np.transpose(index, (rhs[1], *rhs[2:], rhs[0])).reshape(-1, num_out)

    def take(image):
        patches = jax.lax.conv_general_dilated_patches(
            jnp.transpose(image, lhs),
            window,
            p["window_strides"],
            p["padding"],
            lhs_dilation=p["lhs_dilation"],
            rhs_dilation=p["rhs_dilation"],
        )
        return jnp.moveaxis(patches, 1, -1).reshape(-1, matrix.shape[0])

    def give(g):
        return jnp.moveaxis(jnp.transpose(g, out), 1, -1).reshape(-1, num_out)

    return matrix, Use(path, 1, take, give, eqn.outvars[0].aval.size // num_out)


def _of_bias(index: np.ndarray, side: int, path: Path):
    entries, place = np.unique(index, return_inverse=True)
    place = place.ravel()

    def take(other):
        return jnp.ones((1, 1), other.dtype)

    def give(g):
        return jax.ops.segment_sum(g.ravel(), place, len(entries))[None]

    return entries[None], Use(path, side, take, give, is_bias=True)


def _size(index: np.ndarray, axes) -> int:
    return int(np.prod([index.shape[axis] for axis in axes], dtype=int))


# Jacobians of rows ----------------------------------------------------------------------------------------------------


def is_single(uses: list) -> bool:
    """Whether a layer is applied once in a row. ``uses``: its inputs (M, places, in) in each use."""
    return len(uses) == 1 and uses[0].shape[1] == 1


def jacobian(a_uses: list, g_uses: list) -> Any:
    """(M, K, in · out), of inputs (M, places, in) and derivatives (M, K, places, out) in each use."""
    J: Any = sum(jnp.einsum("msi,mkso->mkio", a, g) for a, g in zip(a_uses, g_uses, strict=True))
    return J.reshape(*J.shape[:2], -1)


def jacobian_of_row(a_uses: list, g_uses: list) -> Any:
    """(K, out, in) of one row: small enough for the processor's cache, and in the order in which products make it."""
    return sum(jnp.einsum("kso,si->koi", g, a) for a, g in zip(a_uses, g_uses, strict=True))


# running it ---------------------------------------------------------------------------------------------------------


def _interpret(program, arguments: list, uses: dict[Path, Use], offsets: list) -> tuple[Any, list]:
    """The output, and the operand beside the weight in each layer.

    ``offsets``, or functions of these operands, are added to the layers' outputs.
    """
    others: dict[Path, Any] = {}

    def hook(path: Path, use: Use, more) -> Hook:
        def shifted(eqn, given):
            others[path] = given[1 - use.side]
            (found,) = bind(eqn, given)
            return [found + (more(others[path]) if callable(more) else more)]

        return shifted

    hooks = {path: hook(path, use, more) for (path, use), more in zip(uses.items(), offsets, strict=True)}
    (z,) = run(program, arguments, hooks)
    return z, [others[path] for path in uses]
