"""A NumPyro model and the arguments of its call, as a pytree: arrays are leaves, everything else is static."""

import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from numpyro import handlers
from numpyro.distributions import Distribution
from numpyro.primitives import Messenger

from credo.model.captured import captured
from credo.model.distributions import Scaled, without_mask
from credo.model.visit import Value
from credo.status import CredoError

Sites = dict[str, dict[str, Any]]

# NumPyro's stack of handlers is global: models are traced one at a time.
LOCK = threading.RLock()

# Raised where Python code asks for the value of a traced array (np.unique(group), if n > 0, range(n)).
NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


class Constant:
    """An argument that compiled code holds: equal to another with the same content, or else the same object."""

    def __init__(self, value: Any, is_jax: bool = False):
        self.raw, self._is_jax = value, is_jax
        if isinstance(value, np.ndarray) and value.dtype != object:
            self._content = (is_jax, value.shape, value.dtype, value.tobytes())
        else:
            try:
                hash(value)
                self._content = (type(value), value)
            except TypeError:
                self._content = (type(value), id(value))

    @property
    def value(self):
        """The argument as the model takes it: concrete even while it is traced."""
        if not self._is_jax:
            return self.raw
        with jax.ensure_compile_time_eval():
            return jnp.asarray(self.raw)

    def __eq__(self, other) -> bool:
        return isinstance(other, Constant) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)


class Program(eqx.Module):
    """``fn`` with its ``arguments`` by parameter name.

    Arrays are arguments of compiled code (``arrays``), except those whose values the model's Python code reads.
    """

    fn: Callable = eqx.field(static=True)
    arrays: tuple[Any, ...]
    constants: tuple[Constant | None, ...] = eqx.field(static=True)  # one a leaf of the arguments; None for ``arrays``
    treedef: Any = eqx.field(static=True)
    captured: str = eqx.field(static=True)  # a digest of what ``fn`` reads beside its arguments

    def __init__(self, fn: Callable, arguments: dict[str, Any], is_traced: Callable[[int], bool] = lambda leaf: True):
        """``is_traced(i)``: whether leaf i of the arguments, an array, stays an argument of compiled code."""
        self.fn, self.captured = fn, captured(fn)
        leaves, self.treedef = jax.tree.flatten(arguments)
        values = [(as_double(leaf), isinstance(leaf, jax.Array)) for leaf in leaves]
        traced = [is_array(value) and is_traced(i) for i, (value, _) in enumerate(values)]
        self.arrays = tuple(value for (value, _), t in zip(values, traced, strict=True) if t)
        self.constants = tuple(None if t else Constant(*value) for value, t in zip(values, traced, strict=True))

    @property
    def places(self) -> list[int]:
        """For each of ``arrays``, its place among the leaves of the arguments."""
        return [i for i, constant in enumerate(self.constants) if constant is None]

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments as they were given."""
        arrays = iter(self.arrays)
        leaves = [next(arrays) if constant is None else constant.raw for constant in self.constants]
        return jax.tree.unflatten(self.treedef, leaves)

    def call(self, new: Mapping[str, Any] = {}, without: Sequence[int] = ()) -> None:
        """Run the model under whatever handlers are active; subsampling plates keep all their rows.

        ``new``: arguments to put in place of the bound ones. ``without``: leaves of the arguments to make None.
        """
        arrays = iter(self.arrays)
        leaves = [jnp.asarray(next(arrays)) if constant is None else constant.value for constant in self.constants]
        for place in without:
            leaves[place] = None
        arguments = jax.tree.unflatten(self.treedef, leaves)
        arguments.update(jax.tree.map(lambda leaf: jnp.asarray(leaf) if is_array(leaf) else leaf, dict(new)))
        bound = inspect.BoundArguments(inspect.signature(self.fn), OrderedDict(arguments))
        whole = _Whole()
        try:
            with whole:
                self.fn(*bound.args, **bound.kwargs)
        except (*NEEDS_VALUES, CredoError):
            raise
        except Exception as error:
            if whole.widened:
                plate, size = whole.widened[0]
                raise CredoError(
                    f"The model failed with all {size} rows of the subsampling plate {plate!r} ({first_line(error)}): "
                    "give it all the rows, and index them by the plate or by numpyro.subsample."
                ) from error
            raise

    def run(self, value: Value, new: Mapping[str, Any] = {}, without: Sequence[int] = ()) -> tuple[Sites, list[str]]:
        """(sites of the trace by name, names of the latent ones) with ``value(name, distribution, index)`` for each."""
        asked: dict[str, None] = {}

        def substitute(site):
            if site["type"] != "sample" or site["is_observed"] or site["value"] is not None:
                return None
            asked[site["name"]] = None
            return value(site["name"], distribution_of(site), site["infer"].get("_scan_current_index"))

        with LOCK, handlers.trace() as sites, handlers.substitute(substitute_fn=substitute):
            try:
                self.call(new, without)
            except AssertionError as error:
                if "unique names" not in str(error):
                    raise
                raise CredoError(
                    f"The NumPyro model uses a site's name twice ({error}): give each sample, deterministic and plate "
                    "statement a name of its own."
                ) from error
        return dict(sites), list(asked)


class _Whole(Messenger):
    """Subsampling plates take all rows, so that their scale is 1; keys that the model asks for are fixed.

    Of outcomes with an ``obs_mask`` NumPyro has a latent value for each row, and nothing for those seen: a flat density
    over numbers that nobody reads. They have their own distribution here, whose integral is one, unless it is scaled.
    """

    def __init__(self):
        super().__init__()
        self.widened: list[tuple[str, int]] = []
        self.observed: set[str] = set()

    def process_message(self, msg) -> None:
        if msg["type"] == "sample" and msg["is_observed"]:
            self.observed.add(msg["name"])
        elif msg["type"] == "sample" and _is_one(msg["scale"]):
            name, end = msg["name"].removesuffix("_unobserved"), "_observed"
            if name != msg["name"] and name + end in self.observed:
                msg["fn"] = without_mask(msg["fn"])
        if msg["type"] == "plate" and msg["value"] is None:
            size = msg["args"][0]
            msg["args"] = (size, size)
            msg["value"] = jnp.arange(size)
            self.widened.append((msg["name"], size))
        elif msg["type"] == "prng_key" and msg["value"] is None:
            msg["value"] = jax.random.key(0)  # NumPyro's samplers do the same


def distribution_of(site) -> Distribution:
    """The distribution of a site with its sample shape and its scale."""
    distribution, sample_shape = site["fn"], site["kwargs"].get("sample_shape", ())
    if sample_shape:
        distribution = distribution.expand(tuple(sample_shape) + distribution.batch_shape)
    return distribution if _is_one(site["scale"]) else Scaled(distribution, site["scale"])


def _is_one(scale) -> bool:
    return scale is None or (isinstance(scale, int | float) and scale == 1)


def is_array(leaf) -> bool:
    """Arrays of numbers, truth values or keys: what compiled code can take."""
    return isinstance(leaf, jax.Array) or (isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc")


def as_double(leaf):
    """Floats in double precision, arrays of JAX as NumPy's; everything else as it is.

    A copy: JAX 0.10 may hand compiled code the float32 buffer that NumPyro made of the same array before.
    """
    if not is_array(leaf) or isinstance(leaf, Tracer) or jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf
    return np.array(leaf, np.float64 if jnp.issubdtype(leaf.dtype, np.floating) else None)


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"
