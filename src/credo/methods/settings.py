"""A method's settings: held against what its dataclass declares, and as text for a file from which a run continues.

A field's annotation says what it may hold (``int``: a whole number; a class or a protocol: an instance of it); the
least number it may be stands beside it, as ``field(default=300, metadata={"at_least": 1})``, and the number that it
stays below as ``"below"``.
"""

import collections.abc
import dataclasses
import importlib
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from credo.status import CredoError

_HOME = "credo."
MOST = 2**53  # beyond it whole numbers are not told apart in float64


def check_settings(method: Any) -> None:
    """CredoError, naming the setting, where ``method`` or a dataclass among its settings holds what it cannot use."""
    cls = type(method)
    if isinstance(method, type) or not dataclasses.is_dataclass(method):
        return
    try:
        hints = get_type_hints(cls)
    except NameError:  # names that only a type checker sees
        hints = {}
    for field in dataclasses.fields(method):
        value, wanted = getattr(method, field.name), hints.get(field.name, Any)
        if not _fits(value, wanted):
            raise CredoError(
                f"{cls.__name__}({field.name}={value!r}): {field.name} is {_described(wanted)}{_example(field)}. Give "
                "that, or leave it out."
            )
        if isinstance(value, int | np.integer) and abs(value) > MOST:
            raise CredoError(f"{cls.__name__}({field.name}={value}): no program counts that far. Lower it.")
        least = field.metadata.get("at_least")
        if least is not None and value is not None and not value >= least:
            raise CredoError(f"{cls.__name__}({field.name}={value!r}): {field.name} is {least} or more. Raise it.")
        bound = field.metadata.get("below")
        if bound is not None and value is not None and not value < bound:
            raise CredoError(f"{cls.__name__}({field.name}={value!r}): {field.name} is below {bound}. Lower it.")
        for each in _held(value):
            check_settings(each)


def _held(value: Any) -> Iterator[Any]:
    """What a setting holds: itself, or what is in it, however deep."""
    if isinstance(value, collections.abc.Mapping | tuple | list):
        for each in value.values() if isinstance(value, collections.abc.Mapping) else value:
            yield from _held(each)
    else:
        yield value


def _fits(value, wanted) -> bool:
    """Whether ``value`` is what an annotation declares; True for annotations that cannot be looked into."""
    origin = get_origin(wanted)
    if origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in get_args(wanted))
    if origin is Literal:
        return any(isinstance(value, type(each)) and value == each for each in get_args(wanted))
    if wanted is None or wanted is type(None):
        return value is None
    if wanted is int:
        return isinstance(value, int | np.integer) and not isinstance(value, bool)
    if wanted is float:
        return isinstance(value, int | float | np.number) and not isinstance(value, bool) and value == value
    if origin is collections.abc.Callable:
        return callable(value)
    wanted = origin or wanted
    if wanted is Any or not isinstance(wanted, type):
        return True
    if getattr(wanted, "_is_protocol", False):
        return not isinstance(value, type) and all(hasattr(value, name) for name in _members(wanted))
    return isinstance(value, wanted)


def _members(protocol: type) -> list[str]:
    """What a protocol asks for."""
    classes = [cls for cls in protocol.__mro__ if getattr(cls, "_is_protocol", False)]
    return [name for cls in classes for name in vars(cls) if not name.startswith("_")]


def _described(wanted) -> str:
    parts = get_args(wanted) if get_origin(wanted) in (Union, types.UnionType) else (wanted,)
    return " or ".join(_name(part) for part in parts)


def _name(wanted) -> str:
    if get_origin(wanted) is Literal:
        return " or ".join(map(repr, get_args(wanted)))
    plain = {int: "a whole number", float: "a number", bool: "True or False", str: "text", type(None): "None"}
    cls = get_origin(wanted) or wanted
    return plain.get(cls) or f"of the kind {getattr(cls, '__name__', cls)}"


def _example(field: dataclasses.Field) -> str:
    """The default, where there is one to show."""
    made = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return "" if made is None or made is dataclasses.MISSING else f", such as {made!r}"


def to_json(value: Any) -> Any:
    """A method, or a setting of one, as JSON-able text; CredoError where it holds code or arrays."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.integer | np.floating):
        return value.item()
    if isinstance(value, tuple | list):
        return [to_json(entry) for entry in value]
    if isinstance(value, collections.abc.Mapping):
        return {"mapping": [[to_json(key), to_json(each)] for key, each in value.items()]}
    cls = type(value)
    if dataclasses.is_dataclass(value) and cls.__module__.startswith(_HOME):
        fields = {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": f"{cls.__module__}:{cls.__qualname__}", "fields": fields}
    raise CredoError(
        f"A checkpoint holds names and numbers, so a {cls.__name__} among the method's settings cannot be kept: fit "
        "without checkpoint=."
    )


def from_json(text: Any) -> Any:
    """The method that ``to_json`` wrote."""
    if isinstance(text, list):
        return tuple(from_json(entry) for entry in text)
    if not isinstance(text, dict):
        return text
    if "mapping" in text:
        return {from_json(key): from_json(each) for key, each in text["mapping"]}
    module, _, name = str(text.get("type")).partition(":")
    try:
        cls = getattr(importlib.import_module(module), name) if module.startswith(_HOME) else None
    except (ImportError, AttributeError):
        cls = None
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise CredoError(f"The file names a method that this version of Credo lacks: {text.get('type')!r}.")
    return cls(**{name: from_json(value) for name, value in text["fields"].items()})
