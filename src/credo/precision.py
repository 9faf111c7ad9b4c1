"""Density work runs in float64, and by JAX's own rules of promotion, whatever the user's JAX settings.

JAX's switches are a context of the current thread. Everything public that computes enters it through
``double`` and returns NumPy arrays, since a float64 JAX array falls to float32 in arithmetic outside the context.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np

from credo.status import CredoError

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def double(enabled: bool = True) -> Iterator[None]:
    """The context in which JAX computes in float64 (or, with ``enabled=False``, in float32).

    CredoError where an array that the user's code captured meets it in the other precision. (JAX 0.10 keeps what it
    made of a NumPy array by the array's identity, also for programs of the other precision.)
    """
    try:
        with jax.enable_x64(enabled), as_usual(), _full_products():
            yield
    except (TypeError, ValueError) as error:
        text = str(error)
        is_kept = "Cannot lower jaxpr" in text and "f32" in text and "f64" in text
        if not (is_kept or (isinstance(error, TypeError) and "float32" in text and "float64" in text)):
            raise
        raise CredoError(
            f"This computation is in {'float64' if enabled else 'float32'}, and the model's functions read an array "
            "of the other precision from outside of their arguments, perhaps one that an earlier fit read in that "
            f"precision ({text.splitlines()[0][:120].rstrip(':')}): give the array as data, in x, or copy it where it "
            "is read, as in jnp.asarray(np.array(a))."
        ) from error


@contextmanager
def as_usual() -> Iterator[None]:
    """A NaN marks what is not there, or has a sentence of Credo's: it stops no program. Types and ranks are promoted,
    NumPy's arrays go to the device and back, and programs are compiled, however the user has JAX look at his own.
    """
    types, ranks = jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow")
    transfers, compiled = jax.transfer_guard("allow"), jax.disable_jit(False)
    with jax.debug_nans(False), jax.debug_infs(False), types, ranks, transfers, compiled:
        yield


def _full_products() -> AbstractContextManager:
    """Accelerators round the factors of float32 products to 10 bits or fewer unless told not to, which is no float32.

    Where the user has said how (``jax.default_matmul_precision``), that stands.
    """
    if jax.default_backend() == "cpu" or jax.default_matmul_precision.value is not None:
        return nullcontext()
    return jax.default_matmul_precision("float32")


def in_double(function: Callable[P, R]) -> Callable[P, R]:
    """Run ``function`` in float64 and return NumPy arrays in place of JAX arrays."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with double():
            return to_numpy(function(*args, **kwargs))

    return wrapped


def abstract(shape, dtype: Any = float) -> jax.ShapeDtypeStruct:
    """An array of which nothing but shape and type is known, in the present precision: JAX warns where it narrows."""
    return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(dtype))


def to_numpy(tree):
    """The same pytree with NumPy arrays for JAX arrays; other leaves are untouched."""
    return jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, tree)
