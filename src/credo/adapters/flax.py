"""Flax modules as networks: nnx modules as they are, linen modules with their variables."""

from collections.abc import Callable, Mapping
from typing import Any

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
from credo.adapters.network import Network, as_rows, library, listed, told
from credo.status import CredoError

CALL = "call=lambda module, x: module(x, train=False), with the arguments of yours"


def from_flax(module, x: Any = None, *, variables: Any = None, call: Callable | None = None) -> Network:
    """A flax module for ``credo.nn.BayesianNetwork(network.apply, network.params, head=…)``.

    ``module``: of nnx, or of linen with its ``variables``, as ``init`` returned them and training left them. ``x``:
    example rows, an array (M, …), on which it is tried at once; else it is tried when first applied. ``call(module,
    x)``: how to apply it where that is not ``module(x)``: ``lambda module, x: module(x, train=False)``.
    The weights are nnx's ``Param`` variables, or linen's collection "params"; everything else is constant. Dropout is
    off and batch normalisation keeps the statistics of training, which a warning says and ``notes`` keeps; a linen
    module is told so by its arguments, in ``call``. The module itself is not changed.
    Raises CredoError for weights of mixed precision, and where a row's output changes with the rows beside it.

    >>> import numpy as np, credo
    >>> from flax import nnx
    >>> module = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    >>> network = credo.adapters.from_flax(module, np.ones((5, 3), np.float32))
    >>> model = credo.nn.BayesianNetwork(network.apply, network.params, head=credo.nn.Categorical())
    """
    nnx, linen = library("flax.nnx", "flax"), library("flax.linen", "flax")
    if isinstance(module, nnx.Module):
        if variables is not None:
            raise CredoError("An nnx module holds its own variables: leave variables out.")
        run, leaves, notes = _of_nnx(nnx, module, call)
    elif isinstance(module, linen.Module):
        run, leaves, notes = _of_linen(module, variables, call)
    else:
        raise not_a("from_flax takes a flax module, of nnx or of linen", module)
    dtype = leaves.dtype("with param_dtype=jnp.float32 say")
    params = leaves.params()
    apply = JaxNetwork(_speaking(in_own_precision(run, dtype)), params, dtype)
    if x is not None:
        apply.check(as_rows(x))
    return told(apply, params, notes)


def to_flax(module, weights: Any) -> Any:
    """A copy of an nnx ``module`` with ``weights`` in it; of linen, give its variables, and get them back so.

    ``weights``: as ``from_flax(module).params``: ``posterior.mean()["weights"]``, those of a MAP, or one draw.
    Raises CredoError where names or shapes are not the module's.
    """
    nnx = library("flax.nnx", "flax")
    if isinstance(module, nnx.Module):
        graph, params, rest = nnx.split(nnx.clone(module), nnx.Param, ...)
        return nnx.merge(graph, Leaves.of(params, is_float, ".value").restored(weights), rest)
    if isinstance(module, Mapping) and "params" in module:
        names = Leaves.of(library("flax.core.meta", "flax").unbox(module["params"]), is_float).names
        leaves = Leaves.of(module["params"], is_float)._replace(names=names)  # boxes stay boxes
        return {**module, "params": leaves.restored(weights)}
    raise not_a("to_flax takes an nnx module, or the variables of a linen module with their 'params'", module)


def _of_nnx(nnx, module, call: Callable | None):
    frozen = nnx.clone(module)
    frozen.eval()
    graph, params, rest = nnx.split(frozen, nnx.Param, ...)
    leaves, others = Leaves.of(params, is_float, ".value"), Leaves.of(rest, lambda leaf: False)

    def run(params, x):
        dtype = dtype_of(params)
        constants = jax.tree.unflatten(others.structure, [in_precision(leaf, dtype) for leaf in others.values])
        here = nnx.merge(graph, leaves.with_weights(params), constants)
        return here(x) if call is None else call(here, x)

    norms, drops = [], []
    for path, each in nnx.iter_modules(module):
        name = ".".join(map(str, path)) or type(each).__name__
        if isinstance(each, nnx.BatchNorm):
            norms.append(name)
        elif isinstance(each, nnx.Dropout) and each.rate > 0:
            drops.append(name)
    notes = []
    if norms:
        notes.append(f"Batch normalisation ({listed(norms)}) keeps the means and variances of training, as constants.")
    if drops:
        notes.append(f"Dropout ({listed(drops)}) is off.")
    return run, leaves, [*notes, *_whole(leaves)]


def _of_linen(module, variables, call: Callable | None):
    if not isinstance(variables, Mapping) or not variables.get("params"):
        raise CredoError("A linen module keeps its weights apart: give variables=…, a dict with 'params' in it.")
    meta = library("flax.core.meta", "flax")
    variables = dict(meta.unbox(variables))
    leaves = Leaves.of(variables.pop("params"), is_float)
    others = Leaves.of(variables, lambda leaf: False)

    def run(params, x):
        dtype = dtype_of(params)
        constants = jax.tree.unflatten(others.structure, [in_precision(leaf, dtype) for leaf in others.values])
        return module.apply({**constants, "params": leaves.with_weights(params)}, x, method=call)

    notes = [f"The collections {listed(variables)} are constants, batch statistics among them."] if variables else []
    return run, leaves, [*notes, *_whole(leaves)]


def _speaking(run: Callable) -> Callable:
    """``run``, with a sentence where flax refuses: unfrozen statistics, dropout without a key, missing arguments."""
    errors = library("flax.errors", "flax")

    def spoken(params, x):
        try:
            return run(params, x)
        except (errors.FlaxError, TypeError) as error:
            raise CredoError(
                f"The module cannot be applied as in evaluation ({first_line(error)}): unfrozen statistics of batch "
                f"normalisation, dropout that is on, or an argument that is missing? Say how to call it: {CALL}."
            ) from error

    return spoken


def _whole(leaves: Leaves) -> list[str]:
    count = sum(name is None for name in leaves.names)
    return [f"Parameters of whole numbers ({count}) are constants."] if count else []
