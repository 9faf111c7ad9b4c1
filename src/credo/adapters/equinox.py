"""Equinox modules as networks."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

from credo.adapters.leaves import (
    JaxNetwork,
    Leaves,
    dtype_of,
    first_line,
    in_own_precision,
    in_precision,
    is_float,
    not_a,
)
from credo.adapters.network import Network, as_rows, listed, told
from credo.model.visit import leaf_name
from credo.status import CredoError


def from_equinox(module, x: Any = None, *, state: Any = None, call: Callable | None = None) -> Network:
    """An equinox module for ``credo.nn.BayesianNetwork(network.apply, network.params, head=…)``.

    ``module``: takes one row, as equinox's own layers do, and is mapped over rows. ``state``: of a module with batch
    normalisation (``eqx.nn.make_with_state``), as training left it. ``x``: example rows (M, …), on which it is tried
    at once; else it is tried when first applied. ``call(module, x)``: how to apply it to all rows (M, …), where that
    is another way. Every array of floating point outside of a state is a weight, all others are constants. Dropout is
    off and batch normalisation keeps the statistics of training, which a warning says and ``notes`` keeps.
    Raises CredoError for weights of mixed precision, and where a row's output changes with the rows beside it.

    >>> import equinox as eqx, jax, numpy as np, credo
    >>> module = eqx.nn.MLP(3, 2, 8, 1, key=jax.random.key(0))
    >>> network = credo.adapters.from_equinox(module, np.ones((5, 3), np.float32))
    >>> model = credo.nn.BayesianNetwork(network.apply, network.params, head=credo.nn.Categorical())
    """
    if not isinstance(module, eqx.Module):
        raise not_a("from_equinox takes an equinox module", module)
    leaves, static = _parts(eqx.nn.inference_mode(module))
    dtype = leaves.dtype("with jax.tree.map")

    def run(params, x):
        here = eqx.combine(leaves.with_weights(params), static)
        if call is not None:
            return call(here, x)
        if state is None:
            return jax.vmap(here)(x)
        own = jax.tree.map(lambda leaf: in_precision(leaf, dtype_of(params)), state)
        return jax.vmap(lambda row: here(row, own)[0], axis_name="batch")(x)

    plain = in_own_precision(run, dtype)

    def spoken(params, x):
        try:
            return plain(params, x)
        except (TypeError, ValueError) as error:
            raise CredoError(
                f"The module cannot be applied to rows ({first_line(error)}): it is called with one row, and with "
                "state=… where it has one; say how else: call=lambda module, x: jax.vmap(module)(x)."
            ) from error

    params = leaves.params()
    apply = JaxNetwork(spoken, params, dtype)
    if x is not None:
        apply.check(as_rows(x))
    return told(apply, params, _notes(module, leaves))


def to_equinox(module, weights: Any) -> Any:
    """A copy of ``module`` with ``weights`` in it: ``posterior.mean()["weights"]``, those of a MAP, or one draw.

    Raises CredoError where names or shapes are not the module's.
    """
    if not isinstance(module, eqx.Module):
        raise not_a("to_equinox takes the equinox module that the weights belong to", module)
    leaves, static = _parts(module)
    return eqx.combine(leaves.restored(weights), static)


def _parts(module) -> tuple[Leaves, Any]:
    """Its arrays, of which those of a state are no weights, and everything else."""

    def is_kept(each) -> bool:
        return isinstance(each, eqx.nn.State | eqx.nn.StateIndex)

    arrays, static = eqx.partition(module, eqx.is_array)
    others = [
        leaf for each in jax.tree.leaves(arrays, is_leaf=is_kept) if is_kept(each) for leaf in jax.tree.leaves(each)
    ]
    kept = {id(leaf) for leaf in others}
    return Leaves.of(arrays, lambda leaf: is_float(leaf) and id(leaf) not in kept), static


def _notes(module, leaves: Leaves) -> list[str]:
    kinds = (eqx.nn.BatchNorm, eqx.nn.Dropout)
    found = jax.tree_util.tree_leaves_with_path(module, is_leaf=lambda each: isinstance(each, kinds))
    norms = [leaf_name(path) for path, each in found if isinstance(each, eqx.nn.BatchNorm)]
    drops = [leaf_name(path) for path, each in found if isinstance(each, eqx.nn.Dropout) and each.p > 0]
    notes = []
    if norms:
        notes.append(f"Batch normalisation ({listed(norms)}) keeps the means and variances of training, as constants.")
    if drops:
        notes.append(f"Dropout ({listed(drops)}) is off.")
    count = sum(name is None for name in leaves.names)
    if count:
        notes.append(f"Arrays ({count}) of a state, of whole or complex numbers, or that are keys are constants.")
    return notes
