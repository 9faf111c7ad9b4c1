"""Which linear layers a network's outputs come from without passing through another one.

Every value in the program of the outputs carries the layers whose results it holds: a matrix product or a convolution
holds its own and forgets those of its inputs, a bias adds its own, anything else holds what its operands hold.
"""

from typing import Any

from jax.extend import core as jex

from credo.model.layers import Layer, Layers
from credo.model.program import Path, called


def last_layers(layers: Layers) -> tuple[Layer, ...]:
    """The layers, biases included, that the outputs hold; none where no product of weights reaches them directly."""
    products = {use.path: i for i, layer in enumerate(layers.layers) if not layer.is_bias for use in layer.uses}
    biases = {use.path: i for i, layer in enumerate(layers.layers) if layer.is_bias for use in layer.uses}
    held = _held(layers.program.jaxpr, [frozenset()] * len(layers.program.jaxpr.invars), (), products, biases)[0]
    if not any(not layers.layers[i].is_bias for i in held):
        return ()
    return tuple(layers.layers[i] for i in sorted(held))


def _held(jaxpr, inputs: list, path: Path, products: dict[Path, int], biases: dict[Path, int]) -> list[frozenset[int]]:
    """The layers held by each output of ``jaxpr``, given those held by its inputs."""
    held: dict[Any, frozenset[int]] = dict(zip(jaxpr.invars, inputs, strict=True))

    def of(atom) -> frozenset[int]:
        return frozenset() if isinstance(atom, jex.Literal) else held.get(atom, frozenset())

    for i, eqn in enumerate(jaxpr.eqns):
        here, given = (*path, i), [of(atom) for atom in eqn.invars]
        inner = called(eqn)
        if inner is not None:
            found = _held(inner.jaxpr, given[-len(inner.jaxpr.invars) :], here, products, biases)
        elif here in products:
            found = [frozenset({products[here]})]
        else:
            own = frozenset({biases[here]}) if here in biases else frozenset()
            found = [own.union(*given)] * len(eqn.outvars)
        held.update(zip(eqn.outvars, found, strict=True))
    return [of(atom) for atom in jaxpr.outvars]
