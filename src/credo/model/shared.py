"""Functions and settings that are written again, and are the same: compiled programs are keyed on them.

A user's function is JAX's to compile anew wherever it is another object, as in each turn of a loop or each run of a
notebook's cell. One that depends on its arguments alone is told by its code. What reads a variable stays itself alone:
a variable may be bound anew while a program of the earlier value still serves a prediction.
"""

import dataclasses
import dis
import functools
import hashlib
from types import CodeType, FunctionType, ModuleType
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from credo.model.captured import MOST, PLAIN, digest_of, is_written_by_user, reads

PACKAGES = {"jax", "numpy", "numpyro", "math"}  # whose functions depend on their arguments alone
SAFE = {"abs", "dict", "enumerate", "float", "int", "len", "list", "max", "min", "range", "sum", "tuple", "zip"}
OPEN = {"append", "extend", "fromfile", "genfromtxt", "load", "loads", "loadtxt", "memmap", "random"}  # jax.random too


class Shared:
    """A function that equals every other of the same code, where that and its arguments are all it depends on.

    Programs are keyed on it: a model that is written in a loop, or in a cell that runs again, finds its own compiled.
    """

    def __init__(self, function: FunctionType, digest: bytes):
        functools.update_wrapper(self, function)
        self.function, self.digest = function, digest

    def __call__(self, *args, **kwargs):
        return self.function(*args, **kwargs)

    def __eq__(self, other):
        is_alike = isinstance(other, Shared) and self.digest == other.digest
        return is_alike and self.function.__globals__ is other.function.__globals__

    def __hash__(self):
        return hash(self.digest)


def shared(function: Any) -> Any:
    """``Shared``, if it is a function without closures that reads nothing but packages that compute."""
    if not isinstance(function, FunctionType) or function.__dict__ or function.__closure__:
        return function
    defaults, by_name = function.__defaults__ or (), function.__kwdefaults__ or {}
    if not all(isinstance(each, PLAIN) for each in (*defaults, *by_name.values())):
        return function
    packages = [(name, _package(function, name)) for name in sorted(reads(function.__code__))]
    if not all(package for _, package in packages) or not _is_closed(function.__code__):
        return function
    text = repr((defaults, by_name, packages)).encode()
    return Shared(function, hashlib.sha256(digest_of(function.__code__) + text).digest())


def _package(function: FunctionType, name: str) -> str:
    """The name of the package, or of the builtin, that a global is; nothing for a variable."""
    if name not in function.__globals__:
        return name if name in SAFE else ""
    found = function.__globals__[name]
    is_one = isinstance(found, ModuleType) and found.__name__.partition(".")[0] in PACKAGES
    return found.__name__ if is_one else ""


_FIRST: dict[str, Any] = {}  # of settings, by all that is in them


def first_of(settings: Any) -> Any:
    """The first dataclass of Credo's that was like ``settings``: their priors have no equality of their own."""
    fields = dataclasses.fields(settings)
    values = [getattr(settings, each.name, None) for each in fields]
    if is_written_by_user(type(settings).__module__) or not all(each.compare for each in fields):
        return settings
    leaves, structure = jax.tree.flatten(values, is_leaf=lambda node: isinstance(node, Shared))
    known = [_content(each) for each in leaves]
    text = repr((type(settings), structure, known))
    if None in known or " at 0x" in text or len(_FIRST) >= MOST:  # an address is another object's later
        return settings
    return _FIRST.setdefault(text, settings)


def _content(leaf) -> Any:
    """What tells it from others; None where nothing does."""
    if isinstance(leaf, Shared):
        return leaf.digest
    if isinstance(leaf, np.ndarray | jax.Array) and not isinstance(leaf, Tracer):
        array = np.asarray(leaf)
        return None if array.dtype == object else (str(array.dtype), array.shape, array.tobytes())
    return repr(leaf) if isinstance(leaf, PLAIN) else None


@functools.lru_cache(maxsize=1_000)
def _is_closed(code: CodeType) -> bool:
    """Whether it imports, writes and reads nothing: no files, no globals of its own, no random numbers of NumPy's."""
    names = {each.opname for each in dis.get_instructions(code)}
    is_open = names & {"IMPORT_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"} or OPEN & set(code.co_names)
    return not is_open and all(_is_closed(each) for each in code.co_consts if isinstance(each, CodeType))
