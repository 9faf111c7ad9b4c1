"""A network of VB layers as a ``BayesianNetwork``: its weights are those of the layers, applied as they are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax

from credo.nn.heads import Head
from credo.nn.layers import VBLayer
from credo.nn.network import BayesianNetwork
from credo.nn.priors import WEIGHTS, WeightPrior
from credo.status import CredoError


class InTurn(eqx.Module):
    """Layers and functions, one after the other."""

    layers: tuple[Any, ...]

    def __call__(self, x, key=None):
        keys = [None] * len(self.layers) if key is None else jax.random.split(key, len(self.layers))
        for layer, own in zip(self.layers, keys, strict=True):
            x = layer(x, own) if isinstance(layer, VBLayer) else layer(x)
        return x


@dataclass(frozen=True)
class Composed:
    """``composed(weights, x)``: the outputs at these weights. Without arrays, so that programs are keyed on it.

    Weights by layer, ``layer0`` and so on, in the order in which the module holds them.
    """

    leaves: tuple[Any, ...]  # VB layers without their weights, and functions
    treedef: Any

    @property
    def layers(self) -> dict[str, VBLayer]:
        """By the name of their weights."""
        found = [leaf for leaf in self.leaves if isinstance(leaf, VBLayer)]
        return {f"layer{i}": layer for i, layer in enumerate(found)}

    def __call__(self, weights, x):
        return self._holding(weights, weights)(x, None)

    def drawn(self, mean, log_sd, x, key):
        """Outputs at x by local reparameterisation, for weights N(mean, exp(log_sd)²)."""
        return self._holding(mean, log_sd)(x, key)

    def kl(self, mean, log_sd):
        """Of all layers."""
        return sum(layer.holding(mean[name], log_sd[name]).kl() for name, layer in self.layers.items())

    def penalty(self, mean):
        """−log prior of the weights that have a normal one, up to a constant: training begins with it."""
        total = 0.0
        for name, layer in self.layers.items():
            for part, array in mean[name].items():
                sd = layer.prior_sd(part)
                total = total if sd is None else total + 0.5 * (array**2).sum() / sd**2
        return total

    def _holding(self, mean, log_sd) -> Callable:
        names = iter(self.layers)

        def fill(leaf):
            if not isinstance(leaf, VBLayer):
                return leaf
            name = next(names)
            return leaf.holding(mean[name], log_sd[name])

        return jax.tree.unflatten(self.treedef, [fill(leaf) for leaf in self.leaves])


@dataclass(frozen=True)
class OfLayers(WeightPrior):
    """Each layer's own prior."""

    layers: tuple[tuple[str, VBLayer], ...]

    def of(self, params):
        return {WEIGHTS: {name: layer.laws() for name, layer in self.layers}}


class VBNetwork(BayesianNetwork):
    """A network written with ``VBLinear`` and ``VBConv``: a ``BayesianNetwork`` that any method fits.

    ``layers``: VB layers and functions of the activations, applied one after the other, or an equinox module that is
    called as ``module(x, key)`` and hands a key to each of its VB layers (None: their means). Each layer says its own
    prior. ``credo.VariationalLayers()`` trains means and sds by local reparameterisation.
    Raises CredoError where there is no VB layer, or the module holds arrays outside of them.

    >>> import jax, credo
    >>> layers = [credo.nn.VBLinear(4, 8), jax.nn.relu, credo.nn.VBLinear(8, 3, key=1)]
    >>> credo.nn.VBNetwork(layers, head=credo.nn.Categorical()).structure.dim
    67
    """

    def __init__(self, layers: Sequence[Any] | Callable, *, head: Head | Callable):
        module = InTurn(tuple(layers)) if isinstance(layers, list | tuple) else layers
        leaves, treedef = jax.tree.flatten(module, is_leaf=lambda node: isinstance(node, VBLayer))
        given = {f"layer{i}": leaf for i, leaf in enumerate(leaf for leaf in leaves if isinstance(leaf, VBLayer))}
        if not given:
            raise CredoError("The network has no VB layer: give VBLinear or VBConv, or use BayesianNetwork.")
        if len({id(layer) for layer in given.values()}) < len(given):
            raise CredoError(
                "One VB layer stands in the network at two places, each of which would have weights of its own: make a "
                "layer for each, or share weights in a BayesianNetwork."
            )
        for leaf in leaves:
            if not isinstance(leaf, VBLayer) and not callable(leaf):
                raise CredoError(
                    f"The network holds {type(leaf).__name__} of shape {getattr(leaf, 'shape', ())} outside of its VB "
                    "layers, which nobody would train: put constants into functions, or use BayesianNetwork."
                )
        bare = tuple(leaf.holding(None, None) if isinstance(leaf, VBLayer) else leaf for leaf in leaves)
        weights = {name: layer.mean for name, layer in given.items()}
        prior = OfLayers(tuple(given.items()))
        BayesianNetwork.__init__(self, Composed(bare, treedef), weights, head=head, prior=prior)
