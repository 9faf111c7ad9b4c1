"""Which linear layers a network's outputs come from without passing through another one.

Every value in the program of the outputs carries the layers whose results it holds: a matrix product or a convolution
holds its own and forgets those of its inputs, a bias adds its own, anything else holds what its operands hold. Where
what a layer gave has been bent, by a tanh say, and then meets parameters that are no layer (weights that are tied,
normalised or multiplied with each other before they are used, a loop), these come last, and the layer does not.
"""

from typing import Any, NamedTuple

from jax.extend import core as jex

from credo.model.layers import Layer, Layers
from credo.model.program import Path, called

# What moves numbers about, or adds them up: the results of a layer stay linear in its weights.
MOVING = {
    "concatenate", "reshape", "squeeze", "expand_dims", "broadcast_in_dim", "transpose", "slice", "dynamic_slice",
    "gather", "pad", "rev", "copy", "convert_element_type", "stop_gradient", "optimization_barrier", "split",
    "select_n", "stack", "unstack", "tile",
}  # fmt: skip
LINEAR = {*MOVING, "add", "sub", "neg", "add_any", "reduce_sum", "cumsum"} - {"select_n"}
BY_ELEMENT = {"add", "sub", "add_any", "mul", "div", "max", "min", "pow"}  # of two operands
PRODUCTS = {"mul", "div", "dot_general", "conv_general_dilated"}
GATHERING = {"reduce_sum", "reduce_max", "reduce_min", "argmax", "cumsum", "dot_general", "conv_general_dilated"}


class Held(NamedTuple):
    """Of a value: the layers whose results it holds, whether these were bent, and whether others come after them.

    ``depends``: on the position at all. ``is_moved``: parameters that are no layer act on what was bent, an
    element each: the layer is a hidden one if sums over its elements follow, and else its outputs were scaled.
    """

    layers: frozenset[int] = frozenset()
    depends: bool = False
    is_bent: bool = False
    is_moved: bool = False
    is_followed: bool = False


NOTHING = Held()


def last_layers(layers: Layers) -> tuple[Layer, ...]:
    """The layers, biases included, that the outputs hold; none where no product of weights reaches them directly."""
    products = {use.path: i for i, layer in enumerate(layers.layers) if not layer.is_bias for use in layer.uses}
    biases = {use.path: i for i, layer in enumerate(layers.layers) if layer.is_bias for use in layer.uses}
    jaxpr = layers.program.jaxpr
    inputs = [Held(depends=True), *[NOTHING] * (len(jaxpr.invars) - 1)]
    held = _held(jaxpr, inputs, (), products, biases)[0]
    if held.is_followed or not any(not layers.layers[i].is_bias for i in held.layers):
        return ()
    return tuple(layers.layers[i] for i in sorted(held.layers))


def _held(jaxpr, inputs: list[Held], path: Path, products: dict[Path, int], biases: dict[Path, int]) -> list[Held]:
    """What is held by each output of ``jaxpr``, given what its inputs hold."""
    held: dict[Any, Held] = dict(zip(jaxpr.invars, inputs, strict=True))

    def of(atom) -> Held:
        return NOTHING if isinstance(atom, jex.Literal) else held.get(atom, NOTHING)

    for i, eqn in enumerate(jaxpr.eqns):
        here, given = (*path, i), [of(atom) for atom in eqn.invars]
        inner = called(eqn)
        if inner is not None:
            found = _held(inner.jaxpr, given[-len(inner.jaxpr.invars) :], here, products, biases)
        elif here in products:
            found = [Held(frozenset({products[here]}), depends=True)]
        else:
            own = frozenset({biases[here]}) if here in biases else frozenset()
            found = [_joined(eqn.primitive.name, given, own)] * len(eqn.outvars)
        held.update(zip(eqn.outvars, found, strict=True))
    return [of(atom) for atom in jaxpr.outvars]


def _joined(name: str, given: list[Held], own: frozenset[int]) -> Held:
    """What an equation that is no layer makes of its operands; ``own``: the bias that it adds."""
    layers = own.union(*(each.layers for each in given))
    others = [each for each in given if each.depends and not each.layers]  # parameters that are no layer
    dependent = [each for each in given if each.depends]
    is_linear = bool(own) or name in LINEAR or (name in PRODUCTS and len(dependent) == 1)
    was_bent = any(each.is_bent for each in given)
    is_product = name == "dot_general" and len(dependent) > 1
    meets = bool(layers) and name not in MOVING and bool(others or is_product)
    meets = meets and (was_bent or not (is_linear or name in PRODUCTS))
    is_moved = any(each.is_moved for each in given)
    return Held(
        layers,
        depends=bool(dependent),
        is_bent=bool(layers) and (was_bent or not is_linear),
        is_moved=is_moved or (meets and name in BY_ELEMENT),
        is_followed=any(each.is_followed for each in given)
        or (meets and name not in BY_ELEMENT)
        or (is_moved and name in GATHERING),
    )
