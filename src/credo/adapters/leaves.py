"""Modules that are pytrees: weights by name apart from everything else, and back."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from credo.adapters.network import check_dtypes, check_rows, fitting, made_up, named, nested
from credo.model.visit import leaf_name
from credo.precision import double
from credo.status import CredoError


class Leaves(NamedTuple):
    """The leaves of a pytree in order: ``names`` of those that are weights, None for a constant."""

    names: tuple[str | None, ...]
    values: tuple[Any, ...]
    structure: Any

    @classmethod
    def of(cls, tree: Any, is_weight: Callable[[Any], bool], suffix: str = "") -> "Leaves":
        """``suffix``: what the names of all end in, and is left out."""
        found, structure = jax.tree_util.tree_flatten_with_path(tree)
        names = tuple(leaf_name(path).removesuffix(suffix) if is_weight(leaf) else None for path, leaf in found)
        return cls(names, tuple(leaf for _, leaf in found), structure)

    @property
    def weights(self) -> dict[str, Any]:
        return {name: value for name, value in zip(self.names, self.values, strict=True) if name is not None}

    def dtype(self, remedy: str) -> str:
        return check_dtypes({name: str(value.dtype) for name, value in self.weights.items()}, remedy)

    def params(self) -> dict[str, Any]:
        return nested({name: np.asarray(value) for name, value in self.weights.items()})

    def with_weights(self, params: Any) -> Any:
        """The pytree at ``params``, whose precision its constants take: a fit computes in double precision.

        Its weights are JAX's arrays, as layers expect who index them or write to them.
        """
        given = {name: jnp.asarray(value) for name, value in named(params).items()}
        dtype = next(iter(given.values())).dtype
        pairs = zip(self.names, self.values, strict=True)
        return jax.tree.unflatten(
            self.structure, [in_precision(value, dtype) if name is None else given[name] for name, value in pairs]
        )

    def restored(self, weights: Any) -> Any:
        """The pytree with ``weights``, each in its own precision. CredoError where they are another network's."""
        arrays = fitting(weights, {name: value.shape for name, value in self.weights.items()})
        pairs = zip(self.names, self.values, strict=True)
        leaves = [value if name is None else jnp.asarray(arrays[name], value.dtype) for name, value in pairs]
        return jax.tree.unflatten(self.structure, leaves)


class JaxNetwork:
    """``run(params, x)``, tried on made-up rows where it is first applied without having been tried on others."""

    def __init__(self, run: Callable[[Any, Any], Any], params: Any, dtype: str):
        self.run, self.params, self.dtype = run, params, dtype
        self.is_tried = False

    def __call__(self, params: Any, x: Any) -> Any:
        if not self.is_tried:
            self.check(made_up(x))
        return self.run(params, x)

    def check(self, x: Any) -> None:
        with double(self.dtype == "float64"):
            check_rows(self.run, self.params, jax.tree.map(lambda leaf: _narrow(leaf, self.dtype), x), self.dtype)
        self.is_tried = True


def is_float(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)


def in_precision(leaf: Any, dtype) -> Any:
    """Constants of floating point as ``dtype``, through double precision so that NumPy's arrays stay NumPy's."""
    return jnp.asarray(np.asarray(leaf, np.float64), dtype) if is_float(leaf) else leaf


def first_line(error: BaseException) -> str:
    """What an error says, without the address that flax adds."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].split(" (http")[0][:200]


def not_a(what: str, found: Any) -> CredoError:
    return CredoError(f"{what}; got {type(found).__name__}.")


def _narrow(leaf, dtype: str):
    return np.asarray(leaf, dtype) if is_float(leaf) else leaf


def in_own_precision(run: Callable, dtype: str) -> Callable:
    """``run(params, x)``; where it refuses weights of another precision than ``dtype``, its module's, run in that one.

    A recurrence makes its first state in the precision of the module, and rows may be cast to it.
    """

    def ran(params, x):
        try:
            return run(params, x)
        except TypeError:
            given = dtype_of(params)
            if given == dtype:
                raise
            own, rows = (jax.tree.map(lambda leaf: _cast(leaf, dtype), tree) for tree in (params, x))
            return jax.tree.map(lambda leaf: _cast(leaf, given), run(own, rows))

    return ran


def dtype_of(params):
    """Of the weights."""
    return jnp.asarray(jax.tree.leaves(params)[0]).dtype


def _cast(leaf: Any, dtype) -> Any:
    return leaf.astype(dtype) if is_float(leaf) else leaf
