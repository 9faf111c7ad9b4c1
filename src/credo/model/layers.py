"""Where the parameters enter a network's outputs as the weights of matrix products, convolutions and biases.

The outputs of one row are traced once as a function of the position. An array whose entries are those of the position,
reshaped, sliced or transposed, is a *view*; a matrix product of a view with anything else is a linear layer, whatever
module it came from. For a weight matrix W (in, out) and the places s where it is applied (one in a dense layer, a pixel
or a token elsewhere), with inputs a_s and the outputs' derivatives g_ks at these places, the Jacobian of output k is

    ∂z_k / ∂W = Σ_s a_s g_ksᵀ,        of a bias Σ_s g_ks

A table of embeddings is the matrix of a layer whose inputs choose a row. The steps of a scan are places, as those of a
recurrence, or each has layers of its own, as in a stack that is scanned. Coordinates that enter otherwise (the scale of
a normalisation, weights that are tied) are named, and left to autodiff.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from credo.equations import bind
from credo.model.changing import changing
from credo.model.program import Hook, Path, called, run, run_parted
from credo.model.uses import Use, search

WORTH = 4  # times the numbers of two Jacobians that the products of inputs and of derivatives may take


class Layer(NamedTuple):
    """``index`` (in, out): the coordinates of the weights; a bias has one input, which is 1."""

    index: np.ndarray
    uses: tuple[Use, ...]

    @property
    def is_bias(self) -> bool:
        """Whether the weights are added to something, and multiply nothing."""
        return all(use.is_bias for use in self.uses)

    @property
    def is_lookup(self) -> bool:
        """Whether every place chooses a row of the weights, as in a table of embeddings."""
        return all(use.is_lookup for use in self.uses)


class Layers(NamedTuple):
    """What is linear in the outputs of one row. ``rest``: the other coordinates."""

    layers: tuple[Layer, ...]
    rest: np.ndarray
    program: Any  # closed jaxpr of (u, *leaves of x) -> z

    def linearised(self, u, row) -> tuple[Any, list[list[Any]], Callable]:
        """(z (K,), the inputs a (places, in) of each use of each layer, cotangent (K,) -> g (places, out) likewise)."""

        def shifted(offsets):
            return self._interpret(u, row, offsets)

        z, pull, others = jax.vjp(shifted, self._no_offsets(), has_aux=True)

        def back(cotangent):
            (found,) = pull(cotangent)
            return [[use.give(found[use.path]) for use in layer.uses] for layer in self.layers]

        return z, [[use.take(others[use.path]) for use in layer.uses] for layer in self.layers], back

    def shifted(self, u, row, shifts: list[list[Any]]):
        """The outputs of one row, with ``shifts`` (places, out) added to each use of each layer."""
        offsets = self._no_offsets()
        for layer, of_layer in zip(self.layers, shifts, strict=True):
            for use, shift in zip(layer.uses, of_layer, strict=True):
                (back,) = jax.linear_transpose(use.give, offsets[use.path])(shift)
                offsets[use.path] = offsets[use.path] + back
        return self._interpret(u, row, offsets)[0]

    def perturbed(self, u, row, noises: list[Callable]):
        """The outputs of one row; ``noises[l](a)``, of inputs a (places, in), is added to (places, out) of layer l.

        Of layers outside scans.
        """

        def hook(use: Use, noise: Callable) -> Hook:
            def noisy(eqn, given):
                (found,) = bind(eqn, given)
                (back,) = jax.linear_transpose(use.give, found)(noise(use.take(given[1 - use.side])))
                return [found + back]

            return noisy

        pairs = zip(self.layers, noises, strict=True)
        hooks = {use.path: hook(use, noise) for layer, noise in pairs for use in layer.uses}
        return run(self.program, [u, *jax.tree.leaves(row)], hooks)[0]

    def within(self, free: np.ndarray) -> "Layers":
        """What is left where only the coordinates ``free`` vary: whole layers, and other coordinates."""
        is_free = np.zeros(self.dim, bool)
        is_free[free] = True
        kept = tuple(layer for layer in self.layers if is_free[layer.index].all())
        for layer in kept:
            is_free[layer.index] = False
        return self._replace(layers=kept, rest=np.flatnonzero(is_free))

    def without_lookups(self) -> "Layers":
        """Tables of rows that are looked up count among the other coordinates."""
        return self._without([layer for layer in self.layers if layer.is_lookup])

    def outside_scans(self) -> "Layers":
        """Weights that are used in the body of a scan, be it there alone or not, count among the other coordinates."""
        return self._without([layer for layer in self.layers if any(use.is_in_scan for use in layer.uses)])

    def _without(self, gone: list[Layer]) -> "Layers":
        kept = tuple(layer for layer in self.layers if not any(layer is each for each in gone))
        rest = np.sort(np.concatenate([self.rest, *(layer.index.ravel() for layer in gone)]))
        return self._replace(layers=kept, rest=rest)

    @property
    def num_outputs(self) -> int:
        """Of a row: K."""
        return self.program.out_avals[0].size

    @property
    def reached(self) -> np.ndarray:
        """Those of the K outputs that the coordinates change: not a scale that is known. At least one."""
        is_free = np.zeros(self.dim, bool)
        for group in (*(layer.index for layer in self.layers), self.rest):
            is_free[group] = True
        (found,) = np.nonzero(changing(self.program.jaxpr, is_free))
        return found if found.size else np.arange(self.num_outputs)

    @property
    def beside(self) -> list[int]:
        """For each bias that is added to the product of another layer alone, used once both, which; itself elsewhere.

        The derivatives of both are the same.
        """
        single = {layer.uses[0].path: i for i, layer in enumerate(self.layers) if len(layer.uses) == 1}
        found = list(range(len(self.layers)))
        for i, layer in enumerate(self.layers):
            path = layer.uses[0].beside if len(layer.uses) == 1 else None
            product = None if path is None else single.get(path)
            if product is not None and self.layers[product].uses[0].places == 1:
                found[i] = product
        return found

    @property
    def places(self) -> list[list[int]]:
        """At how many places a row is in each use of each layer."""
        return [[use.places for use in layer.uses] for layer in self.layers]

    @property
    def dim(self) -> int:
        """Of the position."""
        return self.program.jaxpr.invars[0].aval.shape[0]

    def _no_offsets(self) -> dict[Path, Any]:
        """Zeros for the output of each equation that uses a layer; an axis in front for each scan that holds it."""
        paths = {use.path for layer in self.layers for use in layer.uses}
        found: dict[Path, Any] = {}

        def look(jaxpr, path, lengths):
            for i, eqn in enumerate(jaxpr.eqns):
                here, inner = (*path, i), called(eqn)
                if here in paths:
                    aval = eqn.outvars[0].aval
                    found[here] = jnp.zeros((*lengths, *aval.shape), aval.dtype)
                elif inner is not None:
                    look(inner.jaxpr, here, lengths)
                elif eqn.primitive.name == "scan":
                    look(eqn.params["jaxpr"].jaxpr, here, (*lengths, eqn.params["length"]))

        look(self.program.jaxpr, (), ())
        return found

    def _interpret(self, u, row, offsets: dict[Path, Any]) -> tuple[Any, dict[Path, Any]]:
        """The output with ``offsets`` added to the layers' outputs, and the operand beside the weight in each."""
        sides = {use.path: use.side for layer in self.layers for use in layer.uses}

        def hook(side: int):
            def shifted(eqn, given, steps, offset):
                (found,) = bind(eqn, given)
                return [found + offset], given[1 - side]

            return shifted

        hooks = {path: hook(side) for path, side in sides.items()}
        (z,), others = run_parted(self.program, [u, *jax.tree.leaves(row)], hooks, offsets)
        return z, others


def find_layers(outputs: Callable, u, row) -> Layers:
    """``outputs(u, row) -> (K,)``; ``u`` (dim,) and ``row``: abstract arrays serve."""
    leaves, structure = jax.tree.flatten(row)
    program = jax.make_jaxpr(lambda u, *leaves: outputs(u, jax.tree.unflatten(structure, leaves)))(u, *leaves)
    dim = u.shape[0]
    uses: list[tuple[np.ndarray, Use]] = []
    tainted = np.zeros(dim, bool)
    search(program.jaxpr, [np.arange(dim), *[None] * len(leaves)], (), uses, tainted)
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


def is_wide(num_in: int, num_out: int) -> bool:
    """Whether pairs of a layer's inputs are more than its inputs times pairs of outputs, which serve as well."""
    return num_in + 1 > num_out * (num_out + 1)


def num_products(shape: tuple[int, ...], other: tuple[int, ...], is_same: bool) -> int:
    """The numbers that a row takes for the part of a matrix that two separable layers of these shapes have."""
    num_pairs = shape[1] * (shape[1] + 1) // 2 if is_same else shape[1] * other[1]
    return num_pairs + shape[0] * (num_pairs if is_same and is_wide(*shape) else other[0])


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


# Jacobians of rows ----------------------------------------------------------------------------------------------------


def is_single(uses: list) -> bool:
    """Whether a layer is applied once in a row. ``uses``: its inputs (M, places, in) in each use."""
    return len(uses) == 1 and uses[0].shape[1] == 1


def jacobian(a_uses: list, g_uses: list) -> Any:
    """(M, K, in · out), of inputs (M, places, in) and derivatives (M, K, places, out) in each use."""
    J: Any = sum(jnp.einsum("msi,mkso->mkio", a, g) for a, g in zip(a_uses, g_uses, strict=True))
    return J.reshape(*J.shape[:2], -1)


def alike(a, g) -> Any:
    """Σ_t [places s and t choose the same row] g_t: of a lookup's inputs (S, in) and derivatives (K, S, out)."""
    return jnp.einsum("st,kto->kso", a @ a.T, g)


def jacobian_of_row(a_uses: list, g_uses: list) -> Any:
    """(K, out, in) of one row: small enough for the processor's cache, and in the order in which products make it."""
    return sum(jnp.einsum("kso,si->koi", g, a) for a, g in zip(a_uses, g_uses, strict=True))
