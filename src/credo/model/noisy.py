"""A row's log-likelihood with noise in its layers: the program of model/layers.py, run with some equations changed.

What dropout does to the inputs of a layer it does to the weights: for a mask z of the inputs, (z ∘ a) W = a (diag(z) W)
(Gal & Ghahramani 2016). A mask drawn anew for each row is thus a draw of the weights for each row. In a convolution
``by`` "channel" masks the channels of the image, which are the weights of these inputs at all places of the window;
"element" masks each input of the window by itself.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from credo.equations import bind
from credo.model.data import Rows
from credo.model.layers import Layer, Layers, find_layers
from credo.model.program import Hook, Path, equation_at, run
from credo.model.target import Target
from credo.model.uses import Use
from credo.precision import abstract


class Site(NamedTuple):
    """A layer that multiplies: ``groups`` (unit, k), the coordinates of the weights that each of its inputs meets."""

    layer: Layer
    groups: np.ndarray
    equations: tuple[Any, ...]  # of the uses


def likelihood_layers(target: Target, rows: Rows | None = None) -> Layers:
    """The layers in the log-likelihood of one row, outside scans.

    ``rows``: such as it has, for their shapes; None: the target's.
    """
    rows = Rows(target.x, target.y, target.weights) if rows is None else rows

    def outputs(u, row):
        return target.log_likelihood(u, jax.tree.map(lambda leaf: leaf[None], row))

    row = jax.tree.map(lambda leaf: abstract(leaf.shape[1:], leaf.dtype), rows)
    position = abstract((target.dim,))
    return find_layers(outputs, position, row).outside_scans()


def sites_of(layers: Layers, by: str = "channel") -> tuple[Site, ...]:
    """The layers but the biases, in the order of the program."""
    found = []
    for layer in layers.layers:
        equations = tuple(equation_at(layers.program.jaxpr, use.path) for use in layer.uses)
        if not all(eqn.primitive.name in ("dot_general", "conv_general_dilated") for eqn in equations):
            continue
        groups = layer.index
        if by == "channel" and _is_convolution(equations[0]):
            _, weight = _dimensions(equations[0])
            num_channels = equations[0].invars[1].aval.shape[weight[1]]
            groups = np.swapaxes(groups.reshape(-1, num_channels, groups.shape[1]), 0, 1).reshape(num_channels, -1)
        found.append(Site(layer, groups, equations))
    return tuple(sorted(found, key=lambda site: min(use.path for use in site.layer.uses)))


def terms(layers: Layers, hooks: dict[Path, Hook], u, row) -> Any:
    """The log-likelihood (1,) of one row, with ``hooks`` in the place of their equations."""
    (value,) = run(layers.program, [u, *jax.tree.leaves(row)], hooks)
    return value


def masking(site: Site, mask) -> dict[Path, Hook]:
    """Hooks that multiply the inputs of a layer by ``mask`` (unit,)."""
    return {use.path: _masked(use, mask) for use in site.layer.uses}


def spreading(site: Site, alpha: float, key) -> dict[Path, Hook]:
    """Hooks that draw a layer's outputs for weights N(w, α w²), by local reparameterisation."""

    def hook(key) -> Hook:
        def spread(eqn, given):
            (mean,) = bind(eqn, given)
            (variance,) = bind(eqn, [jnp.square(each) for each in given])
            noise = jax.random.normal(key, mean.shape, mean.dtype)
            return [mean + jnp.sqrt(alpha * jnp.maximum(variance, jnp.finfo(mean.dtype).tiny)) * noise]

        return spread

    return {use.path: hook(jax.random.fold_in(key, i)) for i, use in enumerate(site.layer.uses)}


def _masked(use: Use, mask) -> Hook:
    def masked(eqn, given):
        given = list(given)
        if not _is_convolution(eqn):
            other, axes = 1 - use.side, eqn.params["dimension_numbers"][0][1 - use.side]
        elif mask.shape[0] == eqn.invars[1].aval.shape[_dimensions(eqn)[1][1]]:
            other, axes = 0, (_dimensions(eqn)[0][1],)
        else:  # each input of the window by itself: on the weights
            _, weight = _dimensions(eqn)
            other, axes = 1, (*weight[2:], weight[1])
        given[other] = given[other] * _placed(mask, given[other].shape, axes).astype(given[other].dtype)
        return bind(eqn, given)

    return masked


def _placed(mask, shape: tuple[int, ...], axes: tuple[int, ...]):
    """``mask``, its units in the order of ``axes``, in the shape that multiplies an array of ``shape`` along them."""
    cube = jnp.reshape(mask, [shape[axis] for axis in axes])
    cube = jnp.transpose(cube, np.argsort(axes).tolist())
    return jnp.reshape(cube, [size if axis in axes else 1 for axis, size in enumerate(shape)])


def _is_convolution(eqn) -> bool:
    return eqn.primitive.name == "conv_general_dilated"


def _dimensions(eqn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of image and weights: (batch, channel, …), (out, in, …)."""
    image, weight, _ = eqn.params["dimension_numbers"]
    return image, weight
