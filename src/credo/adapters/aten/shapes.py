"""Operators of ATen that move entries: reshapes, slices, gathers and padding."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from credo.status import CredoError


def view(x, size):
    return jnp.reshape(x, tuple(size))


def expand(x, size, *, implicit=False):
    own = (1,) * (len(size) - x.ndim) + x.shape
    return jnp.broadcast_to(x, tuple(n if m == -1 else m for n, m in zip(own, size, strict=True)))


def squeeze(x, dim=None):
    """Axes of length 1 go; torch leaves the others where they are named."""
    axes = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    return jnp.squeeze(x, tuple(axis for axis in axes if x.ndim and x.shape[axis] == 1))


def section(x, dim=0, start=None, end=None, step=1):
    return x[(slice(None),) * (dim % x.ndim) + (slice(start, end, step),)]


def select(x, dim, index):
    return x[(slice(None),) * (dim % x.ndim) + (index,)]


def section_scatter(x, source, dim=0, start=None, end=None, step=1):
    return x.at[(slice(None),) * (dim % x.ndim) + (slice(start, end, step),)].set(source)


def select_scatter(x, source, dim, index):
    return x.at[(slice(None),) * (dim % x.ndim) + (index,)].set(source)


def split(x, size, dim=0):
    cuts = range(size, x.shape[dim], size) if isinstance(size, int) else np.cumsum(size)[:-1]
    return jnp.split(x, list(cuts), axis=dim)


def join(tensors, dim=0):
    """``cat``: an empty vector counts as nothing, whatever the rank of the others."""
    kept = [x for x in tensors if x.shape != (0,)]
    return jnp.concatenate(kept or tensors, axis=dim)


def _is_mask(index) -> bool:
    """Of values that are not known before: a constant one is as good as numbers."""
    return isinstance(index, Tracer) and index.dtype == bool


def indices(given) -> tuple:
    return tuple(slice(None) if index is None else index for index in given)


def index(x, given):
    if any(_is_mask(each) for each in given):
        raise CredoError(
            "The module selects entries by a mask (x[mask]), as many as there are: let it keep the shape, with "
            "torch.where or a product with the mask."
        )
    return x[indices(given)]


def index_put(x, index, values, accumulate=False):
    if _is_mask(index[0]) and len(index) == 1 and jnp.size(values) == 1:  # x[mask] = number
        mask = index[0].reshape(index[0].shape + (1,) * (x.ndim - index[0].ndim))
        value = jnp.reshape(values, ())
        return jnp.where(mask, x + value if accumulate else value, x)
    if any(_is_mask(each) for each in index):
        raise CredoError(
            "The module sets entries by a mask (x[mask] = y[mask]), as many as there are: let it say torch.where(mask, "
            "y, x)."
        )
    place = x.at[indices(index)]
    return place.add(values) if accumulate else place.set(values)


def along(x, dim, index):
    """Where ``index`` points at along ``dim``, entry by entry: torch's gather and scatter."""
    place = list(jnp.indices(index.shape, sparse=True))
    place[dim % x.ndim] = index
    return tuple(place)


def gather(x, dim, index, *, sparse_grad=False):
    return x[along(x, dim, index)]


def source_of(source, index):
    return source[tuple(slice(n) for n in index.shape)] if jnp.ndim(source) else source


def scatter(x, dim, index, source):
    return x.at[along(x, dim, index)].set(source_of(source, index))


def scatter_add(x, dim, index, source):
    return x.at[along(x, dim, index)].add(source_of(source, index))


STARTS = {"sum": 0.0, "mean": 0.0, "amax": -np.inf, "amin": np.inf}
METHODS = {"sum": "add", "mean": "add", "amax": "max", "amin": "min"}


def scatter_reduce(x, dim, index, source, reduce, *, include_self=True):
    """Each entry of ``source`` joins those that go to one place; what was there before counts if ``include_self``."""
    if reduce not in METHODS:
        raise CredoError(
            f"scatter_reduce by {reduce!r} has no derivative in JAX: sum the logarithms, or multiply apart."
        )
    place, source = along(x, dim, index), source_of(source, index)
    first = x if include_self else x.at[place].set(STARTS[reduce])
    total = getattr(first.at[place], METHODS[reduce])(source)
    if reduce != "mean":
        return total
    counts = jnp.full(x.shape, float(include_self)).at[place].add(1.0)
    return total / jnp.maximum(counts, 1.0).astype(x.dtype)


def windows(x, dim, size, step):
    """Stretches of ``size`` every ``step``, their entries along a last axis."""
    dim = dim % max(x.ndim, 1)
    place = np.arange(0, x.shape[dim] - size + 1, step)[:, None] + np.arange(size)
    return jnp.moveaxis(jnp.take(x, place, axis=dim), dim + 1, -1)


def place_in(edges, x, *, out_int32=False, right=False, side=None, sorter=None):
    """How many of the rising ``edges`` are below x, or at most x if ``right``. Each row may have edges of its own."""
    edges = edges if sorter is None else jnp.take_along_axis(edges, sorter, axis=-1)
    side = side or ("right" if right else "left")
    if edges.ndim == 1:
        return jnp.searchsorted(edges, x, side=side)
    flat = jax.vmap(lambda edges, x: jnp.searchsorted(edges, x, side=side))
    return flat(edges.reshape(-1, edges.shape[-1]), x.reshape(-1, x.shape[-1])).reshape(x.shape)


def widths(x, padding):
    """torch lists (before, after) from the last axis back."""
    pairs = [(padding[i], padding[i + 1]) for i in range(0, len(padding), 2)]
    return [(0, 0)] * (x.ndim - len(pairs)) + pairs[::-1]


def constant_pad(x, padding, value=0.0):
    pairs = widths(x, padding)
    cut = x[tuple(slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(pairs, x.shape, strict=True))]
    return jnp.pad(cut, [(max(a, 0), max(b, 0)) for a, b in pairs], constant_values=value)


def pad(mode: str):
    return lambda x, padding: jnp.pad(x, widths(x, padding), mode=mode)


def top(x, k, dim=-1, largest=True, is_sorted=True):
    order = jnp.argsort(x, axis=dim, descending=largest)
    order = section(order, dim, 0, k)
    return jnp.take_along_axis(x, order, axis=dim), order


def sort(x, dim=-1, descending=False, *, stable=None):
    order = jnp.argsort(x, axis=dim, descending=descending)
    return jnp.take_along_axis(x, order, axis=dim), order


SHAPES = {
    **dict.fromkeys(("view", "reshape", "_unsafe_view"), view),
    "permute": lambda x, dims: jnp.transpose(x, dims),
    "transpose": lambda x, a, b: jnp.swapaxes(x, a, b),
    "t": lambda x: x.T,
    "expand": expand,
    "squeeze": squeeze,
    "unsqueeze": jnp.expand_dims,
    "flatten": lambda x, start=0, end=-1: x.reshape(*x.shape[:start], -1, *x.shape[end % x.ndim + 1 :]),
    "slice": section,
    "select": select,
    "slice_scatter": section_scatter,
    "select_scatter": select_scatter,
    "split_with_sizes": split,
    "split": split,
    "unbind": lambda x, dim=0: [jnp.squeeze(part, dim) for part in jnp.split(x, x.shape[dim], axis=dim)],
    "cat": join,
    "stack": lambda tensors, dim=0: jnp.stack(tensors, axis=dim),
    "flip": lambda x, dims: jnp.flip(x, tuple(dims)),
    "repeat": lambda x, repeats: jnp.tile(x, repeats),
    "diagonal": jnp.diagonal,
    **dict.fromkeys(("index", "_unsafe_index"), index),
    "index_put": index_put,
    "index_select": lambda x, dim, index: jnp.take(x, index, axis=dim),
    "gather": gather,
    "scatter": scatter,
    "scatter_add": scatter_add,
    "scatter_reduce": scatter_reduce,
    "unfold": windows,
    "searchsorted": place_in,
    "bucketize": lambda x, edges, **given: place_in(edges, x, **given),
    "constant_pad_nd": constant_pad,
    **{f"reflection_pad{n}d": pad("reflect") for n in (1, 2, 3)},
    **{f"replication_pad{n}d": pad("edge") for n in (1, 2, 3)},
    "topk": top,
    "sort": sort,
    "sym_size": lambda x, dim: x.shape[dim],
    "sym_numel": lambda x: x.size,
}
