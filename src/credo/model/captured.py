"""What the functions of a model read from outside of their arguments: globals, closures, defaults, attributes.

JAX keeps compiled programs by the identity of a function, with the values that it read while it was traced. A digest
of these values, which the model carries, makes another program of the same function where they have changed since: an
array or a function that a notebook's cell defines anew, a setting of an object. Functions are told apart by their code,
and what cannot be looked into by which object it is.
"""

import argparse
import dataclasses
import dis
import functools
import hashlib
import itertools
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from credo.model.distributions import is_distribution
from credo.ordered import plain

MOST = 10_000  # values: whoever reads more of them has a world behind an attribute
LOADS = "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"
ATTRIBUTES = "LOAD_ATTR", "LOAD_METHOD"
WRITES = "append", "extend"  # of lists
HOLDERS = SimpleNamespace, argparse.Namespace  # of settings, though the standard library's
INSTALLED = {"site-packages", "dist-packages"}  # folders of packages, a user's own among them
PLAIN = bool, int, float, complex, str, bytes, type(None), np.generic, type(...)


def captured(model: eqx.Module | Callable) -> str:
    """A digest of what the functions in ``model``, or one function, would read now.

    The model's own arrays are arguments, and not among it.
    """
    reader = _Reader()
    reader.part(model)
    return reader.digest.hexdigest()


class _Reader:
    def __init__(self):
        self.digest = hashlib.sha256()
        self.seen: dict[int, tuple[int, Any]] = {}  # by id, and held, so that no other value takes the place

    def part(self, node) -> None:
        """Of a pytree that is an argument: its static fields and its functions."""
        node = plain(node)
        if isinstance(node, eqx.Module):
            for field in dataclasses.fields(node):
                if field.name == "captured":  # of an earlier time
                    continue
                (self.value if field.metadata.get("static") else self.part)(getattr(node, field.name, None))
        elif isinstance(node, Mapping):
            for each in node.values():
                self.part(each)
        elif isinstance(node, list | tuple):
            for each in node:
                self.part(each)
        elif callable(node) and not is_distribution(node) and not _holds_arrays(node):
            self.value(node)

    def value(self, value) -> None:
        """Of anything that a function reads."""
        value = plain(value)
        if isinstance(value, PLAIN):
            self.digest.update(f"{value!r};".encode())
        elif isinstance(value, np.ndarray | jax.Array):
            self._array(value)
        elif id(value) in self.seen:
            self.digest.update(f"{self.seen[id(value)][0]} again;".encode())
        elif len(self.seen) < MOST:
            self.seen[id(value)] = len(self.seen), value
            self.digest.update(f"{type(value).__name__};".encode())
            self._inside(value)

    def _array(self, array) -> None:
        if isinstance(array, Tracer):
            return
        if isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            array = jax.random.key_data(array)
        array = np.asarray(array)
        self.digest.update(f"{array.dtype}{array.shape};".encode())
        self.digest.update(repr(array.tolist()).encode() if array.dtype == object else array.tobytes())

    def _inside(self, value) -> None:
        if isinstance(value, Mapping):
            self._each(each for pair in value.items() for each in pair)
        elif isinstance(value, list | tuple):
            self._each((*value, *getattr(value, "_fields", ())))
        elif isinstance(value, set | frozenset):
            self._each(sorted(value, key=repr))
        elif isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, MethodType):
            self._each((value.__func__, value.__self__))
        elif isinstance(value, functools.partial):
            self._each((value.func, value.args, value.keywords))
        elif isinstance(getattr(value, "__wrapped__", None), FunctionType):  # jax.jit, functools.cache
            self.value(value.__wrapped__)
        elif hasattr(value, "columns") and hasattr(value, "to_numpy"):  # a data frame, whatever its library
            self._each((list(value.columns), *(np.asarray(value[name]) for name in value.columns)))
        elif hasattr(value, "to_numpy"):
            self.value(np.asarray(value))
        elif isinstance(value, type):
            self.digest.update(f"{value.__module__}.{value.__qualname__};".encode())
            self._each(_of_class(base) for base in value.__mro__ if is_written_by_user(base.__module__))
        elif isinstance(value, jax.tree_util.PyTreeDef):
            self.digest.update(f"{value};".encode())
        elif isinstance(value, ModuleType | BuiltinFunctionType | np.ufunc):
            self.digest.update(f"{getattr(value, '__qualname__', value.__name__)};".encode())
            owner = getattr(value, "__self__", None)
            self._each(() if isinstance(owner, ModuleType) else (owner,))
        elif isinstance(value, (eqx.Module, *HOLDERS)) or is_written_by_user(type(value).__module__):
            slots = [name for base in type(value).__mro__ for name in np.ravel(vars(base).get("__slots__", ()))]
            self._each((type(value), getattr(value, "__dict__", None), [getattr(value, s, None) for s in slots]))
        elif dataclasses.is_dataclass(value):
            fields = [each.name for each in dataclasses.fields(value) if each.compare]
            self._each((type(value), *(getattr(value, name, None) for name in fields)))
        else:
            self._tree(value)

    def _tree(self, value) -> None:
        """The leaves of what JAX takes for a tree; else which object it is."""
        leaves, structure = ([value], None) if isinstance(value, Iterator) else jax.tree.flatten(value)
        if len(leaves) != 1 or leaves[0] is not value:
            self.digest.update(f"{structure};".encode())
            self._each(leaves)
        else:
            self.digest.update(f"{_number(value) or repr(value)};".encode())

    def _each(self, values) -> None:
        for each in values:
            self.value(each)
        self.digest.update(b"end;")

    def _function(self, function: FunctionType) -> None:
        self.digest.update(digest_of(function.__code__))
        self._each((function.__defaults__, function.__kwdefaults__))
        if is_written_by_user(function.__module__):
            self._each(function.__dict__.items())
        read = reads(function.__code__)
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        for name, attributes in read.items():
            if name in cells:
                self._cell(cells[name], attributes)
            elif name in function.__globals__ and is_written_by_user(function.__module__):
                self._global(function.__globals__[name], attributes)

    def _cell(self, cell: CellType, attributes: set[str]) -> None:
        try:
            contents = cell.cell_contents
        except ValueError:  # not filled yet
            return
        self._global(contents, attributes)

    def _global(self, value, attributes: set[str]) -> None:
        """``attributes``: names of all that may be read of a module, and of the modules within it."""
        if not isinstance(value, ModuleType):
            self.value(value)
        elif is_written_by_user(value.__name__):
            for each in sorted(attributes):
                if hasattr(value, each):
                    self._global(getattr(value, each), attributes - {each})


def _holds_arrays(node) -> bool:
    """Whether it is a tree of arrays and of nothing else, as flax's variables are, which can be called too."""
    leaves = [] if isinstance(node, functools.partial) else jax.tree.leaves(node)
    return bool(leaves) and all(leaf is not node and isinstance(leaf, np.ndarray | jax.Array) for leaf in leaves)


def _of_class(base: type) -> dict[str, Any]:
    """What a user wrote into a class: attributes, methods and operators."""
    return {n: each for n, each in vars(base).items() if not n.startswith("__") or isinstance(each, FunctionType)}


@functools.lru_cache(maxsize=1_000)
def digest_of(code: CodeType) -> bytes:
    """Of what it does, wherever it is written."""
    digest = hashlib.sha256(code.co_code)
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    arguments = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    digest.update(repr((names, arguments, code.co_exceptiontable)).encode())
    consts = [digest_of(each) if isinstance(each, CodeType) else each for each in code.co_consts]
    digest.update(repr(consts).encode())
    return digest.digest()


_NUMBERS: dict[int, tuple[weakref.ref, int]] = {}  # by id, while the object lives
_COUNT = itertools.count(1)


def _number(value) -> int:
    """Another one for every object; 0 for those that cannot be told from one that came before at the same place."""
    place = id(value)
    try:
        reference = weakref.ref(value, lambda _: _NUMBERS.pop(place, None))
    except TypeError:
        return 0
    return _NUMBERS.setdefault(place, (reference, next(_COUNT)))[1]


@functools.lru_cache(maxsize=1_000)
def reads(code: CodeType) -> dict[str, set[str]]:
    """Globals and closures that a function and those within it read, each with the names of all attributes there.

    What is only written to, such as a list that counts calls, is not read. Nor are its own variables and arguments,
    which those within it see.
    """
    instructions = list(dis.get_instructions(code))
    attributes = {str(each.argval) for each in instructions if each.opname in ATTRIBUTES}
    read: dict[str, set[str]] = {}
    for each, after in pairwise([*instructions, instructions[-1]]):
        is_written = after.opname in ATTRIBUTES and after.argval in WRITES
        if each.opname in LOADS and not is_written:
            read[str(each.argval)] = attributes
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            for name, more in reads(inner).items():
                read[name] = read.get(name, set()) | more
    return {name: more for name, more in read.items() if name not in code.co_cellvars}


@functools.cache
def is_written_by_user(module: str | None) -> bool:
    """Not the standard library's, Credo's or an installed package's."""
    root = (module or "").partition(".")[0]
    if root == "credo" or root in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    return INSTALLED.isdisjoint(Path(file).parts)
