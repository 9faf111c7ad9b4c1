"""A method as text, for a file from which a run continues: names and numbers, no code."""

import dataclasses
import importlib
from typing import Any

import numpy as np

from credo.status import CredoError

_HOME = "credo."


def to_json(value: Any) -> Any:
    """A method, or a setting of one, as JSON-able text; CredoError where it holds code or arrays."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.integer | np.floating):
        return value.item()
    if isinstance(value, tuple | list):
        return [to_json(entry) for entry in value]
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
    module, _, name = str(text.get("type")).partition(":")
    try:
        cls = getattr(importlib.import_module(module), name) if module.startswith(_HOME) else None
    except (ImportError, AttributeError):
        cls = None
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise CredoError(f"The file names a method that this version of Credo lacks: {text.get('type')!r}.")
    return cls(**{name: from_json(value) for name, value in text["fields"].items()})
