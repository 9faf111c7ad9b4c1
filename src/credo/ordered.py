"""Pytrees whose leaves come in the same order in every process.

NumPyro lists the arrays of a distribution in the order of a set of strings, which Python draws anew for each process.
The arguments of a compiled program would come in another order each time, and JAX's cache on disk would hold it for the
processes of one order alone.
"""

import functools

import jax
import numpy as np
from jax.tree_util import default_registry, register_pytree_node_class
from numpyro.distributions import Distribution


@register_pytree_node_class
class Ordered:
    """A tree as its leaves in an order by names; ``tree`` is the tree itself."""

    def __init__(self, leaves, structure, places: tuple[int, ...]):
        self.leaves, self.structure, self.places = leaves, structure, places

    @classmethod
    def of(cls, tree) -> "Ordered":
        leaves, structure = jax.tree.flatten(tree)
        places = tuple(_order(tree, iter(range(len(leaves)))))
        return cls([leaves[place] for place in places], structure, places)

    @functools.cached_property
    def tree(self):
        back = np.argsort(self.places)
        return jax.tree.unflatten(self.structure, [self.leaves[i] for i in back])

    def __reduce__(self):
        """Pickled as the tree, since its structure means another one where the arrays come in another order."""
        return Ordered.of, (self.tree,)

    def tree_flatten(self):
        return self.leaves, (self.structure, self.places)

    @classmethod
    def tree_unflatten(cls, static, leaves):
        return cls(leaves, *static)


def plain(tree):
    """What stands in ``tree`` if it is ``Ordered``, else ``tree``."""
    return tree.tree if isinstance(tree, Ordered) else tree


def _order(node, places) -> list[int]:
    """The places of the leaves under ``node``, of which ``places`` gives the next, distributions by the names of their
    arrays."""
    found = default_registry.flatten_one_level(node)
    if found is None:
        return [next(places)]
    parts = [_order(child, places) for child in found[0]]
    if isinstance(node, Distribution) and type(node).tree_flatten is Distribution.tree_flatten:
        names = type(node).gather_pytree_data_fields()
        parts = [part for _, part in sorted(zip(names, parts, strict=True))]
    return [place for part in parts for place in part]
